"""The pages on campaigns: their fields match the model, and their examples are valid campaigns."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from sendoff.audience.build import GROUP_COLUMNS, IDENTIFIER_COLUMNS
from sendoff.campaign import campaign_schema, load_campaign
from sendoff.campaign.model import CREATED_FOR, EXECUTED_FOR
from sendoff.service.wire.requests import ARRAYS, TARGETS
from sendoff.warehouse.query import Query
from tools.reference.campaigns import examples, reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs/reference"
SCHEMA = campaign_schema()


def _page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


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


def test_each_row_of_the_reference_stands_once() -> None:
    kinds = ("send.", "audience.exclude[].", "targeting.")  # each kind of these has its own fields
    rows = re.findall(r"^\| `([^`]*)` \|", reference(SCHEMA), re.MULTILINE)
    assert [row for row in set(rows) if rows.count(row) > 1 and not row.startswith(kinds)] == []


def test_a_place_that_is_referred_to_is_described() -> None:
    table = reference(SCHEMA)
    places = set(re.findall(r", as `([^`]*)`", table))
    assert {"message", "channels", "template"} < places
    assert [place for place in places if f"| `{place}." not in table] == []


def test_a_short_campaign_on_the_page_is_one(tmp_path: Path) -> None:
    pages = _page("campaigns") + _page("suppression")
    found = [each for each in re.findall(r"```yaml\n(.*?)```", pages, re.DOTALL) if "title:" in each]
    assert len(found) > 1
    for example in found:
        (tmp_path / "campaign.yaml").write_text(example, encoding="utf-8")
        (tmp_path / "audience.sql").write_text("SELECT device_id FROM devices")
        assert load_campaign(tmp_path).campaign.channels_used()


def test_every_example_is_on_the_page_without_the_line_for_editors() -> None:
    folders = sorted((ROOT / "examples/campaigns").iterdir())
    shown = examples(ROOT / "examples/campaigns")
    assert re.findall(r"^## `(\w+)`$", shown, re.MULTILINE) == [folder.name for folder in folders]
    assert "yaml-language-server" not in shown


def test_the_page_names_the_columns_of_a_query() -> None:
    page = _page("audience-query")
    identifiers = re.findall(r"^\| `(\w+)` \| [^|]+ \| (yes|no) \| (yes|no) \|$", page, re.MULTILINE)
    assert {name for name, _, _ in identifiers} == {*IDENTIFIER_COLUMNS}
    assert {name for name, created, _ in identifiers if created == "yes"} == {*CREATED_FOR} == {*ARRAYS}
    assert {name for name, _, executed in identifiers if executed == "yes"} == {*EXECUTED_FOR} == {*TARGETS}
    assert {*re.findall(r"^\| `(\w+)` \| [^|]+ \|$", page, re.MULTILINE)} == {*GROUP_COLUMNS}


def test_the_example_query_asks_for_its_period() -> None:
    [sql] = re.findall(r"```sql\n(.*?)```", _page("campaigns"), re.DOTALL)
    period = {
        "period_start": datetime(2026, 3, 1, tzinfo=UTC),
        "period_end": datetime(2026, 3, 2, tzinfo=UTC),
    }
    asked = Query(sql, period, 1, sa.make_url("sqlite://")).with_literals()
    assert "p.purchased_at >= '2026-03-01 00:00:00' AND p.purchased_at < '2026-03-02 00:00:00'" in asked


def test_colons_are_written_as_the_page_says() -> None:
    sql = r"SELECT x::date, ':period_end', scores[1\:n] FROM t -- :unknown"
    asked = Query(sql, {}, 1, sa.make_url("postgresql://")).with_literals()
    assert asked.strip() == "SELECT x::date, ':period_end', scores[1:n] FROM t -- :unknown"


def test_what_lies_within_itself_is_opened_once() -> None:
    group: dict[str, Any] = {
        "properties": {"inner": {"$ref": "#/$defs/Group", "default": None}},
        "type": "object",
    }
    rows = reference(
        {"$defs": {"Group": group}, "properties": {"outer": {"$ref": "#/$defs/Group", "default": None}}}
    )
    assert re.findall(r"^\| `([^`]*)`", rows, re.MULTILINE) == ["outer", "outer.inner"]
