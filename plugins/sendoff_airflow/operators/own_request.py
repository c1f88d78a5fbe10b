"""Requests of your own in a task: their JSON with its templates, and the launch that freezes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context, XComArg
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions._internal.templater import Templater
from airflow.sdk.exceptions import AirflowFailException
from jinja2 import StrictUndefined, TemplateError

from sendoff.campaign import Period
from sendoff.errors import GateError
from sendoff.states import DispatchState

if TYPE_CHECKING:
    from sendoff.ledger import Ledger


class _Renderer(Templater):
    """Renders templates inside of a value; no text is the path of a template file."""

    template_fields = ()
    template_ext = ()


class RequestBody(ResolveMixin):
    """The JSON of a request: a mapping, JSON as text, or the output of another task.

    Airflow shows and stores only the names of its members and their types, never a text or an identifier.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def iter_references(self) -> Iterable[tuple[Any, str]]:
        """Return the XComs that this needs, so that Airflow finds the tasks before it."""
        return XComArg.iter_xcom_references(self.value)

    def resolve(self, context: Any) -> RequestBody:
        """Return the same with its templates rendered.

        Raise AirflowFailException if a template cannot be rendered. It may be a tag that the service fills in.
        """
        # Otherwise, a tag of the service would silently vanish from its text.
        environment = context["task"].get_template_env().overlay(undefined=StrictUndefined)
        try:
            return RequestBody(_Renderer().render_template(self.value, context, environment))
        except TemplateError as error:
            problem = type(error).__name__  # its words may quote a text
        raise AirflowFailException(
            f"body: a template in it cannot be rendered ({problem}). If it is a tag such as {{{{first_name}}}}, which "
            "the service fills in, pass body=literal({...}) from airflow.sdk, or write "
            "{% raw %}{{first_name}}{% endraw %}"
        )

    def __repr__(self) -> str:
        """Return what Airflow shows: the names of the members with their types."""
        if isinstance(self.value, Mapping):
            return json.dumps({str(name): _outline(value) for name, value in self.value.items()})
        return json.dumps(_outline(self.value))


def _outline(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return f"<{len(value):,} {'value' if len(value) == 1 else 'values'}>"
    if value is None or isinstance(value, str | bool | int | float):
        return "<text>" if isinstance(value, str) else "<number, true, false or null>"
    return "<rendered when the task runs>"


def fate_of(ledger: Ledger, launch_key: str) -> dict[str, int]:
    """Return what became of a request, as numbers.

    Raise AmbiguousError if it is in doubt, and GateError if the launch was stopped before it was sent.
    """
    from sendoff.dispatch import check_doubts

    check_doubts(ledger, launch_key)
    states = ledger.dispatch_queries.states(launch_key)
    if states.get(DispatchState.PLANNED):
        state = ledger.launches.get(launch_key).state
        raise GateError(f"launch {launch_key} is {state}, so its request was not sent")
    written_off = states.get(DispatchState.WRITTEN_OFF, 0)
    return {"accepted": states.get(DispatchState.ACCEPTED, 0), "refused": 0, "in_doubt": written_off}


def default_key(context: Context) -> str:
    """Return a key that is the same in each attempt of a task: its DAG, ID, logical date or run, and map index."""
    ti, run = context["ti"], context["dag_run"]
    moment = run.logical_date.isoformat() if run.logical_date else run.run_id
    mapped = [] if ti.map_index is None or ti.map_index < 0 else [str(ti.map_index)]
    return "/".join([ti.dag_id, ti.task_id, moment, *mapped])


def period_of_request(context: Context) -> Period:
    """Return the data interval of a run, or else the moment after which it ran; reports show it."""
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    return Period(start, end) if start and end else Period(run.run_after, run.run_after)
