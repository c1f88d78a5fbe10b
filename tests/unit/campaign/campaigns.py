"""Campaigns for the tests of this folder, read from files or built in Python."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sendoff.campaign import Campaign, CampaignFolder, check_campaign, load_campaign
from sendoff.errors import CampaignError

EVENING = datetime(2026, 11, 20, 6, tzinfo=UTC)

PUSH = """
title: Back in stock
message: {title: It is back, text: The thing you liked is back., url: https://shop.example.com/thing}
channels:
  android_push:
"""
ENDLESS = {"time_zone": "UTC", "start": "2026-11-20", "end": "never"}
TONIGHT = {"kind": "once", "time": "20:00", "time_zone": "UTC"}
DAILY = {"kind": "recurring", "time": "08:00", **ENDLESS}
SMS = {"sender": "Shop", "text": "Words"}
EMAIL = {"from_address": 7, "subject": "Hello", "text": "Words"}
SENT: dict[str, Any] = {"message": {"text": "Words"}, "channels": {"ios_push": {}}}
SECRET_WORDS = "Dear Ms Example, your medicine is ready"


def write(folder: Path, text: str, sql: str | None = "SELECT device_id FROM devices") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "campaign.yaml").write_text(text, encoding="utf-8")
    if sql is not None:
        (folder / "audience.sql").write_text(sql)
    return folder


def load(tmp_path: Path, text: str, sql: str | None = "SELECT device_id FROM devices") -> CampaignFolder:
    return load_campaign(write(tmp_path / "back_in_stock", text, sql))


def problems(tmp_path: Path, text: str, sql: str | None = "SELECT device_id FROM devices") -> list[str]:
    """Load a wrong file, and return its problems without the folder's name."""
    with pytest.raises(CampaignError) as error:
        load(tmp_path, text, sql)
    return str(error.value).replace(f"{tmp_path / 'back_in_stock'}/", "").splitlines()


def campaign(**fields: Any) -> Campaign:
    made = Campaign.model_validate({"title": "A campaign", **fields})
    check_campaign(made)
    return made


def broken(**fields: Any) -> str:
    with pytest.raises((ValidationError, CampaignError)) as error:
        campaign(**fields)
    return str(error.value)


PUSHED: dict[str, Any] = {"message": {"title": "T", "text": "W"}, "channels": {"ios_push": {}}}
TWO_LANGUAGES: dict[str, Any] = {
    "language": "en",
    "message": {"title": "T", "text": "W", "translations": {"fr": {"title": "T", "text": "M"}}},
    "channels": {"ios_push": {}},
}
EXECUTED: dict[str, Any] = {"template": {"id": 4, "channels": ["email"]}}
HALF: dict[str, Any] = {"percent": 50}
BROADCAST: dict[str, Any] = {**PUSHED, "targeting": {"kind": "broadcast"}}
QUERY_ZONE = {"time_zone": "query", "default_time_zone": "Asia/Tokyo"}
WINDOW = {"earliest": "09:00", "latest": "20:00", **QUERY_ZONE}


def until(day: str | None) -> dict[str, Any]:
    return {"until": {"time": "10:00", "time_zone": "UTC", **({"date": day} if day else {})}}
