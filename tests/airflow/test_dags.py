"""The DAG files and the factory: the DAGs they make, and the work they avoid while Airflow reads them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import BundleDagBag, DagBag
from airflow.models.dag import DagModel
from airflow.sdk import DAG
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID as TASK_OF
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.dag_edges import dag_edges

from sendoff.campaign import load_campaign
from sendoff.errors import CampaignError
from sendoff_airflow import campaign_group
from sendoff_airflow.dags import (
    HOUSEKEEPING_DAGS,
    campaign_dag,
    campaign_dags,
    check_campaigns,
    doubts_dag,
    housekeeping,
    reconcile_dag,
)
from sendoff_airflow.dags.names import _FACTORIES

Command = Callable[..., "subprocess.CompletedProcess[str]"]
DAGS = Path(__file__).parents[2] / "dags"
DAGS_OF_FILES = ("sendoff_doubts", "sendoff_maintenance", "sendoff_reconcile")
CAMPAIGNS = sorted(path.parent.name for path in DAGS.glob("campaigns/*/campaign.yaml"))

SOUND = """
title: A campaign
message: {title: Hello, text: World}
channels: {android_push: }
"""


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore Python's path after each test, without the DAG folders of these tests."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def read(folder: Path) -> DagBag:
    """Read DAG files as Airflow's DAG processor does, which puts their folder on Python's path."""
    return BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")


def test_the_dag_files_make_a_dag_of_each_campaign_and_those_for_all_of_them() -> None:
    bag = read(DAGS)
    assert bag.import_errors == {}
    assert bag.captured_warnings == {}
    assert sorted(bag.dags) == sorted([*CAMPAIGNS, *DAGS_OF_FILES])
    stored = [DagSerialization.to_dict(dag) for dag in bag.dags.values()]  # as the DAG processor stores them
    tasks = [task["__var"] for dag in stored for task in dag["dag"]["tasks"]]
    for task in tasks:
        assert hasattr(import_module(task["_task_module"]), task["task_type"])
    (reporting,) = {task["_task_module"] for task in tasks if task["task_type"] == "ReconcileOperator"}
    assert (
        reporting == "sendoff_airflow.operators"
    )  # notes, lineage and policies know the operator by this name


@pytest.mark.newest_airflow
@pytest.mark.promise("sound/versions")
def test_a_new_project_is_read_without_errors(tmp_path: Path, sendoff: Command) -> None:
    sendoff("init", str(tmp_path))
    bag = read(tmp_path / "dags")
    assert bag.import_errors == {}
    assert bag.captured_warnings == {}
    assert sorted(bag.dags) == sorted(["welcome", *DAGS_OF_FILES])
    renewal = bag.dags["sendoff_reconcile"].get_task("renew_tables")
    assert renewal.campaigns == str(tmp_path / "dags/campaigns")  # it measures outcomes again


@pytest.mark.newest_airflow
@pytest.mark.proof
@pytest.mark.promise("sound/borders")
def test_reading_the_dag_files_opens_no_database_and_no_connection_and_imports_nothing_large() -> None:
    script = textwrap.dedent(
        """
        import json, sys
        from airflow.dag_processing.dagbag import BundleDagBag

        done = []

        def watch(event, arguments):
            if event in ("socket.connect", "socket.getaddrinfo", "sqlite3.connect", "subprocess.Popen"):
                done.append(f"{event} {arguments[-1]}")

        sys.addaudithook(watch)
        bag = BundleDagBag(dag_folder=sys.argv[1], bundle_path=sys.argv[1], bundle_name="dags-folder")
        large = {"pyarrow", "matplotlib", "alembic", "jwt", "sendoff.ledger.ledger", "sendoff.service.client"}
        large &= set(sys.modules)
        print(json.dumps({"dags": len(bag.dags), "done": done, "large": sorted(large)}))
        """
    )
    line = [sys.executable, "-c", script, str(DAGS)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"dags": len(CAMPAIGNS) + 3, "done": [], "large": []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the DAG files with three campaigns, one of them unreadable."""
    shutil.copytree(DAGS, tmp_path / "dags", ignore=shutil.ignore_patterns("campaigns", "__pycache__"))
    campaigns = tmp_path / "dags" / "campaigns"
    for name in ("first", "second", "third"):
        (campaigns / name).mkdir(parents=True)
        (campaigns / name / "campaign.yaml").write_text(SOUND)
        (campaigns / name / "audience.sql").write_text("SELECT device_id FROM devices")
    (campaigns / "second" / "campaign.yaml").write_text(SOUND + "tittle: twice\n")
    (campaigns / "README.md").write_text("not a campaign")
    (campaigns / "__pycache__").mkdir()
    return tmp_path / "dags"


