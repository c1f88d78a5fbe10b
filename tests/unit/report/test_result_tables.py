"""Results in the warehouse: three tables, with the rows of each launch once, and the source file of dbt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlalchemy as sa
import yaml

from sendoff.audience.identifiers import Identifiers, integers, strings
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Variation
from sendoff.comparison.statistics import compared_shares
from sendoff.errors import ConflictError, NotFoundError, PermanentError, QueryError, SettingsError
from sendoff.figures import LaunchStats
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import RESULT_TABLES, dbt_sources, store_outcome, write_dbt_sources, write_results
from sendoff.report.export import VerdictRows
from sendoff.states import Accepted, Arm, Verdict
from sendoff.warehouse import read

from ...factories import KEY, NOW, make_audience, make_campaign, make_launch, post_back, send, store
from ...two_variants import launch as launch_of_two
from ...two_variants import write_campaign
from ...waiting import PATIENCE, until
from .warehouses import KINDS, asked, new_warehouse

SCHEMA = "analytics"


@pytest.fixture
def ledger(migrated_url: str) -> Iterator[Ledger]:
    """An empty ledger on SQLite. Its database makes no difference to a warehouse."""
    with closing(Ledger(migrated_url)) as ledger:
        yield ledger


@pytest.fixture(params=KINDS)
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty warehouse, as a URL or an engine. DuckDB and PostgreSQL have a schema for the results."""
    with new_warehouse(request, tmp_path, "empty_postgres_url") as source:
        if "sqlite" not in str(source):
            asked(source, f"CREATE SCHEMA {SCHEMA}")
        yield source


def schema_of(warehouse: Any) -> str:
    return "main" if "sqlite" in str(warehouse) else SCHEMA


def contents(warehouse: Any) -> dict[str, list[tuple[Any, ...]]]:
    schema = schema_of(warehouse)
    return {
        each.name: sorted(asked(warehouse, f"SELECT * FROM {schema}.{each.name}"), key=repr)
        for each in RESULT_TABLES
    }


def row_of(warehouse: Any, table: str, where: str = "1 = 1") -> dict[str, Any]:
    names = next(each.schema.names for each in RESULT_TABLES if each.name == table)
    query = f"SELECT {', '.join(names)} FROM {schema_of(warehouse)}.{table} WHERE {where}"
    (row,) = asked(warehouse, query)
    return dict(zip(names, row, strict=True))


@pytest.fixture
def two(ledger: Ledger, tmp_path: Path) -> LaunchStats:
    """A launch with two variants of fifty devices and a holdout of ten. Thirty devices opened one variant."""
    launch_of_two(ledger, write_campaign(tmp_path / "spring"), held_out=10)
    first = ledger.dispatch_queries.of_launch(KEY)[0].dispatch_key
    store(ledger, *(post_back(first, "open", who) for who in range(1, 31)))
    figures = reconcile_launch(ledger, KEY, now=NOW)
    bought = compared_shares("converted", [("blue", 20, 50), ("red", 5, 50)])
    store_outcome(ledger, KEY, bought)
    return figures


@pytest.mark.proof
def test_identifiers_that_differ_in_case_or_accents_are_several_rows_on_mysql(
    ledger: Ledger, mariadb_url: str
) -> None:
    make_launch(ledger, strings(["Abc", "abc", "\xe1bc", "abd"]))
    reconcile_launch(ledger, KEY, now=NOW)
    engine = sa.create_engine(mariadb_url.replace("mariadb:", "mysql+pymysql:"))
    try:
        # As an engine, and as the URLs that queries are read from.
        for source in (engine, mariadb_url, mariadb_url.replace("mariadb:", "mysql:")):
            rows = write_results(ledger, KEY, source, None)
            assert rows["sendoff_verdicts"] == 4
        with engine.begin() as connection:
            found = connection.scalars(sa.text("SELECT identifier FROM sendoff_verdicts")).all()
            assert sorted(found) == ["Abc", "abc", "abd", "\xe1bc"]
            for each in RESULT_TABLES:
                connection.execute(sa.text(f"DROP TABLE {each.name}"))
        # One transaction: the first table has no row if another one cannot be written.
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE sendoff_verdicts (launch_key CHAR(32))"))
        with pytest.raises(
            QueryError, match="the table sendoff_verdicts exists already and lacks the columns identi"
        ):
            write_results(ledger, KEY, engine, None)
        with engine.begin() as connection:
            assert connection.scalar(sa.text("SELECT count(*) FROM sendoff_launches")) == 0
            for each in RESULT_TABLES:
                connection.execute(sa.text(f"DROP TABLE IF EXISTS {each.name}"))
    finally:
        engine.dispose()


