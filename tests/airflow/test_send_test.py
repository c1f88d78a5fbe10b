"""The DAG that sends a campaign to a few people of your own, run by a real Airflow."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk.exceptions import ParamValidationError

from sendoff_airflow.dags import send_test_dag

CAMPAIGN = """
title: The campaign {name}
message: {{title: Notice, text: The shop is closed}}
channels: {{android_push: {{}}, ios_push: {{}}, web_push: {{browsers: [chrome]}}}}
connection: service
warehouse: shop
approval: {{needed: always}}
gates: {{least: 400}}
variants:
  long: {{percent: 50, message: {{text: The shop is closed on Monday}}}}
  short: {{percent: 50}}
"""
JOURNEY = """
title: The campaign rehearsed
connection: service
steps:
  - name: hello
    message: {title: Notice, text: The shop is closed}
    channels: {android_push: {}}
"""


@pytest.fixture
def campaigns(tmp_path: Path) -> Path:
    for name, file, text in (
        ("proofread", "campaign.yaml", CAMPAIGN.format(name="proofread")),
        ("rehearsed", "journey.yaml", JOURNEY),
        ("broken", "journey.yaml", "steps: 5\n"),
        ("mistyped", "campaign.yaml", "name: 5\n"),
    ):
        (tmp_path / "campaigns" / name).mkdir(parents=True)
        (tmp_path / "campaigns" / name / file).write_text(text)
        (tmp_path / "campaigns" / name / "audience.sql").write_text("SELECT device_id FROM devices")
    return tmp_path / "campaigns"


def test_a_person_chooses_the_campaign_and_the_recipients_stay_out_of_airflow(
    campaigns: Path, house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    file = campaigns.parent / "colleagues.csv"
    file.write_text("device_id\n7340000001\n7340000002\n")
    dag = send_test_dag(
        campaigns=campaigns, recipients=file, start_date=house.day, default_args={"retries": 0}
    )
    form = dag.params.get_param("campaign")
    assert (dag.dag_id, form.schema["enum"]) == ("sendoff_test", ["proofread", "rehearsed/hello"])
    assert form.schema["values_display"] == {
        "proofread": "The campaign proofread (proofread)",
        "rehearsed/hello": "The campaign rehearsed: hello (rehearsed/hello)",
    }
    with pytest.raises(ParamValidationError):  # nothing is chosen until a person chooses
        run_dag(dag, logical_date=house.day, run_conf={})
    run = run_dag(dag, logical_date=house.day, run_conf={"campaign": "proofread"})
    assert run.state == "success"
    truths = house.truths("proofread (test)")
    assert [truth["targeted"] for truth in truths] == [house.devices[:2]] * 2
    xcoms = house.xcoms(run)
    assert list(xcoms["send_test", "return_value", -1].values()) == [{"accepted": 1}] * 2
    printed = capfd.readouterr()
    assert not re.search(r"734000000\d|The shop is closed", f"{xcoms}{printed.out}{printed.err}")
    one = run_dag(
        dag, logical_date=house.day.replace(hour=10), run_conf={"campaign": "proofread", "variant": "short"}
    )
    assert one.state == "success"
    assert len(house.truths("proofread (test)")) == 3
    step = run_dag(
        dag,
        logical_date=house.day.replace(hour=11),
        run_conf={"campaign": "rehearsed/hello", "variant": None},
    )
    assert step.state == "success"
    with house.ledger() as ledger:
        found = ledger.launches.search(limit=3)
    assert [launch.campaign for launch in found] == ["rehearsed.hello-test", *["proofread-test"] * 2]


def test_no_folder_outside_of_the_campaigns_can_be_named(
    campaigns: Path, house: Any, run_dag: Callable[..., DagRun]
) -> None:
    dag = send_test_dag(
        campaigns=campaigns,
        recipients=[{"device_id": 7}],
        dag_id="send_test_outside",
        start_date=house.day,
    )
    with pytest.raises(ParamValidationError):
        run_dag(dag, logical_date=house.day, run_conf={"campaign": "../elsewhere"})
