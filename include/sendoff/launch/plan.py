"""Plan a launch: read the audience, apply the campaign's rules and gates, cut it into segments, and freeze them.

Each launch key is planned once. A launch that is already in the ledger stays as it was frozen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sendoff.audience import DEFAULT_VARIATION, Audience, Segment, segments_of, with_template_values
from sendoff.audience.identifiers import Identifiers
from sendoff.campaign import (
    QUERY_ZONE,
    Campaign,
    CampaignExclusion,
    CampaignFolder,
    Once,
    Period,
    Variation,
    launch_key,
)
from sendoff.errors import AudienceError, CampaignError, ConflictError, LateError, PermanentError, UsageError
from sendoff.launch.gates import (
    GateInputs,
    GateResult,
    check_gates,
    gates_decision,
    lateness,
    raise_if_closed,
    unsent_period,
)
from sendoff.launch.own_hours import hours_of_launch
from sendoff.launch.plan_inputs import (
    LaunchOptions,
    PlanInputs,
    groups_to_keep,
    nobody_left,
    read_inputs,
    with_already_sent,
)
from sendoff.launch.sample import sample_request
from sendoff.launch.send_times import ends_before, first_opening, send_times_of
from sendoff.launch.suppression import EligibleAudience, Warehouses, apply_rules
from sendoff.ledger import Decision, LaunchRecord, LaunchSource, Ledger, NewLaunch, NotLaunched, Overlap
from sendoff.service import MATCHED_BY, check_identifiers
from sendoff.states import UNFINISHED, DecisionKind, LaunchState
from sendoff.telemetry import traces

_log = logging.getLogger(__name__)

_MAX_PLANS = 20  # attempts to plan a launch while others are made; then the caller retries
_UNCUT = 2**62
_TO = "to"  # in the details of a decision: who gets a resend, if not everyone


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A launch as it would be frozen; it is not stored yet.

    ``campaign`` is resolved for the period. ``audience`` is None if the service chooses the recipients. ``suppressed``:
    identifiers of the query that get no message, by reason. They include the holdout, which is part of the audience.
    ``segments``: all others. ``sends_at``: when the service has sent everything; None if it sends repeatedly.
    ``previous``: the campaign's last launch. ``sources``: the launches whose verdicts decide about the recipients.
    ``not_compared``: sentences on launches and rules that could not be compared, and might have suppressed recipients,
    each with the name of the other campaign or None.
    """

    campaign: Campaign
    audience: Audience | None = None
    suppressed: Mapping[str, Identifiers] = field(default_factory=dict)
    segments: tuple[Segment, ...]
    sends_at: datetime | None
    previous: LaunchRecord | None
    gates: tuple[GateResult, ...]
    sources: tuple[LaunchSource, ...] = ()
    not_compared: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def people(self) -> int | None:
        """The number of recipients; None if the service chooses them."""
        return sum(map(len, self.segments)) if self.audience else None

    @property
    def notes(self) -> dict[str, Any]:
        """The facts for a preview that the ledger keeps with the results of the gates, without those that are empty."""
        audience = self.audience
        facts = {
            "not_compared": self.not_compared,
            "ignored_columns": audience and audience.ignored_columns,
            "ambiguous": audience and audience.ambiguous,
        }
        return {name: fact for name, fact in facts.items() if fact}


def prepare_launch(
    ledger: Ledger,
    folder: CampaignFolder,
    *,
    period: Period,
    warehouses: Warehouses,
    options: LaunchOptions = LaunchOptions(),  # noqa: B008 - frozen
    now: datetime | None = None,
) -> LaunchRecord:
    """Read the audience, cut it into segments and freeze both in the ledger, once for each launch key.

    A launch that is already in the ledger is returned as it was frozen, without a query. Raise RecipientsDeletedError
    if its recipients were deleted since. If the campaign's rules depend on other launches and one is made meanwhile,
    the launch is planned again.

    Raise LateError, before any query, if it is too late, or if a part of its period was sent. Raise GateError if
    another gate is closed, ConflictError if other launches keep being made, and the errors of :func:`plan_launch`.
    After an error, nothing is frozen. If a gate or an empty audience stopped the launch, the ledger keeps the reason.
    """
    moment = now or datetime.now(UTC)
    key = launch_key(folder.campaign.connection, folder.name, period, options.resend)
    if launch := ledger.launches.find(key):
        launch.check_recipients()
        check_same_recipients(ledger, launch, options)
        return launch
    decisions = _resend_decisions(folder.name, key, options, moment)
    gates = folder.campaign.gates
    try:
        inputs = PlanInputs(folder, folder.campaign, period, options, moment)
        raise_if_closed(folder.name, [*unsent_period(_overlapping(ledger, inputs))])
        if gates.lateness and not options.send_late:
            raise_if_closed(folder.name, [lateness(gates.lateness, options.due_at, moment)])
        groups = groups_to_keep(folder)
        with traces.span("prepare", key):
            with traces.span("query", key) as count:
                inputs = read_inputs(ledger, inputs, warehouses, groups)
                count(recipients=len(inputs.audience.identifiers) if inputs.audience else 0)
            with traces.span("freeze", key) as count:
                launch = _planned(ledger, key, inputs, decisions)
                check_same_recipients(ledger, launch, options)  # another process may have made it
                count(audience=launch.audience or 0, segments=launch.segments)
            return launch
    except PermanentError as error:
        if why := error.not_launched:
            title = folder.campaign.title
            entry = NotLaunched(key, folder.name, title, period, options.resend, moment, why)
            ledger.not_launched.store(entry)
        raise


