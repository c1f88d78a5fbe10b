"""Reconciliation: compares what was sent with what came back, and finds one verdict for each identifier.

:mod:`sendoff.postbacks.aggregation` has added up the post-backs of each dispatch. :func:`reconcile_launch` then gives
every identifier of a launch exactly one verdict, by set operations. Neither the order of post-backs nor their
repetition changes a figure.

.. code-block:: text

    opened or clicked .......................................... engaged
    delivery reported .......................................... delivered
    silent, request refused or not made, or left out ........... not sent
    silent, unknown whether the request was processed .......... in doubt
    silent, accepted, sent, its deliveries reported reliably ... missing
    silent, accepted, otherwise ................................ unknowable

If the service chooses the recipients, only those with a post-back are known, and none of them is silent.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sendoff.audience.identifiers import Identifiers, Kind, empty, union
from sendoff.campaign import Campaign, OwnRequest
from sendoff.errors import ConflictError
from sendoff.figures import ANOMALIES, DELIVERED_SINCE, OPENED_SINCE, LaunchStats
from sendoff.ledger import ERASED, LaunchRecord, Ledger
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.measurable import Measurable
from sendoff.service import MATCHED_BY
from sendoff.states import DispatchState, LaunchState, OutcomeKind, PostBackKind, Verdict
from sendoff.telemetry import traces

_log = logging.getLogger(__name__)

_JOINED_AT_ONCE = 100
_REST = "\0"  # no variant has this name
_SINCE = {Verdict.ENGAGED: OPENED_SINCE, Verdict.DELIVERED: DELIVERED_SINCE}
_COUNTED_AS: Mapping[str, str] = {
    DispatchState.IN_FLIGHT: DispatchState.IN_DOUBT,
    DispatchState.WRITTEN_OFF: DispatchState.IN_DOUBT,
    OutcomeKind.NOT_PROCESSED: DispatchState.PLANNED,
}
_SETS = ("accepted", "refused", "in_doubt", "planned", "suppressed", "unattributed")


@dataclass(frozen=True, slots=True)
class _Sent:
    """The recipients of a launch's requests, by the state of the request."""

    accepted: Identifiers
    refused: Identifiers
    in_doubt: Identifiers
    planned: Identifiers
    suppressed: Identifiers  # left out when a request was claimed
    unattributed: Identifiers  # recipients of requests with a post-back that may hide a delivery
    # Of ``suppressed``: left out because of a verdict in another launch.
    by_verdict: Mapping[Verdict, Identifiers]
    by_variant: Mapping[str, Identifiers]
    by_arm: Mapping[str, Identifiers]
    rest: Identifiers  # of a launch with variants, recipients whose variant was not frozen
    states: Mapping[str, int]  # of the dispatches, read together with their recipients
    doubted: Mapping[str, int]  # planned and refused dispatches with an earlier doubt, by state


@dataclass(frozen=True, slots=True)
class _Received:
    """The post-backs of all dispatches of a launch together."""

    delivered: Identifiers  # without those who opened
    engaged: Identifiers
    suspects: Identifiers  # engaged, but a machine probably made each of their opens
    deliveries: int
    opens: int
    anomalies: Mapping[str, int]
    named: int  # recipients with a delivery plus recipients with an open, counted per dispatch
    unattributed: frozenset[str]  # dispatches with a post-back that may hide a delivery


