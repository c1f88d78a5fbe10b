"""The dispatch loop against the real service: each recipient is sent to once, whatever happens in between."""

from __future__ import annotations

import _thread
import json
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.client import parse_headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
import sqlalchemy as sa
from requests.adapters import HTTPAdapter

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign
from sendoff.dispatch.checks import check_all_sent, check_refusals
from sendoff.dispatch.control import pause, reject, release, stop
from sendoff.dispatch.policy import SendPolicy
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import (
    LEASE,
    SendResult,
    _WorkerPool,
    send_launch,
)
from sendoff.errors import (
    GateError,
    LedgerUnavailableError,
    NotYetError,
    PermanentError,
    RefusedError,
    RetryableError,
    SettingsError,
)
from sendoff.ledger import Decision, Ledger
from sendoff.ledger.requests.dispatch_queries import Progress
from sendoff.ledger.storage.schema import attempts, dispatches
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource
from sendoff.service.wire import FieldNames
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome

from ..factories import KEY, NOW, make_audience, make_campaign, make_launch
from ..leases import end_leases, expire
from ..waiting import PATIENCE

ADDRESSES = PostBackSigner("http://127.0.0.1:9", ["x" * 32])
PUSH = make_campaign(post_backs={"kinds": []})


def freeze(
    ledger: Ledger,
    *,
    count: int = 5,
    size: int = 2,
    campaign: Campaign = PUSH,
    identified_by: str = "device_id",
    state: str = "released",
) -> None:
    people = integers(range(1, count + 1))
    audience = make_audience(people, identified_by=identified_by)
    make_launch(ledger, people, size=size, audience=audience, campaign=campaign, state=state)


def sender_to(base_url: str, client_id: str, client_secret: str) -> ServiceConnection:
    session = requests.Session()
    tokens = TokenSource(ClientSecret(client_id, client_secret), base_url, session)
    return ServiceConnection(Client(base_url, session, tokens), ADDRESSES, requests_at_once=1)


@pytest.fixture
def connection(service_process: Any) -> ServiceConnection:
    return sender_to(service_process.base_url, service_process.client_id, service_process.client_secret)


def targeted(service: Any, ledger: Ledger) -> list[int]:
    """Return all devices that the service was asked to send to by this launch's campaigns, with repetitions."""
    ids = [
        dispatch.campaign_id for dispatch in ledger.dispatch_queries.of_launch(KEY) if dispatch.campaign_id
    ]
    service.wait_until_quiet()
    return sorted(device for each in ids for device in service.admin(f"campaigns/{each}/truth")["targeted"])


@pytest.mark.promise("twice/once")
def test_every_segment_is_sent_once(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger)
    assert send_launch(ledger, KEY, connection) == SendResult(accepted=3)
    assert targeted(service_process, ledger) == [1, 2, 3, 4, 5]


def test_working_again_sends_nothing(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger)
    send_launch(ledger, KEY, connection)
    before = service_process.admin("campaigns")["total"]
    assert send_launch(ledger, KEY, connection) == SendResult()
    assert service_process.admin("campaigns")["total"] == before


@pytest.mark.promise("twice/intent")
def test_workers_at_once_share_the_segments(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=40, size=2)
    with ThreadPoolExecutor(4) as pool:
        results = [
            future.result()
            for future in [pool.submit(send_launch, ledger, KEY, connection) for _ in range(4)]
        ]
    assert sum(result.accepted for result in results) == 20
    assert targeted(service_process, ledger) == list(range(1, 41))


def test_the_title_carries_the_dispatch_key(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=2)
    send_launch(ledger, KEY, connection)
    (dispatch,) = ledger.dispatch_queries.of_launch(KEY)
    campaigns = service_process.admin("campaigns")["campaigns"]
    assert f"Spring [{dispatch.dispatch_key}]" in [campaign["title"] for campaign in campaigns]


def test_a_refusal_stops_nothing_and_is_told(service_process: Any, ledger: Ledger) -> None:
    names = FieldNames({"device_ids": "targets_of_another_service"})
    made = sender_to(service_process.base_url, service_process.client_id, service_process.client_secret)
    freeze(ledger)
    assert send_launch(ledger, KEY, replace(made, names=names)) == SendResult(refused=3)
    with pytest.raises(RefusedError, match="refused 3 requests"):
        check_refusals(ledger, KEY)


