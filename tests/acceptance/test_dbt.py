"""Campaigns that read the models of a real dbt project on DuckDB.

dbt is in an environment of its own, because its packages and Airflow's need different versions of others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest

from sendoff.campaign import CampaignFolder, Period, check_folders, load_campaign
from sendoff.errors import GateError
from sendoff.launch.plan import plan_launch
from sendoff.report import dbt_exposures, dbt_sources

VERSIONS = ("dbt-core==1.10.23", "dbt-duckdb==1.10.1", f"duckdb=={duckdb.__version__}")

FILES = {
    "dbt_project.yml": "name: shop\nversion: '1.0'\nprofile: shop\nflags: {send_anonymous_usage_stats: false}\n",
    "profiles.yml": "shop: {target: dev, outputs: {dev: {type: duckdb, path: shop.duckdb, threads: 1}}}\n",
    "models/buyers.sql": "SELECT device_id, country FROM {{ source('raw', 'devices') }} WHERE has_bought\n",
    "models/visitors.sql": "SELECT device_id FROM {{ source('raw', 'visits') }}\n",
    "models/models.yml": """
version: 2
sources:
  - name: raw
    schema: raw
    tables:
      - name: devices
        loaded_at_field: loaded_at
        freshness: {error_after: {count: 1, period: day}}
      - name: visits
models:
  - name: buyers
    config: {contract: {enforced: true}}
    columns:
      - {name: device_id, data_type: bigint, data_tests: [unique, not_null]}
      - {name: country, data_type: varchar}
  - name: visitors
    config: {contract: {enforced: true}}
    columns:
      - {name: device_id, data_type: bigint, data_tests: [not_null]}
""",
}
CAMPAIGN = """
title: {name}
message: {{title: Hello, text: Words}}
channels: {{android_push: }}
dbt: {{artifacts: ../target, fresh_within: {{length: {hours}, unit: hours}}}}
"""
BUYERS = "audience: {columns: {device_id: {type: integer}, country: {type: text, values: [IE, GB]}}}\n"
CAMPAIGNS = {
    "by_query": (6, BUYERS, "SELECT device_id, country FROM {{ ref('buyers') }}"),
    "by_model": (6, BUYERS.replace("{columns", "{source: {kind: dbt_model, name: buyers}, columns"), None),
    "visits": (
        90,
        "audience: {columns: {device_id: {type: integer}}}\n",
        "SELECT device_id FROM {{ ref('visitors') }}",
    ),
}


@pytest.fixture(scope="module")
def dbt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command ``dbt`` of a new environment."""
    venv = tmp_path_factory.mktemp("dbt") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-compile", *VERSIONS], Path())
    return venv / "bin/dbt"


def run(line: list[str | Path], folder: Path, *, fails: bool = False) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DBT_", "PYTHON"))}
    done = subprocess.run(line, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout


class Project:
    """The dbt project and its campaigns, in one folder."""

    def __init__(self, folder: Path, dbt: Path) -> None:
        self.folder, self._dbt = folder, dbt

    def dbt(self, *arguments: str, fails: bool = False) -> str:
        line = [self._dbt, "--quiet", *arguments, "--profiles-dir", ".", "--project-dir", "."]
        return run(line, self.folder, fails=fails)

    def replace(self, file: str, *changes: tuple[str, str]) -> None:
        path = self.folder / file
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)

    def execute(self, *statements: str) -> None:
        with duckdb.connect(str(self.folder / "shop.duckdb")) as database:
            for statement in statements:
                database.execute(statement)

    def campaign(self, name: str) -> CampaignFolder:
        return load_campaign(self.folder / "campaigns" / name)

    def outcome(self, name: str, now: datetime | None = None) -> int | str | None:
        """Return the number of recipients of a campaign, or why its models stop it before a row is read."""
        moment = now or datetime.now(UTC)
        opened: list[str] = []

        def warehouse(connection: str) -> str:
            opened.append(connection)
            return f"duckdb:///{self.folder / 'shop.duckdb'}"

        period = Period(moment - timedelta(days=1), moment)
        try:
            plan = plan_launch(None, self.campaign(name), period=period, warehouses=warehouse, now=moment)
        except GateError as error:
            assert not opened
            return str(error)
        assert opened
        return plan.people


