"""Erasure: nothing in the ledger names an erased person, figures add up, and nothing is sent because of it."""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendoff.audience import KeyedHash, KnownPeople, Segment, build_audience, read_template_values
from sendoff.audience.identifiers import (
    DELETED,
    LONGEST_TEXT,
    Identifiers,
    Kind,
    as_integer,
    from_bytes,
    integers,
    strings,
)
from sendoff.campaign import EVERYTHING
from sendoff.dispatch import resolve
from sendoff.errors import AudienceError, ConflictError, GateError, SettingsError, UsageError
from sendoff.launch import NewRequest, prepare_request, preview_launch, suppression
from sendoff.ledger import Ledger
from sendoff.ledger.erasure import erasure_steps
from sendoff.ledger.erasure.erasure_steps import _runs
from sendoff.ledger.erasure.person_columns import OTHERS, SETS, TABLES
from sendoff.ledger.post_backs.blocks import StoredPostBack
from sendoff.ledger.storage.schema import (
    audiences,
    decisions,
    erased,
    erasure_queue,
    metadata,
    open_hours,
    parked_post_backs,
    post_backs,
    segments,
    withheld,
)
from sendoff.ledger.suppression.active_suppressions import ActiveSuppressions
from sendoff.ledger.suppression.suppressions import SuppressionChange, SuppressionList
from sendoff.ledger.suppression.uploaded_lists import UploadedLists
from sendoff.postbacks import (
    aggregate,
    continue_erasures,
    erased_before,
    forget,
    reconcile_launch,
    replay_erasures,
    request_erasure,
)
from sendoff.postbacks.erasure import append_to_log, read_log
from sendoff.postbacks.group_commit import ReceiverCounts
from sendoff.postbacks.opt_out import OptOutEndpoint
from sendoff.postbacks.reading import BodyReader
from sendoff.postbacks.server import _check_ledger
from sendoff.report import as_text, describe_launch, describe_preview
from sendoff.service import OptOut, OptOutSigner
from sendoff.service.postbacks import PostBack
from sendoff.service.wire import FieldNames
from sendoff.settings import load_settings
from sendoff.states import Accepted, DispatchState, InDoubt, NotProcessed, Refused, Resolution
from tools.chaos import mutants

from ...examples import examples
from ...factories import (
    KEY,
    LEASE,
    NOW,
    PERIOD,
    claimed,
    make_accepted,
    make_audience,
    make_launch,
    post_back,
    send,
    store,
    stored_post_backs,
)
from ...waiting import PATIENCE

SECRET = "the secret of these tests, which is long enough"
PEOPLE = range(1_000_001, 1_000_041)  # numbers that hardly occur in other columns
GONE = [1_000_003, 1_000_011, 1_000_022, 1_000_038]
ROWS = {"who": "anna", "reason": "asked by letter", "now": NOW}

HANDLED = {(column.table.name, column.name) for column in (*SETS, *OTHERS)}
"""The columns that may name a person. Erasure removes the person from each of them, and an export searches it."""

TEXTS = {
    "attempts": {"worker"},
    "audience_groups": {"name", "value"},
    "audiences": {"identified_by", "fingerprint"},
    "comparisons": {"what"},
    "daily_recipients": {"connection"},
    "decisions": {"who", "why"},
    "dispatches": {"time_zone", "worker"},
    "erasures": {"identified_by", "who", "why", "position"},
    "erased": {"identified_by"},
    "feed_states": {"connection", "platform", "why"},
    "launches": {"connection", "campaign", "partition", "definition", "origin", "winner"},
    "not_launched": {"campaign", "title", "partition", "why"},
    "pauses": {"scope", "who", "why"},
    "rate_limits": {"connection"},
    "receivers": {"name"},
    "segments": {"language", "variant", "time_zone", "fingerprint"},
    "suppressed": {"reason"},
    "uploaded_list_chunks": {"name"},
    "uploaded_lists": {"name", "identified_by", "uploaded_by"},
    "suppressions": {"scope", "identified_by", "source", "reason", "author", "removed_by"},
}
"""The columns of free text that name no recipient."""


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", SECRET)


def test_each_column_that_may_name_a_person_is_erased() -> None:
    """A new column must be added to one of the two lists; in the first case, also to the erasure."""
    undecided = {
        (table.name, column.name)
        for table in metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, sa.LargeBinary)
        or type(column.type) is sa.Text
        or column.name in ("device_id", "profile_id", "send_id", "number" if table is erasure_queue else "")
    }
    assert undecided == HANDLED | {(table, name) for table, names in TEXTS.items() for name in names}
    assert {table for table, _ in HANDLED} == {table.name for table in TABLES}


def make_everything(ledger: Ledger, people: Identifiers) -> list[str]:
    """Fill each table of the ledger with these forty people, and return the dispatch keys."""
    members = list(people)
    values = pa.table(
        {"name": pa.array([f"name of {each}" for each in members], pa.large_string())},
        schema=pa.schema([pa.field("name", pa.large_string(), metadata={"holds": "text"})]),
    )
    parts = [
        Segment(part, template_values=_stream(values.slice(place * 8, 8)), wave=1 + (place == 3))
        for place, part in enumerate(_of(people, members[:32]).slices(8))
    ]
    make_launch(
        ledger,
        segments=parts,
        audience=make_audience(
            _of(people, members[:36]),
            groups={"platform": {"email": _of(people, members[:30]), "sms": _of(people, members[20:])}},
            dropped={"exclude": 4},
            rows=40,
        ),
        suppressed={"holdout": _of(people, members[32:36]), "exclude": _of(people, members[36:])},
    )
    name = "device_id" if people.kind == "integer" else "user_id"
    of_everyone = SuppressionChange("account", name, source="csv", author="anna")
    ledger.suppressions.add(of_everyone, [members[21]], NOW)
    keys = send(ledger, KEY, Accepted(200, 17), Accepted(200, 17), None)
    early = [post_back(keys[0], "delivery", each) for each in members[:8]]
    early += [post_back(keys[0], "open", each) for each in members[:4]]
    early += [post_back(keys[1], "delivery", each) for each in members[8:12]]
    early += [post_back(keys[1], "open", members[10], at=NOW + timedelta(minutes=9))]  # not by a machine
    early += [post_back("f" * 32, "delivery", members[2])]  # parked: the ledger has no such dispatch
    early += [unreadable(keys[0], f"broken {members[2]}")]
    store(ledger, *early)
    ledger.uploaded_lists.store("complained", name, people, "anna", NOW)
    ledger.suppressions.add(
        SuppressionChange("topic:news", name, source="csv", author="anna"), [members[2], members[5]], NOW
    )
    reconcile_launch(ledger, KEY, now=NOW)
    store(ledger, post_back(keys[0], "open", members[2]), post_back(keys[1], "delivery", members[10]))
    return keys


def refuse(ledger: Ledger, people: Identifiers) -> str:
    """Store a launch whose requests are refused, one for each person, with words that name the person."""
    launch = make_launch(ledger, people, size=1, name="refused")
    refusals = [Refused(400, f"the profile of {each} has no email") for each in people]
    send(ledger, launch.launch_key, *refusals)
    return launch.launch_key


def unreadable(key: str, words: str) -> Any:
    return PostBack.received("delivery", key, NOW, words.encode())


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _of(people: Identifiers, members: Any) -> Identifiers:
    return integers(members) if people.kind == "integer" else strings(members)


def named_in(ledger: Ledger, people: Identifiers) -> set[tuple[str, str]]:
    """Return the columns that name one of these people, after decoding every value of every table."""
    texts = {str(each) for each in people}
    found = {("post_backs", "block") for each in stored_post_backs(ledger) if _is_of(each, people, texts)}
    with ledger._database.read() as db:
        for table in metadata.sorted_tables:
            for row in db.execute(sa.select(table)).mappings():
                for column, value in row.items():
                    if _names(value, column, people, texts):
                        found.add((table.name, column))
    return found


def _is_of(post_back: StoredPostBack, people: Identifiers, texts: set[str]) -> bool:
    return any(_names(value, name, people, texts) for name, value in asdict(post_back).items())


def _names(value: Any, column: str, people: Identifiers, texts: set[str]) -> bool:
    if isinstance(value, bytes) and value.startswith(DELETED):
        return False
    if isinstance(value, bytes) and column in ("identifiers", "delivered", "engaged", "suspects"):
        return len(from_bytes(people.kind, value) & people) > 0
    if isinstance(value, bytes) and column == "template_values":
        value = json.dumps([str(each) for each in read_template_values(value)])
    if isinstance(value, bytes):
        return any(text.encode() in value for text in texts)
    if isinstance(value, int):
        return str(value) in texts
    return value is not None and any(text in str(value) for text in texts)


def as_texts(people: Any) -> Identifiers:
    return strings([f"person-{each}@example.com" for each in people])


@pytest.mark.promise("erased/gone")
@pytest.mark.parametrize("kind", ["integer", "string"])
def test_nothing_names_an_erased_person(ledger: Ledger, kind: Kind) -> None:
    """Every set, list, template value, verdict, and post-back of the person is gone; others stay."""
    people, gone = (
        (integers(PEOPLE), integers(GONE)) if kind == "integer" else (as_texts(PEOPLE), as_texts(GONE))
    )
    make_everything(ledger, people)
    refused = refuse(ledger, _of(people, list(people)[:4]))
    before = named_in(ledger, gone)
    assert before >= HANDLED - {
        ("segments", "body"),
        *{("erasure_queue", "identifier"), ("erasure_queue", "number")},
    }
    column = "device_id" if kind == "integer" else "user_id"
    asked = ledger.erasures.named(column, [*map(str, gone), "2000001"])
    assert ledger.erasures.count_known(asked) == 4
    done = forget(ledger, gone, identified_by=column, **ROWS)
    assert (done.requests, done.people, done.reports) == (1, 4, 1)
    assert ledger.erasures.count_known(asked) == 0
    assert named_in(ledger, gone) == set()
    others = people - gone  # type: ignore[operator]
    assert ledger.launches.audience(KEY) == _of(people, list(people)[:36]) - gone  # type: ignore[operator]
    assert ledger.uploaded_lists.get("complained")[1] == others
    assert ledger.uploaded_lists.get("complained")[0].size == 36
    assert len(ledger.suppressions.of_person(column, list(people)[5])) == 1
    kept = [f"the profile of {each} has no email" for each in list(people)[:4] if each in others]
    assert ledger.dispatch_queries.reasons(refused, "refused") == [*kept, "…"]
    assert ledger.dispatch_queries.refused(refused) == 4


