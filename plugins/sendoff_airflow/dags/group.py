"""The tasks of one launch, as a task group for any DAG.

.. code-block:: text

    audience -> preview -> approve -> dispatch (mapped over the workers) -> check_dispatched
                                                                         -> wait_for_post_backs -> report
    report -> measure_outcome (only with outcome.sql) -> write_tables (both only if the campaign sets report.tables)

``audience`` is the setup task of ``report``. So every launch gets a report, even if sending it failed or someone
rejected it. If sending failed, ``check_dispatched`` fails the run, because Airflow takes a run's state from its last
tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Context, TaskGroup
from airflow.sdk.definitions.mappedoperator import MappedOperator

from sendoff.campaign import Campaign, CampaignFolder, did_you_mean
from sendoff.errors import CampaignError
from sendoff_airflow.arguments import as_callbacks
from sendoff_airflow.errors import RETRY_DEFAULTS
from sendoff_airflow.operators import (
    BuildAudienceOperator,
    CheckDispatchedOperator,
    CreateCampaignOperator,
    ExecuteCampaignOperator,
    PreviewOperator,
    ReconcileOperator,
)
from sendoff_airflow.operators.approval import ApproveLaunchOperator
from sendoff_airflow.operators.assets import audience_asset, launch_asset, report_asset
from sendoff_airflow.operators.preparation import name_of, read_campaign
from sendoff_airflow.operators.recipients import absolute
from sendoff_airflow.operators.report import MeasureOutcomeOperator, WriteTablesOperator
from sendoff_airflow.sensors import PostBacksQuietSensor

Approvers = Mapping[str, Sequence[str]]
"""The people of each approval role, as user IDs of Airflow's auth manager.

With the simple auth manager, the user ID is the user name.
"""
Callbacks = Callable[[Context], None] | Sequence[Callable[[Context], None]]

_OPERATORS = {"create": CreateCampaignOperator, "execute": ExecuteCampaignOperator}
AUDIENCE_TITLE = "Audience"
"""The name of a launch's first task in Airflow's pages."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a launch's tasks, as in :func:`campaign_group`."""

    approvers: Approvers | None = None
    quiet_for: timedelta | None = None
    pictures: Path | None = None
    on_approval: Callbacks | None = None
    on_report: Callbacks | None = None
    default_args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check the approvers."""
        check_approvers(self.approvers or {})


def campaign_group(  # noqa: PLR0913 - an interface for users
    campaign: str | Path | Campaign | Mapping[str, Any],
    audience: Any = None,
    *,
    group_id: str,
    name: str | None = None,
    approvers: Approvers | None = None,
    quiet_for: timedelta | None = None,
    pictures: Path | None = None,
    on_approval: Callbacks | None = None,
    on_report: Callbacks | None = None,
    default_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> TaskGroup:
    """Return a task group that sends a campaign: audience, preview, approval, requests, post-backs and report.

    Call it inside a DAG. Its tasks and assets are those of the DAG of a campaign's folder. The arguments are:

    - ``campaign``, ``audience``: those of BuildAudienceOperator. A relative path of a folder starts at the file that
      makes the DAG.
    - ``group_id``: the ID of the group, such as ``lapsed``; its first task is then ``lapsed.audience``.
    - ``name``: the campaign's name, without Jinja; default: the folder's name, or else the IDs of the DAG and the
      group.
    - ``approvers``: the people of each approval role.
    - ``quiet_for``: overrides the campaign's ``report.quiet_for``.
    - ``pictures``: the folder for the picture of the report.
    - ``on_approval``: one or more notifiers, called when a launch waits for approval.
    - ``on_report``: one or more notifiers, called when the report is made.
    - ``default_args``: Airflow's arguments for all tasks, before those of the DAG. The campaign's ``retries`` and
      ``owner`` override them.
    - ``options``: further arguments of BuildAudienceOperator, such as ``resend`` and ``warehouse``.

    Raise CampaignError if the campaign is wrong, and for a role without people.
    """
    group = TaskGroup(group_id)
    dag = group.dag
    given = absolute(Path(campaign), dag.folder) if isinstance(campaign, str | Path) else campaign
    if name and "{" in name:
        raise CampaignError(
            f"name: found {name!r}, but the assets of a group need a name without templates. Use one group for each "
            "campaign, or the operators without a group"
        )
    if name is None and not isinstance(given, Path):
        name = name_of(dag.dag_id, group.group_id or group_id)
    folder = read_campaign(given, name, dag.folder, has_audience=audience is None)
    tasks = TaskOptions(
        approvers,
        quiet_for,
        pictures,
        on_approval,
        on_report,
        {**dag.default_args, **(default_args or {})},
    )
    of_ledger = {name: options[name] for name in ("ledger_conn_id",) if name in options}
    group.default_args = {**defaults_of(folder.campaign, tasks, folder.name), **of_ledger}
    with group:
        first = BuildAudienceOperator(
            task_id="audience",
            task_display_name=AUDIENCE_TITLE,
            campaign=given if isinstance(given, Path) else folder.campaign,
            audience=audience,
            name=name,
            outlets=[audience_asset(folder.name)],
            **options,
        )
        add_tasks(folder, first, tasks)
    return group


def add_tasks(folder: CampaignFolder, audience: BuildAudienceOperator, options: TaskOptions) -> None:
    """Add the tasks of a launch after the task that freezes its audience, to the current DAG or group."""
    campaign, name = folder.campaign, folder.name
    # Not audience.output, which would draw a line from this task to all others in Airflow's graph.
    launch_key = f"{{{{ ti.xcom_pull('{audience.task_id}', key='launch_key') }}}}"
    report = ReconcileOperator(
        task_id="report",
        task_display_name="Report",
        launch_key=launch_key,
        pictures=str(options.pictures) if options.pictures else None,
        inlets=[launch_asset(name)],
        outlets=[report_asset(name)],
    ).as_teardown(setups=audience, on_failure_fail_dagrun=True)
    of_defaults = as_callbacks("on_success_callback", report.on_success_callback)
    report.on_success_callback = [*of_defaults, *as_callbacks("on_report", options.on_report)]
    preview = PreviewOperator(task_id="preview", task_display_name="Preview", launch_key=launch_key)
    approve = ApproveLaunchOperator(
        task_id="approve",
        task_display_name="Approval",
        launch_key=launch_key,
        assigned_users=_people_of_role(folder, options.approvers or {}),
        notifiers=as_callbacks("on_approval", options.on_approval),
    )
    dispatch = _dispatch(folder, launch_key)
    settled = _wait_for_post_backs(campaign, launch_key, options.quiet_for)
    check = CheckDispatchedOperator(
        task_id="check_dispatched",
        task_display_name="Check that everything was sent",
        launch_key=launch_key,
        outlets=[launch_asset(name)],
    )
    audience >> preview >> approve >> dispatch >> [settled, check]
    settled >> report
    if campaign.report.tables:
        results = WriteTablesOperator(
            task_id="write_tables",
            task_display_name="Write the results to the warehouse",
            launch_key=launch_key,
            schema=campaign.report.tables,
            warehouse_conn_id=campaign.report.tables_warehouse,
            dbt=campaign.report.tables_dbt,
        )
        if folder.outcome_sql:
            measure = MeasureOutcomeOperator(
                task_id="measure_outcome",
                task_display_name="Compare what people did afterwards",
                launch_key=launch_key,
                folder=folder.path,
            )
            report >> measure >> results
        else:
            report >> results


def defaults_of(campaign: Campaign, options: TaskOptions, name: str | None = None) -> dict[str, Any]:
    """Return Airflow's arguments for all tasks: those of the file, else those given, else the defaults.

    ``name``: that of the campaign, if all tasks are for its launches.
    """
    of_campaign = {"owner": campaign.owner, "retries": campaign.retries}
    of_file = {name: value for name, value in of_campaign.items() if name in campaign.model_fields_set}
    given = options.default_args or {}
    return {
        **RETRY_DEFAULTS,
        **of_campaign,
        **given,
        **of_file,
        "only_campaign": name and (name, *campaign.formerly),
    }


def _people_of_role(folder: CampaignFolder, approvers: Approvers) -> list[dict[str, str]] | None:
    """Return the users who may approve a campaign, in the form of Airflow's operator. None: everyone with rights."""
    role = folder.campaign.approval.role
    if role is None:
        return None
    if not approvers.get(role):
        roles = ", ".join(sorted(name for name, people in approvers.items() if people))
        raise CampaignError(
            f"{folder.place_of('approval', 'role')}: found {role!r}, a role without people"
            f"{did_you_mean(role, roles.split(', '))}; allowed: "
            f"{roles or 'none, until the deployment names the people of its roles (dags/approvers.py)'}"
        )
    return users(approvers[role])


