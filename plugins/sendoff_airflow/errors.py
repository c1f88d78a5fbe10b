"""Translate Sendoff's errors into Airflow's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from airflow.sdk import Context, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from sendoff.errors import LateError, NotYetError, RetryableError, SendoffError

P = ParamSpec("P")
R = TypeVar("R")


class RetryTaskError(AirflowException):
    """Nothing happened, and Airflow may retry the task. ``retry_after``: the delay in seconds the service asked for."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TaskEndedError(RetryableError):
    """Airflow ended the task, for example because it was marked as failed."""


class RetryAfterPolicy(RetryPolicy):
    """Retry a task after the delay the service asks for (``Retry-After``), or else after the task's own delay."""

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002
        max_tries: int,  # noqa: ARG002
        context: Context | None = None,  # noqa: ARG002
    ) -> RetryDecision:
        """Decide after a failure. ``retries`` still limits the number of retries."""
        from sendoff.service import MAX_RETRY_AFTER

        if isinstance(exception, RetryTaskError) and exception.retry_after is not None:
            seconds = max(0.0, min(MAX_RETRY_AFTER, exception.retry_after))
            return RetryDecision.retry(timedelta(seconds=seconds), "the service's Retry-After")
        return RetryDecision.default()


RETRY_DEFAULTS: dict[str, Any] = {
    "retries": 8,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=15),
    "retry_policy": RetryAfterPolicy(),
}
"""The retry settings of tasks: about an hour in total. Retries are safe, because no request is made twice."""


def as_airflow_error(error: SendoffError) -> AirflowException:
    """Return Airflow's error for an error of Sendoff.

    Retryable errors become a retry. Permanent and ambiguous errors fail the task at once. A LateError skips it. The
    result holds only the message. It has no cause or context, because Sendoff does not control their texts.
    """
    if isinstance(error, LateError):
        return AirflowSkipException(str(error))
    if isinstance(error, NotYetError):
        return RetryTaskError(str(error), (error.until - datetime.now(UTC)).total_seconds())
    if isinstance(error, RetryableError):
        return RetryTaskError(str(error), getattr(error, "retry_after", None))
    return AirflowFailException(str(error))


def translate_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method such as ``execute``, so that Sendoff's errors and metrics become Airflow's."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from sendoff_airflow.statsd import count_in_airflow

        count_in_airflow()
        try:
            return method(*args, **kwargs)
        except SendoffError as error:
            failure = as_airflow_error(error)
        raise failure  # outside the except clause, so that the original does not become its context

    return call
