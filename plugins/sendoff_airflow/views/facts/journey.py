"""A journey as its page shows it: its steps in order, the recipients of each, and how many left by an exit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sendoff.audience.identifiers import union
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
    launch_key,
    step_name,
)
from sendoff.errors import NobodyLeftError, NotYetError
from sendoff.launch import sent_at
from sendoff.ledger import LaunchRecord, Ledger, ListedLaunch, Selection
from sendoff.states import Verdict
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

    ``left_out``: recipients left out when the step was prepared, by reason. ``left_before``: those of them left out by
    an exit. ``opened``: of its recipients. ``left_after``: those of them who leave because they opened it; None if that
    is no exit. ``here``: those who wait for a next step; None if there is none.
    """

    campaign: str
    name: str
    title: str
    taken: str
    launches: Sequence[ListedLaunch]  # newest first
    recipients: int
    opened: int | None
    left_out: Mapping[str, int]
    left_before: int
    left_after: int | None
    here: int | None
    # When the first of those who wait take the next step, if they still wait for a time.
    due_at: datetime | None
    noun: tuple[str, str]

    @property
    def left(self) -> int:
        """How many recipients left the journey by an exit, before or after this step."""
        return self.left_before + (self.left_after or 0)


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
    if not _is_journey(campaigns):
        return None  # campaigns of other task groups
    order = sorted(campaigns, key=lambda each: (_depth(campaigns, each), each))
    steps = [_step(ledger, name, each, campaigns, launches, {}) for each in order]
    return JourneyView(schedule.title if schedule else name, steps, [], True)


def journeys_among(schedules: Mapping[str, DagSchedule], newest: Mapping[str, LaunchRecord]) -> set[str]:
    """Return the DAGs of some campaigns that are journeys. ``newest``: the newest launches of the campaigns."""
    steps: dict[str, list[str]] = {}
    for name, schedule in schedules.items():
        if schedule.step:
            steps.setdefault(schedule.dag_id, []).append(name)
    return {
        dag_id
        for dag_id, names in steps.items()
        if airflow_dags.journey_of(schedules[names[0]])
        or _is_journey({each: Campaign.frozen(newest[each].definition) for each in names if each in newest})
    }


def _is_journey(campaigns: Mapping[str, Campaign]) -> bool:
    """Check whether one of the campaigns of a DAG goes to recipients of another."""
    return any((source := _source(each)) and source.of in campaigns for each in campaigns.values())


def campaigns_in(ledger: Ledger, dag_id: str) -> Sequence[str]:
    """Return the campaigns with launches that are steps, task groups or tasks of a DAG, without their tests."""
    known = ledger.launches.campaigns()
    sent = [each for each in known if each.startswith(f"{dag_id}.") and not each.endswith(TEST)]
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
    left_out, left_before = _left_out(journey, name, campaigns, own)
    waiting = _waiting(ledger, own, {each: launches[each] for each in next_steps})
    due = [
        at + (wait.timedelta() if (wait := waits[step]) else timedelta())
        for sent, missing in waiting
        if waits and (at := _sent_at(ledger, sent[0]))
        for step in missing
    ]
    ahead = [at for at in due if at > datetime.now(UTC)]
    here = sum(_may_go_on(ledger, sent, leaves=leaves) for sent, _ in waiting)
    return ShownStep(
        campaign=name,
        name=name.removeprefix(f"{journey}."),
        title=campaign.title or name,
        taken=_taken(journey, name, campaigns, waits, noun[1]),
        launches=own,
        recipients=sum(each.recipients or 0 for each in own),
        opened=sum(opened) if opened else None,
        left_out=left_out,
        left_before=left_before,
        left_after=sum(opened) if leaves else None,
        here=here if next_steps else None,
        due_at=min(ahead, default=None),
        noun=noun,
    )


def _waiting(
    ledger: Ledger, own: Sequence[ListedLaunch], following: Mapping[str, Sequence[ListedLaunch]]
) -> Sequence[tuple[Sequence[ListedLaunch], Sequence[str]]]:
    """Return the launches of a step after which next steps may still come, with these steps, for each period.

    The run of such a period goes on, or it has no run. A launch that was stopped counts too, if a part of it was sent.
    A next step that was not made does not come, such as one without recipients.
    """
    places: dict[tuple[str, Period], list[ListedLaunch]] = {}
    for each in own:
        if each.sends_at or not each.launch.state.is_final:
            places.setdefault(_place(each), []).append(each)
    keys = {launch_key(place[0], step, place[1]): (place, step) for place in places for step in following}
    taken = {(_place(each), step) for step, found in following.items() for each in found}
    taken |= {keys[each.launch_key] for each in ledger.not_launched.of_keys(keys)}
    ahead = [
        (sent, missing)
        for place, sent in places.items()
        if (missing := [step for step in following if (place, step) not in taken])
    ]
    campaigns = {each.launch.launch_key: each.launch.campaign for sent, _ in ahead for each in sent}
    runs = airflow_db.runs_of(campaigns) if campaigns else {}
    waiting = []
    for sent, missing in ahead:
        found = [runs[key] for each in sent if (key := each.launch.launch_key) in runs]
        if any(run.state in _UNDER_WAY for run in found) if found else own[0] in sent:
            waiting.append((sent, missing))
    return waiting


def _may_go_on(ledger: Ledger, sent: Sequence[ListedLaunch], *, leaves: bool) -> int:
    """Return how many recipients of the launches of a period may get a next step. Each counts once.

    ``leaves``: without those who opened one.
    """
    if len(sent) == 1:
        return (sent[0].recipients or 0) - ((sent[0].opened or 0) if leaves else 0)
    kind = sent[0].launch.kind
    keys = [each.launch.launch_key for each in sent if each.launch.kind == kind]
    people = union(
        kind, (ledger.launches.recipients_among(key, ledger.launches.audience(key)) for key in keys)
    )
    if leaves:
        verdicts = [ledger.verdicts.sets(key) for key in keys]
        people -= union(kind, (sets[Verdict.ENGAGED] for sets in verdicts if Verdict.ENGAGED in sets))
    return len(people)


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


def _is_exit(exclusion: Exclusion, campaigns: Mapping[str, Campaign]) -> bool:
    """Check whether an exclusion of a step comes from an exit: it is of a step, or the first step has it as an exit.

    The first step has the queries and lists of the exits first, then those who took it before, and then its own.
    """
    if isinstance(exclusion, VerdictExclusion):
        return exclusion.of in campaigns
    for name, campaign in campaigns.items():
        exclude = campaign.audience.exclude
        own = [isinstance(each, CampaignExclusion) and each.name == name for each in exclude]
        if True in own and exclusion in exclude[: own.index(True)]:
            return True
    return False


def _left_out(
    journey: str, name: str, campaigns: Mapping[str, Campaign], own: Sequence[ListedLaunch]
) -> tuple[dict[str, int], int]:
    """Return how many recipients were left out of a step's launches, by reason, and how many of them by an exit."""
    counts: dict[str, int] = {}
    by_exit = 0
    # Of two exclusions that are counted together, the exit is the first.
    exclusions = {counted_as(each): each for each in reversed(campaigns[name].audience.exclude)}
    for reason, exclusion in reversed(exclusions.items()):
        if dropped := sum(each.launch.dropped.get(reason, 0) for each in own):
            words = _why(journey, exclusion)
            counts[words] = counts.get(words, 0) + dropped
            by_exit += dropped if _is_exit(exclusion, campaigns) else 0
    return counts, by_exit


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
