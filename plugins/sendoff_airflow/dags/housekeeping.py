"""The DAGs for all campaigns: late post-backs, doubts, the size of the ledger, the suppression list, and tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable, Param

from sendoff.campaign import campaign_folders, is_journey_folder, load_campaign, load_journey
from sendoff.errors import CampaignError
from sendoff_airflow import LEDGER
from sendoff_airflow.arguments import as_callbacks
from sendoff_airflow.dags.group import Callbacks, users
from sendoff_airflow.errors import RETRY_DEFAULTS
from sendoff_airflow.operators import CheckFeedsOperator, ReconcileChangedOperator, ReportHoldsOperator
from sendoff_airflow.operators.assets import POST_BACKS, consume_events_together
from sendoff_airflow.operators.doubts import LaunchesInDoubtOperator, ResolveDoubtsOperator
from sendoff_airflow.operators.maintenance import MaintainOperator
from sendoff_airflow.operators.report import RenewTablesOperator
from sendoff_airflow.operators.send_test import SendTestOperator
from sendoff_airflow.operators.suppression import SuppressOperator


def reconcile_dag(
    schedule: str,
    *,
    dag_id: str = "sendoff_reconcile",
    campaigns: str | Path | None = None,
    on_hold: Callbacks | None = None,
    **dag_options: Any,
) -> DAG:
    """Return the DAG that counts post-backs after a launch's report, and fails if expected post-backs do not arrive.

    It also renews the results in warehouses, at most once an hour for each launch that changed. ``campaigns``: the
    folder of the campaigns. With it, outcomes are measured again before results are renewed, and the DAG also fails
    once when a campaign does not run on its schedule. ``on_hold``: one or more notifiers, called once when a launch is
    held because of its results.
    It runs on ``schedule``, a cron expression in UTC, and after an event of the asset POST_BACKS. ``dag_options`` are
    further arguments of Airflow's DAG.
    """
    clock = AssetOrTimeSchedule(timetable=_clock(schedule), assets=POST_BACKS)
    words = "Reconcile every launch that has new post-backs, and check feed health"
    with _dag(dag_id, "count late post-backs", words, clock, dag_options) as dag:
        ReconcileChangedOperator(
            task_id="reconcile", task_display_name="Count late post-backs", inlets=[POST_BACKS]
        )
        # Without retries, because they would keep the next run from counting post-backs. The next run
        # renews what this run counts.
        RenewTablesOperator(
            task_id="renew_tables",
            task_display_name="Renew the results in warehouses",
            campaigns=campaigns,
            retries=0,
        )
        CheckFeedsOperator(
            task_id="check_feeds", task_display_name="Check that post-backs arrive", campaigns=campaigns
        )
        if notifiers := as_callbacks("on_hold", on_hold):
            ReportHoldsOperator(
                task_id="report_holds", task_display_name="Report launches on hold", notifiers=notifiers
            )
    consume_events_together(dag)
    return dag


def doubts_dag(
    schedule: str | None = None,
    *,
    dag_id: str = "sendoff_doubts",
    people: Sequence[str] | None = None,
    within: timedelta = timedelta(hours=4),
    on_question: Callbacks | None = None,
    **dag_options: Any,
) -> DAG:
    """Return the DAG that settles requests in doubt: one task for each launch with doubts, at most twenty per run.

    It runs on ``schedule``, a cron expression in UTC, but not while another run waits for answers. ``people``: who
    may answer, as user IDs of Airflow's auth manager (with the simple auth manager, the user name). Default: everyone
    with rights in Airflow. Without an answer after ``within``, the requests stay in doubt until the next run.
    ``on_question``: one or more notifiers, called when the DAG asks. ``dag_options`` are further arguments of Airflow's
    DAG.
    """
    if isinstance(people, str) or (people is not None and not people):
        raise ValueError(
            "people: not a list of user IDs. Name at least one, such as people=['maria'], or leave it out."
        )
    clock = _clock(schedule) if schedule else None
    words = "Settle requests in doubt: it is not known whether the service processed them"
    with _dag(dag_id, "settle requests in doubt", words, clock, dag_options) as dag:
        launches = LaunchesInDoubtOperator(
            task_id="find_launches_in_doubt", task_display_name="Find launches in doubt"
        )
        ResolveDoubtsOperator.partial(
            task_id="resolve_doubts",
            task_display_name="Settle requests in doubt",
            map_index_template="{{ (ti.xcom_pull('find_launches_in_doubt', key='names') or {})[task.launch_key] }}",
            response_timeout=within,
            notifiers=as_callbacks("on_question", on_question),
            assigned_users=users(people) if people else None,
        ).expand(launch_key=launches.output)
    return dag


def maintenance_dag(
    schedule: str,
    *,
    keep: timedelta,
    keep_recipients: timedelta | None = None,
    ledger_conn_id: str = LEDGER,
    dag_id: str = "sendoff_maintenance",
    **dag_options: Any,
) -> DAG:
    """Return the DAG that keeps the ledger small: it deletes post-backs that reports have counted after ``keep``.

    ``keep_recipients``: also delete who was sent to by older launches, whose counts and reports stay.
    It runs on ``schedule``, a cron expression in UTC. ``ledger_conn_id``: the connection of the ledger, with a user who
    owns its tables. ``dag_options`` are further arguments of Airflow's DAG.
    """
    words = "Delete old post-backs that every report has counted"
    with _dag(dag_id, "delete old post-backs", words, _clock(schedule), dag_options) as dag:
        MaintainOperator(
            task_id="maintain",
            task_display_name="Delete old post-backs",
            keep=keep,
            keep_recipients=keep_recipients,
            ledger_conn_id=ledger_conn_id,
        )
    return dag


def suppression_dag(  # noqa: PLR0913 - an interface for users
    schedule: str,
    *,
    recipients: Any,
    source: str,
    reason: str,
    topic: str | None = None,
    channel: str | None = None,
    everything: bool = False,
    most_removed: float = 20,
    warehouse: str = "sendoff_warehouse",
    dag_id: str = "sendoff_suppression",
    **dag_options: Any,
) -> DAG:
    """Return the DAG that makes the entries of one source in the suppression list exactly those of a query or a file.

    It runs on ``schedule``, a cron expression in UTC. ``recipients``: SQL, a ``.sql`` file, or the path or URL of a
    Parquet, CSV or Arrow file. ``source``: the name that the entries keep. ``topic``, ``channel`` and ``everything``
    choose the campaigns; without them, the entries stop every campaign that is not transactional. A run that would
    remove more than ``most_removed`` percent of the entries fails and changes nothing. ``warehouse``: the connection
    that a query reads. ``dag_options`` are further arguments of Airflow's DAG.
    """
    words = "Feed the suppression list from a query or a file"
    with _dag(dag_id, "feed the suppression list", words, _clock(schedule), dag_options) as dag:
        SuppressOperator(
            task_id="suppress",
            task_display_name="Replace the entries of the source",
            recipients=recipients,
            source=source,
            reason=reason,
            topic=topic,
            channel=channel,
            everything=everything,
            most_removed=most_removed,
            warehouse=warehouse,
        )
    return dag


def send_test_dag(
    *,
    campaigns: str | Path,
    recipients: Any,
    dag_id: str = "sendoff_test",
    **dag_options: Any,
) -> DAG:
    """Return the DAG that sends a campaign to a few people of your own, before anyone else gets it.

    Trigger it by hand, and choose the campaign in the form. ``campaigns``: the folder of the campaigns.
    ``recipients``: who gets the tests, with the columns that the messages need: SQL, a ``.sql`` file, or the path or
    URL of a Parquet, CSV or Arrow file. ``dag_options`` are further arguments of Airflow's DAG.
    """
    folder = Path(campaigns)
    titles = dict(_testable(folder))
    params = {  # without a default, so that no one sends the test of another campaign by mistake
        "campaign": Param(type="string", enum=list(titles), values_display=titles, title="Campaign"),
        "variant": Param(
            None, type=["null", "string"], title="Variant", description="Empty: one message for each variant"
        ),
    }
    words = "Send a campaign to a few people of your own"
    with _dag(
        dag_id, "send a test", words, None, {"params": params, "max_active_runs": 16, **dag_options}
    ) as dag:
        SendTestOperator(
            task_id="send_test",
            task_display_name="Send the test",
            campaign=f"{folder}/{{{{ params.campaign }}}}",
            recipients=recipients,
            variant="{{ params.variant or '' }}",
        )
    return dag


def _testable(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the path of each campaign and each step of a journey, from ``folder`` on, with its title and name."""
    for path in campaign_folders(folder):
        place = path.relative_to(folder).as_posix()
        with suppress(CampaignError):
            if is_journey_folder(path):
                journey = load_journey(path)
                steps = zip(journey.journey.steps, journey.campaigns, strict=True)
                found = {f"{place}/{step.name}": each for step, each in steps}
            else:
                found = {place: load_campaign(path, has_audience=False)}
            for name, each in found.items():
                yield name, f"{each.campaign.title} ({name})"


def _clock(schedule: str) -> CronTriggerTimetable:
    return CronTriggerTimetable(schedule, timezone="UTC")


def _dag(dag_id: str, title: str, description: str, schedule: Any, options: Mapping[str, Any]) -> DAG:
    """Return a DAG with one run at a time. ``options``: more arguments, which replace these."""
    defaults = {
        "description": description,
        "schedule": schedule,
        "catchup": False,
        "default_args": RETRY_DEFAULTS,
        "tags": ["sendoff"],
        "dag_display_name": f"Sendoff: {title}",
        "max_active_runs": 1,
    }
    return DAG(dag_id=dag_id, **{**defaults, **options})
