"""A journey as its page shows it: its steps in order, the recipients of each, and how many left by an exit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sendoff.campaign import (
    TEST,
    Campaign,
    CampaignExclusion,
    Duration,
    Exclusion,
    FileExclusion,
    JourneyFolder,
    ListExclusion,
    Period,
    QueryExclusion,
    QueryExit,
    VerdictExclusion,
    VerdictExit,
    VerdictSource,
    counted_as,
    step_name,
)
from sendoff.errors import NobodyLeftError, NotYetError
from sendoff.launch import sent_at
from sendoff.ledger import Ledger, ListedLaunch, Selection
from sendoff_airflow.views.airflow_state import airflow_dags, airflow_db
from sendoff_airflow.views.airflow_state.airflow_dags import DagSchedule

MOST_PERIODS = 60
"""The newest launches of each step that a page counts."""

_UNDER_WAY = ("queued", "running")
_DID = {
    "engaged": "opened or clicked it",
    "delivered": "got it but did not open it",
    "missing": "probably did not get it",
    "in_doubt": "may or may not have got it",
    "not_sent": "were not sent to",
}


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step of a journey. The counts are those of its newest launches.

    ``left_before``: recipients left out by an exit when the step was prepared, by reason. ``opened``: of its
    recipients. ``left_after``: those of them who leave because they opened it; None if that is no exit. ``here``: those
    who wait for a next step; None if there is none.
    """

    campaign: str
    name: str
    title: str
    taken: str
    launches: Sequence[ListedLaunch]  # newest first
    recipients: int
    opened: int | None
    left_before: Mapping[str, int]
    left_after: int | None
    here: int | None
    # When the first of those who wait take the next step, if they still wait for a time.
    due_at: datetime | None
    noun: tuple[str, str]

    @property
    def left(self) -> int:
        """How many recipients left the journey by an exit, before or after this step."""
        return sum(self.left_before.values()) + (self.left_after or 0)


@dataclass(frozen=True, slots=True)
class JourneyView:
    """A journey with its steps in order, and its exits in words."""

    title: str
    steps: Sequence[ShownStep]
    exits: Sequence[str]
    is_of_launches: bool  # as the folder cannot be read
    zone: str | None = None  # of its schedule, if that is known

    def number_of(self, campaign: str) -> int:
        """Return the number of a step, from 1; 0 if the journey no longer has it."""
        return next((number for number, step in enumerate(self.steps, 1) if step.campaign == campaign), 0)


def journey_of(ledger: Ledger, name: str, schedule: DagSchedule | None) -> JourneyView | None:
    """Return the journey with some name, or None if there is none.

    If its folder cannot be read, its steps are the campaigns of its DAG that have launches, as they were frozen.
    """
    folder = airflow_dags.journey_of(schedule) if schedule else None
    if folder:
        campaigns = {each.name: each.campaign for each in folder.campaigns}
        dags = airflow_dags.dags_of(campaigns)  # another DAG may have the name of a step, and other viewers
        launches = {each: _launches_of(ledger, each) if dags[each] == name else () for each in campaigns}
        waits = {step_name(name, step.name): step.wait for step in folder.journey.steps}
        steps = [_step(ledger, name, each, campaigns, launches, waits) for each in campaigns]
        zone = folder.journey.schedule_time_zone if folder.journey.schedule else None
        return JourneyView(folder.journey.title, steps, _exits(folder), False, zone)
    launches = {each: _launches_of(ledger, each) for each in campaigns_in(ledger, name)}
    campaigns = {each: Campaign.frozen(found[0].launch.definition) for each, found in launches.items()}
    if not any((source := _source(each)) and source.of in campaigns for each in campaigns.values()):
        return None  # campaigns of other task groups
    order = sorted(campaigns, key=lambda each: (_depth(campaigns, each), each))
    steps = [_step(ledger, name, each, campaigns, launches, {}) for each in order]
    return JourneyView(schedule.title if schedule else name, steps, [], True)


def campaigns_in(ledger: Ledger, dag_id: str) -> Sequence[str]:
    """Return the campaigns with launches that are steps, task groups or tasks of a DAG, without their tests."""
    known = ledger.launches.campaigns()
    sent = [each for each in known if each.rpartition(".")[0] == dag_id and not each.endswith(TEST)]
    dags = airflow_dags.dags_of(sent)
    return [each for each in sent if dags[each] == dag_id]


def _launches_of(ledger: Ledger, campaign: str) -> Sequence[ListedLaunch]:
    return ledger.overview.page(Selection([campaign]), limit=MOST_PERIODS)


def _source(campaign: Campaign) -> VerdictSource | None:
    source = campaign.audience.source
    return source if isinstance(source, VerdictSource) else None


def _depth(campaigns: Mapping[str, Campaign], name: str, known: frozenset[str] = frozenset()) -> int:
    """Return how many steps come before a step. ``known``: those already counted, because anyone may write a circle."""
    source = _source(campaigns[name])
    if source is None or source.of not in campaigns or name in known:
        return 0
    return 1 + _depth(campaigns, source.of, known | {name})


