"""All commands of ``sendoff``, and how errors end them."""

from __future__ import annotations

import logging
import sys
from io import TextIOWrapper

from rich.console import Console

from sendoff.cli import (  # noqa: F401 - importing them registers their commands
    campaigns,
    check,
    control,
    deployment,
    diff,
    init,
    launches,
    lists,
    metrics,
    people,
    send,
    send_test,
    suppress,
)
from sendoff.cli.shared import UsageError, app
from sendoff.errors import SendoffError
from sendoff.telemetry import logs

__all__ = ["app", "run"]


def run() -> None:
    """Run the command. Print a SendoffError as one line on standard error.

    Then exit with code 2 after wrong usage, and with code 1 otherwise.
    """
    is_json = False
    try:
        is_json = logs.start()
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack characters of a message
        app()
    except SendoffError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        if is_json:
            logging.getLogger("sendoff").error("%s", text)
        else:
            Console(stderr=True, highlight=False).print(f"sendoff: {text}", markup=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