def test_an_erasure_that_skips_the_blocks_is_noticed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure_steps, "scrub", erasure_steps.scrub)  # undone after the test
    mutants.apply("blocks skipped")
    make_everything(ledger, integers(PEOPLE))
    forget(ledger, GONE, identified_by="device_id", **ROWS)
    assert named_in(ledger, integers(GONE)) == {("post_backs", "block")}


def test_template_values_stay_with_their_recipients(ledger: Ledger) -> None:
    make_everything(ledger, integers(PEOPLE))
    forget(ledger, GONE, identified_by="device_id", **ROWS)
    with ledger._database.read() as db:
        for row in db.execute(sa.select(segments)):
            people = from_bytes("integer", row.identifiers)
            assert row.size == len(people)
            names = [each["name"] for each in read_template_values(row.template_values)]
            assert names == [f"name of {each}" for each in people]


@pytest.mark.promise("erased/sums")
def test_the_report_counts_the_erased_and_adds_up(ledger: Ledger) -> None:
    make_everything(ledger, integers(PEOPLE))
    before = reconcile_launch(ledger, KEY, now=NOW)
    forget(ledger, GONE, identified_by="device_id", **ROWS)
    figures = ledger.verdicts.figures(KEY)
    assert (figures.audience, figures.erased) == (36, 3)  # one of the four was excluded before
    assert (figures.unaccounted_identifiers, figures.unaccounted_rows) == (0, 0)
    assert figures.post_backs == before.post_backs
    assert figures.anomalies["duplicate"] == before.anomalies["duplicate"]
    assert figures.anomalies["unexpected"] == before.anomalies["unexpected"]
    text = as_text(describe_launch(figures))
    assert "erased" in text
    assert "DOES NOT ADD UP" not in text
    assert f"Of the {36 - 3 - figures.control_group} devices outside the control group" in text
    preview = preview_launch(ledger, KEY)
    assert preview.audience == preview.rows - sum(preview.dropped.values()) == figures.audience
    assert preview.people == 36 - preview.held_out - figures.erased
    rest = r" +- +4 +control group\n +- +3 +erased: they asked to be forgotten\n += +29 +devices\n"
    assert re.search(rf"= +36 +audience\n{rest}", as_text(describe_preview(preview)))
    assert {name: len(members) for name, members in ledger.verdicts.sets(KEY).items()} == {
        name: count for name, count in figures.verdicts.items() if name in ledger.verdicts.sets(KEY)
    }


def test_an_erased_person_is_not_said_to_have_been_outside_the_launch(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3], size=3)
    assert ledger.launches.recipient(KEY, 9).sentence.startswith("not selected: ")
    forget(ledger, [2], identified_by="device_id", **ROWS)
    assert ledger.launches.recipient(KEY, 2).sentence.endswith("a usable row, or it was erased")
    assert ledger.launches.recipient(KEY, 3).sentence.startswith("not sent yet")


@pytest.mark.promise("erased/unsent")
def test_nothing_is_sent_because_of_an_erasure(ledger: Ledger) -> None:
    """Dispatches keep their keys and states; a planned one goes without the person, or not at all."""
    keys = make_everything(ledger, integers(PEOPLE))
    before = {each.dispatch_key: each.state for each in ledger.dispatch_queries.of_launch(KEY)}
    in_segment_four = list(PEOPLE)[24:32]
    forget(ledger, [*GONE, *in_segment_four], identified_by="device_id", **ROWS)
    after = {each.dispatch_key: each.state for each in ledger.dispatch_queries.of_launch(KEY)}
    assert after == before
    assert ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE) is None
    (last,) = set(after) - set(keys)
    states = {each.dispatch_key: each.state for each in ledger.dispatch_queries.of_launch(KEY)}
    assert states[last] in (DispatchState.SUPPRESSED, DispatchState.PLANNED)


def test_a_planned_request_goes_without_the_erased(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3, 4, 5], size=2)
    forget(ledger, [2, 5], identified_by="device_id", **ROWS)
    claims = []
    while claim := ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE):
        claims.append(list(claim.content.identifiers or ()))
        ledger.dispatches.record(claim, Accepted(200, 17), NOW)
    assert claims == [[1], [3, 4]]
    assert ledger.dispatch_queries.states(KEY) == {DispatchState.ACCEPTED: 2, DispatchState.SUPPRESSED: 1}


def test_a_request_to_erased_people_alone_is_not_claimed_after_another(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3, 4, 5], size=2)
    forget(ledger, [3, 4], identified_by="device_id", **ROWS)
    claim = claimed(ledger)
    following = ledger.dispatches.record_and_claim(claim, Accepted(200, 17), NOW, worker="w", lease=LEASE)
    following = following or ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert following
    assert list(following.content.identifiers or ()) == [5]
    assert ledger.dispatch_queries.states(KEY)[DispatchState.SUPPRESSED] == 1