def test_a_broken_campaign_is_an_import_error_and_hides_no_other(folder: Path) -> None:
    bag = read(folder)
    assert sorted(bag.dags) == ["first", *DAGS_OF_FILES, "third"]
    [(file, text)] = bag.import_errors.items()
    assert file == "campaign_errors.py"
    assert f"{folder}/campaigns/second/campaign.yaml:5: " in text
    assert "tittle" in text


def test_all_broken_campaigns_are_named_together(folder: Path) -> None:
    (folder / "campaigns/first/audience.sql").unlink()
    with pytest.raises(CampaignError) as raised:
        check_campaigns(folder / "campaigns")
    assert "campaigns/first/audience.sql" in str(raised.value)
    assert "campaigns/second/campaign.yaml" in str(raised.value)


def test_all_campaigns_have_the_defaults_beside_their_folders(folder: Path) -> None:
    defaults = folder / "campaigns/defaults.yaml"
    for owner in ("crm", "shop"):  # a changed file counts at the next parsing
        defaults.write_text(f"owner: {owner}\ngates: {{most: 5000}}\n")
        bag = read(folder)
        assert sorted(bag.dags) == ["first", *DAGS_OF_FILES, "third"]
        for name in ("first", "third"):
            assert bag.dags[name].default_args["owner"] == owner
            assert f"owner: {owner}" in str(bag.dags[name].doc_md).split("Set in defaults.yaml")[1]


def test_a_mistake_in_the_defaults_is_one_error_and_stops_all_campaigns(folder: Path) -> None:
    (folder / "campaigns/defaults.yaml").write_text("owner: crm\ntitle: Spring\n")
    bag = read(folder)
    assert sorted(bag.dags) == sorted(DAGS_OF_FILES)
    assert bag.import_errors["campaign_errors.py"].count("campaigns/defaults.yaml:2: title: ") == 1


def test_tasks_have_no_copy_of_the_trigger_form(folder: Path) -> None:
    dag = campaign_dags(folder / "campaigns")["first"]
    assert {task.task_id: dict(task.params) for task in dag.tasks if task.params} == {}
    assert sorted(dag.params) == [
        "dry_run", "launch", "only_unsent", "reason", "resend", "send_late", "size_limit",
    ]  # fmt: skip


def test_airflows_graph_is_one_line_with_names_that_people_read(folder: Path) -> None:
    dag = campaign_dags(folder / "campaigns")["first"]
    assert (dag.dag_id, dag.dag_display_name) == ("first", "A campaign")
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    edges = {
        (edge["source_id"], edge["target_id"], "is_setup_teardown" in edge) for edge in dag_edges(stored)
    }
    assert edges == {
        ("audience", "preview", False),
        ("preview", "approve", False),
        ("approve", "dispatch", False),
        ("dispatch", "check_dispatched", False),
        ("dispatch", "wait_for_post_backs", False),
        ("wait_for_post_backs", "report", False),
        ("audience", "report", True),  # a launch always gets a report
    }
    titles = {task.task_id: task.task_display_name for task in stored.tasks}
    assert titles == {
        "audience": "Audience",
        "preview": "Preview",
        "approve": "Approval",
        "dispatch": "Send",
        "check_dispatched": "Check that everything was sent",
        "wait_for_post_backs": "Wait for responses",
        "report": "Report",
    }


def test_a_campaign_writes_tables_after_its_report_and_on_the_connection_that_it_names(folder: Path) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + "report: {tables: analytics}\n")
    more = "report: {tables: analytics, tables_warehouse: writer}\n"
    (folder / "campaigns/third/campaign.yaml").write_text(SOUND + more)
    (folder / "campaigns/second/campaign.yaml").write_text(SOUND)
    dags = campaign_dags(folder / "campaigns")
    assert "write_tables" not in dags["second"].task_ids
    for name, connection in (("first", "sendoff_warehouse"), ("third", "writer")):
        task: Any = dags[name].get_task("write_tables")
        assert task.upstream_task_ids == {"report"}
        # By default, it is the warehouse of the launch.
        assert (task.schema, task.warehouse_conn_id or "sendoff_warehouse") == ("analytics", connection)
        assert f"in tables of the schema analytics, connection {connection}" in str(
            dags[name].doc_md
        ).replace("\\", "")
    (folder / "campaigns/first/outcome.sql").write_text("SELECT device_id FROM orders")
    measured = campaign_dags(folder / "campaigns")["first"]
    assert measured.get_task("measure_outcome").upstream_task_ids == {"report"}
    assert measured.get_task("write_tables").upstream_task_ids == {"measure_outcome"}
    assert "measure\\_outcome" in str(measured.doc_md) or "measure_outcome" in str(measured.doc_md)
    with pytest.raises(CampaignError, match=r"found 'writer'.*allowed: sendoff_warehouse"):
        check_campaigns(folder / "campaigns", warehouses=["sendoff_warehouse"])


