"""The operators that export results: to tables of a warehouse, to files, and as comparisons of outcomes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from sendoff.errors import CampaignError, SendoffError
from sendoff_airflow.errors import TaskEndedError, translate_errors
from sendoff_airflow.ledger_operator import LaunchOperator, QueryingOperator, author_of
from sendoff_airflow.operators.recipients import absolute, campaigns_in

if TYPE_CHECKING:
    from sendoff.campaign import Campaign
    from sendoff.comparison import Comparison
    from sendoff.ledger import LaunchRecord, Ledger

# The rows in a warehouse get this old before those of a newer report replace them.
_LEAST_AGE = timedelta(hours=1)


class WriteVerdictsOperator(LaunchOperator):
    """Write a row for each person of a launch to a table of a warehouse: the verdict, the variant, the segment.

    One transaction replaces the rows of this launch and leaves all others. The operator can be retried, and can run
    after every report. The verdicts are those of the newest report, so place it after ReconcileOperator. Return
    ``launch_key``, ``table`` and the number of ``rows``.

    :param table: the table, ``NAME`` or ``SCHEMA.NAME``; created if it does not exist (templated)
    :param warehouse_conn_id: the connection of the warehouse; its user must be able to write there (templated)
    :param verdict: only people with this verdict, such as ``missing``; default: all (templated)
    """

    template_fields: Sequence[str] = ("launch_key", "table", "warehouse_conn_id", "verdict")

    def __init__(
        self,
        *,
        table: str,
        warehouse_conn_id: str,
        verdict: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.warehouse_conn_id = warehouse_conn_id
        self.verdict = verdict

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Replace the rows of the launch."""
        from sendoff.report import VerdictRows, verdict_named, write_table
        from sendoff_airflow.hooks.warehouse import warehouse_source

        only = verdict_named(self.verdict, "verdict") if self.verdict else None
        with self.open_ledger() as ledger:
            result = VerdictRows.of(ledger, self.launch_key, only, who=author_of(context))
            rows = write_table(result, warehouse_source(self.warehouse_conn_id), self.table)
        self.log.info("launch %s: %d rows in table %s", self.launch_key, rows, self.table)
        return {"launch_key": self.launch_key, "table": self.table, "rows": rows}


