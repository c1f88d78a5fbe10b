"""Files for a dbt project: the result tables as sources, and the campaigns that read its models as exposures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sendoff.errors import CampaignError
from sendoff.report.result_tables import LAUNCHES, RESULT_TABLES, ResultColumn, ResultTable
from sendoff.report.table_writer import table_name
from sendoff.report.whole_file import whole_file

if TYPE_CHECKING:
    from sendoff.campaign import CampaignFolder


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


def write_dbt_sources(schema: str, path: Path) -> bool:
    """Write the source file of dbt for the result tables, unless it is up to date. Return whether it was written.

    Raise SettingsError if it cannot be written.
    """
    text = dbt_sources(schema).encode()
    try:
        if path.read_bytes() == text:
            return False
    except OSError:  # writing it says why, if it is not just missing
        pass
    with whole_file(path, 0o644) as file:
        file.write(text)
    return True


def dbt_exposures(campaigns: Iterable[CampaignFolder]) -> str:
    """Return the exposures of dbt, as YAML: each campaign whose queries name dbt models or sources, by name.

    Raise CampaignError if two campaigns have the same name in dbt, which only allows letters, digits and ``_``.
    """
    exposures: dict[str, dict[str, Any]] = {}
    for folder in sorted(campaigns, key=lambda each: each.name):
        if not (references := folder.dbt_references()):
            continue
        name = re.sub(r"\W", "_", folder.name, flags=re.ASCII)
        if name in exposures:
            raise CampaignError(
                f"campaign {folder.name}: another campaign is called {name} in dbt. Rename one"
            )
        campaign = folder.campaign
        when = (
            f"on the schedule {campaign.schedule} ({campaign.schedule_time_zone})"
            if campaign.schedule
            else ""
        )
        exposures[name] = {
            "name": name,
            "label": campaign.title,
            "type": "application",
            "description": f"Campaign {folder.name}, which Sendoff sends {when or 'without a schedule'}",
            "depends_on": [str(reference) for reference in references],
            "owner": {"name": campaign.owner},
        }
    document = {"version": 2, "exposures": list(exposures.values())}
    return yaml.safe_dump(document, sort_keys=False, width=100, allow_unicode=True)


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
