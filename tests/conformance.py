"""Write docs/conformance.md: each rule of the service's document beside the tests that prove it.

The rules stand in rules.yaml; ``@pytest.mark.rule("2.11/send_days", side="client")`` on a test names what it proves.
Run ``python -P tests/conformance.py`` to write the page, with ``--check`` to compare it only. It fails where a rule
has no test on a side that it concerns.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs/conformance.md"
SIDES = ("service", "client")

Proofs = Mapping[tuple[str, str], Sequence[str]]
"""The tests (as file::name) that prove a rule, by its id and the side."""

_HEAD = """\
# Conformance

Every rule of the service's document, sections 2 to 9, and the tests that prove it: on the side of
`messaging_service`, and on the side of the client in `sendoff` and `sendoff_airflow`. The rules stand in
`tests/rules.yaml`, and each test says which of them it proves. `make conformance` writes this page; a test fails
where it is out of date, or where a rule has no test.
"""


@dataclass(frozen=True)
class Rule:
    """One rule, with a reason for each side that it does not concern."""

    id: str
    text: str
    reasons: Mapping[str, str]


def sections(text: str) -> Iterator[tuple[str, list[Rule]]]:
    """Read rules.yaml: the heading of each section, and its rules."""
    for number, section in yaml.safe_load(text)["sections"].items():
        rules = [_rule(f"{number}/{name}", given) for name, given in section["rules"].items()]
        yield f"{number} {section['title']}", rules


def _rule(rule_id: str, given: str | dict[str, str]) -> Rule:
    if isinstance(given, str):
        return Rule(rule_id, given, {})
    return Rule(rule_id, given["rule"], {side: given[side] for side in SIDES if side in given})


class Collector:
    """Finds which collected test proves which rule."""

    def __init__(self) -> None:
        self.proofs: dict[tuple[str, str], list[str]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            test = item.nodeid.split("[")[0]
            for marker in item.iter_markers("rule"):
                for rule in marker.args:
                    tests = self.proofs[rule, marker.kwargs["side"]]
                    if test not in tests:
                        tests.append(test)


def collected(folder: Path) -> Proofs:
    """Collect the tests of a folder without running them; RuntimeError where pytest cannot."""
    collector, said = Collector(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", str(folder)], [collector])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"the tests cannot be collected:\n{said.getvalue()[-2000:]}")
    return collector.proofs


def page(listed: Iterable[tuple[str, list[Rule]]], proofs: Proofs) -> str:
    """Write the page."""
    lines = [_HEAD]
    for heading, rules in listed:
        lines += [f"## {heading}\n", "| Rule | | Service | Client |", "|---|---|---|---|"]
        lines += [_row(rule, proofs) for rule in rules]
        lines.append("")
    return "\n".join(lines)


def _row(rule: Rule, proofs: Proofs) -> str:
    cells = [_cell(rule, proofs.get((rule.id, side), ()), rule.reasons.get(side)) for side in SIDES]
    return f"| `{rule.id}` | {rule.text} | {' | '.join(cells)} |"


def _cell(rule: Rule, tests: Sequence[str], reason: str | None) -> str:
    if reason and not tests:
        return f"not applicable: {reason}"
    return "<br>".join(f"[{name}](../{file})" for file, name in (test.split("::", 1) for test in tests))


def complaints(listed: Iterable[tuple[str, list[Rule]]], proofs: Proofs) -> Iterator[str]:
    """Name each rule without a test, and each that has both a test and a reason for having none."""
    for rule in (rule for _, rules in listed for rule in rules):
        for side in SIDES:
            proven, excused = (rule.id, side) in proofs, side in rule.reasons
            if not proven and not excused:
                yield f"{rule.id}: no test proves it on the {side}'s side: {rule.text}"
            elif proven and excused:
                yield f"{rule.id}: a test proves it on the {side}'s side; take its reason out of rules.yaml"


def main(arguments: Sequence[str]) -> int:
    listed = list(sections((TESTS / "rules.yaml").read_text()))
    proofs = collected(TESTS)
    written, found = page(listed, proofs), list(complaints(listed, proofs))
    if "--check" not in arguments:
        PAGE.write_text(written)
    elif PAGE.read_text() != written:
        found.append(f"{PAGE.name} is out of date: make conformance")
    for complaint in found:
        print(complaint)  # noqa: T201
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
