"""Logs of the receiver and the command line, as text for people or as JSON for machines.

With ``SENDOFF_LOG_FORMAT=json``, each record is one line with ``time``, ``level``, ``logger``, ``message``, the members
of ``extra``, and ``exception`` if there is one. Tracebacks contain lines of code, but no values of variables.
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
_of_commands = logging.getLogger("sendoff.cli")


def is_json() -> bool:
    """Check whether SENDOFF_LOG_FORMAT asks for JSON. Raise SettingsError unless it is ``json`` or ``text``."""
    chosen = os.environ.get("SENDOFF_LOG_FORMAT") or "text"
    if chosen not in _FORMATS:
        raise SettingsError(f"SENDOFF_LOG_FORMAT: found {chosen}. Use {', '.join(_FORMATS)}")
    return chosen == "json"


def start() -> bool:
    """Write a command's warnings and errors to standard error, and return whether they are JSON.

    If they are, uncaught exceptions are logged as JSON too. Loggers configured before keep their configuration.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(json_lines() if is_json() else logging.Formatter(_BY_NAME))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if is_json():
        sys.excepthook = _log_uncaught
        _of_commands.setLevel(logging.INFO)
    return is_json()


def note(text: str, level: int = logging.INFO) -> None:
    """Write a line of a command that is no result to standard error, or log it if the log is JSON."""
    if is_json():
        _of_commands.log(level, "%s", text)
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def of_receiver() -> dict[str, Any]:
    """Return the receiver's logging configuration for ``logging.config.dictConfig``."""
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
    """Return a formatter that writes each record as one line of JSON."""
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
            processors.format_exc_info,  # plain text: other formats include the values of variables
            processors.EventRenamer("message"),
            processors.JSONRenderer(sort_keys=False),
        ],
    )


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    _log.critical("Uncaught exception: %s", kind.__name__, exc_info=(kind, error, traceback))
