"""The DAG that sends a campaign to a few people of your own, run by a real Airflow."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

from sendoff_airflow.dags import send_test_dag
from sendoff_airflow.errors import RetryTaskError
from sendoff_airflow.operators.send_test import SendTestOperator

from ..waiting import PATIENCE
from .test_ending import slow, told_to_end
from .test_own_pages import links

__all__ = ["links"]

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
        ("numbered", "campaign.yaml", CAMPAIGN.format(name="numbered").replace(" long:", ' "2026":')),
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
    assert (dag.dag_id, form.schema["enum"]) == ("sendoff_test", ["numbered", "proofread", "rehearsed/hello"])
    assert form.schema["values_display"] == {
        "numbered": "The campaign numbered (numbered)",
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


def test_each_task_sends_a_test_of_its_own(
    campaigns: Path, house: Any, run_dag: Callable[..., DagRun], links: Callable[..., dict[str, str | None]]
) -> None:
    with DAG(
        "several_tests",
        start_date=house.day,
        default_args={"retries": 0},
        params={"variant": "2026"},
        render_template_as_native_obj=True,
    ) as dag:

        @task
        def choose() -> str:
            return str(campaigns / "numbered")

        chosen: Any = choose()
        variant = "{{ params.variant }}"
        SendTestOperator(
            task_id="us", campaign=chosen, recipients=[{"device_id": house.devices[0]}], variant=variant
        )
        SendTestOperator.partial(task_id="them", campaign=campaigns / "numbered").expand(
            recipients=[[{"device_id": device}] for device in house.devices[1:3]]
        )
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success", house.tasks(run)
    sent = sorted(truth["targeted"] for truth in house.truths("numbered (test)"))
    assert sent == [[device] for device in house.devices[:3] for _ in range(1 if device == sent[0][0] else 2)]
    page = "/plugin/sendoff/sendoff"
    [key] = house.xcoms(run)["us", "return_value", -1]
    assert links(run, "us") == {
        "Launch": f"{page}/launches/{key}",
        "Campaign": f"{page}/campaigns/numbered-test",
    }


def context_of(house: Any, run_id: str) -> Any:
    run = SimpleNamespace(run_after=house.day, triggering_user_name="ann")
    ti = SimpleNamespace(
        dag_id="tests",
        run_id=run_id,
        task_id="send_test",
        map_index=-1,
        try_number=1,
        xcom_push=lambda *_: None,
    )
    return {"dag_run": run, "ti": ti}


def test_a_refused_variant_keeps_no_other_from_being_sent(campaigns: Path, house: Any) -> None:
    with DAG("tests", schedule=None):
        test = SendTestOperator(
            task_id="send_test",
            campaign=campaigns / "proofread",
            recipients=[{"device_id": house.devices[0]}],
        )
    fault = {"kind": "403", "at": ["create"], "count": 1}
    faults = f"{house.service}/admin/faults"
    assert requests.post(faults, json=fault, timeout=PATIENCE).ok
    before = len(house.truths("proofread (test)"))
    with pytest.raises(AirflowFailException, match="the service refused 1"):
        test.execute(context_of(house, "refused"))
    requests.delete(faults, timeout=PATIENCE)
    assert len(house.truths("proofread (test)")) == before + 1


def test_a_test_that_is_told_to_end_records_what_is_under_way(campaigns: Path, house: Any) -> None:
    with DAG("tests", schedule=None):
        test = SendTestOperator(
            task_id="send_test",
            campaign=campaigns / "proofread",
            recipients=[{"device_id": house.devices[0]}],
        )
    context = context_of(house, "ended")
    at_first = signal.signal(
        signal.SIGTERM, lambda *_: test.on_kill()
    )  # as Airflow does in the task's process
    teller = threading.Thread(target=told_to_end, args=(house, lambda: signal.raise_signal(signal.SIGTERM)))
    try:
        with slow(house):
            teller.start()
            with pytest.raises(RetryTaskError, match="ended the task before all requests were made"):
                test.execute(context)
    finally:
        teller.join()
        signal.signal(signal.SIGTERM, at_first)
    assert list(test.execute(context).values()) == [{"accepted": 1}] * 2


def test_a_test_that_waits_for_tomorrow_keeps_no_other_from_being_sent(campaigns: Path) -> None:
    assert send_test_dag(campaigns=campaigns, recipients=[{"device_id": 7}]).max_active_runs > 1
    assert (
        send_test_dag(campaigns=campaigns, recipients=[{"device_id": 7}], max_active_runs=3).max_active_runs
        == 3
    )