def test_an_erasure_between_a_claim_and_its_check_of_the_list_is_noticed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL commits the claim first. SQLite does both in one transaction, so nothing can come in between."""
    make_launch(ledger, [1, 2, 3, 4], size=2)
    claim = claimed(ledger)

    def erase_first(*_: object) -> bool:
        forget(ledger, [4], identified_by="device_id", **ROWS)
        return False

    monkeypatch.setattr(ActiveSuppressions, "has_none_of", erase_first)
    following = ledger.dispatches.record_and_claim(claim, Accepted(200, 17), NOW, worker="w", lease=LEASE)
    assert following
    if ledger.name.startswith("postgresql"):
        assert list(following.content.identifiers or ()) == [3]
    with ledger._database.read() as db:
        rows = db.scalars(sa.select(withheld.c.identifiers)).all()
    assert not any(4 in from_bytes("integer", blob) for blob in rows)


def test_a_claimed_request_that_was_not_processed_is_sent_again_without_the_erased(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3])
    claim = claimed(ledger)
    forget(ledger, [2], identified_by="device_id", **ROWS)
    ledger.dispatches.record(claim, NotProcessed("the service was down"), NOW)
    again = claimed(ledger)
    assert again.dispatch_key == claim.dispatch_key
    assert list(again.content.identifiers or ()) == [1, 3]


@pytest.mark.promise("erased/late")
def test_a_late_post_back_of_an_erased_person_is_not_kept(ledger: Ledger) -> None:
    make_launch(ledger, [1_000_001, 1_000_002, 1_000_003])
    (key,) = send(ledger, KEY, Accepted(200, 17))
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    store(
        ledger,
        post_back(key, "delivery", 1_000_001),
        post_back(key, "delivery", 1_000_002),
        post_back(key, "open", 1_000_002),
        post_back(key, "delivery", 7),
    )
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert named_in(ledger, integers([1_000_002])) == set()
    assert figures.post_backs == {"delivery": 3, "open": 1}
    assert figures.anomalies["erased"] == 2
    assert figures.anomalies["unexpected"] == 1
    assert figures.anomalies["duplicate"] == 0
    assert figures.unaccounted_identifiers == 0


@pytest.mark.parametrize("column", ["device_id", "user_id"])
def test_a_late_unreadable_post_back_of_an_erased_person_is_not_kept(ledger: Ledger, column: str) -> None:
    key = make_accepted(ledger, [1_000_001, 1_000_002])
    forget(ledger, [1_000_002], identified_by=column, **ROWS)
    others = unreadable(key, '{"device": {"id": 1000001}')
    store(ledger, others, unreadable(key, '{"device": {"id": 01000002}'))
    store(ledger, unreadable("f" * 32, '{"profile": {"user_id": "1000002"}'))  # parked
    aggregate(ledger, now=NOW)
    assert [each.body for each in stored_post_backs(ledger)].count(b"") == (2 if column == "device_id" else 1)
    assert b"1000001" in b"".join(each.body or b"" for each in stored_post_backs(ledger))
    assert reconcile_launch(ledger, KEY, now=NOW).anomalies["unreadable"] == 2


ESCAPED = {"x/y": r"x\/y", "ÄB": r"\u00c4B", "a 😀": r"a \ud83d\ude00", 'c "d"': r"c \"d\"", "e&f": "e&f"}


@pytest.mark.parametrize("when", ["late", "before", "replayed"])
def test_broken_json_of_an_erased_person_is_not_kept_whatever_its_escapes(
    ledger: Ledger, tmp_path: Path, when: str
) -> None:
    key = make_accepted(ledger, [1_000_001])
    others = ["x", r"z\/y", r"\u00c5B"]
    bodies = [f'{{"profile":{{"user_id":"{text}"}},,' for text in [*others, *ESCAPED.values()]]
    if when == "late":
        forget(ledger, list(ESCAPED), identified_by="user_id", **ROWS)
    store(ledger, *(unreadable(key, body) for body in bodies))
    aggregate(ledger, now=NOW)
    if when == "before":
        forget(ledger, list(ESCAPED), identified_by="user_id", **ROWS)
    if when == "replayed":
        log = tmp_path / "erasures.jsonl"
        append_to_log(log, ledger.erasures.named("user_id", list(ESCAPED)).remembered, NOW)
        assert replay_erasures(ledger, log, who="anna", now=NOW).people == len(ESCAPED)
    kept = [body.encode() for body in bodies[: len(others)]]
    assert [each.body for each in stored_post_backs(ledger)] == kept + [b""] * len(ESCAPED)


FORMS = {
    "eva@example.com": "time=1&device.id=5&profile.user_id=eva%40example.com",
    "Jürgen Müller": "profile.user_id=J%C3%BCrgen+M%C3%BCller&device.id=5",
    "eva": "{user:eva,broken",
    "17": '{"profile":{"user_id":17},"broken',
    "cust-42": "<img src=https://cdn.example/cust-42.png>",
}
OF_OTHERS = {
    "17": "time=2026-03-17T17:17:00Z&profile.user_id=bob%17",
    "ann": '{"profile":{"user_id":["annabel@example.com"]}}',
    "bob@example.com": "profile.user_id=bob@example.com.au",
    "Eva Li": '{"name":"Eva Lins"',
}


@pytest.mark.parametrize("when", ["late", "before", "replayed"])
@pytest.mark.parametrize(("person", "body"), [*FORMS.items(), *OF_OTHERS.items()])
def test_an_unreadable_post_back_is_emptied_exactly_if_it_names_the_person(
    ledger: Ledger, tmp_path: Path, when: str, person: str, body: str
) -> None:
    key = make_accepted(ledger, [1_000_001])
    if when == "late":
        forget(ledger, [person], identified_by="user_id", **ROWS)
    store(ledger, unreadable(key, body))
    aggregate(ledger, now=NOW)
    is_of_person = FORMS.get(person) == body
    if when == "before":
        people = ledger.erasures.named("user_id", [person])
        exported = ledger.persons.export("user_id", person, who="bert", why="asked", now=NOW)
        assert len(exported["post_backs"]) == ledger.erasures.count_known(people) == is_of_person
        forget(ledger, [person], identified_by="user_id", **ROWS)
    if when == "replayed":
        log = tmp_path / "erasures.jsonl"
        append_to_log(log, ledger.erasures.named("user_id", [person]).remembered, NOW)
        assert replay_erasures(ledger, log, who="anna", now=NOW).people == is_of_person
    assert [each.body for each in stored_post_backs(ledger)] == [b"" if is_of_person else body.encode()]


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ('[{"user_id":["eva"]},{"user_id":["bob"]}]', '[{"user_id": ["eva"]}]'),
        ("profile.user_id=bob&profile.user_id=eva", "profile.user_id=eva"),
        ("a,eva;b\neva c", "eva … eva c"),
    ],
)
def test_an_export_has_only_the_parts_of_an_unreadable_body_that_name_the_person(
    ledger: Ledger, body: str, part: str
) -> None:
    store(ledger, unreadable(make_accepted(ledger, [1_000_001]), body))
    [found] = ledger.persons.export("user_id", "eva", who="bert", why="asked", now=NOW)["post_backs"]
    assert found["body"] == part


def test_an_erasure_keeps_the_post_backs_that_another_receiver_stored_under_the_same_numbers(
    ledger: Ledger,
) -> None:
    key = make_accepted(ledger, [1_000_001, 1_000_002])
    store(ledger, post_back(key, "delivery", 1_000_002))
    store(ledger, post_back(key, "delivery", 1_000_001))
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    assert [each.device_id for each in stored_post_backs(ledger)] == [None, 1_000_001]


def test_post_backs_of_an_erased_person_that_wait_are_scrubbed_and_counted_later(ledger: Ledger) -> None:
    make_launch(ledger, [1_000_001, 1_000_002])
    send(ledger, KEY, None)  # a reply is awaited, so post-backs are parked
    (dispatch,) = ledger.dispatch_queries.of_launch(KEY)
    key = dispatch.dispatch_key
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    store(ledger, post_back(key, "delivery", 1_000_002), post_back(key, "delivery", 1_000_001))
    aggregate(ledger, now=NOW)
    assert named_in(ledger, integers([1_000_002])) == set()


def test_a_new_launch_leaves_the_erased_out(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3])
    forget(ledger, [2], identified_by="device_id", **ROWS)
    audience = suppression._without_erased(ledger, make_audience(integers([1, 2, 4])))
    assert list(audience.identifiers) == [1, 4]
    assert audience.dropped == {"erased": 1}
    assert audience.rows == len(audience.identifiers) + sum(audience.dropped.values())
    later = make_launch(ledger, [1, 4], audience=audience, name="later").launch_key
    assert ledger.launches.recipient(later, 2).sentence.startswith("not known: ")
    assert ledger.launches.recipient(later, 1).sentence.startswith("not sent yet")


def test_an_erasure_keeps_the_hours_at_which_others_opened(ledger: Ledger) -> None:
    parts = [Segment(integers([1_000_001])), Segment(integers([1_000_002, 1_000_003]))]
    make_launch(ledger, segments=parts)
    first, second = send(ledger, KEY, Accepted(200, 17), Accepted(200, 17))
    opens = ((first, 1_000_001), (second, 1_000_002), (second, 1_000_003))
    store(ledger, *(post_back(key, "open", who) for key, who in opens))
    aggregate(ledger, now=NOW)
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    with ledger._database.read() as db:
        rows = db.execute(sa.select(open_hours.c.dispatch_key, open_hours.c.identifiers)).all()
    assert {key: list(from_bytes("integer", people)) for key, people in rows} == {
        first: [1_000_001],
        second: [1_000_003],
    }


def test_the_same_number_in_another_column_is_another_person(ledger: Ledger) -> None:
    for column in ("device_id", "profile_id"):
        ledger.uploaded_lists.store(column, column, integers([1, 2]), "ada", NOW)
    forget(ledger, [2], identified_by="device_id", **ROWS)
    assert list(ledger.uploaded_lists.get("device_id")[1]) == [1]
    assert list(ledger.uploaded_lists.get("profile_id")[1]) == [1, 2]


def test_no_list_takes_an_erased_person_back(ledger: Ledger) -> None:
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    new = SuppressionChange("account", "device_id", "csv", "ada")
    assert ledger.suppressions.add(new, [1, 1_000_002], NOW) == 1
    planned = ledger.suppressions.planned(new, [1_000_002, 3], NOW)
    assert ledger.suppressions.replace(new, [1_000_002, 3], NOW, planned).added == 1
    ledger.uploaded_lists.store("staff", "device_id", integers([1, 1_000_002]), "ada", NOW)
    assert list(ledger.uploaded_lists.get("staff")[1]) == [1]
    assert named_in(ledger, integers([1_000_002])) == set()


def test_an_entry_that_comes_during_an_erasure_does_not_stay(ledger: Ledger) -> None:
    """The person is erased after the list asked who was erased, and before it stores the entry."""
    make_launch(ledger, [1, 2, 3])
    asked: list[str] = []

    def then_erase(column: str, texts: Sequence[str]) -> set[str]:
        found = ledger.erasures.among(column, texts)
        if not asked:
            forget(ledger, [2], identified_by="device_id", who="ann", reason="a letter", now=NOW)
        asked.extend(texts)
        return found

    overtaken = SuppressionList(ledger._database, then_erase)
    new = SuppressionChange("account", "device_id", "opt-out", "recipient")
    assert overtaken.add(new, [2], NOW) == 0
    assert asked == ["2", "2"]
    assert ledger.suppressions.of_person("device_id", 2) == []
    asked.clear()
    others = replace(new, source="crm", author="ann", reason="asked")
    planned = overtaken.planned(others, [1, 3], NOW)
    asked.clear()
    with pytest.raises(GateError, match="people were erased in the meantime"):
        SuppressionList(ledger._database, then_erase).replace(others, [1, 3], NOW, planned)
    assert ledger.suppressions.of_person("device_id", 1) == []
    asked.clear()

    def then_erase_three(_: str, people: Identifiers) -> Identifiers:
        found = ledger.erasures.in_set("device_id", people)
        if not asked:
            forget(ledger, [3], identified_by="device_id", who="ann", reason="a letter", now=NOW)
        asked.append("once")
        return found

    UploadedLists(ledger._database, then_erase_three).store(
        "staff", "device_id", integers([1, 2, 3]), "ann", NOW
    )
    assert list(ledger.uploaded_lists.get("staff")[1]) == [1]


def test_erased_people_are_found_among_identifiers(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET")
    assert ledger.erasures.among("device_id", ["1", "2"]) == set()  # it needs no secret yet
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", SECRET)
    forget(ledger, range(2, 3_000, 2), identified_by="device_id", **ROWS)
    forget(ledger, ["12", "ann"], identified_by="device_token", **ROWS)
    some = [str(each) for each in range(1, 1_500)]
    assert ledger.erasures.among("device_id", some) == set(some[1::2])
    assert ledger.erasures.among("device_id", ["002", "x", "", "9" * 5_000]) == {"002"}
    assert ledger.erasures.among("device_token", ["ann", "bob", "12", "2"]) == {"ann", "12"}
    assert ledger.erasures.among("user_id", ["ann", "2"]) == set()
    assert ledger.erasures.among("device_token", []) == set()
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET")
    with pytest.raises(SettingsError, match="people were erased from this ledger"):
        ledger.erasures.among("user_id", ["1"])


def test_a_receiver_that_cannot_recognise_erased_people_logs_that_at_its_start(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Ledger(migrated_url)) as ledger:
        forget(ledger, [2], identified_by="device_id", **ROWS)

    def start() -> list[str]:
        """Check the ledger as a receiver does, which goes on, and return what it logged."""
        caplog.clear()
        _check_ledger(load_settings(ledger_url=migrated_url))
        return caplog.messages

    assert start() == []
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", f"another {SECRET}")
    [line] = start()
    assert "stored without asking who was erased: SENDOFF_ERASURE_SECRET is not the secret that this" in line
    assert SECRET not in line
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET")
    [line] = start()
    assert "stored without asking who was erased: SENDOFF_ERASURE_SECRET is not set" in line


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("007", 7), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), ("0" * 30 + "7", 7)]
    + [(text, None) for text in ("", "0", "000", "-1", "+1", " 7", "7.0", "abc", "٣", "²", "9" * 5_000)],
)
def test_a_text_is_an_integer_identifier_or_not(text: str, number: int | None) -> None:
    assert as_integer(text) == number


def test_a_launch_that_was_planned_before_an_erasure_is_not_frozen(ledger: Ledger) -> None:
    version = ledger.erasures.version()
    forget(ledger, [2], identified_by="device_id", **ROWS)
    with pytest.raises(ConflictError, match="erased"):
        make_launch(ledger, [1, 2, 3], known_erasures=version)
    assert ledger.launches.find(KEY) is None


def test_a_run_of_post_backs_that_was_read_before_an_erasure_is_not_stored(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregation reads it again, so that the erased person does not come back with it."""
    make_launch(ledger, [1_000_001, 1_000_002])
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, post_back(key, "delivery", 1_000_001), post_back(key, "delivery", 1_000_002))
    store_run, calls = ledger.aggregates.store_run, []

    def late(run: Any) -> bool:
        if not calls:
            forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
        calls.append(run)
        return store_run(run)

    monkeypatch.setattr(ledger.aggregates, "store_run", late)
    aggregate(ledger, now=NOW)
    assert len(calls) == 2
    assert named_in(ledger, integers([1_000_002])) == set()


def test_verdicts_that_were_computed_before_an_erasure_are_not_stored(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_launch(ledger, [1_000_001, 1_000_002])
    send(ledger, KEY, Accepted(200, 17))
    store_verdicts, calls = ledger.verdicts.store, []

    def late(*given: Any, **how: Any) -> None:
        calls.append(given)
        if len(calls) == 1:
            forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
        store_verdicts(*given, **how)

    monkeypatch.setattr(ledger.verdicts, "store", late)
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.erased, figures.unaccounted_identifiers) == (1, 0)
    assert named_in(ledger, integers([1_000_002])) == set()