def test_the_dags_and_tasks_for_all_campaigns_have_names_too(folder: Path) -> None:
    dags = [dag for dag_id, dag in read(folder).dags.items() if dag_id in DAGS_OF_FILES]
    assert all(dag.dag_display_name.startswith("Sendoff: ") for dag in dags)
    assert [task for dag in dags for task in dag.tasks if task.task_display_name == task.task_id] == []


def test_a_housekeeping_dag_takes_a_description_and_catchup() -> None:
    dag = reconcile_dag(
        "0 0 * * *", description="Ours", catchup=True, start_date=datetime(2026, 1, 5, tzinfo=UTC)
    )
    assert (dag.description, dag.catchup) == ("Ours", True)


def test_a_repaired_campaign_comes_back(folder: Path) -> None:
    (folder / "campaigns/second/campaign.yaml").write_text(SOUND)
    assert sorted(campaign_dags(folder / "campaigns")) == ["first", "second", "third"]
    check_campaigns(folder / "campaigns")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('schedule: "0 25 * * *"', r"first/campaign\.yaml:5: schedule: found hour 25. Use 0 to 23"),
        (
            'schedule: "0 9 * * mon#2,fri"',
            r"first/campaign\.yaml:5: schedule: found weekday 'mon#2,fri'. Use 0 to 7",
        ),
        (
            'schedule: "0 9 31 2 L3"',
            r"first/campaign\.yaml: Airflow cannot make a DAG of this campaign .CroniterBadDateError",
        ),
        ("start: 9999-12-31", r"first/campaign\.yaml:5: start: found the date 9999-12-31. Use a date before"),
        (
            "start: 0001-01-01\nschedule_time_zone: Asia/Tokyo\nschedule: '@daily'",
            r"DAG of this campaign \(OverflowError\)",
        ),
    ],
)
def test_one_campaigns_mistake_stops_no_other(
    folder: Path, caplog: pytest.LogCaptureFixture, line: str, problem: str
) -> None:
    shutil.rmtree(folder / "campaigns/second")
    (folder / "campaigns/first/campaign.yaml").write_text(f"{SOUND}{line}\n")
    bag = read(folder)
    assert sorted(bag.dags) == [*DAGS_OF_FILES, "third"]
    [(file, text)] = bag.import_errors.items()
    assert file == "campaign_errors.py"
    assert re.search(problem, text)
    caplog.clear()
    assert sorted(campaign_dags(folder / "campaigns")) == ["third"]
    assert re.search(problem, caplog.text)


def test_a_folder_that_cannot_be_entered_stops_no_other() -> None:
    user, home = os.geteuid(), Path(tempfile.mkdtemp(dir="/tmp"))  # only root may enter pytest's own folder
    for name in ("first", "lost+found"):
        (home / name).mkdir()
        (home / name / "campaign.yaml").write_text(SOUND)
        (home / name / "audience.sql").write_text("SELECT device_id FROM devices")
    (home / "lost+found").chmod(0)
    home.chmod(0o755)
    try:
        if user == 0:
            "".encode("utf-8-sig")  # Python looks for it only once, and perhaps only root can read where
            os.seteuid(65534)
        assert sorted(campaign_dags(home)) == ["first"]
        with pytest.raises(CampaignError, match=r"lost\+found: the folder cannot be read"):
            check_campaigns(home)
    finally:
        os.seteuid(user)
        shutil.rmtree(home)


def test_what_airflow_makes_of_the_longest_names_its_database_holds(folder: Path) -> None:
    more = f"""
owner: {"o" * 500}
tags: [{"t" * 100}]
pool: {"p" * 256}
connection: {"c" * 250}
warehouse: {"w" * 250}
schedule: "0 9 1,{",".join(["9"] * 30)} * 1"
"""
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + more)
    dag = campaign_dags(folder / "campaigns")["first"]
    stored = coerce_to_core_timetable(dag.timetable)
    assert len(stored.description) <= DagModel.__table__.c.timetable_description.type.length
    assert DagModel.__table__.c.owners.type.length >= 500


def test_code_beside_a_campaign_is_never_run(folder: Path) -> None:
    evil = (
        "from pathlib import Path\nfrom airflow.sdk import DAG\nPath(__file__).with_name('trace').touch()\n"
    )
    places = [
        folder / "campaigns/first/evil.py",
        folder / "campaigns/evil.py",
        folder / "campaigns/first/a/b/evil.py",
    ]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(evil)
    bag = read(folder)
    assert sorted(bag.dags) == ["first", *DAGS_OF_FILES, "third"]
    assert [place for place in places if place.with_name("trace").exists()] == []


