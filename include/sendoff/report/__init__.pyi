from .campaign_difference import describe_difference, difference_as_json
from .counts import as_csv
from .dbt import dbt_exposures, dbt_sources, write_dbt_sources
from .export import VerdictRows, verdict_named, write_file
from .export_suppressions import SuppressionRows
from .export_table import write_table
from .html import as_fragment, as_html, blocks_as_html, css, sections_as_html, write_html
from .launch_report import as_json, as_picture, describe_comparison, describe_launch
from .markdown import as_markdown
from .model import (
    Block,
    Bullets,
    Code,
    Document,
    Facts,
    Line,
    Link,
    Listing,
    Section,
    Sentence,
    Sum,
    Table,
    Words,
)
from .outcomes import measure_outcome, store_outcome, stored_outcomes
from .preview_report import describe_preview, recipients_of
from .result_tables import RESULT_TABLES, write_results
from .terminal import as_terminal, as_text

__all__ = [
    "RESULT_TABLES",
    "Block",
    "Bullets",
    "Code",
    "Document",
    "Facts",
    "Line",
    "Link",
    "Listing",
    "Section",
    "Sentence",
    "Sum",
    "SuppressionRows",
    "Table",
    "VerdictRows",
    "Words",
    "as_csv",
    "as_fragment",
    "as_html",
    "as_json",
    "as_markdown",
    "as_picture",
    "as_terminal",
    "as_text",
    "blocks_as_html",
    "css",
    "dbt_exposures",
    "dbt_sources",
    "describe_comparison",
    "describe_difference",
    "describe_launch",
    "describe_preview",
    "difference_as_json",
    "measure_outcome",
    "recipients_of",
    "sections_as_html",
    "store_outcome",
    "stored_outcomes",
    "verdict_named",
    "write_dbt_sources",
    "write_file",
    "write_html",
    "write_results",
    "write_table",
]
