"""Build the preview of a campaign, or of a launch frozen in the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from sendoff.audience import GROUP_COLUMNS, Audience, Segment, in_unknown_zones
from sendoff.audience.identifiers import union
from sendoff.campaign import Campaign, CampaignFolder, Once, OwnRequest, Period, Variation, advice, launch_key
from sendoff.figures import ERASED_SINCE, counted
from sendoff.launch.gates import CUTS, GateResult
from sendoff.launch.own_hours import hours_by_words
from sendoff.launch.plan import Plan, check_same_recipients, plan_launch
from sendoff.launch.plan_inputs import LaunchOptions
from sendoff.launch.preview import ApprovalNeed, AudienceChange, ExistingLaunch, Preview, SourceLaunch, Zone
from sendoff.launch.reachability import unreachable
from sendoff.launch.rendering import Rendering, renderings
from sendoff.launch.sample import sample_request
from sendoff.launch.send_times import SendTimes, ends_before, send_times_of
from sendoff.launch.suppression import Warehouses
from sendoff.ledger import LaunchRecord, LaunchSource, Ledger, SegmentSize
from sendoff.service import redacted_own_request, redacted_request
from sendoff.service.wire import FieldNames
from sendoff.states import UNFINISHED, DecisionKind, DispatchState

_NOT_MADE = (*UNFINISHED, DispatchState.SUPPRESSED)
_OWN_REQUEST = (
    "A request of your own: its JSON is sent as it was written. Sendoff adds only the app token and the addresses of "
    "post-backs that it lacks. No suppression and no gate applies."
)


def preview_campaign(  # noqa: PLR0913 - all named, most with defaults
    folder: CampaignFolder,
    *,
    period: Period,
    warehouses: Warehouses,
    ledger: Ledger | None = None,
    options: LaunchOptions = LaunchOptions(),  # noqa: B008 - frozen
    rate: float | None = None,
    names: FieldNames | None = None,
    now: datetime | None = None,
) -> Preview:
    """Run a campaign's query, and return a preview of its launch for a period; nothing is stored or sent.

    ``rate``: maximum requests per second on the connection. Without ``ledger``, a warning names each rule that was not
    applied. Raise the errors of :func:`~sendoff.launch.plan.plan_launch`.
    """
    moment = now or datetime.now(UTC)
    key = launch_key(folder.campaign.connection, folder.name, period, options.resend)
    launch = ledger.launches.find(key) if ledger else None
    if ledger and launch:
        check_same_recipients(ledger, launch, options)
    plan = plan_launch(ledger, folder, period=period, warehouses=warehouses, options=options, now=moment)
    existing = _existing_launch(ledger, launch) if ledger and launch else None
    return _preview(_planned(folder, period, plan), ledger, rate, names, existing)


def preview_launch(
    ledger: Ledger,
    launch_key: str,
    *,
    rate: float | None = None,
    names: FieldNames | None = None,
    visible: Callable[[Collection[str]], Collection[str]] | None = None,
) -> Preview:
    """Return the preview of a frozen launch, without a query.

    ``visible``: returns those of some campaigns that the reader may see; without it, notes name all of them.

    Raise NotFoundError if the ledger does not have it, and RecipientsDeletedError if its recipients were deleted.
    """
    launch = ledger.launches.get(launch_key)
    launch.check_recipients()
    existing = _existing_launch(ledger, launch)
    return _preview(
        _frozen(ledger, launch, visible),
        ledger,
        rate,
        names,
        existing if existing.requests_made or existing.requests_left < existing.requests else None,
    )


def _existing_launch(ledger: Ledger, launch: LaunchRecord) -> ExistingLaunch:
    key = launch.launch_key
    states, recipients, known, _ = ledger.dispatch_queries.counts(key)
    return ExistingLaunch(
        launch_key=key,
        state=launch.state,
        created_at=launch.created_at,
        people=None
        if launch.is_chosen_by_service
        else recipients.total() - recipients[DispatchState.SUPPRESSED],
        requests=states.total(),
        requests_made=sum(count for state, count in known.items() if state not in _NOT_MADE),
        requests_left=states[DispatchState.PLANNED],
        accepted=states[DispatchState.ACCEPTED],
        last_at=ledger.dispatch_queries.newest_outcome(key),
        sends_at=launch.sends_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """The common data of a plan and a frozen launch.

    ``campaign``: resolved for the period. ``written``: as in the folder; the same as ``campaign`` if it is frozen.
    """

    name: str
    period: Period
    campaign: Campaign
    written: Campaign
    audience: Audience | None  # None if the service chooses the recipients
    suppressed: Mapping[str, int]
    parts: Sequence[SegmentSize]
    first: Segment | None
    previous: LaunchRecord | None
    gates: Sequence[GateResult]
    sources: Sequence[LaunchSource] = ()
    not_compared: Sequence[str] = ()
    frozen: LaunchRecord | None = None

    @property
    def is_own_request(self) -> bool:
        return isinstance(self.campaign, OwnRequest)

    @property
    def people(self) -> int | None:
        return sum(part.people for part in self.parts) if self.audience else None


def _planned(folder: CampaignFolder, period: Period, plan: Plan) -> _Subject:
    return _Subject(
        name=folder.name,
        period=period,
        campaign=plan.campaign,
        written=folder.campaign,
        audience=plan.audience,
        suppressed={reason: len(members) for reason, members in plan.suppressed.items() if len(members)},
        parts=[
            SegmentSize(segment.variation, segment.wave, len(segment), segment.hour, segment.arm)
            for segment in plan.segments
        ],
        first=plan.segments[0] if plan.segments else None,
        previous=plan.previous,
        gates=plan.gates,
        sources=plan.sources,
        not_compared=[*plan.not_compared],
    )


def _frozen(
    ledger: Ledger, launch: LaunchRecord, visible: Callable[[Collection[str]], Collection[str]] | None
) -> _Subject:
    key = launch.launch_key
    parts = ledger.dispatch_queries.segment_sizes(key)
    campaign = Campaign.frozen(launch.definition)
    audience, checked = None, _checked(ledger, key)
    if not launch.is_chosen_by_service:
        groups = {name: group for name in GROUP_COLUMNS if (group := ledger.launches.groups(key, name))}
        people = ledger.launches.audience(key)
        audience = Audience(
            launch.identified_by,
            people,
            launch.rows,
            launch.dropped,
            groups,
            ignored_columns=tuple(checked.get("ignored_columns", ())),
            ambiguous=checked.get("ambiguous", 0),
        )
    notes = checked.get("not_compared", {})
    named = {name for name in notes.values() if name}
    hidden = named.difference(visible(named)) if named and visible else ()
    return _Subject(
        name=launch.campaign,
        period=launch.period,
        campaign=campaign,
        written=campaign,
        audience=audience,
        suppressed={
            **ledger.launches.suppressed_sizes(key),
            **({ERASED_SINCE: launch.erased} if launch.erased else {}),
        },
        parts=parts,
        first=ledger.dispatch_queries.segment(key, 1) if parts else None,
        previous=ledger.launches.previous(launch.connection, launch.campaign, launch.period),
        gates=[GateResult(**gate) for gate in checked.get("gates", ())],
        sources=ledger.launches.sources(key),
        not_compared=[
            note.replace(f"campaign {name}:", "another campaign:") if name in hidden else note
            for note, name in notes.items()
        ],
        frozen=launch,
    )


def _checked(ledger: Ledger, launch_key: str) -> Mapping[str, Any]:
    """Return the gates' results and the notes from the time when the launch was frozen. Older launches lack notes."""
    for decision in ledger.audit_log.of_launch(launch_key):
        if decision.kind == DecisionKind.GATES and decision.detail:
            return decision.detail
    return {}


