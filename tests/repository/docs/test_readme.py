"""The claims of README.md: its figures match the demo, and its table of verdicts matches the report."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from sendoff.campaign import Period, launch_key, load_campaign
from sendoff.demo.options import Options
from sendoff.demo.warehouse import Made, make_warehouse
from sendoff.figures import share
from sendoff.launch.plan import Plan, plan_launch
from sendoff.states import Verdict

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = README[README.index("lapsed_buyers  ") : README.index("```", README.index("lapsed_buyers  "))]
MONDAY = datetime(2026, 11, 23, 9, tzinfo=UTC)
WEEK = Period(datetime(2026, 11, 16, 9, tzinfo=UTC), MONDAY)


def number(pattern: str) -> int:
    """Return the number that this pattern finds in the report."""
    [found] = re.findall(pattern, SHOWN)
    return int(found.replace(",", ""))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    """The demo's warehouse for the day of the demo in README.md."""
    shown = date.fromisoformat(re.findall(r"as of (\S+)", SHOWN)[0])
    path = tmp_path_factory.mktemp("demo") / "warehouse.db"
    options = Options()
    return path, make_warehouse(path, customers=options.customers, seed=options.seed, today=shown)


@pytest.fixture(scope="module")
def plan(made: tuple[Path, Made]) -> Plan:
    path, _ = made
    folder = load_campaign(ROOT / "dags/campaigns/lapsed_buyers")
    return plan_launch(None, folder, period=WEEK, warehouses=lambda _: f"sqlite:///{path}", now=MONDAY)


def test_the_demo_has_as_many_devices_as_it_says(made: tuple[Path, Made]) -> None:
    _, numbers = made
    assert f"{numbers.devices:,} devices" in README


def test_the_shown_launch_is_the_one_of_its_period() -> None:
    assert f"lapsed_buyers  {WEEK.key}" in SHOWN
    assert f"launch {launch_key('sendoff_default', 'lapsed_buyers', WEEK)}" in SHOWN


def test_the_shown_audience_is_the_one_of_the_demos_warehouse(plan: Plan) -> None:
    assert plan.audience is not None
    assert number(r"= +([\d,]+) +100.0 % +audience") == len(plan.audience.identifiers)
    assert number(r"truth +([\d,]+) verdicts") == len(plan.audience.identifiers)


def test_the_shown_verdicts_add_up_to_the_audience(plan: Plan) -> None:
    shown = {name: number(rf"([\d,]+) +[\d.]+ % +{name.replace('_', ' ')}\b") for name in Verdict}
    assert sum(shown.values()) == plan.people
    for name, count in shown.items():
        assert re.search(rf"{re.escape(share(count, plan.people or 0))} +{name.replace('_', ' ')}", SHOWN)
    at_least = shown["engaged"] + shown["delivered"]
    assert number(r"at least ([\d,]+)") == at_least
    assert number(r"at most ([\d,]+)") == at_least + shown["unknowable"] + shown["in_doubt"]
    assert f"each of the {plan.people:,} verdicts" in README


def test_the_table_of_verdicts_names_each_in_the_order_of_the_report() -> None:
    table = README[README.index("| Verdict |") :].split("\n\n")[0]
    assert re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE) == [
        name.replace("_", " ") for name in Verdict
    ]


def test_the_ports_and_places_of_the_demo_are_those_of_its_options() -> None:
    options = Options()
    for port in (options.airflow_port, options.service_port):
        assert f"http://127.0.0.1:{port}" in README
    assert options.workspace == Path(".demo")
