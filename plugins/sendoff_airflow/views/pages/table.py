"""The list of launches as a table for spreadsheets. It holds counts, and no identifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query, Response

from sendoff.campaign import Campaign
from sendoff.errors import CampaignError
from sendoff.ledger import LaunchRecord, Ledger, NotLaunched, Selection
from sendoff.report import csv_of
from sendoff.states import DispatchState, Stage
from sendoff_airflow.views.facts.launch_rows import LaunchRow
from sendoff_airflow.views.pages.launches import MOST_IN_TABLE, Filter, campaigns_seen, keys_of, listed
from sendoff_airflow.views.pages.results import WITH_MARK
from sendoff_airflow.views.web.dependencies import ExpensiveDep, LedgerDep
from sendoff_airflow.views.web.permissions import ViewerDep
from sendoff_airflow.views.web.reader import ZoneDep

router = APIRouter()

_NAMES = ("campaign", "title", "resend", "period start", "period end", "partition", "time zone", "state")
_COUNTS = (
    *("when", "time", "counted in", "recipients", "control group", "left out"),
    *("requests", "accepted", "reached", "opened", "opt-outs"),
)
_AT_ONCE = 500  # launches, because their definitions may be large
_ROWS = {"null", "invalid", "duplicate"}
"""The reasons for dropped rows that are no further recipients."""


@router.get("/launches.csv")
def download_launches(
    viewer: ViewerDep, _: ExpensiveDep, ledger: LedgerDep, zone: ZoneDep, asked: Annotated[Filter, Query()]
) -> Response:
    """Return the launches that the list shows with the same filter, in its order, with times in the reader's zone."""
    selection = asked.selection(campaigns_seen(viewer, ledger), zone)
    _paged, keys = keys_of(ledger, asked, selection, MOST_IN_TABLE)
    table = csv_of((*_NAMES, *_COUNTS), _rows(ledger, selection, keys, zone))
    name = f"launches-{datetime.now(zone):%Y-%m-%d}.csv"
    how = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(table.encode(WITH_MARK), media_type="text/csv", headers=how)


def _rows(
    ledger: Ledger, selection: Selection, keys: Sequence[str], zone: ZoneInfo
) -> Iterator[Sequence[str | int | None]]:
    for first in range(0, len(keys), _AT_ONCE):
        some = listed(ledger, selection, keys[first : first + _AT_ONCE])
        made = [row.launch.launch_key for row in some if isinstance(row, LaunchRow)]
        opted_out = ledger.launch_counts.opt_outs(made)
        for row in some:
            launch = row if isinstance(row, NotLaunched) else row.launch
            yield (
                *(launch.campaign, launch.title, launch.resend),
                *(_time(launch.period.start, zone), _time(launch.period.end, zone), launch.period.partition),
                zone.key,
                Stage.NOT_LAUNCHED.label if isinstance(row, NotLaunched) else row.standing.stage.label,
                *([None] * len(_COUNTS) if isinstance(row, NotLaunched) else _counts(row, opted_out, zone)),
            )


def _counts(row: LaunchRow, opted_out: Mapping[str, int], zone: ZoneInfo) -> Sequence[str | int | None]:
    launch, recipients, requests = row.launch, row.listed.recipients, row.standing.requests
    return (
        row.when,
        _time(row.goes_out_at, zone),
        launch.noun[1],
        recipients,
        None if recipients is None else launch.audience - launch.erased - recipients,
        sum(count for reason, count in launch.dropped.items() if reason not in _ROWS),
        sum(requests.values()),
        requests.get(DispatchState.ACCEPTED, 0),
        row.listed.reached,
        row.listed.opened,
        None if row.is_unsent or not _shows_opt_outs(launch) else opted_out[launch.launch_key],
    )


def _shows_opt_outs(launch: LaunchRecord) -> bool:
    with suppress(CampaignError):  # another version of Sendoff froze it
        return Campaign.frozen(launch.definition).shows_opt_outs
    return False


def _time(moment: datetime | None, zone: ZoneInfo) -> str | None:
    """Return a moment as spreadsheets read it."""
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}" if moment else None
