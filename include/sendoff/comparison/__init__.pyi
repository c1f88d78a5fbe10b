from .adjustment import BEFORE, SideOutcome, compared_adjusted
from .balance import CONTROL_GROUP, mismatch_of_assigned, without_mismatch
from .engagement import asked_about, comparisons_of, leader_of
from .result import LEVEL, Comparison, Difference, Side, amount, conclusion, percent, spoken
from .statistics import NOTICEABLE, Asked, Values, compared_means, compared_shares

__all__ = [
    "BEFORE",
    "CONTROL_GROUP",
    "LEVEL",
    "NOTICEABLE",
    "Asked",
    "Comparison",
    "Difference",
    "Side",
    "SideOutcome",
    "Values",
    "amount",
    "asked_about",
    "compared_adjusted",
    "compared_means",
    "compared_shares",
    "comparisons_of",
    "conclusion",
    "leader_of",
    "mismatch_of_assigned",
    "percent",
    "spoken",
    "without_mismatch",
]
