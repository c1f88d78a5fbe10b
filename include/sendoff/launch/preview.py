"""What a launch would be, without sending or storing anything: its people, its words, its requests, its cost.

Counts only. A preview names nobody, and holds no address or header of a webhook that may be a secret, unless
:meth:`Preview.to_json` is asked for the whole of its sample request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo

from sendoff.audience import GROUP_COLUMNS, Audience, Segment
from sendoff.audience.identifiers import Identifiers
from sendoff.campaign import Campaign, CampaignFolder, Edition, Once, advice
from sendoff.launch.gates import GateResult
from sendoff.launch.plan import Plan, Warehouses, plan_launch
from sendoff.launch.reachability import unreached
from sendoff.launch.rendering import Rendering, renderings
from sendoff.launch.sample import sample_request
from sendoff.launch.send_times import Sending, sending_of
from sendoff.ledger import Launch, Ledger
from sendoff.period import Period, launch_key
from sendoff.service import shown_request
from sendoff.service.wire import FieldNames

CLOSED_STATES = ("rejected", "stopped")
"""The states of a launch of which nothing more is sent."""


@dataclass(frozen=True, slots=True)
class Change:
    """How an audience differs from that of the campaign's last launch."""

    launch_key: str  # of the last launch
    period: str
    audience: int  # people of the last launch
    new: int
    kept: int
    gone: int


@dataclass(frozen=True, slots=True)
class Made:
    """A launch that the ledger already holds for the period: as it was frozen, and how far it was sent."""

    launch_key: str
    state: str
    made_at: datetime
    people: int | None  # None: the service chooses them
    requests: int
    made: int  # requests that were made, whatever became of them
    accepted: int
    last_at: datetime | None  # when the newest answer was recorded; None before the first request


@dataclass(frozen=True, slots=True)
class Zone:
    """One time zone's people, and the moment when they are sent to, on their clocks; None: at once, or repeatedly."""

    time_zone: str
    people: int
    sends_at: datetime | None


@dataclass(frozen=True, slots=True)
class Consent:
    """Whether somebody must agree first; ``role`` None: whoever Airflow lets. Silence rejects."""

    is_needed: bool
    role: str | None
    within_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The figures of a launch that has not been sent, and one of its requests.

    ``audience`` and ``people`` are None where the service chooses the people. ``audience`` counts ``people``, who are
    sent to, and those of ``left_out`` who were not ``dropped`` before. ``variants``, ``languages`` and ``time_zones``
    are empty where they make no difference; ``waves`` are in their order. ``launch_key`` and ``state``: of a launch
    that is frozen in the ledger. ``already_made``: the launch that the ledger holds for the period, which a run finds
    and continues instead of making the one that is previewed; of a frozen launch, itself once a request was made.
    ``request``: the first one with the number of its people instead of them; None: there is nobody to make one for.
    """

    campaign: str
    period: str
    launch_key: str | None
    state: str | None
    already_made: Made | None
    targeting: Literal["query", "broadcast", "saved_segments", "conditions"]
    identified_by: str | None
    rows: int
    dropped: Mapping[str, int]
    audience: int | None
    left_out: Mapping[str, int]
    people: int | None
    change: Change | None
    groups: Mapping[str, Mapping[str, int]]  # column of the query -> value -> people of the audience
    variants: Mapping[str, int]
    languages: Mapping[str, int]
    time_zones: Sequence[Zone]
    waves: Sequence[int]
    wave_wait_seconds: float | None
    sending: Sending
    requests: int
    segment_size: int
    rate: float | None  # requests per second
    seconds: float | None  # that the requests take at that rate
    renderings: Sequence[Rendering]
    filled_in: Sequence[str]  # names of the tags that the service fills in for each person
    request: Mapping[str, Any] | None = field(repr=False)
    gates: Sequence[GateResult]
    approval: Consent
    warnings: Sequence[str]
    whole_request: Mapping[str, Any] | None = field(repr=False)

    @property
    def would_send(self) -> bool:
        """Check whether a run would send this launch, once everybody agreed who must.

        It would not if a gate is closed, if somebody stopped the launch, if everything was sent, or if the ledger holds
        another launch for the period.
        """
        made = self.already_made
        if made and (self.launch_key is None or made.made == made.requests):
            return False
        return all(gate.is_open for gate in self.gates) and self.state not in CLOSED_STATES

    @property
    def held_out(self) -> int:
        """How many are left alone to measure against."""
        return self.left_out.get("holdout", 0)

    def to_json(self, *, whole_request: bool = False) -> dict[str, Any]:
        """Give the preview as JSON values.

        With ``whole_request`` its request is given as it would be sent, with the identifiers of its first three people:
        for somebody who may read the warehouse, never for a log or XCom.
        """
        values: dict[str, Any] = _plain(asdict(self))
        whole = values.pop("whole_request")
        if whole_request:
            values["request"] = whole
        return values | {"held_out": self.held_out, "would_send": self.would_send}


def preview_campaign(
    folder: CampaignFolder,
    *,
    period: Period,
    warehouses: Warehouses,
    ledger: Ledger | None = None,
    size_limit: int | None = None,
    due_at: datetime | None = None,
    send_late: bool = False,
    rate: float | None = None,
    names: FieldNames | None = None,
    now: datetime | None = None,
) -> Preview:
    """Run a campaign's query and say what a launch for the period would send; nothing is stored or sent.

    ``due_at`` and ``send_late`` are those of :func:`~sendoff.launch.plan.prepare_launch`. ``rate``: the most requests a
    second that the connection allows. Without ``ledger``, what needs one is not known,
    and the warnings say so. Raises QueryError and AudienceError; an audience of nobody is an error.
    """
    plan = plan_launch(
        ledger,
        folder,
        period=period,
        warehouses=warehouses,
        size_limit=size_limit,
        due_at=due_at,
        send_late=send_late,
        now=now or datetime.now(UTC),
    )
    made = None
    if ledger and (
        found := ledger.launches.find(launch_key(folder.campaign.connection, folder.name, period))
    ):
        made = _already_made(ledger, found)
    return _preview(_planned(folder.name, period, plan), ledger, rate=rate, names=names, already_made=made)


def preview_launch(
    ledger: Ledger, launch_key: str, *, rate: float | None = None, names: FieldNames | None = None
) -> Preview:
    """Say what a launch sends that the ledger holds, as it was frozen; the warehouse is not asked again.

    Raises NotFoundError for a launch that the ledger does not hold.
    """
    launch = ledger.launches.get(launch_key)
    made = _already_made(ledger, launch)
    return _preview(
        _frozen(ledger, launch), ledger, rate=rate, names=names, already_made=made if made.made else None
    )


def _already_made(ledger: Ledger, launch: Launch) -> Made:
    key = launch.launch_key
    states = ledger.dispatches.states(key)
    requests = sum(states.values())
    return Made(
        launch_key=key,
        state=launch.state,
        made_at=launch.created_at,
        people=None
        if launch.is_chosen_by_service
        else sum(size for _, _, size in ledger.dispatches.parts(key)),
        requests=requests,
        made=requests - states.get("planned", 0),
        accepted=states.get("accepted", 0),
        last_at=ledger.dispatches.newest_outcome(key),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a plan and a frozen launch both are."""

    name: str
    period: Period
    campaign: Campaign  # resolved
    identified_by: str
    rows: int
    dropped: Mapping[str, int]
    audience: Identifiers | None
    left_out: Mapping[str, int]
    groups: Mapping[str, Mapping[str, Identifiers]]
    columns: Collection[str] | None  # of the query, beside that of the people
    parts: Sequence[tuple[Edition, int, int]]  # edition, wave and size of each segment
    first: Segment | None
    previous: Launch | None
    gates: Sequence[GateResult]
    warnings: Sequence[str]
    frozen: Launch | None = None


