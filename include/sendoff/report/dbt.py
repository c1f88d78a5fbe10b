"""The source file of dbt for the result tables."""

from __future__ import annotations

from typing import Any

import yaml

from sendoff.report.result_tables import LAUNCHES, RESULT_TABLES, ResultColumn, ResultTable
from sendoff.report.table_writer import table_name


def dbt_sources(schema: str) -> str:
    """Return the source file of dbt for the result tables in a schema: columns, descriptions and tests, as YAML.

    Raise SettingsError if the name of the schema is not valid.
    """
    table_name(f"{schema}.{LAUNCHES.name}")
    source = {
        "name": "sendoff",
        "schema": schema,
        "description": "Results of Sendoff's launches, which the campaigns' DAGs write after each report",
        "tables": [_table(each) for each in RESULT_TABLES],
    }
    return yaml.safe_dump({"version": 2, "sources": [source]}, sort_keys=False, width=100)


def _table(table: ResultTable) -> dict[str, Any]:
    keys = [each.name for each in table.columns if each.is_key]
    # A key of several columns is unique as a whole. dbt's own test takes an expression in place of a column.
    whole = {"unique": {"column_name": " || '/' || ".join(keys)}}
    return {
        "name": table.name,
        "description": table.description,
        **({"data_tests": [whole]} if len(keys) > 1 else {}),
        "columns": [_column(each, is_only_key=keys == [each.name]) for each in table.columns],
    }


def _column(column: ResultColumn, *, is_only_key: bool) -> dict[str, Any]:
    tests: list[Any] = [] if column.is_optional else ["not_null"]
    if is_only_key:
        tests.append("unique")
    elif column.name == "launch_key":
        target = {"to": f"source('sendoff', '{LAUNCHES.name}')", "field": "launch_key"}
        tests.append({"relationships": target})
    if column.values:
        tests.append({"accepted_values": {"values": [str(each) for each in column.values]}})
    described = {"name": column.name, "description": column.description}
    return described | ({"data_tests": tests} if tests else {})
