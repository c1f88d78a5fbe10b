"""The number of examples in property tests: a quarter in `make test`, half in `make proof`, more in a search.

The environment variable HYPOTHESIS_PROFILE chooses it: ``test`` (the default), ``proof`` or ``search``. The results
depend neither on the speed of the machine nor on chance. Only ``search`` draws different examples in each run.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "test")

settings.register_profile(
    "proof",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("test", settings.get_profile("proof"), max_examples=25)
settings.register_profile("search", settings.get_profile("proof"), derandomize=False, max_examples=1_000)


def examples(count: int) -> int:
    """Return the number of examples for a test that has ``count`` in a search."""
    return max(count // {"test": 4, "proof": 2}.get(PROFILE, 1), 5)
