"""Campaigns whose queries name dbt models: their tables, and the gates before a row is read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sendoff.campaign import CampaignFolder, Period, load_campaign
from sendoff.errors import CampaignError, GateError, SendoffError
from sendoff.launch.plan import LaunchOptions, Plan, plan_launch, prepare_launch
from sendoff.ledger import Ledger

NOW = datetime(2026, 3, 2, tzinfo=UTC)
PERIOD = Period(NOW - timedelta(days=1), NOW)
BUYERS, OTHERS, SOURCE = "model.shop.buyers", "model.shop.others", "source.shop.shop.devices"
TEST = "test.shop.unique_buyers"
TEXT = """
title: Spring
message: {title: Hello, text: It is spring}
channels: {android_push: }
dbt: {artifacts: ../target}
"""
SQL = "SELECT device_id FROM {{ ref('buyers') }} WHERE device_id > 0"


def model(name: str, parents: list[str] | None = None, **columns: str) -> dict[str, Any]:
    described = {column: {"name": column, "data_type": type_} for column, type_ in columns.items()}
    return {
        "unique_id": f"model.shop.{name}",
        "resource_type": "model",
        "package_name": "shop",
        "name": name,
        "relation_name": f'"main"."{name}"',
        "columns": described,
        "config": {"contract": {"enforced": bool(columns)}},
        "depends_on": {"nodes": parents or []},
    }


class Project:
    """The artifacts of a project, which each test changes before it writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        limit = {"error_after": {"count": 1, "period": "day"}}
        source = {"unique_id": SOURCE, "resource_type": "source", "source_name": "shop", "name": "devices"}
        self.nodes: dict[str, Any] = {
            BUYERS: model("buyers", [SOURCE], device_id="bigint", country="varchar(2)"),
            OTHERS: model("others", device_id="integer"),
            TEST: {
                "unique_id": TEST,
                "resource_type": "test",
                "name": "unique_buyers",
                "depends_on": {"nodes": [BUYERS]},
            },
        }
        self.sources = {SOURCE: {**source, "relation_name": '"main"."devices"', "freshness": limit}}
        at = (NOW - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
        steps = {"compile": "2026-02-01T00:00:00Z", "execute": at}  # the last one counts
        timing = [{"name": name, "completed_at": end} for name, end in steps.items()]
        built = {"status": "success", "timing": timing}
        self.results: dict[str, Any] = {BUYERS: built, OTHERS: {**built}, TEST: {"status": "pass"}}
        self.command = "build"
        self.freshness: dict[str, Any] = {SOURCE: {"status": "pass", "snapshotted_at": at}}

    def write(self) -> None:
        self.folder.mkdir(exist_ok=True)
        metadata = {"project_name": "shop", "generated_at": "2026-03-01T00:00:00Z"}
        manifest = {"metadata": metadata, "nodes": self.nodes, "sources": self.sources}
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        for name, results in (("run_results", self.results), ("sources", self.freshness)):
            listed = [{"unique_id": unique_id, **each} for unique_id, each in results.items()]
            content = {"metadata": metadata, "args": {"which": self.command}, "results": listed}
            (self.folder / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "target")


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "warehouse.db") as db:
        for table in ("buyers", "others", "devices"):
            db.execute(f"CREATE TABLE {table} (device_id INTEGER, country TEXT)")
            db.execute(f"INSERT INTO {table} VALUES (1, 'IE'), (2, 'GB')")
    db.close()
    return f"sqlite:///{tmp_path / 'warehouse.db'}"


def load(tmp_path: Path, more: str = "", sql: str | None = SQL) -> CampaignFolder:
    folder = tmp_path / "campaigns" / "spring"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "campaign.yaml").write_text(TEXT + more)
    (folder / "audience.sql").unlink(missing_ok=True)
    if sql is not None:
        (folder / "audience.sql").write_text(sql)
    return load_campaign(folder)


def planned(folder: CampaignFolder, warehouse: str, **options: Any) -> Plan:
    return plan_launch(
        None,
        folder,
        period=PERIOD,
        warehouses=lambda _: warehouse,
        now=NOW,
        options=LaunchOptions(**options),
    )