def test_a_comparison_replaces_the_rows_of_one_by_another_column(
    ledger: Ledger, warehouse: Any, two: LaunchStats
) -> None:
    for what in ("converted", "value of converted"):
        store_outcome(ledger, KEY, compared_shares(what, [("blue", 20, 50), ("red", 5, 50)]))
        write_results(ledger, KEY, warehouse, schema_of(warehouse))
        metrics = asked(warehouse, f"SELECT metric FROM {schema_of(warehouse)}.sendoff_comparisons")
        assert sorted(metrics) == sorted([(what,), ("engaged",)])


def test_each_table_has_the_rows_of_the_launch(ledger: Ledger, warehouse: Any, two: LaunchStats) -> None:
    rows = write_results(ledger, KEY, warehouse, schema_of(warehouse), who="ann")
    export = ledger.audit_log.of_launch(KEY)[-1]
    assert (export.kind, export.who) == ("exported", "ann")
    assert export.detail == {"verdict": None, "people": rows["sendoff_verdicts"]}
    assert rows == {"sendoff_launches": 1, "sendoff_verdicts": 110, "sendoff_comparisons": 2}
    launch = row_of(warehouse, "sendoff_launches")
    assert {name: launch[name] for name in ("launch_key", "campaign", "title", "state", "audience")} == {
        "launch_key": KEY,
        "campaign": "spring",
        "title": "Spring",
        "state": "released",
        "audience": 110,
    }
    assert {each: launch[each] for each in Verdict} == {each: two.verdicts.get(each, 0) for each in Verdict}
    assert launch["held_out"] == 10
    counted = f"SELECT verdict, count(*) FROM {schema_of(warehouse)}.sendoff_verdicts GROUP BY 1"
    assert dict(asked(warehouse, counted)) == {each: count for each, count in two.verdicts.items() if count}
    person = row_of(warehouse, "sendoff_verdicts", "identifier = '7'")
    assert (person["identified_by"], person["verdict"], person["variant"]) == ("device_id", "engaged", "blue")
    converted = row_of(warehouse, "sendoff_comparisons", "metric = 'converted'")
    assert (converted["side"], converted["against"]) == ("red", "blue")
    assert converted["estimate"] == pytest.approx(-0.3)
    assert converted["interval_low"] < -0.3 < converted["interval_high"]
    assert converted["conclusion"]


@pytest.mark.parametrize("warehouse", ["sqlite", "postgresql"], indirect=True)
def test_a_verdict_that_no_post_back_can_show_is_null(ledger: Ledger, warehouse: Any, tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "spring")
    with (folder / "campaign.yaml").open("a") as file:
        file.write("post_backs: {kinds: [delivery]}\n")
    launch_of_two(ledger, folder)
    reconcile_launch(ledger, KEY, now=NOW)
    write_results(ledger, KEY, warehouse, schema_of(warehouse))
    launch = row_of(warehouse, "sendoff_launches")
    assert (launch["engaged"], launch["delivered"]) == (None, 0)


def test_times_compare_with_the_period_of_a_query(ledger: Ledger, warehouse: Any, two: LaunchStats) -> None:
    write_results(ledger, KEY, warehouse, schema_of(warehouse))
    launches = f"{schema_of(warehouse)}.sendoff_launches"
    sql = f"SELECT campaign FROM {launches} WHERE as_of >= :period_start AND as_of < :period_end"
    for start, end, count in ((0, 1, 1), (-1, 0, 0)):
        period = {"period_start": NOW + timedelta(minutes=start), "period_end": NOW + timedelta(minutes=end)}
        with read(warehouse, sql, parameters=period) as batches:
            assert sum(map(len, batches)) == count


