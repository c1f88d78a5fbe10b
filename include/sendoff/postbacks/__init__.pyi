from .aggregation import aggregate
from .erasure import Erased, continue_erasures, forget, replay_erasures, request_erasure
from .feed_health import check_feeds, inspect_feeds
from .measurable import measurable_recipients
from .reconcile import is_settled, reconcile_launch, until_sent
from .retention import maintain
from .server import serve
from .silence import count_silence

__all__ = [
    "Erased",
    "aggregate",
    "check_feeds",
    "continue_erasures",
    "count_silence",
    "forget",
    "inspect_feeds",
    "is_settled",
    "maintain",
    "measurable_recipients",
    "reconcile_launch",
    "replay_erasures",
    "request_erasure",
    "serve",
    "until_sent",
]