ONE, OTHER = [PEOPLE[at] for at in (2, 21, 32, 37)], [PEOPLE[at] for at in (3, 22, 33, 38)]
"""People in the same segments, in the control group and excluded, whom two requests erase."""


def requested(ledger: Ledger, people: list[Any], column: str = "device_id") -> int:
    named = ledger.erasures.named(column, people)
    return ledger.erasures.request(named, who="anna", why="asked", now=NOW).request


def finish(ledger: Ledger, request: int) -> None:
    while ledger.erasures.advance(request, NOW):
        pass


def make_reached(ledger: Ledger, kind: Kind) -> tuple[list[Any], int]:
    """Make a launch whose request left one recipient out and reached others, and request the erasure of some.

    Return these people, and the request: one was left out, one opened the message, and one is in the holdout.
    """
    people: list[Any] = list(PEOPLE[:5])
    if kind == "string":
        people = [f"person-{number}" for number in people]
    everyone = of_kind(kind, people)
    column = "device_id" if kind == "integer" else "user_id"
    left_out, opened, held_out = people[0], people[1], people[4]
    make_launch(
        ledger,
        segments=[Segment(everyone - of_kind(kind, [held_out]))],
        audience=make_audience(everyone),
        suppressed={"holdout": of_kind(kind, [held_out])},
    )
    new = SuppressionChange(EVERYTHING, column, "anna", "anna", "asked")
    ledger.suppressions.add(new, [str(left_out)], NOW)
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, post_back(key, "open", opened), post_back(key, "open", people[2]))
    gone = [left_out, opened, held_out]
    return gone, requested(ledger, gone, column)


def of_kind(kind: Kind, people: list[Any]) -> Identifiers:
    return integers(people) if kind == "integer" else strings(people)


@pytest.mark.parametrize("kind", ["integer", "string"])
def test_reports_during_an_erasure_add_up(ledger: Ledger, kind: Kind) -> None:
    _, request = make_reached(ledger, kind)
    erased_so_far = []
    while ledger.erasures.advance(request, NOW):
        figures = reconcile_launch(ledger, KEY, now=NOW)
        assert figures.unaccounted_identifiers == 0
        assert sum(figures.not_sent_because.values()) == figures.verdicts["not_sent"]
        erased_so_far.append(figures.erased)
    assert set(erased_so_far) == {3}
    assert reconcile_launch(ledger, KEY, now=NOW).verdicts["engaged"] == 1


@pytest.mark.promise("erased/gone")
@pytest.mark.parametrize("kind", ["integer", "string"])
@pytest.mark.parametrize("steps", range(6))
def test_verdicts_that_were_computed_during_an_erasure_name_no_one_whom_it_erases(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, kind: Kind, steps: int
) -> None:
    gone, request = make_reached(ledger, kind)
    for _ in range(steps):
        assert ledger.erasures.advance(request, NOW)
    store_verdicts, calls = ledger.verdicts.store, []

    def late(*given: Any, **how: Any) -> None:
        calls.append(given)
        if len(calls) == 1:
            finish(ledger, request)
        store_verdicts(*given, **how)

    monkeypatch.setattr(ledger.verdicts, "store", late)
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.erased, figures.unaccounted_identifiers) == (3, 0)
    sets = ledger.verdicts.sets(KEY)
    assert not any(who in people for who in gone for people in sets.values())


@pytest.mark.promise("erased/gone")
@pytest.mark.parametrize(
    "turn", [1, 3, *(pytest.param(turn, marks=pytest.mark.proof) for turn in (2, *range(4, 13)))]
)
def test_an_erasure_keeps_what_another_erased_before_any_of_its_changes(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    make_everything(ledger, integers(PEOPLE))
    one, other = requested(ledger, ONE), requested(ledger, OTHER)
    write, turns = ledger._database.write, []

    def after_the_other() -> Any:
        turns.append(1)
        if len(turns) == turn:
            finish(ledger, other)
        return write()

    monkeypatch.setattr(ledger._database, "write", after_the_other)
    finish(ledger, one)
    assert len(turns) > turn
    assert named_in(ledger, integers([*ONE, *OTHER])) == set()
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.erased, figures.unaccounted_identifiers) == (6, 0)


def test_a_request_of_your_own_loses_the_people_of_two_erasures_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"title": "Hi", "email": 1, "device_ids": [1_000_001, 1_000_002, 1_000_003]}
    prepare_request(
        ledger, NewRequest(body=body, mode="create", name="own", request_key="a"), period=PERIOD, now=NOW
    )
    one, other = requested(ledger, [1_000_002]), requested(ledger, [1_000_003])
    write, turns = ledger._database.write, []

    def after_the_other() -> Any:
        turns.append(1)
        if len(turns) == 1:
            finish(ledger, other)
        return write()

    monkeypatch.setattr(ledger._database, "write", after_the_other)
    finish(ledger, one)
    assert named_in(ledger, integers([1_000_002, 1_000_003])) == set()
    assert named_in(ledger, integers([1_000_001])) >= {("segments", "body")}


@pytest.mark.promise("erased/gone")
def test_erasures_of_several_threads_erase_all_people(ledger: Ledger) -> None:
    make_everything(ledger, integers(PEOPLE))
    parts = [list(PEOPLE)[start::4] for start in range(3)]
    requests = [requested(ledger, part) for part in parts]
    barrier = Barrier(len(parts), timeout=PATIENCE)

    def erase(request: int) -> None:
        barrier.wait()
        finish(ledger, request)

    with ThreadPoolExecutor(len(parts)) as threads:
        list(threads.map(erase, requests))
    assert named_in(ledger, integers([each for part in parts for each in part])) == set()
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.erased, figures.unaccounted_identifiers) == (27, 0)


def test_a_transaction_rewrites_few_segments_and_few_recipients() -> None:
    sizes = [10_000] * 5 + [60_000, 50_000, 1_000_000, 90_000] + [1] * 30
    runs = list(_runs(enumerate(sizes)))
    assert [number for run in runs for number, _ in run] == list(range(len(sizes)))
    assert [len(run) for run in runs] == [5, 1, 1, 1, 1, 10, 10, 10]


class BrokenOffError(Exception):
    """Stands for a killed process."""


@pytest.mark.promise("erased/gone")
@pytest.mark.parametrize(
    ("event", "step", "least"),
    [
        ("commit", 5, 5),  # what is in the ledger differs by its transactions alone
        pytest.param("commit", 1, 5, marks=pytest.mark.proof),
        ("before_cursor_execute", 31, 30),
        pytest.param("before_cursor_execute", 13, 30, marks=pytest.mark.proof),
    ],
)
def test_an_erasure_that_breaks_off_at_any_statement_is_finished_by_the_next(
    tmp_path: Path, migrated_file: Path, event: str, step: int, least: int
) -> None:
    gone = integers(GONE)
    expected = None
    full = shutil.copy(migrated_file, tmp_path / "full.db")
    with closing(Ledger(f"sqlite:///{full}")) as ledger:
        make_everything(ledger, integers(PEOPLE))
    for point in range(1, 2_000, step):
        file = Path(shutil.copy(full, tmp_path / f"{point}.db"))
        with closing(Ledger(f"sqlite:///{file}")) as ledger:
            erase = partial(forget, ledger, GONE, identified_by="device_id", **ROWS)
            ended = _ends_before(ledger, event, point, erase)
            if not ended and not ledger.erasures.pending():
                forget(ledger, GONE, identified_by="device_id", **ROWS)
            continue_erasures(ledger, now=NOW)
            assert named_in(ledger, gone) == set(), f"at {event} {point}"
            figures = ledger.verdicts.figures(KEY)
            found = (figures.audience, figures.erased, figures.unaccounted_identifiers, figures.verdicts)
            expected = expected or found
            assert found == expected, f"at {event} {point}"
        file.unlink()
        if ended:
            assert point > least
            return
    pytest.fail("the erasure never ended")


@pytest.mark.promise("erased/late")
def test_an_aggregation_that_breaks_off_at_any_statement_empties_late_post_backs_once(
    tmp_path: Path, migrated_file: Path
) -> None:
    full = shutil.copy(migrated_file, tmp_path / "full.db")
    with closing(Ledger(f"sqlite:///{full}")) as ledger:
        key = make_accepted(ledger, [1_000_001, 1_000_002])
        forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
        late = [unreadable(key, f'{{"device": {{"id": {device}}}') for device in (1_000_001, 1_000_002)]
        store(ledger, *late, post_back(key, "open", 1_000_001), post_back(key, "open", 1_000_002))
    for point in range(1, 200):
        file = Path(shutil.copy(full, tmp_path / f"{point}.db"))
        with closing(Ledger(f"sqlite:///{file}")) as ledger:
            ended = _ends_before(ledger, "before_cursor_execute", point, lambda: aggregate(ledger, now=NOW))
            aggregate(ledger, now=NOW)
            assert named_in(ledger, integers([1_000_002])) == set(), f"at {point}"
            assert len(named_in(ledger, integers([1_000_001]))) > 1
            figures = reconcile_launch(ledger, KEY, now=NOW)
            assert figures.post_backs == {"delivery": 2, "open": 2}, f"at {point}"
            assert (figures.anomalies["unreadable"], figures.anomalies["erased"]) == (2, 1), f"at {point}"
        if ended:
            assert point > 10
            return
    pytest.fail("the aggregation never ended")


