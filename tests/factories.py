"""Campaigns, audiences, launches, requests and post-backs for tests of all folders."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, integers, union
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Period, launch_key
from sendoff.ledger import Claim, Ledger, NewLaunch
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.ledger.post_backs.blocks import StoredPostBack
from sendoff.ledger.post_backs.post_backs import parts_of, stored_runs
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, Outcome

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
KEY = launch_key("service", "spring", PERIOD)
LEASE = timedelta(minutes=5)


def make_campaign(**fields: Any) -> Campaign:
    """Return a campaign with an Android push message; ``fields`` override its fields."""
    message = {"title": "Hello", "text": "It is spring"}
    return Campaign.model_validate(
        {"title": "Spring", "message": message, "channels": {"android_push": {}}, **fields}
    )


PUSH = make_campaign()
EMAIL = Campaign.model_validate(
    {
        "title": "Spring",
        "channels": {"email": {"from_address": 1, "subject": "Hello", "text": "It is spring"}},
    }
)


def make_audience(people: Identifiers, **fields: Any) -> Audience:
    """Return an audience of these identifiers, one row each, without groups."""
    column = "device_id" if people.kind == "integer" else "user_id"
    usual: dict[str, Any] = {
        "identified_by": column,
        "identifiers": people,
        "rows": len(people),
        "dropped": {},
        "groups": {},
    }
    return Audience(**{**usual, **fields})


def make_launch(
    ledger: Ledger,
    people: Identifiers | range | list[int] | None = None,
    *,
    size: int | None = None,
    segments: Iterable[Segment] | None = None,
    audience: Audience | None = None,
    campaign: Campaign = EMAIL,
    name: str = "spring",
    connection: str = "service",
    period: Period = PERIOD,
    resend: int = 0,
    **fields: Any,
) -> LaunchRecord:
    """Freeze a launch of a campaign, and return it.

    Its recipients are in segments of ``size``, or in one, unless ``segments`` is given. Without recipients and
    segments, the service chooses the recipients. ``fields`` are more fields of NewLaunch.
    """
    if isinstance(people, range | list):
        people = integers(people)
    if segments is None:
        segments = [Segment(None)] if people is None else map(Segment, people.slices(size or len(people)))
    if people is None and audience is None:
        segments = list(segments)
        if named := [part.identifiers for part in segments if part.identifiers is not None]:
            people = union(named[0].kind, named)
    if audience is None and people is not None:
        audience = make_audience(people)
    usual: dict[str, Any] = {
        "launch_key": launch_key(connection, name, period, resend),
        "created_at": NOW,
        "sends_at": NOW,
    }
    return ledger.launches.freeze(
        NewLaunch(
            connection=connection,
            campaign=name,
            period=period,
            resend=resend,
            definition=campaign.model_dump_json(),
            audience=audience,
            segments=segments,
            **{**usual, **fields},
        )
    )


def make_accepted(
    ledger: Ledger, people: Identifiers | range | list[int], *, at: datetime = NOW, **fields: Any
) -> str:
    """Freeze a launch with one accepted request, and return its dispatch key."""
    launch = make_launch(ledger, people, created_at=at, sends_at=at, **fields)
    (key,) = send(ledger, launch.launch_key, Accepted(200, 17), at=at)
    return key


def claimed(ledger: Ledger, key: str = KEY, *, at: datetime = NOW, worker: str = "w") -> Claim:
    """Claim the next request of a launch."""
    claim = ledger.dispatches.claim(key, worker=worker, now=at, lease=LEASE)
    assert claim is not None
    return claim


def send(
    ledger: Ledger, key: str, *outcomes: Outcome | None, at: datetime = NOW, worker: str = "w"
) -> list[str]:
    """Claim a request for each outcome, record the outcome, and return the keys; None leaves a request in flight."""
    keys = []
    for outcome in outcomes:
        claim = claimed(ledger, key, at=at, worker=worker)
        if outcome is not None:
            ledger.dispatches.record(claim, outcome, at)
        keys.append(claim.dispatch_key)
    return keys


def post_back(
    key: str, kind: str, who: int | str, *, campaign: int | None = 17, at: datetime = NOW
) -> PostBack:
    """Return a post-back of a dispatch, in the form that the receiver passes to the ledger."""
    person = {"device": {"id": who}} if isinstance(who, int) else {"profile": {"user_id": who}}
    body = {"time": int(at.timestamp()), "campaign": {"id": campaign}, **person}
    return PostBack.received(kind, key, at, json.dumps(body).encode())


def make_warehouse(file: Path, table: str, rows: Iterable[Sequence[object]]) -> str:
    """Make a SQLite file with a table, such as ``devices (device_id INTEGER)``, and return its URL."""
    marks = ", ".join("?" * (table.count(",") + 1))
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(f"CREATE TABLE {table}")
        db.executemany(f"INSERT INTO {table.split(maxsplit=1)[0]} VALUES ({marks})", rows)
    return f"sqlite:///{file}"


def stored_post_backs(ledger: Ledger) -> list[StoredPostBack]:
    """Return the stored post-backs of all receivers, in the order of their numbers."""
    found = [
        post_back
        for run in stored_runs(ledger._database)
        for part in parts_of(ledger._database, run)
        for post_back in part.post_backs()
    ]
    return sorted(found, key=attrgetter("receiver", "number"))


def store(ledger: Ledger, *post_backs: PostBack, at: datetime = NOW) -> None:
    """Store post-backs like a new receiver."""
    receiver = ledger.post_backs.register_receiver("r", at)
    ledger.post_backs.store(receiver, list(enumerate(post_backs, start=1)))