def unread(_: str) -> str:
    raise AssertionError("the warehouse was opened")


@pytest.mark.parametrize(
    ("more", "sql"),
    [
        ("", SQL),
        ("", "SELECT device_id FROM {{ref(\"shop\", 'buyers')}} -- {{ ds }} and {{ ref('gone') }}"),
        (
            "",
            "SELECT b.device_id FROM {{ ref('buyers') }} b JOIN {{ source('shop', 'devices') }} USING (device_id)",
        ),
        ("audience: {source: {kind: dbt_model, name: buyers}}", None),
        ("audience: {source: {kind: dbt_model, name: buyers}, columns: {country: {values: [IE, GB]}}}", None),
    ],
)
def test_references_become_the_tables_of_the_manifest(
    tmp_path: Path, project: Project, warehouse: str, more: str, sql: str | None
) -> None:
    project.write()
    assert planned(load(tmp_path, more, sql), warehouse).people == 2


def test_a_name_without_a_package_is_first_that_of_the_project(
    tmp_path: Path, project: Project, warehouse: str
) -> None:
    theirs = model("buyers")
    theirs |= {"unique_id": "model.other.buyers", "package_name": "other", "relation_name": '"main"."others"'}
    project.nodes[theirs["unique_id"]] = theirs
    project.results[theirs["unique_id"]] = project.results[BUYERS]
    project.write()
    with sqlite3.connect(tmp_path / "warehouse.db") as db:
        db.execute("DELETE FROM others")
    db.close()
    assert planned(load(tmp_path), warehouse).people == 2


def test_an_exclusion_may_name_a_model(tmp_path: Path, project: Project, warehouse: str) -> None:
    project.write()
    load(tmp_path)
    excluded = tmp_path / "campaigns/spring/others.sql"
    excluded.write_text("SELECT device_id FROM {{ ref('others') }} WHERE device_id = 1")
    folder = load(tmp_path, "audience: {exclude: [{kind: query, file: others.sql}]}")
    assert planned(folder, warehouse).people == 1


def test_a_url_is_read_by_what_the_caller_gives(tmp_path: Path, project: Project, warehouse: str) -> None:
    project.write()
    folder = load(tmp_path)
    dbt = folder.campaign.dbt.replace(artifacts="s3://bucket/target/")
    remote = CampaignFolder("spring", folder.campaign.replace(dbt=dbt), SQL, folder.path)
    asked: list[str] = []

    def read(path: str) -> bytes:
        asked.append(path)
        return (project.folder / Path(path).name).read_bytes()

    assert planned(remote, warehouse, read_artifact=read).people == 2
    assert asked[0] == "s3://bucket/target/manifest.json"
    with pytest.raises(CampaignError, match=r"only Airflow reads s3://"):
        planned(remote, warehouse)


def rename(project: Project) -> None:
    columns = project.nodes[BUYERS]["columns"]
    columns["nation"] = {**columns.pop("country"), "name": "nation"}


def retype(project: Project) -> None:
    project.nodes[BUYERS]["columns"]["country"]["data_type"] = "integer"


def build_long_ago(project: Project) -> None:
    project.results[BUYERS] = {"status": "success", "timing": [{"completed_at": "2026-02-27T22:00:00"}]}


def stale_source(project: Project) -> None:
    project.freshness[SOURCE]["status"] = "error"


def source_checked_long_ago(project: Project) -> None:
    project.freshness[SOURCE]["snapshotted_at"] = "2026-02-27T22:00:00Z"


