"""Reconciliation: what was sent against what came back, one verdict for each identifier.

:mod:`sendoff.fold` has added up what came back of each dispatch; :func:`reconcile` gives every identifier of a launch
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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sendoff.campaign import Campaign, Channel, Edition
from sendoff.figures import ANOMALIES, VERDICTS, Figures
from sendoff.fold import MATCHED_BY, fold
from sendoff.identifiers import Identifiers, empty, union
from sendoff.ledger import Ledger, Returned
from sendoff.ledger.launches import Launch

_log = logging.getLogger(__name__)

RELIABLE_PLATFORMS = frozenset({"chrome", "firefox", "opera", "email", "sms", "inbox", "webhook"})
"""Platforms whose deliveries are reported; not so Android push, iOS push and Safari (service.md, section 6)."""

_RELIABLE_CHANNELS = frozenset({Channel.EMAIL, Channel.SMS, Channel.INBOX, Channel.WEBHOOK})
_NOT_REQUESTED = {
    "released": "not requested",
    "held": "launch held",
    "paused": "launch paused",
    "rejected": "launch rejected",
    "stopped": "launch stopped",
}
"""Why somebody is not sent to whose request was not made, by the state of the launch."""

_OVER = frozenset({"rejected", "stopped"})


@dataclass(frozen=True, slots=True)
class _Requested:
    """Whom the requests of a launch are for, by what became of them."""

    accepted: Identifiers
    refused: Identifiers
    in_doubt: Identifiers
    misread: Identifiers  # of whose requests a post-back may hide a delivery
    by_variant: Mapping[str, Identifiers]


def reconcile(ledger: Ledger, launch_key: str, *, now: datetime | None = None) -> Figures:
    """Fold what came back, give every identifier of a launch its verdict, store both and give the figures."""
    moment = now or datetime.now(UTC)
    ledger.dispatches.expire_leases(launch_key, moment)
    fold(ledger, now=moment)
    launch = ledger.launches.get(launch_key)
    returned = ledger.post_backs.returned(launch_key)
    platforms = ledger.launches.groups(launch_key, "platform")
    requested = _requested(ledger, launch, returned)
    sets = _judge(ledger, launch, requested, returned, platforms, moment)
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
        dispatches=ledger.dispatches.states(launch_key),
        verdicts=verdicts,
        by_platform=_by_group(sets, platforms),
        anomalies=_anomalies(launch, returned.values()),
        post_backs={
            "delivery": sum(part.deliveries for part in returned.values()),
            "open": sum(part.opens for part in returned.values()),
        },
        timeline=ledger.post_backs.timeline(launch_key),
        state=launch.state,
        is_chosen_by_service=launch.is_chosen_by_service,
        is_sent_again=launch.sends_at is None,
        not_sent_because=_not_sent_because(ledger, launch, requested, sets["not_sent"]),
        by_variant=_by_group(sets, requested.by_variant),
    )
    ledger.verdicts.store(figures, sets)
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
    post_back_at, opens = ledger.post_backs.newest(launch_key)
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
    returned = ledger.post_backs.returned(launch.launch_key).values()
    return sum(len(part.engaged) for part in returned) == launch.audience


def _campaign(launch: Launch) -> Campaign:
    return Campaign.frozen(launch.definition)


def _requested(ledger: Ledger, launch: Launch, returned: Mapping[str, Returned]) -> _Requested:
    variants = ledger.dispatches.variants(launch.launch_key)
    found: defaultdict[str, list[Identifiers]] = defaultdict(list)
    by_variant: defaultdict[str, list[Identifiers]] = defaultdict(list)
    doubted = ledger.dispatches.doubted(launch.launch_key)
    for dispatch, segment in ledger.dispatches.segments(launch.launch_key):
        is_doubted = dispatch.dispatch_key in doubted
        found["in_doubt" if is_doubted else _certainty(dispatch.state)].append(segment)
        if may_hide_deliveries(returned.get(dispatch.dispatch_key)):
            found["misread"].append(segment)
        if dispatch.segment in variants:
            by_variant[variants[dispatch.segment]].append(segment)
    return _Requested(
        accepted=union(launch.kind, found["accepted"]),
        refused=union(launch.kind, found["refused"]),
        in_doubt=union(launch.kind, found["in_doubt"]),
        misread=union(launch.kind, found["misread"]),
        by_variant={name: union(launch.kind, parts) for name, parts in by_variant.items()},
    )


def _judge(
    ledger: Ledger,
    launch: Launch,
    requested: _Requested,
    returned: Mapping[str, Returned],
    platforms: Mapping[str, Identifiers],
    now: datetime,
) -> dict[str, Identifiers]:
    audience = ledger.launches.audience(launch.launch_key)
    engaged = union(launch.kind, (part.engaged for part in returned.values()))
    delivered = union(launch.kind, (part.delivered for part in returned.values())) - engaged
    heard = engaged | delivered
    accepted, in_doubt = requested.accepted - heard, requested.in_doubt - heard
    missing = accepted & _reliable(launch, audience, platforms, now) - requested.misread
    return {
        "engaged": engaged,
        "delivered": delivered,
        "missing": missing,
        "unknowable": accepted - missing,
        "in_doubt": in_doubt,
        "not_sent": audience - heard - accepted - in_doubt,
    }


def may_hide_deliveries(part: Returned | None) -> bool:
    """Say whether a post-back of a dispatch could not be read as what it may have been: somebody's delivery."""
    return part is not None and bool(part.anomalies.keys() & {"unreadable", "forged"})


