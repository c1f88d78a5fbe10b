"""The commands that report on launches: reports, verdicts, one person's history, and feed health."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sendoff.app import user_name
from sendoff.cli.progress import Steps
from sendoff.cli.shared import (
    AsJson,
    LaunchKey,
    LedgerUrl,
    MaybeLaunch,
    app,
    only_launch,
    opened,
    print_json,
    refuse_without_launch,
)
from sendoff.errors import AudienceError, LaunchErrors, UsageError
from sendoff.figures import counted, people_of
from sendoff.states import Stage, Verdict

if TYPE_CHECKING:
    from sendoff.comparison import Comparison
    from sendoff.figures import LaunchStats
    from sendoff.ledger import Ledger, NotLaunched

_NEWEST = 20  # launches
_CAMPAIGNS = Path("dags/campaigns")


@app.command()
def report(
    launch: MaybeLaunch = None,
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also write the picture to this file (.png or .svg)")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report to this file as one HTML page")
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Also compare outcomes: SQLAlchemy URL of the warehouse that outcome.sql and before.sql read",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="The campaign's folder, with outcome.sql and optionally before.sql; default: dags/campaigns/NAME"
        ),
    ] = None,
    detect: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="How much longer: the difference to see, in percent of what people do so far",
        ),
    ] = "10%",
) -> None:
    """Reconcile a launch with the post-backs so far and show its report. Compare its variants, if it has any.

    Without a launch, list the newest twenty: when each was created, its audience with the holdout, its requests. Below
    them are those that were not launched, and why.
    """
    if launch is None:
        refuse_without_launch(picture=picture, html=html, outcome=outcome)
        _list_launches(ledger_url, as_json=as_json)
        return
    difference = _percent(detect)
    from sendoff import report as reports
    from sendoff.dispatch import how_to_continue
    from sendoff.launch import standing_of
    from sendoff.postbacks import reconcile_launch

    with opened(ledger_url) as ledger:
        with Steps().step("counting post-backs", is_often_short=True):
            figures = reconcile_launch(ledger, only_launch(ledger, launch))
        record = ledger.launches.get(figures.launch_key)
        stage = standing_of(ledger, record).stage
        next_steps = how_to_continue(ledger.doubts.pending_resends(figures.launch_key))
        comparisons = _comparisons(ledger, figures, outcome, folder, difference)
    if as_json:
        print_json(reports.as_json(figures, comparisons, stage))
    else:
        Console().print(reports.as_terminal(reports.describe_launch(figures, comparisons, stage)))
    for step in next_steps:
        typer.echo(step, err=as_json)
    if picture:
        typer.echo(f"picture: {reports.as_picture(figures, picture, record.title)}", err=as_json)
    if html:
        document = reports.describe_launch(figures, comparisons, stage, title=record.title)
        typer.echo(f"page: {reports.write_html(document, html)}", err=as_json)


def _comparisons(
    ledger: Ledger, figures: LaunchStats, outcome: str | None, folder: Path | None, detect: float
) -> list[Comparison]:
    from sendoff.campaign import load_campaign
    from sendoff.comparison import comparisons_of
    from sendoff.report import measure_outcome, store_outcome

    found = comparisons_of(ledger, figures, detect)
    if outcome:
        loaded = load_campaign(folder or _CAMPAIGNS / figures.campaign)
        sql, before = loaded.needed_outcome_sql(), loaded.before_sql
        measured = measure_outcome(ledger, figures.launch_key, outcome, sql, before, detect)
        store_outcome(ledger, figures.launch_key, measured)
        found.append(measured)
    return found


def _percent(given: str) -> float:
    """Return a positive percentage, such as ``5%``, as a share. Raise UsageError if it is something else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%?", given.strip())
    if not found or not float(found[1]):
        raise UsageError(f"--detect: {given!r} is not a percentage above 0. Write it as 5%.")
    return float(found[1]) / 100


@app.command()
def verdicts(
    launch: LaunchKey,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdicts to this file (.parquet or .csv)")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Write the verdicts to the warehouse at this SQLAlchemy URL"),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The table in that warehouse, NAME or SCHEMA.NAME; created if missing"
        ),
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(help=f"Only people with this verdict: {', '.join(Verdict)}", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists")] = False,
    ledger_url: LedgerUrl = None,
) -> None:
    """Reconcile a launch and write a row for each of its people: the verdict, the variant, the segment.

    In a table, only the rows of this launch are replaced. The output identifies people, so protect it accordingly.
    """
    if bool(to) != bool(table) or not (out or to):
        raise UsageError("Give a destination: --out FILE, or --to URL with --table NAME.")
    from sendoff.postbacks import reconcile_launch
    from sendoff.report import VerdictRows, verdict_named, write_file, write_table

    only = verdict_named(verdict, "--verdict") if verdict else None
    with opened(ledger_url) as ledger:
        key = only_launch(ledger, launch)
        reconcile_launch(ledger, key)
        found = VerdictRows.of(ledger, key, only, who=user_name())
        total = sum(found.expected.values())
        if out:
            with Steps().step(f"writing {out}", total, found.read.total):
                rows = write_file(found, out, replace=force)
            typer.echo(f"{counted(rows, 'row')}: {out}")
        if to and table:
            with Steps().step(f"writing the table {table}", total, found.read.total):
                rows = write_table(found, to, table)
            typer.echo(f"{counted(rows, 'row')}: table {table}")