@pytest.mark.parametrize("name", [*HOUSEKEEPING_DAGS, "mine"])
def test_a_campaign_does_not_take_the_name_of_another_dag(folder: Path, name: str) -> None:
    shutil.rmtree(folder / "campaigns/second")
    (folder / "campaigns/first").rename(folder / "campaigns" / name)
    choices: dict[str, Any] = {"reserved": [*HOUSEKEEPING_DAGS, "mine"]} if name == "mine" else {}
    assert sorted(campaign_dags(folder / "campaigns", **choices)) == ["third"]
    with pytest.raises(
        CampaignError,
        match=rf"campaigns/{name}: another DAG has this name.* Reserved names: .*sendoff_doubts",
    ):
        check_campaigns(folder / "campaigns", **choices)


def test_a_campaign_does_not_take_the_name_of_the_tests_of_another(folder: Path) -> None:
    shutil.rmtree(folder / "campaigns/second")
    (folder / "campaigns/first").rename(folder / "campaigns/third-test")
    assert sorted(campaign_dags(folder / "campaigns")) == ["third"]
    with pytest.raises(CampaignError, match=r"third-test: tests of the campaign .*/third have this name"):
        check_campaigns(folder / "campaigns")


def test_the_names_that_no_campaign_may_have_are_those_of_the_housekeeping_dags(folder: Path) -> None:
    shutil.rmtree(folder / "campaigns")
    (folder / "campaigns").mkdir()
    assert sorted(read(folder).dags) == sorted(DAGS_OF_FILES)
    factories = vars(housekeeping).items()
    named = [signature(make).parameters["dag_id"].default for name, make in factories if name in _FACTORIES]
    assert sorted(named) == sorted(HOUSEKEEPING_DAGS)
    assert {name for name, _ in factories if name.endswith("_dag")} == {*_FACTORIES, "_dag"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("connection: eu", "connection: found 'eu'; allowed: other, sendoff_default"),
        ("warehouse: airflow_db", "warehouse: found 'airflow_db'; allowed: sendoff_warehouse"),
        (
            "audience: {exclude: [{kind: query, file: audience.sql, warehouse: airflow_db}]}",
            "audience.exclude[0].warehouse: found 'airflow_db'; allowed: sendoff_warehouse",
        ),
    ],
)
def test_a_campaign_names_no_connection_but_those_that_it_may(folder: Path, line: str, problem: str) -> None:
    shutil.rmtree(folder / "campaigns/second")
    (folder / "campaigns/first/campaign.yaml").write_text(f"{SOUND}{line}\n")
    choices = {"connections": {"sendoff_default", "other"}, "warehouses": {"sendoff_warehouse"}}
    assert sorted(campaign_dags(folder / "campaigns", **choices)) == ["third"]
    with pytest.raises(CampaignError) as raised:
        check_campaigns(folder / "campaigns", **choices)
    assert str(raised.value) == f"{folder}/campaigns/first/campaign.yaml:5: {problem}"
    assert sorted(campaign_dags(folder / "campaigns")) == ["first", "third"]


def test_what_the_folder_says_is_what_the_dag_does(folder: Path) -> None:
    more = """
schedule: "0 6 * * *"
schedule_time_zone: Europe/Dublin
start: 2026-07-03
owner: crm
tags: [push]
parallelism: 3
connection: eu
pool: slow_and_steady
retries: 4
report: {quiet_for: {length: 20, unit: minutes}, at_latest: {length: 2, unit: days}}
"""
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + more)
    dag = campaign_dags(folder / "campaigns", default_args={"queue": "slow"})["first"]
    assert dag.timetable.expression == "0 6 * * *"  # type: ignore[attr-defined]
    assert str(dag.timetable.timezone) == "Europe/Dublin"  # type: ignore[attr-defined]
    assert dag.start_date == datetime(2026, 7, 2, 23, tzinfo=UTC)
    assert dag.catchup is False
    assert {"sendoff", "push"} == set(dag.tags)
    assert {task.owner for task in dag.tasks} == {"crm"}
    assert {task.queue for task in dag.tasks} == {"slow"}
    assert all(task.retries == 4 for task in dag.tasks)
    dispatch: Any = dag.get_task("dispatch")
    assert dispatch.partial_kwargs["sendoff_conn_id"] is None  # that of the launch
    assert dispatch.partial_kwargs["pool"] == "slow_and_steady"
    assert dispatch.expand_input.value == {"worker": [1, 2, 3]}
    quiet: Any = dag.get_task("wait_for_post_backs")
    assert quiet.quiet_for == timedelta(minutes=20)
    assert quiet.timeout == 2 * 86_400
    assert "SELECT device_id FROM devices" in (dag.doc_md or "")
    assert "World" not in (dag.doc_md or "")