def _ends_before(ledger: Ledger, event: str, point: int, act: Callable[[], object]) -> bool:
    """Do something and break off before a statement or a commit of changes. Return whether it ended before."""
    events, has_changed = 0, False

    def note(_db: sa.Connection, _cursor: object, text: str, *_: Any) -> None:
        nonlocal has_changed
        has_changed |= text.startswith(("INSERT", "UPDATE", "DELETE"))

    def interrupt(*_: Any) -> None:
        nonlocal events, has_changed
        if event == "commit" and not has_changed:
            return
        has_changed = False
        events += 1
        if events == point:
            raise BrokenOffError

    engine = ledger._database._engine
    sa.event.listen(engine, "before_cursor_execute", note)
    sa.event.listen(engine, event, interrupt)
    try:
        act()
    except BrokenOffError:
        return False
    finally:
        sa.event.remove(engine, event, interrupt)
        sa.event.remove(engine, "before_cursor_execute", note)
    return True


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25), deadline=None
)
@given(data=st.data())
def test_figures_add_up_whatever_is_erased_when(
    tmp_path: Path, migrated_file: Path, data: st.DataObject
) -> None:
    people = list(range(1, 13))
    file = shutil.copy(migrated_file, tmp_path / "ledger.db")
    with closing(Ledger(f"sqlite:///{file}")) as ledger:
        make_launch(
            ledger,
            segments=[Segment(part) for part in integers(people[:10]).slices(4)],
            audience=make_audience(integers(people)),
            suppressed={"holdout": integers(people[10:])},
        )
        keys = send(ledger, KEY, Accepted(200, 17), Accepted(200, 17))
        acts = data.draw(
            st.lists(st.sampled_from(["post back", "erase", "report", "aggregate"]), max_size=12)
        )
        for act in acts:
            if act == "post back":
                kind = data.draw(st.sampled_from(["delivery", "open"]))
                who = data.draw(st.sampled_from([*people, 99]))
                store(ledger, post_back(data.draw(st.sampled_from(keys)), kind, who))
            elif act == "erase":
                some = data.draw(st.lists(st.sampled_from([*people, 99]), min_size=1, max_size=4))
                forget(ledger, some, identified_by="device_id", **ROWS)
            elif act == "report":
                reconcile_launch(ledger, KEY, now=NOW)
            else:
                aggregate(ledger, now=NOW)
        figures = reconcile_launch(ledger, KEY, now=NOW)
        assert (figures.unaccounted_identifiers, figures.unaccounted_rows) == (0, 0)
        assert all(count >= 0 for count in figures.anomalies.values())
        assert sum(figures.not_sent_because.values()) == figures.verdicts["not_sent"]
        sent = sum(figures.post_backs.values())
        assert sent == sum(act == "post back" for act in acts)
    Path(file).unlink()


@pytest.mark.promise("erased/restored")
def test_a_restored_ledger_is_brought_up_to_date_from_the_log(ledger: Ledger, tmp_path: Path) -> None:
    log = tmp_path / "erasures.jsonl"
    make_everything(ledger, integers(PEOPLE))
    append_to_log(log, ledger.erasures.named("device_id", GONE).remembered, NOW)
    assert not any(str(each) in log.read_text() for each in GONE)
    assert log.stat().st_mode & 0o777 == 0o600
    done = replay_erasures(ledger, log, who="anna", now=NOW)
    assert done.people == len(GONE)
    assert named_in(ledger, integers(GONE)) == set()
    assert ledger.verdicts.figures(KEY).unaccounted_identifiers == 0
    assert replay_erasures(ledger, log, who="anna", now=NOW).people == 0


