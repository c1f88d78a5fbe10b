"""Reconciliation: what was sent against what came back, one verdict for each identifier.

:mod:`sendoff.postbacks.aggregate` has added up what came back of each dispatch; :func:`reconcile_launch` gives every
identifier of a launch
exactly one verdict, by set algebra. Neither the order of post-backs nor their repetition changes a figure.

.. code-block:: text

    opened or clicked .......................................... engaged
    delivered, as far as a delivery was reported ............... delivered
    silent, request refused or not made ........................ not sent
    silent, nobody knows whether the request was processed ..... in doubt
    silent, accepted, sent, its deliveries reported reliably ... missing
    silent, accepted, otherwise ................................ unknowable

Where the service chooses the people, only those heard of are known, and nobody is silent.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sendoff.audience.identifiers import Identifiers, Kind, empty, union
from sendoff.campaign import Campaign, Channel, Edition
from sendoff.figures import ANOMALIES, NO_PLATFORM, PLATFORM, RELIABLE_PLATFORMS, UNREAD, VERDICTS, Figures
from sendoff.ledger import Launch, Ledger
from sendoff.postbacks.aggregate import MATCHED_BY, fold

_log = logging.getLogger(__name__)

_RELIABLE_CHANNELS = frozenset({Channel.EMAIL, Channel.SMS, Channel.INBOX, Channel.WEBHOOK})
_NOT_REQUESTED = {
    "released": "not requested",
    "held": "launch held",
    "paused": "launch paused",
    "rejected": "launch rejected",
    "stopped": "launch stopped",
}
"""Why somebody is not sent to whose request was not made, by the state of the launch."""

_JOINED_AT_ONCE = 100
_OVER = frozenset({"rejected", "stopped"})


@dataclass(frozen=True, slots=True)
class _Requested:
    """Whom the requests of a launch are for, by what became of them."""

    accepted: Identifiers
    refused: Identifiers
    in_doubt: Identifiers
    planned: Identifiers
    misread: Identifiers  # of whose requests a post-back may hide a delivery
    by_variant: Mapping[str, Identifiers]
    states: Mapping[str, int]  # of their dispatches, as they were when it was read whom they are for


@dataclass(frozen=True, slots=True)
class _CameBack:
    """What came back of all dispatches of a launch together."""

    delivered: Identifiers  # of whom no open came
    engaged: Identifiers
    deliveries: int
    opens: int
    anomalies: Mapping[str, int]
    named: int  # people with a delivery and people with an open, counted in each dispatch
    misread: frozenset[str]  # dispatches of which a post-back may hide a delivery


class _Joining:
    """Sets by name that are joined as they come, so that not all of them are in memory."""

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
        """Give a set; what it was joined of is not kept."""
        return _together(self._kind, [*self._joined.pop(name, []), *self._waiting.pop(name, [])])


def reconcile_launch(ledger: Ledger, launch_key: str, *, now: datetime | None = None) -> Figures:
    """Fold what came back, give every identifier of a launch its verdict, store both and give the figures."""
    moment = now or datetime.now(UTC)
    ledger.dispatches.expire_leases(launch_key, moment)
    fold(ledger, now=moment)
    news = ledger.verdicts.news(launch_key)
    launch = ledger.launches.get(launch_key)
    came_back = _came_back(ledger, launch)
    platforms = ledger.launches.groups(launch_key, "platform")
    held_out = ledger.launches.left_out(launch_key, "holdout").get("holdout", empty(launch.kind))
    requested = _requested(ledger, launch, came_back.misread)
    reliable = _reliable(launch, requested.accepted, platforms, moment)
    sets = _judge(requested, held_out, came_back, reliable)
    verdicts = {verdict: len(sets[verdict]) for verdict in VERDICTS}
    figures = Figures(
        launch_key=launch_key,
        campaign=launch.campaign,
        period=launch.period.key,
        as_of=moment,
        rows=launch.rows,
        dropped=launch.dropped,
        audience=sum(verdicts.values()) if launch.is_chosen_by_service else launch.audience,
        segments=launch.segments,
        dispatches=dict(requested.states),
        verdicts=verdicts,
        by_platform=_by_group(sets, platforms),
        anomalies=_anomalies(launch, came_back),
        post_backs={
            "delivery": came_back.deliveries,
            "open": came_back.opens,
        },
        timeline=ledger.returns.timeline(launch_key),
        state=launch.state,
        is_chosen_by_service=launch.is_chosen_by_service,
        is_sent_again=launch.sends_at is None,
        not_sent_because=_not_sent_because(launch, requested, held_out, sets["not_sent"]),
        by_variant=_by_group(sets, requested.by_variant),
        unknowable_because=_unknowable_because(launch, sets["unknowable"], reliable, platforms, moment),
        untold=_untold(launch),
    )
    ledger.verdicts.store(figures, sets, news=news)
    _log.info("launch %s reconciled: %s", launch_key, dict(figures.verdicts))
    return figures


def is_settled(ledger: Ledger, launch_key: str, *, quiet_for: timedelta, now: datetime | None = None) -> bool:
    """Say whether a launch is complete (everybody engaged) or has been quiet for a while, and note it once it is.

    Quiet: no dispatch is waiting or in flight, and neither an outcome nor a post-back came within ``quiet_for``, nor
    did the moment at which the service sends. What the service sends again and again is quiet, but never settled; what
    goes to people of its choice is never complete. In a launch that is rejected or stopped nothing waits.
    """
    moment = now or datetime.now(UTC)
    ledger.dispatches.expire_leases(launch_key, moment)
    fold(ledger, now=moment)
    launch = ledger.launches.get(launch_key)
    ahead = {"in_flight"} if launch.state in _OVER else {"planned", "in_flight"}
    if ledger.dispatches.states(launch_key).keys() & ahead:
        return False
    sends_at = launch.sends_at
    post_back_at, opens = ledger.returns.newest(launch_key)
    known = [at for at in (post_back_at, ledger.dispatches.newest_outcome(launch_key), sends_at) if at]
    quiet = not known or moment - max(known) >= quiet_for
    if not quiet and not _is_complete(ledger, launch, opens):
        return False
    if sends_at is not None:
        ledger.launches.settle(launch_key, moment)
    return True


def _is_complete(ledger: Ledger, launch: Launch, opens: int) -> bool:
    if launch.is_chosen_by_service or opens < launch.audience:
        return False
    engaged = (len(part.engaged) for _, part in ledger.returns.each(launch.launch_key))
    return sum(engaged) == launch.audience


def _campaign(launch: Launch) -> Campaign:
    return Campaign.frozen(launch.definition)


def _came_back(ledger: Ledger, launch: Launch) -> _CameBack:
    who = _Joining(launch.kind)
    counts: Counter[str] = Counter()
    anomalies: Counter[str] = Counter()
    misread = []
    for dispatch_key, part in ledger.returns.each(launch.launch_key):
        who.add("delivered", part.delivered)
        who.add("engaged", part.engaged)
        named = len(part.delivered) + len(part.engaged)
        counts.update(deliveries=part.deliveries, opens=part.opens, named=named)
        anomalies.update(part.anomalies)
        if part.may_hide_deliveries:
            misread.append(dispatch_key)
    engaged = who.take("engaged")
    return _CameBack(
        delivered=who.take("delivered") - engaged,
        engaged=engaged,
        deliveries=counts["deliveries"],
        opens=counts["opens"],
        anomalies=anomalies,
        named=counts["named"],
        misread=frozenset(misread),
    )


def _requested(ledger: Ledger, launch: Launch, misread: Collection[str]) -> _Requested:
    variants = ledger.dispatches.variants(launch.launch_key)
    found, by_variant = _Joining(launch.kind), _Joining(launch.kind)
    doubted = ledger.dispatches.doubted(launch.launch_key)
    states: Counter[str] = Counter()
    for dispatch, segment in ledger.dispatches.segments(launch.launch_key):
        states[dispatch.state] += 1
        # Its doubt may have been cleared since the doubted were read.
        is_doubted = dispatch.dispatch_key in doubted and dispatch.state in {"planned", "refused"}
        found.add("in_doubt" if is_doubted else _certainty(dispatch.state), segment)
        if dispatch.dispatch_key in misread:
            found.add("misread", segment)
        if dispatch.segment in variants:
            by_variant.add(variants[dispatch.segment], segment)
    return _Requested(
        accepted=found.take("accepted"),
        refused=found.take("refused"),
        in_doubt=found.take("in_doubt"),
        planned=found.take("planned"),
        misread=found.take("misread"),
        by_variant={name: by_variant.take(name) for name in sorted(set(variants.values()))},
        states=states,
    )


def _judge(
    requested: _Requested, held_out: Identifiers, came_back: _CameBack, reliable: Identifiers
) -> dict[str, Identifiers]:
    # One set after the other is taken away: texts that are joined are copied, those of a whole launch many times.
    engaged, delivered = came_back.engaged, came_back.delivered
    accepted, in_doubt = (each - engaged - delivered for each in (requested.accepted, requested.in_doubt))
    missing = (accepted & reliable) - requested.misread
    not_requested = _together(held_out.kind, [requested.refused, requested.planned, held_out])
    return {
        "engaged": engaged,
        "delivered": delivered,
        "missing": missing,
        "unknowable": accepted - missing,
        "in_doubt": in_doubt,
        "not_sent": not_requested - engaged - delivered - accepted - in_doubt,
    }


def _together(kind: Kind, sets: Iterable[Identifiers]) -> Identifiers:
    """Join sets; one that is joined with none but empty ones is not copied."""
    some = [each for each in sets if each]
    return some[0] if len(some) == 1 else union(kind, some)


def _certainty(state: str) -> str:
    return state if state in {"accepted", "refused", "planned"} else "in_doubt"


def _not_sent_because(
    launch: Launch, requested: _Requested, held_out: Identifiers, not_sent: Identifiers
) -> dict[str, int]:
    """Count those who were not sent to by reason, in the order in which it is decided."""
    held_out = not_sent & held_out
    refused = not_sent & requested.refused
    counts = {
        "held out": len(held_out),
        "refused": len(refused),
        _NOT_REQUESTED[launch.state]: len(not_sent - held_out - refused),
    }
    return {reason: count for reason, count in counts.items() if count}


def _unknowable_because(
    launch: Launch,
    unknowable: Identifiers,
    reliable: Identifiers,
    platforms: Mapping[str, Identifiers],
    now: datetime,
) -> dict[str, int]:
    """Count those whose silence proves nothing by reason, in the order in which it is decided."""
    if reason := _why_nobody_is_reliable(launch, now):
        return {reason: len(unknowable)} if unknowable else {}
    others = unknowable - reliable
    unreliable = others & _on(launch.kind, platforms, are_reliable=False)
    counts = {
        UNREAD: len(unknowable) - len(others),
        PLATFORM: len(unreliable),
        NO_PLATFORM: len(others) - len(unreliable),
    }
    return {reason: count for reason, count in counts.items() if count}


def _why_nobody_is_reliable(launch: Launch, now: datetime) -> str | None:
    """Return the reason why nobody's silence proves anything in a launch; None if somebody's may."""
    if launch.sends_at is None:
        return "sent again"
    if now < launch.sends_at:
        return "not sent yet"
    if launch.identified_by not in MATCHED_BY:
        return "not named"
    return None if "delivery" in _campaign(launch).post_backs.kinds else "not asked for"


def _on(kind: Kind, platforms: Mapping[str, Identifiers], *, are_reliable: bool) -> Identifiers:
    return union(
        kind, (who for name, who in platforms.items() if (name in RELIABLE_PLATFORMS) is are_reliable)
    )


def _untold(launch: Launch) -> tuple[str, ...]:
    """Give the kinds of post-backs that were not asked for, or cannot name the people."""
    asked = _campaign(launch).post_backs.kinds if launch.identified_by in MATCHED_BY else ()
    return tuple(kind for kind in ("delivery", "open") if kind not in asked)


def _by_group(
    sets: Mapping[str, Identifiers], groups: Mapping[str, Identifiers]
) -> dict[str, dict[str, int]]:
    return {
        name: {verdict: len(sets[verdict] & members) for verdict in VERDICTS}
        for name, members in sorted(groups.items())
    }


def _reliable(
    launch: Launch, audience: Identifiers, platforms: Mapping[str, Identifiers], now: datetime
) -> Identifiers:
    """Give those of an audience for whom silence means that nothing was delivered."""
    if _why_nobody_is_reliable(launch, now):
        return empty(launch.kind)
    campaign = _campaign(launch)
    editions = [Edition(variant=name) for name in campaign.variants] or [Edition()]
    if all(_every_channel_reliable(campaign.edition(each, launch.period.end)) for each in editions):
        return audience
    # Whoever came with two platforms may have been sent to on the one that reports nothing.
    return _on(launch.kind, platforms, are_reliable=True) - _on(launch.kind, platforms, are_reliable=False)


def _every_channel_reliable(campaign: Campaign) -> bool:
    others = set(campaign.used()) - _RELIABLE_CHANNELS
    web_push = campaign.channels.web_push
    return not others or (
        others == {Channel.WEB_PUSH}
        and web_push is not None
        and RELIABLE_PLATFORMS.issuperset(web_push.browsers)
    )


def _anomalies(launch: Launch, came_back: _CameBack) -> dict[str, int]:
    repeats = launch.sends_at is None  # then many messages to one person are meant
    counts = Counter(dict.fromkeys(ANOMALIES, 0))
    counts.update({kind: came_back.anomalies[kind] for kind in ANOMALIES})
    if launch.identified_by in MATCHED_BY and not repeats:
        undecided = sum(counts[kind] for kind in ("unexpected", "forged", "unreadable"))
        # The service gives no event id, so a second click of one person counts here as well.
        counts["duplicate"] += came_back.deliveries + came_back.opens - undecided - came_back.named
    return dict(counts)


def whose_silence_tells(ledger: Ledger, launch: Launch, now: datetime) -> Identifiers:
    """Give those of a launch's audience for whom silence means that nothing was delivered."""
    audience = ledger.launches.audience(launch.launch_key)
    platforms = ledger.launches.groups(launch.launch_key, "platform")
    return _reliable(launch, audience, platforms, now)