NEEDS_COUNTRY = "audience: {columns: {country: {type: text}}}"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (rename, "the contract of model buyers has no column country"),
        (
            retype,
            "column country has the type integer in the contract of model buyers, but audience.columns expects text",
        ),
        (
            build_long_ago,
            "model buyers was built at 2026-02-27 22:00 UTC, 2 days 2 h ago; dbt.fresh_within allows 1 day",
        ),
        (lambda it: it.results.pop(BUYERS), "run_results.json has no build of model buyers. Run dbt build"),
        (
            lambda it: it.results[BUYERS].update(status="error"),
            "the last build of model buyers ended with error",
        ),
        (
            lambda it: it.results[TEST].update(status="fail"),
            "test unique_buyers of model buyers ended with fail",
        ),
        (
            lambda it: it.results[TEST].update(status="skipped"),
            "test unique_buyers of model buyers ended with skipped",
        ),
        (
            lambda it: it.results.pop(TEST),
            "run_results.json has no result of test unique_buyers of model buyers",
        ),
        (stale_source, "the freshness of source shop.devices ended with error"),
        (
            source_checked_long_ago,
            "the freshness of source shop.devices was checked at 2026-02-27 22:00 UTC, 2 days 2 h ago",
        ),
        (
            lambda it: it.freshness.clear(),
            "sources.json has no freshness of source shop.devices. Run dbt source",
        ),
        (
            lambda it: it.nodes[BUYERS].update(config={}),
            "model buyers has no enforced contract. Add contract: {enforced: true} in dbt, or set dbt.contract: false",
        ),
    ],
)
def test_a_model_that_is_not_ready_stops_its_campaigns_before_a_row_is_read_and_no_other(
    tmp_path: Path,
    project: Project,
    warehouse: str,
    ledger: Ledger,
    change: Callable[[Project], Any],
    problem: str,
) -> None:
    change(project)
    project.write()
    folder = load(tmp_path, NEEDS_COUNTRY, "SELECT device_id, country FROM {{ ref('buyers') }}")
    with pytest.raises(GateError) as error:
        prepare_launch(ledger, folder, period=PERIOD, warehouses=unread, now=NOW)
    assert str(error.value).startswith(f"campaign spring: nothing was sent: {problem}")
    assert next(each.why for each in ledger.not_launched.newest()).startswith(f"dbt: {problem}")
    other = load(tmp_path, "", SQL.replace("buyers", "others"))
    assert planned(other, warehouse).people == 2


def test_compiled_models_are_not_built_and_compiled_tests_have_not_passed(
    tmp_path: Path, project: Project, ledger: Ledger
) -> None:
    project.command = "generate"  # of dbt docs generate
    project.results[TEST]["status"] = "success"
    project.write()
    with pytest.raises(GateError) as error:
        prepare_launch(ledger, load(tmp_path, ""), period=PERIOD, warehouses=unread, now=NOW)
    assert "run_results.json has no build of model buyers. Run dbt build" in str(error.value)
    assert "run_results.json has no result of test unique_buyers of model buyers" in str(error.value)


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        (build_long_ago, "fresh_within: {length: 3, unit: days}"),
        (build_long_ago, "fresh_within: null"),
        # without a timing, the time of the file counts
        (lambda it: it.results[BUYERS].update(timing=[]), "fresh_within: {length: 1, unit: days}"),
        (stale_source, "fresh_within: null"),
        (lambda it: it.results[TEST].update(status="warn"), "tests: warn"),
        (lambda it: it.results[TEST].update(status="fail"), "tests: ignore"),
        (lambda it: it.nodes[BUYERS].update(config={}), "contract: false"),
    ],
)
def test_each_gate_can_be_opened_on_purpose(
    tmp_path: Path, project: Project, warehouse: str, change: Callable[[Project], Any], setting: str
) -> None:
    change(project)
    project.write()
    folder = load(tmp_path)
    (folder.path / "campaign.yaml").write_text(TEXT.replace("../target", f"../target, {setting}"))
    assert planned(load_campaign(folder.path), warehouse).people == 2


def test_a_warning_stops_a_campaign_that_accepts_none(tmp_path: Path, project: Project) -> None:
    project.results[TEST]["status"] = "warn"
    project.write()
    folder = load(tmp_path)
    (folder.path / "campaign.yaml").write_text(TEXT.replace("../target", "../target, tests: pass"))
    with pytest.raises(GateError, match="ended with warn"):
        planned(load_campaign(folder.path), "sqlite://")


def test_a_column_that_the_query_makes_needs_no_contract(
    tmp_path: Path, project: Project, warehouse: str
) -> None:
    rename(project)
    project.write()
    sql = "SELECT device_id, 'IE' AS country FROM {{ ref('buyers') }}"
    assert planned(load(tmp_path, NEEDS_COUNTRY, sql), warehouse).people == 2


