"""All commands of ``sendoff``, and how errors end them."""

from __future__ import annotations

import errno
import logging
import os
import sys
from io import TextIOWrapper

from rich.console import Console

from sendoff.cli import (  # noqa: F401 - importing them registers their commands
    campaigns,
    check,
    control,
    deployment,
    diff,
    doctor,
    init,
    launches,
    lists,
    metrics,
    people,
    send,
    send_test,
    suppress,
)
from sendoff.cli.shared import app
from sendoff.errors import SendoffError, UsageError
from sendoff.telemetry import logs

__all__ = ["app", "run"]

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""The errors of a full or broken disk."""


def run() -> None:
    """Run the command. Print a SendoffError as one line on standard error, and also if the output cannot be written.

    Then exit with code 2 after wrong usage, and with code 1 otherwise.
    """
    is_json = False
    try:
        is_json = logs.start()
        _check_arguments()
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack characters of a message
        app()
    except SendoffError as error:
        _print_error("\n".join([str(error), *getattr(error, "__notes__", ())]), is_json=is_json)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # The interpreter writes the rest of the output when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        place = error.filename or "the output"
        _print_error(f"{place} cannot be written: {error.strerror}", is_json=is_json)
        sys.exit(1)


def _check_arguments() -> None:
    """Raise UsageError if an argument is not text: no identifier, reason or key in the ledger has such bytes."""
    for number, argument in enumerate(sys.argv[1:], 1):
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise UsageError(f"Argument {number} is not text in {sys.getfilesystemencoding().upper()}.")


def _print_error(text: str, *, is_json: bool) -> None:
    if is_json:
        logging.getLogger("sendoff").error("%s", text)
    else:
        Console(stderr=True, highlight=False).print(f"sendoff: {text}", markup=False, soft_wrap=True)
