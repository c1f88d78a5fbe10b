"""The pages in Airflow with 1,000 launches, one of them to 10 million recipients, with both databases on PostgreSQL.

Each page is requested from Airflow's API server in this process, with its login, its rights and its templates. Every
launch has a run in Airflow. Two databases are created on the server of ``SENDOFF_TEST_POSTGRES_URL``, and dropped at
the end. ``BENCH_LAUNCHES`` is the number of launches, and ``BENCH_ROUNDS`` the number of requests per page. Tables
have no statistics in the first half of the rounds, as right after an import, and have them in the second half.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from shared import postgres_database

ROOT = Path(__file__).parents[2]
LAUNCHES = int(os.environ.get("BENCH_LAUNCHES", "1000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "20"))
LARGE, SEGMENT = 10_000_000, 10_000
CAMPAIGNS = 20
GOAL = 0.3  # seconds
DAGS = """
from datetime import datetime
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.providers.standard.operators.empty import EmptyOperator

for number in range({count}):
    with DAG(f"campaign_{{number}}", schedule=CronDataIntervalTimetable("0 9 * * *", timezone="UTC"), catchup=False,
             start_date=datetime(2020, 1, 1), tags=["sendoff"]) as dag:
        EmptyOperator(task_id="audience") >> EmptyOperator(task_id="dispatch")
    globals()[dag.dag_id] = dag
"""


def fill(ledger_url: str) -> tuple[str, list[tuple[str, str, datetime]]]:
    """Create the launches. Return the key of the large one, and for each the campaign, the key and its time."""
    from sendoff.audience.identifiers import integers
    from sendoff.audience.segmentation import Segment
    from sendoff.campaign import Period, launch_key
    from sendoff.ledger import Ledger
    from sendoff.postbacks import reconcile_launch
    from sendoff.states import Accepted, InDoubt
    from tests.factories import make_launch, send

    today = datetime.now(UTC).replace(hour=9, minute=0, second=0, microsecond=0)
    made, large = [], ""
    with closing(Ledger(ledger_url)) as ledger:
        ledger.migrate()
        for number in range(LAUNCHES):
            name, end = f"campaign_{number % CAMPAIGNS}", today - timedelta(days=number // CAMPAIGNS)
            period = Period(end - timedelta(days=1), end)
            key, size = launch_key("service", name, period), 20
            people, part = (LARGE, SEGMENT) if not number else (5 * size, size)
            segments = [Segment(each) for each in integers(range(1, people + 1)).slices(part)]
            state = "held" if number % 100 == 99 else "released"
            make_launch(
                ledger, range(1, people + 1), segments=segments, name=name, period=period, created_at=end,
                sends_at=end, state=state,
            )  # fmt: skip
            made.append((name, key, end))
            if state == "held":
                continue
            outcomes: list[Any] = [Accepted(200, 1)] * len(segments)
            if number % 50 == 49:
                outcomes[-1] = InDoubt("no answer")
            send(ledger, key, *outcomes, at=end)
            reconcile_launch(ledger, key, now=end + timedelta(hours=3))
            large = large or key
    return large, made


def start_airflow(made: list[tuple[str, str, datetime]], folder: Path) -> Any:
    """Create Airflow's tables and a run for each launch. Return a client of its API server with a login."""
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType
    from fastapi.testclient import TestClient

    initdb()
    DagBundlesManager().sync_bundles_to_db()
    (folder / "campaigns.py").write_text(DAGS.format(count=CAMPAIGNS))
    sync_bag_to_db(DagBag(dag_folder=folder), "dags-folder", None)
    with create_session() as session:
        for name, key, end in made:
            run = DagRun(
                dag_id=name, run_id=f"scheduled__{end.date()}", logical_date=end - timedelta(days=1), run_after=end,
                data_interval=(end - timedelta(days=1), end), run_type=DagRunType.SCHEDULED, state="success",
            )  # fmt: skip
            session.add(run)
            session.flush()
            of_run = {"dag_id": name, "run_id": run.run_id, "map_index": -1}
            for task in ("audience", "dispatch"):
                values = {
                    "id": uuid4(),
                    "task_id": task,
                    "state": "success",
                    "try_number": 1,
                    "pool": "default_pool",
                }
                session.execute(sa.insert(TaskInstance.__table__).values(pool_slots=1, **values, **of_run))
            session.add(
                XComModel(key="launch_key", value=key, task_id="audience", dag_run_id=run.id, **of_run)
            )
    client = TestClient(create_app(), base_url="http://127.0.0.1")
    user = SimpleAuthManagerUser(username="ann", role="OP")
    client.headers["Cookie"] = f"_token={get_auth_manager().generate_jwt(user)}; sendoff-zone=Europe/Dublin"
    return client


def measure(client: Any, paths: dict[str, str], rounds: int) -> dict[str, float]:
    """Return the median number of seconds that each page took."""
    found = {}
    for name, path in paths.items():
        times = []
        for _ in range(rounds + 1):  # the first one loads modules
            begin = time.perf_counter()
            answer = client.get(f"/sendoff/{path}")
            times.append(time.perf_counter() - begin)
            assert answer.status_code == 200, (path, answer.text[:500])
        found[name] = median(times[1:])
    return found


def main() -> None:
    """Fill the databases, and measure each page without and with statistics."""
    sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]
    with (
        postgres_database() as airflow,
        postgres_database() as ledger,
        tempfile.TemporaryDirectory() as home,
    ):
        os.environ |= {
            "AIRFLOW_HOME": home,
            "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789abcdef" * 4,
            "AIRFLOW__CORE__DAGS_FOLDER": home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": airflow,
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
            "SENDOFF_LEDGER_URL": ledger,
        }
        large, made = fill(ledger)
        client = start_airflow(made, Path(home))
        paths = {
            "launches": "",
            "launches, sorted by time": "?sort=sends",
            "launches, of one day": f"?since={made[0][2].date()}&until={made[0][2].date()}",
            "launches, in one state": "?state=reported",
            "launches, sorted by state": "?sort=state",
            "launch of 10 million": f"launches/{large}",
            "calendar": "calendar",
            "campaign": "campaigns/campaign_0",
            "campaigns": "campaigns",
            "waiting": "waiting",
        }
        before = measure(client, paths, ROUNDS // 2)
        for url in (airflow, ledger):
            engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
            with engine.connect() as db:
                db.execute(sa.text("ANALYZE"))
            engine.dispose()
        after = measure(client, paths, ROUNDS // 2)
        for name in paths:
            print(f"{name:26} {before[name]:.3f} s without statistics, {after[name]:.3f} s with")
        worst = max([*before.values(), *after.values()])
        result = {"launches": LAUNCHES, "without_statistics": before, "with_statistics": after}
        print(json.dumps({"benchmark": "pages", **result, "worst": worst, "is_within_goal": worst <= GOAL}))


if __name__ == "__main__":
    main()
