"""The table of a run, for the terminal, the documentation, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.chaos.counting import Count
from tools.chaos.processes import ChaosError
from tools.chaos.scenarios import Expected, Scenario

BEGIN = "<!-- written by: python -m tools.chaos --write -->"
END = "<!-- end of what is written -->"
NO_TIME = "no time was left"
_COLUMNS = (
    "scenarios",
    "killed",
    "dispatches",
    "duplicates",
    "above daily limit",
    "sent after opt-out or open",
    "other variant or hour",
    "lost",
    "in doubt",
    "resolved by evidence",
)
_PARTS: dict[Expected, tuple[str, str]] = {
    "none": ("What goes wrong", "Duplicates and losses must be 0."),
    "some": ("A protocol that is wrong on purpose", "The same counting must find something in each row."),
    "any": ("A service that says it did not", "Outside of the promise: shown, but not required to be 0."),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A scenario with its counts; None if it could not be played, and ``left_out`` says why."""

    scenario: Scenario
    count: Count | None
    left_out: str = ""

    @property
    def is_as_expected(self) -> bool:
        """Whether the counts are as expected. A row that this machine cannot play counts as expected."""
        if self.count is None:
            return self.left_out != NO_TIME
        if self.scenario.expected == "any":
            return True
        damage = (
            self.count.duplicates
            + self.count.above_limit
            + self.count.sent_too_late
            + self.count.other_variants
            + self.count.wrong_hours
            + self.count.lost
        )
        if self.scenario.expected == "some":
            return damage > 0
        return not damage and not self.count.unfinished and not self.shows_nothing

    @property
    def shows_nothing(self) -> bool:
        """Whether nothing went wrong, although something should have."""
        return self.scenario.strikes and self.count is not None and not self.count.killed + self.count.faults

    def cells(self) -> tuple[str, ...]:
        """Return the row as texts, its name first."""
        if self.count is None:
            return (self.scenario.name, *[""] * (len(_COLUMNS) - 1), f"left out: {self.left_out}")
        numbers = (
            self.count.launches,
            self.count.killed,
            self.count.dispatches,
            self.count.duplicates,
            self.count.above_limit,
            self.count.sent_too_late,
            self.count.other_variants + self.count.wrong_hours,
            self.count.lost,
            self.count.in_doubt,
            self.count.resolved,
        )
        return (self.scenario.name, *(f"{number:,}" for number in numbers))


def as_text(rows: Sequence[Row]) -> str:
    """Return the tables as text for a terminal."""
    lines = []
    for expected, (title, note) in _PARTS.items():
        part = [row.cells() for row in rows if row.scenario.expected == expected]
        if part:
            cells = [(title, *_COLUMNS), *part]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            lines += [_line(each, widths) for each in cells] + [note, ""]
    return "\n".join(lines + [_problem(row) for row in rows if not row.is_as_expected])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([cells[0].ljust(widths[0]), *numbers]).rstrip()


def _problem(row: Row) -> str:
    if row.count is None:
        return f"NOT PROVEN: {row.scenario.name}: {row.left_out}; allow more with CHAOS_SECONDS"
    if row.scenario.expected == "some":
        return f"NOT PROVEN: {row.scenario.name}: nothing was found, so the zeros above prove nothing"
    if row.shows_nothing:
        return f"NOT PROVEN: {row.scenario.name}: nothing was killed and no fault happened"
    return (
        f"FAILED: {row.scenario.name}: {row.count.duplicates} duplicates, {row.count.above_limit} above a daily limit, "
        f"{row.count.sent_after_opt_out} sent after opting out, {row.count.sent_after_open} after opening, "
        f"{row.count.other_variants} sent another variant, {row.count.wrong_hours} at another hour, "
        f"{row.count.lost_dispatches} dispatches, "
        f"{row.count.lost_post_backs} post-backs and {row.count.lost_opt_outs} opt-outs lost, "
        f"{row.count.unfinished} unfinished"
    )


def as_json(rows: Sequence[Row], seconds: float) -> str:
    """Return the tables as JSON, with everything that was counted."""
    return json.dumps({"seconds": round(seconds), "rows": [_entry(row) for row in rows]}, indent=2)


def _entry(row: Row) -> dict[str, Any]:
    entry = {"fault": row.scenario.name, "what": row.scenario.what, "expected": row.scenario.expected}
    if row.count is None:
        return {**entry, "left_out": row.left_out}
    return {**entry, **asdict(row.count), "lost": row.count.lost, "is_as_expected": row.is_as_expected}


def write(file: Path, rows: Sequence[Row]) -> None:
    """Replace the text between the marks of a document with the tables."""
    text = file.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ChaosError(f"{file} has no place for the tables; add the lines {BEGIN!r} and {END!r}")
    before, rest = text.split(BEGIN)
    file.write_text(f"{before}{BEGIN}\n\n{_as_markdown(rows)}\n{END}{rest.split(END)[1]}")


def _as_markdown(rows: Sequence[Row]) -> str:
    lines = []
    for expected, (title, note) in _PARTS.items():
        part = [row for row in rows if row.scenario.expected == expected]
        if part:
            lines += [f"### {title}", "", note, ""]
            lines += [_bars((title, *_COLUMNS)), _bars(("---", *["---:"] * len(_COLUMNS)))]
            lines += [_bars(row.cells()) for row in part] + [""]
    counts = [row.count for row in rows if row.count and row.scenario.expected == "none"]
    lines.append(
        f"In the first table: {sum(count.launches for count in counts):,} launches, "
        f"{sum(count.dispatches for count in counts):,} dispatches, "
        f"{sum(count.post_backs for count in counts):,} post-backs that were answered 2xx, "
        f"{sum(count.killed for count in counts):,} processes killed.\n"
    )
    return "\n".join(lines)


def _bars(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
