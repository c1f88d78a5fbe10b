"""All services of docker-compose.yml, started in the order that the file requires."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .composition import ROOT, Service, services, subnets
from .machine import Container, Containers

INSIDE = "inside"  # the network of everything except the proxy
_CONDITIONS: Mapping[str, Callable[[Container], bool]] = {
    "service_completed_successfully": Container.ended_well,
    "service_healthy": Container.is_healthy,
}


class Cluster:
    """The containers of the file, in namespaces on this machine.

    ``secrets`` is the folder that docker/make-secrets created, and ``dags`` replaces ./dags. ``more`` is added to the
    environment of Airflow's containers, and ``binds`` to their mounts.
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
        """Return the folder for a named volume."""
        folder = self._volumes / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def address(self, container: str) -> str:
        """Return the address at which this machine reaches a container."""
        return self.machine.address(container, INSIDE)

    def up(self) -> None:
        """Start all containers, each after the containers that it depends on."""
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
        """Wait until the health checks of all containers have succeeded, or fail after the timeout."""
        checks = {name: each for name, each in self.containers.items() if each.service.restarts}
        deadline = time.monotonic() + patience
        with ThreadPoolExecutor(2) as threads:
            while checks := {name: each for name, each in checks.items() if name not in without}:
                assert time.monotonic() < deadline, f"the health checks of {', '.join(checks)} do not succeed"
                well = threads.map(Container.is_healthy, checks.values())
                without = [name for name, is_well in zip(checks, well, strict=True) if is_well]

    def kill(self, container: str) -> None:
        """Kill all processes of a container at once."""
        self.machine.kill(self.containers[container])

    def start(self, container: str) -> None:
        """Start a container that was killed."""
        self.machine.start_container(self.containers[container])

    def log(self, container: str) -> str:
        """Return the output of a container."""
        return (self._volumes.parent / "logs" / f"{container}.log").read_text(errors="replace")

    def __enter__(self) -> Cluster:
        self.machine.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.machine.__exit__(*error)
