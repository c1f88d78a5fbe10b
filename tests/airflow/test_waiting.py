"""The sensor and its trigger, with a real ledger."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.triggers.base import TriggerEvent

from sendoff.campaign import Period
from sendoff.dispatch.control import stop
from sendoff.ledger import Ledger
from sendoff.service.client import Accepted, InDoubt
from sendoff.states import Refused, Resolution
from sendoff_airflow.errors import RetryTaskError
from sendoff_airflow.operators.journey import WaitForStepOperator
from sendoff_airflow.sensors import PostBacksQuietSensor
from sendoff_airflow.triggers import PostBacksQuietTrigger

from .. import factories
from ..factories import PUSH, make_launch
from ..ports import reserved_port
from ..waiting import PATIENCE, until

KEY = "0123456789abcdef" * 2
START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def ledger(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A ledger with one launch of one segment, which is planned."""
    monkeypatch.setenv("SENDOFF_LEDGER_URL", migrated_url)
    with closing(Ledger(migrated_url)) as ledger:
        period = Period(START, START + timedelta(days=1))
        at = {"launch_key": KEY, "created_at": START, "sends_at": START}
        make_launch(ledger, [1, 2, 3], name="waiting", campaign=PUSH, period=period, **at)
        yield ledger


def send(ledger: Ledger) -> None:
    factories.send(ledger, KEY, Accepted(200, 7), at=START)


def sensor(**choices: Any) -> PostBacksQuietSensor:
    with DAG("waiting", schedule=None):
        return PostBacksQuietSensor(task_id="wait_for_post_backs", launch_key=KEY, **choices)


def test_a_quiet_launch_is_not_waited_for(ledger: Ledger) -> None:
    send(ledger)
    sensor(deferrable=True).execute({})
    sensor(deferrable=False).execute({})


def waiting_step(key: str = KEY) -> WaitForStepOperator:
    with DAG("waiting", schedule=None):
        return WaitForStepOperator(task_id="wait", launch_key=key, wait=timedelta(days=2))


def test_a_step_waits_only_if_all_requests_of_the_earlier_one_were_made(ledger: Ledger) -> None:
    with pytest.raises(RetryTaskError, match="not sent yet: 1") as early:
        waiting_step().execute({})
    assert early.value.retry_after is None  # after the task's own delay
    made_at = datetime.now(UTC)
    factories.send(ledger, KEY, Refused(403, "no"), at=made_at)
    with pytest.raises(TaskDeferred) as deferred:
        waiting_step().execute({})
    assert deferred.value.trigger.moment == made_at + timedelta(days=2)


def test_a_step_never_begins_while_a_request_of_the_earlier_one_is_in_flight(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime):  # the ledger answered slowly, so the moment to look again has passed
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=1)

    assert ledger.dispatches.claim(KEY, worker="w", now=datetime.now(UTC), lease=timedelta(minutes=1))
    monkeypatch.setattr("sendoff_airflow.operators.journey.datetime", Later)
    with pytest.raises(TaskDeferred):
        waiting_step().execute({})


def test_a_step_is_skipped_after_one_that_was_sent_to_no_one(ledger: Ledger) -> None:
    with pytest.raises(AirflowSkipException, match="has no launch"):
        waiting_step("None").pre_execute({})
    stop(ledger, KEY, "ann", "a wrong link", now=START)
    with pytest.raises(AirflowSkipException, match="was sent to no one"):
        waiting_step().execute({})


def test_a_step_waits_for_all_launches_of_the_period_of_the_earlier_one(ledger: Ledger) -> None:
    stop(ledger, KEY, "ann", "a wrong link", now=START)
    at: dict[str, Any] = {"period": Period(START, START + timedelta(days=1)), "created_at": START}
    again = make_launch(ledger, [1, 2, 3], name="waiting", campaign=PUSH, resend=1, **at).launch_key
    with pytest.raises(TaskDeferred):  # a resend may wait for a person, so this is no failure
        waiting_step().execute({})
    made_at = datetime.now(UTC)
    factories.send(ledger, again, Accepted(200, 8), at=made_at)
    for key in (KEY, again):
        with pytest.raises(TaskDeferred) as deferred:
            waiting_step(key).execute({})
        assert deferred.value.trigger.moment == made_at + timedelta(days=2)


def test_waiting_takes_no_worker_and_has_the_same_time_out(ledger: Ledger) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor(deferrable=True, timeout=7, poke_interval=2, quiet_for=timedelta(minutes=3)).execute({})
    assert deferred.value.timeout == timedelta(seconds=7)
    assert deferred.value.trigger.serialize()[1] == {
        "launch_key": KEY,
        "quiet_for": 180.0,
        "poll_interval": 2.0,
        "ledger_conn_id": "sendoff_ledger",
    }


def test_the_time_out_begins_when_the_service_has_sent_the_launch(ledger: Ledger) -> None:
    in_two_days = datetime.now(UTC) + timedelta(days=2)
    period = Period(START, START + timedelta(days=1))
    later = make_launch(ledger, [1, 2], name="later", campaign=PUSH, period=period, sends_at=in_two_days)
    with DAG("later", schedule=None), pytest.raises(TaskDeferred) as deferred:
        PostBacksQuietSensor(task_id="wait", launch_key=later.launch_key, deferrable=True, timeout=7).execute(
            {}
        )
    assert deferred.value.timeout is not None
    assert timedelta(days=1, hours=23) < deferred.value.timeout < timedelta(days=2, seconds=7)


