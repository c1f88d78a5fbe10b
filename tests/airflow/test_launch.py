"""A campaign's DAG, run to its end against the real service and the real receiver."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from airflow.sdk import DAG

from airflow import settings
from sendoff.campaign import load_campaign
from sendoff.ledger import Ledger
from sendoff.period import Period, launch_key
from sendoff_airflow.dags import campaign_dag, reconcile_dag
from sendoff_airflow.hook import SendoffHook

BIN = Path(sys.executable).parent
PLATFORMS = ("android", "ios", "chrome", "firefox", "safari")
DEVICES = [7_340_000_000 + n for n in range(1, 501)]  # long enough that no count looks like one
SEGMENT_SIZE = 60  # nine segments, the last of them smaller
SEGMENTS = 9
POST_BACK_SECRET = "0123456789abcdef" * 2
DAY = datetime(2026, 3, 2, 9, tzinfo=UTC)

CAMPAIGN = """
title: {title}
message:
  title: Welcome back
  text: We missed you
channels:
  android_push:
  ios_push:
  web_push:
    browsers: [chrome, firefox, safari]
connection: {connection}
warehouse: shop
segment_size: {segment_size}
parallelism: 2
"""
FEW = f"SELECT device_id, platform FROM devices WHERE device_id <= {DEVICES[59]}"
QUERY = "SELECT device_id, platform FROM devices WHERE :period_start < :period_end"


@dataclass
class House:
    """The service, the receiver, the warehouse and the ledger of these tests."""

    folder: Path
    service: str
    receiver: subprocess.Popen[bytes]
    ledger_url: str
    secrets: list[str] = field(repr=False)

    def campaign(
        self, name: str, query: str = QUERY, connection: str = "service", more: str = "", **choices: Any
    ) -> DAG:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        text = CAMPAIGN.format(title=f"The campaign {name}", connection=connection, segment_size=SEGMENT_SIZE)
        (folder / "campaign.yaml").write_text(text + more)
        (folder / "audience.sql").write_text(query)
        usual = {"quiet_for": timedelta(seconds=3), "default_args": {"retries": 0}}
        return campaign_dag(load_campaign(folder), **{**usual, **choices})

    def truths(self, name: str) -> list[dict[str, Any]]:
        campaigns = self._admin("campaigns?count=1000")["campaigns"]
        mine = [each for each in campaigns if each["title"].startswith(f"The campaign {name} [")]
        return [self._admin(f"campaigns/{each['id']}/truth") for each in mine]

    def wait_until_quiet(self) -> None:
        deadline = time.monotonic() + 60
        while not self._admin("progress")["quiet"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _admin(self, path: str) -> dict[str, Any]:
        answer = requests.get(f"{self.service}/admin/{path}", timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def verdicts(self, key: str) -> dict[str, set[int]]:
        with closing(Ledger(self.ledger_url)) as ledger:
            return {name: set(map(int, who)) for name, who in ledger.verdicts.sets(key).items()}

    def states(self, key: str) -> dict[str, int]:
        with closing(Ledger(self.ledger_url)) as ledger:
            return ledger.dispatches.states(key)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    database = f"sqlite:///{folder / 'service.db'}"
    ledger_url = f"sqlite:///{folder / 'ledger.db'}"
    with closing(Ledger(ledger_url)) as ledger:
        ledger.migrate()
    _make_warehouse(folder)
    app = _service_command("apps", "add", "--name", "shop", "--database", database)
    client = _service_command("client-ids", "add", "--name", "us", "--type", "secret", "--database", database)
    _service_command("devices", "import", str(folder / "devices.csv"), "--database", database)
    quick = ("--delay-from", "0", "--delay-to", "0.3", "--first-pause", "0.1")
    serve = subprocess.Popen(
        [BIN / "messaging-service", "serve", "--port", "0", "--database", database, *quick],
        stdout=subprocess.PIPE,
    )
    with pytest.MonkeyPatch.context() as patch:
        receive, public_url = _start_receiver(ledger_url)
        try:
            assert serve.stdout is not None
            service = json.loads(serve.stdout.readline())["listening"]
            known = {"login": client["client_id"], "password": client["client_secret"]}
            extra = {"app_token": app["apptoken"]}
            patch.setenv("SENDOFF_LEDGER_URL", ledger_url)
            _connection(
                patch,
                "sendoff_receiver",
                conn_type="sendoff_receiver",
                host=public_url,
                password=POST_BACK_SECRET,
            )
            _connection(patch, "shop", conn_type="sqlite", host=str(folder / "shop.db"))
            _connection(patch, "service", conn_type="sendoff", host=service, **known, extra=extra)
            _connection(
                patch,
                "misspelt",
                conn_type="sendoff",
                host=service,
                **known,
                extra={**extra, "field_names": {"device_ids": "devices"}},
            )
            _connection(
                patch, "wrong_secret", conn_type="sendoff", host=service, **{**known, "password": "wrong"}
            )
            _connection(patch, "nobody", conn_type="sendoff", host="http://127.0.0.1:9", **known, extra=extra)
            secrets = [client["client_secret"], app["apptoken"], POST_BACK_SECRET]
            yield House(folder, service, receive, ledger_url, secrets)
        finally:
            for process in (serve, receive):
                process.terminate()
            for process in (serve, receive):
                process.wait(10)
            assert serve.stdout is not None
            serve.stdout.close()


def _start_receiver(ledger_url: str) -> tuple[subprocess.Popen[bytes], str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    public_url = f"http://127.0.0.1:{port}"
    settings = {
        "SENDOFF_LEDGER_URL": ledger_url,
        "SENDOFF_PUBLIC_URL": public_url,
        "SENDOFF_POST_BACK_SECRETS": POST_BACK_SECRET,
    }
    process = subprocess.Popen([BIN / "sendoff", "receiver", "--port", str(port)], env=os.environ | settings)
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None, "the receiver ended"
        assert time.monotonic() < deadline
        try:
            requests.get(f"{public_url}/healthz", timeout=1).raise_for_status()
        except requests.RequestException:
            time.sleep(0.05)
        else:
            return process, public_url


def _make_warehouse(folder: Path) -> None:
    """Each device once, twenty of them twice, and a row without a device."""
    rows = [(device, PLATFORMS[device % len(PLATFORMS)]) for device in DEVICES]
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE devices (device_id INTEGER, platform TEXT)")
        shop.executemany("INSERT INTO devices VALUES (?, ?)", [*rows, *rows[:20], (None, "ios")])
    lines = ["device_id,platform,profile_id,user_id,language,time_zone"]
    lines += [f"{device},{platform},{device},user-{device},en,UTC" for device, platform in rows]
    (folder / "devices.csv").write_text("\n".join(lines) + "\n")


def _service_command(*arguments: str) -> dict[str, Any]:
    line = [BIN / "messaging-service", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _connection(patch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))


def test_a_campaign_reaches_everybody_once_and_its_report_is_true(
    house: House, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_dag(house.campaign("everybody", pictures=house.folder / "reports"), logical_date=DAY)
    assert run.state == "success"
    printed = capfd.readouterr()

    found = _xcoms(run)
    key = launch_key("service", "everybody", Period(DAY.replace(hour=0, day=1), DAY.replace(hour=0)))
    assert found["audience", "return_value", -1] == {
        "launch_key": key,
        "audience": len(DEVICES),
        "segments": SEGMENTS,
        "rows": len(DEVICES) + 21,
        "dropped": {"null": 1, "invalid": 0, "duplicate": 20},
    }
    tallies = [found["dispatch", "return_value", worker] for worker in range(2)]
    assert sum(tally["accepted"] for tally in tallies) == SEGMENTS
    assert found["launched", "return_value", -1] == {"accepted": SEGMENTS}

    truths = house.truths("everybody")
    assert sorted(device for truth in truths for device in truth["targeted"]) == DEVICES
    house.wait_until_quiet()
    expected = _expected_verdicts(truths)
    assert house.verdicts(key) == expected
    report = found["report", "return_value", -1]
    assert report["verdicts"] == {name: len(who) for name, who in expected.items()}
    assert not any(report["anomalies"].values())
    assert Path(report["picture"]).stat().st_size > 1_000
    assert "engaged" in printed.out.lower()

    token = SendoffHook("service").tokens().token()  # the one that this process has used all along
    for secret in [*house.secrets, token]:
        assert secret not in printed.out + printed.err
    assert not re.search(r"73400000\d\d", printed.out + printed.err + json.dumps(list(found.values())))
    _assert_absent_from_airflows_database([*house.secrets, token, "7340000"])


def test_a_second_run_of_a_day_sends_nothing_and_a_resend_does(
    house: House, run_dag: Callable[..., DagRun]
) -> None:
    dag = house.campaign("twice", query=FEW)
    first = run_dag(dag, logical_date=DAY)
    again = run_dag(dag, logical_date=DAY + timedelta(hours=3))
    assert first.state == again.state == "success"
    assert _launch_key(first) == _launch_key(again)
    assert len(house.truths("twice")) == 1

    resent = run_dag(dag, logical_date=DAY + timedelta(hours=4), run_conf={"resend": 1})
    assert resent.state == "success"
    assert _launch_key(resent) != _launch_key(first)
    assert len(house.truths("twice")) == 2


def test_a_schedules_launch_is_for_its_interval_however_often_it_is_triggered(
    house: House, run_dag: Callable[..., DagRun]
) -> None:
    dag = house.campaign("weekly", query=FEW, more='schedule: "0 9 * * 1"\nstart: 2026-01-05\n')
    keys = {_launch_key(run_dag(dag, logical_date=DAY + timedelta(days=n))) for n in (1, 3)}
    week = Period(DAY - timedelta(days=7), DAY)
    assert keys == {launch_key("service", "weekly", week)}
    assert len(house.truths("weekly")) == 1


def test_a_refusal_fails_the_run_and_is_reported(
    house: House, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_dag(house.campaign("refused", query=FEW, connection="misspelt"), logical_date=DAY)
    assert run.state == "failed"
    assert _states(run) == {
        "audience": ["success"],
        "dispatch": ["failed", "failed"],
        "launched": ["upstream_failed"],
        "quiet": ["upstream_failed"],
        "report": ["success"],
    }
    printed = capfd.readouterr().out
    assert "AirflowFailException: launch" in printed
    assert "the service refused 1 dispatches" in printed
    key = _launch_key(run)
    assert house.states(key) == {"refused": 1}
    assert len(house.verdicts(key)["not_sent"]) == 60


def test_a_wrong_secret_fails_at_once_and_leaves_everything_planned(
    house: House, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("no_way_in", query=FEW, connection="wrong_secret", default_args={})
    run = run_dag(dag, logical_date=DAY)
    assert run.state == "failed"
    assert _states(run)["dispatch"] == ["failed", "failed"]
    assert house.states(_launch_key(run)) == {"planned": 1}
    assert "AirflowFailException: " in (printed := capfd.readouterr().out)
    assert "the service refuses the client ID, or its secret" in printed


def test_an_unreachable_service_leaves_everything_planned_for_the_next_try(
    house: House, run_dag: Callable[..., DagRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = house.campaign("patient", query=FEW, connection="nobody")
    run = run_dag(dag, logical_date=DAY)
    assert run.state == "failed"
    key = _launch_key(run)
    assert house.states(key) == {"planned": 1}
    assert len(house.verdicts(key)["not_sent"]) == 60

    monkeypatch.setenv("AIRFLOW_CONN_NOBODY", os.environ["AIRFLOW_CONN_SERVICE"])
    assert run_dag(dag, logical_date=DAY + timedelta(hours=1)).state == "success"
    assert house.states(key) == {"accepted": 1}
    assert len(house.truths("patient")) == 1


@pytest.mark.parametrize(
    ("name", "query", "problem"),
    [
        ("broken_sql", "SELECT device_id FROM nowhere", "nowhere"),
        ("nobody_named", "SELECT platform FROM devices", "device_id"),
        ("two_names", "SELECT device_id, device_id AS user_id FROM devices", "user_id"),
        ("words_for_numbers", "SELECT 'abc' AS device_id", "device_id"),
        ("nobody_at_all", "SELECT device_id FROM devices WHERE 1 = 0", "the audience query gave no rows"),
        ("nulls_only", "SELECT device_id FROM devices WHERE device_id IS NULL", "none of the 1 rows is left"),
    ],
)
def test_a_query_that_gives_no_audience_fails_at_once_and_says_why(
    house: House,
    run_dag: Callable[..., DagRun],
    capfd: pytest.CaptureFixture[str],
    name: str,
    query: str,
    problem: str,
) -> None:
    # With Airflow's usual retries: a permanent failure must not wait for them.
    run = run_dag(house.campaign(name, query=query, default_args={}), logical_date=DAY)
    assert run.state == "failed"
    assert _states(run)["audience"] == ["failed"]
    assert _states(run)["report"] == ["upstream_failed"]
    printed = capfd.readouterr().out
    assert problem in printed.split("Task failed")[-1]
    assert house.truths(name) == []


def test_a_launch_whose_post_backs_came_late_is_reconciled_again(
    house: House, run_dag: Callable[..., DagRun]
) -> None:
    run = run_dag(house.campaign("late", query=FEW, quiet_for=timedelta()), logical_date=DAY)
    key = _launch_key(run)
    house.wait_until_quiet()
    [truth] = house.truths("late")
    assert truth["post_backs"]["open"]
    run = run_dag(reconcile_dag("0 0 * * *"), logical_date=DAY)
    assert run.state == "success"
    assert _xcoms(run)["reconcile", "return_value", -1]["reconciled"] >= 1
    assert house.verdicts(key)["engaged"] == set(truth["opened"])
    assert _xcoms(run_dag(reconcile_dag("0 0 * * *"), logical_date=DAY + timedelta(days=1)))[
        "reconcile", "return_value", -1
    ] == {"reconciled": 0}


def test_each_stage_tells_of_its_asset_once(house: House, run_dag: Callable[..., DagRun]) -> None:
    run = run_dag(house.campaign("telling", query=FEW), logical_date=DAY)
    with closing(settings.Session()) as session:
        rows = session.query(AssetModel.uri, AssetEvent.extra).filter(
            AssetModel.id == AssetEvent.asset_id, AssetEvent.source_run_id == run.run_id
        )
        events = dict(rows.all())
        assert rows.count() == 3
    assert set(events) == {f"sendoff://telling/{what}" for what in ("audience", "launch", "report")}
    assert {extra["launch_key"] for extra in events.values()} == {_launch_key(run)}


def _launch_key(run: DagRun) -> str:
    return _xcoms(run)["audience", "launch_key", -1]


def _states(run: DagRun) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for instance in run.get_task_instances():
        found.setdefault(instance.task_id, []).append(str(instance.state))
    return found


def _expected_verdicts(truths: list[dict[str, Any]]) -> dict[str, set[int]]:
    """What the service's own record asks for; deliveries to Android, iOS and Safari are never reported."""
    opened = {device for truth in truths for device in truth["opened"]}
    delivered = {device for truth in truths for device in truth["delivered"]}
    reliable = {device for device in DEVICES if PLATFORMS[device % len(PLATFORMS)] in ("chrome", "firefox")}
    return {
        "engaged": opened,
        "delivered": (delivered & reliable) - opened,
        "missing": reliable - delivered - opened,
        "unknowable": set(DEVICES) - reliable - opened,
        "in_doubt": set(),
        "not_sent": set(),
    }


def _xcoms(run: DagRun) -> dict[tuple[str, str, int], Any]:
    with closing(settings.Session()) as session:
        rows = session.query(XComModel).filter_by(dag_id=run.dag_id, run_id=run.run_id).all()
        return {(row.task_id, row.key, row.map_index): XComModel.deserialize_value(row) for row in rows}


def _assert_absent_from_airflows_database(texts: list[str]) -> None:
    home = Path(os.environ["AIRFLOW_HOME"])
    content = b"".join(path.read_bytes() for path in home.glob("airflow.db*"))
    assert b"launch_key" in content
    assert [text[:3] for text in texts if text.encode() in content] == []
