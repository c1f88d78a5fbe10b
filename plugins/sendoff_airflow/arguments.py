"""Check the arguments of operators and DAGs. A rendered template is always text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

_OPTIONAL = ("only_unsent", "reason", "resend", "send_late", "size_limit")
"""The arguments whose template may have no value, such as a field of the trigger form."""


class ChecksArguments(BaseOperator):
    """An operator that fails if an argument has no value any more after its template or XCom was resolved.

    Otherwise, it would count as left out. Then a campaign would go to the audience of its folder, for example.
    """

    if TYPE_CHECKING:  # Airflow's own facts about an operator
        _BaseOperator__init_kwargs: dict[str, Any]
        _BaseOperator__from_mapped: bool

    @property
    def is_mapped(self) -> bool:
        """Whether the task is one of a mapped operator. It is then made when it runs, not when its file is read."""
        return self._BaseOperator__from_mapped

    def pre_execute(self, context: Context) -> None:  # noqa: ARG002
        """Raise AirflowFailException for the first such argument."""
        for name in self.template_fields:
            value = getattr(self, name, None)
            if name == "launch_key" and value in (None, "", "None") and self._was_given(name):
                raise AirflowFailException(
                    f"Task {self.task_id}: launch_key is empty. The task that makes the launch did not run, was "
                    "skipped, or was marked as success. Clear that task and then this one."
                )
            if value in (None, "None") and self._was_given(name):
                raise AirflowFailException(
                    f"Task {self.task_id}: {name} has no value: its template, or the task that it comes from, returned "
                    f"nothing. Correct that and clear the task. If there is no {name} on purpose, leave it out."
                )

    def _was_given(self, name: str) -> bool:
        """Check whether the DAG file has an argument that must have a value."""
        given = self._BaseOperator__init_kwargs  # of a mapped task, with the values of this one
        if isinstance(given.get(name), str) and name in _OPTIONAL:
            return False
        return given.get(name) is not None or (name == "audience" and name in given and self.is_mapped)


def as_callbacks(name: str, given: Any) -> list[Callable[[Context], None]]:
    """Return one or more notifiers as a list. Raise TypeError if one of them cannot be called."""
    is_one = callable(given) or isinstance(given, str) or not isinstance(given, Iterable)
    found = [] if given is None else [given] if is_one else list(given)
    for each in found:
        if not callable(each):
            raise TypeError(
                f"{name}: found a {type(each).__name__}. Use a notifier or a function, or a list of them."
            )
    return found


def as_text(value: object) -> str | None:
    """Return a rendered text. With Airflow's native types, one such as 20260301 is rendered as a number."""
    return None if value is None else str(value)


def as_boolean(name: str, value: bool | str) -> bool:
    """Return a rendered flag. Raise AirflowFailException if it is not a boolean."""
    if name == "send_late" and value in ("", "None"):
        return False
    flag = {"true": True, "false": False}.get(str(value).strip().lower())
    if flag is None:  # a mistyped dry run must not start a launch
        raise AirflowFailException(f"{name}: {value!r} is not a boolean. Use True or False.")
    return flag


def as_integer(name: str, value: Any) -> int | None:
    """Return a rendered number, or None without one. Raise AirflowFailException if it is not a whole number."""
    # "None" of another argument may be a mistake, which would send to more people.
    if value in (None, "") or (name == "resend" and value == "None"):
        return None
    try:
        number = None if isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        number = None
    if number is None or (isinstance(value, float) and number != value):
        raise AirflowFailException(f"{name}: {value!r} is not a whole number.")
    return number