def test_a_campaigns_own_retries_and_owner_override_the_default_args(folder: Path) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + "owner: crm\nretries: 8\n")
    dags = campaign_dags(folder / "campaigns", default_args={"retries": 1, "owner": "ops", "queue": "slow"})
    chosen = {
        name: {(task.owner, task.retries, task.queue) for task in dag.tasks} for name, dag in dags.items()
    }
    assert chosen == {"first": {("crm", 8, "slow")}, "third": {("ops", 1, "slow")}}


def test_the_trigger_form_takes_what_the_audience_task_understands(folder: Path) -> None:
    params = campaign_dags(folder / "campaigns")["first"].params
    usual = {
        "dry_run": False,
        "size_limit": None,
        "send_late": False,
        "resend": 0,
        "only_unsent": False,
        "reason": None,
        "launch": None,
    }
    assert {name: params.get_param(name).resolve() for name in params} == usual
    for name, wrong in (
        ("resend", -1),
        ("size_limit", 0),
        ("dry_run", "yes"),
        ("send_late", 1),
        ("only_unsent", 1),
        ("reason", 5),
        ("launch", "spring"),
    ):
        with pytest.raises(Exception, match=f"{wrong}.* (is|does not match) "):
            params.get_param(name).resolve(wrong)


def test_a_campaign_may_follow_assets(folder: Path) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + "after: [second.report, stock]\n")
    dag = campaign_dags(folder / "campaigns")["first"]
    stored = DagSerialization.to_dict(dag)["dag"]["timetable"]["__var"]["asset_condition"]
    assert stored == {
        "__type": "asset_all",
        "objects": [
            {"__type": "asset_ref", "name": "second.report"},
            {"__type": "asset_ref", "name": "stock"},
        ],
    }


def test_those_of_a_role_approve(folder: Path) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + "approval: {needed: always, role: crm}\n")
    dags = campaign_dags(folder / "campaigns", approvers={"crm": ["ann", "bob"]})
    approve: Any = dags["first"].get_task("approve")
    assert approve.assigned_users == [{"id": "ann", "name": "ann"}, {"id": "bob", "name": "bob"}]
    assert approve.defaults == ["Reject"]


@pytest.mark.parametrize(
    ("approvers", "allowed"),
    [
        ({}, "none, until"),
        ({"crm": [], "ops": ["eve"]}, "people; allowed: ops"),
        ({"crm": None}, "none, until"),
        ({"crn": ["eve"]}, "(did you mean 'crn'?); allowed: crn"),
    ],
)
def test_a_role_without_people_is_an_error_of_its_campaign(
    folder: Path, approvers: Any, allowed: str
) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + "approval: {needed: always, role: crm}\n")
    shutil.rmtree(folder / "campaigns/second")
    assert sorted(campaign_dags(folder / "campaigns", approvers=approvers)) == ["third"]
    with pytest.raises(
        CampaignError, match=r"first/campaign\.yaml:\d+: approval\.role: found 'crm'"
    ) as raised:
        check_campaigns(folder / "campaigns", approvers=approvers)
    assert allowed in str(raised.value)
    assert f"campaign.yaml:{len(SOUND.splitlines()) + 1}: approval.role" in str(raised.value)


def test_a_mistyped_argument_is_an_error_of_the_dag_file(folder: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'on_reports'"):
        campaign_dags(folder / "campaigns", on_reports=print)


@pytest.mark.parametrize(
    "choices",
    [
        {"quiet_for": 900},
        {"default_args": {"execution_timeout": 3600}},
        {"on_approval": 5},
        {"on_approval": "my.function"},
        {"on_report": "my.function"},
        {"on_alert": print},
    ],
)
def test_a_wrong_value_of_an_argument_is_an_error_of_the_dag_file(
    folder: Path, choices: dict[str, Any]
) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + "alert_after: {length: 2, unit: hours}\n")
    [name] = choices
    with pytest.raises(ValueError, match=rf"^campaign_dags: {name}: .* Correct it in the DAG file"):
        campaign_dags(folder / "campaigns", pictures=folder, **choices)


def test_a_broken_campaign_is_no_error_of_the_arguments(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Any) -> str:
        if folder.name == "first":
            raise RuntimeError
        return "A campaign"

    monkeypatch.setattr("sendoff_airflow.dags.campaign.documentation", fail)
    dags = campaign_dags(folder / "campaigns", quiet_for=timedelta(minutes=5))
    assert sorted(dags) == ["third"]