def _certainty(state: str) -> str:
    return state if state in {"accepted", "refused", "planned"} else "in_doubt"


def _not_sent_because(
    ledger: Ledger, launch: Launch, requested: _Requested, not_sent: Identifiers
) -> dict[str, int]:
    """Count those who were not sent to by reason, in the order in which it is decided."""
    left_out = ledger.launches.left_out(launch.launch_key, "holdout")
    held_out = not_sent & left_out.get("holdout", empty(launch.kind))
    refused = not_sent & requested.refused
    counts = {
        "held out": len(held_out),
        "refused": len(refused),
        _NOT_REQUESTED[launch.state]: len(not_sent - held_out - refused),
    }
    return {reason: count for reason, count in counts.items() if count}


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
    campaign = _campaign(launch)
    if launch.sends_at is None or now < launch.sends_at:
        return empty(launch.kind)
    if launch.identified_by not in MATCHED_BY or "delivery" not in campaign.post_backs.kinds:
        return empty(launch.kind)
    editions = [Edition(variant=name) for name in campaign.variants] or [Edition()]
    if all(_every_channel_reliable(campaign.edition(each, launch.period.end)) for each in editions):
        return audience
    reliable = union(launch.kind, (who for name, who in platforms.items() if name in RELIABLE_PLATFORMS))
    # Whoever came with two platforms may have been sent to on the one that reports nothing.
    return reliable - union(
        launch.kind, (who for name, who in platforms.items() if name not in RELIABLE_PLATFORMS)
    )


def _every_channel_reliable(campaign: Campaign) -> bool:
    others = set(campaign.used()) - _RELIABLE_CHANNELS
    web_push = campaign.channels.web_push
    return not others or (
        others == {Channel.WEB_PUSH}
        and web_push is not None
        and RELIABLE_PLATFORMS.issuperset(web_push.browsers)
    )


def _anomalies(launch: Launch, returned: Iterable[Returned]) -> dict[str, int]:
    repeats = launch.sends_at is None  # then many messages to one person are meant
    counts = Counter(dict.fromkeys(ANOMALIES, 0))
    for part in returned:
        counts.update(part.anomalies)
        if launch.identified_by in MATCHED_BY and not repeats:
            undecided = sum(part.anomalies.get(kind, 0) for kind in ("unexpected", "forged", "unreadable"))
            # The service gives no event id, so a second click of one person counts here as well.
            counts["duplicate"] += (
                part.deliveries + part.opens - undecided - len(part.delivered) - len(part.engaged)
            )
    return dict(counts)


def whose_silence_tells(ledger: Ledger, launch: Launch, now: datetime) -> Identifiers:
    """Give those of a launch's audience for whom silence means that nothing was delivered."""
    audience = ledger.launches.audience(launch.launch_key)
    platforms = ledger.launches.groups(launch.launch_key, "platform")
    return _reliable(launch, audience, platforms, now)
