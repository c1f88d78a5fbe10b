"""Run ``sendoff receiver`` with every possible log, and with the time-outs that a test sets.

The command line is that of ``sendoff receiver``. The environment sets the time-outs: CLIENT_SECONDS for slow clients,
LEDGER_SECONDS for the ledger. With BROKEN_CLOCK, no request can be stored, and the exception's traceback is logged.
QUEUE_LIMIT is how many post-backs may wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import datetime
from functools import partial
from typing import Any

from granian.log import LogLevels

from sendoff import cli
from sendoff.postbacks import receiver, server
from sendoff.postbacks.group_commit import Limits
from sendoff.postbacks.receiver import ReceiverApp
from sendoff.telemetry import logs
from sendoff.times import utc_now


def broken_clock() -> datetime:
    raise RuntimeError("the clock stopped")


make_app = receiver.create_app


def create_app(*args: Any, **options: Any) -> ReceiverApp:
    """Make asyncio in debug mode log each call, as it logs the slow ones on a busy machine."""
    asyncio.get_event_loop_policy().get_event_loop().slow_callback_duration = 0
    return make_app(*args, **options)


def everything(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return a log configuration that suppresses nothing."""
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
    with_clients = float(os.environ.get("CLIENT_SECONDS", "120"))
    server._HEADER_MILLISECONDS = int(with_clients * 1_000)
    server.Server = partial(server.Server, log_level=LogLevels.debug)  # type: ignore[misc,assignment]
    limits = Limits(
        body_timeout=with_clients,
        answer_timeout=float(os.environ.get("LEDGER_SECONDS", "120")),
        queue_limit=int(os.environ.get("QUEUE_LIMIT", "10000")),
        log_every=0.5,
    )
    clock = broken_clock if "BROKEN_CLOCK" in os.environ else utc_now
    receiver.create_app = partial(create_app, limits=limits, clock=clock)
    cli.main()
