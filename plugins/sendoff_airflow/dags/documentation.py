"""The documentation of a campaign's DAG, as Airflow's UI shows it: what its folder says, in the folder's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sendoff.campaign import Campaign, CampaignFolder, Duration, Value, advice
from sendoff.launch import in_words
from sendoff_airflow.views.links import campaign_page

ASSETS = ("audience", "launch", "report")
_MARKS = re.compile(r"([\\`*_{}\[\]()#+!|~<>@])")


_TASKS = """\
| Task | Does |
|---|---|
| `audience` | asks the query, leaves people out, holds the gates, and freezes who is sent to: once for each period |
| `preview` | counts what will be sent; nothing is sent yet |
| `approve` | asks somebody on the page *Required Actions*, where the campaign wants that |
| `dispatch` | sends each segment once, also when it is tried again; waits for the window, the rate and the next wave |
| `launched` | fails where something was not sent, and tells the asset |
| `quiet` | waits until post-backs stay away for a while |
| `report` | says of each person what is known: always, once there is a launch |"""
"""What the tasks of the DAG factory do."""


def documentation(folder: CampaignFolder) -> str:
    """Say in Markdown what a campaign sends, to whom and when, what holds it back, where to look, and its query."""
    campaign = folder.campaign
    parts = [f"# {_plain(campaign.title)}", _lead(folder), _table(_facts(campaign))]
    for title, lines in (
        ("Who is left out", _said(campaign.audience)),
        ("Gates: what must hold before anything is sent", _said(campaign.gates)),
        ("Advice", map(_plain, advice(campaign))),
        ("Where to look", _places(folder)),
    ):
        if listed := "\n".join(f"- {line}" for line in lines):
            parts.append(f"## {title}\n\n{listed}")
    parts.append(f"## What each task does\n\n{_TASKS}")
    if folder.audience_sql:
        parts.append(f"## Query\n\n{_fenced(folder.audience_sql.strip(), 'sql')}")
    return "\n\n".join(parts)


def _lead(folder: CampaignFolder) -> str:
    campaign = folder.campaign
    channels = ", ".join(channel.value for channel in campaign.used())
    return (
        f"A messaging campaign of Sendoff. It reaches {_people(campaign)} by {_plain(channels)}. "
        f"**{_plain(campaign.owner)}** answers for it; its folder is `{folder.path.parent.name}/{folder.name}`."
    )


def _people(campaign: Campaign) -> str:
    target = campaign.targeting
    return {
        "query": "the people whom the query below gives",
        "broadcast": "everybody whom the service knows",
        "saved_segments": "the people of segments that the service keeps",
        "conditions": "the people who meet its conditions, as the service sees them",
    }[target.kind]


def _facts(campaign: Campaign) -> Iterator[tuple[str, str]]:
    yield "Owner", campaign.owner
    yield "Channels", ", ".join(channel.value for channel in campaign.used())
    if campaign.template:
        yield "Template", str(campaign.template.id)
    if campaign.variants:
        yield "Variants", ", ".join(f"{name} {side.percent:g} %" for name, side in campaign.variants.items())
    yield "Runs", _runs(campaign)
    if campaign.start:
        yield "First day", f"{campaign.start}, in {campaign.schedule_time_zone}"
    yield "The service sends", in_words(campaign.send)
    yield "Approval", _approval(campaign)
    quiet, at_latest = _long(campaign.report.quiet_for), _long(campaign.report.at_latest)
    yield "Report", f"once no post-back has come for {quiet}, after {at_latest} at the latest"
    if campaign.alert_after:
        yield "Alert", f"when a run takes longer than {_long(campaign.alert_after)}"
    yield "Service", f"connection {campaign.connection}"
    if campaign.targeting.kind == "query":
        yield "Warehouse", f"connection {campaign.warehouse}"
        yield "People in one request", f"{campaign.segment_size:,} at most"
    yield "Tasks that send", f"{campaign.parallelism}" + (f", pool {campaign.pool}" if campaign.pool else "")
    yield (
        "A request in doubt",
        {
            "hold": "is held until evidence or a person settles it",
            "resend": "is sent again once: some may get it twice",
        }[campaign.on_doubt],
    )


def _places(folder: CampaignFolder) -> Iterator[str]:
    """Give where people find out more, with links into Airflow's own UI."""
    yield f"[The campaign]({campaign_page(folder.name)}): its launches, and each with its report"
    yield "A run's note has the counts of its report; the log of `report` has all of it"
    yield "*Required Actions* has what waits for an answer; the DAG `doubts` asks about requests in doubt"
    yield f"Events of the assets {', '.join(_plain(f'{folder.name}.{what}') for what in ASSETS)} carry counts"


def _long(duration: Duration) -> str:
    return f"{duration.length} {duration.unit if duration.length != 1 else duration.unit.removesuffix('s')}"


def _runs(campaign: Campaign) -> str:
    if campaign.schedule:
        return f"{campaign.schedule}, in {campaign.schedule_time_zone}"
    return f"after {', '.join(campaign.after)}" if campaign.after else "by hand"


def _approval(campaign: Campaign) -> str:
    asked = campaign.approval
    if asked.needed == "never":
        return "not needed"
    above = f" above {asked.above} people" if asked.above is not None else ""
    return f"{asked.needed if not above else 'needed'}{above}, by {asked.role or 'whom Airflow lets'}"


def _said(section: Value) -> Iterator[str]:
    """Give each field of a section of the file that holds something, a list item by item, with what it means."""
    values = section.model_dump(mode="json", exclude_none=True)
    for name, value in values.items():
        meaning = type(section).model_fields[name].description or ""
        meaning = meaning.split("; null")[0]
        for item in value if isinstance(value, list) else [value]:
            yield f"{name}: {_plain(_words(item))}" + (
                f" ({_plain(meaning[0].lower() + meaning[1:])})" if meaning else ""
            )


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(inner)}" for name, inner in value.items())
    return ", ".join(map(_words, value)) if isinstance(value, list) else f"{value}"


def _table(rows: Iterator[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {_plain(value)} |" for name, value in rows)])


def _plain(text: str) -> str:
    """Keep a text of the folder from being read as Markdown or HTML."""
    return _MARKS.sub(r"\\\1", text).replace("\n", " ")


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
