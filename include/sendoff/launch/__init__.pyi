from .gates import due_at_of, is_over, lateness, opens_at, zone_of
from .plan import prepare_launch
from .preview import Preview, preview_campaign, preview_launch
from .preview_text import as_markdown, as_table
from .rendering import Rendering, renderings
from .send_times import in_words, sending_of

__all__ = [
    "Preview",
    "Rendering",
    "as_markdown",
    "as_table",
    "due_at_of",
    "in_words",
    "is_over",
    "lateness",
    "opens_at",
    "prepare_launch",
    "preview_campaign",
    "preview_launch",
    "renderings",
    "sending_of",
    "zone_of",
]
