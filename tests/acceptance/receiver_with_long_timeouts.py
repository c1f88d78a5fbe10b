"""Run ``sendoff receiver`` with a long time-out for the ledger, so that a slow disk does not fail a test.

The command line is that of ``sendoff receiver``, which gives up on a commit after ten seconds.
"""

from __future__ import annotations

from functools import partial

from sendoff import cli
from sendoff.postbacks import receiver
from sendoff.postbacks.group_commit import Limits

if __name__ == "__main__":
    receiver.create_app = partial(receiver.create_app, limits=Limits(answer_timeout=120))
    cli.main()