@pytest.fixture(scope="module")
def built(dbt: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the project after a first build, and with three campaigns."""
    folder = tmp_path_factory.mktemp("shop")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name, (hours, more, sql) in CAMPAIGNS.items():
        path = folder / "campaigns" / name
        path.mkdir(parents=True)
        (path / "campaign.yaml").write_text(CAMPAIGN.format(name=name, hours=hours) + more)
        if sql:
            (path / "audience.sql").write_text(sql)
    project = Project(folder, dbt)
    columns = "device_id BIGINT, country VARCHAR, has_bought BOOLEAN, loaded_at TIMESTAMP"
    rows = ", ".join(f"({n}, 'IE', true, now() AT TIME ZONE 'UTC')" for n in range(1, 6))
    project.execute(
        "CREATE SCHEMA raw",
        f"CREATE TABLE raw.devices ({columns})",
        f"INSERT INTO raw.devices VALUES {rows}",
        "CREATE TABLE raw.visits AS SELECT unnest(range(1, 8)) AS device_id",
    )
    project.dbt("source", "freshness")
    project.dbt("build")
    return folder


@pytest.fixture
def project(built: Path, dbt: Path, tmp_path: Path) -> Project:
    return Project(Path(shutil.copytree(built, tmp_path / "shop")), dbt)


def test_fresh_and_tested_models_are_read(project: Project) -> None:
    assert [project.outcome(name) for name in CAMPAIGNS] == [5, 5, 7]


def rename(project: Project) -> None:
    project.replace("models/buyers.sql", ("country", "country AS nation"))
    project.replace("models/models.yml", ("name: country", "name: nation"))
    project.dbt("build")


def change_the_type(project: Project) -> None:
    project.replace("models/buyers.sql", ("device_id", "CAST(device_id AS VARCHAR) AS device_id"))
    project.replace(
        "models/models.yml",
        (
            "{name: device_id, data_type: bigint, data_tests: [unique",
            "{name: device_id, data_type: varchar, data_tests: [unique",
        ),
    )
    project.dbt("build")


def fail_a_test(project: Project) -> None:
    project.execute("INSERT INTO raw.devices SELECT * FROM raw.devices WHERE device_id = 1")
    project.dbt("build", fails=True)


def age_the_source(project: Project) -> None:
    project.execute("UPDATE raw.devices SET loaded_at = loaded_at - INTERVAL 3 DAYS")
    project.dbt("source", "freshness", fails=True)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (rename, "the contract of model buyers has no column country"),
        (
            change_the_type,
            "column device_id has the type varchar in the contract of model buyers, but",
        ),
        (fail_a_test, "test unique_buyers_device_id of model buyers ended with fail"),
        (age_the_source, "the freshness of source raw.devices ended with error"),
    ],
)
def test_a_change_of_a_model_stops_its_campaigns_and_no_other(
    project: Project, change: Callable[[Project], None], problem: str
) -> None:
    change(project)
    for name in ("by_query", "by_model"):
        assert problem in str(project.outcome(name))
    assert project.outcome("visits") == 7


def test_a_stale_model_stops_its_campaigns_and_no_other(project: Project) -> None:
    later = datetime.now(UTC) + timedelta(hours=10)
    for name in ("by_query", "by_model"):
        assert "dbt.fresh_within allows 6 hours" in str(project.outcome(name, later))
    assert project.outcome("visits", later) == 7


def test_dbt_reads_the_exposures_and_the_sources(project: Project) -> None:
    campaigns = [each.campaign for each in check_folders([project.folder / "campaigns"])]
    (project.folder / "models/campaigns.yml").write_text(dbt_exposures(each for each in campaigns if each))
    (project.folder / "models/sendoff.yml").write_text(dbt_sources("analytics"))
    project.dbt("parse")
    listed = project.dbt("ls", "--resource-type", "model", "--select", "+exposure:visits")
    assert listed.split() == ["shop.visitors"]