def test_writing_twice_leaves_what_writing_once_left(
    ledger: Ledger, warehouse: Any, two: LaunchStats
) -> None:
    write_results(ledger, KEY, warehouse, schema_of(warehouse))
    once = contents(warehouse)
    write_results(ledger, KEY, warehouse, schema_of(warehouse))
    assert contents(warehouse) == once


def test_a_newer_report_replaces_the_rows_of_its_launch_and_no_others(
    ledger: Ledger, warehouse: Any, two: LaunchStats
) -> None:
    other = make_launch(ledger, strings(["ann", "ben"]), name="autumn").launch_key
    send(ledger, other, Accepted(200, 18))
    reconcile_launch(ledger, other, now=NOW)
    for key in (KEY, other):
        write_results(ledger, key, warehouse, schema_of(warehouse))
    first = ledger.dispatch_queries.of_launch(KEY)[0].dispatch_key
    store(ledger, post_back(first, "open", 40))
    reconcile_launch(ledger, KEY)
    write_results(ledger, KEY, warehouse, schema_of(warehouse))
    assert row_of(warehouse, "sendoff_launches", f"launch_key = '{KEY}'")["engaged"] == 31
    assert row_of(warehouse, "sendoff_verdicts", "identifier = '40'")["verdict"] == "engaged"
    found = Counter(row[0] for row in contents(warehouse)["sendoff_verdicts"])
    assert found == {KEY: 110, other: 2}


@pytest.mark.parametrize(
    ("column", "people"),
    [
        ("device_id", integers([2**63 - 1, 5])),
        ("user_id", integers([5, 6])),
        ("user_id", strings(["ann", "bén"])),
        ("external_id", strings(["a'b", 'x"y'])),
        ("device_token", strings(["t0", "t1"])),
        ("device_uuid", strings(["00000000-0000-0000-0000-000000000001", "b"])),
    ],
)
@pytest.mark.parametrize("warehouse", ["sqlite", "duckdb", "postgresql"], indirect=True)
def test_identifiers_of_every_kind_are_texts(
    ledger: Ledger, warehouse: Any, column: str, people: Identifiers
) -> None:
    make_launch(ledger, audience=make_audience(people, identified_by=column), segments=[Segment(people)])
    send(ledger, KEY, Accepted(200, 17))
    reconcile_launch(ledger, KEY, now=NOW)
    write_results(ledger, KEY, warehouse, schema_of(warehouse))
    query = f"SELECT identified_by, identifier FROM {schema_of(warehouse)}.sendoff_verdicts"
    expected = [str(each) for part in people.slices(10) for each in part.values()]
    assert sorted(asked(warehouse, query)) == sorted((column, each) for each in expected)


@pytest.mark.parametrize("warehouse", ["sqlite", "duckdb", "postgresql"], indirect=True)
def test_the_hour_and_the_arm_of_a_recipient_are_in_the_table(ledger: Ledger, warehouse: Any) -> None:
    segments = [
        Segment(integers([1])),
        Segment(integers([2]), arm=Arm.CONTROL),
        Segment(integers([3]), hour=18, arm=Arm.OWN_HOUR),
    ]
    campaign = make_campaign(send={"kind": "now", "own_hours": {}})
    make_launch(ledger, segments=segments, campaign=campaign)
    send(ledger, KEY, *[Accepted(200, 17)] * 3)
    reconcile_launch(ledger, KEY, now=NOW)
    write_results(ledger, KEY, warehouse, schema_of(warehouse))
    query = f"SELECT identifier, hour, arm FROM {schema_of(warehouse)}.sendoff_verdicts"
    assert sorted(asked(warehouse, query)) == [
        ("1", None, None),
        ("2", None, "control"),
        ("3", 18, "own_hour"),
    ]


def test_people_whom_the_service_chose_are_those_in_post_backs(ledger: Ledger, tmp_path: Path) -> None:
    warehouse = f"sqlite:///{tmp_path / 'shop.db'}"
    (tmp_path / "shop.db").touch()
    email = {"from_address": 1, "subject": "Hello", "text": "It is spring"}
    campaign = {"title": "Spring", "channels": {"email": email}, "targeting": {"kind": "broadcast"}}
    make_launch(ledger, campaign=Campaign.model_validate(campaign))
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, post_back(key, "open", 5), post_back(key, "open", 9))
    reconcile_launch(ledger, KEY, now=NOW)
    assert write_results(ledger, KEY, warehouse, None)["sendoff_verdicts"] == 2
    assert row_of(warehouse, "sendoff_launches")["reached_at_most"] is None