def check_approvers(given: Approvers) -> None:
    """Raise TypeError if the people of a role are no list, because the letters of a text would be its people."""
    people = given.values() if isinstance(given, Mapping) else [""]
    if any(isinstance(each, str) or not isinstance(each, Collection | None) for each in people):
        raise TypeError("approvers: use a list of user IDs for each role, such as {'crm': ['maria', 'tom']}.")


def users(ids: Iterable[str | int]) -> list[dict[str, str]]:
    """Return users by their IDs, in the form of Airflow's operator."""
    return [{"id": str(user), "name": str(user)} for user in ids]


def _dispatch(folder: CampaignFolder, launch_key: str) -> MappedOperator:
    campaign = folder.campaign
    return (
        _OPERATORS[campaign.send_mode]
        .partial(
            task_id="dispatch",
            task_display_name="Send",
            map_index_template="Worker {{ task.worker }}",
            launch_key=launch_key,
            sendoff_conn_id=None,  # that of the launch, whatever the defaults of the DAG are
            inlets=[audience_asset(folder.name)],
            **({"pool": campaign.pool} if campaign.pool else {}),
        )
        .expand(worker=list(range(1, campaign.parallelism + 1)))
    )


def _wait_for_post_backs(
    campaign: Campaign, launch_key: str, quiet_for: timedelta | None
) -> PostBacksQuietSensor:
    quiet = campaign.report.quiet_for.timedelta() if quiet_for is None else quiet_for
    return PostBacksQuietSensor(
        task_id="wait_for_post_backs",
        task_display_name="Wait for responses",
        launch_key=launch_key,
        quiet_for=quiet,
        timeout=campaign.report.at_latest.timedelta(),
        poke_interval=min(quiet / 5, timedelta(seconds=30)),
        soft_fail=True,  # a launch that never becomes quiet still gets a report
        deferrable=True,
    )
