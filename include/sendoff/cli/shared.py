"""What the commands share: the application, options, and the ledger and launch that are meant."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from sendoff import __version__, telemetry
from sendoff.errors import NotFoundError, SettingsError
from sendoff.ledger import Ledger
from sendoff.settings import load_settings

app = typer.Typer(
    name="sendoff",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"sendoff {__version__}")
        raise typer.Exit


@app.callback()
def sendoff(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit"),
    ] = False,
) -> None:
    """Messaging campaigns: sent once, reconciled honestly."""


LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="SQLAlchemy URL of the ledger; default: SENDOFF_LEDGER_URL",
        show_default=False,
    ),
]
LaunchKey = Annotated[str, typer.Argument(help="A launch key, or enough of its beginning")]
Why = Annotated[str, typer.Option(help="The reason, for the ledger")]
MaybeLaunch = Annotated[str | None, typer.Argument(help="A launch key, or enough of its beginning")]
Everything = Annotated[bool, typer.Option("--all", help="Every launch, instead of one")]
OfConnection = Annotated[
    str | None, typer.Option("--connection", help="Every launch of this connection, instead of one")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines")]


@contextmanager
def opened(url: str | None, *, is_scraped: bool = False) -> Iterator[Ledger]:
    """Give the ledger that was named, or else that of the settings, and close it afterwards.

    What is measured meanwhile is sent to where OTEL_* variables say; ``is_scraped``: Prometheus may ask for it.
    """
    telemetry.start(is_scraped=is_scraped)
    ledger = Ledger(url or load_settings().ledger())
    try:
        yield ledger
    finally:
        ledger.close()


def who() -> str:
    """Name the person at the command line, for the ledger."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return f"user {os.getuid()}"


def only_launch(ledger: Ledger, prefix: str) -> str:
    """Give the key of the one launch that begins so; NotFoundError for none, SettingsError for several."""
    found = ledger.launches.search(prefix, limit=2)
    if not found:
        raise NotFoundError(f"the ledger holds no launch that starts with {prefix!r}; see: sendoff report")
    if len(found) > 1:
        raise SettingsError(f"more than one launch starts with {prefix!r}; give more of the key")
    return found[0].launch_key
