"""The demo's warehouse and the two campaigns that read from it."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import available_timezones

import pytest

from sendoff.audience.build import Audience, build_audience
from sendoff.demo.warehouse import export_directory, make_warehouse
from sendoff.warehouse import read

CAMPAIGNS = Path(__file__).resolve().parents[2] / "dags/campaigns"
TODAY = date(2026, 11, 20)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "warehouse.db"
    made = make_warehouse(path, customers=6_000, seed=3, today=TODAY)
    assert (made.customers, made.devices) == (6_000, 10_000)
    return path


def audience(warehouse: Path, campaign: str, end: datetime) -> Audience:
    sql = (CAMPAIGNS / campaign / "audience.sql").read_text()
    parameters = {"period_start": end - timedelta(days=7), "period_end": end}
    with read(f"sqlite:///{warehouse}", sql, parameters=parameters) as batches:
        return build_audience(batches)


def ask(warehouse: Path, sql: str) -> set[int]:
    with closing(sqlite3.connect(warehouse)) as db:
        return {value for (value,) in db.execute(sql)}


@pytest.mark.parametrize(
    "end",
    [
        datetime.combine(TODAY, time(0), UTC),
        datetime.combine(TODAY, time(23, 59, 59), UTC),
        datetime.combine(TODAY - timedelta(days=7), time(9), UTC),  # a weekly schedule's last interval
    ],
)
def test_the_push_campaign_finds_a_third_of_the_devices_on_every_platform(
    warehouse: Path, end: datetime
) -> None:
    lapsed = audience(warehouse, "lapsed_buyers", end)
    assert 3_000 <= len(lapsed.identifiers) <= 4_000
    assert set(lapsed.groups["platform"]) == {"android", "ios", "chrome", "firefox", "safari"}
    assert all(len(members) > 100 for members in lapsed.groups["platform"].values())
    assert {"time_zone", "language"} < set(lapsed.groups)
    assert lapsed.dropped["duplicate"] > 0
    assert lapsed.dropped["null"] > 0


def test_the_push_campaign_leaves_out_who_bought_lately_or_never_or_did_not_agree(warehouse: Path) -> None:
    found = set(audience(warehouse, "lapsed_buyers", datetime.combine(TODAY, time(0), UTC)).identifiers)
    devices = "SELECT device_id FROM devices WHERE device_id IS NOT NULL AND customer_id"
    lately = ask(
        warehouse, f"{devices} IN (SELECT customer_id FROM purchases WHERE purchased_at >= '2026-08-22')"
    )
    never = ask(warehouse, f"{devices} NOT IN (SELECT customer_id FROM purchases)")
    refused = ask(
        warehouse, f"{devices} IN (SELECT customer_id FROM consents WHERE channel = 'push' AND NOT granted)"
    )
    everybody = ask(
        warehouse, "SELECT device_id FROM devices WHERE device_id IS NOT NULL AND platform <> 'email'"
    )
    assert lately
    assert never
    assert refused
    assert found == everybody - lately - never - refused


def test_the_email_campaign_finds_addresses_of_two_languages(warehouse: Path) -> None:
    evening = audience(warehouse, "evening_offer", datetime.combine(TODAY, time(0), UTC))
    assert set(evening.groups["platform"]) == {"email"}
    assert set(evening.groups["language"]) == {"en", "fr"}
    assert len(evening.identifiers) > 800


def test_the_directory_has_each_device_once_with_its_person(warehouse: Path, tmp_path: Path) -> None:
    export_directory(warehouse, tmp_path / "devices.csv")
    with (tmp_path / "devices.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({row["device_id"] for row in rows}) == 10_000
    assert {row["time_zone"] for row in rows} <= available_timezones()
    assert all(("@example.com" in row["email"]) == (row["platform"] == "email") for row in rows)
    addresses = [row["email"] for row in rows if row["email"]]
    assert len(addresses) == len(set(addresses))
    assert {"profile_id", "user_id", "language", "first_name"} < set(rows[0])


def test_the_same_arguments_make_the_same_warehouse(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        make_warehouse(tmp_path / name, customers=300, seed=seed, today=TODAY)
    a, b, c = (list(_dump(tmp_path / name)) for name in "abc")
    assert a == b
    assert a != c


def test_a_warehouse_is_made_in_place_of_an_older_one(tmp_path: Path) -> None:
    for customers in (30, 12):
        made = make_warehouse(tmp_path / "w", customers=customers, seed=1, today=TODAY)
    assert (made.customers, made.devices) == (12, 20)
    assert len(ask(tmp_path / "w", "SELECT customer_id FROM customers")) == 12


@pytest.mark.parametrize("customers", [1, 2, 3, 10])
def test_a_warehouse_may_be_tiny(tmp_path: Path, customers: int) -> None:
    made = make_warehouse(tmp_path / "w", customers=customers, seed=1, today=TODAY)
    assert made.devices == customers * 5 // 3


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())
