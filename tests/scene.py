"""Launches in every state in a ledger, made as the library makes them, for tests of what people look at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Edition
from sendoff.launch.gates import GateResult, gates_decision
from sendoff.ledger import Ledger
from sendoff.outcome import Accepted, InDoubt, Outcome, Refused
from sendoff.period import Period, launch_key
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.service.postbacks import PostBack

NOW = datetime.now(UTC).replace(microsecond=0)
LEASE = timedelta(minutes=5)
FIRST_DEVICE = 7_340_000_000
PLATFORMS = ("chrome", "android", "ios", "firefox", "safari")
TIMED_OUT = InDoubt("no answer within 60 seconds")
PUSH: dict[str, Any] = {
    "title": "Spring sale",
    "message": {"title": "Spring is here", "text": "Everything for the garden is 20 % off until Sunday."},
    "channels": {
        "android_push": {},
        "ios_push": {},
        "web_push": {"browsers": ["chrome", "firefox", "safari"]},
    },
}
EMAIL = Campaign.model_validate(
    {
        "title": "Spring",
        "channels": {"email": {"from_address": 1, "subject": "Hello", "text": "It is spring"}},
    }
)
VARIANTS = {
    "short": {"percent": 50},
    "long": {
        "percent": 50,
        "message": {"text": "Everything for the garden is 20 % off. Come and see us on Sunday."},
    },
}


def devices(count: int, first: int = FIRST_DEVICE) -> list[int]:
    return list(range(first, first + count))


def freeze(
    ledger: Ledger,
    campaign: str,
    *,
    people: int = 12,
    size: int = 2,
    day: int = 1,
    state: str = "released",
    dropped: Mapping[str, int] | None = None,
    holdout: int = 0,
    editions: Sequence[Edition] = (Edition(),),
    definition: Mapping[str, Any] = PUSH,
    by_service: bool = False,
    connection: str = "service",
    decisions: bool = True,
    made: datetime | None = None,
) -> str:
    """Freeze a launch of so many people, so many to a segment, and give its key; ``day``: of its period."""
    end = (NOW - timedelta(days=day - 1)).replace(hour=0, minute=0, second=0)
    period = Period(end - timedelta(days=1), end)
    key = launch_key(connection, campaign, period)
    everybody, dropped = devices(people), dropped or {}
    identifiers, sent = integers(everybody), integers(everybody[holdout:])
    groups = {name: integers(everybody[n :: len(PLATFORMS)]) for n, name in enumerate(PLATFORMS)}
    audience = Audience(
        identified_by="device_id",
        identifiers=identifiers,
        rows=people + sum(dropped.values()),
        dropped=dict(dropped),
        groups={"platform": groups},
        fingerprint=identifiers.fingerprint(),
    )
    segments = [Segment(part, editions[n % len(editions)]) for n, part in enumerate(sent.slices(size))]
    moment = made or NOW - timedelta(days=day - 1, hours=2)
    gates = [
        GateResult("least", True, f"{people} people", "1 person or more"),
        GateResult("change", True, "12 % more than the last launch", "50 % at most"),
    ]
    ledger.launches.freeze(
        key,
        connection=connection,
        campaign=campaign,
        period=period,
        resend=0,
        definition=Campaign.model_validate(definition).model_dump_json(),
        audience=None if by_service else audience,
        segments=[Segment(None)] if by_service else segments,
        now=moment,
        state=state,
        sends_at=moment,
        left_out={
            **({"holdout": integers(everybody[:holdout])} if holdout else {}),
            **({"cap": integers(devices(dropped["cap"], 9_000_000_000))} if "cap" in dropped else {}),
        },
        decisions=[gates_decision(key, gates, moment)] if decisions else [],
    )
    return key


def send(ledger: Ledger, key: str, *outcomes: Outcome | None, at: datetime = NOW) -> list[str]:
    """Claim as many requests as there are outcomes and record them; None leaves one in flight."""
    keys = []
    for outcome in outcomes:
        claim = ledger.dispatches.claim(key, worker="scene", now=at, lease=LEASE)
        assert claim is not None
        if outcome is not None:
            ledger.dispatches.record(claim, outcome, at)
        keys.append(claim.dispatch_key)
    return keys


def sent(
    ledger: Ledger,
    key: str,
    people: Identifiers,
    *,
    period: Period,
    at: datetime,
    campaign: Campaign = EMAIL,
    name: str = "spring",
    connection: str = "service",
    groups: Mapping[str, Mapping[str, Identifiers]] | None = None,
) -> str:
    """Freeze a launch to some people, in one request that is accepted, and give the key of its dispatch."""
    ledger.launches.freeze(
        key,
        connection=connection,
        campaign=name,
        period=period,
        resend=0,
        definition=campaign.model_dump_json(),
        audience=Audience("device_id", people, len(people), {}, groups or {}, people.fingerprint()),
        segments=[Segment(people)],
        now=at,
        sends_at=at,
    )
    (dispatch,) = send(ledger, key, Accepted(200, 17), at=at)
    return dispatch


def answer(ledger: Ledger, key: str, *, since: datetime) -> None:
    """Have some people of the accepted requests of a launch receive and open, over two hours."""
    events, number = [], 0
    for dispatch, people in ledger.dispatches.segments(key):
        if dispatch.state != "accepted":
            continue
        for place, device in enumerate(people):
            number += 1
            at = since + timedelta(seconds=1_800 * (number % 7) / 7 + 5_000 * (place % 40) ** 2 / 1_600)
            kinds = {0: ("delivery", "open"), 1: (), 2: ("delivery",), 3: ("delivery",)}[number % 4]
            events += [
                _event(dispatch.dispatch_key, kind, int(device), dispatch.campaign_id, at) for kind in kinds
            ]
    receiver = ledger.post_backs.register_receiver("scene", NOW)
    ledger.post_backs.store(receiver, list(enumerate(events, start=1)))


def _event(key: str, kind: str, device: int, campaign: int | None, at: datetime) -> PostBack:
    body = {"time": int(at.timestamp()), "device": {"id": device}, "campaign": {"id": campaign}}
    return PostBack.received(kind, key, at, json.dumps(body).encode())


def fill(ledger: Ledger) -> dict[str, str]:
    """Make launches in every state, and give their keys by what they are."""
    keys = {}
    keys["reported"] = reported = freeze(
        ledger,
        "spring_sale",
        people=1_200,
        size=95,
        day=3,
        dropped={"duplicate": 20, "null": 3, "cap": 17},
        holdout=60,
        editions=[Edition(variant=name) for name in VARIANTS],
        definition={**PUSH, "variants": VARIANTS},
    )
    before = NOW - timedelta(days=2, hours=1)
    outcomes = [Accepted(200, 4_000 + n) for n in range(9)] + [TIMED_OUT, Refused(400, "devices: too many")]
    send(ledger, reported, *outcomes, Accepted(200, 4_100), at=before)
    answer(ledger, reported, since=before)
    reconcile_launch(ledger, reported, now=NOW - timedelta(hours=3))
    keys["running"] = running = freeze(ledger, "welcome_back", people=400, size=10)
    send(ledger, running, *[Accepted(200, 5_000 + n) for n in range(13)], None, None)
    keys["approval"] = freeze(ledger, "big_news", people=48_000, size=8_000, state="held", day=1)
    keys["failing"] = failing = freeze(ledger, "daily_digest", people=600, size=20, day=1)
    send(ledger, failing, *[Accepted(200, 6_000 + n) for n in range(6)], TIMED_OUT, TIMED_OUT, TIMED_OUT)
    why = "3 of the newest 9 requests are in doubt; gates.failures allows 2"
    ledger.decisions.decide(failing, "held", "sendoff", why, now=NOW)
    keys["chosen"] = chosen = freeze(
        ledger,
        "everybody",
        by_service=True,
        day=2,
        definition={**PUSH, "targeting": {"kind": "broadcast"}},
    )
    send(ledger, chosen, Accepted(200, 7_000))
    keys["stopped"] = stopped = freeze(ledger, "welcome_back", people=400, size=10, day=2)
    send(ledger, stopped, Accepted(200, 8_000))
    ledger.decisions.decide(stopped, "stopped", "ann", "the wrong picture", now=NOW)
    return keys
