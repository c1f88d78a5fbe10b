"""What the commands share: the application, its options, and how to find the ledger and the launch."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sendoff import __version__
from sendoff.errors import NotFoundError, NotYetError, SettingsError, UsageError
from sendoff.ledger import Ledger
from sendoff.settings import connection_for, environment_settings, load_settings, no_warehouse
from sendoff.telemetry import exporters, logs

if TYPE_CHECKING:
    from sendoff import App
    from sendoff.campaign import Campaign, Period

GROUPS = {
    "Start": (
        "demo",
        "init",
        "check",
        "preview",
        "migrate",
        "receiver",
        "doctor",
        "send-test",
        "send",
        "report",
    ),
    "Campaign files": ("diff", "schema", "dbt-exposures"),
    "Launches": ("pause", "resume", "release", "stop", "doubts", "resolve", "verdicts", "tables"),
    "People": ("why", "history", "suppress", "lists", "forget", "export-person"),
    "Maintenance": ("feeds", "metrics", "maintain", "grants", "copy-ledger"),
}
"""The commands by what a user does with them, in the order of the help."""


class _Grouped(TyperGroup):
    """Shows the commands in :data:`GROUPS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        listed = [name for names in GROUPS.values() for name in names]
        return listed + [name for name in super().list_commands(ctx) if name not in listed]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        for title, names in GROUPS.items():
            if cmd_name in names:
                command.rich_help_panel = title
        return command


app = typer.Typer(
    name="sendoff",
    cls=_Grouped,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # which joins the lines of a paragraph
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
    """Messaging campaigns: each is sent at most once, and every recipient gets a verdict."""


LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="SQLAlchemy URL of the ledger; default: SENDOFF_LEDGER_URL",
        show_default=False,
    ),
]
WarehouseUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--warehouse",
        metavar="URL",
        help="SQLAlchemy URL of the warehouse; default: SENDOFF_WAREHOUSE_URL, or Airflow's connection. If exclusions "
        "read another warehouse, repeat the option for it as CONNECTION=URL",
        show_default=False,
    ),
]
Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="FOLDER",
        help="Campaign folders, or folders that contain some at any depth",
        exists=True,
        file_okay=False,
        show_default=False,
    ),
]


def refuse_blank(reason: str | None) -> str | None:
    """Return the value of an option for a reason. Raise UsageError if it is blank."""
    if reason is not None and not reason.strip():
        raise UsageError("The reason is blank. Say why, in a few words.")
    return reason


LaunchKey = Annotated[str, typer.Argument(help="A launch key, or the first characters of it")]
Why = Annotated[str, typer.Option(callback=refuse_blank, help="The reason, for the audit log")]
MaybeLaunch = Annotated[str | None, typer.Argument(help="A launch key, or the first characters of it")]
GivenPeriod = Annotated[
    str | None,
    typer.Option(
        "--period",
        metavar="START/END",
        help="The period, such as 2026-11-16/2026-11-23 or 2026-11-16 for a day (UTC); default: the last complete "
        "interval of the campaign's schedule, as for its DAG",
        show_default=False,
    ),
]
Resend = Annotated[
    int,
    typer.Option(
        "--resend",
        min=0,
        help="A number above 0 sends the period again, to everyone in it unless --only-unsent leaves people out",
    ),
]
OnlyUnsent = Annotated[
    bool,
    typer.Option(
        "--only-unsent",
        help="With --resend: leave out people who got, or may have got, an earlier launch for the period",
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="Every launch, instead of one")]
OfConnection = Annotated[
    str | None, typer.Option("--connection", help="Every launch of this connection, instead of one")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]


_CONNECTION = re.compile(r"[\w.-]+")
_OF_LEDGER = ("ledger_url", "erasure_secret", "erasure_log")


def print_json(value: object) -> None:
    """Print a value as JSON, with times in ISO format."""
    typer.echo(json.dumps(value, indent=2, default=datetime.isoformat))


@contextmanager
def opened(url: str | None, *, is_scraped: bool = False) -> Iterator[Ledger]:
    """Yield the ledger at this URL, or else the one of the settings, and close it afterwards.

    Metrics are exported as the OTEL_* variables say. ``is_scraped``: Prometheus may scrape this process.
    """
    exporters.start(is_scraped=is_scraped)
    ledger = Ledger(url) if url else Ledger.from_settings(load_settings(_OF_LEDGER))
    try:
        yield ledger
    finally:
        ledger.close()


def connected(connection: str, ledger_url: str | None, **given: Any) -> App:
    """Return an app for the connection that a campaign names."""
    from sendoff import connect

    if named := connection_for(connection):
        given["connection"] = named
    return connect(ledger_url, **given)


def refuse_without_launch(**options: object) -> None:
    """Raise UsageError if one of these options is given: it needs a launch."""
    for name, value in options.items():
        if value not in (None, False):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} needs a launch. Give its key, or the first characters of it.")


def only_launch(ledger: Ledger, prefix: str) -> str:
    """Return the key of the launch that starts with ``prefix``.

    Raise NotFoundError if there is none, SettingsError if there are several.
    """
    found = ledger.launches.search(prefix, limit=2)
    if not found or not prefix:
        raise NotFoundError(f"No launch starts with {prefix!r}. List the newest with: sendoff report")
    if len(found) > 1:
        raise SettingsError(f"More than one launch starts with {prefix!r}. Give more of the key.")
    return found[0].launch_key


def asked_period(campaign: Campaign, given: str | None) -> Period | None:
    """Return the period that was given, or else the campaign's own or its schedule's last one; None without any.

    Print a warning if it is not an interval of the schedule. Raise NotYetError if the schedule's first period has not
    ended.
    """
    from sendoff.campaign import Period, last_period

    if given is None:
        return campaign.fixed_period or last_period(campaign, datetime.now(UTC))
    try:
        period = Period.of(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--period") from None
    with suppress(NotYetError):
        own = last_period(campaign, period.end)
        if own and own.key != period.key and not period.partition:
            logs.note(
                f"Warning: the period {period.key} is not an interval of the schedule, such as {own.key}. It is "
                "another launch than the DAG's. Of two launches whose periods overlap, only the first is sent.",
                logging.WARNING,
            )
    return period


def warehouse_urls(given: list[str], campaigns: Iterable[Campaign]) -> Callable[[str], str]:
    """Return a function from a connection's name to its URL: as given, or else from the settings.

    A URL without a name, as in SENDOFF_WAREHOUSE_URL, is for the campaigns' own warehouses. The query of an exclusion
    that reads another one would run on the wrong database. Raise UsageError if several URLs have no name.
    """
    named, plain = {}, []
    for each in given:
        name, separator, url = each.partition("=")
        if separator and _CONNECTION.fullmatch(name):
            named[name] = url
        elif each:
            plain.append(each)
    if len(plain) > 1:
        raise UsageError(
            "--warehouse: found several URLs without a name. Write all but one as CONNECTION=URL."
        )
    others = frozenset(name for campaign in campaigns for name in campaign.other_warehouses)

    @cache
    def url_of(name: str) -> str:
        if url := named.get(name):
            return url
        if plain and name not in others:
            return plain[0]
        is_named = name not in others or not environment_settings().warehouse_url
        if is_named and (url := load_settings(["warehouse_url"], name).warehouse_url):
            return url
        raise no_warehouse(name, f"--warehouse {name}=URL", is_looked_up=is_named)

    return url_of