@pytest.mark.parametrize(
    ("declared", "type_"),
    [
        ("NUMBER(38,0)", "integer"),
        ("number(10, 2)", "number"),
        ("int64", "number"),
        ("character varying(80)", "text"),
        ("timestamp with time zone", "timestamp"),
        ("some_enum", "text"),
    ],
)
def test_types_of_the_usual_warehouses_fit(
    tmp_path: Path, project: Project, declared: str, type_: str
) -> None:
    project.nodes[BUYERS]["columns"]["country"]["data_type"] = declared
    project.write()
    folder = load(tmp_path, f"audience: {{columns: {{country: {{type: {type_}}}}}}}")
    with pytest.raises(AssertionError, match="the warehouse was opened"):
        plan_launch(None, folder, period=PERIOD, warehouses=unread, now=NOW)


def test_versions_ephemeral_models_and_unknown_names(
    tmp_path: Path, project: Project, warehouse: str
) -> None:
    old = {
        **model("buyers", device_id="int"),
        "unique_id": "model.shop.buyers.v1",
        "version": 1,
        "latest_version": 2,
    }
    project.nodes[old["unique_id"]] = {**old, "relation_name": "others"}
    project.nodes[BUYERS] |= {"version": 2, "latest_version": 2}
    project.nodes[OTHERS]["relation_name"] = None
    project.results["model.shop.buyers.v1"] = project.results[BUYERS]
    project.write()
    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as db, db:
        db.execute("INSERT INTO others VALUES (3, 'DE')")
    assert planned(load(tmp_path), warehouse).people == 2
    for version, people in (("1", 3), ("'1'", 3), ("2", 2)):
        sql = f"SELECT device_id FROM {{{{ ref('buyers', v={version}) }}}}"
        assert planned(load(tmp_path, "", sql), warehouse).people == people
    for name, problem in (
        ("others", "dbt makes no table or view of ref('others')"),
        ("buyer", r"the manifest has no ref('buyer') (did you mean 'buyers'?). Correct the name, or run dbt"),
    ):
        with pytest.raises(CampaignError) as error:
            planned(load(tmp_path, "", f"SELECT device_id FROM {{{{ ref('{name}') }}}}"), warehouse)
        assert problem in str(error.value)


def test_a_manifest_that_is_missing_or_damaged_is_an_error(tmp_path: Path, project: Project) -> None:
    folder = load(tmp_path)
    with pytest.raises(CampaignError, match=r"manifest.json: there is no manifest. Run dbt"):
        planned(folder, "sqlite://")
    project.write()
    (project.folder / "manifest.json").write_text("{")
    with pytest.raises(CampaignError, match=r"manifest.json: the file cannot be read \(it is damaged\)"):
        planned(folder, "sqlite://")


@pytest.mark.parametrize(
    ("more", "sql", "problem"),
    [
        ("", "SELECT {{ var('x') }} FROM {{ ref('buyers') }}", "audience.sql:1: found Jinja"),
        (
            "dbt",
            "SELECT device_id\nFROM {{ ref('a') }}",
            "audience.sql:2: found ref('a') of dbt without dbt.artifacts",
        ),
        (
            "dbt\naudience: {source: {kind: dbt_model, name: a}}",
            None,
            "found kind: dbt_model without dbt.artifacts",
        ),
        (
            "audience: {source: {kind: dbt_model, name: a}}",
            SQL,
            "found a query with audience.source.kind: dbt_model",
        ),
        (
            "audience: {source: {kind: dbt_model, name: a}, partitions: 2}",
            None,
            "found partitions with source.kind: dbt_model",
        ),
    ],
)
def test_mistakes_are_found_before_dbt_is_asked(
    tmp_path: Path, more: str, sql: str | None, problem: str
) -> None:
    load(tmp_path)
    folder = tmp_path / "campaigns/spring"
    text = TEXT.replace("dbt: {artifacts: ../target}", "") if more.startswith("dbt") else TEXT
    (folder / "campaign.yaml").write_text(text + more.removeprefix("dbt"))
    (folder / "audience.sql").unlink()
    if sql:
        (folder / "audience.sql").write_text(sql)
    with pytest.raises(SendoffError) as error:
        load_campaign(folder)
    assert problem in str(error.value)
