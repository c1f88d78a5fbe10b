"""Links from Airflow's task instances to Sendoff's pages.

Airflow's API server builds the links whenever a user opens a task instance. So they work as soon as the run has a
launch: even while a task waits or runs, and before it starts.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink, conf

from sendoff_airflow.xcoms import xcoms_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PREFIX = "/sendoff"
"""The path under which Airflow's API server mounts our pages."""

VIEW = "sendoff"
"""The ``url_route`` of the pages in Airflow's UI."""

_LAUNCH_KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)
_AUDIENCE_ASSET = re.compile(r"sendoff://([^/]+)/audience")


def launch_page(launch_key: str) -> str:
    """Return the path of a launch's page inside Airflow's UI, from the root of its host."""
    return page_in_airflow(f"launches/{quote(launch_key, safe='')}")


def campaign_page(campaign: str) -> str:
    """Return the path of a campaign's page inside Airflow's UI, from the root of its host."""
    return page_in_airflow(f"campaigns/{quote(campaign, safe='')}")


def page_in_airflow(path: str) -> str:
    """Return the path of one of our pages inside Airflow's UI, from the root of its host."""
    # The full path of the framed page follows the route. If Airflow is served under a path, that path appears twice.
    root = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{root}/plugin/{VIEW}{root}{PREFIX}/{path}"


class _SendoffLink(BaseOperatorLink):
    """A link of the operators that work on one launch."""

    @property
    def operators(self) -> list[type[BaseOperator]]:  # type: ignore[override]  # read only where links are built
        """The operators with this link."""
        return _operators()


class LaunchLink(_SendoffLink):
    """A link to the page of a task's launch. It is empty while the run has no launch, or has several."""

    name = "Launch"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the path of the launch's page, or an empty text if no launch is known."""
        launch_key = _own_field(ti_key) or _xcom(ti_key, "launch_key")
        return launch_page(launch_key) if launch_key and _LAUNCH_KEY.fullmatch(launch_key) else ""


class CampaignLink(_SendoffLink):
    """A link to the page of a campaign: the one in the run's XComs, or else the one whose audience the DAG updates."""

    name = "Campaign"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the path of the campaign's page, or an empty text if no campaign is known."""
        campaign = _xcom(ti_key, "campaign") or _renewed_by(operator.dag)
        return campaign_page(campaign) if campaign else ""


@cache
def _operators() -> list[type[BaseOperator]]:
    from sendoff_airflow.operators import (
        BuildAudienceOperator,
        CheckDispatchedOperator,
        CreateCampaignOperator,
        ExecuteCampaignOperator,
        PreviewOperator,
        ReconcileOperator,
    )
    from sendoff_airflow.operators.approval import ApproveLaunchOperator
    from sendoff_airflow.operators.decorators import _AudienceDecoratedOperator
    from sendoff_airflow.operators.doubts import ResolveDoubtsOperator
    from sendoff_airflow.operators.send_test import SendTestOperator
    from sendoff_airflow.sensors import PostBacksQuietSensor

    return [
        BuildAudienceOperator,
        _AudienceDecoratedOperator,
        PreviewOperator,
        ApproveLaunchOperator,
        CreateCampaignOperator,
        ExecuteCampaignOperator,
        CheckDispatchedOperator,
        PostBacksQuietSensor,
        ReconcileOperator,
        ResolveDoubtsOperator,
        SendTestOperator,
    ]


def _own_field(ti_key: TaskInstanceKey) -> str | None:
    """Return the launch key in a task's rendered fields."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields

    fields: dict[str, Any] | None = RenderedTaskInstanceFields.get_templated_fields(ti_key)  # type: ignore[arg-type]
    value = (fields or {}).get("launch_key")
    return value if isinstance(value, str) else None


def _xcom(ti_key: TaskInstanceKey, key: str) -> str | None:
    """Return a task's own XCom, or else the XCom of its run if all tasks have the same value."""
    from airflow.utils.session import create_session

    with create_session() as session:
        xcoms = xcoms_of(session, key, dag_id=ti_key.dag_id, run_id=ti_key.run_id)
    task = (ti_key.task_id, ti_key.map_index)
    own = {xcom.text for xcom in xcoms if (xcom.task_id, xcom.map_index) == task}
    texts = own or {xcom.text for xcom in xcoms}
    return texts.pop() if len(texts) == 1 else None


def _renewed_by(dag: Any) -> str | None:
    """Return the campaign whose audience asset is an outlet of the DAG, or None if there is none or several."""
    uris = (getattr(outlet, "uri", "") for task in dag.tasks for outlet in task.outlets)
    found = {match[1] for uri in uris if (match := _AUDIENCE_ASSET.fullmatch(uri))}
    return found.pop() if len(found) == 1 else None
