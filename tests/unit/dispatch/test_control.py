"""Decisions about launches, in Python and at the command line; the audit log records who made them and why."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from sendoff.campaign import launch_key
from sendoff.cli.commands import app
from sendoff.dispatch.control import (
    doubts,
    pause,
    pause_all,
    reject,
    release,
    release_all,
    resolve,
    resolve_seen,
    resume,
    resume_all,
    stop,
    stop_all,
)
from sendoff.dispatch.winner import proposal_of
from sendoff.errors import GateError, NotFoundError, SettingsError
from sendoff.ledger import Claim, Decision, Doubt, Ledger
from sendoff.ledger.storage.schema import decisions
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused, Resolution

from ...factories import KEY, LEASE, NOW, PERIOD, claimed, make_campaign, make_launch, post_back, send, store
from ...leases import end_leases


def freeze(
    ledger: Ledger,
    state: str,
    key: str = KEY,
    connection: str = "service",
    *,
    role: str | None = None,
    at: datetime = NOW,
) -> None:
    approval = {"needed": "always", "role": role}
    make_launch(
        ledger,
        campaign=make_campaign(approval=approval),
        connection=connection,
        launch_key=key,
        created_at=at,
        sends_at=None,
        state=state,
    )


@pytest.mark.parametrize(
    ("act", "state", "after"),
    [
        (release, "held", "released"),
        (reject, "held", "rejected"),
        (stop, "held", "stopped"),
        (stop, "released", "stopped"),
        (stop, "paused", "stopped"),
        (pause, "released", "paused"),
    ],
)
def test_a_person_decides_once(ledger: Ledger, act: Callable[..., None], state: str, after: str) -> None:
    freeze(ledger, state)
    act(ledger, KEY, "ann", "so it is", now=NOW)
    assert ledger.launches.get(KEY).state == after
    with pytest.raises(GateError, match=f"launch {KEY} is {after}, so it cannot be {after}"):
        act(ledger, KEY, "bob", "me too", now=NOW)
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert decision == Decision(KEY, after, "ann", "so it is", NOW)


@pytest.mark.parametrize("act", [release, stop, pause, resume])
def test_nothing_follows_a_rejection(ledger: Ledger, act: Callable[..., None]) -> None:
    freeze(ledger, "rejected")
    with pytest.raises(GateError, match="is rejected, so it cannot be"):
        act(ledger, KEY, "ann", "a second thought")


def test_a_launch_that_is_not_there_is_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError):
        release(ledger, KEY, "ann", "so it is")


def test_what_somebody_of_a_role_must_agree_to_is_released_without_them_only_on_purpose(
    ledger: Ledger,
) -> None:
    freeze(ledger, "held", role="crm")
    with pytest.raises(
        GateError, match=r"waits for someone with the role crm, .* in Airflow.*--without-approval"
    ):
        release(ledger, KEY, "ann", "looks right", now=NOW)
    assert ledger.launches.get(KEY).state == "held"
    assert ledger.audit_log.of_launch(KEY) == []
    release(ledger, KEY, "ann", "they are all ill", without_approval=True, now=NOW)
    assert ledger.launches.get(KEY).state == "released"
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert (decision.kind, decision.who) == ("released", "ann")
    assert decision.why == "without the approval of the role crm: they are all ill"


@pytest.mark.parametrize("without_approval", [False, True])
def test_a_role_that_agreed_once_is_not_asked_again_where_requests_fail(
    ledger: Ledger, without_approval: bool
) -> None:
    freeze(ledger, "held", role="crm")
    assert ledger.audit_log.decide(Decision(KEY, "approved", "bob", None, NOW))
    assert ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "too many refused", NOW))
    release(ledger, KEY, "ann", "mended", without_approval=without_approval, now=NOW)
    assert ledger.audit_log.of_launch(KEY)[-1].why == "mended"


@pytest.mark.parametrize("without_approval", [False, True])
def test_a_launch_that_is_not_approved_in_time_is_rejected(ledger: Ledger, without_approval: bool) -> None:
    freeze(ledger, "held", role="crm" if without_approval else None)
    late = NOW + timedelta(hours=4, seconds=1)
    with pytest.raises(
        GateError, match=r"was not approved in time \(approval.within\), so it is rejected now"
    ):
        release(ledger, KEY, "ann", "looks right", without_approval=without_approval, now=late)
    assert ledger.launches.get(KEY).state == "rejected"
    (decision,) = ledger.audit_log.of_launch(KEY)
    why = "not approved within 4 hours (approval.within)"
    assert decision == Decision(KEY, "rejected", "no answer in time", why, late)


def test_whoever_may_not_approve_a_launch_does_not_reject_it_either(ledger: Ledger) -> None:
    freeze(ledger, "held", role="crm")
    with pytest.raises(GateError, match="waits for someone with the role crm"):
        release(ledger, KEY, "ann", "looks right", now=NOW + timedelta(days=1))
    assert ledger.launches.get(KEY).state == "held"


def test_a_launch_is_approved_up_to_the_last_moment(ledger: Ledger) -> None:
    freeze(ledger, "held")
    release(ledger, KEY, "ann", "looks right", now=NOW + timedelta(hours=4))
    assert ledger.launches.get(KEY).state == "released"


def test_only_the_first_approval_has_a_time_limit(ledger: Ledger) -> None:
    freeze(ledger, "released")
    assert ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "3 requests were refused", NOW))
    release(ledger, KEY, "ann", "mended", now=NOW + timedelta(days=20))
    assert ledger.launches.get(KEY).state == "released"


def test_the_question_in_airflow_has_its_own_time_limit(ledger: Ledger) -> None:
    make_launch(ledger, state="held", origin="spring scheduled__2026-03-02\naudience\n0123")
    release(ledger, KEY, "ann", "looks right", now=NOW + timedelta(days=20))
    assert ledger.launches.get(KEY).state == "released"


@pytest.mark.parametrize("act", [reject, stop])
def test_what_waits_for_a_role_may_be_ended_by_anybody(ledger: Ledger, act: Callable[..., None]) -> None:
    freeze(ledger, "held", role="crm")
    act(ledger, KEY, "ann", "the wrong picture", now=NOW)
    assert claim(ledger) is None


@pytest.mark.parametrize(
    ("command", "after", "said"),
    [
        (
            "release",
            "released",
            (
                f"is released. To continue it from a shell, run: sendoff send {KEY[:12]}. "
                "In Airflow, clear its tasks that failed or await approval"
            ),
        ),
        ("stop", "stopped", "is stopped: 1 request will never be made"),
    ],
)
@pytest.mark.promise("hands/who")
def test_the_command_line_decides_in_the_name_of_who_runs_it(
    tmp_path: Path, command: str, after: str, said: str
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger(url)
    ledger.migrate()
    freeze(ledger, "held", at=datetime.now(UTC))
    done = CliRunner().invoke(app, [command, KEY[:8], "--why", "looks right", "--ledger", url])
    assert (done.exit_code, done.output) == (0, f"launch {KEY} {said}\n")
    assert ledger.launches.get(KEY).state == after
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert (decision.who, decision.why) == (getpass.getuser(), "looks right")
    ledger.close()


@pytest.mark.parametrize("command", ["release", "stop", "pause", "resume"])
def test_the_command_line_asks_for_a_reason(command: str) -> None:
    done = CliRunner().invoke(app, [command, KEY])
    assert done.exit_code == 2
    assert "why" in done.output


OTHER = launch_key("another", "spring", PERIOD)


def claim(ledger: Ledger, key: str = KEY, *, worker: str = "w") -> Claim | None:
    return ledger.dispatches.claim(key, worker=worker, now=NOW, lease=LEASE)


def test_a_pause_ends_where_it_began(ledger: Ledger) -> None:
    freeze(ledger, "released")
    pause(ledger, KEY, "ann", "wrong picture", now=NOW)
    assert claim(ledger) is None
    resume(ledger, KEY, "bob", "fixed", now=NOW)
    assert claim(ledger) is not None
    assert [(each.kind, each.who) for each in ledger.audit_log.of_launch(KEY)] == [
        ("paused", "ann"),
        ("resumed", "bob"),
    ]


def test_what_is_held_is_not_released_by_a_resume(ledger: Ledger) -> None:
    freeze(ledger, "held")
    with pytest.raises(GateError, match="is held, so it cannot be resumed"):
        resume(ledger, KEY, "ann", "go on")


def test_a_global_pause_holds_its_scope_and_no_other(ledger: Ledger) -> None:
    freeze(ledger, "released")
    freeze(ledger, "released", OTHER, "another")
    pause_all(ledger, "ann", "an outage", connection="another", now=NOW)
    with pytest.raises(GateError, match="already paused"):
        pause_all(ledger, "bob", "an outage", connection="another")
    assert claim(ledger, OTHER) is None
    assert claim(ledger) is not None
    assert [astuple(each) for each in ledger.pauses.all()] == [
        ("connection:another", "ann", "an outage", NOW)
    ]
    with pytest.raises(GateError, match="not paused"):
        resume_all(ledger, "ann", "it is over")
    resume_all(ledger, "ann", "it is over", connection="another")
    assert claim(ledger, OTHER) is not None
    with ledger._database.read() as db:
        rows = db.execute(sa.select(decisions.c.launch_key, decisions.c.kind, decisions.c.detail))
        assert [tuple(row) for row in rows] == [
            (None, "paused", {"scope": "connection:another"}),
            (None, "resumed", {"scope": "connection:another"}),
        ]


@pytest.mark.promise("hands/stop")
def test_a_global_pause_on_all_holds_also_what_is_made_later(ledger: Ledger) -> None:
    pause_all(ledger, "ann", "an outage", now=NOW)
    freeze(ledger, "released")
    assert claim(ledger) is None


def test_all_of_a_connection_are_stopped_where_something_is_left(ledger: Ledger) -> None:
    freeze(ledger, "released")
    freeze(ledger, "held", OTHER, "another")
    made = launch_key("another", "made", PERIOD)
    freeze(ledger, "released", made, "another")
    taken = claimed(ledger, made)
    ledger.dispatches.record(taken, Accepted(200, 1), NOW)
    assert stop_all(ledger, "ann", "it is over", connection="another", now=NOW) == [OTHER]
    assert stop_all(ledger, "ann", "it is over", now=NOW) == [KEY]
    assert ledger.launches.get(made).state == "released"
    assert ledger.audit_log.of_launch(OTHER) == [Decision(OTHER, "stopped", "ann", "it is over", NOW)]


@pytest.mark.parametrize("again", [NotProcessed("no connection"), InDoubt("no answer")])
@pytest.mark.parametrize("is_stopped_in_flight", [True, False])
def test_what_was_being_sent_when_all_was_stopped_is_not_sent_again(
    ledger: Ledger, again: Outcome, is_stopped_in_flight: bool
) -> None:
    freeze(ledger, "released")
    taken = claimed(ledger)
    if is_stopped_in_flight:
        assert stop_all(ledger, "ann", "it is over", now=NOW) == [KEY]
    ledger.dispatches.record(taken, again, NOW)
    if not is_stopped_in_flight:
        assert stop_all(ledger, "ann", "it is over", now=NOW) == [KEY]
    ledger.doubts.resolve(taken.dispatch_key, Resolution.RESEND, "sendoff", "on_doubt: resend", NOW)
    assert claim(ledger) is None


def test_nothing_is_released_with_the_rest_of_which_nothing_is_planned(ledger: Ledger) -> None:
    in_doubt(ledger)
    assert ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "too many in doubt", NOW))
    assert release_all(ledger, "ann", "the service works again", now=NOW) == []


def test_what_waits_for_approval_is_not_released_with_the_rest(ledger: Ledger) -> None:
    freeze(ledger, "held")
    freeze(ledger, "released", OTHER, "another")
    assert ledger.audit_log.decide(Decision(OTHER, "held", "sendoff", "too many refused", NOW))
    assert release_all(ledger, "ann", "the service works again", now=NOW) == [OTHER]
    assert ledger.launches.get(KEY).state == "held"


def in_doubt(ledger: Ledger) -> str:
    freeze(ledger, "released")
    taken = claimed(ledger)
    ledger.dispatches.record(taken, InDoubt("no answer"), NOW)
    return taken.dispatch_key


@pytest.mark.parametrize(
    ("how", "state", "kind"),
    [
        (Resolution.RESEND, "planned", "resend_dispatch"),
        (Resolution.WRITE_OFF, "written_off", "write_off_dispatch"),
    ],
)
def test_a_doubt_is_settled_once_and_in_somebodys_name(
    ledger: Ledger, how: Resolution, state: str, kind: str
) -> None:
    key = in_doubt(ledger)
    resolve(ledger, key, how, "ann", "asked the service", now=NOW)
    assert ledger.dispatch_queries.states(KEY) == {state: 1}
    with pytest.raises(GateError, match="not in doubt"):
        resolve(ledger, key, how, "bob", "me too", now=NOW)
    detail = {"dispatch": key, "segment": 1}
    assert ledger.audit_log.of_launch(KEY) == [Decision(KEY, kind, "ann", "asked the service", NOW, detail)]


def test_post_backs_that_were_not_read_yet_resolve_a_doubt_before_a_person_does(ledger: Ledger) -> None:
    key = in_doubt(ledger)
    store(ledger, post_back(key, "delivery", 7))
    assert resolve_seen(ledger, {key: 1}, Resolution.RESEND, "ann", "let us try") == 0
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1}


def test_a_person_does_not_settle_a_doubt_that_unread_post_backs_resolve(ledger: Ledger) -> None:
    key = in_doubt(ledger)
    store(ledger, post_back(key, "delivery", 7))
    with pytest.raises(GateError, match="not in doubt"):
        resolve(ledger, key, Resolution.RESEND, "ann", "let us try")
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1}


def test_several_doubts_are_settled_now(ledger: Ledger) -> None:
    key, before = in_doubt(ledger), datetime.now(UTC)
    assert resolve_seen(ledger, {key: 1}, Resolution.WRITE_OFF, "ann", "nobody knows") == 1
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert before <= decision.decided_at <= datetime.now(UTC)


def test_of_many_who_settle_a_doubt_at_once_one_does(ledger: Ledger) -> None:
    key = in_doubt(ledger)

    def settle(number: int) -> bool:
        how = Resolution.RESEND if number % 2 else Resolution.WRITE_OFF
        return ledger.doubts.resolve(key, how, f"person {number}", "so it is", NOW)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(settle, range(8))) == [False] * 7 + [True]
    assert len(ledger.audit_log.of_launch(KEY)) == 1


def test_nothing_is_planned_again_of_a_launch_that_is_over(ledger: Ledger) -> None:
    key = in_doubt(ledger)
    stop(ledger, KEY, "ann", "it is over", now=NOW)
    with pytest.raises(GateError, match="its launch is stopped or rejected"):
        resolve(ledger, key, Resolution.RESEND, "ann", "let us try", now=NOW)
    resolve(ledger, key, Resolution.WRITE_OFF, "ann", "nobody will know", now=NOW)


def test_a_dispatch_that_is_not_there_is_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError, match="no dispatch"):
        resolve(ledger, "0" * 32, "resend", "ann", "let us try")


def test_a_doubt_is_listed_with_what_is_known_of_it(ledger: Ledger) -> None:
    key = in_doubt(ledger)
    (doubt,) = doubts(ledger, KEY, now=NOW)
    assert doubt == Doubt(key, KEY, "spring", 1, 0, 1, NOW, "no answer", 0)
    assert doubts(ledger, OTHER, now=NOW) == []


def test_a_dead_workers_dispatch_is_listed_too(ledger: Ledger) -> None:
    freeze(ledger, "released")
    assert claim(ledger)
    assert doubts(ledger, now=NOW) == []
    end_leases(ledger)
    (doubt,) = doubts(ledger, now=NOW + 2 * LEASE)
    assert doubt.reason == "the worker stopped before it recorded an outcome"


@pytest.mark.parametrize("how", [None, *Resolution])
def test_evidence_stands_over_a_person(ledger: Ledger, how: Resolution | None) -> None:
    key = in_doubt(ledger)
    if how:
        resolve(ledger, key, how, "ann", "nobody knows", now=NOW)
    store(ledger, post_back(key, "delivery", 7))
    assert doubts(ledger, now=NOW) == []
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1}
    assert ledger.dispatch_queries.reasons(KEY, "evidence") == ["a post-back came from it"]


@pytest.mark.parametrize("how", list(Resolution))
@pytest.mark.parametrize(
    ("late", "state"), [(Accepted(200, 7), "accepted"), (Refused(400, "no"), None), (InDoubt("reset"), None)]
)
def test_an_acceptance_that_comes_late_stands_over_a_person(
    ledger: Ledger, how: Resolution, late: Outcome, state: str | None
) -> None:
    freeze(ledger, "released")
    slow = claimed(ledger)
    end_leases(ledger)
    (doubt,) = doubts(ledger, now=NOW + 2 * LEASE)
    resolve(ledger, doubt.dispatch_key, how, "ann", "nobody knows", now=NOW)
    ledger.dispatches.record(slow, late, NOW)
    decided = "planned" if how is Resolution.RESEND else "written_off"
    assert ledger.dispatch_queries.states(KEY) == {state or decided: 1}


@pytest.fixture
def ledger_and_url(migrated_url: str) -> Iterator[tuple[Ledger, str]]:
    ledger = Ledger(migrated_url)
    yield ledger, migrated_url
    ledger.close()


def said(url: str, *arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--ledger", url])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_line_pauses_and_resumes(ledger_and_url: tuple[Ledger, str]) -> None:
    ledger, url = ledger_and_url
    freeze(ledger, "released")
    paused = f"launch {KEY} is paused; no further request is made until it is resumed\n"
    assert said(url, "pause", KEY[:8], "--why", "wrong picture") == paused
    assert ledger.launches.get(KEY).state == "paused"
    assert "every launch of connection service is paused" in said(
        url, "pause", "--connection", "service", "--why", "an outage"
    )
    unused = "No launch uses the connection servcie so far. Connections with launches: service"
    assert unused in said(url, "pause", "--connection", "servcie", "--why", "an outage")
    assert "resumed" in said(url, "resume", "--connection", "servcie", "--why", "a slip")
    shown = said(url, "resume", KEY[:8], "--why", "fixed")
    assert shown.startswith(
        f"launch {KEY} is resumed; tasks that wait continue within half a minute\n"
        "but launches are paused (connection:service) by"
    )
    left = "not sent yet: 1 request; unless a task is sending the launch now, continue it with: airflow dags trigger"
    assert left in shown
    assert shown.endswith(f"or, if spring is not a DAG, with: sendoff send {KEY[:12]}\n")
    assert "every launch of connection service is resumed" in said(
        url, "resume", "--connection", "service", "--why", "over"
    )
    assert ledger.pauses.all() == []
    assert "stopped: 1 launch\n" in said(url, "stop", "--all", "--why", "over")


def test_a_pause_after_all_requests_says_that_it_came_too_late(ledger_and_url: tuple[Ledger, str]) -> None:
    ledger, url = ledger_and_url
    freeze(ledger, "released")
    send(ledger, KEY, Accepted(200, 7))
    for command in ("pause", "resume"):
        told = f"launch {KEY} is {command}d; all its requests had been made already\n"
        assert said(url, command, KEY[:8], "--why", "wrong picture") == told


def test_the_command_line_releases_what_waits_for_a_role_only_with_a_flag_that_is_kept(
    ledger_and_url: tuple[Ledger, str],
) -> None:
    ledger, url = ledger_and_url
    freeze(ledger, "held", role="crm", at=datetime.now(UTC))
    arguments = ["release", KEY[:8], "--why", "they are all ill"]
    done = CliRunner().invoke(app, [*arguments, "--ledger", url])
    assert isinstance(done.exception, GateError)
    assert ledger.launches.get(KEY).state == "held"
    assert f"launch {KEY} is released" in said(url, *arguments, "--without-approval")
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert (decision.who, decision.why) == (
        getpass.getuser(),
        "without the approval of the role crm: they are all ill",
    )


@pytest.mark.parametrize("others", [["--all"], ["--connection", "service"]])
def test_no_more_than_one_launch_is_released_without_approval(others: list[str]) -> None:
    arguments = ["release", *others, "--without-approval", "--why", "so it is", "--ledger", "sqlite://"]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, SettingsError)
    assert "--without-approval needs a launch" in str(done.exception)


def test_the_command_line_wants_one_launch_or_all() -> None:
    both = [KEY, "--all"], ["--all", "--connection", "service"]
    blank = [""], ["--connection", ""], ["", "--all"], ["--all", "--connection", ""]
    for given in ([], *both, *blank, ["", "--connection", "service"]):
        done = CliRunner().invoke(app, ["pause", *given, "--why", "so it is", "--ledger", "sqlite://"])
        assert isinstance(done.exception, SettingsError), done.output


def test_the_command_line_lists_and_settles_doubts(ledger_and_url: tuple[Ledger, str]) -> None:
    ledger, url = ledger_and_url
    assert said(url, "doubts") == "nothing is in doubt\n"
    key = in_doubt(ledger)
    assert f"{key[:12]}  spring, launch {KEY[:12]}, segment 1" in said(url, "doubts")
    (listed,) = json.loads(said(url, "doubts", KEY[:8], "--json"))
    assert (listed["dispatch_key"], listed["reason"], listed["post_backs"]) == (key, "no answer", 0)
    assert f"dispatch {key} is planned again" in said(url, "resolve", key[:8], "resend", "--why", "asked")
    assert ledger.audit_log.of_launch(KEY)[-1].who == getpass.getuser()


def test_a_blank_key_names_nothing_even_if_there_is_only_one(ledger_and_url: tuple[Ledger, str]) -> None:
    ledger, url = ledger_and_url
    in_doubt(ledger)
    for given in (["report", ""], ["resolve", "", "resend", "--why", "asked"]):
        done = CliRunner().invoke(app, [*given, "--ledger", url])
        assert isinstance(done.exception, NotFoundError), done.output


@pytest.mark.parametrize(
    ("state", "first"),
    [
        ("released", ""),
        ("paused", f"sendoff resume {KEY[:12]} --why TEXT; "),
        ("held", f"sendoff release {KEY[:12]} --why TEXT; "),
    ],
)
def test_what_is_planned_again_is_shown_with_the_command_that_sends_it(
    ledger_and_url: tuple[Ledger, str], state: str, first: str
) -> None:
    ledger, url = ledger_and_url
    key = in_doubt(ledger)
    if state != "released":
        ledger.audit_log.decide(Decision(KEY, state, "ann", "wait", NOW))
    command = (
        f"""{first}airflow dags trigger spring --conf '{{"launch": "{KEY}"}}', or, if spring is not a DAG, """
        f"with: sendoff send {KEY[:12]}"
    )
    told = (
        f"1 request of launch {KEY[:12]} is planned again and not sent yet; unless a task is sending the launch now, "
        f"continue it with: {command}\n"
    )
    assert said(url, "resolve", key, "resend", "--why", "asked") == f"dispatch {key} is planned again\n{told}"
    listed = f"{key[:12]}  spring, launch {KEY[:12]}, segment 1: planned again, not sent yet\n"
    for launch in ([], [KEY[:12]]):
        assert said(url, "doubts", *launch) == f"nothing is in doubt\n{listed}{told}"
    assert said(url, "report", KEY).endswith(told)


@pytest.mark.parametrize("what", ["sent", "sent and in doubt", "refused", "stopped", "never in doubt"])
def test_nothing_is_to_be_continued_where_no_request_waits(
    ledger_and_url: tuple[Ledger, str], what: str
) -> None:
    ledger, url = ledger_and_url
    if what == "never in doubt":
        freeze(ledger, "released")
    else:
        resolve(ledger, in_doubt(ledger), Resolution.RESEND, "ann", "asked", now=NOW)
    if what == "stopped":
        stop(ledger, KEY, "ann", "enough")
    elif what != "never in doubt":
        taken = claimed(ledger)
        outcome = {"sent": Accepted(200, 17), "refused": Refused(400, "no")}.get(what, InDoubt("no answer"))
        ledger.dispatches.record(taken, outcome, NOW)
    for command in (["doubts"], ["doubts", KEY], ["report", KEY]):
        assert "airflow dags trigger" not in said(url, *command)


def test_a_release_at_the_command_line_names_the_variant_for_the_rest(migrated_url: str) -> None:
    with closing(Ledger(migrated_url)) as other:
        deciding = make_campaign(
            variants={"plain": {"percent": 50}, "warm": {"percent": 50}},
            decide={
                "share": 40,
                "after": {"length": 2, "unit": "hours"},
                "otherwise": "plain",
                "by": "person",
            },
        )
        make_launch(other, [1, 2], campaign=deciding)
        detail = {"wave": 1, "winner": "warm"}
        other.audit_log.decide(Decision(KEY, "held", "sendoff", "warm is clearly ahead", NOW, detail))
        usual = ("release", KEY, "--why", "agreed", "--ledger", migrated_url)
        unnamed = CliRunner().invoke(app, usual)
        assert unnamed.exit_code != 0
        assert "Name one with --variant: plain, warm (proposed: warm)" in str(
            unnamed.exception or unnamed.output
        )
        assert proposal_of(other.launches.get(KEY), other.audit_log.of_launch(KEY))
        done = CliRunner().invoke(app, [*usual, "--variant", "warm"])
        assert done.exit_code == 0, done.output
        launch = other.launches.get(KEY)
        stopped = replace(launch, state="stopped", winner=None)
        assert proposal_of(stopped, other.audit_log.of_launch(KEY)) is None
    assert (launch.state, launch.winner, launch.wave) == ("released", "warm", 2)


def test_a_request_without_an_answer_is_in_doubt_from_the_moment_at_which_somebody_looks(
    ledger: Ledger,
) -> None:
    make_launch(ledger, [1])
    send(ledger, KEY, None)
    end_leases(ledger)
    later = NOW + timedelta(hours=1)
    assert [each.since for each in doubts(ledger, KEY, now=later)] == [later]
