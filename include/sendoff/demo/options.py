"""The options of the demo, and its error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sendoff.demo.processes import Port
from sendoff.errors import SendoffError


class DemoError(SendoffError):
    """The demo cannot continue. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the demo. ``exit``: stop everything at the end, instead of keeping Airflow's UI running."""

    exit: bool = False
    customers: int = 60_000
    seed: int = 1
    airflow_port: int = 8080
    receiver_port: int = 8090
    service_port: int = 8025
    workspace: Path = Path(".demo")
    dags: Path = Path("dags")

    def ports(self) -> tuple[Port, ...]:
        """Return every port that the demo listens on."""
        return (
            Port(self.airflow_port, "Airflow's API and UI", "--airflow-port"),
            Port(self.receiver_port, "the receiver of post-backs", "--receiver-port"),
            Port(self.service_port, "the messaging service", "--service-port"),
        )
