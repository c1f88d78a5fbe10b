"""Logs of the receiver and the command line: lines for people, or one JSON object a line for machines.

``SENDOFF_LOG_FORMAT=json`` gives ``time``, ``level``, ``logger``, ``message``, what a call passes as ``extra``, and
``exception`` where there is one, all in one line. A traceback holds lines of code, and no values of variables.
"""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType
from typing import Any

from sendoff.errors import SettingsError

_FORMATS = ("text", "json")
_BY_TIME = "%(asctime)s %(levelname)s %(message)s"
_BY_NAME = "%(levelname)s %(name)s: %(message)s"
_log = logging.getLogger("sendoff")


def is_json() -> bool:
    """Say whether SENDOFF_LOG_FORMAT asks for JSON; SettingsError for what is neither ``json`` nor ``text``."""
    chosen = os.environ.get("SENDOFF_LOG_FORMAT") or "text"
    if chosen not in _FORMATS:
        raise SettingsError(f"SENDOFF_LOG_FORMAT: found {chosen}; allowed: {', '.join(_FORMATS)}")
    return chosen == "json"


def start() -> bool:
    """Write the log of a command to standard error, from warnings on; gives whether that is JSON.

    Then an error that nobody caught is a line of JSON too. What has been set up before stays as it is.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(json_lines() if is_json() else logging.Formatter(_BY_NAME))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if is_json():
        sys.excepthook = _log_uncaught
    return is_json()


def of_receiver() -> dict[str, Any]:
    """Give the logging configuration of a receiver, in the terms of ``logging.config.dictConfig``."""
    return {
        "formatters": {
            "line": {"()": "sendoff.telemetry.logs.json_lines"} if is_json() else {"format": _BY_TIME}
        },
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["console"], "level": "WARNING"},
        "loggers": {
            "_granian": {"handlers": ["console"], "propagate": False},
            "sendoff": {"handlers": ["console"], "level": "INFO", "propagate": False},
        },
    }


def json_lines() -> logging.Formatter:
    """Make what writes a record as one line of JSON."""
    from structlog import processors, stdlib

    return stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            processors.TimeStamper("iso", utc=True, key="time"),
            stdlib.add_log_level,
            stdlib.add_logger_name,
            stdlib.ExtraAdder(),
        ],
        processors=[
            stdlib.ProcessorFormatter.remove_processors_meta,
            processors.format_exc_info,  # a text: other forms of it hold the values of variables
            processors.EventRenamer("message"),
            processors.JSONRenderer(sort_keys=False),
        ],
    )


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    _log.critical("an error that nobody caught: %s", kind.__name__, exc_info=(kind, error, traceback))