def test_people_are_erased_again_until_the_log_has_them(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has erased the first two, but the log has only the second of them."""
    asked = integers(GONE[:3])
    assert not erased_before(ledger, "device_id", asked)
    forget(ledger, GONE[:2], identified_by="device_id", **ROWS)
    assert list(erased_before(ledger, "device_id", asked)) == GONE[:2]
    log = tmp_path / "erasures.jsonl"
    monkeypatch.setenv("SENDOFF_ERASURE_LOG", str(log))
    assert not erased_before(ledger, "device_id", asked)
    append_to_log(log, ledger.erasures.named("device_id", GONE[1:2]).remembered, NOW)
    assert list(erased_before(ledger, "device_id", asked)) == [GONE[1]]
    assert not erased_before(ledger, "user_id", as_texts(GONE[:3]))


def test_an_opt_out_is_stored_although_no_one_can_tell_who_was_erased(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(ledger, GONE[:1], identified_by="device_id", **ROWS)
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET")
    signer = OptOutSigner("https://events.example.com", [SECRET])
    endpoint = OptOutEndpoint(ledger, signer, ReceiverCounts(), BodyReader(1), 5, lambda: NOW)
    scopes = ["account", "topic:news"]
    assert endpoint._add(OptOut(KEY, "topic:news", "device_id", "7"), scopes)
    assert [each.scope for each in ledger.suppressions.of_person("device_id", "7")] == scopes


def test_lines_that_were_cut_off_do_not_make_a_log_unreadable(ledger: Ledger, tmp_path: Path) -> None:
    first, second = (ledger.erasures.named("device_id", [each]).remembered for each in GONE[:2])
    log = tmp_path / "erasures.jsonl"
    append_to_log(log, second, NOW)
    for cut in range(1, log.stat().st_size):
        log.unlink()
        append_to_log(log, first, NOW)
        append_to_log(log, second, NOW)
        os.truncate(log, log.stat().st_size - cut)  # a crash, or a full disk
        left = [*first, *second] if cut == 1 else [*first]
        assert list(read_log(log)) == left
        append_to_log(log, second, NOW)
        append_to_log(log, first, NOW)
        assert list(read_log(log)) == [*left, *second, *first]


def test_marks_of_an_editor_and_of_a_power_failure_do_not_make_a_log_unreadable(
    ledger: Ledger, tmp_path: Path
) -> None:
    """An editor may put a byte order mark first. A file system may fill lost bytes with NUL."""
    first, second = (ledger.erasures.named("device_id", [each]).remembered for each in GONE[:2])
    log = tmp_path / "erasures.jsonl"
    append_to_log(log, first, NOW)
    whole = log.read_bytes()
    for changed in (codecs.BOM_UTF8 + whole, whole + bytes(99), whole + whole[:9] + bytes(99)):
        log.write_bytes(changed)
        assert list(read_log(log)) == [*first]
        append_to_log(log, second, NOW)
        assert list(read_log(log)) == [*first, *second]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8"])
def test_a_file_of_another_encoding_is_no_erasure_log(ledger: Ledger, tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "erasures.jsonl"
    append_to_log(log, ledger.erasures.named("device_id", GONE[:1]).remembered, NOW)
    log.write_bytes(log.read_text().encode(encoding) + (b"\xfc" if encoding == "utf-8" else b""))
    why = "(the text is not UTF-8|line 1: this is no line of an erasure log). Give the file of SENDOFF_ERASURE_LOG"
    with pytest.raises(SettingsError, match=why):
        replay_erasures(ledger, log, who="anna", now=NOW)


@pytest.mark.parametrize("line", ["device_id,user_id", '{"identified_by": "device_id"}', "{}", "["])
@pytest.mark.parametrize("end", ["", "\n"])
def test_another_file_is_no_erasure_log(tmp_path: Path, line: str, end: str) -> None:
    file = tmp_path / "people.csv"
    file.write_text(f"{line}{end}")
    with pytest.raises(SettingsError, match="line 1: this is no line of an erasure log"):
        list(read_log(file))


def test_a_log_is_not_replayed_with_another_secret_than_its_own(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "erasures.jsonl"
    make_launch(ledger, [1, 2, 3])
    append_to_log(log, ledger.erasures.named("device_id", [2]).remembered, NOW)
    assert SECRET not in log.read_text()
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", f"another {SECRET}")
    with pytest.raises(SettingsError, match="is not the secret that the erasure log was written with"):
        replay_erasures(ledger, log, who="anna", now=NOW)
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", SECRET)
    assert replay_erasures(ledger, log, who="anna", now=NOW).people == 1
    assert list(ledger.launches.audience(KEY)) == [1, 3]


def test_an_empty_log_does_not_decide_the_secret(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "erasures.jsonl"
    log.touch()
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", f"another {SECRET}")
    assert replay_erasures(ledger, log, who="anna", now=NOW).people == 0
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", SECRET)
    assert forget(ledger, [2], identified_by="device_id", **ROWS).people == 1


def test_with_another_secret_nothing_is_written_to_the_log(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "erasures.jsonl"
    monkeypatch.setenv("SENDOFF_ERASURE_LOG", str(log))
    forget(ledger, [2], identified_by="device_id", **ROWS)
    before = log.read_text()
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", f"another {SECRET}")
    with pytest.raises(SettingsError, match="is not the secret that this ledger"):
        forget(ledger, [3], identified_by="device_id", **ROWS)
    assert log.read_text() == before


@pytest.mark.parametrize(
    ("body", "column", "person"),
    [
        ('{"title":"Hi","email":1,"device_ids":[1000001,1000002]}', "device_id", "1000002"),
        ('{"title":"Hi","email":1,"device_ids":["1000001","01000002"]}', "device_id", "1000002"),
        ('{"title":"Hi","email":1,"external_ids":["ann","customer 17/b"]}', "external_id", "customer 17/b"),
        ('{"title":"Hi","email":1,"external_ids":["ann","\\u00C9va"]}', "external_id", "Éva"),
        (
            '{"title":"Hi eva@example.com!","email":1,"external_ids":["ann"]}',
            "external_id",
            "eva@example.com",
        ),
        ('{"title":"Hi","email":1,"broadcast":1,"tags":{"x":{"eva":[1]}}}', "user_id", "eva"),
        (
            json.dumps(
                {"title": "\0", "email": 1, "broadcast": 1, "message": f"Hi eva{' and' * LONGEST_TEXT}"}
            ),
            "user_id",
            "eva",
        ),
    ],
)
def test_a_replay_finds_people_in_requests_of_your_own(
    ledger: Ledger, tmp_path: Path, body: str, column: str, person: str
) -> None:
    log = tmp_path / "erasures.jsonl"
    request = NewRequest(body=body, mode="create", name="own", request_key="a")
    launch = prepare_request(ledger, request, period=PERIOD, now=NOW)
    with ledger._database.write() as db:  # the person is in the body only
        db.execute(sa.update(segments).values(identifiers=None, size=0))
    append_to_log(log, ledger.erasures.named(column, [person]).remembered, NOW)
    assert replay_erasures(ledger, log, who="anna", now=NOW).people == 1
    with ledger._database.read() as db:
        stored = json.loads(db.scalar(sa.select(segments.c.body)) or b"")
    assert person not in json.dumps(stored, ensure_ascii=False)
    assert replay_erasures(ledger, log, who="anna", now=NOW).people == 0
    assert ledger.launches.get(launch.launch_key)


def test_a_replay_finds_people_in_unreadable_post_backs(ledger: Ledger, tmp_path: Path) -> None:
    log = tmp_path / "erasures.jsonl"
    make_launch(ledger, [1])
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, unreadable(key, '{"user_id": "eva", "broken'), unreadable(key, "device 1000002"))
    append_to_log(log, ledger.erasures.named("user_id", ["eva"]).remembered, NOW)
    append_to_log(log, ledger.erasures.named("device_id", [1_000_002]).remembered, NOW)
    assert replay_erasures(ledger, log, who="anna", now=NOW).people == 2
    assert [each.body for each in stored_post_backs(ledger)] == [b"", b""]


def test_each_erasure_is_in_the_log_before_anything_else_happens(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "missing" / "erasures.jsonl"
    monkeypatch.setenv("SENDOFF_ERASURE_LOG", str(log))
    with pytest.raises(SettingsError, match="Nothing was erased"):
        forget(ledger, [5], identified_by="device_id", **ROWS)
    assert ledger.erasures.pending() == []
    log.parent.mkdir()
    forget(ledger, [5], identified_by="device_id", **ROWS)
    assert len(log.read_text().splitlines()) == 1


def test_an_erasure_without_a_log_warns_and_can_be_repeated_with_one(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    assert continue_erasures(ledger).people == 0
    assert caplog.messages == []
    forget(ledger, [5], identified_by="device_id", **ROWS)
    (warning,) = caplog.messages
    assert "there is no erasure log" in warning
    assert "Set SENDOFF_ERASURE_LOG" in warning
    request_erasure(ledger, [6], identified_by="device_id", **ROWS)  # as the page does
    caplog.clear()
    assert continue_erasures(ledger).people == 1  # as the DAG sendoff_maintenance does
    assert caplog.messages == [warning]
    caplog.clear()
    log = tmp_path / "erasures.jsonl"
    monkeypatch.setenv("SENDOFF_ERASURE_LOG", str(log))
    forget(ledger, [5, 6], identified_by="device_id", **ROWS)
    assert caplog.messages == []
    assert len(log.read_text().splitlines()) == 2


def test_a_request_that_is_claimed_before_an_erasure_is_carried_out_leaves_the_person_out(
    ledger: Ledger,
) -> None:
    make_launch(ledger, [1, 2, 3])
    request_erasure(ledger, [2], identified_by="device_id", **ROWS)
    claim = claimed(ledger)
    assert list(claim.content.identifiers or ()) == [1, 3]


def test_the_audit_log_names_the_act_and_not_the_person(ledger: Ledger) -> None:
    make_everything(ledger, integers(PEOPLE))
    ledger.persons.export("device_id", GONE[0], who="bert", why="asked", now=NOW)
    forget(ledger, GONE, identified_by="device_id", **ROWS)
    with ledger._database.read() as db:
        rows = db.execute(sa.select(decisions).order_by(decisions.c.id)).all()
    acts = [row for row in rows if row.kind in ("exported", "erasure_requested", "erased")]
    assert [(row.kind, row.who) for row in acts] == [
        ("exported", "bert"),
        ("erasure_requested", "anna"),
        ("erased", "anna"),
    ]
    assert acts[1].detail == {"request": 1, "people": 4, "identified_by": "device_id"}


def test_an_export_has_no_values_of_others_if_the_person_is_erased_meanwhile(ledger: Ledger) -> None:
    make_everything(ledger, integers(PEOPLE))
    launch, person = ledger.launches.get(KEY), GONE[0]
    segment = ledger.launches.recipient(KEY, person).segment  # what an export reads first
    assert ledger.persons._values(launch, segment, person) == {"name": f"name of {person}"}
    forget(ledger, GONE, identified_by="device_id", **ROWS)
    assert ledger.persons._values(launch, segment, person) is None


def test_the_export_has_everything_about_one_person(ledger: Ledger) -> None:
    make_everything(ledger, integers(PEOPLE))
    found = ledger.persons.export("device_id", GONE[0], who="bert", why="asked", now=NOW)
    (launch,) = found["launches"]
    assert launch["template_values"] == {"name": f"name of {GONE[0]}"}
    assert launch["groups"] == {"platform": ["email"]}
    assert launch["status"]["verdict"] == "engaged"
    kinds = [each["kind"] for each in found["post_backs"] if each["readable"]]
    assert kinds == ["delivery", "open", "delivery", "open"]
    assert found["lists"] == ["complained"]
    assert [each["scope"] for each in found["suppressions"]] == ["topic:news"]
    json.dumps(found)
    no_one = ledger.persons.export("device_id", 5, who="bert", why="asked", now=NOW)
    assert not any(no_one[name] for name in ("launches", "post_backs", "lists", "suppressions"))


def test_the_export_of_an_erased_person_says_that_a_hash_is_kept(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(ledger, ["7"], identified_by="device_token", **ROWS)
    who: dict[str, Any] = {"who": "bert", "why": "asked", "now": NOW}
    assert (
        ledger.persons.export("device_token", "007", **who)["erased_at"] == NOW.isoformat()
    )  # a number in audiences
    assert ledger.persons.export("device_token", "8", **who)["erased_at"] is None
    assert ledger.persons.export("user_id", "7", **who)["erased_at"] is None
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET")
    with pytest.raises(SettingsError, match="SENDOFF_ERASURE_SECRET is not set"):
        ledger.persons.export("device_token", "7", **who)


@pytest.mark.parametrize("kind", ["integer", "string"])
def test_an_export_searches_every_place_that_an_erasure_empties(ledger: Ledger, kind: Kind) -> None:
    """A place that only one of the two knows fails this test, or the one that decodes all values after an erasure."""
    people, column = (integers(PEOPLE), "device_id") if kind == "integer" else (as_texts(PEOPLE), "user_id")
    make_everything(ledger, people)
    person = list(people)[2]
    refuse(ledger, _of(people, [person]))
    body = {
        "title": "Hi",
        "email": 1,
        **({"device_ids": [5]} if kind == "integer" else {"external_ids": ["ann"]}),
        "data": [{"other": 1}, {"who": person, "city": "Rome"}],
    }
    request = NewRequest(body=body, mode="create", name="own", request_key="a")
    own = prepare_request(ledger, request, period=PERIOD, now=NOW).launch_key
    requested(ledger, [person], column)
    places = set()
    for each in (
        list(people)[21],
        list(people)[34],
        list(people)[10],
        person,
    ):  # withheld at a claim, held out, opened at some hour, and in the request
        found = ledger.persons.export(column, each, who="bert", why="asked", now=NOW)
        held = {tuple(place.split(".")) for place in found["held_in"]}
        assert held == named_in(ledger, _of(people, [each])) - {("erasure_queue", "number")}
        places |= held
    assert places == HANDLED - {("erasure_queue", "number")}
    (about,) = (each for each in found["launches"] if each["launch_key"] == own)
    assert about["requests"] == [{"segment": 1, "body": {"data": [{"who": person, "city": "Rome"}]}}]
    assert [each["why"] for each in found["erasures"]] == ["asked"]
    assert f"broken {person}" in [each["body"] for each in found["post_backs"]]
    others = {str(each) for each in people} - {str(person)}
    assert not any(other in json.dumps(found) for other in others)


def test_an_export_finds_a_person_whom_the_service_chose_after_post_backs_were_deleted(
    ledger: Ledger,
) -> None:
    make_launch(ledger)
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, post_back(key, "open", 1_000_002))
    reconcile_launch(ledger, KEY, now=NOW)
    with ledger._database.write() as db:
        db.execute(sa.delete(post_backs))
    found = ledger.persons.export("device_id", 1_000_002, who="bert", why="asked", now=NOW)
    (launch,) = found["launches"]
    assert {"in": "dispatch_totals.engaged", "dispatch_key": key} in launch["named_in"]
    assert {"in": "verdicts.identifiers", "verdict": "engaged"} in launch["named_in"]


def test_without_the_secret_nothing_is_erased_prepared_or_aggregated(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET")
    with pytest.raises(SettingsError, match="SENDOFF_ERASURE_SECRET is not set"):
        forget(ledger, [2], identified_by="device_id", **ROWS)
    aggregate(ledger)  # no one was erased, so no secret is needed
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", SECRET)
    forget(ledger, [2], identified_by="device_id", **ROWS)
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET")
    with pytest.raises(SettingsError, match="people were erased from this ledger"):
        aggregate(ledger)
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", f"another {SECRET}")
    with pytest.raises(SettingsError, match="is not the secret that this ledger"):
        aggregate(ledger)
    with pytest.raises(SettingsError, match="is not the secret that this ledger"):
        forget(ledger, [3], identified_by="device_id", **ROWS)
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "short")
    with pytest.raises(SettingsError, match="at least 32 characters"):
        aggregate(ledger)


@pytest.mark.parametrize("wrong", ["", "  ", "abc", "0", "-1", "000", "9" * 30, "9" * 5_000])
def test_an_identifier_that_cannot_be_one_is_an_error_that_does_not_quote_it(
    ledger: Ledger, wrong: str
) -> None:
    with pytest.raises(AudienceError, match="identifier 1 is") as error:
        forget(ledger, [wrong], identified_by="device_id", **ROWS)
    assert not wrong.strip() or f"{wrong!r}" not in str(error.value)
    assert ledger.erasures.pending() == []


@pytest.mark.parametrize("odd", ["a\0b", "x" * (LONGEST_TEXT + 1)])
def test_a_text_that_cannot_be_stored_is_an_error_that_does_not_quote_it(ledger: Ledger, odd: str) -> None:
    for act in (
        lambda: forget(ledger, ["ann", odd], identified_by="user_id", **ROWS),
        lambda: ledger.persons.export("user_id", odd, who="bert", why="asked", now=NOW),
    ):
        with pytest.raises(AudienceError, match=r"identifier \d is longer than 1,000 bytes") as error:
            act()
        assert odd not in str(error.value)
    assert ledger.erasures.pending() == []


def test_white_space_around_the_identifier_of_a_person_does_not_matter(ledger: Ledger) -> None:
    audience = build_audience([pa.record_batch({"user_id": ["ann  ", "bob  "]})])  # as CHAR(5) returns it
    make_launch(ledger, audience.identifiers, audience=audience)
    assert forget(ledger, ["ann", " ann", "ann  "], identified_by="user_id", **ROWS).people == 1
    assert list(ledger.launches.audience(KEY)) == ["bob"]
    found = ledger.persons.export("user_id", "bob  ", who="bert", why="asked", now=NOW)
    assert (found["identifier"], len(found["launches"])) == ("bob", 1)


def test_leading_zeros_of_a_device_id_do_not_matter(ledger: Ledger) -> None:
    make_launch(ledger, [7, 8])
    assert forget(ledger, ["007", " 7 ", 7], identified_by="device_id", **ROWS).people == 1
    assert list(ledger.launches.audience(KEY)) == [8]
    found = ledger.persons.export("device_id", "008", who="bert", why="asked", now=NOW)
    assert (found["identifier"], len(found["launches"])) == ("8", 1)


def test_people_of_an_unknown_column_are_an_error(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="found column device"):
        forget(ledger, [7], identified_by="device", **ROWS)
    with pytest.raises(UsageError, match="found column device"):
        ledger.persons.export("device", 7, who="bert", why="asked", now=NOW)


def test_a_request_of_your_own_loses_a_device_id_with_leading_zeros(ledger: Ledger) -> None:
    body = {"title": "Hi", "email": 1, "device_ids": ["01000001", "01000002"]}
    request = NewRequest(body=body, mode="create", name="own", request_key="a")
    launch = prepare_request(ledger, request, period=PERIOD, now=NOW)
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    claim = claimed(ledger, launch.launch_key)
    assert json.loads(claim.content.body or b"")["device_ids"] == ["01000001"]


def test_a_request_of_your_own_loses_a_person_whose_letters_are_escaped(ledger: Ledger) -> None:
    body = '{"title":"Hi","email":1,"external_ids":["ann","\\u00C9va"]}'
    request = NewRequest(body=body, mode="create", name="own", request_key="a")
    launch = prepare_request(ledger, request, period=PERIOD, now=NOW)
    forget(ledger, ["Éva"], identified_by="external_id", **ROWS)
    claim = claimed(ledger, launch.launch_key)
    assert json.loads(claim.content.body or b"")["external_ids"] == ["ann"]


def test_a_request_of_your_own_loses_the_person_and_stays_the_same_request(ledger: Ledger) -> None:
    body = {"title": "Hi", "email": 1, "device_ids": [1_000_001, 1_000_002]}
    request = NewRequest(body=body, mode="create", name="own", request_key="a")
    launch = prepare_request(ledger, request, period=PERIOD, now=NOW)
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    assert named_in(ledger, integers([1_000_002])) == set()
    again = prepare_request(ledger, request, period=PERIOD, now=NOW)
    assert again.launch_key == launch.launch_key
    claim = claimed(ledger, launch.launch_key)
    assert json.loads(claim.content.body or b"")["device_ids"] == [1_000_001]


@pytest.mark.parametrize("recipients", [[1_000_002], [1_000_001, 1_000_002]])
def test_a_request_of_your_own_that_names_the_person_elsewhere_is_not_made(
    ledger: Ledger, recipients: list[int]
) -> None:
    body = {"title": "Hi 1000002", "email": 1, "device_ids": recipients}
    request = NewRequest(body=body, mode="create", name="own", request_key="a")
    launch = prepare_request(ledger, request, period=PERIOD, now=NOW)
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    assert ledger.dispatches.claim(launch.launch_key, worker="w", now=NOW, lease=LEASE) is None
    assert ledger.dispatch_queries.states(launch.launch_key) == {DispatchState.SUPPRESSED: 1}
    figures = reconcile_launch(ledger, launch.launch_key, now=NOW)
    assert (figures.erased, figures.unaccounted_identifiers) == (1, 0)


IN_LANGUAGE = ["tags_attribute", "=", "language", ["value", "=", "en"]]


def own(ledger: Ledger, body: dict[str, Any], mode: Any = "create", **more: Any) -> str:
    request = NewRequest(body=body, mode=mode, name="own", request_key="a")
    return prepare_request(ledger, request, period=PERIOD, now=NOW, **more).launch_key


def stored_body(ledger: Ledger) -> dict[str, Any]:
    with ledger._database.read() as db:
        found: dict[str, Any] = json.loads(db.scalar(sa.select(segments.c.body)) or b"")
    return found


@pytest.mark.promise("erased/gone")
@pytest.mark.parametrize(
    ("members", "column", "person"),
    [
        ({"segment_ids": [17], "conditions": {"operator": "AND", "0": IN_LANGUAGE}}, "user_id", "17"),
        ({"segment_ids": [17, 18]}, "device_id", "17"),
        ({"segment_ids": [9], "send_type": 2, "send_days": [1, 2, 3, 17]}, "user_id", "17"),
        ({"device_ids": [1001, 1002]}, "user_id", "1001"),
        ({"device_ids": [5], "locations": [5, 17], "email_address_id": 17}, "device_id", "17"),
        ({"broadcast": 1, "web_push": 1, "send_type": 1}, "user_id", "1"),
        ({"broadcast": 1, "conditions": {"0": IN_LANGUAGE, "1": IN_LANGUAGE}}, "user_id", "1"),
        ({"broadcast": 1, "messages": {"1": {"push_text": "Hi", "url_browser": 1}}}, "user_id", "1"),
        ({"external_ids": ["eva"]}, "user_id", "eva"),
        ({"external_ids": ["eva smith"]}, "external_id", "eva"),
        ({"broadcast": 1, "send_date": "2027-03-17", "send_time": "17:00"}, "user_id", "17"),
        ({"broadcast": 1, "push_text": "until 2027-03-17, annabel"}, "user_id", "17"),
        ({"broadcast": 1, "push_text": "until 2027-03-17, annabel"}, "user_id", "ann"),
        ({"broadcast": 1, "email": 1}, "user_id", "email"),
    ],
)
def test_a_request_of_your_own_that_does_not_name_the_person_keeps_its_recipients(
    ledger: Ledger, members: dict[str, Any], column: str, person: str
) -> None:
    body = {"title": "Hi", **({"send_time": "09:00", "send_date": "2027-01-01"} | members)}
    key = own(ledger, body)
    forget(ledger, [person], identified_by=column, **ROWS)
    assert stored_body(ledger) == body
    assert ledger.dispatch_queries.states(key) == {DispatchState.PLANNED: 1}
    assert reconcile_launch(ledger, key, now=NOW).erased == 0
    held = ledger.persons.export(column, person, who="bert", why="asked", now=NOW)["held_in"]
    assert held == []
    assert ledger.erasures.count_known(ledger.erasures.named(column, [person])) == 0


@pytest.mark.promise("erased/gone")
@pytest.mark.parametrize(
    "members",
    [
        {"device_ids": [17], "conditions": {"operator": "AND", "0": IN_LANGUAGE}},
        {"device_ids": [17], "external_ids": ["eva"]},
        {"segment_ids": [9], "conditions": {"operator": "AND", "0": ["device_id", "=", 17]}},
        {"broadcast": 1, "push_text": "Hi 17"},
        {"broadcast": 1, "push_text_languages": {"en": "Hi 17"}},
        {"broadcast": 1, "webhook_open": "https://example.com/17/open"},
        {"broadcast": 1, "payload_add": [{"key": "who", "value": 17}]},
        {
            "broadcast": 1,
            "messages": {"8": {"webhook": {"url": "https://x.example", "request_headers": "A: 17"}}},
        },
        {"broadcast": 1, "people": {"17": 1}},
        {"device_ids": [5, 17], "data": [{"who": 17}]},
    ],
)
def test_a_request_of_your_own_is_not_made_if_it_cannot_go_without_the_person_alone(
    ledger: Ledger, members: dict[str, Any]
) -> None:
    key = own(ledger, {"title": "Hi", **members})
    assert ledger.persons.export("device_id", 17, who="bert", why="asked", now=NOW)["launches"]
    forget(ledger, [17], identified_by="device_id", **ROWS)
    assert stored_body(ledger) == {}
    assert ledger.dispatch_queries.states(key) == {DispatchState.SUPPRESSED: 1}


def in_webhook(data: Any) -> dict[str, Any]:
    return {"broadcast": 1, "messages": {"8": {"webhook": {"request_body_data": {"json": json.dumps(data)}}}}}


@pytest.mark.promise("erased/gone")
@pytest.mark.parametrize(
    ("members", "column", "person"),
    [
        (in_webhook({"u": "jürgen"}), "user_id", "jürgen"),
        (in_webhook({"u": "Order of\neva"}), "user_id", "eva"),
        ({"broadcast": 1, "push_picture": "https://cdn.example/cust-42.png"}, "user_id", "cust-42"),
        ({"broadcast": 1, "push_text": "Dear cust-42.Thanks"}, "user_id", "cust-42"),
        ({"segment_ids": [9], "external_ids": ["a", {"id": "17"}]}, "external_id", "17"),
        ({"segment_ids": [9], "external_ids": ["a,17"]}, "external_id", "17"),
        ({"broadcast": 1, "messages": {"9": {"sms": "Hi eva"}}}, "user_id", "eva"),
        ({"broadcast": 1, "messages": {"8": {"webhook": [{"url": "https://x/eva"}]}}}, "user_id", "eva"),
        ({"broadcast": 1, "conditions": {"operator": "AND", "user_id": {"eva": 1}}}, "user_id", "eva"),
        ({"broadcast": 1, "encryption": "eva"}, "user_id", "eva"),
    ],
)
def test_a_person_is_found_in_any_shape_that_a_request_of_your_own_may_have(
    ledger: Ledger, members: dict[str, Any], column: str, person: str
) -> None:
    own(ledger, {"title": "Hi", **members})
    assert ledger.erasures.count_known(ledger.erasures.named(column, [person])) == 1
    forget(ledger, [person], identified_by=column, **ROWS)
    assert stored_body(ledger) == {}


def test_a_target_of_unknown_kind_is_searched(ledger: Ledger) -> None:
    names = FieldNames({"target_by_user_id": "id", "target_by_device_id": "device_id"})
    target = {"id": 3, "target_by": "id", "target": ["eva", "bob"], "conditions": {"0": IN_LANGUAGE}}
    own(ledger, target, "execute", names=names)
    forget(ledger, ["eva"], identified_by="user_id", **ROWS)
    assert stored_body(ledger) == {}


def test_a_request_with_half_a_character_loses_the_person_too(ledger: Ledger) -> None:
    body = '{"title":"Hi","push_text":"x\\ud83d","device_ids":[5,17]}'
    request = NewRequest(body=body, mode="create", name="own", request_key="a")
    prepare_request(ledger, request, period=PERIOD, now=NOW)
    forget(ledger, [17], identified_by="device_id", **ROWS)
    with ledger._database.read() as db:
        assert db.scalar(sa.select(segments.c.body)) == body.replace(",17", "").encode()


def test_of_tokens_that_are_the_same_number_one_is_erased(ledger: Ledger) -> None:
    key = own(ledger, {"title": "Hi", "device_tokens": ["017", "17", "5"]})
    forget(ledger, ["17"], identified_by="device_token", **ROWS)
    assert stored_body(ledger)["device_tokens"] == ["017", "5"]
    assert sorted(ledger.launches.audience(key)) == ["017", "5"]


@pytest.mark.promise("erased/gone")
@pytest.mark.parametrize(
    ("mode", "members", "left"),
    [
        ("create", {"id": [5, 17], "locations": [3]}, {"id": [5]}),
        ("create", {"device_ids": [5, 17], "locations": [5, 17]}, {"device_ids": [5]}),
        ("create", {"devices": [5, 17], "locations": [5, 17]}, {"devices": [5]}),
        ("create", {"device_ids": [5, 17], "external_ids": ["17"]}, {"device_ids": [5]}),
        ("execute", {"target_by": "id", "target": [5, 17], "params": {"a": 4}}, {"target": [5]}),
        (
            "execute",
            {"target_by": "id", "target_with_params": {"5": {"a": 4}, "17": {"a": 17}}},
            {"target_with_params": {"5": {"a": 4}}},
        ),
    ],
)
def test_a_request_of_your_own_loses_the_person_in_its_list_of_recipients_only(
    ledger: Ledger, mode: str, members: dict[str, Any], left: dict[str, Any]
) -> None:
    names = {name: FieldNames({"device_ids": name}) for name in ("devices", "id") if name in members}
    key = own(ledger, {"title": "Hi", **members}, mode, names=next(iter(names.values()), None))
    (launch,) = ledger.persons.export("device_id", 17, who="bert", why="asked", now=NOW)["launches"]
    assert list(launch["requests"][0]["body"]) == list(left)
    forget(ledger, [17], identified_by="device_id", **ROWS)
    assert stored_body(ledger) == {"title": "Hi", **members, **left}
    assert ledger.dispatch_queries.states(key) == {DispatchState.PLANNED: 1}
    assert reconcile_launch(ledger, key, now=NOW).unaccounted_identifiers == 0


@pytest.mark.parametrize("decided", ["before", "after"])
def test_a_doubt_is_written_off_if_its_request_of_your_own_can_no_longer_be_made(
    ledger: Ledger, decided: str
) -> None:
    key = own(ledger, {"title": "Hi", "push_text": "Hi user-17", "segment_ids": [9]})
    [dispatch] = send(ledger, key, InDoubt("lost"))
    if decided == "before":
        resolve(ledger, dispatch, Resolution.RESEND, "ann", "not seen", now=NOW)
    forget(ledger, ["user-17"], identified_by="user_id", **ROWS)
    if decided == "after":
        resolve(ledger, dispatch, Resolution.RESEND, "ann", "not seen", now=NOW)
    assert ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE) is None
    assert ledger.dispatch_queries.states(key) == {DispatchState.WRITTEN_OFF: 1}


def test_a_sent_request_of_your_own_stays_sent_if_nothing_of_its_body_is_left(ledger: Ledger) -> None:
    body = {"title": "Hi 1000002", "email": 1, "device_ids": [1_000_001, 1_000_002]}
    request = NewRequest(body=body, mode="create", name="own", request_key="a")
    launch = prepare_request(ledger, request, period=PERIOD, now=NOW)
    send(ledger, launch.launch_key, Accepted(200, 17))
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    assert ledger.dispatch_queries.states(launch.launch_key) == {DispatchState.ACCEPTED: 1}


def test_people_whom_the_service_chose_are_erased_from_its_post_backs(ledger: Ledger) -> None:
    make_launch(ledger)
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, post_back(key, "delivery", 1_000_001), post_back(key, "open", 1_000_002))
    reconcile_launch(ledger, KEY, now=NOW)
    forget(ledger, [1_000_002], identified_by="device_id", **ROWS)
    store(ledger, post_back(key, "delivery", 1_000_002, at=NOW + timedelta(minutes=1)))
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.audience, figures.erased, figures.verdicts["delivered"]) == (2, 1, 1)
    assert figures.unaccounted_identifiers == 0
    assert named_in(ledger, integers([1_000_002])) == set()


def test_erasing_again_changes_nothing(ledger: Ledger) -> None:
    make_everything(ledger, integers(PEOPLE))
    forget(ledger, GONE, identified_by="device_id", **ROWS)
    before = ledger.verdicts.figures(KEY)
    assert forget(ledger, GONE, identified_by="device_id", **ROWS).reports == 0
    assert ledger.verdicts.figures(KEY) == before


def test_erasing_no_one_is_no_request(ledger: Ledger) -> None:
    erased = forget(ledger, [], identified_by="device_id", **ROWS)
    assert (erased.requests, erased.people, erased.reports) == (0, 0, 0)
    assert ledger.erasures.people().version == 0


@pytest.mark.promise("erased/bytes")
def test_the_files_of_sqlite_have_no_byte_of_the_person_after_reclaiming(
    tmp_path: Path, migrated_file: Path
) -> None:
    gone = as_texts(GONE)
    file = Path(shutil.copy(migrated_file, tmp_path / "ledger.db"))
    with closing(Ledger(f"sqlite:///{file}")) as ledger:
        make_everything(ledger, as_texts(PEOPLE))
        ledger.suppressions.add(
            SuppressionChange("account", "user_id", source="csv", author="anna"), list(gone), NOW
        )
        assert any(_bytes_of(file, gone))
        forget(ledger, gone, identified_by="user_id", **ROWS)
        ledger.erasures.reclaim()
        assert list(_bytes_of(file, gone)) == []
        assert list(_bytes_of(file, as_texts([PEOPLE[5]])))  # the search finds someone who stays


def _bytes_of(file: Path, people: Identifiers) -> Iterator[str]:
    """Yield the names of the files that contain a text, plain or in a compressed set."""
    for name in ("", "-wal"):
        path = file.with_name(file.name + name)
        content = path.read_bytes() if path.exists() else b""
        for person in people:
            if str(person).encode() in content:
                yield path.name


def test_reclaiming_rewrites_the_tables_of_postgresql(ledger: Ledger) -> None:
    if ledger.name.startswith("sqlite"):
        pytest.skip("on PostgreSQL")
    make_everything(ledger, integers(PEOPLE))
    forget(ledger, GONE, identified_by="device_id", **ROWS)
    storage = sa.text(
        "SELECT attrelid::regclass::text, attname, attstorage FROM pg_attribute JOIN pg_class c ON c.oid = attrelid "
        "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') ORDER BY 1, 2"
    )
    before = ledger._database.rows(storage)
    statements = ledger.erasures.reclaim()
    rewritten = {each.split()[-1] for each in statements if each.startswith("VACUUM (FULL, ANALYZE) ")}
    assert rewritten == {table.name for table in TABLES}
    assert named_in(ledger, integers([PEOPLE[5]]))
    assert ledger._database.rows(storage) == before


def test_the_statistics_of_postgresql_have_no_sample_of_the_person_after_reclaiming(ledger: Ledger) -> None:
    """ANALYZE keeps the statistics of a table that became empty, such as the queue after an erasure."""
    if ledger.name.startswith("sqlite"):
        pytest.skip("on PostgreSQL")
    people = [f"ann-{number}@example.org" for number in range(50)]
    change = SuppressionChange("account", "user_id", source="csv", author="anna")
    ledger.suppressions.add(change, people, NOW)
    request_erasure(ledger, people, identified_by="user_id", **ROWS)
    samples = sa.text(
        "SELECT tablename FROM pg_stats WHERE schemaname = 'public' "
        "AND concat(most_common_vals, histogram_bounds) LIKE '%ann-%'"
    )
    with ledger._database._engine.connect() as db:
        db.exec_driver_sql("ANALYZE suppressions, erasure_queue")  # as autovacuum does at any time
    assert set(ledger._database.scalars(samples)) == {"suppressions", "erasure_queue"}
    continue_erasures(ledger)
    ledger.erasures.reclaim()
    assert ledger._database.scalars(samples) == []


def test_a_view_of_a_table_does_not_keep_it_from_being_rewritten(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    if ledger.name.startswith("sqlite"):
        pytest.skip("on PostgreSQL")
    with ledger._database.write() as db:
        db.exec_driver_sql("CREATE VIEW dashboard AS SELECT identifier FROM suppressions")
    try:
        statements = ledger.erasures.reclaim()
    finally:
        with ledger._database.write() as db:
            db.exec_driver_sql("DROP VIEW dashboard")
    assert "VACUUM (FULL, ANALYZE) suppressions" in statements
    assert [each.args for each in caplog.records] == [("suppressions",)]


@settings(max_examples=examples(50), deadline=None)
@given(
    st.sets(st.one_of(st.integers(1, 5_000), st.integers(2**62, 2**63 - 1)), max_size=200),
    st.sets(st.integers(1, 5_000), max_size=50),
)
def test_known_numbers_are_found_and_no_others(members: set[int], known: set[int]) -> None:
    keyed = KeyedHash(SECRET, "device_id", "integer")
    people = KnownPeople.of(keyed, keyed.hashed(integers(known)))
    assert set(people.among(integers(members))) == members & known
    column = pa.array([*members, None], pa.int64())
    assert people.marked(column).tolist() == [each in known for each in column.to_pylist()]


@settings(max_examples=examples(50), deadline=None)
@given(st.sets(st.text(min_size=1).filter(str.strip)), st.sets(st.text(min_size=1).filter(str.strip)))
def test_known_texts_are_found_and_no_others(members: set[str], known: set[str]) -> None:
    try:
        stored, given_people = strings(members), strings(known)
    except (ValueError, UnicodeEncodeError):
        return
    keyed = KeyedHash(SECRET, "user_id", "string")
    people = KnownPeople.of(keyed, keyed.hashed(given_people))
    assert set(people.among(stored)) == members & known
    part = strings({*members, "zzz"}).column()[1:]  # a slice of a larger array
    assert people.marked(part).tolist() == [each in known for each in part.to_pylist()]


def test_hashes_of_erased_people_never_change() -> None:
    """With other hashes or buckets, a new version would not recognize the people who were erased before."""
    numbers = KeyedHash(SECRET, "device_id", "integer").hashed(integers([1, 2**63 - 1]))
    texts = KeyedHash(SECRET, "user_id", "string").hashed(strings(["é", "somebody@example.com"]))
    assert [(each.digest[:16], each.bucket) for each in (*numbers, *texts)] == [
        ("37b42aa4e2d577db", 980_938),
        ("1dfdc09a60952fba", 258_591),
        ("5724d1927d8b906c", 656_114),
        ("53409d4c2fa4bef6", 264_000),
    ]


def test_the_queue_is_empty_at_the_end_and_hashes_stay(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3])
    forget(ledger, [2, 9], identified_by="device_id", **ROWS)
    with ledger._database.read() as db:
        assert db.scalar(sa.select(sa.func.count()).select_from(erasure_queue)) == 0
        assert db.scalar(sa.select(sa.func.count()).select_from(erased)) == 2
        assert db.scalar(sa.select(audiences.c.erased)) == 1
        assert db.scalar(sa.select(sa.func.count()).select_from(parked_post_backs)) == 0
        assert db.scalar(sa.select(sa.func.count()).select_from(post_backs)) == 0