def test_a_passing_error_of_one_campaign_is_no_error_of_the_arguments(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = iter([OSError(116, "Stale file handle")])

    def fail_once(_: Any) -> str:
        for error in once:
            raise error
        return "A campaign"

    monkeypatch.setattr("sendoff_airflow.dags.campaign.documentation", fail_once)
    dags = campaign_dags(folder / "campaigns", quiet_for=timedelta(minutes=5))
    assert len(dags) == 1


@pytest.mark.parametrize("approvers", [{"crm": "ann"}, {"crm": 7}, ["ann"]])
def test_the_people_of_a_role_are_a_list(folder: Path, approvers: Any) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + "approval: {needed: always, role: crm}\n")
    for read_folder in (campaign_dags, check_campaigns):
        with pytest.raises(TypeError, match=r"^approvers: use a list of user IDs for each role"):
            read_folder(folder / "campaigns", approvers=approvers)
    with DAG("people_of_a_role"), pytest.raises(TypeError, match=r"^approvers: use a list"):
        campaign_group(folder / "campaigns/first", group_id="send", approvers=approvers)


@pytest.mark.parametrize("name", ["connections", "warehouses", "reserved"])
@pytest.mark.parametrize("read_folder", [campaign_dags, check_campaigns])
def test_a_text_is_no_list_of_names(folder: Path, name: str, read_folder: Callable[..., object]) -> None:
    choices: Any = {name: "sendoff_default"}
    with pytest.raises(TypeError, match=rf"^{name}: found a text\. Use a list, such as {name}=\["):
        read_folder(folder / "campaigns", **choices)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: reconcile_dag("0 0 * * *", on_hold="my.function"), "on_hold"),  # type: ignore[arg-type]
        (lambda: doubts_dag(on_question="my.function"), "on_question"),  # type: ignore[arg-type]
    ],
)
def test_the_name_of_a_function_is_no_notifier(make: Callable[[], object], name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}: found a str. Use a notifier"):
        make()


def test_a_mistyped_connection_is_told_with_the_one_that_was_meant(folder: Path) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + "connection: sendof_default\n")
    shutil.rmtree(folder / "campaigns/second")
    with pytest.raises(CampaignError) as raised:
        check_campaigns(folder / "campaigns", connections=["sendoff_default", "other"])
    said = "connection: found 'sendof_default' (did you mean 'sendoff_default'?); allowed: other, sendoff_default"
    assert said in str(raised.value)


def test_doubts_that_nobody_may_settle_are_an_error() -> None:
    for people in ([], "maria"):
        with pytest.raises(ValueError, match="people: not a list of user IDs"):
            doubts_dag(people=people)
    assert doubts_dag(people=[7]).get_task("resolve_doubts").partial_kwargs["assigned_users"] == [
        {"id": "7", "name": "7"}
    ]


def test_the_documentation_says_whose_recipients_a_campaign_has(folder: Path) -> None:
    source = "{kind: verdicts, of: spring_sale, are: [delivered, missing], unknowable: include}"
    (folder / "campaigns/first/campaign.yaml").write_text(
        f"title: Last day\nmessage: {{title: A, text: B}}\nchannels: {{android_push: }}\n"
        f"audience: {{source: {source}}}\n"
    )
    (folder / "campaigns/first/audience.sql").unlink(missing_ok=True)
    text = campaign_dags(folder / "campaigns")["first"].doc_md or ""
    assert "the people who are delivered, missing or unknowable in the newest report of spring" in text
    assert "Who is left out" not in text
    assert "Warehouse" not in text
    assert "## Query" not in text


def test_the_documentation_says_what_columns_must_contain(folder: Path) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(
        "title: Last day\nmessage: {title: A, text: B}\nchannels: {android_push: }\n"
        "audience: {columns: {platform: {type: text, values: [android, ios]}}}\n"
    )
    text = campaign_dags(folder / "campaigns")["first"].doc_md or ""
    assert "## What columns of the query must contain" in text
    assert "- platform: type text, values android, ios" in text
    assert "Who is left out" not in text


def test_the_documentation_has_the_queries_of_comparisons(folder: Path) -> None:
    (folder / "campaigns/first/outcome.sql").write_text("SELECT device_id, paid AS value FROM orders")
    (folder / "campaigns/first/before.sql").write_text("SELECT device_id, paid AS value FROM earlier_orders")
    text = campaign_dags(folder / "campaigns")["first"].doc_md or ""
    assert text.index("paid AS value FROM orders") < text.index("## What people did before")
    assert "paid AS value FROM earlier_orders" in text


