"""README.md's "Connect it", word for word: a wheel in a new environment outside the clone, PostgreSQL, and a report.

The test reads the commands and the connection types from the page. The environment has links to the packages of this
one, so pip checks what the wheel needs, and installs nothing else. The service is the local one. The ledger and the
warehouse are databases on a real PostgreSQL.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ..ports import reserve_ports
from ..waiting import answers, until
from .environment import linked_environment

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = README[README.index("## Connect it") : README.index("## Find your way")]
[INSTALL, RECEIVE] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
CONNECTIONS = dict(re.findall(r"^\| `(\w+)` \| ([^|,]+?)(?:,[^|]*)? \|", PAGE, re.MULTILINE))
BIN = Path(sys.executable).parent
DEVICES = range(1, 41)
LONGEST = 900  # seconds for one command on a busy machine
CAMPAIGN = """
title: Welcome back
start: 2026-01-05
schedule: "0 * * * *"
message: {title: Welcome back, text: We missed you}
channels:
  web_push:
    browsers: [chrome]
report: {quiet_for: {length: 1, unit: minutes}}
"""
QUERY = "SELECT device_id, platform FROM devices WHERE bought_at < :period_end"


@dataclass
class Machine:
    """The place of a reader of the page: a folder outside the clone, with an active environment."""

    folder: Path
    port: int
    ledger_url: str
    settings: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str | Path, cwd: Path | None = None, check: bool = True) -> str:
        ended = subprocess.run(
            command,
            check=False,
            cwd=cwd or self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
        assert not check or ended.returncode == 0, (
            f"{command}:\n{ended.stdout[-6000:]}\n{ended.stderr[-6000:]}"
        )
        return ended.stdout

    def shell(self, block: str, cwd: Path | None = None) -> str:
        """Run a block of the page, with this machine's URLs instead of the reader's."""
        return self.run("bash", "-euc", self.as_here(block), cwd=cwd)

    def as_here(self, block: str) -> str:
        here = {
            "postgresql+psycopg://sendoff@db/sendoff": self.ledger_url,
            "https://events.example.com": self.public_url,
            "0.0.0.0 --port 8090": f"127.0.0.1 --port {self.port}",
        }
        for theirs, ours in here.items():
            block = block.replace(theirs, ours)
        return block

    @property
    def public_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        foreign = ("AIRFLOW", "MESSAGING_SERVICE_", "OTEL_", "PYTHON", "SENDOFF_", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return {
            **kept,
            "PATH": f"{self.folder / 'environment/bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "COLUMNS": "200",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            **self.settings,
        }


@pytest.fixture(scope="module")
def machine(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine after the first block of the page, with the clone removed."""
    folder = tmp_path_factory.mktemp("machine")
    [port] = reserve_ports(1)
    machine = Machine(folder, port, postgres_url)
    clone = _clone(folder / "clone")
    linked_environment(folder / "environment")
    build, install = INSTALL.split("\n", 1)
    machine.shell(build, cwd=clone)
    machine.settings["PIP_NO_INDEX"] = "1"  # everything but the wheel is there, so pip can replace nothing
    machine.shell(install, cwd=clone)
    shutil.rmtree(clone)
    machine.run("airflow", "db", "migrate")  # a reader with an Airflow has done this
    return machine


def _clone(place: Path) -> Path:
    """Copy what git would clone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0")[:-1]:
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    return place


@pytest.fixture(scope="module")
def warehouse(machine: Machine) -> sa.URL:
    """Create a table of the reader's. It is in the database of the ledger, whose tables have other names."""
    url = sa.make_url(machine.ledger_url)
    engine = sa.create_engine(url)
    with engine.begin() as db:
        db.execute(sa.text("CREATE TABLE devices (device_id bigint, platform text, bought_at timestamptz)"))
        rows = [{"device": device} for device in DEVICES]
        db.execute(sa.text("INSERT INTO devices VALUES (:device, 'chrome', '2026-01-01 00:00+00')"), rows)
    engine.dispose()
    return url


