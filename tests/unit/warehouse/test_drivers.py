"""What all drivers have in common: a missing package, and a server that does not answer."""

from __future__ import annotations

import sys
import traceback

import pytest

from sendoff.errors import WarehouseUnavailableError

from .reading import audience, refusal


@pytest.mark.parametrize(
    ("url", "modules", "title"),
    [
        ("bigquery://shop", "google.cloud.bigquery google.cloud.bigquery_storage", "BigQuery"),
        ("clickhouse://ann@db/sales", "clickhouse_connect", "ClickHouse"),
        ("databricks://token:x@db/sales?http_path=/x", "databricks databricks.sql", "Databricks"),
        ("duckdb:///shop.duckdb", "duckdb", "DuckDB"),
        ("mysql://ann@db/sales", "pymysql MySQLdb", "MySQL"),
        ("redshift://ann@db/sales", "psycopg", "Redshift"),
        ("trino://ann@db/sales", "trino trino.dbapi trino.sqlalchemy", "Trino"),
    ],
)
def test_without_its_driver_the_extra_is_named(
    url: str, modules: str, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in modules.split():
        monkeypatch.setitem(sys.modules, module, None)
    said = refusal(url, "SELECT 1 AS device_id")
    assert f"the driver of {title} is not installed" in said
    assert f"pip install 'airflow-provider-sendoff[{title.lower()}]'" in said


@pytest.mark.proof
@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("bigquery://shop/sales?api_endpoint=http://127.0.0.1:{port}", "google.cloud.bigquery_storage"),
        ("clickhouse://ann:pa55word@127.0.0.1:{port}/default", "clickhouse_connect"),
        ("databricks://token:pa55word@127.0.0.1:{port}/sales?http_path=/x", "databricks.sql"),
        ("databricks://principal:pa55word@127.0.0.1:{port}/sales?http_path=/x", "databricks.sql"),
        ("mariadb://ann:pa55word@127.0.0.1:{port}/shop", "pymysql"),
        ("redshift://ann:pa55word@127.0.0.1:{port}/sales", "psycopg"),
        ("trino://ann@127.0.0.1:{port}/sales", "trino"),
        ("trino://ann:pa55word@127.0.0.1:{port}/sales", "trino"),
    ],
)
def test_where_nothing_answers_it_may_be_tried_again(url: str, package: str, free_port: int) -> None:
    pytest.importorskip(package, reason="needs the driver: see constraints.txt")
    with pytest.raises(WarehouseUnavailableError, match="Connection refused") as caught:
        audience(url.format(port=free_port), "SELECT 1 AS device_id")
    assert "pa55word" not in "".join(traceback.format_exception(caught.value))