def test_the_documentation_says_what_the_folder_says(folder: Path) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(
        """
title: A *campaign* | of <b>ours</b>
message: {title: Hello, text: World}
channels: {android_push: }
schedule: "0 6 * * *"
schedule_time_zone: Europe/Dublin
audience: {exclude: [{kind: list, name: complaints}], holdout: {percent: 5}}
gates: {most: 5000, window: {earliest: "08:00", latest: "20:00", time_zone: Europe/Dublin}}
approval: {needed: above, above: 1000}
"""
    )
    (folder / "campaigns/first/audience.sql").write_text("SELECT device_id FROM devices -- ```")
    text = campaign_dags(folder / "campaigns")["first"].doc_md
    assert text is not None
    for part in (
        "# A \\*campaign\\* \\| of &lt;b&gt;ours&lt;/b&gt;",
        "| Channels | android\\_push |",
        "| Runs | 0 6 \\* \\* \\*, in Europe/Dublin |",
        "| The service sends | at once, as soon as the service accepts a request |",
        "| Approval | needed above 1,000 people, by someone with rights in Airflow |",
        "- exclude: kind list, name complaints",
        "- holdout: percent 5.0",
        "- most: 5,000",
        "- window: earliest 08:00, latest 20:00, time\\_zone Europe/Dublin",
        "````sql\nSELECT device_id FROM devices -- ```\n````",
    ):
        assert part in text
    assert "World" not in text
    assert "the DAG `sendoff_doubts` asks about requests in doubt" in text


def test_a_run_that_takes_too_long_is_told_of(folder: Path) -> None:
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + "alert_after: {length: 2, unit: hours}\n")
    mine = AsyncCallback("my_alerts.send_to_chat")
    dags = campaign_dags(folder / "campaigns", on_alert=mine)
    assert not dags["third"].deadline
    log, chat = dags["first"].deadline
    assert log.interval == chat.interval == timedelta(hours=2)
    assert log.callback.path == "sendoff_airflow.dags.alerts.log_overdue_run"
    assert chat.callback == mine
    DagSerialization.to_dict(dags["first"])


def test_two_hundred_campaigns_are_read(tmp_path: Path) -> None:
    for number in range(200):
        campaign = tmp_path / f"campaign_{number}"
        campaign.mkdir()
        (campaign / "campaign.yaml").write_text(SOUND)
        (campaign / "audience.sql").write_text("SELECT device_id FROM devices")
    assert len(campaign_dags(tmp_path)) == 200


def test_dag_files_hold_nothing_but_choices() -> None:
    for file in DAGS.glob("*.py"):
        assert len(file.read_text().splitlines()) < 25, file.name


def test_the_plugins_folder_is_not_imported_file_by_file() -> None:
    from airflow.plugins_manager import _get_plugins

    assert os.environ["AIRFLOW__CORE__PLUGINS_FOLDER"] == str(DAGS.parent / "plugins")
    assert _get_plugins()[1] == {}


def test_a_campaign_can_be_made_a_dag_by_hand(folder: Path) -> None:
    dag = campaign_dag(load_campaign(folder / "campaigns/third"), pictures=folder / "reports")
    assert dag.dag_id == "third"
    assert dag.task_ids == [
        "audience",
        "report",
        "preview",
        "approve",
        "dispatch",
        "wait_for_post_backs",
        "check_dispatched",
    ]


@pytest.mark.parametrize("on_report", [None, print])
def test_each_task_has_the_callback_of_the_defaults(
    folder: Path, on_report: Callable[..., None] | None
) -> None:
    def noted(context: Any) -> None: ...

    campaign = load_campaign(folder / "campaigns/third")
    dag = campaign_dag(campaign, on_report=on_report, default_args={"on_success_callback": noted})
    given = {task.task_id: task.on_success_callback for task in dag.tasks if not task.is_mapped}
    assert given.pop("report") == [noted, *([on_report] if on_report else [])]
    assert set(map(tuple, given.values())) == {(noted,)}
    assert dag.get_task("dispatch").partial_kwargs["on_success_callback"] == [noted]


DEFINES_THIRD = {
    "by position": "DAG('third', schedule=None)",
    "by keyword": "x = airflow.sdk.DAG(schedule=None, dag_id='third')",
    "in a block": "with DAG('third') as dag:\n    pass",
    "by a constant": "NAME = 'third'\nx = DAG(NAME)",
    "by a typed constant": "NAME: Final = 'third'\nx = DAG(NAME)",
    "of a function": "@dag\ndef third(): ...",
    "of an asynchronous function": "@dag\nasync def third(): ...",
    "of a function that is called": "@dag(schedule=None)\ndef third(): ...",
    "in a decorator": "@dag(dag_id='third')\ndef other(): ...",
    "in a decorator by position": "@dag('third')\ndef other(): ...",
    "of ours": "x = reconcile_dag('0 9 * * *', dag_id='third')",
    "of ours for tests": "x = send_test_dag(campaigns='c', recipients='r.csv', dag_id='third')",
    "in a function": "def make():\n    return DAG('third')\nx = make()",
}


