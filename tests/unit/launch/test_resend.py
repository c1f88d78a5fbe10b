"""A period that is sent again to those who got nothing from its earlier launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.audience import Audience
from sendoff.audience.identifiers import integers, strings
from sendoff.audience.segmentation import Segment
from sendoff.campaign import CampaignFolder, Period, campaign_from
from sendoff.errors import (
    AudienceError,
    GateError,
    LateError,
    NobodyLeftError,
    PermanentError,
    RecipientsDeletedError,
    UsageError,
)
from sendoff.launch import LaunchOptions, prepare_launch, preview_campaign
from sendoff.ledger import Decision, LaunchRecord, LaunchSource, Ledger, NewLaunch, SuppressionChange
from sendoff.ledger.launches.launches import Launches
from sendoff.ledger.storage.schema import launches
from sendoff.postbacks import aggregate, reconcile_launch
from sendoff.report import as_text, describe_preview
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused, Resolution, Verdict

from ...factories import KEY, LEASE, NOW, PERIOD, PUSH, claimed, make_launch, post_back, send, store

DAY = timedelta(days=1)

ACCEPTED, REFUSED, DOUBT = Accepted(200, 17), Refused(400, "no"), InDoubt("reset")
EVERYONE = range(1, 7)


def folder(people: Any = EVERYONE, name: str = "spring", **fields: Any) -> CampaignFolder:
    """Return a campaign with two people to a request."""
    given = {
        "title": "Spring",
        "connection": "service",
        "message": {"title": "Spring", "text": "It is here"},
        "channels": {"android_push": {}},
        "segment_size": 2,
    }
    return campaign_from(given | fields, name, [{"device_id": who} for who in people])


def prepare(
    ledger: Ledger, resend: int = 0, *, given: CampaignFolder | None = None, **how: Any
) -> LaunchRecord:
    options = {"only_unsent": True, "reason": "it was refused"} if resend else {}
    period = how.pop("period", PERIOD)
    return prepare_launch(
        ledger,
        given or folder(),
        period=period,
        warehouses=str,
        options=LaunchOptions(resend=resend, **options | how),
        now=NOW,
    )


class Late(list[int]):
    """Everyone, read only after something else was done."""

    def __init__(self, before: Callable[[], object]) -> None:
        super().__init__(EVERYONE)
        self._before = before

    def __iter__(self) -> Iterator[int]:
        self._before()
        return super().__iter__()


def people_of(ledger: Ledger, launch: LaunchRecord) -> list[int]:
    return [int(who) for who in ledger.launches.audience(launch.launch_key)]


@pytest.mark.promise("twice/resend")
def test_those_who_got_nothing_are_those_whose_requests_were_refused_or_not_made(ledger: Ledger) -> None:
    first = prepare(ledger)
    send(ledger, first.launch_key, ACCEPTED, REFUSED)
    assert ledger.launches.got_nothing(first.launch_key) == {"refused": (1, 2)}
    assert ledger.audit_log.decide(Decision(first.launch_key, "stopped", "ann", None, NOW))
    assert ledger.launches.got_nothing(first.launch_key) == {"refused": (1, 2), "planned": (1, 2)}
    again = prepare(ledger, 1)
    assert people_of(ledger, again) == [3, 4, 5, 6]
    assert again.dropped["already_sent"] == 2
    assert "they got, or may have got" in ledger.launches.recipient(again.launch_key, 1).sentence
    (decision,) = (each for each in ledger.audit_log.of_launch(again.launch_key) if each.kind == "resend")
    assert decision.detail == {"resend": 1, "to": "those who got nothing"}


def test_recipients_whom_a_refused_request_left_out_are_counted_for_their_own_reason(ledger: Ledger) -> None:
    key = prepare(ledger).launch_key
    ledger.suppressions.add(SuppressionChange("account", "device_id", "csv", "ann"), [1, 5], NOW)
    send(ledger, key, REFUSED, ACCEPTED)
    assert ledger.audit_log.decide(Decision(key, "stopped", "ann", None, NOW))
    assert ledger.launches.got_nothing(key) == {"refused": (1, 1), "planned": (1, 2)}
    figures = reconcile_launch(ledger, key, now=NOW)
    assert figures.not_sent_because == {"refused": 1, "launch stopped": 2, "suppressed": 1}


def test_recipients_left_out_by_a_verdict_before_the_launch_was_stopped_count_for_it(ledger: Ledger) -> None:
    first = make_launch(ledger, range(1, 5), name="news", campaign=PUSH).launch_key
    (key,) = send(ledger, first, ACCEPTED)
    reminder = make_launch(
        ledger, range(1, 5), campaign=PUSH, sources=[LaunchSource(first, (), (Verdict.ENGAGED,))]
    ).launch_key
    store(ledger, post_back(key, "open", 1))
    ledger.suppressions.add(SuppressionChange("account", "device_id", "csv", "ann"), [2], NOW)
    aggregate(ledger, now=NOW)
    send(ledger, reminder, NotProcessed("busy"))
    assert ledger.audit_log.decide(Decision(reminder, "stopped", "ann", None, NOW))
    figures = reconcile_launch(ledger, reminder, now=NOW)
    assert figures.not_sent_because == {"opened since": 1, "launch stopped": 3}
    assert ledger.launches.got_nothing(reminder) == {"planned": (1, 3)}


@pytest.mark.promise("twice/resend")
@pytest.mark.parametrize(
    "became",
    ["planned", "in_flight", "in_doubt", "written off", "doubted and refused", "doubted and stopped"],
)
def test_who_may_have_got_it_or_may_still_get_it_is_left_out(ledger: Ledger, became: str) -> None:
    key = prepare(ledger, given=folder(range(1, 3))).launch_key
    if became == "in_flight":
        assert ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE)
    elif became != "planned":
        (dispatch,) = send(ledger, key, DOUBT)
        if became == "written off":
            assert ledger.doubts.resolve(dispatch, Resolution.WRITE_OFF, "ann", "old", NOW)
        if became.startswith("doubted"):
            assert ledger.doubts.resolve(dispatch, Resolution.RESEND, "ann", "again", NOW)
        if became.endswith("refused"):
            send(ledger, key, REFUSED)
        if became.endswith("stopped"):
            assert ledger.audit_log.decide(Decision(key, "stopped", "ann", None, NOW))
    assert ledger.launches.got_nothing(key) == {}
    with pytest.raises(NobodyLeftError, match=r"none of the 2 rows is left \(2 already_sent\)"):
        prepare(ledger, 1, given=folder(range(1, 3)))
    assert people_of(ledger, prepare(ledger, 1)) == [3, 4, 5, 6]


@pytest.mark.promise("twice/resend")
@pytest.mark.parametrize("body", [b"{", b'{"device": {"id": 999}, "campaign": {"id": 17}}'])
def test_a_request_that_a_restored_ledger_has_forgotten_may_have_been_sent_if_a_post_back_came(
    ledger: Ledger, body: bytes
) -> None:
    key = prepare(ledger).launch_key
    send(ledger, key, ACCEPTED)
    forgotten = ledger.dispatch_queries.of_launch(key)[1].dispatch_key  # its attempt came after the backup
    assert ledger.audit_log.decide(Decision(key, "stopped", "ann", None, NOW))
    store(ledger, PostBack.received("delivery", forgotten, NOW, body))
    figures = reconcile_launch(ledger, key, now=NOW)
    assert figures.not_sent_because == {"launch stopped": 2}
    assert (figures.verdicts["in_doubt"], figures.doubted) == (2, {"planned": 1})
    assert ledger.dispatch_queries.counts(key).known_requests == {"accepted": 1, "in_doubt": 1, "planned": 1}
    assert ledger.overview.recipients_at_most([key]) == {key: 4}
    assert ledger.launches.got_nothing(key) == {"planned": (1, 2)}
    assert people_of(ledger, prepare(ledger, 1)) == [5, 6]


def test_a_written_off_request_that_turns_out_to_be_refused_was_not_sent(ledger: Ledger) -> None:
    key = prepare(ledger).launch_key
    claim = claimed(ledger, key)
    for outcome, resolved in ((DOUBT, Resolution.WRITE_OFF), (REFUSED, None)):
        ledger.dispatches.record(claim, outcome, NOW)
        assert not resolved or ledger.doubts.resolve(claim.dispatch_key, resolved, "ann", "old", NOW)
        assert ledger.launches.got_nothing(key) == ({} if resolved else {"written_off": (1, 2)})
    assert people_of(ledger, prepare(ledger, 1)) == [1, 2]


@pytest.mark.promise("twice/resend")
def test_a_refused_request_counts_as_sent_after_a_post_back_reports_a_delivery(ledger: Ledger) -> None:
    first = prepare(ledger)
    _, refused, _ = send(ledger, first.launch_key, ACCEPTED, REFUSED, REFUSED)
    store(ledger, post_back(refused, "delivery", 3))
    aggregate(ledger, now=NOW)
    assert ledger.launches.got_nothing(first.launch_key) == {"refused": (1, 2)}
    assert people_of(ledger, prepare(ledger, 1)) == [5, 6]


@pytest.mark.promise("twice/resend")
@pytest.mark.parametrize(("who", "in_doubt"), [(3, 1), (999, 2)], ids=["of a recipient", "of someone else"])
def test_recipients_of_a_refused_request_that_a_post_back_came_from_are_in_doubt(
    ledger: Ledger, who: int, in_doubt: int
) -> None:
    first = prepare(ledger)
    _, refused, _ = send(ledger, first.launch_key, ACCEPTED, REFUSED, REFUSED)
    store(ledger, post_back(refused, "open", who))
    figures = reconcile_launch(ledger, first.launch_key, now=NOW)
    assert figures.verdicts["in_doubt"] == in_doubt
    assert figures.not_sent_because == {"refused": 2}
    assert ledger.launches.got_nothing(first.launch_key) == {"refused": (1, 2)}
    assert ledger.launches.recipient(first.launch_key, 4).sentence.startswith("may have been sent")
    assert people_of(ledger, prepare(ledger, 1)) == [5, 6]


@pytest.mark.promise("twice/resend")
def test_a_delivery_reported_after_the_resend_was_made_leaves_its_recipient_out(ledger: Ledger) -> None:
    first = prepare(ledger)
    refused, *_ = send(ledger, first.launch_key, REFUSED, ACCEPTED, ACCEPTED)
    again = prepare(ledger, 1)
    assert people_of(ledger, again) == [1, 2]
    store(ledger, post_back(refused, "delivery", 1))
    aggregate(ledger, now=NOW)
    claim = ledger.dispatches.claim(again.launch_key, worker="w", now=NOW, lease=LEASE)
    assert claim
    assert claim.content.identifiers == integers([2])


def reminder(audience: Any, rows: Any = None) -> CampaignFolder:
    given = {"audience": audience} if rows is None else {"audience": {"exclude": [audience]}}
    fields = folder().campaign.model_dump(include={"title", "connection", "message", "channels"})
    return campaign_from(fields | given, "reminder", rows)


def test_a_reminder_reaches_the_recipients_of_all_launches_of_the_period(ledger: Ledger) -> None:
    by_platform = [{"device_id": who, "platform": "android" if who % 2 else "ios"} for who in EVERYONE]
    spring = campaign_from(folder().campaign.model_dump(exclude_unset=True), "spring", by_platform)
    first = prepare(ledger, given=spring)
    early, _, _ = send(ledger, first.launch_key, ACCEPTED, ACCEPTED, REFUSED)
    again = prepare(ledger, 1, given=spring)
    (late,) = send(ledger, again.launch_key, ACCEPTED)
    everyone_again = prepare(ledger, 2, given=spring, only_unsent=False)
    third, *_ = send(ledger, everyone_again.launch_key, ACCEPTED, ACCEPTED, ACCEPTED)
    store(
        ledger,
        *(post_back(early, kind, who) for kind, who in (("delivery", 1), ("delivery", 2), ("open", 2))),
    )
    store(ledger, *(post_back(late, "delivery", who) for who in (5, 6)))
    store(ledger, post_back(third, "delivery", 2), post_back(third, "open", 1))

    source = {"kind": "verdicts", "of": "spring", "are": ["delivered"]}
    preview = preview_campaign(
        reminder({"source": source}), period=PERIOD, warehouses=str, ledger=ledger, now=NOW
    )
    sentence = f"They come from the 3 launches of spring for {PERIOD.key}: delivered."
    assert sentence in " ".join(as_text(describe_preview(preview)).split())
    reminded = prepare(ledger, given=reminder({"source": source}))
    assert people_of(ledger, reminded) == [5, 6]
    assert ledger.launches.groups(reminded.launch_key, "platform") == {
        "android": integers([5]),
        "ios": integers([6]),
    }
    assert len(ledger.launches.sources(reminded.launch_key)) == 3
    store(ledger, post_back(late, "open", 5))
    aggregate(ledger, now=NOW)
    assert claimed(ledger, reminded.launch_key).content.identifiers == integers([6])


def test_the_report_of_a_resend_starts_a_reminder_for_those_who_had_none(ledger: Ledger) -> None:
    """It also counts the launches before the resend, but none after it."""
    source = {"source": {"kind": "verdicts", "of": "spring", "are": ["delivered"]}}

    def remind(launch: LaunchRecord) -> list[int]:
        reminded = prepare(ledger, launch.resend, given=reminder(source), reported=launch.launch_key)
        return people_of(ledger, reminded)

    first = prepare(ledger)
    early, _, _ = send(ledger, first.launch_key, ACCEPTED, REFUSED, REFUSED)
    store(ledger, post_back(early, "delivery", 1))
    second = prepare(ledger, 1, given=folder(range(1, 5)))
    (late,) = send(ledger, second.launch_key, ACCEPTED)
    store(ledger, post_back(late, "delivery", 3))
    third = prepare(ledger, 2)
    (last,) = send(ledger, third.launch_key, ACCEPTED)
    store(ledger, post_back(last, "delivery", 5))
    assert remind(second) == [1, 3]  # the report of the first launch started none
    store(ledger, post_back(early, "delivery", 2))
    assert remind(third) == [2, 5]
    with pytest.raises(LateError, match="only_unsent"):
        remind(first)


def test_who_opened_any_launch_of_the_period_can_be_excluded(ledger: Ledger) -> None:
    early, *_ = send(ledger, prepare(ledger).launch_key, ACCEPTED, ACCEPTED, REFUSED)
    send(ledger, prepare(ledger, 1).launch_key, ACCEPTED)
    store(ledger, post_back(early, "open", 1))
    rows = [{"device_id": who} for who in EVERYONE]
    opened = {"kind": "verdicts", "of": "spring", "are": ["engaged"]}
    assert people_of(ledger, prepare(ledger, given=reminder(opened, rows))) == [2, 3, 4, 5, 6]


def test_only_people_who_got_nothing_from_any_launch_count_as_not_sent(ledger: Ledger) -> None:
    send(ledger, prepare(ledger).launch_key, ACCEPTED, REFUSED, REFUSED)
    send(ledger, prepare(ledger, 1).launch_key, ACCEPTED, REFUSED)
    unsent = {"kind": "verdicts", "of": "spring", "are": ["not_sent"], "reason": "got nothing"}
    rows = [{"device_id": who} for who in EVERYONE]
    assert people_of(ledger, prepare(ledger, given=reminder(unsent, rows))) == [1, 2, 3, 4]


def test_a_claim_knows_who_opened_any_launch_of_the_period(ledger: Ledger) -> None:
    """Of two launches, the more certain verdict counts when the reminder is frozen and when it is claimed."""
    first = send(ledger, prepare(ledger).launch_key, ACCEPTED, ACCEPTED, ACCEPTED)
    again = send(ledger, prepare(ledger, 1, only_unsent=False).launch_key, ACCEPTED, ACCEPTED, ACCEPTED)
    for dispatch in (first[0], again[0]):
        store(ledger, post_back(dispatch, "delivery", 1), post_back(dispatch, "delivery", 2))
    store(ledger, post_back(first[0], "open", 1), post_back(again[0], "open", 2))
    store(ledger, post_back(again[1], "delivery", 3))
    source = {"kind": "verdicts", "of": "spring", "are": ["engaged"]}
    opened = prepare(ledger, given=reminder({"source": source}))
    assert people_of(ledger, opened) == [1, 2]
    assert claimed(ledger, opened.launch_key).content.identifiers == integers([1, 2])
    delivered = {"kind": "verdicts", "of": "spring", "are": ["delivered"]}
    rows = [{"device_id": who} for who in (1, 2, 3)]
    others = campaign_from(reminder(delivered, rows).campaign, "summer", rows)
    rest = prepare(ledger, given=others)
    assert people_of(ledger, rest) == [1, 2]
    assert claimed(ledger, rest.launch_key).content.identifiers == integers([1, 2])


def test_launches_that_ended_before_they_sent_anything_do_not_count(ledger: Ledger) -> None:
    """They may have other recipients, who are not known or cannot be compared."""
    unlike = [{"segments": [Segment(None)]}, {"people": strings(["a"])}]
    for number, made in enumerate(unlike):
        key = make_launch(ledger, state="held", resend=number, **made).launch_key
        assert ledger.audit_log.decide(Decision(key, "rejected", "ann", None, NOW))
    again = prepare(ledger, 2)
    assert people_of(ledger, again) == list(EVERYONE)
    send(ledger, again.launch_key, ACCEPTED, ACCEPTED, ACCEPTED)
    source = {"kind": "verdicts", "of": "spring", "are": ["missing"], "unknowable": "include"}
    assert people_of(ledger, prepare(ledger, given=reminder({"source": source}))) == list(EVERYONE)


def test_the_control_group_of_one_launch_may_be_reminded_of_another(ledger: Ledger) -> None:
    make_launch(
        ledger, [1, 2, 5, 6], segments=[Segment(integers([1, 2]))], suppressed={"holdout": integers([5, 6])}
    )
    send(ledger, KEY, ACCEPTED)
    (dispatch,) = send(
        ledger, prepare(ledger, 1, given=folder([5, 7]), only_unsent=False).launch_key, ACCEPTED
    )
    store(ledger, post_back(dispatch, "delivery", 5))
    source = {"kind": "verdicts", "of": "spring", "are": ["delivered"]}
    assert people_of(ledger, prepare(ledger, given=reminder({"source": source}))) == [5]
    unsent = reminder({"source": source | {"are": ["not_sent"]}})
    with pytest.raises(NobodyLeftError):  # 6 is in the control group only
        prepare(ledger, given=campaign_from(unsent.campaign, "summer", None))


def test_launches_of_a_period_with_other_identifiers_are_not_taken_together(ledger: Ledger) -> None:
    prepare(ledger)
    people = strings(["a"])
    make_launch(ledger, people, resend=1)
    source = {"kind": "verdicts", "of": "spring", "are": ["delivered"]}
    with pytest.raises(
        AudienceError, match="identify people by device_id and user_id, so they cannot be comp"
    ):
        prepare(ledger, given=reminder({"source": source}))


@pytest.mark.parametrize("fields", [{}, {"schedule": "0 0 * * *"}])
def test_a_period_that_was_first_sent_with_a_resend_number_is_not_sent_without_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    regular, again = folder(**fields), folder(**fields)
    stopped = prepare(ledger, 1, given=again, only_unsent=False)
    assert ledger.audit_log.decide(Decision(stopped.launch_key, "stopped", "ann", None, NOW))
    freeze, others = Launches.freeze, [2]

    def overtaken(self: Launches, new: NewLaunch) -> LaunchRecord:
        if others:
            prepare(ledger, others.pop(), given=again, only_unsent=False)
        return freeze(self, new)

    monkeypatch.setattr(Launches, "freeze", overtaken)
    for _ in range(2):  # the resend is made while it is planned, and then before
        with pytest.raises(LateError, match=r"a launch of spring with the resend number 2.*only_unsent"):
            prepare(ledger, given=regular)
    assert sorted(each.resend for each in ledger.launches.search()) == [1, 2]


def test_each_resend_leaves_out_those_of_all_before(ledger: Ledger) -> None:
    first = prepare(ledger)
    send(ledger, first.launch_key, ACCEPTED, REFUSED, REFUSED)
    second = prepare(ledger, 1)
    send(ledger, second.launch_key, ACCEPTED, REFUSED)
    assert people_of(ledger, prepare(ledger, 2)) == [5, 6]
    with pytest.raises(NobodyLeftError):
        prepare(ledger, 3)  # the second resend may still be sent


def test_who_joined_the_audience_since_is_sent_to(ledger: Ledger) -> None:
    send(ledger, prepare(ledger).launch_key, ACCEPTED, ACCEPTED, ACCEPTED)
    assert people_of(ledger, prepare(ledger, 1, given=folder([5, 6, 7]))) == [7]


def test_launches_of_other_periods_campaigns_and_connections_do_not_count(ledger: Ledger) -> None:
    later = Period(PERIOD.start + DAY, PERIOD.end + DAY)
    half = Period(PERIOD.start, PERIOD.end - DAY / 2)
    for each in (later, half):
        prepare(ledger, period=each)
    prepare(ledger, given=folder(name="summer"))
    prepare(ledger, given=folder(connection="another"))
    prepare(ledger, period=Period(PERIOD.start, PERIOD.end, "west"))
    with pytest.raises(
        AudienceError, match="there is no earlier launch for the period 2026-03-01T00:00:00Z/2026"
    ):
        prepare(ledger, 1)
    send(ledger, prepare(ledger).launch_key, REFUSED, REFUSED, REFUSED)
    assert people_of(ledger, prepare(ledger, 1)) == list(EVERYONE)


def test_a_launch_for_a_part_of_the_period_counts_if_the_campaign_has_a_schedule(ledger: Ledger) -> None:
    """Such as the launch of a day after the schedule became weekly."""
    first = prepare(ledger, given=folder(range(1, 4), schedule="0 0 * * *"))
    week, weekly = Period(PERIOD.end - 7 * DAY, PERIOD.end), folder(schedule="0 0 * * 1")
    with pytest.raises(LateError, match="unless you choose only_unsent"):
        prepare(ledger, period=week, given=weekly)
    assert people_of(ledger, first) == [1, 2, 3]
    assert people_of(ledger, prepare(ledger, 1, period=week, given=weekly)) == [4, 5, 6]


def test_a_launch_under_an_earlier_name_counts(ledger: Ledger) -> None:
    prepare(ledger, given=folder(range(1, 4)))
    assert people_of(ledger, prepare(ledger, 1, given=folder(name="sale", formerly=["spring"]))) == [4, 5, 6]


def test_another_launch_made_while_it_is_planned_leaves_its_recipients_out(ledger: Ledger) -> None:
    send(ledger, prepare(ledger).launch_key, REFUSED, REFUSED, REFUSED)

    second = prepare(ledger, 2, given=folder(Late(lambda: prepare(ledger, 1, given=folder(range(1, 4))))))
    assert people_of(ledger, second) == [4, 5, 6]


def test_a_resend_that_another_overtakes_is_planned_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(ledger, prepare(ledger).launch_key, REFUSED, REFUSED, REFUSED)
    freeze, others = Launches.freeze, [1]

    def overtaken(self: Launches, new: NewLaunch) -> LaunchRecord:
        if others:
            prepare(ledger, others.pop(), given=folder(range(1, 4)))
        return freeze(self, new)

    monkeypatch.setattr(Launches, "freeze", overtaken)
    assert people_of(ledger, prepare(ledger, 2)) == [4, 5, 6]


def test_the_same_resend_made_meanwhile_is_the_same_launch(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(ledger, prepare(ledger).launch_key, REFUSED, REFUSED, REFUSED)
    find, others = Launches.find, [1]

    def overtaken(self: Launches, launch_key: str) -> LaunchRecord | None:
        found = find(self, launch_key)
        if others and found is None:
            prepare(ledger, others.pop())
        return found

    monkeypatch.setattr(Launches, "find", overtaken)
    assert people_of(ledger, prepare(ledger, 1)) == list(EVERYONE)
    assert len(ledger.launches.search()) == 2


def test_a_number_that_was_used_for_everyone_is_not_used_for_the_others_only(ledger: Ledger) -> None:
    """Otherwise, its planned requests would reach those who got the first launch."""
    send(ledger, prepare(ledger).launch_key, ACCEPTED, ACCEPTED, REFUSED)
    for_everyone = prepare(ledger, 1, only_unsent=False)
    for again in (prepare, lambda ledger, _: preview(ledger)):
        with pytest.raises(
            PermanentError, match=r"resend 1 of period .* was made before, for everyone in it"
        ):
            again(ledger, 1)
    assert prepare(ledger, 1, only_unsent=False) == for_everyone


def test_a_number_that_is_used_for_everyone_meanwhile_is_not_used_for_the_others_only(ledger: Ledger) -> None:
    send(ledger, prepare(ledger).launch_key, ACCEPTED, ACCEPTED, REFUSED)
    with pytest.raises(PermanentError, match="was made before, for everyone in it"):
        prepare(ledger, 1, given=folder(Late(lambda: prepare(ledger, 1, only_unsent=False))))


def test_it_is_not_guessed_who_got_nothing(ledger: Ledger) -> None:
    make_launch(ledger, segments=[Segment(None)], audience=None)
    with pytest.raises(AudienceError, match="the service chose the recipients of launch"):
        prepare(ledger, 1)
    make_launch(
        ledger, strings(["a"]), name="summer", audience=Audience("user_id", strings(["a"]), 1, {}, {})
    )
    with pytest.raises(
        AudienceError, match="people by user_id, this one by device_id, so they cannot be comp"
    ):
        prepare(ledger, 1, given=folder(name="summer"))


def test_deleted_recipients_are_not_taken_for_none(ledger: Ledger) -> None:
    key = prepare(ledger).launch_key
    with ledger._database.write() as db:
        db.execute(sa.update(launches).values(recipients_deleted_before=NOW))
    with pytest.raises(RecipientsDeletedError):
        prepare(ledger, 1)
    assert [each.launch_key for each in ledger.launches.search()] == [key]


def test_it_needs_a_resend_number_and_a_ledger() -> None:
    with pytest.raises(UsageError, match="only_unsent: there is no resend number"):
        LaunchOptions(only_unsent=True)
    with pytest.raises(AudienceError, match="no ledger was given"):
        preview(None)


def preview(ledger: Ledger | None) -> Any:
    options = LaunchOptions(resend=1, only_unsent=True)
    return preview_campaign(folder(), period=PERIOD, warehouses=str, ledger=ledger, options=options, now=NOW)


def test_a_preview_shows_who_would_be_left_out_and_does_not_say_that_it_was_launched(ledger: Ledger) -> None:
    first = prepare(ledger)
    send(ledger, first.launch_key, ACCEPTED, REFUSED, REFUSED)
    shown = preview(ledger).to_json()
    assert (shown["people"], shown["dropped"]["already_sent"]) == (4, 2)
    assert shown["existing_launch"] is None
    prepare(ledger, 1)
    assert preview(ledger).to_json()["existing_launch"]


def test_the_change_since_the_last_launch_counts_those_left_out(ledger: Ledger) -> None:
    gates = {"gates": {"change": 10}}
    before = Period(PERIOD.start - DAY, PERIOD.end - DAY)
    prepare(ledger, given=folder(**gates), period=before)
    send(ledger, prepare(ledger, given=folder(**gates)).launch_key, ACCEPTED, ACCEPTED, REFUSED)
    again = prepare(ledger, 1, given=folder(**gates))
    (checked,) = (each for each in ledger.audit_log.of_launch(again.launch_key) if each.kind == "gates")
    (change,) = (gate for gate in checked.detail["gates"] if gate["name"] == "change")
    assert "6 (before those already sent to were left out), 0.0 % more" in change["actual"]


def test_the_least_number_of_people_counts_those_left_out(ledger: Ledger) -> None:
    first = prepare(ledger)
    send(ledger, first.launch_key, ACCEPTED, ACCEPTED, REFUSED)
    with pytest.raises(
        GateError, match=r"gates.least: 2 devices, and 4 already sent to \(allowed: at least 7\)"
    ):
        prepare(ledger, 1, given=folder(gates={"least": 7}))
    assert people_of(ledger, prepare(ledger, 1, given=folder(gates={"least": 6}))) == [5, 6]


def test_a_preview_counts_those_already_sent_to_in_the_last_launch(ledger: Ledger) -> None:
    send(ledger, prepare(ledger).launch_key, ACCEPTED, ACCEPTED, REFUSED)
    assert people_of(ledger, prepare(ledger, 1)) == [5, 6]
    later = Period(PERIOD.start + DAY, PERIOD.end + DAY)
    shown = preview_campaign(folder(range(2, 9)), period=later, warehouses=str, ledger=ledger, now=NOW)
    assert shown.change
    assert (shown.change.kept, shown.change.new, shown.change.gone) == (5, 2, 1)


@pytest.mark.parametrize("opened", [(1,), (1, 2, 3)], ids=["one opened", "three opened"])
@pytest.mark.parametrize("how", [Resolution.RESEND, Resolution.WRITE_OFF])
@pytest.mark.parametrize("late", [REFUSED, NotProcessed("busy")], ids=["refused", "not processed"])
def test_those_left_out_by_a_verdict_count_once_if_a_late_outcome_clears_a_doubt(
    ledger: Ledger, how: Resolution, late: Outcome, opened: tuple[int, ...]
) -> None:
    first = make_launch(ledger, range(1, 5), name="news", campaign=PUSH).launch_key
    (sent,) = send(ledger, first, ACCEPTED)
    reminder = make_launch(
        ledger, range(1, 5), campaign=PUSH, sources=[LaunchSource(first, (), (Verdict.ENGAGED,))]
    ).launch_key
    for who in opened:
        store(ledger, post_back(sent, "open", who))
    aggregate(ledger, now=NOW)
    claim = claimed(ledger, reminder)
    ledger.dispatches.record(claim, DOUBT, NOW)
    assert ledger.doubts.resolve(claim.dispatch_key, how, "ann", "again", NOW)
    ledger.dispatches.record(claim, late, NOW)
    assert ledger.audit_log.decide(Decision(reminder, "stopped", "ann", None, NOW))
    (found,) = ledger.launches.got_nothing(reminder).values()
    assert found.recipients == 4 - len(opened)
    assert reconcile_launch(ledger, reminder, now=NOW).not_sent_because["launch stopped"] == 4 - len(opened)
