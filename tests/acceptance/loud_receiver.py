"""Run ``sendoff receiver`` with every log that it could write, and with times short enough to be waited for.

The command line is that of ``sendoff receiver``. With BROKEN_CLOCK in the environment, no request can be stored: the
exception shows what a traceback tells. QUEUE_LIMIT is how many post-backs may wait.
"""

from __future__ import annotations

import logging
import os
from datetime import datetime
from functools import partial
from typing import Any

from granian.log import LogLevels

from sendoff import cli, logs, receiver


def broken_clock() -> datetime:
    raise RuntimeError("the clock stopped")


def everything(configuration: dict[str, Any]) -> dict[str, Any]:
    """A configuration of the log under which no logger keeps anything back."""
    loggers = {name: {} for name in ("alembic", "asyncio", "psycopg", "sqlalchemy")} | configuration[
        "loggers"
    ]
    return configuration | {
        "loggers": {name: logger | {"level": "DEBUG"} for name, logger in loggers.items()},
        "root": {"handlers": ["console"], "level": 1},
    }


if __name__ == "__main__":
    logging.basicConfig(level=1)
    quiet = logs.of_receiver()
    logs.of_receiver = lambda: everything(quiet)
    receiver._HEADER_MILLISECONDS = 1_000
    receiver.Server = partial(receiver.Server, log_level=LogLevels.debug)  # type: ignore[misc,assignment]
    odd: dict[str, Any] = {"clock": broken_clock} if "BROKEN_CLOCK" in os.environ else {}
    if "QUEUE_LIMIT" in os.environ:
        odd["queue_limit"] = int(os.environ["QUEUE_LIMIT"])
    receiver.create_app = partial(receiver.create_app, body_timeout=1, answer_timeout=1, log_every=0.5, **odd)
    cli.main()
