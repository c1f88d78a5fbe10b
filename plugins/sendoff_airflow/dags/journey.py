"""The DAG of a journey: a task group for each step, with the tasks of a launch (module ``group``)."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, TaskGroup, TriggerRule

from sendoff.campaign import JourneyFolder, step_name
from sendoff_airflow.dags.campaign import audience_task, form, schedule_of, start_of
from sendoff_airflow.dags.group import TaskOptions, add_tasks, defaults_of
from sendoff_airflow.operators.assets import consume_events_together
from sendoff_airflow.operators.journey import WaitForStepOperator


def journey_dag(journey: JourneyFolder, options: TaskOptions) -> DAG:
    """Return the DAG of a journey. Its DAG ID is the journey's name, and each step is a task group.

    A step without recipients is skipped, and so are the steps that take their recipients from it. Raise CampaignError
    for a role without people.
    """
    first = journey.campaigns[0].campaign
    with DAG(
        dag_id=journey.name,
        dag_display_name=journey.journey.title,
        doc_md=_documentation(journey),
        schedule=schedule_of(first),
        start_date=start_of(first),
        catchup=False,
        default_args=defaults_of(first, options),
        tags=["sendoff", *journey.journey.tags],
        auto_register=False,
    ) as dag:
        for number in range(len(journey.campaigns)):
            _add_step(dag, journey, number, options)
    consume_events_together(dag)
    fields = form()
    for name in (
        "launch",
        "resend",
        "only_unsent",
        "reason",
    ):  # a run sends the launches of its own period, once
        del fields[name]
    dag.params.update(fields)
    return dag


def _add_step(dag: DAG, journey: JourneyFolder, number: int, options: TaskOptions) -> None:
    folder, step = journey.campaigns[number], journey.journey.steps[number]
    group = TaskGroup(step.name, tooltip=folder.campaign.title)
    group.default_args = defaults_of(folder.campaign, options, folder.name)
    with group:
        audience = audience_task(folder, journey.path / step.name, skips_nobody=True)
        add_tasks(folder, audience, options)
        if step.when is None:
            return
        wait = WaitForStepOperator(
            task_id="wait",
            task_display_name="Wait",
            launch_key=f"{{{{ ti.xcom_pull('{step.when.of}.audience', key='launch_key') }}}}",
            only_campaign=(step_name(journey.name, step.when.of),),
            wait=step.wait.timedelta() if step.wait else timedelta(),
            trigger_rule=TriggerRule.ALL_DONE,  # a refused request fails the run, but not the other recipients' journey
        )
        wait >> audience
    dag.get_task(f"{step.when.of}.dispatch") >> wait


def _documentation(journey: JourneyFolder) -> str:
    lines = [
        f"# {journey.journey.title}",
        "",
        "A journey: each step goes to recipients of an earlier one.",
        "",
    ]
    for step in journey.journey.steps:
        wait = f" after {step.wait.words}" if step.wait else ""
        to = f", to {', '.join(step.when.are)} of *{step.when.of}*{wait}" if step.when else ""
        lines.append(f"- **{step.name}**{to}")
    return "\n".join(lines)
