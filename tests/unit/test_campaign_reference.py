"""docs/campaigns.md: its reference is the model's, and its examples are campaigns."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.audience import GROUP_COLUMNS, IDENTIFIER_COLUMNS
from sendoff.campaign import Campaign, Channel, campaign_schema, load_campaign
from sendoff.campaign.reference import BEGIN, END, reference, with_reference
from sendoff.query import Query

PAGE = (Path(__file__).parents[2] / "docs/campaigns.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SCHEMA = campaign_schema()


def load(folder: Path, example: str) -> Campaign:
    """Load an example as its page says: with a query, unless the service chooses the people."""
    (folder / "campaign.yaml").write_text(example, encoding="utf-8")
    if "targeting:" not in example:
        (folder / "audience.sql").write_text("SELECT device_id, language FROM devices")
    return load_campaign(folder).campaign


@pytest.fixture
def campaigns(tmp_path: Path) -> list[Campaign]:
    folders = [tmp_path / f"example_{number}" for number in range(len(EXAMPLES))]
    for folder in folders:
        folder.mkdir()
    return [load(folder, example) for folder, example in zip(folders, EXAMPLES, strict=True)]


def test_the_page_and_the_model_agree() -> None:
    assert with_reference(PAGE, reference(SCHEMA)) == PAGE, (
        "run: python -m sendoff.campaign.reference docs/campaigns.md"
    )


def test_every_field_has_a_description() -> None:
    silent = [
        f"{name}.{field}"
        for name, node in {**SCHEMA["$defs"], "Campaign": SCHEMA}.items()
        for field, given in node.get("properties", {}).items()
        if "const" not in given and not given.get("description")
    ]
    assert silent == []


def test_the_reference_has_a_row_for_each_field_of_each_definition() -> None:
    last_steps = set(re.findall(r"^\| `(?:[^`]*\.)?(\w+)` \|", reference(SCHEMA), re.MULTILINE))
    nodes = [SCHEMA, *SCHEMA["$defs"].values()]
    assert {field for node in nodes for field in node.get("properties", {})} == last_steps


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda example: example.splitlines()[0].removeprefix("title: ")
)
def test_an_example_is_a_campaign(tmp_path: Path, example: str) -> None:
    campaign = load(tmp_path, example)
    assert campaign.resolved(datetime(2026, 3, 2, tzinfo=UTC)).used()


def test_the_examples_show_every_channel_and_every_kind(campaigns: list[Campaign]) -> None:
    assert {channel for each in campaigns for channel in each.channels.used()} == set(Channel)
    assert {each.send.kind for each in campaigns} == kinds("send")
    assert {each.targeting.kind for each in campaigns} == kinds("targeting")
    assert {each.way for each in campaigns} == {"create", "execute"}
    assert any(each.languages_apart() for each in campaigns)


def kinds(field: str) -> set[str]:
    return set(SCHEMA["properties"][field]["discriminator"]["mapping"])


def test_the_page_names_the_columns_of_a_query() -> None:
    columns = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \| [^|]+ \|$", PAGE.partition("## Examples")[0], re.MULTILINE
    )
    named = {name for cell in columns for name in re.findall(r"`(\w+)`", cell)}
    assert named == {*IDENTIFIER_COLUMNS, *GROUP_COLUMNS}


def test_the_example_query_asks_for_its_period() -> None:
    [sql] = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    period = {
        "period_start": datetime(2026, 3, 1, tzinfo=UTC),
        "period_end": datetime(2026, 3, 2, tzinfo=UTC),
    }
    asked = Query(sql, period, 1, sa.make_url("sqlite://")).with_literals()
    assert "restocked_at >= '2026-03-01 00:00:00' AND w.restocked_at < '2026-03-02 00:00:00'" in asked


def test_colons_are_written_as_the_page_says() -> None:
    sql = r"SELECT x::date, ':period_end', scores[1\:n] FROM t -- :unknown"
    asked = Query(sql, {}, 1, sa.make_url("postgresql://")).with_literals()
    assert asked.strip() == "SELECT x::date, ':period_end', scores[1:n] FROM t -- :unknown"


@pytest.mark.parametrize("page", ["", BEGIN, END + BEGIN, BEGIN + END + END])
def test_a_page_without_its_marks_is_left_alone(page: str) -> None:
    with pytest.raises(ValueError, match="each once and in this order"):
        with_reference(page, "| |")


def test_what_lies_within_itself_is_opened_once() -> None:
    group: dict[str, Any] = {
        "properties": {"inner": {"$ref": "#/$defs/Group", "default": None}},
        "type": "object",
    }
    rows = reference(
        {"$defs": {"Group": group}, "properties": {"outer": {"$ref": "#/$defs/Group", "default": None}}}
    )
    assert re.findall(r"^\| `([^`]*)`", rows, re.MULTILINE) == ["outer", "outer.inner"]