class LostResponses:
    """A service that reads a complete request and closes the connection without an answer, like a dying proxy."""

    def __init__(self, tokens: str) -> None:
        self.requests = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._tokens = tokens
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as request:
            line = request.readline()
            request.read(int(parse_headers(request)["Content-Length"]))
        if b"/oauth/token" not in line:
            self.requests += 1
            return
        body = self._tokens.encode()
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
        )

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.mark.promise("twice/doubt")
def test_a_lost_response_is_in_doubt_and_is_never_sent_again(ledger: Ledger) -> None:
    service = LostResponses(
        json.dumps({"access_token": "t" * 20, "token_type": "Bearer", "expires_in": 3600})
    )
    try:
        freeze(ledger, count=2)
        made = sender_to(service.base_url, "client", "secret")
        assert send_launch(ledger, KEY, made) == SendResult(in_doubt=1)
        assert send_launch(ledger, KEY, made) == SendResult()
        assert service.requests == 1
        assert ledger.dispatch_queries.states(KEY) == {"in_doubt": 1}
    finally:
        service.close()


@pytest.mark.promise("twice/doubt")
def test_a_worker_that_died_in_flight_leaves_a_doubt(ledger: Ledger, connection: ServiceConnection) -> None:
    freeze(ledger, count=2)
    ledger.dispatches.claim(KEY, worker="dead", now=NOW, lease=LEASE)
    end_leases(ledger)
    assert send_launch(ledger, KEY, connection, now=lambda: NOW) == SendResult()
    assert ledger.dispatch_queries.states(KEY) == {"in_doubt": 1}


def test_what_the_last_worker_left_is_sent_again_where_the_campaign_says_so(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=2, campaign=PUSH.model_copy(update={"on_doubt": "resend"}))
    ledger.dispatches.claim(KEY, worker="dead", now=NOW, lease=LEASE)
    wrong = NOW + timedelta(hours=1)  # the clock of the remaining worker
    with pytest.raises(NotYetError, match="last requests are in flight") as caught:
        send_launch(ledger, KEY, connection, now=lambda: wrong)
    assert LEASE - timedelta(minutes=2) < caught.value.until - wrong <= LEASE + timedelta(seconds=1)
    end_leases(ledger)
    assert send_launch(ledger, KEY, connection, now=lambda: wrong) == SendResult(accepted=1)
    assert targeted(service_process, ledger) == [1, 2]


@pytest.mark.parametrize(("on_doubt", "is_stopped"), [("hold", False), ("resend", True)])
def test_nobody_waits_for_the_last_worker_where_nothing_would_be_sent_again(
    ledger: Ledger, connection: ServiceConnection, on_doubt: str, is_stopped: bool
) -> None:
    freeze(ledger, count=2, campaign=PUSH.model_copy(update={"on_doubt": on_doubt}))
    ledger.dispatches.claim(KEY, worker="other", now=NOW, lease=LEASE)
    if is_stopped:
        stop(ledger, KEY, "ann", "wrong picture", now=NOW)
    assert send_launch(ledger, KEY, connection, now=lambda: NOW) == SendResult()