def _planned(ledger: Ledger, key: str, inputs: PlanInputs, decisions: Iterable[Decision]) -> LaunchRecord:
    """Plan and freeze a launch, again if another launch is made meanwhile."""
    name = inputs.folder.name
    for _ in range(_MAX_PLANS):
        try:
            return _freeze(ledger, key, inputs, decisions)
        except ConflictError:
            if launch := ledger.launches.find(key):
                return launch
            _log.info("Campaign %s: planning again, because another launch was made meanwhile", name)
    raise ConflictError(
        f"campaign {name}: planned {_MAX_PLANS} times, but another launch was made each time; retry later"
    )


def plan_launch(
    ledger: Ledger | None,
    folder: CampaignFolder,
    *,
    period: Period,
    warehouses: Warehouses,
    options: LaunchOptions = LaunchOptions(),  # noqa: B008 - frozen
    now: datetime,
) -> Plan:
    """Run a campaign's query for a period, and return the launch as it would be frozen, without storing it.

    Without a ledger, it counts as the campaign's first launch, and rules that need the ledger do not apply.

    Raise QueryError if a query fails, and AudienceError if its result is not an audience or no recipients remain. Raise
    CampaignError if a request cannot be written or a date in the file has passed. Raise LateError if a date that
    follows from the period has passed.
    """
    inputs = PlanInputs(folder, folder.campaign, period, options, now)
    return _plan(ledger, read_inputs(ledger, inputs, warehouses))


def _resend_decisions(campaign: str, key: str, options: LaunchOptions, now: datetime) -> list[Decision]:
    """Return the decision to send a period again, if the launch does. Raise UsageError without a reason."""
    if not options.resend:
        return []
    if not options.reason or not options.reason.strip():
        raise UsageError(
            f"campaign {campaign}: resend {options.resend} sends a period again, and may reach people twice. "
            "Add a reason, as text"
        )
    detail: dict[str, Any] = {"resend": options.resend}
    if options.only_unsent:
        detail[_TO] = "those who got nothing"
    return [Decision(key, DecisionKind.RESEND, options.who or "unknown", options.reason.strip(), now, detail)]


def check_same_recipients(ledger: Ledger, launch: LaunchRecord, options: LaunchOptions) -> None:
    """Raise PermanentError if a launch was made for more people than the options allow, and may still send."""
    if options.only_unsent and not any(
        each.kind == DecisionKind.RESEND and each.detail and _TO in each.detail
        for each in ledger.audit_log.of_launch(launch.launch_key)
    ):
        raise PermanentError(
            f"campaign {launch.campaign}: resend {launch.resend} of period {launch.period.key} was made before, for "
            "everyone in it, so it cannot leave out those who got an earlier launch. Use another resend number"
        )
    limit = None if launch.state.is_final else options.size_limit
    is_larger = limit is not None and (launch.is_chosen_by_service or launch.audience > limit)
    if is_larger and ledger.dispatch_queries.states(launch.launch_key).keys() & UNFINISHED:
        raise PermanentError(
            f"campaign {launch.campaign}: the launch of period {launch.period.key} was made before, for more people "
            f"than the size limit of {limit}. Leave out the limit, or stop the launch and use another resend number"
        )


