"""The suppression list, and what a claim leaves out because of it."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from sendoff.audience import build_audience, read_template_values
from sendoff.audience.identifiers import LONGEST_TEXT, Identifiers, integers, strings
from sendoff.audience.segmentation import Segment
from sendoff.audience.template_values import TemplateValues
from sendoff.dispatch.worker import LEASE
from sendoff.errors import GateError, SettingsError, UsageError
from sendoff.launch import recipients_of
from sendoff.ledger import Claim, Ledger, Replacement, SuppressionChange
from sendoff.ledger.storage.schema import outcomes
from sendoff.ledger.suppression.active_suppressions import STATE, ActiveSuppressions
from sendoff.postbacks import reconcile_launch
from sendoff.states import Accepted, DispatchState, InDoubt, NotProcessed, Resolution, Verdict

from ...factories import EMAIL, KEY, NOW, make_audience, make_campaign, make_launch, post_back, send, store

YES = Accepted(200, 17)
HOUR = timedelta(hours=1)


def entry(scope: str = "account", **fields: Any) -> SuppressionChange:
    usual = {"identified_by": "device_id", "source": "csv", "author": "ada"}
    return SuppressionChange(scope, **{**usual, **fields})


def suppress(
    ledger: Ledger, *people: int | str, scope: str = "account", now: datetime = NOW, **fields: Any
) -> int:
    return ledger.suppressions.add(entry(scope, **fields), people, now)


def active(ledger: Ledger, *scopes: str, now: datetime = NOW) -> list[int | str]:
    return list(ledger.suppressions.active("device_id", "integer", scopes or ("account",), now))


def claim(ledger: Ledger, now: datetime = NOW) -> Claim | None:
    return ledger.dispatches.claim(KEY, worker="w", now=now, lease=LEASE)


def members(found: Claim | None) -> list[int | str]:
    assert found is not None
    assert found.content.identifiers is not None
    return list(found.content.identifiers)


def states(ledger: Ledger) -> dict[str, int]:
    return ledger.dispatch_queries.states(KEY)


def test_adding_a_long_list_reads_no_entry_for_each_new_one(ledger: Ledger) -> None:
    suppress(ledger, *range(5_000))
    if ledger.name.startswith("postgresql"):
        with ledger._database.read() as db:
            db.execute(sa.text("SELECT pg_stat_force_next_flush()"))
        with ledger._database.read() as db:
            query = (
                "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'suppressions'"
            )
            assert db.scalar(sa.text(query)) < 5_000


def test_entries_are_added_once_and_removed(ledger: Ledger) -> None:
    ledger.suppressions.add(SuppressionChange("account", "user_id", "crm", "ada"), ["77"], NOW)
    assert suppress(ledger, 1, 2) == 2
    assert suppress(ledger, 2, 3) == 1
    assert active(ledger) == [1, 2, 3]
    assert (
        ledger.suppressions.remove(
            SuppressionChange("account", "device_id", None, "bob", "asked"), [2, 9], NOW
        )
        == 1
    )
    assert active(ledger) == [1, 3]
    removed = ledger.suppressions.of_person("device_id", 2)
    assert [(each.removed_by, each.is_in_force(NOW)) for each in removed] == [("bob", False)]
    assert suppress(ledger, 2) == 1
    assert active(ledger) == [1, 2, 3]


def test_removing_from_a_list_that_never_had_an_entry_removes_nothing(ledger: Ledger) -> None:
    assert ledger.suppressions.remove(entry(), [7], NOW) == 0
    assert ledger.audit_log.of_suppression(limit=1) == []


def test_a_replacement_ends_only_the_entries_of_its_own_source_and_scope(ledger: Ledger) -> None:
    suppress(ledger, 1, 2)
    suppress(ledger, 2, 7, source="opt-out", scope="topic:news")
    suppress(ledger, 8, source="opt-out")
    planned = ledger.suppressions.planned(entry(), [2, 3], NOW)
    assert (planned.added, planned.removed, planned.before) == (1, 1, 2)
    other = Replacement(1, 2, 2)
    with pytest.raises(GateError, match="the suppression list changed in the meantime"):
        ledger.suppressions.replace(entry(), [2, 3], NOW, other)
    assert ledger.suppressions.planned(entry(), [2, 3], NOW) == planned
    assert ledger.suppressions.replace(entry(), [2, 3], NOW, planned) == planned
    assert active(ledger) == [2, 3, 8]
    assert active(ledger, "topic:news") == [2, 7]
    assert [(each.scope, each.source, each.entries) for each in ledger.suppressions.sizes(NOW)] == [
        ("account", "csv", 2),
        ("account", "opt-out", 1),
        ("topic:news", "opt-out", 2),
    ]


def test_a_replacement_changes_and_counts_the_entries_with_another_end(ledger: Ledger) -> None:
    suppress(ledger, 1, 2, until=NOW + HOUR)
    suppress(ledger, 3)
    suppress(ledger, 3, source="opt-out")
    for hours, prolonged, shortened in (
        (1, 0, 1),
        (1, 0, 0),
        (2, 3, 0),
        (None, 3, 0),
        (None, 0, 0),
        (1, 0, 3),
    ):
        until = None if hours is None else NOW + hours * HOUR
        new = entry(until=until, reason=f"{hours} hours, {shortened}")
        planned = ledger.suppressions.planned(new, [1, 2, 3], NOW)
        assert planned == Replacement(0, 0, 3, prolonged, shortened)
        assert planned.changes_nothing is (not prolonged + shortened)
        assert not planned.removes_more_than(0)
        assert ledger.suppressions.replace(new, [1, 2, 3], NOW, planned) == planned
        if prolonged or shortened:
            [newest] = ledger.audit_log.of_suppression(limit=1)
            counts = {"prolonged": prolonged, "shortened": shortened}
            assert newest.detail == {
                "scope": "account",
                "identified_by": "device_id",
                "source": "csv",
                "added": 0,
                "removed": 0,
                **{name: count for name, count in counts.items() if count},
            }
        assert {each.until for part in ledger.suppressions.in_force(NOW, "csv") for each in part} == {until}
    assert {each.reason for each in ledger.suppressions.of_person("device_id", 1)} == {"1 hours, 3"}
    assert active(ledger, now=NOW + HOUR) == [3]  # who opted out


def test_a_replacement_adds_removes_and_changes_ends_at_once(ledger: Ledger) -> None:
    suppress(ledger, 1, 2, until=NOW + 2 * HOUR)
    suppress(ledger, 3)
    new = entry(until=NOW + HOUR)
    planned = ledger.suppressions.planned(new, [2, 3, 4], NOW)
    assert planned == Replacement(added=1, removed=1, before=3, shortened=2)
    assert ledger.suppressions.replace(new, [2, 3, 4], NOW, planned) == planned
    assert (active(ledger), active(ledger, now=NOW + HOUR)) == ([2, 3, 4], [])


def test_claims_that_know_the_list_follow_an_earlier_end(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 7), size=2)
    suppress(ledger, 1, 3, 5)
    assert members(claim(ledger)) == [2]
    new = entry(until=NOW + HOUR)
    ledger.suppressions.replace(new, [1, 3, 5], NOW, ledger.suppressions.planned(new, [1, 3, 5], NOW))
    assert members(claim(ledger)) == [4]
    assert members(claim(ledger, NOW + HOUR)) == [5, 6]


def test_entries_in_force_are_counted_and_listed_by_source(ledger: Ledger) -> None:
    suppress(ledger, 1, 2, 3)
    suppress(ledger, 3, 4, source="opt-out")
    suppress(ledger, 5, until=NOW + HOUR)
    ledger.suppressions.remove(entry(), [2], NOW)
    assert ledger.suppressions.count_among(entry(), [1, 2, 3, 4, 5, 9], NOW) == 3
    assert ledger.suppressions.count_among(entry(), [1, 2, 3, 4, 5, 9], NOW + HOUR) == 2

    def listed(now: datetime, *source: str) -> list[tuple[str, str]]:
        parts = ledger.suppressions.in_force(now, *source)
        return [(each.identifier, each.source) for part in parts for each in part]

    assert listed(NOW + HOUR) == [("1", "csv"), ("3", "csv"), ("3", "opt-out"), ("4", "opt-out")]
    assert listed(NOW, "csv") == [("1", "csv"), ("3", "csv"), ("5", "csv")]


def test_a_change_that_changes_nothing_is_not_in_the_audit_log(ledger: Ledger) -> None:
    def audited() -> list[tuple[str, int, int]]:
        entries = ledger.audit_log.of_suppression(limit=9)
        return [(each.kind, each.detail["added"], each.detail["removed"]) for each in entries if each.detail]

    for people in ([1, 2], [1, 2], [2, 3]):
        ledger.suppressions.add(entry(), people, NOW, is_audited=True)
    ledger.suppressions.add(entry(), [4], NOW)  # a recipient's own opt-out
    assert audited() == [("suppressed", 1, 0), ("suppressed", 2, 0)]
    assert ledger.suppressions.add(entry(until=NOW + HOUR), [5], NOW) == 1
    assert ledger.suppressions.add(entry(until=NOW + 2 * HOUR), [5], NOW, is_audited=True) == 0
    assert audited()[0] == ("suppressed", 0, 0)  # the entry ends later


@pytest.mark.parametrize(
    ("removed", "before", "is_more"), [(20, 100, False), (21, 100, True), (1, 0, True), (0, 0, False)]
)
def test_a_replacement_removes_more_than_a_percentage_of_the_entries(
    removed: int, before: int, is_more: bool
) -> None:
    assert Replacement(0, removed, before).removes_more_than(20) is is_more


def test_an_opt_out_holds_whatever_happens_to_entries_of_other_sources(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 5), size=1)
    suppress(ledger, 1, 2, source="complaints")
    assert suppress(ledger, 2, source="opt-out", launch_key=KEY) == 1
    plan = ledger.suppressions.planned(entry(source="complaints"), [3], NOW)
    assert plan == Replacement(added=1, removed=2, before=2)
    assert members(claim(ledger)) == [3]  # 1 and 2 are suppressed
    ledger.suppressions.replace(entry(source="complaints"), [3], NOW, plan)
    assert active(ledger) == [2, 3]
    suppress(ledger, 2, source="complaints", until=NOW + HOUR)
    assert active(ledger, now=NOW + HOUR) == [2, 3]
    assert members(claim(ledger, NOW + HOUR)) == [4]


@pytest.mark.code_decides
def test_only_so_many_launches_are_kept_in_memory(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sendoff.ledger.suppression.active_suppressions._MOST_LAUNCHES", 2)
    keys = [make_launch(ledger, [1, 2], name=name).launch_key for name in ("a", "b", "c")]
    suppress(ledger, 1)
    active = ActiveSuppressions()
    with ledger._database.read() as db:
        version, stamp = db.execute(sa.select(*STATE)).one()
        for key, kept in ((keys[0], 1), (keys[1], 2), (keys[1], 2), (keys[2], 1), (keys[0], 2)):
            active.load(db, key)
            assert len(active._readers) == kept
            assert active.among(db, key, integers([1, 2]), (version, stamp), NOW) == integers([1])


def test_entries_of_one_source_are_removed_alone(ledger: Ledger) -> None:
    suppress(ledger, 1, 2)
    suppress(ledger, 2, source="opt-out")
    of_csv = SuppressionChange("account", "device_id", "csv", "ada", "oops")
    assert ledger.suppressions.remove(of_csv, [1, 2], NOW) == 2
    assert active(ledger) == [2]
    suppress(ledger, 1, 2)
    of_all = replace(of_csv, source=None)
    assert ledger.suppressions.remove(of_all, [1, 2], NOW) == 2  # recipients, not entries
    assert active(ledger) == []


def test_the_ledger_leaves_identifiers_as_they_are(ledger: Ledger) -> None:
    """They were trimmed before, where they came in."""
    people = strings(["ann", "bob  "])
    make_launch(ledger, people, audience=make_audience(people))
    suppress(ledger, "bob  ", identified_by="user_id")
    assert members(claim(ledger)) == ["ann"]


@pytest.mark.parametrize("given", ["bob  ", " bob", "bob"])
def test_white_space_around_an_identifier_does_not_matter(ledger: Ledger, given: str) -> None:
    audience = build_audience([pa.record_batch({"user_id": ["ann", "bob  "]})])  # as CHAR(5) returns it
    make_launch(ledger, audience.identifiers, audience=audience)
    named = recipients_of([given], "user_id").identifiers
    assert ledger.suppressions.add(entry(identified_by="user_id"), named, NOW) == 1
    assert members(claim(ledger)) == ["ann"]


def test_a_claim_that_saw_an_older_list_uses_the_newer_one_that_is_known(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3, 4], size=2)
    suppress(ledger, 1)
    known = ActiveSuppressions()
    people = integers([1, 2, 3, 4])
    with ledger._database.read() as db:
        older = db.execute(sa.select(*STATE)).one()
    suppress(ledger, 2)
    with ledger._database.read() as db:
        newer = db.execute(sa.select(*STATE)).one()
        assert list(known.among(db, KEY, people, tuple(newer), NOW)) == [1, 2]
        (before,) = known._known.values()
        assert list(known.among(db, KEY, people, tuple(older), NOW)) == [1, 2]
        assert list(known._known.values()) == [before]
    suppress(ledger, 3)
    with ledger._database.read() as db:
        assert list(known.among(db, KEY, people, tuple(older), NOW)) == [1, 2, 3]
        assert [each is before for each in known._known.values()] == [True]


def test_an_entry_ends_by_itself_and_a_longer_one_wins(ledger: Ledger) -> None:
    suppress(ledger, 1, until=NOW + HOUR)
    assert suppress(ledger, 1, until=NOW + HOUR / 2) == 0
    assert active(ledger, now=NOW + HOUR * 0.9) == [1]
    assert suppress(ledger, 1) == 0
    assert active(ledger, now=NOW + HOUR * 9) == [1]


def test_spellings_of_a_number_are_entries_of_their_own(ledger: Ledger) -> None:
    """A warehouse may have the tokens of one campaign as whole numbers, and those of another as text."""
    people = integers(range(1, 16))
    make_launch(ledger, people, size=5, audience=make_audience(people, identified_by="device_token"))
    suppress(ledger, "7", "007", "12", identified_by="device_token")
    suppress(ledger, "0012", identified_by="device_token", until=NOW + HOUR)
    suppress(ledger, "013", identified_by="device_token")
    assert members(claim(ledger)) == [1, 2, 3, 4, 5]  # from here on, the claims know the list
    removed = entry(identified_by="device_token")
    assert ledger.suppressions.remove(removed, ["007", "013"], NOW) == 2
    assert members(claim(ledger)) == [6, 8, 9, 10]
    assert members(claim(ledger, NOW + HOUR)) == [11, 13, 14, 15]


def test_a_reason_is_not_blank() -> None:
    with pytest.raises(UsageError, match="the reason is blank"):
        SuppressionChange("account", "device_id", "complaint", "ann", " ")


@pytest.mark.parametrize("source", ["", " \t"])
def test_a_source_is_not_blank(source: str) -> None:
    with pytest.raises(UsageError, match="the source is blank"):
        entry(source=source)


@pytest.mark.parametrize("source", ["opt-out", "erasure"])
def test_only_sendoff_adds_and_replaces_its_own_entries(ledger: Ledger, source: str) -> None:
    own = entry(source=source)
    assert ledger.suppressions.add(own, [1, 2], NOW) == 2
    why = f"only Sendoff adds entries of the source {source}. Use another name, such as crm"
    with pytest.raises(UsageError, match=why):
        ledger.suppressions.add(own, [3], NOW, is_audited=True)
    with pytest.raises(UsageError, match=why):
        ledger.suppressions.planned(own, [1], NOW)
    with pytest.raises(UsageError, match=why):
        ledger.suppressions.replace(own, [1], NOW, Replacement(0, 1, 2))
    assert active(ledger) == [1, 2]
    assert ledger.suppressions.remove(own, [1], NOW) == 1


@pytest.mark.parametrize("scope", ["", "all", "topic:", "topic:A b", "channel:pigeon"])
def test_a_scope_that_does_not_exist_is_an_error(scope: str) -> None:
    with pytest.raises(ValueError, match="Use account, everything, topic:NAME or channel:NAME"):
        entry(scope)


@pytest.mark.parametrize("field", ["reason", "source", "author"])
@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_a_text_that_the_ledger_cannot_store_is_an_error_with_its_name(field: str, character: str) -> None:
    with pytest.raises(SettingsError, match=f"the {field} has a character") as error:
        entry(**{field: f"secret{character}"})
    assert "secret" not in str(error.value)


def test_a_blank_identifier_changes_nothing(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="blank identifier"):
        suppress(ledger, 1, " ")
    assert active(ledger) == []


@pytest.mark.parametrize("odd", ["a\0b", "x" * (LONGEST_TEXT + 1)])
def test_an_identifier_that_cannot_be_stored_changes_nothing(ledger: Ledger, odd: str) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        suppress(ledger, "ann", odd, identified_by="user_id")
    assert ledger.suppressions.of_person("user_id", "ann") == []


def test_the_longest_names_and_identifiers_fit(ledger: Ledger) -> None:
    longest = secrets.token_hex(LONGEST_TEXT // 2)  # PostgreSQL cannot compress it
    topic = f"topic:{secrets.token_hex(32)}"
    assert suppress(ledger, longest, identified_by="user_id", scope=topic, source=secrets.token_hex(50)) == 1
    assert [each.scope for each in ledger.suppressions.of_person("user_id", longest)] == [topic]


@pytest.mark.parametrize(
    ("fields", "scope", "is_left_out"),
    [
        ({}, "account", True),
        ({}, "everything", True),
        ({}, "topic:news", False),
        ({"topic": "news"}, "topic:news", True),
        ({"topic": "sport"}, "topic:news", False),
        ({}, "channel:android_push", True),
        ({}, "channel:email", False),
        ({"transactional": "receipt"}, "account", False),
        ({"transactional": "receipt"}, "everything", True),
        ({"transactional": "receipt", "topic": "news"}, "topic:news", True),
    ],
)
def test_the_scope_says_which_campaigns_an_entry_stops(
    ledger: Ledger, fields: dict[str, Any], scope: str, is_left_out: bool
) -> None:
    make_launch(ledger, [1, 2, 3], campaign=make_campaign(**fields))
    suppress(ledger, 2, scope=scope)
    assert members(claim(ledger)) == ([1, 3] if is_left_out else [1, 2, 3])


def test_a_claim_leaves_out_whoever_was_suppressed_since_the_freeze(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 7), size=2)
    suppress(ledger, 2)
    first = claim(ledger)
    assert members(first) == [1]
    assert first is not None
    suppress(ledger, 3)
    following = ledger.dispatches.record_and_claim(first, YES, NOW, worker="w", lease=LEASE)
    assert members(following) == [4]
    ledger.suppressions.remove(SuppressionChange("account", "device_id", None, "ada", "asked"), [2], NOW)
    suppress(ledger, 5, 6)
    assert claim(ledger) is None
    assert states(ledger) == {"accepted": 1, "in_flight": 1, "suppressed": 1}


def test_the_key_of_a_request_does_not_change(ledger: Ledger) -> None:
    launch = make_launch(ledger, [1, 2])
    (before,) = ledger.dispatch_queries.of_launch(launch.launch_key)
    suppress(ledger, 2)
    found = claim(ledger)
    assert found is not None
    assert found.dispatch_key == before.dispatch_key


def test_an_entry_that_ended_stops_nobody(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3, 4], size=2)
    suppress(ledger, 1, 3, until=NOW + HOUR)
    assert members(claim(ledger)) == [2]
    assert members(claim(ledger, NOW + HOUR)) == [3, 4]


def test_claims_know_that_an_entry_no_longer_ends(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3, 4], size=2)
    suppress(ledger, 3, until=NOW + HOUR)
    assert members(claim(ledger)) == [1, 2]
    assert suppress(ledger, 3) == 0
    assert members(claim(ledger, NOW + HOUR)) == [4]


def test_other_columns_and_words_do_not_concern_a_launch(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2])
    suppress(ledger, 1, identified_by="user_id")
    suppress(ledger, "x-2", str(2**63))
    assert members(claim(ledger)) == [1, 2]


def test_texts_and_template_values_lose_the_same_rows(ledger: Ledger) -> None:
    people = strings(["a", "b", "c"])
    table = pa.table({"name": pa.array(["Ada", "Bob", "Cy"], pa.large_string())})
    field = table.schema.field(0).with_metadata({b"holds": b"text"})
    values = TemplateValues(pa.array(["a", "b", "c"], pa.large_string()), table.cast(pa.schema([field])))
    segment = Segment(people, template_values=values.of(people))
    make_launch(ledger, segments=[segment], audience=make_audience(people))
    suppress(ledger, "b", identified_by="user_id")
    found = claim(ledger)
    assert members(found) == ["a", "c"]
    assert found is not None
    assert found.content.template_values is not None
    assert read_template_values(found.content.template_values) == [{"name": "Ada"}, {"name": "Cy"}]


def test_a_long_list_is_found_and_follows_changes(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 3001), size=1000)
    suppress(ledger, *range(1, 2501, 2))
    assert members(claim(ledger)) == list(range(2, 1001, 2))
    ledger.suppressions.remove(
        SuppressionChange("account", "device_id", None, "ada", "asked"), range(1001, 1501), NOW
    )
    assert members(claim(ledger)) == [*range(1001, 1501), *range(1502, 2001, 2)]


def test_a_ledger_that_came_back_older_is_read_again(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3, 4], size=2)
    suppress(ledger, 1)
    suppress(ledger, 3)
    assert members(claim(ledger)) == [2]
    with ledger._database.write() as db:  # as a backup from before both, with another change since
        db.exec_driver_sql("DELETE FROM suppressions")
        db.exec_driver_sql("UPDATE suppression_state SET version = 1, stamp = 'other'")
        db.exec_driver_sql(
            "INSERT INTO suppressions (scope, identified_by, identifier, source, author, added_at, version) "
            "VALUES ('account', 'device_id', '4', 'csv', 'ada', '2026-03-02 09:00:00', 1)"
        )
    assert members(claim(ledger)) == [3]


def figures(ledger: Ledger) -> tuple[dict[str, int], dict[str, int], dict[str, Identifiers]]:
    found = reconcile_launch(ledger, KEY, now=NOW + HOUR)
    assert sum(found.verdicts.values()) == found.audience
    return dict(found.verdicts), dict(found.not_sent_because), ledger.verdicts.sets(KEY)


def test_the_report_counts_them_as_not_sent(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 7), size=2)
    suppress(ledger, 2, 5, 6)
    send(ledger, KEY, YES, YES)
    assert claim(ledger) is None
    verdicts, why, sets = figures(ledger)
    assert why == {"suppressed": 3}
    assert list(sets[Verdict.NOT_SENT]) == [2, 5, 6]
    assert verdicts[Verdict.NOT_SENT] == 3
    assert list(ledger.launches.sent(KEY)) == [1, 3, 4]
    said = {number: ledger.launches.recipient(KEY, number).dispatch for number in (1, 2, 5)}
    assert said == {1: "accepted", 2: "suppressed", 5: "suppressed"}


def test_who_was_in_an_earlier_request_in_doubt_stays_in_doubt(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3])
    suppress(ledger, 1)
    (key,) = send(ledger, KEY, InDoubt("no answer"))
    ledger.doubts.resolve(key, Resolution.RESEND, "ada", "why not", NOW)
    suppress(ledger, 2)
    send(ledger, KEY, YES)
    _, why, sets = figures(ledger)
    assert why == {"suppressed": 1}
    assert (list(sets[Verdict.NOT_SENT]), list(sets[Verdict.IN_DOUBT])) == ([1], [2])
    assert list(ledger.launches.sent(KEY)) == [2, 3]


def test_a_doubt_stays_if_nobody_is_left_to_send_again_to(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2])
    (key,) = send(ledger, KEY, InDoubt("no answer"))
    ledger.doubts.resolve(key, Resolution.RESEND, "ada", "why not", NOW)
    suppress(ledger, 1, 2)
    assert claim(ledger) is None
    assert states(ledger) == {DispatchState.WRITTEN_OFF: 1}
    _, why, sets = figures(ledger)
    assert (why, list(sets[Verdict.IN_DOUBT])) == ({}, [1, 2])


def test_a_request_that_was_not_processed_leaves_out_nobody(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2])
    suppress(ledger, 1)
    send(ledger, KEY, NotProcessed("too many requests"))
    ledger.suppressions.remove(SuppressionChange("account", "device_id", None, "ada", "asked"), [1], NOW)
    send(ledger, KEY, YES)
    _, why, _ = figures(ledger)
    assert why == {}
    assert list(ledger.launches.sent(KEY)) == [1, 2]


def test_a_post_back_proves_more_than_the_list(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2], campaign=EMAIL)
    suppress(ledger, 1)
    (key,) = send(ledger, KEY, YES)
    store(ledger, post_back(key, "delivery", 1))
    _, why, sets = figures(ledger)
    assert (why, list(sets[Verdict.DELIVERED])) == ({}, [1])


def test_a_worker_that_did_not_learn_of_its_claim_gets_it_without_those_suppressed_since(
    ledger: Ledger,
) -> None:
    make_launch(ledger, range(1, 5), size=2)
    first = claim(ledger)
    assert first is not None
    suppress(ledger, 3)

    def again() -> Claim | None:
        return ledger.dispatches.record_and_claim(first, YES, NOW, worker="w", lease=LEASE)

    assert members(again()) == [4]
    ledger.suppressions.remove(SuppressionChange("account", "device_id", None, "ada", "asked"), [3], NOW)
    assert members(again()) == [3, 4]
    suppress(ledger, 3, 4)
    assert again() is None
    assert states(ledger) == {"accepted": 1, "suppressed": 1}
    with ledger._database.read() as db:  # its request is known not to have been sent
        of_second = outcomes.c.dispatch_key != first.dispatch_key
        assert db.scalars(sa.select(outcomes.c.kind).where(of_second)).all() == ["not_processed"]
    _, why, _ = figures(ledger)
    assert why == {"suppressed": 2}