def test_a_request_that_cannot_be_written_leaves_everything_planned(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    template = {"title": "Spring", "template": {"id": 5, "channels": ["email"]}}
    freeze(ledger, campaign=Campaign.model_validate(template), identified_by="device_uuid")
    with pytest.raises(PermanentError, match="was not processed and stays planned"):
        send_launch(ledger, KEY, connection)
    assert ledger.dispatch_queries.states(KEY) == {"planned": 3}


def test_an_outcome_is_recorded_however_long_the_ledger_is_away(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=2)
    slept: list[float] = []

    def back_after_three(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            ledger.dispatches.record_and_claim = record  # type: ignore[method-assign]

    def away(*_: object, **__: object) -> None:
        raise LedgerUnavailableError("the ledger database did not answer")

    record = ledger.dispatches.record_and_claim
    ledger.dispatches.record_and_claim = away  # type: ignore[method-assign]
    assert send_launch(ledger, KEY, connection, sleep=back_after_three) == SendResult(accepted=1)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1}


def test_what_a_dead_worker_holds_is_not_yet_made(ledger: Ledger) -> None:
    freeze(ledger, count=2)
    ledger.dispatches.claim(KEY, worker="dead", now=datetime.now(UTC), lease=LEASE)
    now = datetime.now(UTC)
    with pytest.raises(NotYetError, match="dispatches in flight: 1") as caught:
        check_all_sent(ledger, KEY)
    assert LEASE - timedelta(minutes=2) < caught.value.until - now < LEASE + timedelta(minutes=2)
    end_leases(ledger)
    check_all_sent(ledger, KEY)
    assert ledger.dispatch_queries.states(KEY) == {"in_doubt": 1}


def nobody_waits(seconds: float) -> None:
    raise AssertionError(f"a worker slept for {seconds} s")


class Clock:
    """A clock that only moves when someone sleeps."""

    def __init__(self) -> None:
        self.moment = NOW
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.moment += timedelta(seconds=seconds)


class Patient:
    """A client that first answers some requests with a wait, and then sends the others."""

    def __init__(self, client: Client, *waits: float | None) -> None:
        self._client = client
        self._waits = list(waits)

    def create_campaign(self, body: bytes) -> Outcome:
        if self._waits:
            return NotProcessed("patience", retry_after=self._waits.pop(0), is_rate_limited=True)
        return self._client.create_campaign(body)


def test_a_wish_for_patience_is_granted(ledger: Ledger, connection: ServiceConnection) -> None:
    freeze(ledger, count=2)
    clock = Clock()
    patient = replace(connection, client=Patient(connection.client, 2.0, 3.0))  # type: ignore[arg-type]
    assert send_launch(ledger, KEY, patient, now=clock.now, sleep=clock.sleep) == SendResult(accepted=1)
    assert clock.slept == [2.0, 3.0]


def test_a_wish_for_patience_holds_for_every_worker(ledger: Ledger, connection: ServiceConnection) -> None:
    freeze(ledger, count=2)
    told = replace(connection, client=Patient(connection.client, 3600.0))  # type: ignore[arg-type]
    with pytest.raises(NotYetError):
        send_launch(ledger, KEY, told, now=lambda: NOW)
    with pytest.raises(NotYetError) as caught:
        send_launch(ledger, KEY, connection, now=lambda: NOW + timedelta(minutes=58), sleep=nobody_waits)
    assert caught.value.until == NOW + timedelta(hours=1)
    assert send_launch(ledger, KEY, connection, now=lambda: NOW + timedelta(hours=1)) == SendResult(
        accepted=1
    )


def test_a_wish_for_no_pause_is_granted_at_a_pace_and_not_for_ever(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=2)
    clock = Clock()
    hasty = replace(connection, client=Patient(connection.client, *[0.0] * 1000))  # type: ignore[arg-type]
    with pytest.raises(NotYetError) as caught:
        send_launch(ledger, KEY, hasty, now=clock.now, sleep=clock.sleep)
    assert caught.value.until == NOW + timedelta(seconds=61)
    assert clock.slept == [1.0] * 60
    assert ledger.dispatch_queries.states(KEY) == {"planned": 1}


class Sleepy(Ledger):
    """A ledger whose worker pauses right after its first claim; meanwhile, others look for dead workers and decide."""

    def __init__(self, url: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(url)
        self._meanwhile = [meanwhile]
        claim = self.dispatches.claim

        def claim_and_sleep(*arguments: Any, **more: Any) -> Any:
            claimed = claim(*arguments, **more)
            if self._meanwhile:
                self._meanwhile.pop()()
            return claimed

        self.dispatches.claim = claim_and_sleep  # type: ignore[method-assign]


@pytest.mark.parametrize("somebody_looks", [True, False])
def test_a_worker_that_slept_after_its_claim_makes_no_request_of_it_and_claims_again(
    service_process: Any, ledger: Ledger, connection: ServiceConnection, somebody_looks: bool
) -> None:
    freeze(ledger, count=2)
    clock = Clock()

    def meanwhile() -> None:
        clock.sleep(2 * LEASE.total_seconds() if somebody_looks else LEASE.total_seconds() / 10)
        if somebody_looks:
            assert expire(ledger, KEY, clock.now()) == 1

    slow = Sleepy(ledger._database.name, meanwhile)
    assert send_launch(slow, KEY, connection, now=clock.now, sleep=clock.sleep) == SendResult(accepted=1)
    slow.close()
    assert targeted(service_process, ledger) == [1, 2]
    assert ledger.dispatch_queries.of_launch(KEY)[0].attempt == 2
    assert ledger.dispatch_queries.reasons(KEY, "not_processed") == ["the claim is too old"]


def test_a_worker_that_slept_while_its_launch_was_stopped_sends_nothing(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=2)
    clock = Clock()
    before = service_process.admin("campaigns")["total"]

    def meanwhile() -> None:
        clock.sleep(2 * LEASE.total_seconds())
        stop(ledger, KEY, "ann", "wrong picture", now=clock.now())

    slow = Sleepy(ledger._database.name, meanwhile)
    assert send_launch(slow, KEY, connection, now=clock.now, sleep=clock.sleep) == SendResult()
    slow.close()
    assert service_process.admin("campaigns")["total"] == before
    assert ledger.dispatch_queries.states(KEY) == {"planned": 1}


def test_a_worker_that_slept_too_long_for_its_place_in_the_rate_makes_no_request_of_it(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=4)
    clock = Clock()

    def oversleep(seconds: float) -> None:
        clock.sleep(seconds if clock.slept else LEASE.total_seconds())

    fast = replace(connection, rate=10.0)
    assert send_launch(ledger, KEY, fast, now=clock.now, sleep=oversleep) == SendResult(accepted=2)
    assert sorted(each.attempt for each in ledger.dispatch_queries.of_launch(KEY)) == [1, 2]


@pytest.mark.parametrize("state", ["rejected", "stopped"])
def test_what_is_rejected_or_stopped_is_not_sent_and_counts_as_made(
    ledger: Ledger, connection: ServiceConnection, state: str
) -> None:
    freeze(ledger, state="held")
    assert ledger.audit_log.decide(Decision(KEY, state, "ann", "wrong picture", NOW))
    assert send_launch(ledger, KEY, connection) == SendResult()
    assert ledger.dispatch_queries.states(KEY) == {"planned": 3}
    check_all_sent(ledger, KEY)


def test_what_is_held_is_sent_once_somebody_releases_it(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, state="held")
    with pytest.raises(GateError, match="is held: a person must approve it first"):
        send_launch(ledger, KEY, connection)
    assert ledger.dispatch_queries.states(KEY) == {"planned": 3}
    release(ledger, KEY, "ann", "looks right", now=NOW)
    assert send_launch(ledger, KEY, connection) == SendResult(accepted=3)
    assert targeted(service_process, ledger) == [1, 2, 3, 4, 5]


@pytest.mark.promise("hands/stop")
def test_what_somebody_stops_in_between_is_sent_no_further(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger)

    class Stopping(Patient):
        def create_campaign(self, body: bytes) -> Outcome:
            stop(ledger, KEY, "ann", "wrong picture")
            return super().create_campaign(body)

    stopping = replace(connection, client=Stopping(connection.client))  # type: ignore[arg-type]
    assert send_launch(ledger, KEY, stopping) == SendResult(accepted=1)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "planned": 2}


@pytest.mark.parametrize("act", [release, reject])
def test_only_what_is_held_is_released_or_rejected(ledger: Ledger, act: Callable[..., None]) -> None:
    freeze(ledger)
    with pytest.raises(GateError, match="is released, so it cannot be"):
        act(ledger, KEY, "ann", "to be sure")
    assert ledger.audit_log.of_launch(KEY) == []


AT_ONCE = 4


class Together:
    """A client whose first requests wait for each other, so that the service gets one from each thread at once."""

    def __init__(self, client: Client, size: int = AT_ONCE) -> None:
        self._client = client
        self._all_there = threading.Barrier(size, timeout=PATIENCE)
        self.requests = 0
        self._lock = threading.Lock()

    def create_campaign(self, body: bytes) -> Outcome:
        with self._lock:
            self.requests += 1
            number = self.requests
        if number <= self._all_there.parties:
            self._all_there.wait()
        return self.answer(number, body)

    def answer(self, number: int, body: bytes) -> Outcome:
        return self._client.create_campaign(body)


def at_once(connection: ServiceConnection, client: Together) -> ServiceConnection:
    return replace(connection, client=client, requests_at_once=AT_ONCE)  # type: ignore[arg-type]


def workers_of(ledger: Ledger) -> list[str]:
    with ledger._database.read() as db:
        return sorted(db.scalars(sa.select(attempts.c.worker).distinct()))


def test_a_worker_makes_several_requests_at_once_and_each_segment_is_sent_once(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=40, size=2)
    assert send_launch(
        ledger, KEY, at_once(connection, Together(connection.client)), worker="ann"
    ) == SendResult(accepted=20)
    assert targeted(service_process, ledger) == list(range(1, 41))
    workers = workers_of(ledger)
    assert [name.rpartition("/")[2] for name in workers] == ["1", "2", "3", "4"]
    assert {name.partition("/")[0] for name in workers} == {"ann"}


def test_threads_that_wait_for_the_rate_limit_send_although_others_are_slow(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=4)

    class Slow(Together):
        def answer(self, number: int, body: bytes) -> Outcome:
            return Accepted(200, number)

    slow = Slow(connection.client, 2)  # neither is answered before the other was sent
    one_a_second = replace(connection, client=slow, requests_at_once=2, rate=1.0)  # type: ignore[arg-type]
    assert send_launch(ledger, KEY, one_a_second) == SendResult(accepted=2)


def test_a_worker_looks_only_now_and_then_at_a_request_that_another_transaction_has_locked(
    connection: ServiceConnection, empty_postgres_url: str
) -> None:
    engine = sa.create_engine(empty_postgres_url)
    with closing(Ledger(empty_postgres_url)) as ledger, closing(engine.connect()) as other:
        ledger.migrate()
        freeze(ledger, count=4)
        other.execute(sa.select(dispatches).where(dispatches.c.segment == 1).with_for_update())
        progress, looks = ledger.dispatch_queries.progress, []
        slept: list[float] = []

        def look(launch_key: str) -> list[Progress]:
            looks.append(launch_key)
            assert len(looks) < 10
            return progress(launch_key)

        def end_the_other(seconds: float) -> None:
            slept.append(seconds)
            other.rollback()

        ledger.dispatch_queries.progress = look  # type: ignore[method-assign]
        assert send_launch(ledger, KEY, connection, sleep=end_the_other) == SendResult(accepted=2)
    assert slept == [0.5]
    engine.dispose()


@pytest.mark.proof
def test_two_workers_of_one_name_take_nothing_from_each_other(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=80, size=2)
    many = replace(connection, requests_at_once=AT_ONCE)
    with ThreadPoolExecutor(2) as pool:
        results = [
            each.result() for each in [pool.submit(send_launch, ledger, KEY, many, worker="x") for _ in "ab"]
        ]
    assert sum(result.accepted for result in results) == 40
    assert targeted(service_process, ledger) == list(range(1, 81))


@pytest.mark.parametrize("number", [0, 17])
def test_a_worker_makes_one_to_sixteen_requests_at_once(connection: ServiceConnection, number: int) -> None:
    with pytest.raises(SettingsError, match="from 1 to 16"):
        replace(connection, requests_at_once=number)


@pytest.mark.proof
def test_sixteen_threads_keep_sixteen_connections_and_ask_for_one_token(
    service_start: Callable[..., Any], ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    service = service_start()
    freeze(ledger, count=64, size=1)
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=0, pool_maxsize=16))
    tokens = TokenSource(ClientSecret(service.client_id, service.client_secret), service.base_url, session)
    client = Together(Client(service.base_url, session, tokens), 16)
    many = ServiceConnection(client, ADDRESSES, requests_at_once=16)  # type: ignore[arg-type]
    before = tokens_of(service)
    with caplog.at_level(logging.WARNING, "urllib3"):
        assert send_launch(ledger, KEY, many) == SendResult(accepted=64)
    assert tokens_of(service) - before == 1
    assert [each.getMessage() for each in caplog.records if each.name.startswith("urllib3")] == []
    assert targeted(service, ledger) == list(range(1, 65))


