from .charts import COLOURS
from .comparison import Comparison, of_engagement
from .export import Verdicts, write_file
from .export_table import write_table
from .outcomes import measure_outcome
from .page import write_html
from .picture import points_of
from .text import (
    VERDICT_WORDS,
    as_comparison,
    as_json,
    as_picture,
    as_table,
    as_text,
    comparison_text,
)
from .wording import why_unknowable

__all__ = [
    "COLOURS",
    "VERDICT_WORDS",
    "Comparison",
    "Verdicts",
    "as_comparison",
    "as_json",
    "as_picture",
    "as_table",
    "as_text",
    "comparison_text",
    "measure_outcome",
    "of_engagement",
    "points_of",
    "why_unknowable",
    "write_file",
    "write_html",
    "write_table",
]
