"""The DAG files and the factory: what they make, and what they leave undone while they are read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from sendoff.campaign import load_campaign
from sendoff.errors import CampaignError
from sendoff_airflow.dags import campaign_dag, campaign_dags, check_campaigns

DAGS = Path(__file__).parents[2] / "dags"
CAMPAIGNS = sorted(path.parent.name for path in DAGS.glob("campaigns/*/campaign.yaml"))

SOUND = """
title: A campaign
message: {title: Hello, text: World}
channels: {android_push: }
"""


def test_the_dag_files_make_a_dag_of_each_campaign_and_one_that_reconciles() -> None:
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    assert bag.captured_warnings == {}
    assert sorted(bag.dags) == sorted([*CAMPAIGNS, "reconcile"])
    for dag in bag.dags.values():
        DagSerialization.to_dict(dag)  # as the DAG processor stores it


def test_reading_the_dag_files_opens_no_database_and_no_connection_and_imports_nothing_large() -> None:
    script = textwrap.dedent(
        """
        import json, sys
        from airflow.dag_processing.dagbag import DagBag

        done = []

        def watch(event, arguments):
            if event in ("socket.connect", "socket.getaddrinfo", "sqlite3.connect", "subprocess.Popen"):
                done.append(f"{event} {arguments[-1]}")

        sys.addaudithook(watch)
        bag = DagBag(sys.argv[1])
        large = {"pyarrow", "matplotlib", "alembic", "jwt", "sendoff.ledger", "sendoff.client"} & set(sys.modules)
        print(json.dumps({"dags": len(bag.dags), "done": done, "large": sorted(large)}))
        """
    )
    line = [sys.executable, "-c", script, str(DAGS)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"dags": len(CAMPAIGNS) + 1, "done": [], "large": []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the DAG files with three campaigns of which one cannot be read."""
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
    bag = DagBag(folder)
    assert sorted(bag.dags) == ["first", "reconcile", "third"]
    [(file, text)] = bag.import_errors.items()
    assert file == str(folder / "campaign_errors.py")
    assert f"{folder}/campaigns/second/campaign.yaml:5: " in text
    assert "tittle" in text


def test_all_broken_campaigns_are_named_together(folder: Path) -> None:
    (folder / "campaigns/first/audience.sql").unlink()
    with pytest.raises(CampaignError) as raised:
        check_campaigns(folder / "campaigns")
    assert "campaigns/first/audience.sql" in str(raised.value)
    assert "campaigns/second/campaign.yaml" in str(raised.value)


def test_a_repaired_campaign_comes_back(folder: Path) -> None:
    (folder / "campaigns/second/campaign.yaml").write_text(SOUND)
    assert sorted(campaign_dags(folder / "campaigns")) == ["first", "second", "third"]
    check_campaigns(folder / "campaigns")


def test_what_the_folder_says_is_what_the_dag_does(folder: Path) -> None:
    more = (
        'schedule: "0 6 * * *"\nstart: 2026-02-03\nowner: crm\ntags: [push]\nparallelism: 3\nconnection: eu\n'
    )
    (folder / "campaigns/first/campaign.yaml").write_text(SOUND + more)
    dag = campaign_dags(folder / "campaigns", default_args={"queue": "slow"})["first"]
    assert dag.timetable.expression == "0 6 * * *"  # type: ignore[attr-defined]
    assert dag.start_date == datetime(2026, 2, 3, tzinfo=UTC)
    assert dag.catchup is False
    assert {"sendoff", "push"} == set(dag.tags)
    assert {task.owner for task in dag.tasks} == {"crm"}
    assert {task.queue for task in dag.tasks} == {"slow"}
    assert all(task.retries == 8 for task in dag.tasks)
    dispatch: Any = dag.get_task("dispatch")
    assert dispatch.partial_kwargs["sendoff_conn_id"] == "eu"
    assert dispatch.expand_input.value == {"worker": [1, 2, 3]}
    assert "SELECT device_id FROM devices" in (dag.doc_md or "")
    assert "World" not in (dag.doc_md or "")


def test_the_trigger_form_asks_for_a_resend_number(folder: Path) -> None:
    param = campaign_dags(folder / "campaigns")["first"].params.get_param("resend")
    assert param.schema["type"] == "integer"
    assert param.resolve() == 0
    with pytest.raises(Exception, match="-1 is less than the minimum"):
        param.resolve(-1)


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
        "quiet",
        "launched",
    ]
