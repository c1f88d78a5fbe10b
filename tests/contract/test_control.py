"""Pausing, stopping, holding and settling launches while workers send, checked against the service's record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.dispatch.checks import check_refusals
from sendoff.dispatch.control import pause, pause_all, release, resolve, resume, resume_all, stop
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import SendResult, send_launch
from sendoff.errors import GateError, NotYetError, RefusedError
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.service.client import Client
from sendoff.states import Resolution

from ..factories import KEY, NOW
from ..waiting import PATIENCE
from . import sending
from .sending import fault, sent_to, work_at

service, connection = sending.service, sending.connection  # fixtures

EVERYBODY = list(range(1, 61))


def freeze(ledger: Ledger, *, people: int = 60, **fields: Any) -> None:
    sending.freeze(ledger, [Segment(integers([n])) for n in range(1, people + 1)], **fields)


class Announcing:
    """A client that pauses after a number of requests, announces this, and continues on a signal."""

    def __init__(self, client: Client, after: int) -> None:
        self._client = client
        self._left = threading.Semaphore(after)
        self.reached = threading.Event()
        self.has_more = threading.Event()

    def create_campaign(self, body: bytes) -> Any:
        if not self._left.acquire(blocking=False):
            self.reached.set()
            assert self.has_more.wait(PATIENCE)
        return self._client.create_campaign(body)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("halt", "go_on"),
    [
        (
            lambda ledger: pause(ledger, KEY, "ann", "wrong picture"),
            lambda ledger: resume(ledger, KEY, "ann", "fixed"),
        ),
        (
            lambda ledger: pause_all(ledger, "ann", "an outage"),
            lambda ledger: resume_all(ledger, "ann", "it is over"),
        ),
        (
            lambda ledger: pause_all(ledger, "ann", "an outage", connection="service"),
            lambda ledger: resume_all(ledger, "ann", "it is over", connection="service"),
        ),
    ],
    ids=["launch", "all", "connection"],
)
@pytest.mark.promise("hands/stop")
def test_after_a_pause_nothing_more_is_asked_of_the_service_and_it_goes_on_where_it_was(
    service: Any,
    ledger: Ledger,
    connection: ServiceConnection,
    halt: Callable[[Ledger], None],
    go_on: Callable[[Ledger], None],
) -> None:
    freeze(ledger)
    announcing = Announcing(connection.client, after=5)
    watched = replace(connection, client=announcing)  # type: ignore[arg-type]

    def worker() -> None:
        with pytest.raises(NotYetError, match=r"paused.* by ann"):
            send_launch(ledger, KEY, watched)

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(worker) for _ in range(2)]
        assert announcing.reached.wait(PATIENCE)
        halt(ledger)
        accepted = service.admin("campaigns")["total"]
        announcing.has_more.set()
        for each in working:
            each.result(PATIENCE)
    asked = service.admin("campaigns")["total"]
    assert asked <= accepted + 2, "beyond what each of two workers was asking at that moment"
    assert ledger.dispatch_queries.states(KEY) == {"accepted": asked, "planned": 60 - asked}
    with pytest.raises(NotYetError) as caught:
        work_at(ledger, connection)
    assert caught.value.until == NOW + timedelta(seconds=30)
    assert service.admin("campaigns")["total"] == asked
    go_on(ledger)
    assert send_launch(ledger, KEY, connection) == SendResult(accepted=60 - asked)
    assert sent_to(service) == EVERYBODY


def test_a_launch_goes_on_in_the_copy_of_its_ledger_and_there_alone(
    service: Any, ledger: Ledger, connection: ServiceConnection, empty_postgres_url: str
) -> None:
    freeze(ledger)
    announcing = Announcing(connection.client, after=7)
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(send_launch, ledger, KEY, replace(connection, client=announcing))  # type: ignore[arg-type]
        assert announcing.reached.wait(PATIENCE)
        pause_all(ledger, "ann", "moving the ledger")
        announcing.has_more.set()
        assert isinstance(working.exception(PATIENCE), NotYetError)
    with closing(Ledger(empty_postgres_url)) as copy:
        copy.migrate()
        copy.copy_from(ledger)
        resume_all(copy, "ann", "moved the ledger")
        with pytest.raises(GateError, match="this ledger was moved to"):  # in a shell with the old URL
            resume_all(ledger, "ann", "moved the ledger")
        with pytest.raises(NotYetError, match="this ledger was moved to"):
            send_launch(ledger, KEY, connection)
        assert send_launch(copy, KEY, connection).accepted < 60
    assert sent_to(service) == EVERYBODY


def test_a_global_pause_of_another_connection_holds_nothing(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, people=3)
    pause_all(ledger, "ann", "an outage", connection="another")
    assert work_at(ledger, connection) == SendResult(accepted=3)
    assert sent_to(service) == [1, 2, 3]


def test_what_is_paused_can_be_stopped(service: Any, ledger: Ledger, connection: ServiceConnection) -> None:
    freeze(ledger, people=3)
    pause(ledger, KEY, "ann", "wrong picture")
    stop(ledger, KEY, "ann", "it cannot be mended")
    assert work_at(ledger, connection) == SendResult()
    assert sent_to(service) == []


@pytest.mark.parametrize(
    ("kind", "result", "said"),
    [
        ("403", SendResult(refused=3), "3 of the last 3 requests were refused by the service"),
        (
            "500",
            SendResult(in_doubt=3),
            "3 of the last 3 requests got no clear answer from the service",
        ),
    ],
)
@pytest.mark.promise("hands/failures")
def test_a_service_that_fails_every_request_holds_the_launch_until_a_person_releases_it(
    service: Any, ledger: Ledger, connection: ServiceConnection, kind: str, result: SendResult, said: str
) -> None:
    freeze(ledger, people=10)
    fault(service, kind, 5)
    with pytest.raises(GateError, match=f"is held: {said}; fewer than 3 are allowed"):
        work_at(ledger, connection)
    states = ledger.dispatch_queries.states(KEY)
    assert states == {"planned": 7, "refused" if result.refused else "in_doubt": 3}
    release(ledger, KEY, "ann", "they say it works again", now=NOW + timedelta(minutes=1))
    assert work_at(ledger, connection, NOW + timedelta(minutes=2)).accepted == 5
    assert sent_to(service) == [6, 7, 8, 9, 10]


def test_refusals_here_and_there_hold_nothing(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, people=40, gates={"failures": {"refused": 3, "of": 10}})
    fault(service, "403", 2)
    assert work_at(ledger, connection) == SendResult(accepted=38, refused=2)
    assert len(sent_to(service)) == 38


def test_a_launch_without_the_gate_is_never_held(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, people=10, gates={"failures": None})
    fault(service, "403", 8)
    assert work_at(ledger, connection) == SendResult(accepted=2, refused=8)
    assert sent_to(service) == [9, 10]


def test_a_refusal_that_a_person_saw_fails_the_run_no_more(
    ledger: Ledger, service: Any, connection: ServiceConnection
) -> None:
    freeze(ledger, people=5)
    fault(service, "403", 3)
    with pytest.raises(GateError):
        work_at(ledger, connection)
    with pytest.raises(RefusedError, match="refused 3 requests"):
        check_refusals(ledger, KEY)
    release(ledger, KEY, "ann", "those are known", now=NOW + timedelta(minutes=1))
    check_refusals(ledger, KEY)
    fault(service, "403", 1)
    assert work_at(ledger, connection, NOW + timedelta(minutes=2)) == SendResult(accepted=1, refused=1)
    with pytest.raises(RefusedError, match="refused 1 request"):
        check_refusals(ledger, KEY)


def test_what_is_in_doubt_is_sent_again_once_somebody_says_so(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, people=2)
    fault(service, "500", 1)
    assert work_at(ledger, connection) == SendResult(accepted=1, in_doubt=1)
    assert work_at(ledger, connection) == SendResult()
    (doubt,) = ledger.doubts.open(KEY)
    resolve(ledger, doubt.dispatch_key, Resolution.RESEND, "ann", "the service lost it", now=NOW)
    assert work_at(ledger, connection) == SendResult(accepted=1)
    assert sent_to(service) == [1, 2]
    with pytest.raises(GateError, match="is not in doubt"):
        resolve(ledger, doubt.dispatch_key, Resolution.RESEND, "bob", "me too", now=NOW)


def test_with_on_doubt_resend_a_doubt_is_sent_again_once(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, people=1, on_doubt="resend")
    fault(service, "500", 2)
    assert work_at(ledger, connection) == SendResult(in_doubt=2)
    assert work_at(ledger, connection) == SendResult()
    (doubt,) = ledger.doubts.open(KEY)
    assert doubt.attempt == 2
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert (decision.kind, decision.who, decision.why) == ("resend_dispatch", "sendoff", "on_doubt: resend")


def test_who_was_in_doubt_stays_so_whatever_a_later_attempt_says(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, people=3, on_doubt="resend")
    fault(service, "500", 1)
    fault(service, "403", 1)
    assert work_at(ledger, connection) == SendResult(accepted=2, refused=1, in_doubt=1)
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert figures.dispatches == {"accepted": 2, "refused": 1}
    assert (figures.verdicts["in_doubt"], figures.verdicts["not_sent"]) == (1, 0)


@pytest.mark.promise("hands/rate")
def test_the_rate_is_that_of_all_workers_together(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, people=12)
    lock, moment, made = threading.Lock(), [NOW], []

    def now() -> datetime:
        with lock:
            return moment[0]

    def sleep(seconds: float) -> None:
        with lock:
            moment[0] += timedelta(seconds=seconds)

    claimed = ledger.dispatches.claim

    def claim(*arguments: Any, **more: Any) -> Any:
        taken = claimed(*arguments, **more)
        if taken:
            made.append(taken.not_before)
        return taken

    ledger.dispatches.claim = claim  # type: ignore[method-assign]
    slow = replace(connection, rate=4.0)
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(send_launch, ledger, KEY, slow, now=now, sleep=sleep) for _ in range(4)]
        assert sum(each.result(PATIENCE).accepted for each in results) == 12
    made.sort()
    assert min(later - earlier for earlier, later in pairwise(made)) >= timedelta(seconds=0.25)
    assert sent_to(service) == EVERYBODY[:12]