def _planned(name: str, period: Period, plan: Plan) -> _Seen:
    audience = plan.audience
    return _Seen(
        name=name,
        period=period,
        campaign=plan.campaign,
        identified_by=audience.identified_by if audience else "device_id",
        rows=audience.rows if audience else 0,
        dropped=audience.dropped if audience else {},
        audience=audience.identifiers if audience else None,
        left_out={reason: len(members) for reason, members in plan.left_out.items() if len(members)},
        groups=audience.groups if audience else {},
        parts=[(segment.edition, segment.wave, len(segment)) for segment in plan.segments],
        first=plan.segments[0] if plan.segments else None,
        previous=plan.previous,
        gates=plan.gates,
        columns={*audience.groups, *audience.ignored_columns} if audience else None,
        warnings=[*plan.not_compared, *(_remarks(audience) if audience else ())],
    )


def _frozen(ledger: Ledger, launch: Launch) -> _Seen:
    key = launch.launch_key
    parts = ledger.dispatches.parts(key)
    groups = {name: found for name in GROUP_COLUMNS if (found := ledger.launches.groups(key, name))}
    return _Seen(
        name=launch.campaign,
        period=launch.period,
        campaign=Campaign.frozen(launch.definition),
        identified_by=launch.identified_by,
        rows=launch.rows,
        dropped=launch.dropped,
        audience=None if launch.is_chosen_by_service else ledger.launches.audience(key),
        left_out=ledger.launches.left_out_sizes(key),
        groups=groups,
        columns=None if launch.is_chosen_by_service else set(groups),
        parts=parts,
        first=ledger.dispatches.segment(key, 1) if parts else None,
        previous=ledger.launches.previous(launch.connection, launch.campaign, launch.period),
        gates=_recorded_gates(ledger, key),
        warnings=(),
        frozen=launch,
    )