def _plan(ledger: Ledger | None, inputs: PlanInputs) -> Plan:
    inputs = with_already_sent(ledger, inputs)
    campaign, folder, period, now = inputs.campaign, inputs.folder, inputs.period, inputs.now
    previous = ledger.launches.previous(campaign.connection, folder.name, period) if ledger else None
    eligible = _eligible(ledger, inputs)
    audience = eligible.audience if eligible else None
    segments = _segments(ledger, inputs, eligible.sent_to) if eligible else (Segment(None),)
    first_of_variation = {segment.variation: segment for segment in reversed(segments)}
    _check_requests(inputs, first_of_variation.values(), audience.identified_by if audience else "device_id")
    _check_ends(inputs, segments)
    return Plan(
        campaign=campaign,
        audience=audience,
        suppressed=eligible.suppressed if eligible else {},
        segments=segments,
        sends_at=_sends_at(inputs, first_of_variation),
        previous=previous,
        gates=check_gates(
            GateInputs(
                campaign=campaign,
                audience=audience,
                segments=segments,
                previous=previous,
                overlapping=_overlapping(ledger, inputs, audience),
                due_at=inputs.options.due_at,
                period_end=period.end,
                now=now,
                send_late=inputs.options.send_late,
                recipients_today=_recipients_today(ledger, inputs),
            )
        ),
        sources=inputs.sources,
        not_compared=eligible.not_compared if eligible else {},
    )


def _overlap(inputs: PlanInputs) -> Overlap | None:
    """Return which launches keep a period from being sent; None if it is sent again on purpose.

    The intervals of a schedule never overlap, so an overlapping launch means that the schedule has changed. It does not
    matter to a campaign that leaves out its own recipients, such as a journey. Without a schedule, only launches for
    the same period count: under an earlier name of the campaign, or with a resend number.
    """
    if inputs.options.resend:
        return None
    campaign, name, period = inputs.folder.campaign, inputs.folder.name, inputs.period
    own, length = inputs.folder.names, period.end - period.start
    leaves_out_own = any(
        isinstance(each, CampaignExclusion) and each.name in own and timedelta(days=each.days) >= length
        for each in campaign.audience.exclude
    )
    only_same = campaign.schedule is None or leaves_out_own
    return Overlap(campaign.connection, name, period, campaign.formerly, only_same)


def _overlapping(
    ledger: Ledger | None, inputs: PlanInputs, audience: Audience | None = None
) -> LaunchRecord | None:
    """Return the launch that keeps a period from being sent.

    With an audience, it may also be one whose recipients have other identifiers, so that they cannot be left out.
    """
    overlap = _overlap(inputs)
    if ledger is None or overlap is None:
        return None
    found = ledger.launches.overlapping(overlap)
    if found or audience is None or inputs.campaign.schedule is None:
        return found
    other = ledger.launches.overlapping(replace(overlap, only_same=False))
    is_alike = other and (other.identified_by, other.kind) == (
        audience.identified_by,
        audience.identifiers.kind,
    )
    return None if is_alike else other


def _segments(ledger: Ledger | None, inputs: PlanInputs, recipients: Audience) -> tuple[Segment, ...]:
    campaign, name = inputs.campaign, inputs.folder.name
    _check_post_backs(inputs, recipients.identified_by)
    if campaign.shows_opt_outs:
        check_identifiers(recipients.identifiers)
    hours = None
    if campaign.own_hours:
        hours = hours_of_launch(
            ledger,
            campaign,
            recipients.identifiers,
            identified_by=recipients.identified_by,
            salt=launch_key(campaign.connection, name, inputs.period, inputs.options.resend),
            now=inputs.now,
        )
    segments = segments_of(_small_enough(inputs), recipients, name=inputs.folder.first_name, hours=hours)
    return tuple(with_template_values(segments, recipients))


def _check_post_backs(inputs: PlanInputs, identified_by: str) -> None:
    """Raise CampaignError if the campaign depends on opens, and post-backs do not carry the identifiers."""
    campaign = inputs.campaign
    needing = {
        "decide": campaign.decide and "they cannot show which variant is ahead",
        "send.own_hours": campaign.own_hours and "no one's hour is known",
    }
    for place, why in needing.items():
        if why and identified_by not in MATCHED_BY:
            raise CampaignError(
                f"campaign {inputs.folder.name}: {place}: post-backs do not carry {identified_by}, so {why}. "
                f"Use {' or '.join(MATCHED_BY)} in the audience query, or remove {place}"
            )


def _check_requests(inputs: PlanInputs, segments: Iterable[Segment], identified_by: str) -> None:
    """Raise CampaignError if a request to the recipients of these segments cannot be written."""
    campaign, period_end = inputs.campaign, inputs.period.end
    for segment in segments:
        for variation in campaign.possible(segment.variation):
            sent = replace(segment, variation=variation)
            sample_request(campaign, sent, identified_by=identified_by, period_end=period_end)


