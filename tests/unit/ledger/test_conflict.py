"""Launches prepared at the same time always see each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign, CampaignFolder
from sendoff.errors import AudienceError, ConflictError
from sendoff.launch.plan import prepare_launch
from sendoff.ledger import Ledger
from sendoff.ledger.launches.launch_record import LaunchRecord

from ...factories import NOW, PERIOD, make_warehouse

CAPPED = {"cap": {"messages": 1, "days": 7}}


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    rows = [(n,) for n in range(1, 11)]
    return make_warehouse(tmp_path / "warehouse.db", "devices (device_id INTEGER)", rows)


@pytest.fixture
def prepare(tmp_path: Path, warehouse: str) -> Callable[..., LaunchRecord]:
    def make(
        ledger: Ledger,
        name: str,
        first: int,
        last: int,
        audience: dict[str, Any] = CAPPED,
        warehouses: Callable[[str], str] = lambda _: warehouse,
        rules: dict[str, Any] | None = None,
    ) -> LaunchRecord:
        campaign = Campaign.model_validate(
            {
                "title": name,
                "message": {"text": "Hello"},
                "channels": {"android_push": {}},
                "audience": audience,
                "rules": rules or {},
            }
        )
        sql = f"SELECT device_id FROM devices WHERE device_id BETWEEN {first} AND {last}"
        folder = CampaignFolder(name, campaign, sql, tmp_path)
        return prepare_launch(ledger, folder, period=PERIOD, warehouses=warehouses, now=NOW)

    return make


@pytest.fixture
def before_it_writes(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return a list of callables; each runs between the plan and the transaction of one of the next launches."""
    waiting: list[Callable[[], object]] = []
    write = ledger._database.write

    @contextmanager
    def after_another() -> Iterator[sa.Connection]:
        if waiting:
            waiting.pop(0)()
        with write() as db:
            yield db

    monkeypatch.setattr(ledger._database, "write", after_another)
    return waiting


@pytest.fixture
def elsewhere(ledger: Ledger) -> Iterator[Ledger]:
    """Return a second ledger on the same database, as another process has it."""
    other = Ledger(ledger._database._engine.url.render_as_string(hide_password=False))
    yield other
    other.close()


def test_a_launch_that_was_overtaken_applies_its_rules_again_and_asks_no_warehouse_again(
    ledger: Ledger,
    elsewhere: Ledger,
    prepare: Callable[..., LaunchRecord],
    before_it_writes: list[Callable[[], object]],
    warehouse: str,
) -> None:
    asked: list[str] = []
    before_it_writes.append(lambda: prepare(elsewhere, "first", 1, 5))
    before_it_writes.append(lambda: prepare(elsewhere, "second", 6, 7))
    launch = prepare(
        ledger,
        "third",
        1,
        10,
        warehouses=lambda name: asked.append(name) or warehouse,  # type: ignore[func-returns-value]
    )
    assert ledger.launches.sent(launch.launch_key) == integers([8, 9, 10])
    assert ledger.launches.suppressed(launch.launch_key) == {"cap": integers(range(1, 8))}
    assert asked == ["sendoff_warehouse"]
    assert ledger.launches.count("sendoff_default") == 3


def test_a_cap_for_all_campaigns_counts_launches_that_were_made_meanwhile(
    ledger: Ledger,
    elsewhere: Ledger,
    prepare: Callable[..., LaunchRecord],
    before_it_writes: list[Callable[[], object]],
) -> None:
    before_it_writes.append(lambda: prepare(elsewhere, "first", 1, 5))
    launch = prepare(ledger, "second", 1, 10, {}, rules=CAPPED)
    assert ledger.launches.sent(launch.launch_key) == integers(range(6, 11))


def test_a_launch_whose_people_all_went_to_the_other_is_none(
    ledger: Ledger,
    elsewhere: Ledger,
    prepare: Callable[..., LaunchRecord],
    before_it_writes: list[Callable[[], object]],
) -> None:
    before_it_writes.append(lambda: prepare(elsewhere, "first", 1, 5))
    with pytest.raises(AudienceError, match=r"none of the 5 rows is left \(5 cap\)"):
        prepare(ledger, "second", 1, 5)
    assert [each.campaign for each in ledger.launches.search()] == ["first"]
    assert len(ledger.launches.search(campaign="first")) == 1


@pytest.mark.code_decides
@pytest.mark.parametrize("audience", [CAPPED, {}])
def test_the_same_launch_that_was_made_elsewhere_is_given(
    ledger: Ledger,
    elsewhere: Ledger,
    prepare: Callable[..., LaunchRecord],
    before_it_writes: list[Callable[[], object]],
    audience: dict[str, Any],
) -> None:
    made: list[LaunchRecord] = []
    before_it_writes.append(lambda: made.append(prepare(elsewhere, "first", 1, 5, audience)))
    assert [prepare(ledger, "first", 1, 5, audience)] == made
    assert [each.kind for each in ledger.audit_log.of_launch(made[0].launch_key)] == ["gates"]


def test_a_launch_is_never_without_what_its_gates_said_whenever_its_process_dies(
    ledger: Ledger, prepare: Callable[..., LaunchRecord], before_it_writes: list[Callable[[], object]]
) -> None:
    def die() -> None:
        raise ConnectionAbortedError("the process died")

    before_it_writes.extend([lambda: None, die])  # after its first transaction
    with suppress(ConnectionAbortedError):
        prepare(ledger, "first", 1, 5)
    (launch,) = ledger.launches.search()
    assert [each.kind for each in ledger.audit_log.of_launch(launch.launch_key)] == ["gates"]


def test_rules_that_look_at_no_launch_cannot_be_overtaken(
    ledger: Ledger,
    elsewhere: Ledger,
    prepare: Callable[..., LaunchRecord],
    before_it_writes: list[Callable[[], object]],
) -> None:
    before_it_writes.append(lambda: prepare(elsewhere, "first", 1, 5))
    launch = prepare(ledger, "second", 1, 5, {"holdout": {"percent": 1}})
    assert launch.audience == 5
    assert ledger.launches.count("sendoff_default") == 2


@pytest.mark.proof
def test_a_launch_that_is_overtaken_without_end_is_left_for_later(
    ledger: Ledger,
    elsewhere: Ledger,
    prepare: Callable[..., LaunchRecord],
    before_it_writes: list[Callable[[], object]],
) -> None:
    def one_more(number: int) -> Callable[[], object]:
        return lambda: prepare(elsewhere, f"other{number}", 1, 1, {})

    before_it_writes.extend(one_more(number) for number in range(20))
    with pytest.raises(ConflictError, match="third: planned 20 times, but another launch was made each time"):
        prepare(ledger, "third", 1, 10)
    assert ledger.launches.search(campaign="third") == []


@pytest.mark.promise("twice/apart")
def test_of_launches_that_are_made_at_once_nobody_gets_two_messages(
    ledger: Ledger, elsewhere: Ledger, prepare: Callable[..., LaunchRecord], warehouse: str
) -> None:
    """Whichever of the two comes first, the other looks again, so each recipient is in exactly one."""
    both_ask = Barrier(2, timeout=120)

    def asking(_name: str) -> str:
        both_ask.wait()
        return warehouse

    with ThreadPoolExecutor(2) as threads:
        tasks = [
            threads.submit(prepare, ledger, "left", 1, 8, warehouses=asking),
            threads.submit(prepare, elsewhere, "right", 3, 10, warehouses=asking),
        ]
        left, right = (ledger.launches.sent(task.result(timeout=240).launch_key) for task in tasks)
    assert len(left & right) == 0
    assert left | right == integers(range(1, 11))
