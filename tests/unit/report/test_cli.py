"""The commands that write a report, export verdicts and compare outcomes."""

from __future__ import annotations

import json
import re
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sendoff.campaign import load_campaign
from sendoff.errors import CampaignError
from sendoff.ledger import Ledger

from ...factories import KEY
from ...two_variants import launch, open_shop, write_campaign

VISITED = (
    "WITH RECURSIVE people (who) AS (SELECT 1 UNION ALL SELECT who + 1 FROM people WHERE who < 120) "
    "SELECT who AS device_id, who % 3 AS value FROM people"
)

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_campaign(tmp_path / "spring")


@pytest.fixture
def ledger_url(migrated_url: str, folder: Path) -> str:
    """A ledger with a launch to a hundred people in two variants, and twenty held out."""
    with closing(Ledger(migrated_url)) as ledger:
        launch(ledger, folder, held_out=20)
    return migrated_url


@pytest.fixture
def shop(tmp_path: Path) -> str:
    return open_shop(tmp_path / "shop.db", [*range(1, 21), 51, 101])


def test_a_report_compares_the_variants_of_a_launch(ledger_url: str, sendoff: Command) -> None:
    shown = sendoff("report", KEY, "--ledger", ledger_url)
    assert shown.returncode == 0, shown.stderr
    assert "Compared: engaged" in shown.stdout
    assert "control group: not measurable, because they got no message." in shown.stdout
    told = json.loads(sendoff("report", KEY, "--ledger", ledger_url, "--json").stdout)
    (compared,) = told["comparisons"]
    assert [(side["name"], side["count"]) for side in compared["sides"]] == [
        ("blue", 0),
        ("red", 0),
        ("control group", None),
    ]


def test_a_report_compares_what_people_did_afterwards(
    ledger_url: str, shop: str, folder: Path, sendoff: Command
) -> None:
    arguments = ("report", KEY, "--ledger", ledger_url, "--outcome", shop, "--folder", str(folder), "--json")
    told = json.loads(sendoff(*arguments).stdout)
    assert [(side["name"], side["people"], side["count"]) for side in told["comparisons"][1]["sides"]] == [
        ("blue", 50, 20),
        ("red", 50, 1),
        ("control group", 20, 1),
    ]


def test_a_report_says_how_much_longer_a_difference_of_a_given_size_takes(
    ledger_url: str, shop: str, folder: Path, sendoff: Command
) -> None:
    (folder / "outcome.sql").write_text(
        "SELECT device_id FROM orders UNION SELECT device_id + 50 FROM orders"
    )
    arguments = (
        "report",
        KEY,
        "--ledger",
        ledger_url,
        "--outcome",
        shop,
        "--folder",
        str(folder),
        "--detect",
    )
    shown = " ".join(sendoff(*arguments, "25%").stdout.split())
    found = re.search(r"such as ([\d.]+) % against ([\d.]+) %", shown)
    assert found is not None, shown
    assert float(found[2]) == pytest.approx(1.25 * float(found[1]), abs=0.02)
    for wrong in ("0", "-5%", "much"):
        told = sendoff(*arguments, wrong)
        assert told.returncode == 2
        assert f"--detect: '{wrong}' is not a percentage above 0. Write it as 5%." in told.stderr


def test_a_campaign_without_an_outcome_query_says_so(
    ledger_url: str, shop: str, folder: Path, sendoff: Command
) -> None:
    (folder / "outcome.sql").unlink()
    told = sendoff("report", KEY, "--ledger", ledger_url, "--outcome", shop, "--folder", str(folder))
    assert told.returncode == 1
    assert "outcome.sql: the file does not exist. Add the outcome query" in told.stderr


def test_an_outcome_query_is_read_with_its_campaign(folder: Path, tmp_path: Path) -> None:
    sql = load_campaign(folder).outcome_sql
    assert sql is not None
    assert sql.startswith("SELECT device_id FROM orders")
    (folder / "outcome.sql").write_text(" \n")
    with pytest.raises(CampaignError, match=r"outcome\.sql: the file is empty"):
        load_campaign(folder)
    (folder / "outcome.sql").unlink()
    (folder / "outcome.sql").symlink_to(tmp_path / "shop.db")
    with pytest.raises(CampaignError, match="leads out of the campaign's folder"):
        load_campaign(folder)


