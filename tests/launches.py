"""Launches in all states in a ledger, created by the library, for tests of pages and views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Period, Variation, launch_key
from sendoff.launch.gates import GateResult, gates_decision
from sendoff.ledger import Decision, Ledger
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.states import Accepted, InDoubt, Outcome, Refused

from . import factories
from .factories import make_audience, make_launch, post_back, store

NOW = datetime.now(UTC).replace(microsecond=0)
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
    variations: Sequence[Variation] = (Variation(),),
    definition: Mapping[str, Any] = PUSH,
    by_service: bool = False,
    connection: str = "service",
    decisions: bool = True,
    made: datetime | None = None,
    sends: datetime | None = None,
    due: datetime | None = None,
    resend: int = 0,
) -> str:
    """Freeze a launch with ``people`` recipients in segments of ``size``; ``day`` sets its period. Return its key."""
    end = (NOW - timedelta(days=day - 1)).replace(hour=0, minute=0, second=0)
    period = Period(end - timedelta(days=1), end)
    key = launch_key(connection, campaign, period, resend)
    everybody, dropped = integers(devices(people)), dropped or {}
    groups = {name: integers(devices(people)[n :: len(PLATFORMS)]) for n, name in enumerate(PLATFORMS)}
    rows = people + sum(dropped.values())
    audience = make_audience(everybody, rows=rows, dropped=dict(dropped), groups={"platform": groups})
    parts = integers(devices(people)[holdout:]).slices(size)
    segments = [Segment(part, variations[n % len(variations)]) for n, part in enumerate(parts)]
    moment = made or NOW - timedelta(days=day - 1, hours=2)
    gates = [
        GateResult("least", True, f"{people:,} people", "at least 1"),
        GateResult("change", True, "12 % more than the last launch", "50 % at most"),
    ]
    suppressed = {
        **({"holdout": integers(devices(people)[:holdout])} if holdout else {}),
        **({"cap": integers(devices(dropped["cap"], 9_000_000_000))} if "cap" in dropped else {}),
    }
    make_launch(
        ledger,
        segments=[Segment(None)] if by_service else segments,
        audience=None if by_service else audience,
        campaign=Campaign.model_validate(definition),
        name=campaign,
        connection=connection,
        period=period,
        resend=resend,
        created_at=moment,
        sends_at=sends or moment,
        due_at=due,
        state=state,
        suppressed=suppressed,
        decisions=[gates_decision(key, gates, moment)] if decisions else [],
    )
    return key


def send(ledger: Ledger, key: str, *outcomes: Outcome | None, at: datetime = NOW) -> list[str]:
    """Claim a request for each outcome, record the outcome, and return the keys; None leaves a request in flight."""
    return factories.send(ledger, key, *outcomes, at=at)


def answer(ledger: Ledger, key: str, *, since: datetime) -> None:
    """Store deliveries and openings, over two hours, for some recipients of the accepted requests."""
    events, number = [], 0
    for dispatch, people in ledger.dispatch_queries.segments(key):
        if dispatch.state != "accepted":
            continue
        for place, device in enumerate(people):
            number += 1
            at = since + timedelta(seconds=1_800 * (number % 7) / 7 + 5_000 * (place % 40) ** 2 / 1_600)
            kinds = {0: ("delivery", "open"), 1: (), 2: ("delivery",), 3: ("delivery",)}[number % 4]
            events += [
                post_back(dispatch.dispatch_key, kind, int(device), campaign=dispatch.campaign_id, at=at)
                for kind in kinds
            ]
    store(ledger, *events, at=NOW)


def fill(ledger: Ledger) -> dict[str, str]:
    """Create launches in all states, and return their keys by name."""
    keys = {}
    keys["reported"] = reported = freeze(
        ledger,
        "spring_sale",
        people=1_200,
        size=95,
        day=3,
        dropped={"duplicate": 20, "null": 3, "cap": 17},
        holdout=60,
        variations=[Variation(variant=name) for name in VARIANTS],
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
    send(
        ledger,
        failing,
        *[Accepted(200, 6_000 + n) for n in range(6)],
        TIMED_OUT,
        TIMED_OUT,
        TIMED_OUT,
        at=NOW,
    )
    why = "3 of the last 9 requests got no clear answer from the service; fewer than 3 are allowed"
    ledger.audit_log.decide(Decision(failing, "held", "sendoff", why, NOW))
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
    ledger.audit_log.decide(Decision(stopped, "stopped", "ann", "the wrong picture", NOW))
    return keys
