"""The demo's warehouse: an invented shop with customers, devices, purchases and consents, in one SQLite file.

A device is one endpoint that the service can reach: an app, a browser, or an email address. As in a real shop, some
rows are duplicates and some have no device_id.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sendoff.ledger import make_private

_DEVICES_FOR_3_CUSTOMERS = 5
_PURCHASES_FOR_1_CUSTOMER = 3
_FIRST_DEVICE_ID = 40_000_000
_LOADED_TWICE = 0.004
_WITHOUT_ID = 0.001

_EMAIL_ADDRESSES = 0.30  # of all devices; a customer has at most one
_PLATFORMS = {"android": 0.36, "ios": 0.29, "chrome": 0.20, "firefox": 0.07, "safari": 0.08}
_SPEAKERS = {"en": 0.42, "fr": 0.22, "de": 0.18, "es": 0.12, "it": 0.06}
_ZONES = {
    "en": ("Europe/London", "Europe/Dublin", "America/New_York", "America/Los_Angeles"),
    "fr": ("Europe/Paris", "Europe/Brussels", "America/Toronto", "Europe/Zurich"),
    "de": ("Europe/Berlin", "Europe/Vienna", "Europe/Zurich", "Europe/Berlin"),
    "es": ("Europe/Madrid", "America/Mexico_City", "America/Bogota", "Europe/Madrid"),
    "it": ("Europe/Rome", "Europe/Rome", "Europe/Zurich", "Europe/Rome"),
}
_FIRST_NAMES = {
    "en": ("Grace", "Oliver", "Maeve", "Noah"),
    "fr": ("Chloé", "Hugo", "Inès", "Louis"),
    "de": ("Jürgen", "Leonie", "Anton", "Greta"),
    "es": ("Lucía", "Mateo", "Begoña", "Iker"),
    "it": ("Giulia", "Luca", "Noè", "Chiara"),
}
# The age of people's last purchase, in days, and their share. The rest never bought anything.
_BOUGHT_LAST = (("active", 0, 80, 0.22), ("lapsed", 110, 900, 0.66))
_CONSENTS = {"push": 0.78, "email": 0.64, "sms": 0.30}

_SCHEMA = """
CREATE TABLE customers (
    customer_id INTEGER PRIMARY KEY, user_id TEXT NOT NULL, first_name TEXT NOT NULL, email TEXT NOT NULL,
    language TEXT NOT NULL, time_zone TEXT NOT NULL);
CREATE TABLE devices (
    device_id INTEGER, customer_id INTEGER NOT NULL, platform TEXT NOT NULL, email TEXT,
    language TEXT NOT NULL, time_zone TEXT NOT NULL);
CREATE TABLE purchases (customer_id INTEGER NOT NULL, purchased_at TEXT NOT NULL, amount REAL NOT NULL);
CREATE TABLE consents (
    customer_id INTEGER NOT NULL, purpose TEXT NOT NULL, channel TEXT NOT NULL, granted INTEGER NOT NULL,
    PRIMARY KEY (customer_id, purpose, channel)) WITHOUT ROWID;
"""
_INDEXES = """
CREATE INDEX devices_of_customer ON devices (customer_id);
CREATE INDEX purchases_of_customer ON purchases (customer_id, purchased_at);
"""
_DIRECTORY = """
SELECT DISTINCT d.device_id, d.platform, c.customer_id AS profile_id, c.user_id, d.language, d.time_zone, d.email,
       c.first_name
FROM devices d JOIN customers c USING (customer_id)
WHERE d.device_id IS NOT NULL
ORDER BY d.device_id
"""


@dataclass(frozen=True, slots=True)
class Made:
    """The number of rows of each kind. ``devices`` counts distinct devices, although some have several rows."""

    customers: int
    devices: int
    purchases: int

    def __str__(self) -> str:
        """Return the numbers in half a line."""
        return f"{self.devices:,} devices of {self.customers:,} customers with {self.purchases:,} purchases"


def make_warehouse(path: Path, *, customers: int, seed: int, today: date) -> Made:
    """Write the warehouse to a SQLite file, replacing the file. The same arguments produce the same rows.

    There are five devices for three customers. Purchases end on the day before ``today``, so that a campaign for a
    period that ends then finds its people.
    """
    rng = np.random.default_rng(seed)
    path.unlink(missing_ok=True)
    make_private(path)
    with closing(sqlite3.connect(path)) as warehouse, warehouse:
        warehouse.executescript(_SCHEMA)
        people = _people(rng, customers)
        _insert(warehouse, "customers", people)
        devices = _devices(rng, people)
        _insert(warehouse, "devices", _as_loaded(rng, devices))
        purchases = _purchases(rng, customers, today)
        _insert(warehouse, "purchases", purchases)
        _insert(warehouse, "consents", _consents(rng, customers))
        warehouse.executescript(_INDEXES)
    return Made(customers, len(devices), len(purchases))


def export_directory(path: Path, csv_path: Path) -> None:
    """Write the devices of a warehouse as a private CSV file for the service's device directory."""
    make_private(csv_path)
    with (
        closing(sqlite3.connect(path)) as warehouse,
        csv_path.open("w", newline="", encoding="utf-8") as file,
    ):
        rows = warehouse.execute(_DIRECTORY)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(column[0] for column in rows.description)
        writer.writerows(rows)


