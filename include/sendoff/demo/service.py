"""The local messaging service of the demo: its process, its account, its devices, and its record of what it did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from sendoff.demo.airflow import clean_environment, command
from sendoff.demo.options import DemoError
from sendoff.demo.processes import Supervisor, answers

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Account:
    """The credentials for the service."""

    client_id: str
    client_secret: str = field(repr=False)
    app_token: str = field(repr=False)


class LocalService:
    """A messaging service on this machine, with its database in a file."""

    def __init__(self, database: Path, port: int) -> None:
        self._database = f"sqlite:///{database}"
        self._port = port
        self._session = requests.Session()
        self._session.trust_env = False

    @property
    def address(self) -> str:
        """The base URL of its API."""
        return f"http://127.0.0.1:{self._port}"

    def start(self, supervisor: Supervisor) -> None:
        """Start the service and wait until it answers."""
        serve = [command("messaging-service"), "serve", "--host", "127.0.0.1", "--port", str(self._port)]
        supervisor.start(
            "messaging-service",
            [*serve, *self._on_database()],
            clean_environment(),
            ready=lambda: answers(f"{self.address}/healthz"),
        )

    def open_account(self, supervisor: Supervisor) -> Account:
        """Add an app and a client ID with a secret, and return their credentials."""
        app = self._command(supervisor, "apps", "add", "--name", "demo")
        client = self._command(supervisor, "client-ids", "add", "--name", "airflow", "--type", "secret")
        return Account(client["client_id"], client["client_secret"], app["apptoken"])

    def import_devices(self, supervisor: Supervisor, file: Path) -> int:
        """Import the devices of a CSV file and return their number."""
        return int(self._command(supervisor, "devices", "import", str(file))["devices"])

    def progress(self) -> dict[str, Any]:
        """Return the progress of its runs and post-backs."""
        return self._get("/admin/progress")

    def is_quiet(self) -> bool:
        """Check whether it has nothing left to send or to post back."""
        return bool(self.progress()["quiet"])

    def records(self) -> list[Mapping[str, Any]]:
        """Return its record of every campaign it was ever asked to send."""
        campaigns: list[Any] = []
        while page := self._get(f"/admin/campaigns?count={_PAGE}&skip={len(campaigns)}")["campaigns"]:
            campaigns += page
        return [self._get(f"/admin/campaigns/{campaign['id']}/truth") for campaign in campaigns]

    def _get(self, path: str) -> dict[str, Any]:
        try:
            reply = self._session.get(f"{self.address}{path}", timeout=60)
            reply.raise_for_status()
        except requests.RequestException as error:
            raise DemoError(
                f"the messaging service did not answer GET {path} ({type(error).__name__})"
            ) from None
        return dict(reply.json())

    def _command(self, supervisor: Supervisor, *words: str) -> dict[str, Any]:
        line = [command("messaging-service"), *words, *self._on_database()]
        return dict(
            json.loads(supervisor.run(f"messaging-service {' '.join(words[:2])}", line, clean_environment()))
        )

    def _on_database(self) -> tuple[str, str]:
        return "--database", self._database
