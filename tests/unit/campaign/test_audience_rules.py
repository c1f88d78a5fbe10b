"""Exclusions in a campaign's folder: their reasons, and the files that they refer to."""

from __future__ import annotations

from pathlib import Path

import pytest

from sendoff.campaign import load_campaign
from sendoff.campaign.audience_rules import counted_as
from sendoff.errors import CampaignError

TEXT = """
title: Back in stock
message: {title: It is back, text: The thing you liked is back.}
channels:
  android_push:
audience:
  exclude:
    - {kind: query, file: returned.sql}
    - {kind: file, file: staff.csv, reason: staff}
    - {kind: campaign, name: spring, days: 7}
    - {kind: list, name: complaints}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "back_in_stock"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(TEXT)
    (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    (folder / "returned.sql").write_text("SELECT device_id FROM returned")
    (folder / "staff.csv").write_text("device_id\n7\n")
    return folder


def test_the_queries_of_exclusions_are_read_with_the_folder(folder: Path) -> None:
    loaded = load_campaign(folder)
    assert loaded.exclusion_sql == {"returned.sql": "SELECT device_id FROM returned"}
    assert "SELECT" not in repr(loaded)


def test_people_are_counted_under_the_reason_that_is_given_or_else_under_kind_and_name(folder: Path) -> None:
    exclusions = load_campaign(folder).campaign.audience.exclude
    assert [counted_as(each) for each in exclusions] == [
        "query returned.sql",
        "staff",
        "campaign spring",
        "list complaints",
    ]


@pytest.mark.parametrize(
    "reason",
    [
        *("duplicate", "holdout", "suppressed", "erased", "Staff", "9 %", ""),
        *("on the suppression list", "control group", "forged", "of another campaign"),
    ],
)
def test_a_reason_is_a_word_that_sendoff_does_not_use_itself(folder: Path, reason: str) -> None:
    file = folder / "campaign.yaml"
    file.write_text(file.read_text().replace("reason: staff", f"reason: '{reason}'"))
    with pytest.raises(CampaignError, match="Use lower-case letters, digits and _, but none of null"):
        load_campaign(folder)


def test_files_that_exclusions_name_and_that_are_not_there_are_all_told_at_once(folder: Path) -> None:
    (folder / "returned.sql").unlink()
    (folder / "staff.csv").unlink()
    with pytest.raises(CampaignError) as error:
        load_campaign(folder)
    assert str(error.value).splitlines() == [
        f"{folder}/returned.sql: the file does not exist. Add the query of the recipients to leave out",
        f"{folder}/staff.csv: the file does not exist. Add the recipients to leave out, as CSV",
    ]


def test_an_empty_query_of_an_exclusion_is_told(folder: Path) -> None:
    (folder / "returned.sql").write_text(" \n")
    with pytest.raises(CampaignError, match=r"returned.sql: the file is empty. Add the query of the"):
        load_campaign(folder)


def test_rules_say_whether_other_launches_matter_to_them(folder: Path) -> None:
    assert load_campaign(folder).campaign.audience.depend_on_launches
    text = TEXT.replace("    - {kind: campaign, name: spring, days: 7}\n", "")
    (folder / "campaign.yaml").write_text(text)
    assert not load_campaign(folder).campaign.audience.depend_on_launches
    (folder / "campaign.yaml").write_text(text + "  cap: {messages: 1, days: 7}\n")
    assert load_campaign(folder).campaign.audience.depend_on_launches
