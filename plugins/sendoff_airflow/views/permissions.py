"""Who may see and who may steer a launch: whoever may see the DAG of its campaign, and whoever may trigger it.

Airflow's own login and permissions decide. A launch of a campaign that has no DAG, as the command line may make, is
judged in the same way, by what Airflow says of a DAG of that name. A global pause holds every campaign, or every
one of a connection, also those that are yet to be made: whoever may edit every DAG, and trigger the DAG of each of
these campaigns, may pause and resume them.

Where Airflow has teams, each question names the team of the DAG, as Airflow's own do. Of a DAG that Airflow does not
know, nobody can say whose it is: that takes the right in every team.
"""

from __future__ import annotations

from collections.abc import Iterable
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

from sendoff_airflow.views import airflow_db

MARK = "X-Sendoff-Request"
"""A header that only our own script sends: a form or a link of another site cannot."""

MAX_BYTES = 100_000
"""The most that a request which changes something may hold."""


class Viewer:
    """A person who is logged in, with what Airflow lets them do."""

    def __init__(self, user: BaseUser, manager: BaseAuthManager[BaseUser]) -> None:
        self._user = user
        self._manager = manager

    @property
    def name(self) -> str:
        """The name under which decisions are kept."""
        return self._user.get_name()

    def may_pause_all(self, campaigns: Iterable[str]) -> bool:
        """Check whether they may pause and resume at once all launches of some campaigns, and those yet to be made.

        Each campaign is asked for by its name, and those yet to be made by each team: of no DAG in particular, an auth
        manager may answer for anybody who may do so with any DAG.
        """
        teams = [DagDetails(team_name=team) for team in sorted(airflow_db.all_teams())]
        every = [IsAuthorizedDagRequest(method="PUT", details=details) for details in (None, *teams)]
        none = IsAuthorizedDagRequest(method="POST", access_entity=DagAccessEntity.RUN, details=None)
        return self._may([*every, none, *self._requests_for(campaigns, "POST", DagAccessEntity.RUN)])

    def may_see(self, campaign: str) -> bool:
        """Check whether they may see the launches of a campaign."""
        return self._may(self._requests_for([campaign], "GET"))

    def may_steer(self, campaign: str) -> bool:
        """Check whether they may decide about the launches of a campaign."""
        return self._may(self._requests_to_steer([campaign]))

    def may_clear(self, dag_id: str) -> bool:
        """Check whether Airflow lets them run tasks of a DAG once more."""
        return self._may(self._requests_for([dag_id], "PUT", DagAccessEntity.TASK_INSTANCE))

    def visible(self, campaigns: Iterable[str]) -> frozenset[str]:
        """Return those of some campaigns that they may see: one question for each team, however many they are."""
        names = set(campaigns)
        by_team: dict[str | None, set[str]] = {}
        for name, teams in airflow_db.teams_of(names).items():
            for team in teams:
                by_team.setdefault(team, set()).add(name)
        hidden: set[str] = set()
        for team, dag_ids in by_team.items():
            hidden |= dag_ids - self._manager.filter_authorized_dag_ids(
                dag_ids=dag_ids, user=self._user, method="GET", team_name=team
            )
        return frozenset(names - hidden)

    def steerable(self, campaigns: Iterable[str]) -> frozenset[str]:
        """Return those of some campaigns whose launches they may decide about: asked for one by one if not all are."""
        names = frozenset(campaigns)
        if not names or self._may(self._requests_to_steer(names)):
            return names
        return frozenset(name for name in names if self.may_steer(name))

    def _requests_to_steer(self, campaigns: Iterable[str]) -> list[IsAuthorizedDagRequest]:
        names = list(campaigns)
        return [*self._requests_for(names, "GET"), *self._requests_for(names, "POST", DagAccessEntity.RUN)]

    def _requests_for(
        self, dag_ids: Iterable[str], method: ResourceMethod, entity: DagAccessEntity | None = None
    ) -> list[IsAuthorizedDagRequest]:
        return [
            IsAuthorizedDagRequest(
                method=method, access_entity=entity, details=DagDetails(id=dag_id, team_name=team)
            )
            for dag_id, teams in sorted(airflow_db.teams_of(dag_ids).items())
            for team in teams
        ]

    def _may(self, requests: list[IsAuthorizedDagRequest]) -> bool:
        """Check whether Airflow lets them do all of something."""
        return self._manager.batch_is_authorized_dag(requests, user=self._user)

    def check_sees(self, campaign: str) -> None:
        """Raise 404 where they may not see a campaign: whether it is there is none of their business either."""
        if not campaign.isprintable() or not self.may_see(campaign):
            raise not_there()

    def check_steers(self, campaign: str) -> None:
        """Raise 404 where they may not see a campaign, 403 where they may see it and not decide about it."""
        self.check_sees(campaign)
        if not self.may_steer(campaign):
            raise HTTPException(
                status.HTTP_403_FORBIDDEN,
                f"You may see campaign {campaign}, but not steer it: that takes the right to trigger its DAG.",
            )

    def check_pauses_all(self, campaigns: Iterable[str]) -> None:
        """Raise 403 where they may not pause and resume at once all launches of some campaigns."""
        if not self.may_pause_all(campaigns):
            raise HTTPException(
                status.HTTP_403_FORBIDDEN,
                "You may not pause or resume all these launches: that takes the right to edit every DAG, and to "
                "trigger the DAG of each of their campaigns.",
            )


def not_there() -> HTTPException:
    """Return the answer for what is not there, and for what somebody may not see: they cannot be told apart."""
    return HTTPException(
        status.HTTP_404_NOT_FOUND, "There is no such launch or campaign, or you may not see it."
    )


def too_busy() -> HTTPException:
    """Return the answer to what would have to wait for others: a thread that waits here could answer somebody else."""
    return HTTPException(
        status.HTTP_503_SERVICE_UNAVAILABLE,
        "The server is busy with requests of this kind: try again in a few seconds.",
        {"Retry-After": "10"},
    )


async def viewer(user: Annotated[BaseUser, Depends(get_user)]) -> Viewer:
    """Return who asks; 401 for anybody who is not logged in."""
    return Viewer(user, get_auth_manager())


ViewerDep = Annotated[Viewer, Depends(viewer)]


def check_own_request(request: Request, _: ViewerDep) -> None:
    """Raise 403 for a request that changes something and does not come from one of our own pages.

    Our script sends JSON with a header that a page of another site cannot send without being asked first, which nothing
    here agrees to. Where the browser says whence a request comes, that must be here as well.
    """
    origin = request.headers.get("Origin")
    is_foreign = origin is not None and _host_of(origin) not in _own_hosts(request)
    is_foreign |= request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin"
    if is_foreign or request.headers.get(MARK) != "1":
        raise HTTPException(status.HTTP_403_FORBIDDEN, "This request did not come from a page of Sendoff.")
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(status.HTTP_415_UNSUPPORTED_MEDIA_TYPE, "This request is not JSON.")
    length = request.headers.get("Content-Length", "")
    if not length.isdecimal() or int(length) > MAX_BYTES:
        raise HTTPException(status.HTTP_413_CONTENT_TOO_LARGE, "This request is too large.")


def _host_of(origin: str) -> str | None:
    """Return the host of an origin; None for what is no address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _own_hosts(request: Request) -> set[str]:
    """Return the hosts under which this server is known: as it was asked, and as Airflow is configured."""
    configured = urlsplit(conf.get("api", "base_url", fallback="")).netloc
    return {host for host in (request.headers.get("Host", ""), configured) if host}