@pytest.mark.parametrize("how", DEFINES_THIRD)
def test_a_campaign_does_not_take_the_name_of_a_dag_in_another_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.syspath_prepend(folder)  # as Airflow does with the folder of a bundle
    shutil.rmtree(folder / "campaigns/second")
    file = folder / "team/sales.py"
    file.parent.mkdir()
    file.write_text(f"import airflow\nfrom airflow.sdk import DAG, dag\n{DEFINES_THIRD[how]}\n")
    assert sorted(campaign_dags(folder / "campaigns")) == ["first"]
    with pytest.raises(CampaignError) as raised:
        check_campaigns(folder / "campaigns")
    assert str(raised.value) == (
        f"{folder}/campaigns/third: the file {file} defines a DAG of this name. Rename the campaign's folder."
    )


@pytest.mark.parametrize("text", ["Path(__file__).stem", "os.path.basename(__file__)[:-3]"])
def test_a_campaign_does_not_take_the_name_of_a_dag_that_is_called_as_its_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "third.py").write_text(f"from airflow.sdk import DAG\nNAME = {text}\ndag = DAG(NAME)\n")
    assert sorted(campaign_dags(folder / "campaigns")) == ["first"]


@pytest.mark.parametrize(
    "text",
    [
        "TriggerDagRunOperator(trigger_dag_id='third')",
        "print('third')  # DAG('third')",
        "@task\ndef third(): ...",
        "with DAG('fourth', tags=['third']): pass",
        "DAG('third'",  # Airflow cannot read it either
    ],
)
def test_a_file_that_only_names_a_campaign_does_not_take_it_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "other.py").write_text(f"from airflow.sdk import DAG\n{text}\n")
    assert sorted(campaign_dags(folder / "campaigns")) == ["first", "third"]


@pytest.mark.parametrize("where", ["configured", "on Python's path"])
def test_names_are_looked_for_in_the_whole_dags_folder_and_not_in_what_airflow_ignores(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    crm = folder.parent / "all" / "crm"
    shutil.copytree(folder, crm)
    other = crm.parent / "press" / "sales.py"
    other.parent.mkdir()
    other.write_text("from airflow.sdk import DAG\ndag = DAG('third')\n")
    assert "third" in campaign_dags(crm / "campaigns")
    if where == "configured":
        monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(crm.parent))
    else:
        monkeypatch.syspath_prepend(crm.parent)
    assert "third" not in campaign_dags(crm / "campaigns")
    (crm.parent / ".airflowignore").write_text("press/\n")
    assert "third" in campaign_dags(crm / "campaigns")


@pytest.mark.parametrize("larger", ["the folder of the process", "a folder above the DAGs folder"])
def test_names_are_not_looked_for_in_more_than_a_dags_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, larger: str
) -> None:
    (folder / "sales.py").write_text("from airflow.sdk import DAG\ndag = DAG('third')\n")
    monkeypatch.syspath_prepend(folder)
    if larger == "the folder of the process":
        monkeypatch.chdir(folder)
    else:
        monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(folder / "elsewhere/dags"))
    assert "third" in campaign_dags(folder / "campaigns")


def test_a_task_reads_its_own_campaign_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(200):
        shutil.copytree(folder / "campaigns/first", folder / "campaigns" / f"more_{number}")
    (folder / "sales.py").write_text("from airflow.sdk import DAG\ndag = DAG('first')\n")
    opened: list[str] = []
    sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
    monkeypatch.setenv(TASK_OF, "third")  # as Airflow does before a task reads its DAG file
    file = folder / "campaigns.py"
    bag = BundleDagBag(dag_folder=file, bundle_path=folder, bundle_name="dags-folder")
    assert list(bag.dags) == ["third"]
    inside = [Path(each) for each in opened if each.startswith(f"{folder}/campaigns/")]
    assert {each.relative_to(folder / "campaigns").parts[0] for each in inside} == {"third", "defaults.yaml"}
    assert str(folder / "sales.py") not in opened
    assert campaign_dags(folder / "campaigns", connections={"another"}) == {}
    assert "connection: found" in caplog.text  # the rules for a campaign also hold for its tasks
    monkeypatch.setenv(TASK_OF, "sendoff_reconcile")
    assert campaign_dags(folder / "campaigns") == {}
    monkeypatch.delenv(TASK_OF)
    assert len(campaign_dags(folder / "campaigns")) == 201  # without "second", which is broken, and "first"