def _people(rng: np.random.Generator, customers: int) -> list[tuple[Any, ...]]:
    languages = _choice(rng, _SPEAKERS, customers)
    picks = rng.integers(0, 4, (customers, 2)).tolist()
    return [
        (
            number,
            f"C{number:07}",
            _FIRST_NAMES[language][name],
            f"customer{number}@example.com",
            language,
            _ZONES[language][zone],
        )
        for number, (language, (name, zone)) in enumerate(zip(languages, picks, strict=True), 1)
    ]


def _devices(rng: np.random.Generator, people: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    count = len(people) * _DEVICES_FOR_3_CUSTOMERS // 3
    addresses = int(count * _EMAIL_ADDRESSES)
    owners = [*rng.permutation(len(people))[:addresses], *rng.integers(0, len(people), count - addresses)]
    platforms = ["email"] * addresses + _choice(rng, _PLATFORMS, count - addresses)
    ids = _FIRST_DEVICE_ID + np.cumsum(rng.integers(1, 6, count))
    return [
        (device, *_device(people[owners[place]], platforms[place]))
        for device, place in zip(ids.tolist(), rng.permutation(count).tolist(), strict=True)
    ]


def _device(owner: tuple[Any, ...], platform: str) -> tuple[Any, ...]:
    customer_id, _, _, email, language, time_zone = owner
    return customer_id, platform, email if platform == "email" else None, language, time_zone


def _as_loaded(rng: np.random.Generator, devices: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    twice = rng.choice(len(devices), int(len(devices) * _LOADED_TWICE), replace=False)
    nameless = rng.choice(len(devices), int(len(devices) * _WITHOUT_ID), replace=False)
    rows = [
        *devices,
        *(devices[place] for place in twice),
        *((None, *devices[place][1:]) for place in nameless),
    ]
    return [rows[place] for place in rng.permutation(len(rows))]


def _purchases(rng: np.random.Generator, customers: int, today: date) -> list[tuple[Any, ...]]:
    buyers, last = _last_purchases(rng, customers)
    count = customers * _PURCHASES_FOR_1_CUSTOMER
    earlier = (
        rng.integers(0, len(buyers), max(0, count - len(buyers))) if len(buyers) else np.empty(0, np.int64)
    )
    who = np.concatenate([buyers, buyers[earlier]])
    seconds = np.concatenate([last, last[earlier] + rng.integers(0, 700 * 86_400, len(earlier))])
    moments = np.datetime64(today, "s") - 1 - seconds
    amounts = rng.gamma(2.0, 25.0, len(who)).round(2).tolist()
    times = [moment.replace("T", " ") for moment in np.datetime_as_string(moments).tolist()]
    return list(zip(who.tolist(), times, amounts, strict=True))


def _last_purchases(
    rng: np.random.Generator, customers: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    order = rng.permutation(customers) + 1
    buyers, seconds, start = [], [], 0
    for _, newest, oldest, share in _BOUGHT_LAST:
        some = order[start : start + int(customers * share)]
        buyers.append(some)
        seconds.append(rng.integers(newest * 86_400, oldest * 86_400, len(some)))
        start += len(some)
    return np.concatenate(buyers), np.concatenate(seconds)


def _consents(rng: np.random.Generator, customers: int) -> list[tuple[Any, ...]]:
    return [
        (number, "marketing", channel, int(granted))
        for channel, share in _CONSENTS.items()
        for number, granted in enumerate((rng.random(customers) < share).tolist(), 1)
    ]


def _choice(rng: np.random.Generator, shares: dict[str, float], count: int) -> list[str]:
    chosen: list[str] = rng.choice(list(shares), count, p=list(shares.values())).tolist()
    return chosen


def _insert(warehouse: sqlite3.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    rows = list(rows)
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        warehouse.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608  # a name from this file