@pytest.fixture(scope="module")
def service(machine: Machine) -> Iterator[dict[str, Any]]:
    """Start the service in another environment, and return the fields of the connection to it."""
    database = ("--database", f"sqlite:///{machine.folder / 'service.db'}")

    def run(*command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(machine.run(BIN / "messaging-service", *command, *database))
        return found

    app = run("apps", "add", "--name", "shop")
    account = run("client-ids", "add", "--name", "airflow", "--type", "secret")
    lines = ["device_id,platform,profile_id,user_id,language,time_zone"]
    lines += [f"{device},chrome,{device},user-{device},en,UTC" for device in DEVICES]
    (machine.folder / "devices.csv").write_text("\n".join(lines) + "\n")
    run("devices", "import", "devices.csv")
    line = [
        BIN / "messaging-service",
        "serve",
        "--port",
        "0",
        "--delay-from",
        "0",
        "--delay-to",
        "1",
        *database,
    ]
    with subprocess.Popen(line, stdout=subprocess.PIPE, env=machine.environment) as process:
        try:
            assert process.stdout is not None
            yield {
                "host": json.loads(process.stdout.readline())["listening"],
                "login": account["client_id"],
                "password": account["client_secret"],
                "extra": json.dumps({"app_token": app["apptoken"]}),
            }
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def receiver(machine: Machine) -> Iterator[Machine]:
    """Start the receiver as the second block of the page does."""
    log = machine.folder / "receiver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "bash",
                "-euc",
                re.sub(r"^(sendoff receiver)", r"exec \1", machine.as_here(RECEIVE), flags=re.MULTILINE),
            ],
            cwd=machine.folder,
            env=machine.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: process.poll() is not None or answers(f"{machine.public_url}/readyz"))
        assert process.poll() is None, log.read_text()
        yield machine
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def hooks(machine: Machine) -> list[dict[str, Any]]:
    """Return the connection types of this Airflow."""
    found: list[dict[str, Any]] = json.loads(machine.run("airflow", "providers", "hooks", "--output", "json"))
    return found


@pytest.fixture(scope="module")
def connected(
    receiver: Machine, service: Mapping[str, str], warehouse: sa.URL, hooks: list[dict[str, Any]]
) -> dict[str, str]:
    """Add the connections in the page's table, and return the type that Airflow stored for each."""
    types = {hook["hook_name"]: hook["connection_type"] for hook in hooks}
    fields: dict[str, Mapping[str, object]] = {
        "sendoff_default": service,
        "sendoff_ledger": {"password": receiver.ledger_url},
        "sendoff_receiver": {
            "host": receiver.public_url,
            "password": (receiver.folder / "post_back_secret").read_text().strip(),
        },
        "sendoff_warehouse": {
            "host": warehouse.host,
            "port": warehouse.port or 5432,
            "login": warehouse.username,
            "password": warehouse.password or "",
            "schema": warehouse.database,
        },
    }
    connections = {
        name: {"conn_type": types.get(label, label.lower()), **fields[name]}  # unknown types become generic
        for name, label in CONNECTIONS.items()
    }
    file = receiver.folder / "connections.json"
    file.write_text(json.dumps(connections))
    receiver.run("airflow", "connections", "import", file)
    listed = json.loads(receiver.run("airflow", "connections", "list", "--output", "json"))
    return {each["conn_id"]: each["conn_type"] for each in listed}


def test_the_wheel_is_installed_under_its_own_name_with_airflow_and_its_postgresql_provider(
    machine: Machine, hooks: list[dict[str, Any]]
) -> None:
    installed = {each["name"] for each in json.loads(machine.run("pip", "list", "--format", "json"))}
    assert {"airflow-provider-sendoff", "apache-airflow-providers-postgres"} <= installed
    assert "sendoff" not in installed
    owners = {hook["connection_type"]: hook["package_name"] for hook in hooks}
    assert owners["sendoff"] == "airflow-provider-sendoff"
    assert owners["postgres"] == "apache-airflow-providers-postgres"
    assert machine.run("sendoff", "--version").startswith("sendoff ")


def test_airflow_stores_each_connection_with_its_type(connected: Mapping[str, str]) -> None:
    assert connected == {
        "sendoff_default": "sendoff",
        "sendoff_ledger": "sendoff_ledger",
        "sendoff_receiver": "sendoff_receiver",
        "sendoff_warehouse": "postgres",
    }


def test_a_campaign_on_a_postgresql_warehouse_comes_to_a_report(
    receiver: Machine, connected: Mapping[str, str]
) -> None:
    assert len(connected) == len(CONNECTIONS)
    folder = receiver.folder / "airflow/dags/campaigns/welcome_back"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(CAMPAIGN)
    (folder / "audience.sql").write_text(QUERY)
    written = receiver.run("airflow", "dags", "test", "welcome_back")
    assert "Reached of the audience:" in written
    receiver.settings["SENDOFF_LEDGER_URL"] = receiver.ledger_url
    [launch] = json.loads(receiver.run("sendoff", "report", "--json"))
    report = json.loads(receiver.run("sendoff", "report", launch["launch"], "--json"))
    assert (report["audience"], report["adds_up"]) == (len(DEVICES), True)
    assert report["verdicts"]["delivered"] + report["verdicts"]["engaged"] > 0