class _UnionBuilder:
    """Builds named sets by joining parts as they arrive, so that not all parts are in memory."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._waiting: defaultdict[str, list[Identifiers]] = defaultdict(list)
        self._joined: defaultdict[str, list[Identifiers]] = defaultdict(list)

    def add(self, name: str, identifiers: Identifiers) -> None:
        waiting = self._waiting[name]
        waiting.append(identifiers)
        if len(waiting) == _JOINED_AT_ONCE:
            self._joined[name].append(union(self._kind, waiting))
            waiting.clear()

    def take(self, name: str) -> Identifiers:
        """Return a set and drop its parts."""
        return _together(self._kind, [*self._joined.pop(name, []), *self._waiting.pop(name, [])])


def reconcile_launch(ledger: Ledger, launch_key: str, *, now: datetime | None = None) -> LaunchStats:
    """Aggregate new post-backs, find the verdict of every recipient of a launch, and store and return its figures.

    If its recipients were deleted, return the figures that were stored before.
    """
    with traces.span("reconcile", launch_key) as count:
        figures = _reconcile(ledger, launch_key, now)
        count(audience=figures.audience or 0, **figures.verdicts)
        return figures


def _reconcile(ledger: Ledger, launch_key: str, now: datetime | None) -> LaunchStats:
    moment = now or datetime.now(UTC)
    ledger.doubts.expire_leases(launch_key, moment)
    aggregate(ledger, now=moment)
    erasures, revision = ledger.erasures.version(), ledger.verdicts.revision(launch_key)
    launch = ledger.launches.get(launch_key)
    if launch.deleted:
        return ledger.verdicts.figures(launch_key)
    leaving = ledger.erasures.unfinished(launch.identified_by, launch.kind)  # before anything else is read
    received = _received(ledger, launch)
    held_out = ledger.launches.suppressed(launch_key, "holdout").get("holdout", empty(launch.kind))
    sent = _sent(ledger, launch, received.unattributed)
    measurable = Measurable.of(ledger, launch, moment)
    reliable = measurable.among(sent.accepted)
    sets = _judge(sent, held_out, received, reliable)
    if gone := _without_recipients(ledger, launch, leaving) - held_out:
        sets = {verdict: people - gone for verdict, people in sets.items()}
        received = replace(received, suspects=received.suspects - gone)
    verdicts = {verdict.value: len(sets[verdict]) for verdict in Verdict}
    figures = LaunchStats(
        launch_key=launch_key,
        campaign=launch.campaign,
        period=launch.period.key,
        as_of=moment,
        rows=launch.rows,
        dropped=launch.dropped,
        audience=sum(verdicts.values()) + launch.erased if launch.is_chosen_by_service else launch.audience,
        segments=launch.segments,
        dispatches=dict(sent.states),
        verdicts=verdicts,
        by_platform=_by_group(sets, measurable.platforms),
        anomalies=_anomalies(launch, received),
        post_backs={
            PostBackKind.DELIVERY.value: received.deliveries,
            PostBackKind.OPEN.value: received.opens,
        },
        timeline=ledger.aggregates.timeline(launch_key),
        state=launch.state,
        is_chosen_by_service=launch.is_chosen_by_service,
        is_own_request=isinstance(measurable.campaign, OwnRequest),
        is_recurring=launch.sends_at is None,
        not_sent_because=_not_sent_because(launch, sent, held_out, sets[Verdict.NOT_SENT]),
        by_variant=_by_group(sets, sent.by_variant),
        rest=_by_group(sets, {"rest": sent.rest})["rest"] if sent.rest else {},
        winner=launch.winner,
        suspects=len(received.suspects),
        suspects_by_variant={
            name: len(received.suspects & members) for name, members in sorted(sent.by_variant.items())
        },
        by_arm=_by_group(sets, sent.by_arm),
        suspects_by_arm={name: len(received.suspects & members) for name, members in sent.by_arm.items()},
        unknowable_because=measurable.why_unknowable(sets[Verdict.UNKNOWABLE], reliable),
        erased=launch.erased,
        unmeasured=measurable.unmeasured,
        identified_by=launch.identified_by,
        doubted=dict(sent.doubted),
    )
    try:
        ledger.verdicts.store(figures, sets, revision=revision, erasures=erasures)
    except ConflictError:  # people were erased meanwhile
        return _reconcile(ledger, launch_key, now)
    _log.info("launch %s reconciled: %s", launch_key, dict(figures.verdicts))
    return figures


def _without_recipients(ledger: Ledger, launch: LaunchRecord, leaving: Identifiers) -> Identifiers:
    """Return the people of unfinished erasures who are no recipients of a launch, or not any more.

    An erasure removes people from the recipients first, and counts them as erased. They may still be in requests and
    post-backs, where they would get a verdict.
    """
    if not leaving or launch.is_chosen_by_service:  # the latter knows its recipients from its post-backs
        return empty(launch.kind)
    return leaving - ledger.launches.recipients_among(launch.launch_key, leaving)


def is_settled(ledger: Ledger, launch_key: str, *, quiet_for: timedelta, now: datetime | None = None) -> bool:
    """Check whether a launch is complete or quiet, and mark it as settled if so.

    A launch is complete when every recipient engaged. It is quiet when no dispatch is planned or in flight, and no
    outcome, post-back, or sending by the service happened within ``quiet_for``. A recurring launch can be quiet, but is
    never settled. A launch whose recipients the service chooses is never complete. Planned dispatches of a rejected or
    stopped launch do not count.
    """
    moment = now or datetime.now(UTC)
    ledger.doubts.expire_leases(launch_key, moment)
    aggregate(ledger, now=moment)
    launch = ledger.launches.get(launch_key)
    is_over = LaunchState(launch.state).is_final
    ahead = {DispatchState.IN_FLIGHT} | (set() if is_over else {DispatchState.PLANNED})
    if ledger.dispatch_queries.states(launch_key).keys() & ahead:
        return False
    sends_at = launch.sends_at
    post_back_at, _, opens = ledger.aggregates.newest(launch_key)
    known = [at for at in (post_back_at, ledger.dispatch_queries.newest_outcome(launch_key), sends_at) if at]
    quiet = not known or moment - max(known) >= quiet_for
    if not quiet and not _is_complete(ledger, launch, opens):
        return False
    if sends_at is not None:
        ledger.launches.settle(launch_key, moment)
    return True


def until_sent(ledger: Ledger, launch_key: str) -> timedelta:
    """Return how long it takes until the service has sent a launch; nothing if it has, or sends it repeatedly."""
    sends_at = ledger.launches.get(launch_key).sends_at
    return max(sends_at - datetime.now(UTC), timedelta()) if sends_at else timedelta()


def _is_complete(ledger: Ledger, launch: LaunchRecord, opens: int) -> bool:
    recipients = launch.audience - launch.erased
    if launch.is_chosen_by_service or opens < recipients:
        return False
    engaged = (len(part.engaged) for _, part in ledger.aggregates.iter_totals(launch.launch_key))
    return sum(engaged) == recipients


def _received(ledger: Ledger, launch: LaunchRecord) -> _Received:
    who = _UnionBuilder(launch.kind)
    counts: Counter[str] = Counter()
    anomalies: Counter[str] = Counter()
    unattributed = []
    for dispatch_key, part in ledger.aggregates.iter_totals(launch.launch_key):
        who.add("delivered", part.delivered)
        who.add("engaged", part.engaged)
        who.add("suspects", part.suspects)
        named = len(part.delivered) + len(part.engaged)
        counts.update(deliveries=part.deliveries, opens=part.opens, named=named)
        anomalies.update(part.anomalies)
        if part.has_unattributed_events:
            unattributed.append(dispatch_key)
    engaged = who.take("engaged")
    return _Received(
        delivered=who.take("delivered") - engaged,
        engaged=engaged,
        suspects=who.take("suspects"),
        deliveries=counts["deliveries"],
        opens=counts["opens"],
        anomalies=anomalies,
        named=counts["named"],
        unattributed=frozenset(unattributed),
    )


def _sent(ledger: Ledger, launch: LaunchRecord, unattributed: Collection[str]) -> _Sent:
    variants = ledger.dispatch_queries.variants(launch.launch_key)
    has_rest = Campaign.frozen(launch.definition).decide is not None
    sent, by_variant, by_arm = (_UnionBuilder(launch.kind) for _ in range(3))
    arms = ledger.dispatch_queries.arms(launch.launch_key)
    known = ledger.doubts.known_states(launch.launch_key)
    states: Counter[str] = Counter()
    still_doubted: Counter[str] = Counter()
    for dispatch, segment, left_out in ledger.dispatch_queries.frozen_segments(launch.launch_key):
        states[dispatch.state] += 1
        if variant := variants.get(dispatch.segment, _REST if has_rest else ""):
            by_variant.add(variant, segment)
        if arm := arms.get(dispatch.segment):
            by_arm.add(arm, segment)
        state = known.get(dispatch.dispatch_key, dispatch.state)
        if dispatch.state == DispatchState.ACCEPTED:  # since ``known`` was read
            state = dispatch.state
        elif state == DispatchState.IN_DOUBT != dispatch.state:
            still_doubted[dispatch.state] += 1
        state = _COUNTED_AS.get(state, state)
        if left_out:
            sent.add("suppressed", left_out.always)
            # The newest request left them out, but an earlier one in doubt did not.
            sent.add("in_doubt", left_out.newest - left_out.always)
            segment -= left_out.newest  # noqa: PLW2901
        sent.add(state, segment)
        if dispatch.dispatch_key in unattributed:
            sent.add("unattributed", segment)
    return _Sent(
        **{name: sent.take(name) for name in _SETS},
        by_verdict=ledger.dispatch_queries.withheld_by_verdict(launch.launch_key),
        by_variant={name: by_variant.take(name) for name in sorted(set(variants.values()))},
        by_arm={arm: by_arm.take(arm) for arm in sorted(set(arms.values()))},
        rest=by_variant.take(_REST),
        states=states,
        doubted=+still_doubted,
    )


def _judge(
    sent: _Sent, held_out: Identifiers, received: _Received, reliable: Identifiers
) -> dict[str, Identifiers]:
    # Subtract one set after the other. A union copies text identifiers, and would copy those of a whole launch many
    # times.
    engaged, delivered = received.engaged, received.delivered
    accepted, in_doubt = (people - engaged - delivered for people in (sent.accepted, sent.in_doubt))
    missing = (accepted & reliable) - sent.unattributed
    not_requested = _together(held_out.kind, [sent.refused, sent.planned, sent.suppressed, held_out])
    return {
        Verdict.ENGAGED: engaged,
        Verdict.DELIVERED: delivered,
        Verdict.MISSING: missing,
        Verdict.UNKNOWABLE: accepted - missing,
        Verdict.IN_DOUBT: in_doubt,
        Verdict.NOT_SENT: not_requested - engaged - delivered - accepted - in_doubt,
    }


def _together(kind: Kind, sets: Iterable[Identifiers]) -> Identifiers:
    """Join sets. If only one of them has members, return it without a copy."""
    some = [each for each in sets if each]
    return some[0] if len(some) == 1 else union(kind, some)


def _not_sent_because(
    launch: LaunchRecord, sent: _Sent, held_out: Identifiers, not_sent: Identifiers
) -> dict[str, int]:
    """Count the recipients who were not sent to by reason, in the order of precedence."""
    held_out = not_sent & held_out
    refused = not_sent & sent.refused
    since = {
        verdict: (not_sent & people) - refused for verdict, people in sent.by_verdict.items() if len(people)
    }
    left_out = (not_sent & sent.suppressed) | _together(held_out.kind, since.values())
    counts = {
        "held out": len(held_out),
        "refused": len(refused),
        "suppressed": len(left_out) - sum(map(len, since.values())),
        **{_SINCE[verdict]: len(people) for verdict, people in sorted(since.items())},
        "not requested" if launch.state == LaunchState.RELEASED else f"launch {launch.state}": len(
            not_sent - held_out - refused - left_out
        ),
    }
    return {reason: count for reason, count in counts.items() if count}


def _by_group(
    sets: Mapping[str, Identifiers], groups: Mapping[str, Identifiers]
) -> dict[str, dict[str, int]]:
    return {
        name: {verdict.value: len(sets[verdict] & members) for verdict in Verdict}
        for name, members in sorted(groups.items())
    }


def _anomalies(launch: LaunchRecord, received: _Received) -> dict[str, int]:
    repeats = launch.sends_at is None  # several messages to one person are intended then
    counts = {kind: received.anomalies[kind] for kind in ANOMALIES}
    if launch.identified_by in MATCHED_BY and not repeats:
        undecided = sum(received.anomalies[kind] for kind in ("unexpected", "forged", "unreadable", ERASED))
        # The service sends no event ID, so a second click of one person counts here as well.
        counts["duplicate"] += received.deliveries + received.opens - undecided - received.named
    if received.anomalies[ERASED]:
        counts[ERASED] = received.anomalies[ERASED]
    return counts
