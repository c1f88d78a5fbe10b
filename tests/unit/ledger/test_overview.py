"""Lists of launches: their filters, their order, and what they show."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Period, Variation, launch_key
from sendoff.dispatch.control import release, stop
from sendoff.ledger import Decision, Ledger, NotLaunched, Selection
from sendoff.ledger.results.overview import LaunchFacts
from sendoff.postbacks import forget
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused, Resolution

from ...factories import NOW, PERIOD, claimed, make_campaign, make_launch, post_back, send, store
from ...leases import end_leases

CAMPAIGNS = ("spring_sale", "welcome", "news")
YES = Accepted(200, 17)


def make(ledger: Ledger, name: str, day: int, people: int, **fields: Any) -> str:
    """Freeze a launch with a request for each recipient, created ``day`` days after the first."""
    period = Period(PERIOD.start + timedelta(days=day), PERIOD.end + timedelta(days=day))
    fields.setdefault("sends_at", NOW + timedelta(days=day))
    made = NOW + timedelta(days=day)
    who = list(range(1, people + 1))
    return make_launch(ledger, who, size=1, name=name, period=period, created_at=made, **fields).launch_key


@pytest.fixture
def keys(ledger: Ledger) -> dict[str, str]:
    """Three launches: one with a report, one that the service holds until later, and one that sent nothing."""
    keys = {
        "spring_sale": make(ledger, "spring_sale", 0, 3, campaign=make_campaign(title="Garden 100% off")),
        "welcome": make(ledger, "welcome", 1, 1, sends_at=NOW + timedelta(days=9)),
        "news": make(ledger, "news", 2, 2),
    }
    dispatches = send(ledger, keys["spring_sale"], YES, YES, YES, at=NOW + timedelta(hours=1))
    events = [
        post_back(dispatches[0], "delivery", 1),
        post_back(dispatches[1], "delivery", 2),
        post_back(dispatches[1], "open", 2),
    ]
    store(ledger, *events)
    reconcile_launch(ledger, keys["spring_sale"], now=NOW)
    return keys


def test_the_newest_launch_of_each_campaign_is_found_and_the_newest_with_a_report(
    ledger: Ledger, keys: dict[str, str]
) -> None:
    newer = make(ledger, "spring_sale", 3, 2)
    make(ledger, "other", 3, 2)
    newest = ledger.overview.newest(CAMPAIGNS)
    assert {name: each.launch.launch_key for name, each in newest.items()} == {**keys, "spring_sale": newer}
    assert newest["spring_sale"].reached is None
    reported = ledger.overview.newest(CAMPAIGNS, is_reported=True)
    assert {name: (each.launch.launch_key, each.reached) for name, each in reported.items()} == {
        "spring_sale": (keys["spring_sale"], 2)
    }
    assert ledger.overview.newest([]) == {}


def listed(ledger: Ledger, **how: Any) -> list[str]:
    return [each.launch.campaign for each in ledger.overview.page(Selection(CAMPAIGNS), **how)]


def found(ledger: Ledger, **which: Any) -> list[str]:
    selection = Selection(**{"campaigns": CAMPAIGNS, **which})
    names = [each.launch.campaign for each in ledger.overview.page(selection)]
    assert ledger.overview.count(selection) == len(names) == len(ledger.overview.facts(selection))
    return names


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("created", ["spring_sale", "welcome", "news"]),
        ("campaign", ["news", "spring_sale", "welcome"]),
        ("sends", ["spring_sale", "welcome", "news"]),
        ("period", ["spring_sale", "welcome", "news"]),
        ("recipients", ["welcome", "news", "spring_sale"]),
        ("requests", ["welcome", "news", "spring_sale"]),
        ("reached", ["spring_sale", "news", "welcome"]),
        ("opened", ["spring_sale", "news", "welcome"]),
    ],
)
def test_a_list_is_sorted_by_any_column(
    ledger: Ledger, keys: dict[str, str], order: str, expected: list[str]
) -> None:
    assert listed(ledger, order=order, is_ascending=True) == expected
    unknown = {"sends": ["news"], "reached": ["news", "welcome"], "opened": ["news", "welcome"]}.get(
        order, []
    )
    known = [name for name in expected if name not in unknown]
    assert listed(ledger, order=order) == [*reversed(known), *unknown]  # those without a value stay last
    assert listed(ledger, order=order, is_ascending=True, offset=1, limit=1) == expected[1:2]


def test_a_list_is_searched_by_title_and_name(ledger: Ledger, keys: dict[str, str]) -> None:
    assert found(ledger, words="spring sale") == found(ledger, words="SPRING_s") == ["spring_sale"]
    assert found(ledger, words="garden") == found(ledger, words="100%") == ["spring_sale"]
    assert found(ledger, words="1000") == found(ledger, words="'") == []
    assert found(ledger) == ["news", "welcome", "spring_sale"]
    assert found(ledger, campaigns=["news"]) == ["news"]
    assert found(ledger, keys=[keys["news"], keys["welcome"]]) == ["news", "welcome"]
    assert found(ledger, keys=[]) == []


def test_the_facts_about_a_launch_are_its_state_and_progress(ledger: Ledger, keys: dict[str, str]) -> None:
    facts = ledger.overview.facts(Selection(CAMPAIGNS))
    assert list(facts) == [keys["news"], keys["welcome"], keys["spring_sale"]]  # newest first
    made, sends_at = NOW + timedelta(days=1), NOW + timedelta(days=9)
    states = {"planned": 1}
    planned = LaunchFacts("released", "service", sends_at, made, False, False, False, states, states, False)
    assert facts[keys["welcome"]] == planned
    reported = facts[keys["spring_sale"]]
    assert (reported.is_reported, reported.is_settled, reported.requests) == (True, False, {"accepted": 3})


def test_the_facts_about_a_launch_follow_what_happens_to_it(ledger: Ledger, keys: dict[str, str]) -> None:
    def facts(name: str) -> LaunchFacts:
        [found] = ledger.overview.facts(Selection([name])).values()
        return found

    ledger.launches.settle(keys["spring_sale"], NOW)
    assert facts("spring_sale").is_settled
    assert ledger.audit_log.decide(Decision(keys["news"], "held", "sendoff", "too many refused", NOW))
    release(ledger, keys["news"], "ann", "mended", now=NOW)
    claimed(ledger, keys["news"])
    working = facts("news")
    assert (working.state, working.was_held, working.is_leased) == ("released", True, True)
    assert working.requests == {"in_flight": 1, "planned": 1}
    assert (facts("welcome").was_held, facts("welcome").is_leased) == (False, False)
    end_leases(ledger)
    assert not facts("news").is_leased


@pytest.mark.parametrize("became", ["planned", "refused"])
def test_a_launch_with_a_request_that_left_doubt_may_have_gone_out(
    ledger: Ledger, keys: dict[str, str], became: str
) -> None:
    (dispatch,) = send(ledger, keys["news"], InDoubt("HTTP 500"))
    assert ledger.doubts.resolve(dispatch, Resolution.RESEND, "ann", "again", NOW)
    if became == "refused":
        send(ledger, keys["news"], Refused(400, "no"))
    stop(ledger, keys["news"], "ann", "no")
    [facts] = ledger.overview.facts(Selection(["news"])).values()
    assert facts.requests == Counter([became, "planned"])
    assert facts.known == {"in_doubt": 1, "planned": 1}
    [row] = ledger.overview.page(Selection(["news"]))
    assert row.sends_at is not None


def test_the_newest_exchange_of_a_launch_is_its_newest_request_or_answer(
    ledger: Ledger, keys: dict[str, str]
) -> None:
    sent, news = keys["spring_sale"], keys["news"]
    begun, answered = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    assert ledger.overview.exchanged_at([sent, news]) == {sent: begun}
    claim = claimed(ledger, news, at=begun)
    ledger.dispatches.record(claim, InDoubt("the connection broke"), answered)  # no answer came
    assert ledger.overview.exchanged_at([sent, news]) == {sent: begun, news: begun}
    claim = claimed(ledger, news, at=begun)
    ledger.dispatches.record(claim, Refused(400, "no"), answered)
    assert ledger.overview.exchanged_at([news]) == {news: answered}
    assert ledger.overview.requested_at([news, keys["welcome"]]) == {news: begun}


def test_a_launch_was_last_acted_on_when_a_request_was_begun_or_someone_decided(
    ledger: Ledger, keys: dict[str, str]
) -> None:
    sent, news, welcome = keys["spring_sale"], keys["news"], keys["welcome"]

    def acted_at() -> dict[str, datetime]:
        return ledger.overview.acted_at([sent, welcome])

    begun, decided = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    assert acted_at() == {sent: begun}
    ledger.audit_log.record(Decision(sent, "exported", "ann", None, decided))  # decides nothing
    assert acted_at() == {sent: begun}
    for key, at in ((sent, NOW), (sent, decided), (welcome, begun), (news, decided)):
        ledger.audit_log.record(Decision(key, "gates", "sendoff", None, at))
    assert acted_at() == {sent: decided, welcome: begun}
    claimed(ledger, welcome, at=decided)
    assert acted_at() == {sent: decided, welcome: decided}


def test_the_parts_of_a_launch_are_the_waves_and_zones_of_its_planned_requests(ledger: Ledger) -> None:
    zones = (("Asia/Tokyo", 1), (None, 1), (None, 1), (None, 2), ("Asia/Tokyo", 2))
    parts = [
        Segment(integers([n]), Variation(time_zone=zone), wave) for n, (zone, wave) in enumerate(zones, 1)
    ]
    key, other = make(ledger, "news", 0, 5, segments=parts), make(ledger, "welcome", 0, 1)
    send(ledger, key, YES)
    assert {name: set(some) for name, some in ledger.overview.planned_parts([key]).items()} == {
        key: {(1, None), (2, None), (2, "Asia/Tokyo")}
    }
    assert ledger.overview.planned_parts([other, key])[other] == [(1, None)]


def test_a_launch_that_is_made_during_a_count_is_counted_once(ledger: Ledger) -> None:
    late = NotLaunched(
        launch_key("service", "news", PERIOD), "news", "News", PERIOD, 0, NOW, "it was too late"
    )
    ledger.not_launched.store(late)
    made: list[str] = []

    def make_now(*of: Any) -> None:
        if "count(" in of[2] and not made:
            made.append(late.launch_key)
            make(ledger, "news", 0, 1)

    engine = ledger._database._engine
    sa.event.listen(engine, "after_cursor_execute", make_now)
    try:
        assert ledger.overview.count(Selection(CAMPAIGNS), with_not_made=True) == 1
    finally:
        sa.event.remove(engine, "after_cursor_execute", make_now)
    assert made
    assert found(ledger) == ["news"]


def test_a_list_is_filtered_by_the_time_of_sending(ledger: Ledger, keys: dict[str, str]) -> None:
    first, held = NOW + timedelta(hours=1), NOW + timedelta(days=9)
    assert found(ledger, since=first) == ["welcome", "spring_sale"]
    assert found(ledger, since=first, until=held) == ["spring_sale"]
    assert found(ledger, until=first) == []


def test_a_list_shows_when_each_launch_goes_out_and_its_results(ledger: Ledger, keys: dict[str, str]) -> None:
    rows = {each.launch.campaign: each for each in ledger.overview.page(Selection(CAMPAIGNS))}
    shown = {name: (row.sends_at, row.reached, row.opened) for name, row in rows.items()}
    assert shown == {
        "spring_sale": (NOW + timedelta(hours=1), 2, 1),
        "welcome": (NOW + timedelta(days=9), None, None),
        "news": (None, None, None),
    }


def test_a_launch_that_ended_before_it_was_sent_has_no_time_of_sending(
    ledger: Ledger, keys: dict[str, str]
) -> None:
    for name in ("welcome", "spring_sale"):
        stop(ledger, keys[name], "ann", "no")
    rows = {each.launch.campaign: each.sends_at for each in ledger.overview.page(Selection(CAMPAIGNS))}
    assert rows["welcome"] is None
    assert rows["spring_sale"] is not None


@pytest.mark.parametrize(
    ("kinds", "shown"), [(["delivery"], (0, None)), (["open"], (0, 0)), ([], (None, None))]
)
def test_results_that_cannot_be_measured_are_not_shown_as_none(
    ledger: Ledger, kinds: list[str], shown: tuple[int | None, int | None]
) -> None:
    key = make(ledger, "news", 0, 1, campaign=make_campaign(post_backs={"kinds": kinds}))
    send(ledger, key, YES)
    reconcile_launch(ledger, key, now=NOW)
    [row] = ledger.overview.page(Selection(CAMPAIGNS))
    assert (row.reached, row.opened) == shown


def test_accepted_requests_are_counted_with_their_campaigns_in_the_service(ledger: Ledger) -> None:
    key = make(ledger, "news", 0, 5)
    send(
        ledger, key, Accepted(200, 9), InDoubt("?"), Refused(400, "no"), Accepted(200, 8), Accepted(200, None)
    )
    assert ledger.overview.accepted_parts(key) == [(None, 3, [8, 9])]
    assert ledger.overview.accepted_parts(launch_key("service", "other", PERIOD)) == []


def test_the_recipients_who_have_a_message_at_most_are_counted_by_launch(ledger: Ledger) -> None:
    part = make(ledger, "news", 0, 6)
    send(ledger, part, YES, InDoubt("?"), Refused(400, "no"), InDoubt("?"), None)
    again = ledger.doubts.open(part)[0].dispatch_key
    assert ledger.doubts.resolve(
        again, Resolution.RESEND, "ann", "it was lost", NOW
    )  # the service may have it
    unsent, by_service = make(ledger, "welcome", 1, 2), make_launch(ledger, name="all").launch_key
    send(ledger, by_service, YES)
    keys = [part, unsent, by_service]
    assert ledger.overview.recipients_at_most(keys) == {part: 4}
    assert ledger.overview.recipients_at_most([unsent]) == {}


@pytest.mark.parametrize("outcome", [NotProcessed("busy"), Refused(400, "no")])
def test_no_one_has_the_message_of_a_request_that_was_written_off_and_not_processed(
    ledger: Ledger, outcome: Outcome
) -> None:
    key = make(ledger, "news", 0, 2)
    claim = claimed(ledger, key)
    ledger.dispatches.record(claim, InDoubt("lost"), NOW)
    assert ledger.doubts.resolve(claim.dispatch_key, Resolution.WRITE_OFF, "ann", "enough", NOW)
    stop(ledger, key, "ann", "no")
    assert ledger.overview.recipients_at_most([key]) == {key: 1}
    [row] = ledger.overview.page(Selection(["news"]))
    assert row.sends_at == NOW
    ledger.dispatches.record(claim, outcome, NOW)
    assert ledger.overview.recipients_at_most([key]) == {}
    [facts] = ledger.overview.facts(Selection(["news"])).values()
    assert facts.requests == {"written_off": 1, "planned": 1}
    assert facts.known == {"not_processed": 1, "planned": 1}
    [row] = ledger.overview.page(Selection(["news"]))
    assert row.sends_at is None
    figures = reconcile_launch(ledger, key, now=NOW)
    assert (figures.verdicts["not_sent"], figures.reached, figures.doubted) == (2, (0, 0), {})


def test_doubts_are_counted_in_total_and_by_launch(ledger: Ledger) -> None:
    news, welcome, other = (
        make(ledger, name, day, 3) for day, name in enumerate(("news", "welcome", "other"))
    )
    for key, outcomes in (
        (news, (YES, InDoubt("?"), InDoubt("?"))),
        (welcome, (InDoubt("?"),)),
        (other, (InDoubt("?"),)),
    ):
        send(ledger, key, *outcomes)
    stats = ledger.stats
    assert astuple(stats.doubt_totals(CAMPAIGNS)) == (2, 3, 3)
    assert astuple(stats.doubt_totals([])) == (0, 0, 0)
    rows = [(welcome, 1, 1), (news, 2, 2)]
    assert [astuple(each) for each in stats.launch_doubts(CAMPAIGNS)] == rows
    assert [astuple(each) for each in stats.launch_doubts(CAMPAIGNS, limit=1)] == rows[:1]
    assert [astuple(each) for each in stats.launch_doubts(CAMPAIGNS, offset=1)] == rows[1:]
    assert [astuple(each) for each in stats.launch_doubts(CAMPAIGNS, launch_key=news)] == rows[1:]
    assert ledger.dispatch_queries.counts(news).recipients == {"accepted": 1, "in_doubt": 2}


def test_launches_that_were_not_made_are_listed_until_they_are_made(ledger: Ledger) -> None:
    def not_made(name: str, day: int) -> NotLaunched:
        period = Period(PERIOD.start + timedelta(days=day), PERIOD.end + timedelta(days=day))
        key, at = launch_key("service", name, period), NOW + timedelta(days=day)
        return NotLaunched(key, name, name.title(), period, 0, at, "it was too late")

    log = ledger.not_launched
    old, news, welcome, other = (
        not_made(*of) for of in (("news", 0), ("news", 2), ("welcome", 1), ("other", 3))
    )
    for entry in (news, old, welcome, other):
        log.store(entry)
    for _ in range(2):
        assert log.campaigns() == {"news": news, "welcome": welcome, "other": other}
        assert log.newest() == [other, news, welcome, old]
        assert log.newest(CAMPAIGNS, limit=2) == [news, welcome]
        assert log.of_keys([old.launch_key, other.launch_key]) in ([old, other], [other, old])
        assert ledger.overview.keys_not_made(Selection(CAMPAIGNS)) == [
            each.launch_key for each in (news, welcome, old)
        ]
        log.store(news)  # again
    make(ledger, "news", 2, 1)
    assert log.campaigns()["news"] == old
    assert log.newest(CAMPAIGNS) == [welcome, old]
    assert log.of_keys([news.launch_key, welcome.launch_key]) == [welcome]
    make(ledger, "welcome", 5, 1)
    periods = {
        (each.campaign, each.end - PERIOD.end) for each in ledger.overview.periods(["news", "welcome"])
    }
    assert periods == {
        (name, timedelta(days=day))
        for name, day in (("news", 0), ("news", 2), ("welcome", 1), ("welcome", 5))
    }
    assert log.delete_before(welcome.checked_at) == 1
    assert log.newest() == [other, welcome]


def test_an_erased_person_is_no_recipient_in_the_list(
    ledger: Ledger, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "the secret of this test, which is long enough")
    forget(ledger, [1], identified_by="device_id", who="ann", reason="asked", now=NOW)
    selection = Selection.of([ledger.launches.get(key) for key in keys.values()])
    found = {each.launch.campaign: each.recipients for each in ledger.overview.page(selection)}
    assert found == {"spring_sale": 2, "welcome": 0, "news": 1}