def _step(
    ledger: Ledger,
    journey: str,
    name: str,
    campaigns: Mapping[str, Campaign],
    launches: Mapping[str, Sequence[ListedLaunch]],
    waits: Mapping[str, Duration | None],
) -> ShownStep:
    campaign, own = campaigns[name], launches[name]
    noun = next((found[0].launch.noun for found in launches.values() if found), ("recipient", "recipients"))
    next_steps = [
        each for each, other in campaigns.items() if (source := _source(other)) and source.of == name
    ]
    leaves = any(
        isinstance(each, VerdictExclusion) and each.of == name and "engaged" in each.are
        for other in next_steps
        for each in campaigns[other].audience.exclude
    )
    opened = [each.opened for each in own if each.opened is not None]
    waiting = _waiting(own, [launches[each] for each in next_steps])
    known = [waits[each] for each in next_steps if each in waits]
    wait = min((each.timedelta() if each else timedelta() for each in known), default=None)
    due = [at + wait for each in waiting if wait is not None and (at := _sent_at(ledger, each))]
    ahead = [at for at in due if at > datetime.now(UTC)]
    here = sum((each.recipients or 0) - ((each.opened or 0) if leaves else 0) for each in waiting)
    return ShownStep(
        campaign=name,
        name=name.removeprefix(f"{journey}."),
        title=campaign.title or name,
        taken=_taken(journey, name, campaigns, waits, noun[1]),
        launches=own,
        recipients=sum(each.recipients or 0 for each in own),
        opened=sum(opened) if opened else None,
        left_before=_left_before(journey, campaign, own),
        left_after=sum(opened) if leaves else None,
        here=here if next_steps else None,
        due_at=min(ahead, default=None),
        noun=noun,
    )


def _waiting(
    own: Sequence[ListedLaunch], following: Sequence[Sequence[ListedLaunch]]
) -> Sequence[ListedLaunch]:
    """Return the launches of a step after which a next step may still come: its run goes on, or it has no run.

    A launch that was stopped counts too, if a part of it was sent.
    """
    taken = {_place(each) for other in following for each in other}
    sent = [each for each in own if each.sends_at or not each.launch.state.is_final]
    ahead = [each for each in sent if following and _place(each) not in taken]
    campaigns = {each.launch.launch_key: each.launch.campaign for each in ahead}
    runs = airflow_db.runs_of(campaigns) if ahead else {}
    goes_on = {key: run.state in _UNDER_WAY for key, run in runs.items()}
    return [each for each in ahead if goes_on.get(each.launch.launch_key, each is own[0])]


def _place(each: ListedLaunch) -> tuple[str, Period]:
    return each.launch.connection, each.launch.period


def _sent_at(ledger: Ledger, each: ListedLaunch) -> datetime | None:
    try:
        return sent_at(ledger, each.launch)
    except (NobodyLeftError, NotYetError):
        return None


def _taken(
    journey: str,
    name: str,
    campaigns: Mapping[str, Campaign],
    waits: Mapping[str, Duration | None],
    many: str,
) -> str:
    """Return when a step goes out, and who gets it, as a sentence."""
    source = _source(campaigns[name])
    if source is None:
        return "The journey begins with it."
    earlier = source.of.removeprefix(f"{journey}.")
    did = ", or ".join(_DID[each] for each in source.are)
    wait = waits.get(name)
    when = f"{wait.words} after" if wait else "right after" if name in waits else "some time after"
    unknown = f", and to {many} for which no one can know that" if source.unknowable == "include" else ""
    return f"It goes out {when} {earlier} was sent, to {many} that {did}{unknown}."


def _left_before(journey: str, campaign: Campaign, own: Sequence[ListedLaunch]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for exclusion in campaign.audience.exclude:
        dropped = sum(each.launch.dropped.get(counted_as(exclusion), 0) for each in own)
        if dropped:
            words = _why(journey, exclusion)
            counts[words] = counts.get(words, 0) + dropped
    return counts


def _why(journey: str, exclusion: Exclusion) -> str:
    """Return why recipients were left out, as the rest of a sentence that begins with their number."""
    match exclusion:
        case VerdictExclusion():
            did = " or ".join(_DID[each] for each in exclusion.are)
            return did.replace(" it", f" {exclusion.of.removeprefix(f'{journey}.')}", 1)
        case QueryExclusion():
            return f"were found by {exclusion.file}"
        case FileExclusion():
            return f"are in {exclusion.file}"
        case ListExclusion():
            return f"are on the list {exclusion.name}"
        case CampaignExclusion():
            return exclusion.reason or f"got {exclusion.name}"


def _exits(folder: JourneyFolder) -> Sequence[str]:
    """Return what makes recipients leave the journey, each as the rest of a sentence."""
    words = []
    for each in folder.journey.exits:
        if isinstance(each, VerdictExit):
            words.append(" or ".join(_DID[verdict] for verdict in each.are).replace(" it", " a message", 1))
        elif isinstance(each, QueryExit):
            words.append(f"are found by {each.file}")
        else:
            words.append(f"are on the list {each.name}")
    return words