def _preview(
    subject: _Subject,
    ledger: Ledger | None,
    rate: float | None,
    names: FieldNames | None,
    existing_launch: ExistingLaunch | None,
) -> Preview:
    campaign, audience, frozen = subject.campaign, subject.audience, subject.frozen
    parts = subject.parts
    change, not_compared = _change(ledger, subject)
    whole_request = _request(subject, names)
    return Preview(
        campaign=subject.name,
        title=campaign.title,
        period=subject.period.key,
        launch_key=frozen.launch_key if frozen else None,
        state=frozen.state if frozen else None,
        existing_launch=existing_launch,
        targeting=campaign.targeting.kind,
        identified_by=audience.identified_by if audience else None,
        rows=audience.rows if audience else 0,
        dropped=dict(audience.dropped) if audience else {},
        audience=len(audience.identifiers) + subject.suppressed.get(ERASED_SINCE, 0) if audience else None,
        suppressed=dict(subject.suppressed),
        people=subject.people,
        change=change,
        groups=_group_sizes(audience),
        variants=_summed((part.variation.variant, part.people) for part in parts),
        languages=_summed((part.variation.language, part.people) for part in parts),
        time_zones=_zones(subject),
        own_hours=hours_by_words(parts) if campaign.own_hours else {},
        waves=_waves(subject),
        wave_wait_seconds=rollout.wait.timedelta().total_seconds()
        if (rollout := campaign.gates.rollout)
        else None,
        winner=frozen.winner if frozen else None,
        decide=campaign.decide.words if campaign.decide else "",
        send_times=_send_times(subject),
        requests=len(parts),
        segment_size=max((part.people for part in parts), default=0)
        if campaign.warm_up
        else campaign.segment_size,
        rate=rate,
        seconds=len(parts) / rate if rate else None,
        renderings=_renderings(subject),
        filled_in=campaign.filled_in(),
        request=whole_request and _redacted(subject, whole_request, names),
        gates=tuple(subject.gates),
        approval=_approval(campaign, subject.people),
        warnings=[*_warnings(subject, not_compared)],
        whole_request=whole_request,
        is_own_request=subject.is_own_request,
        source=_source(ledger, subject.sources),
    )


