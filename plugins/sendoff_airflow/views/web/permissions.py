"""Permissions: a user may see a launch if they may see its campaign's DAG, and control it if they may trigger the DAG.

Airflow's own login and permissions decide. A campaign without a DAG, such as one launched from the command line,
follows the same rule: Airflow is asked about a DAG of that name. A step of a journey, a task group, and a task that
makes a launch follow the DAG that they are in. A global pause affects every campaign, or every campaign of a
connection, including future ones. So it needs the right to edit every DAG, and to trigger the DAG of each of these
campaigns.

If Airflow has teams, each check names the team of the DAG, as in Airflow's own checks. A DAG that Airflow does not know
has no known team, so the user needs the right in every team.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager, ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from fastapi import Depends, HTTPException, Request, status

from sendoff_airflow.views.airflow_state import airflow_dags

MARK = "X-Sendoff-Request"
"""A header that only our own script sends. A form or a link on another site cannot send it."""

MAX_BYTES = 100_000
"""The largest body of a request that changes something."""


class Viewer:
    """A logged-in user, with their rights in Airflow."""

    def __init__(self, user: BaseUser, manager: BaseAuthManager[BaseUser]) -> None:
        self.user = user
        self._manager = manager

    @property
    def name(self) -> str:
        """The user's name, as the audit log keeps it."""
        return self.user.get_name()

    def may_act_on_all(self, campaigns: Iterable[str]) -> bool:
        """Check whether they may act on all launches of some campaigns, and on future ones, at once.

        This checks each campaign by its name, and future ones by each team. A check without a DAG is not enough alone:
        an auth manager may allow it to users who have the right for any DAG.
        """
        teams = [DagDetails(team_name=team) for team in sorted(airflow_dags.all_teams())]
        every = [IsAuthorizedDagRequest(method="PUT", details=details) for details in (None, *teams)]
        none = IsAuthorizedDagRequest(method="POST", access_entity=DagAccessEntity.RUN, details=None)
        return self._may([*every, none, *self._requests_for(campaigns, "POST", DagAccessEntity.RUN)])

    def may_see(self, campaign: str) -> bool:
        """Check whether they may see the launches of a campaign."""
        return self._may(self._requests_for([campaign], "GET"))

    def may_steer(self, campaign: str) -> bool:
        """Check whether they may control the launches of a campaign."""
        return self._may(self._requests_to_steer([campaign]))

    def may_clear(self, dag_id: str) -> bool:
        """Check whether they may clear tasks of a DAG in Airflow."""
        return self._may(self._requests_for([dag_id], "PUT", DagAccessEntity.TASK_INSTANCE))

    def may_answer(self, dag_id: str, assigned: Collection[str]) -> bool:
        """Check whether they may answer what a task of a DAG asks. ``assigned``: the users it asks; empty: anyone."""
        may = self._may(self._requests_for([dag_id], "PUT", DagAccessEntity.HITL_DETAIL))
        return may and (
            not assigned
            or self._manager.is_authorized_hitl_task(assigned_users=set(assigned), user=self.user)
        )

    def visible(self, campaigns: Iterable[str]) -> frozenset[str]:
        """Return the campaigns that they may see. This makes one check per team, not per campaign."""
        dags = airflow_dags.dags_of(campaigns)
        by_team: dict[str | None, set[str]] = {}
        for name, teams in airflow_dags.teams_of(dags.values()).items():
            for team in teams:
                by_team.setdefault(team, set()).add(name)
        hidden: set[str] = set()
        for team, dag_ids in by_team.items():
            hidden |= dag_ids - self._manager.filter_authorized_dag_ids(
                dag_ids=dag_ids, user=self.user, method="GET", team_name=team
            )
        return frozenset(name for name, dag_id in dags.items() if dag_id not in hidden)

    def steerable(self, campaigns: Iterable[str]) -> frozenset[str]:
        """Return the campaigns whose launches they may control. If not all are, this checks one by one."""
        names = frozenset(campaigns)
        if not names or self._may(self._requests_to_steer(names)):
            return names
        return frozenset(name for name in names if self.may_steer(name))

    def _requests_to_steer(self, campaigns: Iterable[str]) -> list[IsAuthorizedDagRequest]:
        names = list(campaigns)
        return [*self._requests_for(names, "GET"), *self._requests_for(names, "POST", DagAccessEntity.RUN)]

    def _requests_for(
        self, campaigns: Iterable[str], method: ResourceMethod, entity: DagAccessEntity | None = None
    ) -> list[IsAuthorizedDagRequest]:
        dag_ids = airflow_dags.dags_of(campaigns).values()
        return [
            IsAuthorizedDagRequest(
                method=method, access_entity=entity, details=DagDetails(id=dag_id, team_name=team)
            )
            for dag_id, teams in sorted(airflow_dags.teams_of(dag_ids).items())
            for team in teams
        ]

    def _may(self, requests: list[IsAuthorizedDagRequest]) -> bool:
        """Check whether Airflow allows all of these requests."""
        return self._manager.batch_is_authorized_dag(requests, user=self.user)

    def check_sees(self, campaign: str) -> None:
        """Raise 404 if they may not see a campaign. A 403 would reveal that it exists."""
        if not campaign.isprintable() or not self.may_see(campaign):
            raise not_there()

    def check_sees_all(self, campaigns: Iterable[str]) -> None:
        """Raise 403 if they may not see one of some campaigns."""
        names = frozenset(campaigns)
        if self.visible(names) != names:
            raise forbidden(
                "The suppression list is about all campaigns. To see it, you need the right to see the DAG of each "
                "campaign in Airflow."
            )

    def check_steers(self, campaign: str) -> None:
        """Raise 404 if they may not see a campaign, 403 if they may see but not control it."""
        self.check_sees(campaign)
        if not self.may_steer(campaign):
            raise forbidden(
                f"You may see the campaign {campaign} but not change it. For that, you need the right to trigger its "
                "DAG in Airflow."
            )

    def check_pauses_all(self, campaigns: Iterable[str]) -> None:
        """Raise 403 if they may not pause and resume all launches of some campaigns at once."""
        if not self.may_act_on_all(campaigns):
            raise forbidden(
                "You may not pause or resume all these launches. For that, you need the right to edit every DAG in "
                "Airflow, and to trigger the DAG of each of these campaigns."
            )