def tokens_of(service: Any) -> int:
    """Return how many tokens the service has issued, from its own record."""
    engine = sa.create_engine(service.database)
    try:
        with engine.connect() as db:
            return db.scalar(sa.text("SELECT count(*) FROM access_tokens")) or 0
    finally:
        engine.dispose()


LATER = NotProcessed("patience", retry_after=3600.0, is_rate_limited=True)
UNREACHABLE = NotProcessed("no connection")
WRONG = NotProcessed("the token is refused", is_permanent=True)


@pytest.mark.parametrize(
    ("ends", "error", "message"),
    [
        # first the errors that need a person, then those to retry, then those that are only too early
        ((LATER, UNREACHABLE, WRONG), PermanentError, "the token is refused"),
        ((LATER, UNREACHABLE), RetryableError, "no connection"),
        ((LATER,), NotYetError, "patience"),
    ],
)
def test_the_error_that_somebody_must_see_first_is_raised_when_the_others_are_done(
    service_process: Any,
    ledger: Ledger,
    connection: ServiceConnection,
    ends: tuple[NotProcessed, ...],
    error: type[Exception],
    message: str,
) -> None:
    freeze(ledger, count=40, size=2)

    class Failing(Together):
        """Makes the others wait until the first failing request has stopped all threads."""

        def answer(self, number: int, body: bytes) -> Outcome:
            if number <= len(ends):
                return ends[number - 1]
            assert pool.stopping.wait(PATIENCE)
            return super().answer(number, body)

    client = Failing(connection.client)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        policy = SendPolicy(ledger, KEY)
        pool = _WorkerPool(
            ledger, at_once(connection, client), policy, "w", lambda: NOW, nobody_waits, threads
        )
        with pytest.raises(error, match=message):
            pool.run()
    states = ledger.dispatch_queries.states(KEY)
    assert client.requests == AT_ONCE
    assert states == {"accepted": AT_ONCE - len(ends), "planned": 20 - AT_ONCE + len(ends)}
    assert len(targeted(service_process, ledger)) == 2 * states["accepted"]


