"""The pages of the campaigns, of one campaign with its next launch, and the redirects from Airflow's DAGs and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from fastapi import APIRouter, Request, Response, status
from starlette.responses import HTMLResponse, RedirectResponse

from sendoff.ledger import LaunchRecord, Ledger, ListedLaunch, NotLaunched, Selection
from sendoff.states import LaunchState
from sendoff_airflow.views.airflow_state import airflow_dags, airflow_db
from sendoff_airflow.views.airflow_state.airflow_dags import DagSchedule
from sendoff_airflow.views.airflow_state.missed import Missed, missed_of, paused_since
from sendoff_airflow.views.facts.holds import visible_pauses
from sendoff_airflow.views.facts.journey import (
    MOST_PERIODS,
    JourneyView,
    campaigns_in,
    journey_of,
    journeys_among,
)
from sendoff_airflow.views.facts.launch_rows import WAITS, LaunchRow, rows_of
from sendoff_airflow.views.facts.messages import email_page
from sendoff_airflow.views.facts.problems import CampaignProblem, campaign_problems
from sendoff_airflow.views.pages.launches import campaigns_seen, refresh_of, with_not_launched
from sendoff_airflow.views.web.dependencies import REFRESH_FAST, REFRESH_SLOW, LedgerDep
from sendoff_airflow.views.web.permissions import Viewer, ViewerDep, not_there
from sendoff_airflow.views.web.request_models import Name
from sendoff_airflow.views.web.templates import page

RECIPIENTS = ("recipient", "recipients")
"""The noun for the recipients of a campaign that has no launch yet."""

LAUNCHES_PER_STEP = 5
"""The newest launches of each step that the page of a journey shows."""

router = APIRouter(default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class _Row:
    """A campaign of the list."""

    name: str
    schedule: DagSchedule | None
    newest: LaunchRow | None
    reported: ListedLaunch | None  # the newest launch that was sent and has a report
    last_check: NotLaunched | None  # of the newest launch that was not made
    problem: CampaignProblem | None  # if it does not run as scheduled, or its newest run failed
    journey: str | None  # the title of the journey that it is a step of
    has_steps: bool

    @property
    def title(self) -> str:
        """Its title."""
        if self.newest is not None:
            return self.newest.launch.title
        known = self.schedule or self.last_check
        return known.title if known else self.name

    @property
    def channels(self) -> list[str]:
        """The names of its channels. Empty if they are not known."""
        from sendoff_airflow.views.facts.next_launch import written_campaign

        launch = self.newest.launch if self.newest else None
        known = written_campaign(None if launch else self.schedule, launch)
        return [channel.label for channel in known[0].channels_used()] if known else []

    @property
    def not_launched(self) -> NotLaunched | None:
        """The launch that was not made, unless a later one was."""
        check = self.last_check
        is_newest = check and (self.newest is None or self.newest.launch.created_at < check.checked_at)
        return check if is_newest else None

    @property
    def without_result(self) -> LaunchRow | None:
        """The newest launch, unless it was sent and has a report."""
        if self.newest is None or (self._is_reported and not self.newest.is_still_to_go_out):
            return None
        return self.newest

    @property
    def result(self) -> ListedLaunch | None:
        """The launch whose result is the last one."""
        return None if self._is_reported and self.without_result else self.reported

    @property
    def _is_reported(self) -> bool:
        """Whether the newest launch is the newest one that has a report."""
        return (
            self.newest is not None
            and self.reported is not None
            and self.newest.launch == self.reported.launch
        )

    @property
    def has_failed(self) -> bool:
        """Whether its newest run failed before its launch."""
        return self.problem is not None and bool(self.problem.missed.failed)

    @property
    def state(self) -> str:
        """What its newest launch waits for, or else whether the campaign runs by itself."""
        if self.newest is not None and self.newest.standing.stage in WAITS:
            return self.newest.standing.stage
        if self.schedule is None:
            return "not in Airflow"
        if self.schedule.problem is not None:
            return "error"
        if self.schedule.is_paused:
            return "paused"
        if self.has_failed:
            return "failed"
        return "scheduled" if self.schedule.next_run_at else "started by hand"


@router.get("/campaigns")
def list_campaigns(request: Request, viewer: ViewerDep, ledger: LedgerDep) -> HTMLResponse:
    """Show the campaigns that have launches, made or not, or a DAG: when each runs next, and its last result."""
    not_launched = ledger.not_launched.campaigns()
    names = campaigns_seen(viewer, ledger)
    schedules = airflow_dags.schedules_of_campaigns(names)
    reported = ledger.overview.newest(names, is_reported=True)
    newest = {
        row.launch.campaign: row for row in rows_of(ledger, list(ledger.overview.newest(names).values()))
    }
    journeys = journeys_among(schedules, {name: row.launch for name, row in newest.items()})
    whole = {name: each for name, each in schedules.items() if each.step is None}
    problems = {each.name: each for each in campaign_problems(ledger, whole, {})}
    rows = [
        _Row(
            name,
            schedule := schedules.get(name),
            newest.get(name),
            reported.get(name),
            not_launched.get(name),
            problems.get(name),
            schedule.title if schedule and schedule.step and schedule.dag_id in journeys else None,
            name in journeys,
        )
        for name in names
    ]
    rows.sort(key=lambda row: ((row.journey or row.title).casefold(), row.title.casefold(), row.name))
    pauses = visible_pauses(ledger, viewer, names)
    return page(request, "campaigns.html", rows=rows, pauses=pauses, refresh=REFRESH_SLOW)


@router.get("/campaigns/{name}")
def show_campaign(request: Request, viewer: ViewerDep, ledger: LedgerDep, name: str) -> HTMLResponse:
    """Show a campaign: its next launch as far as it is known without running the query, and its newest launches."""
    from sendoff_airflow.views.facts.next_launch import next_launch_of

    viewer.check_sees(name)
    schedule, newest = airflow_dags.schedule_of(name), ledger.overview.page(Selection([name]), limit=10)
    rows = rows_of(ledger, newest)
    shown = with_not_launched(ledger, rows, Selection([name]))
    if not shown and (journey := journey_of(ledger, name, schedule)):
        return _journey_page(request, ledger, name, schedule, journey)
    if schedule is None and not shown:
        raise not_there()
    launch = newest[0].launch if newest else None
    inside = [] if shown else _rows_inside(viewer, ledger, name)
    can_dry_run = schedule is not None and airflow_dags.takes_dry_run(schedule.dag_id)
    if not (shown or _has_campaign(viewer, ledger, name, schedule)):
        return page(request, "no_campaign.html", schedule=schedule, refresh=REFRESH_SLOW)
    return page(
        request,
        "campaign.html",
        name=name,
        title=launch.title if launch else schedule.title if schedule else name,
        schedule=schedule,
        place=_place_of(ledger, name, schedule),
        missed=missed_of(ledger, [name]).get(name, Missed()),
        since=_paused_since(schedule),
        noun=(noun := launch.noun if launch else RECIPIENTS),
        next_launch=next_launch_of(schedule, launch, noun),
        tests=_test_dag_of(viewer, schedule),
        dry_run=airflow_dags.newest_dry_run(schedule) if schedule else None,
        rows=shown or inside,
        has_own=bool(shown),
        sort_links=None,
        held=[row for row in (rows or inside) if row.launch.state == LaunchState.HELD],
        pauses=ledger.pauses.of_connection(launch.connection) if launch else [],
        can_dry_run=can_dry_run,
        may_steer=viewer.may_steer(name),
        refresh=refresh_of(rows or inside),
    )


def _rows_inside(viewer: Viewer, ledger: Ledger, dag_id: str) -> list[LaunchRow]:
    """Return the newest launches of the task groups and tasks of a DAG that the viewer may see."""
    selection = Selection(viewer.visible(campaigns_in(ledger, dag_id)))
    return rows_of(ledger, ledger.overview.page(selection, limit=10))


def _has_campaign(viewer: Viewer, ledger: Ledger, dag_id: str, schedule: DagSchedule | None) -> bool:
    """Check whether a DAG offers dry runs, or it, its task groups or its tasks have launches, made or not.

    Its tasks may also make launches under names that they choose, which this does not find.
    """
    if schedule is not None and airflow_dags.takes_dry_run(schedule.dag_id):
        return True
    own = ledger.overview.count(Selection([dag_id])) or ledger.not_launched.newest([dag_id], limit=1)
    return bool(own or _rows_inside(viewer, ledger, dag_id))


def _test_dag_of(viewer: Viewer, schedule: DagSchedule | None) -> DagSchedule | None:
    """Return the DAG that sends tests of a campaign, or None if there is none that the viewer may trigger."""
    dag = airflow_dags.test_dag_of(schedule) if schedule else None
    return dag if dag and viewer.may_steer(dag.dag_id) else None


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a campaign among the steps of a journey. Steps are numbered from 1."""

    journey: JourneyView
    dag_id: str
    number: int  # 0: the journey no longer has this step

    @property
    def taken(self) -> str:
        """When the step goes out, and who gets it, as a sentence."""
        return self.journey.steps[self.number - 1].taken if self.number else ""