def test_a_failure_leaves_all_tables_as_they_were(
    ledger: Ledger, warehouse: Any, two: LaunchStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(ledger, KEY, warehouse, schema_of(warehouse))
    before = contents(warehouse)
    right = VerdictRows.of(ledger, KEY)
    wrong = replace(right, figures=replace(two, verdicts={**two.verdicts, "engaged": 1}))
    monkeypatch.setattr(VerdictRows, "of", lambda *_, **__: wrong)
    with pytest.raises(PermanentError, match="DO NOT ADD UP"):
        write_results(ledger, KEY, warehouse, schema_of(warehouse))
    assert contents(warehouse) == before


def test_a_launch_without_a_report_is_not_written(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError):
        write_results(ledger, KEY, "sqlite:////nosuch/x.db", None)


@pytest.fixture
def role(empty_postgres_url: str) -> Iterator[tuple[str, str, str]]:
    """A schema, a user of PostgreSQL without rights in it, and the URL of that user."""
    url = sa.make_url(empty_postgres_url)
    name = f"reader_{url.database}"
    asked(empty_postgres_url, f"CREATE ROLE {name} LOGIN PASSWORD 'hunter2'")
    asked(empty_postgres_url, f"CREATE SCHEMA {SCHEMA}")
    url = url.set(username=name, password="hunter2")
    yield empty_postgres_url, name, url.render_as_string(hide_password=False)
    asked(empty_postgres_url, f"DROP OWNED BY {name}")
    asked(empty_postgres_url, f"DROP ROLE {name}")


@pytest.mark.parametrize("is_engine", [False, True])
def test_the_statements_of_the_error_give_a_user_of_postgresql_the_missing_rights(
    ledger: Ledger, two: LaunchStats, role: tuple[str, str, str], is_engine: bool
) -> None:
    owner, _, url = role
    source = sa.create_engine(url) if is_engine else url
    with pytest.raises(SettingsError) as failed:
        write_results(ledger, KEY, source, SCHEMA)
    text = str(failed.value)
    assert f"permission denied for schema {SCHEMA}" in text
    assert "report.tables_warehouse" in text
    assert "hunter2" not in text
    for statement in text.split("database: ")[1].split(". If another", maxsplit=1)[0].split("; "):
        asked(owner, statement)
    write_results(ledger, KEY, source, SCHEMA)
    if isinstance(source, sa.Engine):
        source.dispose()


def test_a_user_without_the_right_to_create_tables_can_write_to_those_of_others(
    ledger: Ledger, two: LaunchStats, role: tuple[str, str, str]
) -> None:
    owner, name, url = role
    write_results(ledger, KEY, owner, SCHEMA)
    asked(owner, f"GRANT USAGE ON SCHEMA {SCHEMA} TO {name}")
    with pytest.raises(SettingsError, match="permission denied for table sendoff_launches") as failed:
        write_results(ledger, KEY, url, SCHEMA)
    asked(owner, str(failed.value).split("also run: ")[1].split(". ")[0])
    write_results(ledger, KEY, url, SCHEMA)


def test_a_schema_that_does_not_exist_is_a_clear_error(
    ledger: Ledger, two: LaunchStats, empty_postgres_url: str
) -> None:
    with pytest.raises(SettingsError, match="CREATE SCHEMA IF NOT EXISTS nosuch"):
        write_results(ledger, KEY, empty_postgres_url, "nosuch")


def test_a_second_writer_at_the_same_time_is_told_to_try_again(
    ledger: Ledger, two: LaunchStats, empty_postgres_url: str
) -> None:
    other = make_launch(ledger, strings(["ann"]), name="autumn").launch_key
    send(ledger, other, Accepted(200, 18))
    reconcile_launch(ledger, other, now=NOW)
    write_results(ledger, other, empty_postgres_url, "public")
    names = ", ".join(RESULT_TABLES[0].schema.names)
    copied = f"INSERT INTO sendoff_launches ({names}) SELECT {names.replace('launch_key', ':key', 1)} FROM "
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    engine = sa.create_engine(empty_postgres_url)
    with ThreadPoolExecutor() as pool, engine.begin() as first:
        first.execute(sa.text(f"{copied} sendoff_launches"), {"key": KEY})
        second = pool.submit(write_results, ledger, KEY, empty_postgres_url, "public")
        until(lambda: asked(empty_postgres_url, waits) != [(0,)])
        first.commit()
        with pytest.raises(ConflictError, match="Another process writes"):
            second.result(PATIENCE)
    engine.dispose()


@pytest.mark.parametrize("backend", ["sqlite", "duckdb"])
def test_memory_does_not_grow_with_the_people(ledger: Ledger, tmp_path: Path, backend: str) -> None:
    file = tmp_path / "shop.db"
    duckdb.connect(str(file)).close() if backend == "duckdb" else file.touch()
    people = integers(range(1, 300_001))
    make_launch(ledger, people, segments=[Segment(people, Variation())])
    send(ledger, KEY, Accepted(200, 17))
    reconcile_launch(ledger, KEY, now=NOW)
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        assert write_results(ledger, KEY, f"{backend}:///{file}", None)["sendoff_verdicts"] == 300_000
        most = counted.max_memory()
    finally:
        pa.set_memory_pool(usual)
    assert most < 64 * 2**20  # one batch has 131,072 rows of about 250 bytes


def test_the_source_file_of_dbt_agrees_with_the_tables(
    ledger: Ledger, two: LaunchStats, empty_postgres_url: str
) -> None:
    asked(empty_postgres_url, f"CREATE SCHEMA {SCHEMA}")
    write_results(ledger, KEY, empty_postgres_url, SCHEMA)
    (source,) = yaml.safe_load(dbt_sources(SCHEMA))["sources"]
    assert source["schema"] == SCHEMA
    engine = sa.create_engine(empty_postgres_url)
    inspector = sa.inspect(engine)
    assert sorted(each["name"] for each in source["tables"]) == sorted(inspector.get_table_names(SCHEMA))
    for table in source["tables"]:
        columns = inspector.get_columns(table["name"], SCHEMA)
        assert [each["name"] for each in table["columns"]] == [each["name"] for each in columns]
        assert all(each["description"] for each in table["columns"])
        tested = {each["name"] for each in table["columns"] if "not_null" in each.get("data_tests", [])}
        assert tested == {each["name"] for each in columns if not each["nullable"]}
        for each in table["columns"]:
            for test in each.get("data_tests", []):
                if "accepted_values" in test:
                    found = asked(engine, f"SELECT DISTINCT {each['name']} FROM {SCHEMA}.{table['name']}")
                    values = {value for (value,) in found if value is not None}
                    assert values <= set(test["accepted_values"]["values"])
        key = inspector.get_pk_constraint(table["name"], SCHEMA)["constrained_columns"]
        if len(key) > 1:
            whole = table["data_tests"][0]["unique"]["column_name"]
            duplicates = f"SELECT {whole} FROM {SCHEMA}.{table['name']} GROUP BY 1 HAVING count(*) > 1"
            assert (whole, asked(engine, duplicates)) == (" || '/' || ".join(key), [])
        else:
            assert "unique" in table["columns"][0]["data_tests"]
    engine.dispose()


def test_the_source_file_of_dbt_lists_the_verdicts_of_reports() -> None:
    (source,) = yaml.safe_load(dbt_sources(SCHEMA))["sources"]
    (column,) = (each for table in source["tables"] for each in table["columns"] if each["name"] == "verdict")
    assert {"accepted_values": {"values": [each.value for each in Verdict]}} in column["data_tests"]


def test_the_source_file_of_dbt_is_written_only_if_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "sendoff.yml"
    assert write_dbt_sources("analytics", path)
    assert not write_dbt_sources("analytics", path)
    assert path.read_text() == dbt_sources("analytics")
    assert write_dbt_sources("marketing", path)
    assert path.read_text() == dbt_sources("marketing")
    with pytest.raises(SettingsError, match=r"missing/sendoff\.yml cannot be written"):
        write_dbt_sources("analytics", tmp_path / "missing/sendoff.yml")
