"""Write the documentation of a campaign's DAG for Airflow's UI, from the files in the campaign's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sendoff.campaign import ASSETS, AudienceColumn, Campaign, CampaignFolder, FrozenModel, advice
from sendoff.launch import describe_schedule
from sendoff.report import (
    Block,
    Bullets,
    Code,
    Document,
    Facts,
    Link,
    Listing,
    Section,
    Sentence,
    Table,
    Words,
    as_markdown,
)
from sendoff_airflow.views.links import campaign_page

_TASKS: tuple[tuple[Words, Words], ...] = (
    (
        Code("audience"),
        "runs the query, leaves people out, checks the gates, and freezes the audience, once per period",
    ),
    (Code("preview"), "counts what will be sent"),
    (Code("approve"), "asks for approval on the page Required Actions, if the campaign needs it"),
    (
        Code("dispatch"),
        "sends each segment once, even after retries; waits for the send window, the rate limit and the next wave",
    ),
    (Code("check_dispatched"), "fails if something was not sent, and updates the asset"),
    (Code("wait_for_post_backs"), "waits until no post-back has come for a while"),
    (Code("report"), "reports the result for every person; runs whenever there is a launch"),
)
"""The tasks of a campaign's DAG, with descriptions."""

_MEASURE: tuple[Words, Words] = (
    Code("measure_outcome"),
    "compares what people did afterwards, by the outcome query",
)
_WRITE_TABLES: tuple[Words, Words] = (Code("write_tables"), "writes the results into tables of the warehouse")


def documentation(folder: CampaignFolder) -> str:
    """Return the documentation of a campaign as Markdown: facts, suppressions, gates, links, tasks, queries."""
    campaign = folder.campaign
    lists: list[tuple[str, list[Words]]] = [
        ("Who is left out", list(_fields(campaign.audience.replace(source=None, columns={})))),
        ("What columns of the query must contain", list(_columns(campaign.audience.columns))),
        ("Gates: conditions for sending", list(_fields(campaign.gates))),
        ("Set in defaults.yaml", list(_defaults(folder))),
        ("Advice", list(advice(campaign))),
        ("Where to look", list(_where_to_look(folder))),
    ]
    blocks: list[tuple[str, Block]] = [(title, Bullets(items)) for title, items in lists if items]
    tasks = [*_TASKS]
    if campaign.report.tables:
        tasks += [_MEASURE, _WRITE_TABLES] if folder.outcome_sql else [_WRITE_TABLES]
    blocks.append(("What each task does", Table(("Task", "Does"), tasks)))
    queries = [
        ("Query", folder.audience_sql),
        ("Outcome query: what people do afterwards", folder.outcome_sql),
        ("What people did before, which adjusts the outcomes", folder.before_sql),
    ]
    blocks += [(title, Listing(sql.strip(), "sql")) for title, sql in queries if sql]
    document = Document(
        title=campaign.title,
        lead=[Sentence(_lead(folder)), Facts(list(_facts(folder)))],
        sections=[Section(title, title, [block]) for title, block in blocks],
    )
    return as_markdown(document, level=1)


def _lead(folder: CampaignFolder) -> Words:
    campaign = folder.campaign
    channels = ", ".join(channel.value for channel in campaign.channels_used())
    return (
        f"A messaging campaign of Sendoff. It reaches {_people(campaign)} by {channels}. ",
        f"The owner is {campaign.owner}. The campaign's folder is ",
        Code(f"{folder.path.parent.name}/{folder.name}"),
        ".",
    )


def _people(campaign: Campaign) -> str:
    source = campaign.audience.source
    if source and source.kind == "dbt_model":
        return f"the people in the table of the dbt model {source.name}"
    if source and source.kind == "verdicts":
        unknown = " or unknowable" if source.unknowable == "include" else ""
        return f"the people who are {', '.join(source.are)}{unknown} in the newest report of {source.of}"
    return {
        "query": "the people that the query below returns",
        "broadcast": "the service's whole user base",
        "saved_segments": "the people in saved segments of the service",
        "conditions": "the people who meet its conditions according to the service",
    }[campaign.targeting.kind]


