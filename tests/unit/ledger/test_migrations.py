"""A ledger of before, with rows in every table, comes to the newest form without losing or changing any."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

import sendoff.ledger
from sendoff.audience.identifiers import Identifiers, empty, integers, strings
from sendoff.errors import UnusableLedgerError
from sendoff.figures import ANOMALIES, VERDICTS
from sendoff.ledger import Ledger
from sendoff.ledger.schema import metadata
from sendoff.service.postbacks import PostBack

if TYPE_CHECKING:
    from tests.conftest import Command

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
DEVICES, USERS, BROADCAST = "1" * 32, "2" * 32, "3" * 32
MOVED = {("audiences", "identifiers"), ("lists", "identifiers")}
"""Columns that are gone: the people of an audience are those of its segments, those of a list stand in its parts."""

MORE = [strings(f"{number:0>150}" for number in range(500)), integers(range(10**12, 10**12 + 70_000))]


@pytest.fixture(params=["sqlite", "postgresql"])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """A ledger at revision 0005, with rows in every table."""
    if request.param == "sqlite":
        (tmp_path / "ledger.db").touch()
        ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    else:
        ledger = Ledger(request.getfixturevalue("postgres_url"))
        with ledger._database.write() as connection:
            connection.execute(sa.text("DROP SCHEMA public CASCADE"))
            connection.execute(sa.text("CREATE SCHEMA public"))
    to_revision(ledger, "0005")
    with ledger._database.write() as connection:
        insert_all(connection)
    yield ledger
    ledger.close()


def to_revision(ledger: Ledger, revision: str, move: Callable[[Config, str], None] = command.upgrade) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(sendoff.ledger.__file__).with_name("migrations")))
    with ledger._database.write() as connection:
        config.attributes["connection"] = connection
        move(config, revision)


def at(minutes: float = 0) -> str:
    return (NOW + timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:%M:%S.%f")


def insert(connection: sa.Connection, table: str, *rows: dict[str, Any]) -> None:
    for row in rows:
        names = ", ".join(f'"{name}"' for name in row)
        values = ", ".join(f":{name}" for name in row)
        connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)


def people(identifiers: Identifiers) -> dict[str, Any]:
    return {"size": len(identifiers), "identifiers": identifiers.to_bytes()}


def insert_all(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SET LOCAL TIME ZONE 'UTC'"))
    of = {"launch_key": DEVICES}
    for key, campaign, kind, members in (
        (DEVICES, "spring", "integer", integers(range(1, 10))),
        (USERS, "summer", "string", MORE[0]),
        (BROADCAST, "news", "integer", empty("integer")),
    ):
        insert(
            connection,
            "launches",
            {
                "launch_key": key,
                "connection": "service",
                "campaign": campaign,
                "period_start": at(-2_000),
                "period_end": at(-560),
                "resend": 0,
                "definition": '{"title": "Spring"}',
                "created_at": at(),
                "state": "released",
                "wave": 2,
                "due_at": at(),
                "sends_at": at(),
                "partition": "north" if key == USERS else None,
            },
        )
        insert(
            connection,
            "audiences",
            {
                "launch_key": key,
                "identified_by": "device_id" if kind == "integer" else "user_id",
                "kind": kind,
                "is_chosen_by_service": key == BROADCAST,
                "rows": len(members) + 2,
                "dropped": json.dumps({"null": 2}),
                "fingerprint": "f",
                **people(members),
            },
        )
    insert(
        connection,
        "audience_groups",
        {**of, "name": "platform", "value": "chrome", **people(integers([1, 2]))},
        {**of, "name": "platform", "value": "firefox", **people(integers([3]))},
        {**of, "name": "language", "value": "fr", **people(integers([]))},
    )
    insert(
        connection,
        "left_out",
        {**of, "reason": "cap", **people(MORE[1])},
        {**of, "reason": "holdout", **people(integers([9]))},
    )
    segments = [
        (DEVICES, 1, 1, "Europe/Paris", integers([1, 2])),
        (DEVICES, 2, 1, "Asia/Tokyo", integers([3, 4])),
        (DEVICES, 3, 2, None, integers([5, 6, 7, 8])),
        (USERS, 1, 1, None, MORE[0]),
        (BROADCAST, 1, 1, None, None),
    ]
    states = iter(["accepted", "in_doubt", "planned", "refused", "accepted"])
    for key, number, wave, zone, members in segments:
        segment = {"launch_key": key, "number": number, "language": "fr", "variant": "red", "wave": wave}
        members_of = {"size": 0, "identifiers": None} if members is None else people(members)
        insert(
            connection,
            "segments",
            {**segment, "time_zone": zone, "fingerprint": "f", "parameters": b"p", **members_of},
        )
        state = next(states)
        dispatch = {"dispatch_key": dispatch_key(key, number), "launch_key": key, "segment": number}
        insert(
            connection,
            "dispatches",
            {**dispatch, "state": state, "attempt": int(state != "planned"), "campaign_id": number},
        )
        if state != "planned":
            of_dispatch = {"dispatch_key": dispatch["dispatch_key"]}
            insert(connection, "attempts", {**of_dispatch, "number": 1, "worker": "w", "started_at": at()})
            outcome = {"attempt": 1, "kind": state, "status": 200, "recorded_at": at(1)}
            insert(connection, "outcomes", {**of_dispatch, **outcome})
    insert(
        connection,
        "lists",
        *(
            {"name": name, "identified_by": "device_id", "kind": found.kind, **people(found), **uploaded}
            for name, found in {"staff": MORE[1], "complaints": MORE[0], "nobody": integers([])}.items()
            for uploaded in [{"uploaded_by": "ann", "uploaded_at": at()}]
        ),
    )
    insert(
        connection,
        "decisions",
        {**of, "kind": "released", "who": "ann", "why": "fine", "detail": '{"n": 1}', "decided_at": at()},
    )
    insert(connection, "brakes", {"scope": "connection:other", "who": "ann", "why": "wait", "set_at": at()})
    insert(connection, "rates", {"connection": "service", "next_at": at(1)})
    insert(connection, "receivers", {"name": "r", "started_at": at(), "folded": 2})
    for number, days in enumerate((0, 0, 1, 2), start=1):
        insert(
            connection,
            "post_backs",
            {
                "receiver": 1,
                "number": number,
                "kind": "delivery",
                "dispatch_key": dispatch_key(DEVICES, 1) if number < 4 else "9" * 32,
                "received_at": at(number + days * 1_440),
                "occurred_at": at(number) if number > 1 else None,
                "device_id": 1 if number < 3 else 2,
                "user_id": "ann",
                "campaign_id": 1,
                "readable": True,
                "body": b"{}",
            },
        )
    insert(
        connection,
        "returns",
        {
            "dispatch_key": dispatch_key(DEVICES, 1),
            "deliveries": 2,
            "opens": 0,
            "anomalies": json.dumps({"duplicate": 1}),
            "newest_at": at(2),
            "is_evidence": True,
            "delivered": integers([1]).to_bytes(),
            "engaged": integers([]).to_bytes(),
        },
    )
    aside = {"receiver": 1, "first": 4, "last": 4, "dispatch_key": "9" * 32, "post_backs": 1}
    insert(connection, "set_aside", {**aside, "newest_at": at(4)})
    insert(connection, "timeline", {**of, "minute": at(1), "deliveries": 2, "opens": 0})
    silence = {"connection": "service", "kind": "open", "platform": "", "state": "thin", "why": "few"}
    insert(connection, "silences", {**silence, "since": at()})
    insert(
        connection,
        "verdicts",
        *({**of, "verdict": verdict, **people(found)} for verdict, found in JUDGED.items()),
    )
    insert(connection, "reports", {**of, "as_of": at(5), "figures": json.dumps(FIGURES)})


def dispatch_key(launch_key: str, number: int) -> str:
    return f"{launch_key[:-1]}{number:x}"


JUDGED: dict[str, Identifiers] = {
    **dict.fromkeys(VERDICTS, integers([])),
    "delivered": integers([1]),
    "missing": integers([2]),
    "in_doubt": integers([3, 4]),
    "not_sent": integers([5, 6, 7, 8, 9]),
}
FIGURES = {
    "launch_key": DEVICES,
    "campaign": "spring",
    "period": "2026-03-01",
    "as_of": "2026-03-02T09:05:00+00:00",
    "rows": 11,
    "dropped": {"null": 2},
    "audience": 9,
    "segments": 3,
    "dispatches": {"accepted": 1, "in_doubt": 1, "planned": 1},
    "verdicts": {verdict: len(found) for verdict, found in JUDGED.items()},
    "by_platform": {},
    "anomalies": dict.fromkeys(ANOMALIES, 0),
    "post_backs": {"delivery": 2, "open": 0},
    "timeline": [["2026-03-02T09:01:00+00:00", 2, 0]],
}

Rows = dict[str, list[dict[str, Any]]]


def rows_of(ledger: Ledger) -> Rows:
    """Every row of every table but that of the revision, as the database itself gives it."""
    found: Rows = defaultdict(list)
    with ledger._database.read() as connection:
        for table in sa.inspect(connection).get_table_names():
            if table in metadata.tables:
                rows = connection.execute(sa.text(f"SELECT * FROM {table}")).mappings()
                found[table] = sorted((dict(row) for row in rows), key=repr)
    return found


def test_every_table_of_before_has_rows(before: Ledger) -> None:
    """So that none is left out of what the next tests compare."""
    assert {table for table, rows in rows_of(before).items() if not rows} == set()
    assert metadata.tables.keys() - rows_of(before).keys() == {"list_parts"}


def test_a_ledger_of_before_asks_to_be_migrated(before: Ledger) -> None:
    with pytest.raises(UnusableLedgerError, match="run: sendoff migrate"):
        before.launches.left_out(DEVICES)


@pytest.mark.promise("lost/migrated")
def test_no_row_of_before_is_lost_or_changed(before: Ledger) -> None:
    old = rows_of(before)
    before.migrate()
    new = rows_of(before)
    for table, rows in old.items():
        kept = [name for name in rows[0] if (table, name) not in MOVED]
        assert all(name in row for row in new[table] for name in kept)
        assert sorted(([row[name] for name in kept] for row in new[table]), key=repr) == sorted(
            ([row[name] for name in kept] for row in rows), key=repr
        ), table


def test_sets_of_before_read_as_before(before: Ledger) -> None:
    before.migrate()
    assert before.launches.audience(DEVICES) == integers(range(1, 10))
    assert before.launches.audience(USERS) == MORE[0]
    assert before.launches.audience(BROADCAST) == empty("integer")
    assert before.launches.sent(DEVICES) == integers(range(1, 9))
    assert before.launches.sent(USERS) == empty("string")
    assert before.launches.groups(DEVICES, "platform") == {
        "chrome": integers([1, 2]),
        "firefox": integers([3]),
    }
    assert before.launches.groups(DEVICES, "language") == {"fr": integers([])}
    assert before.launches.left_out(DEVICES) == {"cap": MORE[1], "holdout": integers([9])}
    assert before.launches.left_out_sizes(DEVICES) == {"cap": 70_000, "holdout": 1}
    assert before.launches.why(DEVICES, 10**12 + 69_999).reason == "cap"
    assert before.launches.why(DEVICES, 2).verdict == "missing"
    assert before.verdicts.sets(DEVICES) == JUDGED
    assert {each.name: (each.size, before.lists.get(each.name)[1]) for each in before.lists.all()} == {
        "staff": (70_000, MORE[1]),
        "complaints": (500, MORE[0]),
        "nobody": (0, integers([])),
    }


def test_launches_and_reports_of_before_read_as_before(before: Ledger) -> None:
    before.migrate()
    launch = before.launches.get(DEVICES)
    assert (launch.audience, launch.rows, launch.dropped, launch.segments) == (9, 11, {"null": 2}, 3)
    assert (launch.created_at, launch.sends_at, launch.wave) == (NOW, NOW, 2)
    assert before.launches.get(USERS).period.partition == "north"
    assert before.launches.get(BROADCAST).is_chosen_by_service
    figures = before.verdicts.figures(DEVICES).to_json()
    assert figures == figures | FIGURES
    assert before.returns.timeline(DEVICES) == [(NOW + timedelta(minutes=1), 2, 0)]
    assert before.returns.returned(DEVICES)[dispatch_key(DEVICES, 1)].delivered == integers([1])
    assert before.post_backs.unfolded() == [(1, 2, 4)]
    with before.post_backs.read(1, after=0, up_to=10, named_by=["device_id"]) as batches:
        assert [each for batch in batches for each in batch["device_id"].to_pylist()] == [1, 1, 2, 2]


def test_dispatches_of_before_know_the_wave_and_the_zone_of_their_segment(before: Ledger) -> None:
    before.migrate()
    with before._database.read() as connection:
        found = connection.execute(
            sa.text("SELECT dispatch_key, wave, time_zone FROM dispatches ORDER BY dispatch_key")
        )
        assert [tuple(row) for row in found] == [
            (dispatch_key(DEVICES, 1), 1, "Europe/Paris"),
            (dispatch_key(DEVICES, 2), 1, "Asia/Tokyo"),
            (dispatch_key(DEVICES, 3), 2, ""),
            (dispatch_key(USERS, 1), 1, ""),
            (dispatch_key(BROADCAST, 1), 1, ""),
        ]


def test_post_backs_of_before_are_a_partition_and_are_forgotten_in_one_piece(before: Ledger) -> None:
    began = datetime.now(UTC)
    before.migrate()
    with before._database.write() as connection:
        connection.execute(sa.text("UPDATE receivers SET folded = 1000"))  # all that it holds
    partitions = before.retention._partitions()
    today = datetime.combine(partitions[0].last if partitions else began, time(), UTC)
    found = before.retention.forget(today + timedelta(days=1))
    with before._database.read() as connection:
        left = connection.scalar(sa.text("SELECT count(*) FROM post_backs"))
        is_partitioned = connection.dialect.name == "postgresql"
    assert left == before.returns.strays().post_backs
    if is_partitioned:
        assert began.date() <= today.date() <= datetime.now(UTC).date()  # midnight may come at any time
        assert len(found.days + found.needed) == 1
        assert before.retention.prepare(today) == []  # the days after are there


def test_a_ledger_of_before_goes_on(before: Ledger) -> None:
    before.migrate()
    later = PostBack.received("delivery", dispatch_key(DEVICES, 1), NOW, b'{"time": 1, "device": {"id": 2}}')
    before.post_backs.store(1, [(5, later)])
    assert before.post_backs.unfolded() == [(1, 2, 5)]
    before.lists.store("staff", "device_id", integers([1]), "bob", NOW)
    assert before.lists.get("staff")[1] == integers([1])
    before.lists.delete("complaints")
    assert [each.name for each in before.lists.all()] == ["nobody", "staff"]


@pytest.mark.promise("lost/migrated")
def test_the_tables_of_a_ledger_with_rows_are_exactly_those_of_a_new_one(before: Ledger) -> None:
    before.migrate()
    with before._database.read() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "include_name": lambda name, kind, _: kind != "table" or name in metadata.tables,
            },
        )
        assert compare_metadata(context, metadata) == []


def test_parts_do_not_go_back_into_one_value(before: Ledger) -> None:
    before.migrate()
    with pytest.raises(NotImplementedError, match="restore a backup"):
        to_revision(before, "0005", command.downgrade)
    assert before.launches.audience(DEVICES) == integers(range(1, 10))


def test_a_ledger_of_a_newer_version_says_so(before: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    before.migrate()
    with before._database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0999'"))
        url = connection.engine.url.render_as_string(hide_password=False)
    newer = "made by a newer Sendoff .its tables are of revision 0999, this one knows 0"
    with pytest.raises(UnusableLedgerError, match=newer):
        before.migrate()
    caplog.clear()
    with closing(Ledger(url)) as ledger:
        assert ledger.launches.get(DEVICES).campaign == "spring"
        assert [ledger.launches.get(key).campaign for key in (USERS, BROADCAST)] == ["summer", "news"]
        [told] = caplog.messages
        assert re.search(newer, told)
        with ledger._database.write() as connection:
            connection.execute(sa.text("ALTER TABLE lists RENAME TO those_of_people"))
        with pytest.raises(UnusableLedgerError, match=newer):
            ledger.lists.all()


@pytest.mark.parametrize("ask", [Ledger.ping, lambda ledger: ledger.launches.search("0")])
def test_a_mistyped_path_is_no_new_ledger(tmp_path: Path, ask: Callable[[Ledger], object]) -> None:
    path = tmp_path / "never.db"
    with closing(Ledger(f"sqlite:///{path}")) as ledger:
        for _ in range(2):
            with pytest.raises(UnusableLedgerError) as error:
                ask(ledger)
            assert str(error.value) == (
                f"there is no ledger at {path}; is the path right? For a new one, run: sendoff migrate"
            )
        assert list(tmp_path.iterdir()) == []
        ledger.migrate()
        ask(ledger)


def test_the_command_makes_no_ledger_by_the_way(tmp_path: Path, sendoff: Command) -> None:
    done = sendoff("report", "--ledger", f"sqlite:///{tmp_path / 'never.db'}")
    assert done.returncode == 1
    path = tmp_path / "never.db"
    assert (
        f"there is no ledger at {path}; is the path right? For a new one, run: sendoff migrate" in done.stderr
    )
    assert list(tmp_path.iterdir()) == []