def not_there() -> HTTPException:
    """Return the 404 for what does not exist and for what the user may not see. The two look the same."""
    return HTTPException(
        status.HTTP_404_NOT_FOUND, "There is no such page, launch or campaign, or you may not see it."
    )


def forbidden(why: str) -> HTTPException:
    """Return the 403 for what the user may not do."""
    return HTTPException(status.HTTP_403_FORBIDDEN, why)


def conflict(why: str) -> HTTPException:
    """Return the 409 for an action that is no longer possible."""
    return HTTPException(status.HTTP_409_CONFLICT, f"Nothing was changed: {why}")


def too_busy() -> HTTPException:
    """Return the 503 for a request that would have to wait: a waiting thread could serve other requests."""
    return HTTPException(
        status.HTTP_503_SERVICE_UNAVAILABLE,
        "The server is busy. Try again in a few seconds.",
        {"Retry-After": "10"},
    )


async def viewer(request: Request, user: Annotated[BaseUser, Depends(get_user)]) -> Viewer:
    """Return the user of a request. Raise 401 if no one is logged in, and 403 if the login has expired."""
    request.state.is_logged_in = True
    return Viewer(user, get_auth_manager())


ViewerDep = Annotated[Viewer, Depends(viewer)]


@cache  # so that FastAPI asks each once for a request
def own_request(most: int) -> Callable[..., None]:
    """Return a dependency that raises 403 if a request that changes something does not come from one of our own pages.

    Our script sends JSON with a header of its own. A page of another site cannot send it without a CORS preflight, and
    the server allows none. If the browser names the origin of a request, it must be this server. Raise 413 if the body
    has more than ``most`` bytes.
    """

    def check(request: Request, _: ViewerDep) -> None:
        origin = request.headers.get("Origin")
        is_foreign = origin is not None and _host_of(origin) not in _own_hosts(request)
        is_foreign |= request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin"
        if is_foreign or request.headers.get(MARK) != "1":
            raise forbidden("This request did not come from a page of Sendoff.")
        if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(status.HTTP_415_UNSUPPORTED_MEDIA_TYPE, "This request is not JSON.")
        length = request.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > most:
            raise HTTPException(
                status.HTTP_413_CONTENT_TOO_LARGE, f"This request is too large: at most {most:,} bytes."
            )

    return check


check_own_request = own_request(MAX_BYTES)


def _host_of(origin: str) -> str | None:
    """Return the host of an origin, or None if it is not a URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _own_hosts(request: Request) -> set[str]:
    """Return the hosts of this server: the request's Host header, and the host in Airflow's configuration."""
    configured = urlsplit(conf.get("api", "base_url", fallback="")).netloc
    return {host for host in (request.headers.get("Host", ""), configured) if host}