def _facts(folder: CampaignFolder) -> Iterator[tuple[str, str]]:
    campaign = folder.campaign
    yield "Owner", campaign.owner
    yield "Channels", ", ".join(channel.value for channel in campaign.channels_used())
    if campaign.template:
        yield "Template", str(campaign.template.id)
    if campaign.variants:
        yield "Variants", ", ".join(f"{name} {side.percent:g} %" for name, side in campaign.variants.items())
    if campaign.decide:
        yield "Winner", campaign.decide.words.removesuffix(".")
    yield "Runs", _runs(campaign)
    if campaign.start:
        yield "First day", f"{campaign.start}, in {campaign.schedule_time_zone}"
    yield "The service sends", describe_schedule(campaign.send)
    yield "Approval", _approval(campaign)
    quiet, at_latest = campaign.report.quiet_for.words, campaign.report.at_latest.words
    yield (
        "Report",
        f"when no post-back has come for {quiet}, at the latest {at_latest} after the last message was sent",
    )
    if campaign.report.tables:
        writer = campaign.report.tables_warehouse or campaign.warehouse
        yield "Results", f"in tables of the schema {campaign.report.tables}, connection {writer}"
    if campaign.alert_after:
        yield "Alert", f"if a run takes longer than {campaign.alert_after.words}"
    yield "Service", f"connection {campaign.connection}"
    if folder.audience_sql:
        yield "Warehouse", f"connection {campaign.warehouse}"
    if campaign.targeting.kind == "query":
        yield "People in one request", f"{campaign.segment_size:,} at most"
    yield "Tasks that send", f"{campaign.parallelism}" + (f", pool {campaign.pool}" if campaign.pool else "")
    yield (
        "A request in doubt",
        {
            "hold": "stays in doubt until a post-back or a person settles it",
            "resend": "is sent again once, so some people may get it twice",
        }[campaign.on_doubt],
    )


def _defaults(folder: CampaignFolder) -> Iterator[str]:
    """Yield each setting that comes from the file for all campaigns."""
    for setting in folder.settings() if folder.inherited else ():
        if setting.line:
            yield f"{setting.path}: {_words(setting.value)}"


def _where_to_look(folder: CampaignFolder) -> Iterator[Words]:
    """Yield where to find more, with links into Airflow's own UI."""
    yield Link("The campaign", campaign_page(folder.name)), ": its launches and their reports"
    yield "The note of a run shows the counts of its report; the log of ", Code("report"), " shows all of it"
    yield (
        "Required Actions lists what waits for an answer; the DAG ",
        Code("sendoff_doubts"),
        " asks about requests in doubt",
    )
    yield f"Events of the assets {', '.join(f'{folder.name}.{what}' for what in ASSETS)} carry counts"


def _runs(campaign: Campaign) -> str:
    times = [f"{campaign.schedule}, in {campaign.schedule_time_zone}"] if campaign.schedule else []
    assets = [f"after {', '.join(campaign.after)}"] if campaign.after else []
    return ", and ".join([*times, *assets]) or "by hand"


def _approval(campaign: Campaign) -> str:
    rule = campaign.approval
    if rule.needed == "never":
        return "not needed"
    above = f" above {rule.above:,} people" if rule.above is not None else ""
    return (
        f"{rule.needed if not above else 'needed'}{above}, by {rule.role or 'someone with rights in Airflow'}"
    )


def _fields(section: FrozenModel) -> Iterator[str]:
    """Yield each field of a section that has a value, with its meaning. A list yields each of its items."""
    for name, value in section.model_dump(mode="json", exclude_none=True).items():
        meaning = (type(section).model_fields[name].description or "").split("; null")[0]
        for item in value if isinstance(value, list) else [value] if value != {} else []:
            yield f"{name}: {_words(item)}" + (f" ({meaning[0].lower()}{meaning[1:]})" if meaning else "")


def _columns(columns: Mapping[str, AudienceColumn]) -> Iterator[str]:
    for name, column in columns.items():
        yield f"{name}: {_words(column.model_dump(mode='json', exclude_defaults=True))}"


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return f"{value:,}" if type(value) is int else str(value)
