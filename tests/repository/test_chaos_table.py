"""The table of the crash tests, as it appears in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_totals_are_those_of_the_first_table_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from tools.chaos.counting import Count
    from tools.chaos.scenarios import SCENARIOS
    from tools.chaos.table import BEGIN, END, Row, write

    file = tmp_path / "reliability.md"
    file.write_text(f"# Reliability\n\n{BEGIN}\n{END}\n")
    rows = [Row(each, Count(launches=2, dispatches=10, post_backs=700, killed=3)) for each in SCENARIOS]
    write(file, rows)
    proven = sum(each.expected == "none" for each in SCENARIOS)
    assert 0 < proven < len(SCENARIOS)
    assert (
        f"In the first table: {2 * proven:,} launches, {10 * proven:,} dispatches, {700 * proven:,} post-backs that "
        f"were answered 2xx, {3 * proven:,} processes killed.\n"
    ) in file.read_text()


def test_every_row_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from tools.chaos.scenarios import SCENARIOS

    page = (ROOT / "docs/operations/chaos-scenarios.md").read_text()
    described = {
        line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")
    }
    assert {each.name for each in SCENARIOS} == described - {"Row"}
