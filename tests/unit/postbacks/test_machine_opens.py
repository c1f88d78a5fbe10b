"""Opens that a machine probably made are counted apart, and change no verdict."""

from __future__ import annotations

import json
from datetime import timedelta

import numpy as np
import pytest

from sendoff.audience.identifiers import integers, strings
from sendoff.ledger import Ledger
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.machine_opens import BURST
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import as_text, describe_launch
from sendoff.service.postbacks import PostBack

from ...factories import KEY, NOW, make_accepted, post_back, store

PEOPLE = 2_000


def after(seconds: float) -> timedelta:
    return timedelta(seconds=float(seconds))


def test_machines_are_suspected_and_people_are_not(ledger: Ledger) -> None:
    """A scanner opens within two seconds of the delivery; people need ten seconds to hours."""
    chance = np.random.default_rng(9)
    key = make_accepted(ledger, range(1, PEOPLE + 1))
    bots = set(chance.choice(np.arange(1, PEOPLE + 1), 150, replace=False).tolist())
    people = set(chance.choice(np.arange(1, PEOPLE + 1), 400, replace=False).tolist())
    came: list[PostBack] = []
    for who in range(1, PEOPLE + 1):
        delivered = NOW + after(chance.uniform(0, 600))
        came.append(post_back(key, "delivery", who, at=delivered))
        if who in bots:
            came.append(post_back(key, "open", who, at=delivered + after(chance.uniform(0, 2))))
        if who in people:
            came.append(post_back(key, "open", who, at=delivered + after(10 + chance.exponential(3_600))))
    chance.shuffle(came)  # type: ignore[arg-type]
    store(ledger, *came)
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert figures.verdicts["engaged"] == len(bots | people)
    assert ledger.aggregates.totals(KEY)[key].suspects == integers(bots - people)
    assert figures.suspects == len(bots - people)
    assert f"probably a machine {figures.suspects}" in " ".join(as_text(describe_launch(figures)).split())


@pytest.mark.parametrize("seconds", ["0", "30"])
def test_the_seconds_are_a_setting(ledger: Ledger, seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_MACHINE_OPEN_SECONDS", seconds)
    key = make_accepted(ledger, range(1, 100))
    store(
        ledger,
        *(post_back(key, "delivery", who) for who in range(1, 100)),
        *(post_back(key, "open", who, at=NOW + after(20)) for who in range(1, 100)),
    )
    assert reconcile_launch(ledger, KEY, now=NOW).suspects == (0 if seconds == "0" else 99)


@pytest.mark.code_decides
def test_an_open_is_suspected_up_to_the_last_second_before_or_after_its_delivery(ledger: Ledger) -> None:
    key = make_accepted(ledger, range(1, 6))
    store(
        ledger,
        *(post_back(key, "delivery", who) for who in range(1, 5)),
        *(post_back(key, "open", who, at=NOW + after(at)) for who, at in ((1, 2), (2, -2), (3, 3), (4, -3))),
        post_back(key, "open", 5),  # without a delivery
    )
    reconcile_launch(ledger, KEY, now=NOW)
    assert ledger.aggregates.totals(KEY)[key].suspects == integers([1, 2])


@pytest.mark.parametrize(("opens", "suspected"), [(BURST - 1, 0), (BURST, BURST)])
def test_many_opens_in_one_second_are_suspected(ledger: Ledger, opens: int, suspected: int) -> None:
    key = make_accepted(ledger, strings(f"cust-{number}" for number in range(300)))
    others = [post_back(key, "open", f"cust-{number}", at=NOW + after(number)) for number in range(200, 240)]
    store(ledger, *(post_back(key, "open", f"cust-{number}") for number in range(opens)), *others)
    assert reconcile_launch(ledger, KEY, now=NOW).suspects == suspected


@pytest.mark.parametrize("apart", [1, 10, 1_000])
@pytest.mark.parametrize(("opens", "suspected"), [(99, 0), (100, 100)])
def test_a_share_of_the_recipients_is_one_of_their_number_not_of_the_range_of_their_identifiers(
    ledger: Ledger, apart: int, opens: int, suspected: int
) -> None:
    people = range(1, 10_000 * apart + 1, apart)
    key = make_accepted(ledger, people)
    store(ledger, *(post_back(key, "open", who) for who in people[:opens]))
    assert reconcile_launch(ledger, KEY, now=NOW).suspects == suspected


@pytest.mark.parametrize("year", [1, 1969, 2107, 9998])
def test_a_time_of_another_century_is_counted_like_any_other(ledger: Ledger, year: int) -> None:
    key = make_accepted(ledger, range(1, 2 * BURST + 1))
    kinds = dict.fromkeys(range(1, BURST + 1), "open") | {BURST + 1: "delivery"}
    time = NOW.replace(year=year).isoformat()
    bodies = {who: {"time": time, "campaign": {"id": 17}, "device": {"id": who}} for who in kinds}
    came = (
        PostBack.received(kinds[who], key, NOW, json.dumps(body).encode()) for who, body in bodies.items()
    )
    store(ledger, *came)
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.verdicts["engaged"], figures.verdicts["delivered"]) == (BURST, 1)


@pytest.mark.parametrize("is_first", [True, False])
def test_one_open_of_a_person_is_enough(ledger: Ledger, *, is_first: bool) -> None:
    key = make_accepted(ledger, range(1, 4))
    scanned = [post_back(key, kind, who) for who in (1, 2) for kind in ("delivery", "open")]
    read = [post_back(key, "open", 1, at=NOW + timedelta(hours=1))]
    for run in (read, scanned) if is_first else (scanned, read):
        store(ledger, *run)
        aggregate(ledger, now=NOW)
    totals = ledger.aggregates.totals(KEY)[key]
    assert (totals.engaged, totals.suspects) == (integers([1, 2]), integers([2]))
    reconcile_launch(ledger, KEY, now=NOW)
    status = [ledger.launches.recipient(KEY, who) for who in (1, 2, 3)]
    assert [each.is_suspect for each in status] == [False, True, False]
    assert status[1].sentence == "got it: opened or clicked, probably by a machine"


def test_an_open_whose_delivery_was_aggregated_before_is_not_suspected(ledger: Ledger) -> None:
    key = make_accepted(ledger, range(1, 4))
    for kind in ("delivery", "open"):
        store(ledger, post_back(key, kind, 1))
        aggregate(ledger, now=NOW)
    assert not ledger.aggregates.totals(KEY)[key].suspects
