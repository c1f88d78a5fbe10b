"""SENDOFF_SETTINGS_FROM=airflow: the settings of the commands and the receiver, from Airflow's connections."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

import sendoff
from sendoff.audience.identifiers import integers
from sendoff.demo.processes import Supervisor, answers
from sendoff.errors import SettingsError
from sendoff.ledger import Ledger
from sendoff.ledger.erasure.erasures import Erasures
from sendoff.ledger.storage.database import Database
from sendoff.postbacks import request_erasure
from sendoff.service import PostBackSigner
from sendoff.settings import Settings, load_settings
from sendoff_airflow.hooks.ledger import open_ledger
from sendoff_airflow.hooks.settings import SOURCES

from ..local_service import fill, start_service
from ..ports import reserved_port

SENDOFF = str(Path(sys.executable).with_name("sendoff"))
SECRET = "0123456789abcdef" * 2
PUBLIC_URL = "https://events.example.com"
RECEIVER = {"conn_type": "sendoff_receiver", "host": PUBLIC_URL, "password": SECRET}
proof = pytest.mark.proof  # each of these tests starts an Airflow, which takes seconds
Store = Callable[[str, dict[str, Any]], None]


@pytest.fixture(autouse=True)
def _from_airflow(monkeypatch: pytest.MonkeyPatch, airflow_database: None) -> None:
    monkeypatch.setenv("SENDOFF_SETTINGS_FROM", "airflow")


@pytest.fixture(
    params=[pytest.param("environment", marks=proof), pytest.param("file", marks=proof), "database"]
)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """Return a function that stores a connection where Airflow finds it."""
    if request.param == "environment":
        yield lambda conn_id, fields: monkeypatch.setenv(
            f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields)
        )
    elif request.param == "file":
        yield _in_file(monkeypatch, tmp_path)
    else:
        yield from _in_database()


def _in_file(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Store:
    connections: dict[str, Any] = {}
    backend = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", backend)
    path = str(folder / "connections.json")
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", json.dumps({"connections_file_path": path}))

    def store(conn_id: str, fields: dict[str, Any]) -> None:
        connections[conn_id] = fields
        Path(path).write_text(json.dumps(connections))

    return store


def _in_database() -> Iterator[Store]:
    from airflow.models.connection import Connection

    from airflow import settings

    stored: list[str] = []
    with closing(settings.Session()) as session:

        def store(conn_id: str, fields: dict[str, Any]) -> None:
            stored.append(conn_id)
            session.add(Connection(conn_id=conn_id, **fields))
            session.commit()

        yield store
        session.query(Connection).filter(Connection.conn_id.in_(stored)).delete()
        session.commit()


def test_settings_come_from_airflows_connections(store: Store) -> None:
    store(
        "sendoff_ledger",
        {"conn_type": "postgres", "host": "db", "login": "us", "password": "p", "schema": "s"},
    )
    store("sendoff_receiver", RECEIVER)
    settings = load_settings()
    assert settings.ledger_url == "postgresql+psycopg://us:p@db/s"
    assert settings.public_url == PUBLIC_URL
    assert [secret.get_secret_value() for secret in settings.post_back_secrets] == [SECRET]


@proof
def test_the_service_and_the_warehouse_come_from_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"app_token": "app", "field_names": {"device_ids": "ids"}, "timeout": 5, "allow_http": True}
    extra |= {"audience": "them", "requests_per_second": "2.5", "verify": "/ca.pem"}
    service = {
        "conn_type": "sendoff",
        "host": "api.example.com/",
        "login": "us",
        "password": "p",
        "extra": extra,
    }
    warehouse = {"conn_type": "sqlite", "host": "/data/shop.db"}
    monkeypatch.setenv("AIRFLOW_CONN_EU", json.dumps(service))
    monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_WAREHOUSE", json.dumps(warehouse))
    settings = load_settings(connection="eu")
    secrets = [each.get_secret_value() for each in (settings.client_secret, settings.app_token) if each]
    assert (settings.service_url, settings.client_id, *secrets) == (
        "https://api.example.com",
        "us",
        "p",
        "app",
    )
    assert (settings.field_names, settings.timeout, settings.allow_http) == ({"device_ids": "ids"}, 5, True)
    assert (settings.token_audience, settings.requests_per_second) == ("them", 2.5)
    assert (settings.ca_bundle, settings.warehouse_url) == ("/ca.pem", "sqlite:////data/shop.db")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"device_ids": 1}, "device_ids: it must be a text"),
        pytest.param(["device_ids"], "it is not a JSON object", marks=proof),
    ],
)
def test_a_wrong_extra_of_a_connection_is_named_by_its_place(
    monkeypatch: pytest.MonkeyPatch, names: object, problem: str
) -> None:
    service = {"conn_type": "sendoff", "host": "api.example.com", "extra": {"field_names": names}}
    monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_DEFAULT", json.dumps(service))
    with pytest.raises(SettingsError) as caught:
        load_settings(["field_names"])
    assert str(caught.value) == f"Airflow connection sendoff_default (extra.field_names): {problem}"


@proof
def test_a_campaign_reads_the_connection_that_it_names_as_its_warehouse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, device in (("sendoff_warehouse", 1), ("crm", 2), ("support", 3)):
        with closing(sqlite3.connect(tmp_path / name)) as database, database:
            database.execute(f"CREATE TABLE {name} AS SELECT {device} AS device_id")
        fields = {"conn_type": "sqlite", "host": str(tmp_path / name)}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))
    exclusion = {"kind": "query", "file": "complained.sql", "warehouse": "support"}
    campaign = {
        "title": "Spring",
        "message": {"text": "Hello"},
        "channels": {"android_push": {}},
        "warehouse": "crm",
        "audience": {"exclude": [exclusion]},
    }
    folder = tmp_path / "spring"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(json.dumps(campaign))
    (folder / "audience.sql").write_text("SELECT device_id FROM crm")
    (folder / "complained.sql").write_text("SELECT device_id FROM support")
    command = [SENDOFF, "preview", str(folder), "--period", "2026-03-02", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["people"] == 1
    with sendoff.connect(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        app.migrate()
        assert app.preview(str(folder), period="2026-03-02").to_json()["people"] == 1
    monkeypatch.delenv("AIRFLOW_CONN_CRM")
    with (
        sendoff.connect(f"sqlite:///{tmp_path / 'ledger.db'}") as app,
        pytest.raises(SettingsError, match="Airflow has no connection crm"),
    ):
        app.preview(str(folder), period="2026-03-02")
    command = [SENDOFF, "send", str(folder), "--period", "2026-03-02"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1
    assert "Airflow has no connection crm, which the campaign names as its warehouse" in ended.stderr


@proof
def test_a_campaign_is_sent_through_the_connection_that_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ledger, database = (f"sqlite:///{tmp_path / name}.db" for name in ("ledger", "service"))
    with closing(Ledger(ledger)) as opened:
        opened.migrate()
    monkeypatch.setenv("SENDOFF_WAREHOUSE_URL", "sqlite://")
    monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_RECEIVER", json.dumps(RECEIVER))
    campaign = {"title": "Spring", "message": {"text": "Hello"}, "channels": {"android_push": {}}}
    folder, journey = tmp_path / "spring", tmp_path / "way"
    for each in (folder, journey):
        each.mkdir()
        (each / "audience.sql").write_text("SELECT 7 AS device_id, 'android' AS platform")
    (folder / "campaign.yaml").write_text(json.dumps({**campaign, "connection": "sendoff_eu"}))
    step = {"name": "first", "message": campaign["message"], "channels": campaign["channels"]}
    (journey / "journey.yaml").write_text(json.dumps({"title": "Way", "steps": [step]}))
    (tmp_path / "defaults.yaml").write_text("connection: sendoff_eu\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [SENDOFF, *arguments, "--ledger", ledger]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    with closing(start_service(database, fill(database, tmp_path))) as service:
        login = {"login": service.client_id, "password": service.client_secret}
        fields = {"conn_type": "sendoff", "host": service.base_url, **login}
        fields["extra"] = {"app_token": service.app_token}
        monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_EU", json.dumps(fields))
        sent = run("send", str(folder), "--period", "2026-03-02", "--send-late")
        assert sent.returncode == 0, sent.stderr
        assert "already sent: 1 accepted" in run("send", sent.stdout.split()[1]).stdout
        assert "1 accepted" in run("send-test", str(folder), "7").stdout
        way = run("send", str(journey), "--period", "2026-03-02", "--send-late")
        assert way.returncode == 0, way.stderr


@proof
def test_a_private_key_comes_from_the_file_that_the_connection_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key.pem").write_text("a key")
    extra = {"grant": "jwt_bearer", "private_key_path": str(tmp_path / "key.pem")}
    service = {
        "conn_type": "sendoff",
        "host": "api.example.com",
        "login": "us",
        "password": "p",
        "extra": extra,
    }
    monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_DEFAULT", json.dumps(service))
    settings = load_settings(["client_secret", "private_key"])
    assert settings.private_key
    assert settings.private_key.get_secret_value() == "a key"
    assert settings.client_secret is None


def test_every_setting_has_a_field_but_those_of_one_process() -> None:
    found = {name for fields in SOURCES.values() for name in fields}
    assert {*Settings.model_fields} - found == {
        *("connection", "defaults", "machine_open_seconds", "opt_out_texts")
    }


def stored_with_erasures(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    extra = {"erasure_secret": SECRET, "erasure_log": str(folder / "erasures.jsonl")}
    stored = {"conn_type": "sendoff_ledger", "password": f"sqlite:///{folder / 'ledger.db'}", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_LEDGER", json.dumps(stored))


def test_the_connection_of_the_ledger_has_the_secret_and_the_log_of_erasures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored_with_erasures(monkeypatch, tmp_path)
    with closing(open_ledger()) as ledger:
        ledger.migrate()
        request_erasure(ledger, [7], identified_by="device_id", who="anna", reason="asked")
    remembered = Erasures(Database(f"sqlite:///{tmp_path / 'ledger.db'}"), SECRET)
    assert list(remembered.in_set("device_id", integers([7, 8]))) == [7]
    assert len((tmp_path / "erasures.jsonl").read_text().splitlines()) == 1


def test_a_variable_that_differs_from_the_connection_of_the_ledger_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored_with_erasures(monkeypatch, tmp_path)
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", SECRET[::-1])
    with pytest.raises(
        SettingsError, match="SENDOFF_ERASURE_SECRET and the connection sendoff_ledger"
    ) as caught:
        open_ledger()
    assert SECRET not in str(caught.value)
    assert SECRET[::-1] not in str(caught.value)


@proof
def test_commands_read_the_secret_and_the_log_of_erasures_from_the_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored_with_erasures(monkeypatch, tmp_path)
    settings = load_settings(["erasure_secret", "erasure_log"])
    assert settings.erasure_secret
    assert settings.erasure_secret.get_secret_value() == SECRET
    assert settings.erasure_log == str(tmp_path / "erasures.jsonl")


@proof
def test_a_connection_that_airflow_does_not_have_leaves_the_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "sqlite:///ledger.db")
    monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_RECEIVER", json.dumps(RECEIVER))
    settings = load_settings()
    assert (settings.ledger_url, settings.public_url) == ("sqlite:///ledger.db", PUBLIC_URL)


@proof
def test_a_variable_that_differs_from_a_connection_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = {"conn_type": "sendoff_ledger", "password": "sqlite:////secret/a.db"}
    monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_LEDGER", json.dumps(ledger))
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "sqlite:////secret/b.db")
    ended = subprocess.run([SENDOFF, "report"], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1
    problem = "SENDOFF_LEDGER_URL and the Airflow connection sendoff_ledger have different values"
    assert problem in ended.stderr
    assert "secret" not in ended.stdout + ended.stderr


@proof
def test_a_failed_look_up_is_an_error_and_not_a_missing_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "sqlite:///ledger.db")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(
        SettingsError, match="look up the connection sendoff_ledger: its MetastoreBackend failed"
    ):
        load_settings(["ledger_url"])


@proof
def test_a_wrong_connection_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_LEDGER", json.dumps({"conn_type": "http", "password": SECRET}))
    with pytest.raises(SettingsError, match="connection sendoff_ledger: the type http is none of") as caught:
        load_settings(["ledger_url"])
    assert SECRET not in str(caught.value)


@proof
def test_an_airflow_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "no.such.Backend")
    with pytest.raises(SettingsError, match="Airflow could not look up its connections"):
        load_settings()


@proof
def test_a_command_does_not_keep_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SENDOFF_RECEIVER", json.dumps(RECEIVER))
    script = (
        "import sys, sendoff.settings as s; print(s.load_settings().public_url, 'airflow' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert ended.stdout == f"{PUBLIC_URL} False\n"


@proof
def test_a_receiver_with_airflows_connections_receives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
    with reserved_port() as port, Supervisor(tmp_path) as supervisor:
        address = f"http://127.0.0.1:{port}"
        stored = {
            "sendoff_ledger": {"conn_type": "sendoff_ledger", "password": url},
            "sendoff_receiver": {**RECEIVER, "host": address},
        }
        for conn_id, fields in stored.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))
        command = [SENDOFF, "receiver", "--port", str(port)]
        supervisor.start("receiver", command, {**os.environ}, ready=lambda: answers(f"{address}/readyz"))
        body = {"time": 1_767_225_600, "device.id": 1, "campaign.id": 1}
        replies = [
            requests.post(PostBackSigner(address, [secret]).sign("open", "a" * 32), json=body, timeout=60)
            for secret in (SECRET, SECRET[::-1])
        ]
    assert [reply.status_code for reply in replies] == [200, 404]
