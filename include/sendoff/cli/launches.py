"""The commands about launches as they went: reports, what became of one person, what is silent."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sendoff.cli.shared import (
    AsJson,
    LaunchKey,
    LedgerUrl,
    MaybeLaunch,
    app,
    only_launch,
    opened,
)
from sendoff.errors import SettingsError
from sendoff.report import counted

_NEWEST = 20  # launches


@app.command()
def report(
    launch: MaybeLaunch = None,
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also write the picture to this file (.png or .svg)")
    ] = None,
) -> None:
    """Reconcile a launch with everything that came back so far, and show the report.

    Without a launch it lists the newest twenty.
    """
    if launch is None:
        if picture:
            raise SettingsError("--picture needs a launch: give its key, or enough of its beginning")
        _list_launches(ledger_url, as_json=as_json)
        return
    from sendoff import report as reports
    from sendoff.reconcile import reconcile

    with opened(ledger_url) as ledger:
        figures = reconcile(ledger, only_launch(ledger, launch))
    if as_json:
        typer.echo(json.dumps(reports.as_json(figures), indent=2))
    else:
        Console().print(reports.as_table(figures))
    if picture:
        typer.echo(f"picture: {reports.as_picture(figures, picture)}", err=as_json)


def _list_launches(ledger_url: str | None, *, as_json: bool) -> None:
    with opened(ledger_url) as ledger:
        found = ledger.launches.search(limit=_NEWEST)
    if as_json:
        told = [
            {
                "launch": each.launch_key,
                "campaign": each.campaign,
                "period": each.period.key,
                "state": each.state,
            }
            for each in found
        ]
        typer.echo(json.dumps(told, indent=2))
        return
    for each in found:
        typer.echo(f"{each.launch_key[:12]}  {each.campaign}, period {each.period.key}, {each.state}")
    if not found:
        typer.echo("the ledger holds no launch")


@app.command()
def why(
    launch: LaunchKey,
    identifier: Annotated[
        str, typer.Argument(help="As the launch's query names people, such as a device ID")
    ],
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say what became of one person in a launch: why not sent to, or in which segment and with which verdict."""
    with opened(ledger_url) as ledger:
        found = ledger.launches.why(only_launch(ledger, launch), identifier)
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else found.sentence)


@app.command()
def silence(ledger_url: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Say which post-backs came as they should have, which did not, and of which nobody can tell; alarms nobody."""
    from rich.table import Table

    from sendoff.silence import look

    with opened(ledger_url) as ledger:
        found = look(ledger)
        strays = ledger.post_backs.strays()
    if as_json:
        told = {"sources": [asdict(each) for each in found], "strays": asdict(strays)}
        typer.echo(json.dumps(told, indent=2, default=datetime.isoformat))
        return
    table = Table("post-backs", "now", "why", "last certain", box=None)
    for each in found:
        last = f"{each.last.state} since {each.last.since:%Y-%m-%d %H:%M} UTC" if each.last else ""
        table.add_row(str(each.source), each.state, each.why, last)
    Console().print(table)
    if strays.post_backs:
        of = counted(strays.dispatches, "dispatch", "dispatches")
        typer.echo(
            f"set aside: {counted(strays.post_backs, 'post-back')}, of {of} that the ledger does not hold; "
            f"the newest is of {strays.newest_at:%Y-%m-%d %H:%M} UTC"
        )
