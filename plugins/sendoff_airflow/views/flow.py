"""The sums of a launch, line by line, so that whoever reads them sees that they add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sendoff.figures import HEARD_OF, VERDICTS, WHY_UNKNOWABLE, Figures
from sendoff.ledger import DISPATCH_STATES, Launch
from sendoff.report import why_unknowable


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a sum: its sign, what it counts, and the class of its colour where it has one."""

    sign: str  # empty, +, - or =
    count: int
    words: str
    colour: str = ""

    @property
    def is_sum(self) -> bool:
        """Say whether the lines above add up to it."""
        return self.sign == "="


@dataclass(frozen=True, slots=True)
class Sum:
    """Some lines that add up, or by how much they do not."""

    lines: tuple[Line, ...]

    @property
    def missing(self) -> int:
        """What the first lines and each sum below them differ by, together: anything but 0 is a defect."""
        total = wrong = 0
        for line in self.lines:
            if line.is_sum:
                wrong += abs(total - line.count)
                total = line.count
            else:
                total += -line.count if line.sign == "-" else line.count
        return wrong


def rows_to_people(launch: Launch, left_out: Mapping[str, int], people: int) -> Sum:
    """Give the way from the rows of the query to the people in segments; who is held out is of the audience."""
    lines = [Line("", launch.rows, "rows of the query")]
    by_rule = left_out.keys() - {"holdout"}
    for reason, count in launch.dropped.items():
        lines.append(Line("-", count, f"left out by rule: {reason}" if reason in by_rule else reason))
    lines.append(Line("=", launch.audience, "audience"))
    lines.append(Line("-", left_out.get("holdout", 0), "held out, to measure against"))
    lines.append(Line("=", people, "people in segments"))
    return Sum(tuple(lines))


def requests_by_state(states: Mapping[str, int], segments: int) -> Sum:
    """Give the requests of a launch by state: one for each segment."""
    lines = list(_counted(states, DISPATCH_STATES))
    return Sum((*lines, Line("=", segments, "requests, one for each segment")))


def verdicts_of(figures: Figures) -> Sum:
    """Give what became of the audience, one verdict for each person."""
    verdicts = HEARD_OF if figures.is_chosen_by_service else VERDICTS
    whole = "heard of" if figures.is_chosen_by_service else "audience"
    lines = list(_counted(figures.verdicts, verdicts, all_of_them=True))
    return Sum((*lines, Line("=", figures.audience, whole)))


def unknowable_of(figures: Figures) -> list[tuple[str, int]]:
    """Return why it cannot be known who got the message, in words, each with the number of people."""
    return [(WHY_UNKNOWABLE.get(reason, reason), count) for reason, count in why_unknowable(figures).items()]


def _counted(
    counts: Mapping[str, int], names: tuple[str, ...], *, all_of_them: bool = False
) -> Iterator[Line]:
    sign = ""
    for name in names:
        if all_of_them or counts.get(name):
            yield Line(sign, counts.get(name, 0), name.replace("_", " "), name.replace("_", "-"))
            sign = "+"
