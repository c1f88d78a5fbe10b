"""The campaigns in the repository: each is valid, runs on its warehouse, and matches the schema that it names."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sendoff.campaign import Channel, campaign_schema, load_campaign
from sendoff.campaign.lint import advice
from sendoff.campaign.yaml_document import read_document

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "dags/campaigns/campaign.schema.json"
EXAMPLES = sorted((ROOT / "examples/campaigns").iterdir())
FOLDERS = [*EXAMPLES, *sorted(path.parent for path in (ROOT / "dags/campaigns").glob("*/campaign.yaml"))]
CHECK = Draft202012Validator(json.loads(PUBLISHED.read_text(encoding="utf-8")))
PUSH: dict[str, Any] = {"title": "A push", "message": {"text": "Hello"}, "channels": {"android_push": None}}

each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(campaign_schema())


@each_folder
def test_a_campaign_of_the_tree_names_the_schema_in_its_first_line(folder: Path) -> None:
    first = (folder / "campaign.yaml").read_text(encoding="utf-8").splitlines()[0]
    [named] = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", first)
    assert (folder / named).resolve() == PUBLISHED


@each_folder
def test_a_campaign_of_the_tree_is_one_for_its_schema_and_for_the_model(folder: Path) -> None:
    CHECK.validate(read_document(folder / "campaign.yaml").tree)
    assert load_campaign(folder).name == folder.name


@each_folder
def test_a_campaign_of_the_tree_follows_all_advice(folder: Path) -> None:
    lines = advice(load_campaign(folder).campaign)
    assert [
        line for line in lines if not line.startswith("send.kind: ")
    ] == []  # what the service repeats has no other


@pytest.mark.parametrize(
    "mistake",
    [
        {"titel": "A push"},  # no such field
        {"title": ""},
        {"title": None},
        {"language": "english"},
        {"channels": {"fax": None}},
        {"channels": ["android_push"]},
        {"message": {"url": "shop.example.com"}},
        {"message": {"picture": "ftp://shop.example.com"}},
        {"send": {}},  # no kind
        {"send": {"kind": "once", "time": "6 pm", "time_zone": "UTC"}},
        {"send": {"kind": "once", "time": "18:00"}},  # no time zone
        {"send": {"time": "18:00", "time_zone": "UTC"}},  # no kind
        {"targeting": {"kind": "saved_segments", "ids": []}},
        {"audience": {"exclude": [{"kind": "list"}]}},
        {"audience": {"holdout": {"percent": 101}}},
        {"gates": {"rollout": {"shares": []}}},
        {"approval": {"needed": "sometimes"}},
        {"segment_size": 0},
        {"retries": "8"},
    ],
    ids=str,
)
def test_the_schema_refuses_a_mistake(mistake: dict[str, Any]) -> None:
    assert CHECK.is_valid(PUSH)
    assert not CHECK.is_valid({**PUSH, **mistake})


def test_every_query_of_an_example_runs_on_the_warehouse_of_the_examples() -> None:
    period = {"period_start": "2026-03-01 00:00:00", "period_end": "2026-03-02 00:00:00"}
    with closing(sqlite3.connect(":memory:")) as warehouse:
        warehouse.executescript((ROOT / "examples/warehouse.sql").read_text(encoding="utf-8"))
        for query in (ROOT / "examples/campaigns").glob("*/*.sql"):
            warehouse.execute(query.read_text(encoding="utf-8"), period)


def test_the_examples_show_every_channel_and_every_kind() -> None:
    campaigns = [load_campaign(folder).campaign for folder in EXAMPLES]
    assert {channel for each in campaigns for channel in each.channels_used()} == set(Channel)
    for field in ("send", "targeting"):
        kinds = set(campaign_schema()["properties"][field]["discriminator"]["mapping"])
        assert {getattr(each, field).kind for each in campaigns} == kinds
    assert {rule.kind for each in campaigns for rule in each.audience.exclude} == {
        "query", "campaign", "list", "file",
    }  # fmt: skip
    assert {each.send_mode for each in campaigns} == {"create", "execute"}