def _place_of(ledger: Ledger, name: str, schedule: DagSchedule | None) -> _Place | None:
    """Return the place of a campaign in a journey, or None if its DAG is its own."""
    if schedule is None or schedule.step is None:
        return None
    journey = journey_of(ledger, schedule.dag_id, airflow_dags.schedule_of(schedule.dag_id))
    return _Place(journey, schedule.dag_id, journey.number_of(name)) if journey else None


def _paused_since(schedule: DagSchedule | None) -> datetime | None:
    if schedule is None or not schedule.is_paused:
        return None
    return paused_since([schedule.dag_id]).get(schedule.dag_id)


def _journey_page(
    request: Request, ledger: Ledger, name: str, schedule: DagSchedule | None, journey: JourneyView
) -> HTMLResponse:
    """Show a journey: its next run, its steps in order with their recipients and exits, and the launches of each."""
    rows = {step.campaign: rows_of(ledger, step.launches[:LAUNCHES_PER_STEP]) for step in journey.steps}
    every = [row for each in rows.values() for row in each]
    return page(
        request,
        "journey.html",
        name=name,
        journey=journey,
        schedule=schedule,
        since=_paused_since(schedule),
        missed=missed_of(ledger, [name]).get(name, Missed()),
        rows_of_step=rows,
        most=MOST_PERIODS,
        sort_links=None,
        held=[row for row in every if row.launch.state == LaunchState.HELD],
        refresh=refresh_of(every),
    )


