"""Campaigns whose query is read in parts: the rules for their folder, and a launch that reads all parts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from sendoff.audience.identifiers import integers
from sendoff.campaign import CampaignFolder, Period, load_campaign
from sendoff.errors import CampaignError
from sendoff.launch.plan import plan_launch

TEXT = """
title: Back in stock
message: {title: It is back, text: The thing you liked is back.}
channels:
  android_push:
"""
DAY = datetime(2026, 3, 2, tzinfo=UTC)


def folder_of(path: Path, more: str, sql: str) -> Path:
    folder = path / "back_in_stock"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(TEXT + more)
    (folder / "audience.sql").write_text(sql)
    return folder


def loaded(path: Path, more: str, sql: str) -> CampaignFolder:
    return load_campaign(folder_of(path, more, sql))


def refusal(path: Path, more: str, sql: str) -> str:
    with pytest.raises(CampaignError) as error:
        loaded(path, more, sql)
    return str(error.value)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        (
            "SELECT device_id FROM devices",
            "found audience.partitions: 4 without :part and :parts in the query.",
        ),
        # each part would get its rows, but no part would get the remaining rows
        (
            "SELECT device_id FROM devices WHERE bucket = :part",
            "found audience.partitions: 4 without :parts in the query.",
        ),
        (
            "SELECT device_id FROM devices LIMIT 100 / :parts",
            "found audience.partitions: 4 without :part in the query.",
        ),
        # named only in a comment and in a text
        (
            "SELECT device_id FROM devices -- :part\nWHERE ':parts' <> ''",
            "found audience.partitions: 4 without :part and :parts in the query.",
        ),
    ],
)
def test_parts_that_the_query_does_not_give_are_refused(tmp_path: Path, sql: str, found: str) -> None:
    message = refusal(tmp_path, "audience: {partitions: 4}", sql)
    assert f"{tmp_path}/back_in_stock/audience.sql: {found} Use both, such as" in message


@pytest.mark.parametrize("name", ["part", "parts"])
def test_a_query_that_gives_parts_which_nobody_asks_for_is_refused(tmp_path: Path, name: str) -> None:
    message = refusal(tmp_path, "", f"SELECT device_id FROM devices WHERE bucket = :{name}")
    assert (
        f"audience.sql: found :{name} without audience.partitions. Use neither, or audience.partitions"
        in message
    )


@pytest.mark.parametrize("parts", ["0", "33", "two", "1.5"])
def test_a_number_of_parts_is_a_small_whole_number(tmp_path: Path, parts: str) -> None:
    sql = "SELECT device_id FROM devices WHERE device_id % :parts = :part"
    assert "audience.partitions: found" in refusal(tmp_path, f"audience: {{partitions: {parts}}}", sql)


def test_people_whom_the_service_chooses_come_in_no_parts(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "audience: {partitions: 2}\ntargeting: {kind: broadcast}", "SELECT 1")
    (folder / "audience.sql").unlink()
    with pytest.raises(
        CampaignError, match=r"audience\.partitions: found partitions with targeting\.kind: broadcast"
    ):
        load_campaign(folder)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_launch_reads_every_part(tmp_path: Path, postgres_url: str, parts: int) -> None:
    engine = sa.create_engine(postgres_url, poolclass=NullPool)
    with engine.begin() as db:
        db.execute(sa.text("DROP TABLE IF EXISTS devices"))
        db.execute(sa.text("CREATE TABLE devices AS SELECT n AS device_id FROM generate_series(1, 1000) n"))
    engine.dispose()
    sql = "SELECT device_id FROM devices WHERE device_id % :parts = :part AND :period_start < :period_end"
    folder = loaded(tmp_path, f"audience: {{partitions: {parts}}}", sql)
    plan = plan_launch(
        None, folder, period=Period(DAY - timedelta(days=1), DAY), warehouses=lambda _: postgres_url, now=DAY
    )
    assert plan.audience is not None
    assert plan.audience.identifiers == integers(range(1, 1_001))
