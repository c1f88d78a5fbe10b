"""Lineage for OpenLineage: warehouse tables, audience, launch, report.

Airflow's OpenLineage provider asks the operators for lineage when a task starts and ends, in a process that cannot
always reach Airflow. So a task builds its lineage while it runs, if OpenLineage is enabled. The events name tables and
campaigns and carry counts. They hold no identifiers and no message text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sendoff.errors import SendoffError

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset, RunFacet
    from airflow.providers.openlineage.extractors import OperatorLineage

    from sendoff.campaign import CampaignFolder

    Lineage = OperatorLineage[Any, Any]

FACET = "sendoff_launch"
SCHEMA = "urn:sendoff:openlineage:LaunchRunFacet:1-0-0"
"""The ``$id`` of docs/schemas/LaunchRunFacet.json, which describes the facet."""

_log = logging.getLogger(__name__)


def lineage_enabled() -> bool:
    """Check whether OpenLineage's provider is installed and configured to send events."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return False
    return not conf.is_disabled()


def of_query(path: Path) -> Lineage | None:
    """Return the lineage of a task before it freezes an audience: the query."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    from sendoff.campaign import load_campaign

    try:
        folder = load_campaign(path)
    except SendoffError:  # the task itself reports it
        return None
    return OperatorLineage(job_facets=_job_facets(folder))


def _or_nothing(method: Callable[..., Lineage]) -> Callable[..., Lineage | None]:
    """Log errors and return None, so that a failure to build the lineage does not fail a task that did its work."""

    @wraps(method)
    def call(*args: Any) -> Lineage | None:
        try:
            return method(*args)
        except SendoffError as error:
            _log.warning("no lineage for this task: %s", error)
        except Exception as error:  # from hooks and parsers; Sendoff does not control their texts
            _log.warning("no lineage for this task: %s", type(error).__name__)
        return None

    return call


@_or_nothing
def of_audience(
    folder: CampaignFolder, ledger_conn_id: str, facts: Mapping[str, Any], target: str = "audience"
) -> Lineage:
    """Return the lineage of a task that froze an audience, from the tables of its queries to ``target``.

    ``facts``: its asset event.
    """
    from airflow.providers.common.compat.openlineage.facet import Error, ExtractionErrorRunFacet
    from airflow.providers.openlineage.extractors import OperatorLineage

    from sendoff_airflow.lineage.tables import UnknownTablesError

    queries = list(_queries(folder))
    tables: dict[tuple[str, str], Dataset] = {}
    errors: list[Error] = []
    for file, sql, conn_id in queries:
        try:
            tables |= {(table.namespace, table.name): table for table in _tables(sql, conn_id)}
        except UnknownTablesError as error:
            errors.append(Error(errorMessage=str(error), task=file))
    run_facets = _run_facets(facts)
    if errors:
        run_facets["extractionError"] = ExtractionErrorRunFacet(
            totalTasks=len(queries), failedTasks=len(errors), errors=errors
        )
    return OperatorLineage(
        inputs=list(tables.values()),
        outputs=[_dataset(target, folder.name, ledger_conn_id, facts.get("audience"))],
        run_facets=run_facets,
        job_facets=_job_facets(folder),
    )


@_or_nothing
def of_launch(source: str | None, target: str, ledger_conn_id: str, facts: Mapping[str, Any]) -> Lineage:
    """Return the lineage of a task from ``source`` to ``target`` of a campaign. ``facts``: its asset event.

    ``source``: None if nothing comes before the target.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    campaign = facts["campaign"]
    return OperatorLineage(
        inputs=[_dataset(source, campaign, ledger_conn_id)] if source else [],
        outputs=[_dataset(target, campaign, ledger_conn_id, facts.get("audience"))],
        run_facets=_run_facets(facts),
    )


def _job_facets(folder: CampaignFolder) -> dict[str, Any]:
    from airflow.providers.common.compat.openlineage.facet import SQLJobFacet

    return {"sql": SQLJobFacet(query=folder.audience_sql)} if folder.audience_sql else {}


def _dataset(what: str, campaign: str, ledger_conn_id: str, rows: int | None = None) -> Dataset:
    from airflow.providers.common.compat.openlineage.facet import (
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )

    facets: Any = (
        {} if rows is None else {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=rows)}
    )
    return OutputDataset(_ledger_namespace(ledger_conn_id), f"{campaign}/{what}", outputFacets=facets)


def _ledger_namespace(conn_id: str) -> str:
    from sqlalchemy import make_url

    from sendoff_airflow.hooks.ledger import LedgerHook

    url = make_url(LedgerHook(conn_id).url())
    if not url.host:
        return f"sendoff://{Path(url.database or 'ledger').stem}"
    host = f"{url.host}:{url.port}" if url.port else url.host
    return f"sendoff://{host}/{url.database}"


def _run_facets(facts: Mapping[str, Any]) -> dict[str, RunFacet]:
    return {FACET: _facet_class().of(facts)}


@cache
def _facet_class() -> Any:
    import attrs
    from airflow.providers.common.compat.openlineage.facet import RunFacet

    @attrs.define
    class LaunchRunFacet(RunFacet):
        launchKey: str  # noqa: N815  # facets are spelt like this
        campaign: str
        period: str
        state: str | None
        counts: dict[str, Any]

        @classmethod
        def of(cls, facts: Mapping[str, Any]) -> LaunchRunFacet:
            known = ("launch_key", "campaign", "period", "state")
            counts = {name: value for name, value in facts.items() if name not in known}
            return cls(facts["launch_key"], facts["campaign"], facts["period"], facts.get("state"), counts)

        @staticmethod
        def _get_schema() -> str:
            return SCHEMA

    return LaunchRunFacet


def _queries(folder: CampaignFolder) -> Iterator[tuple[str, str, str]]:
    """Yield the queries of a campaign: the file, the SQL, and the connection that it runs on."""
    if folder.audience_sql:
        yield "audience.sql", folder.audience_sql, folder.campaign.warehouse
    for exclusion in folder.campaign.audience.exclude:
        if exclusion.kind == "query":
            conn_id = exclusion.warehouse or folder.campaign.warehouse
            yield exclusion.file, folder.exclusion_sql[exclusion.file], conn_id


def _tables(sql: str, conn_id: str) -> list[Dataset]:
    """Return the tables that a query reads. Raise UnknownTablesError if they are not known."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    from sendoff_airflow.hooks.connections import find_connection
    from sendoff_airflow.lineage.tables import UnknownTablesError, tables_of, warehouse_of

    connection = find_connection(conn_id)
    if connection is None:
        raise UnknownTablesError(f"there is no connection {conn_id}")
    warehouse = warehouse_of(connection)
    tables = tables_of(sql, warehouse.dialect)
    return [Dataset(warehouse.namespace, warehouse.name_of(table)) for table in tables]