def test_a_launch_that_is_never_quiet_ends_in_the_same_error_both_ways(ledger: Ledger) -> None:
    with pytest.raises(AirflowSensorTimeout):
        sensor(deferrable=False, timeout=0.2, poke_interval=0.1).execute({})
    with pytest.raises(AirflowSensorTimeout):  # Airflow resumes a task like this if its trigger was too slow
        sensor(deferrable=True).resume_execution("__fail__", {"error": "Trigger timeout"}, {})


def test_the_trigger_fires_when_the_launch_falls_silent(ledger: Ledger) -> None:
    async def wait() -> TriggerEvent:
        firing = asyncio.create_task(_first_event(_remade(trigger())))
        await asyncio.sleep(0.3)
        assert not firing.done()
        await asyncio.to_thread(send, ledger)
        return await asyncio.wait_for(firing, PATIENCE)

    event = asyncio.run(wait())
    assert event.payload == {"launch_key": KEY}
    sensor().execute_complete({}, event.payload)


def test_the_trigger_tells_how_to_continue_a_launch_with_a_request_planned_again(
    ledger: Ledger, capfd: pytest.CaptureFixture[str]
) -> None:
    log: list[str] = []

    def has_told() -> bool:
        log.append(capfd.readouterr().out)
        return "planned again" in "".join(log)

    claim = ledger.dispatches.claim(KEY, worker="w", now=START, lease=timedelta(minutes=1))
    assert claim is not None
    ledger.dispatches.record(claim, InDoubt("no answer"), START)
    assert ledger.doubts.resolve(claim.dispatch_key, Resolution.RESEND, "ann", "asked", START)

    async def wait() -> TriggerEvent:
        firing = asyncio.create_task(_first_event(trigger()))
        await asyncio.to_thread(until, has_told)
        await asyncio.to_thread(send, ledger)
        return await asyncio.wait_for(firing, PATIENCE)

    assert asyncio.run(wait()).payload == {"launch_key": KEY}
    has_told()
    [told] = [line for line in "".join(log).splitlines() if "planned again" in line]
    assert f"""airflow dags trigger waiting --conf '{{"launch": "{KEY}"}}'""" in told


@pytest.mark.proof
def test_the_trigger_leaves_the_event_loop_to_other_triggers(ledger: Ledger) -> None:
    """Neither its imports nor the database block the event loop."""
    send(ledger)
    script = textwrap.dedent(
        f"""
        import asyncio, sys, threading
        from sendoff_airflow.triggers import PostBacksQuietTrigger

        async def wait():
            trigger = PostBacksQuietTrigger("{KEY}", 0.1, 0.1, "sendoff_ledger")
            return [event.payload async for event in trigger.run()]

        blocking = []

        def watch(event, arguments):
            if threading.current_thread() is threading.main_thread() and (
                event == "sqlite3.connect" or (event == "import" and arguments[0] in ("pyarrow", "sqlalchemy"))
            ):
                blocking.append((event, str(arguments[0])))

        sys.addaudithook(watch)
        assert asyncio.run(wait()) == [{{"launch_key": "{KEY}"}}]
        assert "pyarrow" in sys.modules
        print(blocking)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_launch_that_the_ledger_does_not_hold_fails_the_task(ledger: Ledger) -> None:
    event = asyncio.run(_first_event(PostBacksQuietTrigger("f" * 32, 1, 0.1, "sendoff_ledger")))
    assert event.payload["problem"].startswith("the ledger holds no launch")
    with pytest.raises(AirflowFailException, match="no launch"):
        _waiting_for("f" * 32).execute_complete({}, event.payload)


def test_a_ledger_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def wait() -> None:
        await asyncio.wait_for(_first_event(trigger()), 0.5)

    with reserved_port() as port:  # with no listener
        monkeypatch.setenv("SENDOFF_LEDGER_URL", f"postgresql+psycopg://sendoff@127.0.0.1:{port}/sendoff")
        with pytest.raises(TimeoutError):
            asyncio.run(wait())


def test_a_ledger_that_must_be_corrected_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENDOFF_LEDGER_URL", f"sqlite:///{tmp_path}/missing-folder/ledger.db")
    event = asyncio.run(_first_event(trigger()))
    assert "missing-folder" in event.payload["problem"]


@pytest.mark.parametrize(
    "event",
    [
        None,
        "quiet",
        {},
        {"launch_key": "f" * 32},
        ["launch_key", KEY],
        {"launch_key": KEY, "problem": "gone"},
    ],
)
def test_an_event_that_is_not_ours_fails_the_task(event: Any) -> None:
    with pytest.raises(AirflowFailException):
        sensor().execute_complete({}, event)


def test_a_task_waits_in_a_worker_where_it_is_told_to(ledger: Ledger, run_dag: Callable[..., DagRun]) -> None:
    send(ledger)
    with DAG("waiting", schedule=None) as dag:
        PostBacksQuietSensor(task_id="wait_for_post_backs", launch_key=KEY, deferrable=False, timeout=10)
    assert run_dag(dag).state == "success"


def trigger() -> PostBacksQuietTrigger:
    return PostBacksQuietTrigger(KEY, quiet_for=0.1, poll_interval=0.1, ledger_conn_id="sendoff_ledger")


def _waiting_for(key: str) -> PostBacksQuietSensor:
    with DAG("waiting", schedule=None):
        return PostBacksQuietSensor(task_id="wait_for_post_backs", launch_key=key)


def _remade(trigger: PostBacksQuietTrigger) -> PostBacksQuietTrigger:
    """Return the trigger as another process rebuilds it from the stored arguments."""
    path, kwargs = json.loads(json.dumps(trigger.serialize()))
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(**kwargs)


async def _first_event(trigger: PostBacksQuietTrigger) -> TriggerEvent:
    async for event in trigger.run():
        return event
    raise AssertionError("the trigger ended without an event")
