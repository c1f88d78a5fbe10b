from .bucketing import sample, sample_exactly, split
from .build import GROUP_COLUMNS, IDENTIFIER_COLUMNS, KINDS, Audience, build_audience, those_among
from .column_contract import checked_columns
from .csv_list import count_people, kind_of, read_people
from .identifiers.selection import bitmap_from, packed
from .keyed_hash import HashedIdentifier, KeyedHash, KnownPeople, as_kinds, checked_texts
from .segmentation import (
    DEFAULT_VARIATION,
    Segment,
    Timed,
    check_groups,
    in_unknown_zones,
    segments_of,
    with_template_values,
)
from .template_values import (
    first_template_values,
    read_template_values,
    template_columns,
    template_values_without,
)

__all__ = [
    "DEFAULT_VARIATION",
    "GROUP_COLUMNS",
    "IDENTIFIER_COLUMNS",
    "KINDS",
    "Audience",
    "HashedIdentifier",
    "KeyedHash",
    "KnownPeople",
    "Segment",
    "Timed",
    "as_kinds",
    "bitmap_from",
    "build_audience",
    "check_groups",
    "checked_columns",
    "checked_texts",
    "count_people",
    "first_template_values",
    "in_unknown_zones",
    "kind_of",
    "packed",
    "read_people",
    "read_template_values",
    "sample",
    "sample_exactly",
    "segments_of",
    "split",
    "template_columns",
    "template_values_without",
    "those_among",
    "with_template_values",
]
