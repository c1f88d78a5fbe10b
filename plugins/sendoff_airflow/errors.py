"""The one place where an error of Sendoff becomes one of Airflow's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from airflow.sdk import Context, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from sendoff.errors import LateError, NotYetError, RetryableError, SendoffError
from sendoff.service import MAX_RETRY_AFTER

P = ParamSpec("P")
R = TypeVar("R")


class RetryTaskError(AirflowException):
    """Nothing happened, and Airflow's retries may try again; ``retry_after``: the seconds that the service asks for."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RetryAfterPolicy(RetryPolicy):
    """Retry a task when the service asks for it (``Retry-After``), and otherwise as the task's retries say."""

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002
        max_tries: int,  # noqa: ARG002
        context: Context | None = None,  # noqa: ARG002
    ) -> RetryDecision:
        """Decide after a failure; how often is still for ``retries`` to say."""
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
"""How a task is tried again: for about an hour. Safe, since nothing that was sent is sent again."""


def as_airflow_error(error: SendoffError) -> AirflowException:
    """Return what tells Airflow the same: retry what is retryable, fail at once what is permanent or ambiguous.

    What is too late is skipped. The result carries the message alone: neither cause nor context, whose texts are not
    ours to vouch for.
    """
    if isinstance(error, LateError):
        return AirflowSkipException(str(error))
    if isinstance(error, NotYetError):
        return RetryTaskError(str(error), (error.until - datetime.now(UTC)).total_seconds())
    if isinstance(error, RetryableError):
        return RetryTaskError(str(error), getattr(error, "retry_after", None))
    return AirflowFailException(str(error))


def translate_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap an ``execute`` or a similar method, so that errors and metrics of Sendoff become Airflow's own."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from sendoff_airflow.statsd import count_in_airflow

        count_in_airflow()
        try:
            return method(*args, **kwargs)
        except SendoffError as error:
            failure = as_airflow_error(error)
        raise failure  # outside of the except clause, or the original would hang on as its context

    return call
