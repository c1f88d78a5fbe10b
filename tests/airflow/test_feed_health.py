"""The alert on feed health in Airflow: one failed task for each change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from sendoff.campaign import Period
from sendoff.ledger import Ledger
from sendoff.ledger.storage.schema import launches
from sendoff.postbacks import reconcile_launch
from sendoff_airflow.dags import reconcile_dag
from sendoff_airflow.operators import CheckFeedsOperator, ReconcileChangedOperator

from ..factories import make_accepted

KEY = "0123456789abcdef" * 2
DAY = datetime(2026, 3, 2, tzinfo=UTC)
DAYS = timedelta(days=1)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger with a launch to a hundred people, sent two hours ago, without any post-back."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("SENDOFF_LEDGER_URL", url)
    at = datetime.now(UTC) - timedelta(hours=2)
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
        ledger.post_backs.register_receiver("r", at)
        make_accepted(ledger, range(1, 101), launch_key=KEY, period=Period(DAY, DAY + DAYS), at=at)
        return ledger


def test_a_silence_fails_one_run_without_being_tried_again(
    ledger: Ledger, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_dag(reconcile_dag("0 0 * * *"), logical_date=DAY)
    tasks = {each.task_id: (each.state, each.try_number) for each in run.get_task_instances()}
    assert tasks == {
        "reconcile": ("success", 1),
        "renew_tables": ("success", 1),
        "check_feeds": ("failed", 1),
    }
    assert run.state == "failed"
    change = "deliveries of service: cannot tell -> silent: delivery reported for 0 of 100 recipients"
    assert change in capfd.readouterr().out
    assert run_dag(reconcile_dag("0 0 * * *"), logical_date=DAY + DAYS).state == "success"


CAMPAIGN = """
title: Spring
schedule: "0 9 * * *"
start: 2026-01-05
message: {title: Hello, text: It is spring}
channels: {android_push: }
"""


def test_a_campaign_that_does_not_run_fails_one_run(
    ledger: Ledger, tmp_path: Path, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"spring": CAMPAIGN, "broken": "title: 5", "never_ran": CAMPAIGN}.items():
        folder = tmp_path / "campaigns" / name
        folder.mkdir(parents=True)
        (folder / "campaign.yaml").write_text(text)
        (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    dag = reconcile_dag("0 0 * * *", campaigns=tmp_path / "campaigns")
    assert run_dag(dag, logical_date=DAY).state == "failed"
    log = capfd.readouterr().out
    assert "launches of spring: cannot tell -> silent: no launch for the period that ended" in log
    assert "never_ran" not in log
    assert run_dag(dag, logical_date=DAY + DAYS).state == "success"


def test_a_missing_folder_of_campaigns_fails_each_run_after_the_other_checks(
    ledger: Ledger, tmp_path: Path
) -> None:
    check = CheckFeedsOperator(task_id="check_feeds", campaigns=tmp_path / "nosuch")
    with DAG("misnamed", schedule=None, start_date=DAY) as dag:
        dag.add_task(check)
    missing = f"there is no folder {tmp_path}/nosuch. Correct campaigns= in the DAG file."
    with pytest.raises(AirflowFailException, match=f"(?s){missing}\n.*-> silent: delivery reported for 0"):
        check.execute({})
    with pytest.raises(AirflowFailException, match=f"{missing}$"):
        check.execute({})


def test_a_launch_that_cannot_be_read_keeps_no_other_from_its_report(ledger: Ledger) -> None:
    day_before = DAY - DAYS
    make_accepted(
        ledger,
        range(1, 101),
        launch_key=KEY[::-1],
        period=Period(day_before, DAY),
        at=datetime.now(UTC) - timedelta(hours=2),
    )
    for key in (KEY, KEY[::-1]):
        reconcile_launch(ledger, key, now=DAY)  # before it was sent
    broken, sound = ledger.verdicts.stale()
    with ledger.launch_counts._database.write() as db:  # as another version of Sendoff may freeze it
        of_broken = sa.update(launches).where(launches.c.launch_key == broken)
        db.execute(of_broken.values(definition='{"title": "Spring", "unheard_of": 5}'))
    for operator, about_others in (
        (ReconcileChangedOperator(task_id="reconcile"), ""),
        (CheckFeedsOperator(task_id="check_feeds"), "deliveries of service: cannot tell -> silent"),
    ):
        with pytest.raises(
            AirflowFailException, match=rf"launch {broken}: .*frozen by another version"
        ) as raised:
            operator.execute({})
        assert about_others in str(raised.value)
        assert sound not in str(raised.value)
    assert ledger.verdicts.stale() == [broken]
