"""How errors become Airflow's errors, and which details they leave out."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG, BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from sendoff import errors
from sendoff_airflow.errors import RetryAfterPolicy, RetryTaskError, translate_errors


@translate_errors
def fail(error: Exception) -> None:
    try:
        raise ValueError("device 4711")
    except ValueError as cause:
        raise error from cause


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.SettingsError("x"), AirflowFailException),
        (errors.CredentialsError("x"), AirflowFailException),
        (errors.UnusableLedgerError("x"), AirflowFailException),
        (errors.RefusedError("x"), AirflowFailException),
        (errors.AmbiguousError("x"), AirflowFailException),
        (errors.GateError("x"), AirflowFailException),
        (errors.LateError("x"), AirflowSkipException),
        (errors.UnreachableError("x"), RetryTaskError),
        (errors.WarehouseUnavailableError("x"), RetryTaskError),
        (errors.LedgerUnavailableError("x"), RetryTaskError),
        (errors.RateLimitedError("x", 7.0), RetryTaskError),
        (errors.ServiceUnavailableError("x", 7.0), RetryTaskError),
    ],
)
def test_only_what_may_be_tried_again_is_tried_again(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(AirflowException) as raised:
        fail(error)
    assert type(raised.value) is kind
    assert str(raised.value) == "x"
    assert not isinstance(RetryTaskError("x"), AirflowFailException)


@pytest.mark.parametrize("kind", [errors.RateLimitedError, errors.ServiceUnavailableError])
def test_the_wish_of_the_service_to_wait_is_kept(kind: type[errors.RateLimitedError]) -> None:
    with pytest.raises(RetryTaskError) as raised:
        fail(kind("x", 7.0))
    assert raised.value.retry_after == 7.0


def test_what_is_too_early_is_tried_again_when_it_is_time() -> None:
    with pytest.raises(RetryTaskError) as raised:
        fail(errors.NotYetError("x", datetime.now(UTC) + timedelta(hours=1)))
    assert raised.value.retry_after == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    ("wish", "seconds"), [(7.0, 7.0), (0.0, 0.0), (-1.0, 0.0), (1e11, 86_400.0), (math.inf, 86_400.0)]
)
def test_a_task_is_put_off_for_a_day_at_most(wish: float, seconds: float) -> None:
    decision = RetryAfterPolicy().evaluate(RetryTaskError("x", wish), 1, 1)
    assert decision.retry_delay == timedelta(seconds=seconds)


class Busy(BaseOperator):
    """An operator that is asked once to come back later."""

    def __init__(self, mark: Path, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.mark = mark

    @translate_errors
    def execute(self, context: Context) -> None:
        if not self.mark.exists():
            self.mark.touch()
            raise errors.RateLimitedError("busy", 0.0)


def test_airflow_tries_again_when_the_service_said_so(tmp_path: Path, run_dag: Callable[..., DagRun]) -> None:
    with DAG("busy", schedule=None) as dag:
        Busy(
            task_id="busy",
            mark=tmp_path / "mark",
            retries=1,
            retry_delay=timedelta(days=1),
            retry_policy=RetryAfterPolicy(),
        )
    assert run_dag(dag).state == "success"


def test_the_cause_of_an_error_does_not_reach_airflows_log() -> None:
    with pytest.raises(AirflowException) as raised:
        fail(errors.UnreachableError("x"))
    assert raised.value.__context__ is raised.value.__cause__ is None
    assert "4711" not in "".join(traceback.format_exception(raised.value))


def test_any_other_error_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())
