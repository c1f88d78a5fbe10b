"""Many asset events: the runs of Sendoff's DAGs consume all events that wait, on every version of Airflow."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

from airflow import sdk
from sendoff.campaign import CampaignFolder, load_campaign
from sendoff.errors import CampaignError
from sendoff.launch import LaunchOptions
from sendoff_airflow.dags import campaign_dag, reconcile_dag
from sendoff_airflow.operators.assets import POST_BACKS, launch_facts, report_asset
from sendoff_airflow.operators.reported import reported_launch

from ..factories import make_launch
from ..waiting import until

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

    from sendoff.ledger import Ledger


class Scheduler:
    """Airflow's scheduler, one step at a time, for one DAG."""

    def __init__(self, dag: DAG, folder: Path) -> None:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
        from airflow.jobs.job import Job
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
        from airflow.models.dag import DagModel

        from airflow import settings

        self._dag_id = dag.dag_id
        bag = DagBag(dag_folder=folder, collect_dags=False)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)
        with closing(settings.Session()) as session:
            session.query(DagModel).filter_by(dag_id=dag.dag_id).update({"is_paused": False})
            session.commit()
        self._runner = SchedulerJobRunner(job=Job())

    def happens(self, asset: Any, times: int, **extra: Any) -> None:
        """Store events of an asset. The last one is registered as the API server does at the end of a task."""
        from airflow.assets.manager import asset_manager
        from airflow.models.asset import AssetEvent, AssetModel

        from airflow import settings

        with closing(settings.Session()) as session:
            model = session.query(AssetModel).filter_by(name=asset.name).one()
            # One event after the other would take a minute for ten thousand.
            session.add_all(AssetEvent(asset_id=model.id, extra={"number": n}) for n in range(times - 1))
            session.flush()
            asset_manager.register_asset_change(
                asset=model, extra={"number": times - 1, **extra}, session=session
            )
            session.commit()

    def step(self) -> list[DagRun]:
        """Create and start runs as one loop of the scheduler does, and return the runs that are running."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.sqlalchemy import prohibit_commit

        from airflow import settings

        with closing(settings.Session()) as session:
            with prohibit_commit(session) as guard:
                self._runner._create_dagruns_for_dags(guard, session)
                self._runner._start_queued_dagruns(session)
                guard.commit()
            return session.query(DagRun).filter_by(dag_id=self._dag_id, state="running").all()

    def end(self, run: DagRun) -> None:
        """End a run."""
        from airflow.models.dagrun import DagRun

        from airflow import settings

        with closing(settings.Session()) as session:
            session.query(DagRun).filter_by(id=run.id).update({"state": "success"})
            session.commit()

    def consumed(self, run: DagRun) -> TriggeringAssetEventsAccessor:
        """Return the events that started a run, as its tasks get them."""
        from airflow.models.dagrun import DagRun

        from airflow import settings

        with closing(settings.Session()) as session:
            events = session.get_one(DagRun, run.id).consumed_asset_events
            found = [
                AssetEventDagRunReferenceResult.model_validate(each, from_attributes=True) for each in events
            ]
        return TriggeringAssetEventsAccessor.build(found)

    def runs(self, **where: Any) -> int:
        """Return the number of runs."""
        from airflow.models.dagrun import DagRun

        from airflow import settings

        with closing(settings.Session()) as session:
            return session.query(DagRun).filter_by(dag_id=self._dag_id, **where).count()

    def started(self) -> list[DagRun]:
        """Wait until runs start: SQLite compares whole seconds. Return them."""
        running: list[DagRun] = []

        def start() -> bool:
            running[:] = self.step()
            return bool(running)

        until(start)
        return running


@pytest.mark.proof
@pytest.mark.promise("sound/versions")
@pytest.mark.parametrize("events", [pytest.param(500, marks=pytest.mark.newest_airflow), 10_000])
def test_many_events_make_one_run_of_reconcile_at_a_time_and_a_run_follows_the_last_event(
    airflow_database: None, tmp_path: Path, events: int
) -> None:
    scheduler = Scheduler(reconcile_dag("0 0 1 1 *", dag_id=f"busy_reconcile_{events}"), tmp_path)
    rounds = 5
    for _ in range(rounds):
        scheduler.happens(POST_BACKS, events // rounds // 2)
        (run,) = scheduler.started()
        scheduler.happens(POST_BACKS, events // rounds // 2)
        assert [each.id for each in scheduler.step()] == [run.id]
        scheduler.end(run)
    last_event = datetime.now(UTC)
    (run,) = scheduler.started()
    assert run.start_date > last_event
    scheduler.end(run)
    assert scheduler.step() == []
    assert scheduler.runs(state="queued") == 0
    assert scheduler.runs() <= 2 * rounds


def follower(folder: Path, name: str, more: str) -> CampaignFolder:
    """Return a campaign that follows the asset the_load."""
    (folder / name).mkdir()
    (folder / name / "campaign.yaml").write_text(
        f"title: Follows\nafter: [the_load]\n{more}"
        "message: {title: Hello, text: Hello}\nchannels: {android_push: }\n"
    )
    (folder / name / "audience.sql").write_text("SELECT device_id FROM devices")
    return load_campaign(folder / name)


def produced(folder: Path, asset: Asset | None = None) -> Asset:
    """Store a DAG that updates an asset, by default the_load. Return the asset."""
    load = asset or Asset(name="the_load")
    with DAG(f"makes_{load.name}", schedule=None) as producer:
        EmptyOperator(task_id="load", outlets=[load])
    Scheduler(producer, folder)
    return load


@pytest.mark.newest_airflow
def test_events_that_wait_for_a_campaign_make_one_run(airflow_database: None, tmp_path: Path) -> None:
    load = produced(tmp_path)
    scheduler = Scheduler(campaign_dag(follower(tmp_path, "follows", "")), tmp_path)
    scheduler.happens(load, 3)
    (run,) = scheduler.started()
    scheduler.end(run)
    assert scheduler.step() == []
    assert scheduler.runs() == 1


@pytest.mark.newest_airflow
def test_a_campaign_with_a_schedule_and_assets_waits_for_both(airflow_database: None, tmp_path: Path) -> None:
    folder = follower(tmp_path, "follows_daily", 'schedule: "@daily"\nstart: 2026-01-01\n')
    if not hasattr(sdk, "AssetAndTimeSchedule"):  # before Airflow 3.4
        with pytest.raises(CampaignError, match=r"Airflow before 3\.4 cannot wait for both"):
            campaign_dag(folder)
        return
    load = produced(tmp_path)
    scheduler = Scheduler(campaign_dag(folder), tmp_path)
    assert scheduler.step() == []
    assert scheduler.runs() == 0  # yesterday's run is due, and waits for the asset
    scheduler.happens(load, 3)
    (run,) = scheduler.started()
    assert run.run_type == "scheduled"
    scheduler.end(run)
    scheduler.happens(load, 1)
    assert scheduler.step() == []
    assert scheduler.runs() == 1  # today's run is not due


@pytest.mark.newest_airflow
@pytest.mark.parametrize("after", ["spring.report", "spring.report, stock"])
def test_a_reminder_gets_the_report_that_starts_its_run(
    airflow_database: None, ledger: Ledger, tmp_path: Path, after: str
) -> None:
    report = produced(tmp_path, report_asset("spring"))
    stock = produced(tmp_path, Asset("stock", uri="elsewhere://stock"))
    name = f"reminder_{len(after)}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "campaign.yaml").write_text(
        f"title: Ends tonight\nafter: [{after}]\nmessage: {{title: Hello, text: Hello}}\n"
        "channels: {android_push: }\nconnection: service\n"
        "audience: {source: {kind: verdicts, of: spring, are: [delivered]}}\n"
    )
    folder = load_campaign(tmp_path / name)
    scheduler = Scheduler(campaign_dag(folder), tmp_path)
    launch = make_launch(ledger, [1])
    scheduler.happens(report, 1, **launch_facts(launch))
    if "stock" in after:
        assert scheduler.step() == []
        scheduler.happens(stock, 1)
    (run,) = scheduler.started()
    scheduler.end(run)
    task = SimpleNamespace(dag_id=name, run_id=run.run_id, task_id="audience", map_index=-1)
    context: Any = {"ti": task, "triggering_asset_events": scheduler.consumed(run)}
    assert reported_launch(context, ledger, folder, LaunchOptions()) == (launch, [])
