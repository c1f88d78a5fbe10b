"""All services of docker-compose.yml, started in the order that the file asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .composition import ROOT, Service, services, subnets
from .machine import Container, Containers

INSIDE = "inside"  # the network that everything but the proxy is in
_CONDITIONS: Mapping[str, Callable[[Container], bool]] = {
    "service_completed_successfully": Container.ended_well,
    "service_healthy": Container.is_healthy,
}


class Cluster:
    """The containers of the file, in namespaces of this machine.

    ``secrets`` is the folder that docker/make-secrets made, ``dags`` stands in for ./dags, ``more`` is added to the
    environment of Airflow's containers, and ``binds`` to what they see.
    """

    def __init__(
        self,
        folder: Path,
        *,
        secrets: Path,
        dags: Path,
        more: Mapping[str, str],
        binds: Mapping[str, str],
    ) -> None:
        self._volumes = folder / "volumes"
        self._secrets = secrets
        self._dags = dags
        self._services = services()
        self.machine = Containers(folder, subnets())
        self.containers = {
            name: self._container(service, name, more, binds)
            for service in self._services.values()
            for name in service.containers
        }

    def _container(
        self, service: Service, name: str, more: Mapping[str, str], binds: Mapping[str, str]
    ) -> Container:
        is_airflow = "AIRFLOW__CORE__EXECUTOR" in service.environment
        return Container(service, name, self._source, more if is_airflow else {}, binds if is_airflow else {})

    def _source(self, named: str) -> Path:
        if named == "./dags":
            return self._dags
        if named.startswith("./secrets/"):
            return self._secrets / Path(named).name
        if named.startswith("./"):
            return ROOT / named
        return self.volume(named)

    def volume(self, name: str) -> Path:
        """Give the folder that is a named volume."""
        folder = self._volumes / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def address(self, container: str) -> str:
        """Give the address by which this machine reaches a container."""
        return self.machine.address(container, INSIDE)

    def up(self) -> None:
        """Start everything, each when what it waits for is there."""
        self.machine.plug_in(self._services, reached=INSIDE)
        met: set[tuple[str, str]] = set()
        waiting = dict(self._services)
        while waiting:
            wanted = {each for service in waiting.values() for each in service.after.items()} - met
            met |= {each for each in wanted if self._is_met(*each)}
            for name, service in list(waiting.items()):
                if service.after.items() <= met:
                    for container in service.containers:
                        self.machine.start_container(self.containers[container])
                    del waiting[name]
            self.machine.check()
            time.sleep(0.1)

    def _is_met(self, service: str, condition: str) -> bool:
        containers = [self.containers[name] for name in self._services[service].containers]
        return all(each.child is not None and _CONDITIONS[condition](each) for each in containers)

    def until_healthy(self, patience: float, without: Collection[str] = ()) -> None:
        """Wait until the health check of every container has succeeded, so many seconds at most."""
        checks = {name: each for name, each in self.containers.items() if each.service.restarts}
        deadline = time.monotonic() + patience
        with ThreadPoolExecutor(2) as threads:
            while checks := {name: each for name, each in checks.items() if name not in without}:
                assert time.monotonic() < deadline, f"the health checks of {', '.join(checks)} do not succeed"
                well = threads.map(Container.is_healthy, checks.values())
                without = [name for name, is_well in zip(checks, well, strict=True) if is_well]

    def kill(self, container: str) -> None:
        """Kill a container: all of its processes at once."""
        self.machine.kill(self.containers[container])

    def start(self, container: str) -> None:
        """Start a container that was killed."""
        self.machine.start_container(self.containers[container])

    def log(self, container: str) -> str:
        """Give what a container wrote."""
        return (self._volumes.parent / "logs" / f"{container}.log").read_text(errors="replace")

    def __enter__(self) -> Cluster:
        self.machine.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.machine.__exit__(*error)