def _recorded_gates(ledger: Ledger, launch_key: str) -> list[GateResult]:
    """Give what the gates said when the launch was frozen."""
    said = [each.detail for each in ledger.decisions.of_launch(launch_key) if each.kind == "gates"]
    return [GateResult(**gate) for gate in said[-1]["gates"]] if said and said[-1] else []


def _preview(
    made: _Seen,
    ledger: Ledger | None,
    *,
    rate: float | None,
    names: FieldNames | None,
    already_made: Made | None,
) -> Preview:
    campaign, people = made.campaign, None
    if made.audience is not None:
        people = sum(size for _, _, size in made.parts)
    change, not_compared = _change(ledger, made)
    spread = campaign.gates.spread
    waves = _summed((wave, size) for _, wave, size in made.parts)
    whole = _request(made, names)
    return Preview(
        campaign=made.name,
        period=made.period.key,
        launch_key=made.frozen.launch_key if made.frozen else None,
        state=made.frozen.state if made.frozen else None,
        already_made=already_made,
        targeting=campaign.targeting.kind,
        identified_by=None if made.audience is None else made.identified_by,
        rows=made.rows,
        dropped=dict(made.dropped),
        audience=None if made.audience is None else len(made.audience),
        left_out=dict(made.left_out),
        people=people,
        change=change,
        groups={
            name: {value: len(members) for value, members in sorted(values.items())}
            for name, values in made.groups.items()
        },
        variants=_summed((edition.variant, size) for edition, _, size in made.parts),
        languages=_summed((edition.language, size) for edition, _, size in made.parts),
        time_zones=_zones(made),
        waves=[waves[wave] for wave in sorted(waves)] if len(waves) > 1 else [],
        wave_wait_seconds=spread.wait.timedelta().total_seconds() if spread else None,
        sending=sending_of(campaign, [edition for edition, _, _ in made.parts], made.period.end),
        requests=len(made.parts),
        segment_size=campaign.segment_size,
        rate=rate,
        seconds=len(made.parts) / rate if rate else None,
        renderings=renderings(
            campaign,
            _summed((edition, size) for edition, _, size in made.parts),
            period_end=made.period.end,
        ),
        filled_in=campaign.filled_in(),
        request=shown_request(
            whole,
            people=len(made.first or ()),
            names=names,
        )
        if whole
        else None,
        gates=tuple(made.gates),
        approval=Consent(
            campaign.approval.is_needed(people),
            campaign.approval.role,
            campaign.approval.within.timedelta().total_seconds(),
        ),
        warnings=[
            *made.warnings,
            *not_compared,
            *unreached(campaign, made.groups.get("platform", {})),
            *advice(campaign, columns=made.columns),
        ],
        whole_request=whole,
    )


def _request(made: _Seen, names: FieldNames | None) -> dict[str, Any] | None:
    if made.first is None:
        return None
    return sample_request(
        made.campaign, made.first, identified_by=made.identified_by, period_end=made.period.end, names=names
    )


def _change(ledger: Ledger | None, made: _Seen) -> tuple[Change | None, list[str]]:
    """Hold the audience against the last launch's, or say why that cannot be."""
    last = made.previous
    if ledger is None and made.audience is not None:
        return None, ["No ledger was given, so it was not compared with the campaign's last launch."]
    if ledger is None or last is None or made.audience is None or last.is_chosen_by_service:
        return None, []
    if (last.identified_by, last.kind) != (made.identified_by, made.audience.kind):
        said = f"The last launch named its people by {last.identified_by}, this one by {made.identified_by}"
        return None, [f"{said}: they cannot be compared."]
    before = ledger.launches.audience(last.launch_key)
    kept = len(made.audience & before)
    gone = len(before) - kept
    new = len(made.audience) - kept
    return Change(last.launch_key, last.period.key, len(before), new, kept, gone), []


def _zones(made: _Seen) -> list[Zone]:
    """Give the time zones, those first that are sent to first."""
    people = _summed((edition.time_zone, size) for edition, _, size in made.parts)
    sends = {
        name: made.campaign.edition(Edition(time_zone=name), made.period.end).send for name in sorted(people)
    }
    at = {
        name: send.sends_at().astimezone(ZoneInfo(name)) if isinstance(send, Once) else None
        for name, send in sends.items()
    }
    zones = [Zone(name, people[name], at[name]) for name in sends]
    return sorted(zones, key=lambda zone: zone.sends_at or made.period.end)


def _remarks(audience: Audience) -> Iterator[str]:
    if audience.ignored_columns:
        yield f"The query gives columns that are not used: {', '.join(audience.ignored_columns)}."
    if audience.ambiguous:
        yield (
            f"The query gives {audience.ambiguous:,} people in several rows whose values for the template differ: the "
            "smallest counts."
        )


def _summed(sizes: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    """Add up sizes by what they belong to, in the order in which it comes; what is None is left out."""
    found: dict[Any, int] = {}
    for name, size in sizes:
        if name is not None:
            found[name] = found.get(name, 0) + size
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.isoformat() if isinstance(value, datetime) else value