def test_a_query_of_what_was_before_is_read_with_the_outcome_query(folder: Path) -> None:
    (folder / "before.sql").write_text(VISITED)
    assert load_campaign(folder).before_sql == VISITED
    (folder / "before.sql").write_text(f"{VISITED} WHERE '{{{{ ds }}}}'")
    with pytest.raises(CampaignError, match=r"before\.sql:1: found Jinja"):
        load_campaign(folder)


def test_a_query_of_what_was_before_needs_an_outcome_query(folder: Path, sendoff: Command) -> None:
    (folder / "before.sql").write_text(VISITED)
    (folder / "outcome.sql").unlink()
    told = sendoff("check", str(folder))
    assert told.returncode == 1
    assert (
        "before.sql: mistake: found a query without outcome.sql, which it adjusts. Add outcome.sql, or remove this file"
        in " ".join((told.stdout + told.stderr).split())
    )


def test_a_report_adjusts_means_by_what_people_did_before(
    ledger_url: str, shop: str, folder: Path, sendoff: Command
) -> None:
    (folder / "outcome.sql").write_text("SELECT device_id, 1 + device_id % 2 AS value FROM orders")
    (folder / "before.sql").write_text(VISITED)
    shown = sendoff("report", KEY, "--ledger", ledger_url, "--outcome", shop, "--folder", str(folder))
    assert "The means are adjusted by what the devices did before the launch" in " ".join(
        shown.stdout.split()
    )


def test_a_report_is_written_as_a_page(ledger_url: str, tmp_path: Path, sendoff: Command) -> None:
    page = tmp_path / "report.html"
    shown = sendoff("report", KEY, "--ledger", ledger_url, "--html", str(page))
    assert shown.stdout.endswith(f"page: {page}\n")
    assert "Compared: engaged" in page.read_text()


@pytest.mark.parametrize("option", ["--html", "--outcome", "--picture"])
def test_what_is_written_needs_a_launch(ledger_url: str, sendoff: Command, option: str) -> None:
    told = sendoff("report", "--ledger", ledger_url, option, "x")
    assert (told.returncode, f"{option} needs a launch" in told.stderr) == (2, True)


def test_verdicts_are_written_to_a_file_that_is_not_replaced_by_chance(
    ledger_url: str, tmp_path: Path, sendoff: Command
) -> None:
    file = tmp_path / "verdicts.parquet"
    arguments = ("verdicts", KEY, "--ledger", ledger_url, "--out", str(file))
    assert sendoff(*arguments).stdout == f"120 rows: {file}\n"
    assert pq.read_table(file).num_rows == 120
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "already exists" in sendoff(*arguments).stderr
    assert sendoff(*arguments, "--force", "--verdict", "not sent").stdout == f"20 rows: {file}\n"


def test_verdicts_are_written_to_a_table(ledger_url: str, shop: str, sendoff: Command) -> None:
    for _ in range(2):
        told = sendoff("verdicts", KEY, "--ledger", ledger_url, "--to", shop, "--table", "verdicts")
        assert told.stdout == "120 rows: table verdicts\n", told.stderr
    with closing(sqlite3.connect(shop.removeprefix("sqlite:///"))) as connection:
        assert connection.execute("SELECT count(*), sum(held_out) FROM verdicts").fetchall() == [(120, 20)]


def test_results_are_written_to_three_tables(ledger_url: str, shop: str, sendoff: Command) -> None:
    for _ in range(2):
        told = sendoff("tables", KEY, "--ledger", ledger_url, "--to", shop, "--schema", "main")
        assert told.stdout.splitlines() == [
            "1 row: table sendoff_launches",
            "120 rows: table sendoff_verdicts",
            "1 row: table sendoff_comparisons",
        ], told.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "Give a destination: --out FILE, or --to URL with --table NAME."),
        (("--to", "sqlite:///x.db"), "Give a destination"),
        (("--table", "x"), "Give a destination"),
        (
            ("--out", "x.csv", "--verdict", "lost"),
            "--verdict: 'lost' is not a verdict. Use engaged, delivered",
        ),
        (("--out", "x.txt"), "must end in .parquet or .csv"),
    ],
)
def test_a_place_that_is_none_is_told(
    ledger_url: str, sendoff: Command, arguments: tuple[str, ...], problem: str
) -> None:
    told = sendoff("verdicts", KEY, "--ledger", ledger_url, *arguments)
    assert told.returncode == 2
    assert problem in " ".join(told.stderr.split())