def _check_ends(inputs: PlanInputs, segments: Sequence[Segment]) -> None:
    """Raise an error if messages end before the first is sent: CampaignError if the campaign must be corrected.

    Raise LateError if a launch on time, or the launch of another day, would be sent.
    """
    campaign, name, end = inputs.campaign, inputs.folder.name, inputs.period.end
    ends = [expiry for _, expiry in campaign.expiries() if expiry.ends_at()]
    if not ends:
        return
    times = send_times_of(campaign, {segment.variation for segment in segments}, end)
    slots = {segment.slot for segment in segments}
    now = inputs.now

    def early(at: datetime) -> str:
        return "; ".join(ends_before(campaign, times.first_at or first_opening(campaign, slots, end, at)))

    if not (late := early(now)):
        return
    if times.first_at or (not campaign.rules_in_force.restricts_times and early(min(end, now))):
        raise CampaignError(f"campaign {name}: {late}. Use a later end")
    why = "the messages end before they may be sent"
    raise LateError(f"campaign {name}: nothing was sent, because it is late: {late}", not_launched=why)


def _freeze(ledger: Ledger, key: str, inputs: PlanInputs, decisions: Iterable[Decision]) -> LaunchRecord:
    """Plan and freeze a launch. Raise ConflictError if its rules depend on a launch that was made meanwhile."""
    campaign, options = inputs.campaign, inputs.options
    erasures = ledger.erasures.version()
    seen = ledger.launches.count(campaign.connection) if _depends_on_launches(inputs) else None
    plan = _plan(ledger, inputs)
    raise_if_closed(inputs.folder.name, plan.gates)
    is_due = campaign.gates.names_lateness and not options.send_late
    return ledger.launches.freeze(
        NewLaunch(
            key,
            connection=campaign.connection,
            campaign=inputs.folder.name,
            period=inputs.period,
            resend=options.resend,
            definition=campaign.model_dump_json(),
            audience=plan.audience,
            segments=plan.segments,
            created_at=inputs.now,
            state=LaunchState.HELD if campaign.approval.is_needed(plan.people) else LaunchState.RELEASED,
            due_at=options.due_at if is_due else None,
            sends_at=plan.sends_at,
            origin=options.origin,
            suppressed=plan.suppressed,
            sources=plan.sources,
            known_launches=seen,
            overlap=_overlap(inputs),
            known_erasures=erasures,
            decisions=[*decisions, gates_decision(key, plan.gates, inputs.now, plan.notes)],
        )
    )


def _eligible(ledger: Ledger | None, inputs: PlanInputs) -> EligibleAudience | None:
    """Apply the campaign's rules to the audience; None if the service chooses the recipients."""
    folder, audience, size_limit = inputs.folder, inputs.audience, inputs.options.size_limit
    if audience is None:
        if size_limit is not None:
            raise AudienceError(
                f"campaign {folder.name}: a size limit is not possible if the service chooses the recipients"
            )
        return None
    eligible = apply_rules(
        folder,
        audience,
        excluded=inputs.excluded,
        ledger=ledger,
        sends_at=_sends_at(inputs, _variations(inputs, audience)) or inputs.now,
        now=inputs.now,
        period=inputs.period,
        already_sent=inputs.already_sent,
        size_limit=size_limit,
    )
    if not len(eligible.sent_to.identifiers):
        raise nobody_left(folder, eligible.sent_to)
    return eligible


def _variations(inputs: PlanInputs, audience: Audience) -> set[Variation]:
    """Return variations that cover all sending times of the audience."""
    campaign = inputs.campaign
    if isinstance(campaign.send, Once) and campaign.send.time_zone == QUERY_ZONE:
        uncut = campaign.replace(segment_size=_UNCUT)
        return {segment.variation for segment in segments_of(uncut, audience, name=inputs.folder.name)}
    return {DEFAULT_VARIATION}


def _sends_at(inputs: PlanInputs, variations: Iterable[Variation]) -> datetime | None:
    """Return when the last message is sent, but not before now; None if the service sends repeatedly."""
    campaign, end = inputs.campaign, inputs.period.end
    moments = [campaign.variation(variation, end).send.sends_at() for variation in variations]
    known = [moment for moment in moments if moment is not None]
    return max([inputs.now, *known]) if known else None


def _small_enough(inputs: PlanInputs) -> Campaign:
    """Return the campaign with requests that fit into the daily limit of its connection, if it has one."""
    campaign = inputs.campaign
    if campaign.warm_up is None:
        return campaign
    size = campaign.warm_up.request_size(inputs.now.astimezone(UTC).date())
    return campaign.replace(segment_size=min(campaign.segment_size, size))


def _recipients_today(ledger: Ledger | None, inputs: PlanInputs) -> int:
    if ledger is None or inputs.campaign.warm_up is None:
        return 0
    return ledger.daily_limits.recipients_on(inputs.campaign.connection, inputs.now.astimezone(UTC).date())


def _depends_on_launches(inputs: PlanInputs) -> bool:
    campaign = inputs.campaign
    by_rules = campaign.audience.depend_on_launches or campaign.rules_in_force.depend_on_launches
    return by_rules or inputs.options.only_unsent
