from .aggregation import aggregate
from .batch_totals import MATCHED_BY
from .feed_health import check_feeds, inspect_feeds
from .reconcile import is_settled, measurable_recipients, reconcile_launch
from .retention import maintain
from .server import serve
from .silence import count_silence

__all__ = [
    "MATCHED_BY",
    "aggregate",
    "check_feeds",
    "count_silence",
    "inspect_feeds",
    "is_settled",
    "maintain",
    "measurable_recipients",
    "reconcile_launch",
    "serve",
]