@router.get("/campaigns/{name}/email")
def show_email(
    viewer: ViewerDep, ledger: LedgerDep, name: str, variant: Name = "", language: Name = ""
) -> HTMLResponse:
    """Show the HTML of the email that a campaign's next launch would send."""
    from sendoff_airflow.views.facts.next_launch import written_campaign

    viewer.check_sees(name)
    newest = ledger.overview.page(Selection([name]), limit=1)
    found = written_campaign(airflow_dags.schedule_of(name), newest[0].launch if newest else None)
    if found is None:
        raise not_there()
    return email_page(found[0], variant, language, datetime.now(UTC))


@router.get("/dag")
def redirect_from_dag(
    request: Request, viewer: ViewerDep, ledger: LedgerDep, dag_id: Name, run_id: Name = ""
) -> Response:
    """Redirect from a DAG to its campaign, or from a run to its launch. Show the launches of a run with several."""
    viewer.check_sees(dag_id)
    if not run_id:
        return RedirectResponse(f"campaigns/{quote(dag_id, safe='')}", status.HTTP_303_SEE_OTHER)
    found = airflow_db.launches_of(dag_id, run_id)
    known = {launch.launch_key: launch for launch in ledger.launches.of_keys(found)}
    of_others = {
        name
        for name, each in airflow_dags.schedules_of_campaigns(set(found.values())).items()
        if each.dag_id != dag_id
    }
    own = [
        known[key]
        for key, campaign in found.items()
        if key in known and known[key].campaign == campaign and campaign not in of_others
    ]
    if len(own) == 1 and own[0].campaign == dag_id:
        return RedirectResponse(f"launches/{quote(own[0].launch_key, safe='')}", status.HTTP_303_SEE_OTHER)
    if own:
        return _run_page(request, viewer, ledger, dag_id, run_id, own)
    why = airflow_db.note_of(dag_id, run_id)
    has_campaign = _has_campaign(viewer, ledger, dag_id, airflow_dags.schedule_of(dag_id))
    return page(
        request, "no_launch.html", dag_id=dag_id, why=why, has_campaign=has_campaign, refresh=REFRESH_FAST
    )


def _run_page(
    request: Request,
    viewer: Viewer,
    ledger: Ledger,
    dag_id: str,
    run_id: str,
    launches: Sequence[LaunchRecord],
) -> HTMLResponse:
    """Show the launches of a run, such as the steps of a journey, in their order."""
    visible = viewer.visible({launch.campaign for launch in launches})
    keys = [launch.launch_key for launch in launches]
    rows = rows_of(ledger, ledger.overview.page(Selection(visible, keys), limit=len(keys)))
    rows.sort(key=lambda row: keys.index(row.launch.launch_key))
    schedule = airflow_dags.schedule_of(dag_id)
    journey = journey_of(ledger, dag_id, schedule)
    taken = {row.launch.campaign for row in rows}
    return page(
        request,
        "run.html",
        dag_id=dag_id,
        title=journey.title if journey else schedule.title if schedule else dag_id,
        rows=rows,
        sort_links=None,
        left=[step for step in journey.steps if step.campaign not in taken] if journey else [],
        is_over=airflow_db.state_of(dag_id, run_id) in ("success", "failed"),
        run_path=airflow_db.run_path(dag_id, run_id),
        refresh=refresh_of(rows),
    )