def _source(ledger: Ledger | None, sources: Sequence[LaunchSource]) -> SourceLaunch | None:
    accepted = {each.launch_key: each.accepted for each in sources if each.accepted is not None}
    if not ledger or not accepted:
        return None
    key, verdicts = next(iter(accepted.items()))
    launch = ledger.launches.get(key)
    return SourceLaunch([*accepted], launch.campaign, launch.period.key, verdicts)


def _send_times(subject: _Subject) -> SendTimes:
    launch = subject.frozen
    if launch and subject.is_own_request:
        if launch.sends_at is None:
            return SendTimes("own", "repeatedly or on an event, as the request says", None, None)
        if launch.sends_at > launch.created_at:
            return SendTimes("own", "once, at the latest at the time below", launch.sends_at, launch.sends_at)
    return send_times_of(subject.campaign, [part.variation for part in subject.parts], subject.period.end)


def _renderings(subject: _Subject) -> list[Rendering]:
    if subject.is_own_request:
        return []
    sizes = _summed((part.variation, part.people) for part in subject.parts)
    return renderings(subject.campaign, sizes, period_end=subject.period.end)


def _redacted(subject: _Subject, request: Mapping[str, Any], names: FieldNames | None) -> dict[str, Any]:
    if subject.is_own_request:
        return redacted_own_request(request, names)
    return redacted_request(request, people=len(subject.first or ()), names=names)


def _request(subject: _Subject, names: FieldNames | None) -> dict[str, Any] | None:
    if subject.first is None:
        return None
    if subject.first.identifiers is not None and not len(subject.first.identifiers):
        return None  # all its recipients were erased since
    if subject.first.body is not None:
        request: dict[str, Any] = json.loads(subject.first.body)
        return request
    identified_by = subject.audience.identified_by if subject.audience else "device_id"
    variation = subject.campaign.possible(subject.first.variation)[0]
    return sample_request(
        subject.campaign,
        replace(subject.first, variation=variation),
        identified_by=identified_by,
        period_end=subject.period.end,
        names=names,
    )