def test_an_error_that_nobody_foresaw_is_raised_before_all_others(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=8, size=2)

    class Broken(Together):
        def answer(self, number: int, body: bytes) -> Outcome:
            if number == 1:
                raise ZeroDivisionError
            return WRONG

    with pytest.raises(ZeroDivisionError):
        send_launch(ledger, KEY, at_once(connection, Broken(connection.client)))
    assert ledger.dispatch_queries.states(KEY) == {"in_flight": 1, "planned": 3}


def test_an_interruption_leaves_no_request_unrecorded(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=40, size=2)

    class Interrupted(Together):
        def answer(self, number: int, body: bytes) -> Outcome:
            outcome = super().answer(number, body)
            if number == 1:
                _thread.interrupt_main()  # like Ctrl-C
            return outcome

    client = Interrupted(connection.client)
    with pytest.raises(KeyboardInterrupt):
        send_launch(ledger, KEY, at_once(connection, client))
    states = ledger.dispatch_queries.states(KEY)
    assert states.keys() <= {"accepted", "planned"}
    assert states["accepted"] == client.requests
    assert len(targeted(service_process, ledger)) == 2 * client.requests


def test_the_thread_that_can_be_interrupted_does_not_wait_for_the_event_that_stops_the_others(
    ledger: Ledger, connection: ServiceConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption between two lines of an Event leaves it locked, and then nothing can stop the others."""
    freeze(ledger, count=2)
    ledger.rate_limits.delay("service", NOW + timedelta(seconds=3))
    slept: list[float] = []

    def wait(seconds: float) -> None:
        assert threading.current_thread() is not threading.main_thread()
        slept.append(seconds)

    with ThreadPoolExecutor(1) as threads:
        pool = _WorkerPool(
            ledger, connection, SendPolicy(ledger, KEY), "w",
            lambda: NOW + timedelta(seconds=sum(slept)), None, threads,
        )  # fmt: skip
        monkeypatch.setattr(pool.stopping, "wait", wait)
        assert pool.run() == SendResult(accepted=1)
    assert slept == [3.0]


def test_what_is_claimed_and_not_asked_when_it_is_time_to_end_is_given_back(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=2)
    before = service_process.admin("campaigns")["total"]
    claim = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert claim is not None
    with ThreadPoolExecutor(1) as threads:
        pool = _WorkerPool(ledger, connection, SendPolicy(ledger, KEY), "w", lambda: NOW, None, threads)
        pool.stopping.set()
        assert pool._send_claim(claim, "w") is None
        assert pool._claim("w") is None
    assert service_process.admin("campaigns")["total"] == before
    assert ledger.dispatch_queries.states(KEY) == {"planned": 1}


@pytest.mark.promise("twice/once")
def test_who_is_given_the_claim_that_came_with_a_lost_answer_sends_it_once(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=10, size=2)
    right, lost = ledger.dispatches.record_and_claim, [True, False, True, True, False, False]

    def lose(*arguments: Any, **how: Any) -> Any:
        following = right(*arguments, **how)
        if lost and lost.pop(0):
            raise LedgerUnavailableError("the answer to the commit was lost")
        return following

    ledger.dispatches.record_and_claim = lose  # type: ignore[method-assign]
    assert send_launch(ledger, KEY, connection, sleep=lambda _: None) == SendResult(accepted=5)
    assert targeted(service_process, ledger) == list(range(1, 11))
    assert [each.attempt for each in ledger.dispatch_queries.of_launch(KEY)] == [1] * 5


def test_an_outcome_is_recorded_until_the_lease_is_over(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=2)
    clock, tried = Clock(), []

    def away(*_: object, **__: object) -> None:
        tried.append(clock.now())
        clock.sleep(50)  # until it turns out that the ledger does not answer
        raise LedgerUnavailableError("the ledger database did not answer")

    begun = clock.now()
    ledger.dispatches.record_and_claim = away  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailableError):
        send_launch(ledger, KEY, connection, now=clock.now, sleep=clock.sleep)
    assert LEASE - timedelta(minutes=1) < tried[-1] - begun < LEASE + timedelta(seconds=15)


def test_a_claim_whose_answer_was_lost_is_given_back_and_is_no_doubt(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=4, size=2)
    right, lost = ledger.dispatches.claim, [True]

    def lose(*arguments: Any, **how: Any) -> Any:
        claim = right(*arguments, **how)
        if lost:
            lost.pop()
            raise LedgerUnavailableError("the answer to the commit was lost")
        return claim

    ledger.dispatches.claim = lose  # type: ignore[method-assign]
    assert send_launch(ledger, KEY, connection) == SendResult(accepted=2)
    assert targeted(service_process, ledger) == [1, 2, 3, 4]
    assert [each.attempt for each in ledger.dispatch_queries.of_launch(KEY)] == [2, 1]


def test_a_ledger_that_loses_every_claim_keeps_none_in_flight(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=4, size=2)
    right = ledger.dispatches.claim

    def lose(*arguments: Any, **how: Any) -> None:
        right(*arguments, **how)
        raise LedgerUnavailableError("the answer to the commit was lost")

    ledger.dispatches.claim = lose  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailableError):
        send_launch(ledger, KEY, connection)
    assert ledger.dispatch_queries.states(KEY) == {"planned": 2}


@pytest.mark.proof
def test_a_doubt_is_sent_again_without_looking_at_the_others(ledger: Ledger) -> None:
    gates = PUSH.gates.model_copy(update={"failures": None})
    campaign = PUSH.model_copy(update={"on_doubt": "resend", "gates": gates})
    freeze(ledger, count=20, size=1, campaign=campaign)
    asked: list[str] = []
    right = ledger.doubts.resolve

    def note(dispatch_key: str, *arguments: Any, **how: Any) -> bool:
        asked.append(dispatch_key)
        return right(dispatch_key, *arguments, **how)

    ledger.doubts.resolve = note  # type: ignore[method-assign]
    silent = ServiceConnection(NoAnswer(), ADDRESSES, requests_at_once=1)  # type: ignore[arg-type]
    assert send_launch(ledger, KEY, silent) == SendResult(in_doubt=40)
    assert ledger.dispatch_queries.states(KEY) == {"in_doubt": 20}
    assert len(asked) == 40


class NoAnswer:
    """A client that makes all requests and never gets an answer."""

    def create_campaign(self, *_: object) -> Outcome:
        return InDoubt("no answer")


def test_a_claim_that_came_with_a_lost_answer_grows_old_and_is_looked_up_again(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, count=4, size=2)
    clock, right = Clock(), ledger.dispatches.record_and_claim
    lost = [True]

    def lose(*arguments: Any, **how: Any) -> Any:
        following = right(*arguments, **how)
        if lost:
            lost.pop()
            raise LedgerUnavailableError("the answer to the commit was lost")
        return following

    def pause_meanwhile(_: float) -> None:
        clock.sleep(LEASE.total_seconds() / 10)
        pause(ledger, KEY, "ann", "wrong picture", now=clock.now())

    ledger.dispatches.record_and_claim = lose  # type: ignore[method-assign]
    with pytest.raises(NotYetError, match="is paused by ann"):
        send_launch(ledger, KEY, connection, now=clock.now, sleep=pause_meanwhile)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "planned": 1}
    assert targeted(service_process, ledger) == [1, 2]


class SettingCookies:
    """A service that sets a cookie in each answer."""

    def __init__(self) -> None:
        self.sent: list[str | None] = []
        seen = self.sent

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                seen.append(self.headers["Cookie"])
                is_token = self.path.startswith("/api/oauth")
                body = TOKEN if is_token else b'{"success": true, "code": 200, "campaign": {"id": 1}}'
                self.send_response(200)
                self.send_header("Set-Cookie", f"number{len(seen)}=1; Path=/")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


TOKEN = json.dumps({"access_token": "t" * 20, "token_type": "Bearer", "expires_in": 3600}).encode()


def test_no_cookie_of_one_answer_goes_out_with_another_request(ledger: Ledger) -> None:
    service = SettingCookies()
    try:
        freeze(ledger, count=100, size=2)
        made = sender_to(service.base_url, "client", "secret")
        assert send_launch(ledger, KEY, replace(made, requests_at_once=AT_ONCE)) == SendResult(accepted=50)
        assert service.sent == [None] * 51
        made.client._transport.session.close()
    finally:
        service.close()


def test_a_sender_does_not_print_its_app_token(connection: ServiceConnection) -> None:
    assert "APP-TOKEN" not in repr(replace(connection, app_token="APP-TOKEN"))


@pytest.mark.parametrize(("wish", "seconds"), [(3600.0, 3600), (None, 30)])
def test_a_wish_for_much_patience_is_no_failure(
    ledger: Ledger, connection: ServiceConnection, wish: float | None, seconds: int
) -> None:
    freeze(ledger, count=2)
    impatient = replace(connection, client=Patient(connection.client, wish))  # type: ignore[arg-type]
    with pytest.raises(NotYetError, match="was not processed and stays planned") as caught:
        send_launch(ledger, KEY, impatient, now=lambda: NOW, sleep=nobody_waits)
    assert caught.value.until == NOW + timedelta(seconds=seconds)
    assert ledger.dispatch_queries.states(KEY) == {"planned": 1}


def test_a_429_of_the_service_is_no_failure(service_start: Callable[..., Any], ledger: Ledger) -> None:
    service = service_start()
    freeze(ledger)
    fault = {"kind": "429", "at": ["create"], "count": 1, "retry_after": 90}
    assert service.post("/admin/faults", json=fault).status_code == 201
    made = sender_to(service.base_url, service.client_id, service.client_secret)
    with pytest.raises(NotYetError) as caught:
        send_launch(ledger, KEY, made, now=lambda: NOW, sleep=nobody_waits)
    assert caught.value.until == NOW + timedelta(seconds=90)
    assert send_launch(ledger, KEY, made) == SendResult(accepted=3)
    assert targeted(service, ledger) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("faults", "slept"),
    [
        ([{"kind": "503", "retry_after": 7}], [7.0]),
        ([{"kind": "503", "retry_after": 0}], [1.0]),  # at the usual pace
        ([{"kind": "503"}], [1.0]),
        ([{"kind": "500", "count": 3}], [1.0, 1.0, 2.0]),
        ([{"kind": "502"}, {"kind": "503", "retry_after": 20}], [1.0, 20.0]),
    ],
    ids=str,
)
def test_a_token_endpoint_that_fails_is_asked_again_in_place_and_nothing_is_sent_meanwhile(
    service_start: Callable[..., Any], ledger: Ledger, faults: list[dict[str, Any]], slept: list[float]
) -> None:
    service = service_start()
    freeze(ledger)
    for fault in faults:
        assert service.post("/admin/faults", json={"at": ["token"], **fault}).status_code == 201
    made = sender_to(service.base_url, service.client_id, service.client_secret)
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        assert service.admin("campaigns?count=1")["total"] == 0

    assert send_launch(ledger, KEY, made, now=clock.now, sleep=sleep) == SendResult(accepted=3)
    assert clock.slept == slept
    assert targeted(service, ledger) == [1, 2, 3, 4, 5]


def test_a_token_endpoint_that_goes_on_failing_is_left_to_retries_within_a_minute(
    service_start: Callable[..., Any], ledger: Ledger
) -> None:
    service = service_start()
    freeze(ledger)
    service.post("/admin/faults", json={"kind": "503", "at": ["token"], "count": 1000})
    clock = Clock()
    with pytest.raises(RetryableError, match="no token: the service failed") as caught:
        send_launch(
            ledger,
            KEY,
            sender_to(service.base_url, service.client_id, service.client_secret),
            now=clock.now,
            sleep=clock.sleep,
        )
    assert not isinstance(caught.value, NotYetError)
    assert clock.slept == [1.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert ledger.dispatch_queries.states(KEY) == {"planned": 3}


def test_a_token_endpoint_that_wants_an_hour_is_waited_for_elsewhere(
    service_start: Callable[..., Any], ledger: Ledger
) -> None:
    service = service_start()
    freeze(ledger)
    service.post("/admin/faults", json={"kind": "503", "at": ["token"], "retry_after": 3600})
    made = sender_to(service.base_url, service.client_id, service.client_secret)
    with pytest.raises(NotYetError) as caught:
        send_launch(ledger, KEY, made, now=lambda: NOW, sleep=nobody_waits)
    assert caught.value.until == NOW + timedelta(hours=1)
    assert send_launch(ledger, KEY, made) == SendResult(accepted=3)


def test_what_stops_a_task_names_the_one_request_that_was_not_processed(
    service_start: Callable[..., Any], ledger: Ledger
) -> None:
    service = service_start()
    freeze(ledger)
    made = sender_to(service.base_url, service.client_id, service.client_secret)
    rejected = replace(made, client=Rejected(made.client, after=1))  # type: ignore[arg-type]
    with pytest.raises(PermanentError) as caught:
        send_launch(ledger, KEY, rejected)
    assert str(caught.value) == "the request of segment 2 was not processed and stays planned: a wrong key"
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "planned": 2}


class Rejected:
    """A client whose key expires after a number of requests."""

    def __init__(self, client: Client, after: int) -> None:
        self._client = client
        self._left = after

    def create_campaign(self, body: bytes) -> Outcome:
        self._left -= 1
        if self._left < 0:
            return NotProcessed("a wrong key", is_permanent=True)
        return self._client.create_campaign(body)


def test_an_unreachable_service_leaves_everything_planned(ledger: Ledger, free_port: int) -> None:
    freeze(ledger)
    with pytest.raises(RetryableError, match="was not processed and stays planned"):
        send_launch(ledger, KEY, sender_to(f"http://127.0.0.1:{free_port}", "client", "secret"))
    assert ledger.dispatch_queries.states(KEY) == {"planned": 3}


def test_wrong_credentials_leave_everything_planned_and_are_permanent(
    service_process: Any, ledger: Ledger
) -> None:
    freeze(ledger)
    with pytest.raises(PermanentError, match="was not processed and stays planned") as caught:
        send_launch(
            ledger, KEY, sender_to(service_process.base_url, service_process.client_id, "wrong-secret")
        )
    assert "wrong-secret" not in str(caught.value)
    assert ledger.dispatch_queries.states(KEY) == {"planned": 3}
