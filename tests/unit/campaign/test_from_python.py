"""Campaigns from Python: checked like those of folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sendoff.campaign import Campaign, campaign_from
from sendoff.errors import AudienceError, CampaignError

PUSH: dict[str, Any] = {
    "title": "Spring",
    "message": {"title": "Hello", "text": "It is spring"},
    "channels": {"android_push": {}},
}
TABLE = pa.table({"device_id": [7]})
PARTS = "SELECT device_id FROM devices WHERE device_id % :parts = :part"


def refused(given: Any = PUSH, name: str = "spring", audience: Any = TABLE) -> str:
    with pytest.raises(CampaignError) as caught:
        campaign_from(given, name, audience)
    return str(caught.value)


@pytest.mark.parametrize("given", [PUSH, Campaign.model_validate(PUSH)])
def test_a_mapping_is_the_same_as_a_campaign(given: Any) -> None:
    folder = campaign_from(given, "spring", TABLE)
    assert (folder.name, folder.campaign) == ("spring", Campaign.model_validate(PUSH))
    assert folder.audience_rows is not None
    assert (folder.audience_sql, folder.audience_rows.origin) == (None, "the Table")


def test_the_audience_may_be_a_query(tmp_path: Path) -> None:
    folder = campaign_from(PUSH, "spring", "SELECT 7 AS device_id")
    assert (folder.audience_sql, folder.audience_rows) == ("SELECT 7 AS device_id", None)
    (tmp_path / "lapsed.sql").write_text("SELECT 14 AS device_id")
    assert campaign_from(PUSH, "spring", tmp_path / "lapsed.sql").audience_sql == "SELECT 14 AS device_id"


def test_a_campaign_whose_recipients_the_service_chooses_has_no_audience() -> None:
    given = {**PUSH, "targeting": {"kind": "broadcast"}}
    assert campaign_from(given, "spring").audience_rows is None
    assert "found an audience with targeting.kind: broadcast" in refused(given)


def test_a_query_campaign_needs_an_audience() -> None:
    assert "campaign spring: it has no audience. Use SQL, a path, a DataFrame, an" in refused(audience=None)


@pytest.mark.parametrize("name", ["", "two words", "../spring", "ü", "x" * 101])
def test_a_name_is_that_of_a_folder(name: str) -> None:
    assert "Use at most 100 letters, digits" in refused(name=name)


def test_all_mistakes_of_a_mapping_are_listed_without_the_texts() -> None:
    message = refused({**PUSH, "titel": "Spring", "message": {"title": "Hello", "text": ["It is spring"]}})
    assert "campaign spring: titel: " in message
    assert "campaign spring: message.text: " in message
    assert "It is" not in message


@pytest.mark.parametrize(
    "fields",
    [
        {"mesage": PUSH["message"]},
        {
            **PUSH,
            "mesage": "It is spring",
            "channels": {"web_push": {"browsers": ["ie"]}},
            "send": {"kind": "nix"},
        },
    ],
)
def test_a_campaign_has_the_mistakes_of_a_mapping(fields: dict[str, Any]) -> None:
    with pytest.raises(CampaignError) as caught:
        Campaign(**fields)
    with pytest.raises(CampaignError) as of_mapping:
        campaign_from(fields, "x", TABLE)
    assert str(caught.value) == str(of_mapping.value).replace("campaign x: ", "campaign: ")
    assert caught.value.__suppress_context__


def test_a_campaign_is_validated_as_fast_as_pydantic_can() -> None:
    assert not Campaign.__pydantic_custom_init__
    assert Campaign(**PUSH) == Campaign.model_validate(PUSH)


def test_a_list_with_wrong_items_is_not_called_empty() -> None:
    channels = {"web_push": {"browsers": ["ie"]}}
    assert refused(PUSH | {"channels": channels}).splitlines() == [
        "campaign spring: channels.web_push.browsers.0: found 'ie'. Use 'chrome', 'firefox', 'opera' or 'safari'"
    ]


def test_a_rule_between_fields_is_checked() -> None:
    campaign = {**PUSH, "channels": {"email": {"from_address": 1, "subject": "Hello", "text": "Spring"}}}
    assert refused(campaign).startswith("campaign spring: ")


@pytest.mark.parametrize("exclusion", [{"kind": "query", "file": "x.sql"}, {"kind": "file", "file": "x.csv"}])
def test_a_campaign_without_a_folder_excludes_no_file(exclusion: dict[str, str]) -> None:
    assert "audience.exclude: found the file x." in refused({**PUSH, "audience": {"exclude": [exclusion]}})


@pytest.mark.parametrize(
    ("sql", "partitions", "problem"),
    [
        ("SELECT 1\n-- {{ ds }}\nFROM x WHERE day = {{ ds }}", None, "line 3 of the query: found Jinja"),
        (PARTS, None, "found :part and :parts without audience.partitions"),
        ("SELECT device_id FROM devices", 4, "found audience.partitions: 4 without :part and :parts"),
    ],
)
def test_a_query_is_checked_as_that_of_a_folder(sql: str, partitions: int | None, problem: str) -> None:
    campaign = {**PUSH, "audience": {"partitions": partitions}} if partitions else PUSH
    assert f"campaign spring: {problem}" in refused(campaign, audience=sql)


def test_a_query_in_parts_is_fine() -> None:
    campaign = {**PUSH, "audience": {"partitions": 4}}
    assert campaign_from(campaign, "spring", PARTS).audience_sql == PARTS


@pytest.mark.parametrize("audience", [7, "", "people.xlsx", [(7, "ios")]])
def test_what_is_no_audience_is_an_error_with_the_campaign(audience: Any) -> None:
    with pytest.raises(AudienceError, match=r"^campaign spring: "):
        campaign_from(PUSH, "spring", audience)
