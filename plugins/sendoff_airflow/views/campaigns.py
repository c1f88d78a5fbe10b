"""The pages of the campaigns, of one campaign with its next launch, and the redirects from Airflow's DAGs and runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from fastapi import APIRouter, Request, Response, status
from starlette.responses import HTMLResponse, RedirectResponse

from sendoff.ledger import ListedLaunch, Selection
from sendoff.states import LaunchState
from sendoff_airflow.views import airflow_db
from sendoff_airflow.views.airflow_db import Schedule
from sendoff_airflow.views.dependencies import REFRESH_FAST, REFRESH_SLOW, LedgerDep
from sendoff_airflow.views.launches import WAITS, Row, refresh_of, rows_of, with_not_launched
from sendoff_airflow.views.messages import email_page
from sendoff_airflow.views.missed import Missed, missed_of, paused_since
from sendoff_airflow.views.permissions import ViewerDep, not_there
from sendoff_airflow.views.request_models import Name
from sendoff_airflow.views.templates import page
from sendoff_airflow.views.today import Idle, idle_campaigns

RECIPIENTS = ("recipient", "recipients")
"""The noun for the recipients of a campaign that has no launch yet."""

router = APIRouter(default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class _Row:
    """A campaign of the list."""

    name: str
    schedule: Schedule | None
    newest: Row | None
    reported: ListedLaunch | None  # the newest launch that was sent and has a report
    idle: Idle | None  # if it does not run as scheduled

    @property
    def title(self) -> str:
        """Its title."""
        if self.newest is not None:
            return self.newest.launch.title
        return self.schedule.title if self.schedule else self.name

    @property
    def channels(self) -> list[str]:
        """The names of its channels. Empty if they are not known."""
        from sendoff_airflow.views.next_launch import written_campaign

        launch = self.newest.launch if self.newest else None
        known = written_campaign(None if launch else self.schedule, launch)
        return [channel.label for channel in known[0].channels_used()] if known else []

    @property
    def result(self) -> ListedLaunch | None:
        """The launch whose result is the last one."""
        if self.newest and self.newest.is_still_to_go_out and self.reported:
            is_newest = self.reported.launch.launch_key == self.newest.launch.launch_key
            return None if is_newest else self.reported
        return self.reported

    @property
    def state(self) -> str:
        """What its newest launch waits for, or else whether the campaign runs by itself."""
        if self.newest is not None and self.newest.standing.stage in WAITS:
            return self.newest.standing.stage
        if self.schedule is None:
            return "no DAG"
        if self.schedule.problem is not None:
            return "error"
        if self.schedule.is_paused:
            return "paused"
        return "scheduled" if self.schedule.next_run_at else "started by hand"


@router.get("/campaigns")
def list_campaigns(request: Request, viewer: ViewerDep, ledger: LedgerDep) -> HTMLResponse:
    """Show the campaigns that have launches or a DAG: when each runs next, and its last result."""
    names = viewer.visible([*ledger.launches.campaigns(), *airflow_db.campaigns_with_a_dag()])
    schedules = airflow_db.schedules_of(names)
    reported = ledger.overview.newest(names, is_reported=True)
    newest = {
        row.launch.campaign: row for row in rows_of(ledger, list(ledger.overview.newest(names).values()))
    }
    idle = {each.name: each for each in idle_campaigns(ledger, schedules, {})}
    rows = [
        _Row(name, schedules.get(name), newest.get(name), reported.get(name), idle.get(name))
        for name in names
    ]
    rows.sort(key=lambda row: (row.title.casefold(), row.name))
    return page(request, "campaigns.html", rows=rows, refresh=REFRESH_SLOW)


@router.get("/campaigns/{name}")
def show_campaign(request: Request, viewer: ViewerDep, ledger: LedgerDep, name: str) -> HTMLResponse:
    """Show a campaign: its next launch as far as it is known without running the query, and its newest launches."""
    from sendoff_airflow.views.next_launch import next_launch_of

    viewer.check_sees(name)
    schedule, newest = airflow_db.schedule_of(name), ledger.overview.page(Selection([name]), limit=10)
    rows = rows_of(ledger, newest)
    shown = with_not_launched(ledger, rows, Selection([name]))
    if schedule is None and not shown:
        raise not_there()
    return page(
        request,
        "campaign.html",
        name=name,
        title=newest[0].launch.title if newest else schedule.title if schedule else name,
        schedule=schedule,
        missed=missed_of(ledger, [name]).get(name, Missed()),
        since=paused_since([name]).get(name) if schedule and schedule.is_paused else None,
        noun=(noun := newest[0].launch.noun if newest else RECIPIENTS),
        next_launch=next_launch_of(schedule, newest[0].launch if newest else None, noun),
        dry_run=airflow_db.newest_dry_run(name),
        rows=shown,
        sort_links=None,
        held=[row.launch for row in rows if row.launch.state == LaunchState.HELD],
        may_steer=viewer.may_steer(name),
        refresh=refresh_of(rows),
    )


@router.get("/campaigns/{name}/email")
def show_email(
    viewer: ViewerDep, ledger: LedgerDep, name: str, variant: Name = "", language: Name = ""
) -> HTMLResponse:
    """Show the HTML of the email that a campaign's next launch would send."""
    from sendoff_airflow.views.next_launch import written_campaign

    viewer.check_sees(name)
    newest = ledger.overview.page(Selection([name]), limit=1)
    found = written_campaign(airflow_db.schedule_of(name), newest[0].launch if newest else None)
    if found is None:
        raise not_there()
    return email_page(found[0], variant, language, datetime.now(UTC))


@router.get("/dag")
def redirect_from_dag(
    request: Request, viewer: ViewerDep, ledger: LedgerDep, dag_id: Name, run_id: Name = ""
) -> Response:
    """Redirect from a DAG to its campaign, or from a run to its launch."""
    viewer.check_sees(dag_id)
    key = airflow_db.launch_of(dag_id, run_id) if run_id else None
    if key is not None and (launch := ledger.launches.find(key)) is not None and launch.campaign == dag_id:
        return RedirectResponse(f"launches/{quote(key, safe='')}", status.HTTP_303_SEE_OTHER)
    if run_id:
        why = airflow_db.note_of(dag_id, run_id)
        return page(request, "no_launch.html", dag_id=dag_id, why=why, refresh=REFRESH_FAST)
    return RedirectResponse(f"campaigns/{quote(dag_id, safe='')}", status.HTTP_303_SEE_OTHER)
