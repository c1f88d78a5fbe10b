from .bucketing import below, smallest
from .build import GROUP_COLUMNS, Audience, build_audience, those_among
from .csv_list import kind_of, read_people
from .identifiers.selection import packed
from .segmentation import ALIKE, Segment, segments_of
from .template_values import first_parameters, read_parameters, template_columns, with_parameters

__all__ = [
    "ALIKE",
    "GROUP_COLUMNS",
    "Audience",
    "Segment",
    "below",
    "build_audience",
    "first_parameters",
    "kind_of",
    "packed",
    "read_parameters",
    "read_people",
    "segments_of",
    "smallest",
    "template_columns",
    "those_among",
    "with_parameters",
]
