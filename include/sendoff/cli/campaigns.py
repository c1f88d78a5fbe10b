"""The commands for campaign files: the preview of a launch, and the schema of ``campaign.yaml``."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sendoff.cli.progress import Steps
from sendoff.cli.shared import (
    AsJson,
    Folders,
    GivenPeriod,
    LedgerUrl,
    OnlyUnsent,
    Resend,
    WarehouseUrls,
    app,
    asked_period,
    opened,
    print_json,
    warehouse_urls,
)
from sendoff.errors import NotYetError
from sendoff.settings import load_settings

if TYPE_CHECKING:
    from sendoff.campaign import Campaign, Period, Setting
    from sendoff.report import Section

WOULD_NOT_SEND = 3
"""The exit code of a preview if a run would not send the campaign."""
_FEWER = "Until then, the query may find fewer recipients."


@app.command()
def preview(
    folder: Annotated[
        Path, typer.Argument(help="The campaign's folder, or a step of a journey: FOLDER/STEP")
    ],
    warehouse: WarehouseUrls = None,
    ledger_url: LedgerUrl = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Rate limit of the connection, in requests per second")
    ] = None,
    period: GivenPeriod = None,
    size_limit: Annotated[int | None, typer.Option(min=1, help="Send to this many people at most")] = None,
    send_late: Annotated[
        bool, typer.Option("--send-late", help="Preview a run that is triggered with Send late")
    ] = False,
    resend: Resend = 0,
    only_unsent: OnlyUnsent = False,
    as_json: AsJson = False,
) -> None:
    """Show what a launch would send, to how many people, and whether its gates are open. Send and store nothing.

    Without --period, it previews the launch that sendoff send would make now. If the campaign has no schedule, it
    previews the last day, but sendoff send needs --period.

    With a ledger, the preview compares the audience with the last launch and applies the suppressions that need it.

    The last table shows each setting and its origin: campaign.yaml, defaults.yaml beside the folder, or built in.

    With --json, the output holds the whole first request, with the identifiers of its first three people.

    The exit code is 3 if a run would not send: a gate is closed, or the ledger already holds a launch for the period.
    """
    from sendoff.campaign import is_journey_folder, load_campaign, load_journey
    from sendoff.launch import LaunchOptions, due_time
    from sendoff.launch import preview_campaign as make_preview
    from sendoff.report import as_terminal, describe_preview

    loaded = load_campaign(folder)
    parent = folder.absolute().parent
    # All steps of a journey have the period of the first one, because only that has the schedule.
    first = load_journey(parent).campaigns[0] if is_journey_folder(parent) else loaded
    previewed, remarks = previewed_period(first.campaign, period)
    warehouses = warehouse_urls(warehouse or [], [loaded.campaign])
    url = ledger_url or load_settings(["ledger_url"]).ledger_url
    with (
        opened(url) if url else nullcontext() as ledger,
        Steps().step("reading the audience", is_often_short=True),
    ):
        found = make_preview(
            loaded,
            period=previewed,
            warehouses=warehouses,
            ledger=ledger,
            options=LaunchOptions(
                size_limit=size_limit,
                due_at=due_time(loaded.campaign, previewed, None),
                send_late=send_late,
                resend=resend,
                only_unsent=only_unsent,
            ),
            rate=rate,
        )
    result = replace(found, warnings=[*remarks, *found.warnings])
    origins = loaded.settings()
    if as_json:
        shown = {**result.to_json(whole_request=True), "settings": [asdict(setting) for setting in origins]}
        print_json(shown)
    else:
        document = describe_preview(result)
        Console().print(as_terminal(replace(document, sections=[*document.sections, _section(origins)])))
    if not result.would_send:
        raise typer.Exit(WOULD_NOT_SEND)


def _section(settings: list[Setting]) -> Section:
    """Return the settings that have a value, with the file that sets each."""
    from sendoff.report import Section, Table

    rows = [
        (
            setting.path,
            json.dumps(setting.value, ensure_ascii=False),
            setting.origin + (f":{setting.line}" if setting.line else ""),
        )
        for setting in settings
        if setting.value is not None or setting.origin != "built in"
    ]
    return Section("settings", "Settings", [Table(("Setting", "Value", "From"), rows)])


def previewed_period(campaign: Campaign, given: str | None) -> tuple[Period, list[str]]:
    """Return the period to preview, with remarks if ``sendoff send`` would not choose it."""
    from sendoff.campaign import Period, last_period

    try:
        period = asked_period(campaign, given)
    except NotYetError as early:
        period = last_period(campaign, early.until)
        assert period is not None
        return period, [f"It is too early to send: {early}. {_FEWER}"]
    if period:
        is_over = campaign.fixed_period or period.end <= datetime.now(UTC)
        remark = f"It is too early to send: the period {period.key} has not ended. {_FEWER}"
        return period, [] if is_over else [remark]
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    remark = (
        "The campaign has no schedule, so this preview uses the last day (UTC). To send the campaign, name the period: "
        "sendoff send --period"
    )
    return Period(end - timedelta(days=1), end), [remark]


@app.command()
def schema(
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Print the schema of defaults.yaml instead")
    ] = False,
    journey: Annotated[
        bool, typer.Option("--journey", help="Print the schema of journey.yaml instead")
    ] = False,
    dbt: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA",
            help="Print the dbt source file of the result tables in this schema of a warehouse instead",
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of campaign.yaml. Editors use it to complete and check the file."""
    from sendoff.campaign import campaign_schema, defaults_schema, journey_schema

    if dbt:
        from sendoff.report import dbt_sources

        typer.echo(dbt_sources(dbt), nl=False)
        return
    made = defaults_schema if defaults else journey_schema if journey else campaign_schema
    print_json(made())


@app.command(name="dbt-exposures")
def dbt_exposures(
    folders: Folders,
) -> None:
    """Print the exposures of a dbt project: the campaigns whose queries name its models and sources.

    Campaigns that name none are left out. The exit code is 1 if a campaign has a mistake.
    """
    from sendoff.campaign import load_campaigns
    from sendoff.report import dbt_exposures as exposures

    typer.echo(exposures(load_campaigns(folders)), nl=False)