class WriteTablesOperator(LaunchOperator):
    """Write the results of a launch into tables of a warehouse that all campaigns share, from the newest report.

    The tables are ``sendoff_launches``, ``sendoff_verdicts`` and ``sendoff_comparisons``. One transaction replaces the
    rows of this launch and leaves all others. The operator can be retried, and can run after every report. Return
    ``launch_key``, ``schema`` and the number of ``rows`` of each table.

    :param schema: the schema of the tables, which must exist; default: the connection's own (templated)
    :param warehouse_conn_id: the connection of the warehouse, whose user must be able to write there; default: the
        campaign's ``report.tables_warehouse``, or else the warehouse of the launch (templated)
    :param dbt: the path of dbt's source file of the tables, which is written if it changed; it needs ``schema``;
        default: none (templated)
    """

    template_fields: Sequence[str] = ("launch_key", "schema", "warehouse_conn_id", "dbt")

    def __init__(
        self,
        *,
        warehouse_conn_id: str | None = None,
        schema: str | None = None,
        dbt: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if dbt is not None and schema is None:
            raise ValueError(f"Task {self.task_id}: dbt needs schema, the schema of the tables.")
        self.warehouse_conn_id = warehouse_conn_id
        self.schema = schema
        self.dbt = dbt

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Replace the rows of the launch."""
        from sendoff.report import write_dbt_sources

        with self.open_ledger() as ledger:
            rows = _write_tables(
                ledger, self.launch_key, self.warehouse_conn_id, self.schema or None, who=author_of(context)
            )
        self.log.info("launch %s: rows in the tables: %s", self.launch_key, rows)
        if self.dbt and self.schema and write_dbt_sources(self.schema, Path(self.dbt)):
            self.log.info("dbt's source file is written: %s", self.dbt)
        return {"launch_key": self.launch_key, "schema": self.schema, "rows": rows}


class RenewTablesOperator(QueryingOperator):
    """Write the results of each launch again whose report changed since its campaign's DAG wrote its tables.

    If its campaign still has ``outcome.sql``, the outcomes are measured again before. If that fails, the tables keep
    the earlier comparison until the report changes again. A launch is written at most once an hour, because each time
    replaces all its rows. If the warehouse of a launch fails, the others are still written. After any failure, the task
    fails at its end. Return the number of launches ``written``.

    :param campaigns: the folder of the campaigns' folders; default: measure no outcomes
    """

    def __init__(self, *, campaigns: str | Path | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.campaigns = None if campaigns is None else str(campaigns)

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002
        """Write the tables whose rows are older than the report."""
        from sendoff.campaign import Campaign

        written = 0
        failures: list[Exception] = []
        with self.open_ledger() as ledger:
            for launch_key in ledger.verdicts.with_old_tables(datetime.now(UTC) - _LEAST_AGE):
                with self._noted(launch_key, failures):
                    launch = ledger.launches.get(launch_key)
                    if schema := Campaign.frozen(launch.definition).report.tables:
                        with self._noted(launch_key, failures):
                            self._measure(ledger, launch)
                        _write_tables(ledger, launch_key, None, schema)
                        written += 1
        if failures:
            raise failures[0]
        return {"written": written}

    @contextmanager
    def _noted(self, launch_key: str, failures: list[Exception]) -> Iterator[None]:
        """Log an error of a launch and add it to ``failures``, unless Airflow ended the task."""
        try:
            yield
        except TaskEndedError:
            raise
        except (SendoffError, AirflowException, OSError) as error:
            self.log.error("launch %s: %s", launch_key, error)
            failures.append(error)

    def _measure(self, ledger: Ledger, launch: LaunchRecord) -> None:
        """Measure the outcomes of a launch again, if its campaign has a query of them."""
        from sendoff.campaign import campaign_folders

        if self.campaigns:
            found = campaign_folders(campaigns_in(self.campaigns, self.dag.folder))
            folders = [folder for folder in found if (folder / "outcome.sql").is_file()]
            own = [folder for folder in folders if folder.name == launch.campaign]
            for folder in own or [each for each in folders if launch.campaign in self._earlier_names(each)]:
                _measured(ledger, launch.launch_key, folder, None)

    def _earlier_names(self, folder: Path) -> Collection[str]:
        """Return the earlier names of a campaign. If its folder has mistakes, log them and return none."""
        from sendoff.campaign import load_campaign

        try:
            return load_campaign(folder).campaign.formerly
        except CampaignError as error:
            self.log.error("The outcomes of launches under earlier names are not measured: %s", error)
            return ()


class MeasureOutcomeOperator(LaunchOperator, QueryingOperator):
    """Compare what the people of each variant and of the holdout did after a launch, according to the warehouse.

    The query is ``outcome.sql`` in the campaign's folder. If the folder has ``before.sql`` too, it adjusts means by
    what they did before the launch. Return the comparison: counts, shares or means, and intervals for each side. The
    task's log and the page of the launch show the same.

    :param folder: the campaign's folder
    :param warehouse_conn_id: the connection that the queries run on; default: the warehouse of the launch (templated)
    """

    template_fields: Sequence[str] = ("launch_key", "warehouse_conn_id")

    def __init__(
        self,
        *,
        folder: str | Path,
        warehouse_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.folder = str(folder)
        self.warehouse_conn_id = warehouse_conn_id

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Run the query and compare the sides."""
        from sendoff.report import as_text, describe_comparison

        with self.open_ledger() as ledger:
            folder = absolute(Path(self.folder), self.dag.folder)
            result = _measured(ledger, self.launch_key, folder, self.warehouse_conn_id)
        self.log.info("\n%s", as_text(describe_comparison(result)))
        return result.to_json()


class ReportFileOperator(LaunchOperator, QueryingOperator):
    """Write the newest report of a launch as one HTML page, for people without access to Airflow.

    The page compares the variants, and also the outcomes if ``folder`` is given. The campaign and the launch name the
    file, so a later report replaces an earlier one. Return its path.

    :param reports: a folder that the worker can write to; created if it does not exist (templated)
    :param folder: the campaign's folder with ``outcome.sql``, and optionally ``before.sql``; default: do not compare
        outcomes
    :param warehouse_conn_id: the connection that both run on; default: the warehouse of the launch (templated)
    """

    template_fields: Sequence[str] = ("launch_key", "reports", "warehouse_conn_id")

    def __init__(
        self,
        *,
        reports: str,
        folder: str | Path | None = None,
        warehouse_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reports = reports
        self.folder = None if folder is None else str(folder)
        self.warehouse_conn_id = warehouse_conn_id

    @translate_errors
    def execute(self, context: Context) -> str:  # noqa: ARG002
        """Write the page."""
        from sendoff.comparison import comparisons_of
        from sendoff.report import describe_launch, write_html

        with self.open_ledger() as ledger:
            figures = ledger.verdicts.figures(self.launch_key)
            title = ledger.launches.get(self.launch_key).title
            comparisons = comparisons_of(ledger, figures)
            if self.folder:
                folder = absolute(Path(self.folder), self.dag.folder)
                comparisons.append(_measured(ledger, self.launch_key, folder, self.warehouse_conn_id))
        page = Path(self.reports) / f"{figures.campaign}-{figures.launch_key}.html"
        return str(write_html(describe_launch(figures, comparisons, title=title), page))


def _write_tables(
    ledger: Ledger, launch_key: str, conn_id: str | None, schema: str | None, *, who: str | None = None
) -> dict[str, int]:
    from sendoff.report import write_results
    from sendoff_airflow.hooks.warehouse import warehouse_source

    campaign = _campaign(ledger, launch_key)
    conn_id = conn_id or campaign.report.tables_warehouse or campaign.warehouse
    as_of = ledger.verdicts.figures(launch_key).as_of  # before the rows are read, which may be newer
    rows = write_results(ledger, launch_key, warehouse_source(conn_id), schema, who=who)
    if campaign.report.tables:  # others are not renewed
        ledger.verdicts.note_tables(launch_key, as_of)
    return rows


def _campaign(ledger: Ledger, launch_key: str) -> Campaign:
    """Return the campaign of a launch with the warehouse that its audience came from."""
    from sendoff.campaign import Campaign

    return Campaign.frozen(ledger.launches.get(launch_key).definition)


def _measured(ledger: Ledger, launch_key: str, folder: Path, conn_id: str | None) -> Comparison:
    from sendoff.campaign import load_campaign
    from sendoff.report import measure_outcome, store_outcome
    from sendoff_airflow.hooks.warehouse import warehouse_source

    loaded = load_campaign(folder)
    source = warehouse_source(conn_id or _campaign(ledger, launch_key).warehouse)
    compared = measure_outcome(ledger, launch_key, source, loaded.needed_outcome_sql(), loaded.before_sql)
    store_outcome(ledger, launch_key, compared)
    return compared
