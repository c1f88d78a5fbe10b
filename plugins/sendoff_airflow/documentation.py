"""The documentation of a campaign's DAG, as Airflow's UI shows it: what its folder says, in the folder's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sendoff.campaign import CampaignFolder
from sendoff.campaign.advice import advice
from sendoff.campaign.model import Campaign

_MARKS = re.compile(r"([\\`*_{}\[\]()#+!|~<>@])")


def documentation(folder: CampaignFolder) -> str:
    """Say in Markdown what a campaign sends, to whom and when, what holds it back, and what its query is."""
    campaign = folder.campaign
    parts = [f"# {_plain(campaign.title)}", _table(_facts(campaign))]
    for title, lines in (
        ("Who is left out", _said(campaign.audience.model_dump(mode="json", exclude_unset=True))),
        ("Gates", _said(campaign.gates.model_dump(mode="json", exclude_unset=True))),
        ("Advice", map(_plain, advice(campaign))),
    ):
        if listed := "\n".join(f"- {line}" for line in lines):
            parts.append(f"## {title}\n\n{listed}")
    if folder.audience_sql:
        parts.append(f"## Query\n\n{_fenced(folder.audience_sql.strip(), 'sql')}")
    return "\n\n".join(parts)


def _facts(campaign: Campaign) -> Iterator[tuple[str, str]]:
    yield "Channels", ", ".join(channel.value for channel in campaign.used())
    if campaign.template:
        yield "Template", str(campaign.template.id)
    if campaign.variants:
        yield "Variants", ", ".join(f"{name} {side.percent:g} %" for name, side in campaign.variants.items())
    yield "Runs", _runs(campaign)
    yield "The service sends", _words(campaign.send.model_dump(mode="json", exclude_none=True))
    yield "Approval", _approval(campaign)
    yield "Service", f"connection {campaign.connection}"
    yield "Warehouse", f"connection {campaign.warehouse}"
    yield "People in one request", f"{campaign.segment_size}"
    yield "Tasks that send", f"{campaign.parallelism}" + (f", pool {campaign.pool}" if campaign.pool else "")


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


def _said(section: Mapping[str, Any]) -> Iterator[str]:
    """Give each field of a section of the file, a list item by item."""
    for name, value in section.items():
        for item in (
            value if isinstance(value, list) and any(isinstance(each, dict) for each in value) else [value]
        ):
            yield f"{name}: {_plain(_words(item))}"


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