def _approval(campaign: Campaign, people: int | None) -> ApprovalNeed:
    approval = campaign.approval
    return ApprovalNeed(
        approval.is_needed(people), approval.role, approval.within.timedelta().total_seconds()
    )


def _change(ledger: Ledger | None, subject: _Subject) -> tuple[AudienceChange | None, list[str]]:
    """Compare the audience with that of the last launch, or return a sentence on why that is not possible."""
    last, audience = subject.previous, subject.audience
    if ledger is None and audience:
        return None, ["No ledger was given, so there is no comparison with the campaign's last launch."]
    if ledger is None or last is None or audience is None or last.is_chosen_by_service:
        return None, []
    if subject.is_own_request:  # the requests of a task may have nothing in common
        return None, []
    people = audience.identifiers
    if (last.identified_by, last.kind) != (audience.identified_by, people.kind):
        text = (
            f"The last launch identifies people by {last.identified_by}, this one by {audience.identified_by}"
        )
        return None, [f"{text}, so they cannot be compared."]
    if last.deleted:
        return None, [f"There is no comparison with the campaign's last launch: {last.deleted}."]
    # A run may have left out people who belong to the campaign's audience all the same.
    cut = ledger.launches.suppressed(last.launch_key, *CUTS).values()
    before = union(last.kind, [ledger.launches.audience(last.launch_key), *cut])
    kept = len(people & before)
    gone, new = len(before) - kept, len(people) - kept
    return AudienceChange(last.launch_key, last.period.key, len(before), new, kept, gone), []


def _group_sizes(audience: Audience | None) -> dict[str, dict[str, int]]:
    return {
        name: {value: len(members) for value, members in sorted(values.items())}
        for name, values in (audience.groups if audience else {}).items()
    }


def _zones(subject: _Subject) -> list[Zone]:
    """Return the time zones in the order of their sending times."""
    sizes = _summed((part.variation.time_zone, part.people) for part in subject.parts)
    zones = []
    for name in sorted(sizes):
        send = subject.campaign.variation(Variation(time_zone=name), subject.period.end).send
        sends_at = send.sends_at().astimezone(ZoneInfo(name)) if isinstance(send, Once) else None
        zones.append(Zone(name, sizes[name], sends_at))
    return sorted(zones, key=lambda zone: zone.sends_at or subject.period.end)


def _waves(subject: _Subject) -> list[int]:
    waves = _summed((part.wave, part.people) for part in subject.parts)
    return [waves[wave] for wave in sorted(waves)] if len(waves) > 1 else []


def _warnings(subject: _Subject, not_compared: Iterable[str]) -> Iterator[str]:
    if subject.is_own_request:
        yield _OWN_REQUEST
        return
    audience = subject.audience
    yield from subject.not_compared
    if audience and audience.ignored_columns:
        yield f"These columns of the audience are not used: {', '.join(audience.ignored_columns)}."
    if audience and audience.ambiguous:
        yield (
            "The audience has several rows with different template values for "
            f"{counted(audience.ambiguous, 'person', 'people')}; the row that comes first in the order of texts is "
            "used, in which 10 comes before 9."
        )
    if audience and (unknown := in_unknown_zones(subject.campaign, audience)):
        count, example = unknown
        yield (
            f"{subject.campaign.default_zone} is used for {counted(count, 'person', 'people')} whose time_zone does "
            f"not exist, such as {example[:40]!r}."
        )
    for end in ends_before(subject.campaign, _send_times(subject).last_at):
        yield f"{end} in the last time zone. Recipients to whom it is sent after the end may not get it."
    yield from not_compared
    platforms = audience.groups.get("platform", {}) if audience else {}
    yield from unreachable(subject.campaign, platforms)
    columns = {*audience.groups, *audience.ignored_columns} if audience else None
    yield from advice(subject.written, columns=columns, is_frozen=subject.frozen is not None)


def _summed(sizes: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    """Add up sizes by name, in the order of first appearance, without those whose name is None."""
    sums: dict[Any, int] = {}
    for name, size in sizes:
        if name is not None:
            sums[name] = sums.get(name, 0) + size
    return sums
