"""The examples of the pages on warehouses do what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sendoff.campaign import load_campaign
from sendoff.warehouse import address_of, is_sqlite_file
from sendoff.warehouse.databases import bigquery, databricks, mysql, redshift, trino
from sendoff.warehouse.databases.clickhouse import OPTIONS, client_options
from sendoff.warehouse.databases.snowflake import driver_options
from sendoff.warehouse.drivers import DRIVERS

REFERENCE = Path(__file__).parents[2] / "docs/reference"
PAGE = (REFERENCE / "warehouses.md").read_text(encoding="utf-8")
PARTS = (REFERENCE / "parallel-reading.md").read_text(encoding="utf-8")
URLS = dict(re.findall(r"^\| (\w+) \| `(\w+://[^`]+)` \|", PAGE, re.MULTILINE))


def test_the_example_is_a_campaign_in_parts(tmp_path: Path) -> None:
    [choice], [sql] = (re.findall(rf"```{kind}\n(.*?)```", PARTS, re.DOTALL) for kind in ("yaml", "sql"))
    message = "title: Spring\nmessage: {title: Hello, text: It is spring}\nchannels:\n  android_push:\n"
    (tmp_path / "campaign.yaml").write_text(message + choice)
    (tmp_path / "audience.sql").write_text(sql)
    assert load_campaign(tmp_path).campaign.audience.partitions == 4


def test_every_url_is_understood() -> None:
    found = {name: address_of(url.replace("…", "x")) for name, url in URLS.items()}
    assert set(found) == {
        "PostgreSQL",
        "SQLite",
        "DuckDB",
        "Snowflake",
        "ClickHouse",
        "MySQL",
        "MariaDB",
        "Trino",
        "Redshift",
        "Databricks",
        "BigQuery",
    }
    assert found["PostgreSQL"].database == "database"
    assert is_sqlite_file(found["SQLite"])
    assert found["SQLite"].database == "/data/shop.db"
    assert found["DuckDB"].database == "/data/shop.duckdb"
    assert driver_options(found["Snowflake"])["adbc.snowflake.sql.role"] == "x"
    assert trino.client_options(found["Trino"])["source"] == "x"
    assert redshift.driver_options(found["Redshift"])["sslmode"] == "x"
    assert databricks.client_options(found["Databricks"])["http_path"] == "x"
    assert set(found["BigQuery"].query) <= set(bigquery.OPTIONS)
    assert found["BigQuery"].database == "dataset"
    assert mysql.driver_options(found["MySQL"])["ssl_ca"] == "x"
    assert mysql.driver_options(found["MariaDB"])["database"] == "database"
    assert client_options(found["ClickHouse"])["settings"] == {"max_execution_time": "60"}


@pytest.mark.parametrize("name", ["host", "port", "protocol", "warehouse", "role", "region", "authenticator"])
def test_every_choice_of_snowflake_is_on_the_page(name: str) -> None:
    assert driver_options(address_of(f"snowflake://ann@org-shop?{name}=oauth"))
    assert f"`{name}`" in PAGE or f"?{name}=" in PAGE or f"&{name}=" in PAGE


@pytest.mark.parametrize(
    "name",
    [*OPTIONS, *mysql.OPTIONS, *trino.OPTIONS, *redshift.OPTIONS, *databricks.OPTIONS, *bigquery.OPTIONS],
)
def test_every_option_of_a_driver_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_driver_is_on_the_page() -> None:
    for driver in DRIVERS:
        assert f"| {driver.title} | `{driver.backend}://" in PAGE
        assert not driver.extra or f"| `.[{driver.extra}]` |" in PAGE
