from .aggregate import MATCHED_BY, fold
from .feed_health import check_silence, look
from .receiver import serve
from .reconcile import is_settled, reconcile_launch, whose_silence_tells
from .retention import maintain

__all__ = [
    "MATCHED_BY",
    "check_silence",
    "fold",
    "is_settled",
    "look",
    "maintain",
    "reconcile_launch",
    "serve",
    "whose_silence_tells",
]