@app.command()
def tables(
    launch: LaunchKey,
    to: Annotated[str, typer.Option(metavar="URL", help="SQLAlchemy URL of the warehouse to write to")],
    schema: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The schema of the tables; default: the connection's own"),
    ] = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Reconcile a launch and write its results into three tables of a warehouse, as report.tables of a campaign does.

    Only the rows of this launch are replaced. sendoff_verdicts identifies people, so protect it accordingly.
    """
    from sendoff.postbacks import reconcile_launch
    from sendoff.report import write_results

    with opened(ledger_url) as ledger:
        key = only_launch(ledger, launch)
        with Steps().step("writing the tables", is_often_short=True):
            reconcile_launch(ledger, key)
            written = write_results(ledger, key, to, schema, who=user_name())
        for table, rows in written.items():
            typer.echo(f"{counted(rows, 'row')}: table {table}")


def _list_launches(ledger_url: str | None, *, as_json: bool) -> None:
    from sendoff.launch import standings
    from sendoff.ledger import Selection

    with opened(ledger_url) as ledger:
        found = ledger.launches.search(limit=_NEWEST)
        stages = {key: each.stage for key, each in standings(ledger, Selection.of(found)).items()}
        missed = ledger.not_launched.newest(limit=_NEWEST)
    if as_json:
        told = [
            {
                "launch": each.launch_key,
                "campaign": each.campaign,
                "period": each.period.key,
                "state": each.state,
                "stage": stages[each.launch_key],
                "made_at": each.created_at.isoformat(),
                "audience": None if each.is_chosen_by_service else each.audience,
                "requests": each.segments,
            }
            for each in found
        ]
        told += [_not_launched(each) for each in missed]
        print_json(told)
        return
    for each in found:
        whom = people_of(None if each.is_chosen_by_service else each.audience)
        typer.echo(
            f"{each.launch_key[:12]}  {each.campaign}, period {each.period.key}, "
            f"{stages[each.launch_key].label}, "
            f"created {each.created_at:%Y-%m-%d %H:%M} UTC, {whom}, {counted(each.segments, 'request')}"
        )
    if not found:
        typer.echo("the ledger has no launches")
    for entry in missed:
        typer.echo(
            f"Not launched: {entry.campaign}, period {entry.period.key}, checked "
            f"{entry.checked_at:%Y-%m-%d %H:%M} UTC: {entry.why}"
        )


def _not_launched(entry: NotLaunched) -> dict[str, Any]:
    """Return a launch that was not made, with the members of the others."""
    return {
        "launch": None,
        "campaign": entry.campaign,
        "period": entry.period.key,
        "state": Stage.NOT_LAUNCHED,
        "stage": Stage.NOT_LAUNCHED,
        "made_at": entry.checked_at.isoformat(),
        "audience": None,
        "requests": 0,
        "why": entry.why,
    }


@app.command()
def why(
    launch: LaunchKey,
    identifier: Annotated[
        str, typer.Argument(help="The person's identifier in the launch's query, such as a device ID")
    ],
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Explain one person's part in a launch: why they were left out, or their segment and verdict."""
    with opened(ledger_url) as ledger:
        found = ledger.launches.recipient(only_launch(ledger, launch), identifier.strip())
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(found)


@app.command()
def history(
    identifier: Annotated[str, typer.Argument(help="The person's identifier, such as a device ID")],
    campaign: Annotated[str | None, typer.Option(help="Only launches of this campaign")] = None,
    newest: Annotated[int, typer.Option(min=1, help="How many launches to look at")] = _NEWEST,
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Explain one person's part in the newest launches, the newest first.

    Launches that did not name the person, or that identify people by another type, are only counted.
    """
    found, others = [], 0
    with opened(ledger_url) as ledger:
        for launch in ledger.launches.search(campaign=campaign, limit=newest):
            try:
                status = ledger.launches.recipient(launch.launch_key, identifier.strip())
            except AudienceError:
                others += 1
                continue
            if status.is_named or status.may_be_erased or not status.is_known:
                found.append((launch, status))
            else:
                others += 1
    if as_json:
        print_json([{"campaign": launch.campaign, **status.to_json()} for launch, status in found])
        return
    for launch, status in found:
        typer.echo(
            f"{launch.created_at:%Y-%m-%d %H:%M} UTC, {launch.campaign}, {launch.launch_key[:12]}: {status}"
        )
    if not found:
        typer.echo(f"not named in {counted(others, 'launch', 'launches')}")
    elif others:
        typer.echo(f"not named in {counted(others, 'other launch', 'other launches')}")


@app.command()
def feeds(ledger_url: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Show feed health: which post-backs arrive as expected, which do not, and which cannot be judged. No alerts."""
    from rich.table import Table

    from sendoff.postbacks import inspect_feeds

    errors = LaunchErrors()
    with opened(ledger_url) as ledger:
        checks = inspect_feeds(ledger, errors=errors)
        orphans = ledger.aggregates.orphans()
    if as_json:
        values = {"feeds": [asdict(check) for check in checks], "orphans": asdict(orphans)}
        print_json(values)
    else:
        table = Table("post-backs", "now", "why", "last certain", box=None)
        for check in checks:
            last = f"{check.last.state} since {check.last.since:%Y-%m-%d %H:%M} UTC" if check.last else ""
            table.add_row(str(check.feed), check.state, check.why, last)
        Console(markup=False).print(table)
    if orphans.post_backs and not as_json:
        of = counted(orphans.dispatches, "dispatch", "dispatches")
        typer.echo(
            f"parked: {counted(orphans.post_backs, 'post-back')} of {of} that are not in this ledger; "
            f"the newest is from {orphans.newest_at:%Y-%m-%d %H:%M} UTC"
        )
    errors.raise_all()
