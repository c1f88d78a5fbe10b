"""Write docs/proofs/conformance.md and docs/proofs/promises.md: rules and promises, with the tests that prove them.

rules.yaml holds the rules of the service's document. ``@pytest.mark.rule("2.11/send_days", side="client")`` on a test
names the rule that it proves. promises.yaml holds Sendoff's own promises; ``@pytest.mark.promise("twice/doubt")`` names
one. ``python -P tests/conformance.py`` writes the pages, and ``--check`` only compares them. It fails if a rule or a
promise has no test, or if a test names an unknown promise.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs/proofs/conformance.md"
PROMISES = TESTS.parent / "docs/proofs/promises.md"
SIDES = ("service", "client")

Proofs = Mapping[tuple[str, str], Sequence[str]]
"""The tests (as file::name) that prove a rule, by its id and side; for a promise, the side is empty."""

_HEAD = """\
# Conformance

All rules of the service's document (sections 2 to 9), with the tests that prove them. There are tests for two sides:
the service in `messaging_service`, and the client in `sendoff` and `sendoff_airflow`. `tests/rules.yaml` holds the
rules, and each test names the rules that it proves. `make conformance` writes this page. A test fails if the page is
out of date, or if a rule has no test.
"""

_HEAD_OF_PROMISES = """\
# Promises

Sendoff's promises, with a link to the full description of each and the tests that prove it. `make test` runs the tests
under *Test*, and `make proof` those under *Proof*. `tests/promises.yaml` holds the promises, and each test names its
promise, as in `@pytest.mark.promise("twice/doubt")`. `make conformance` writes this page. A test fails if the page is
out of date, or if a promise has no test.

The claims about [security](../operations/security-tests.md) and the
[rules of the service](conformance.md) have their own tables. The [crash tests](../operations/reliability.md) count
duplicate and lost messages when everything fails.
"""


@dataclass(frozen=True)
class Rule:
    """A rule, with a reason for each side that it does not apply to."""

    id: str
    text: str
    reasons: Mapping[str, str]


def sections(text: str) -> Iterator[tuple[str, list[Rule]]]:
    """Yield the heading of each section in rules.yaml, with its rules."""
    for number, section in yaml.safe_load(text)["sections"].items():
        rules = [_rule(f"{number}/{name}", given) for name, given in section["rules"].items()]
        yield f"{number} {section['title']}", rules


def _rule(rule_id: str, given: str | dict[str, str]) -> Rule:
    if isinstance(given, str):
        return Rule(rule_id, given, {})
    return Rule(rule_id, given["rule"], {side: given[side] for side in SIDES if side in given})


@dataclass(frozen=True)
class Promise:
    """A promise, and the page in docs/ that describes it."""

    id: str
    text: str
    place: str


def promises(text: str) -> Iterator[tuple[str, list[Promise]]]:
    """Yield the headings in promises.yaml, with the promises under each."""
    for heading, given in yaml.safe_load(text).items():
        yield heading, [Promise(name, each["promise"], each["page"]) for name, each in given.items()]


class Collector:
    """Collects which tests prove which rules and promises."""

    def __init__(self) -> None:
        self.proofs: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.in_test: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            test = item.nodeid.split("[")[0]
            if not item.get_closest_marker("proof"):
                self.in_test.add(test)
            for marker in [*item.iter_markers("rule"), *item.iter_markers("promise")]:
                for name in marker.args:
                    tests = self.proofs[name, marker.kwargs.get("side", "")]
                    if test not in tests:
                        tests.append(test)


def collected(folder: Path) -> Collector:
    """Collect the tests of a folder without running them. Raise RuntimeError if pytest cannot."""
    collector, said = Collector(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", str(folder)], [collector])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest cannot collect the tests:\n{said.getvalue()[-2000:]}")
    return collector


def page(listed: Iterable[tuple[str, list[Rule]]], proofs: Proofs) -> str:
    """Return the page of rules."""
    lines = [_HEAD]
    for heading, rules in listed:
        lines += [f"## {heading}\n", "| Rule | | Service | Client |", "|---|---|---|---|"]
        lines += [_row(rule, proofs) for rule in rules]
        lines.append("")
    return "\n".join(lines)


def page_of_promises(
    listed: Iterable[tuple[str, list[Promise]]], proofs: Proofs, in_test: Collection[str]
) -> str:
    """Return the page of promises; ``in_test`` holds the tests that `make test` runs."""
    lines = [_HEAD_OF_PROMISES]
    for heading, found in listed:
        lines += [f"## {heading}\n", "| | Promise | Test | Proof |", "|---|---|---|---|"]
        for each in found:
            tests = sorted(proofs.get((each.id, ""), ()))
            test = _links(name for name in tests if name in in_test)
            proof = _links(name for name in tests if name not in in_test)
            lines.append(f"| `{each.id}` | [{each.text}]({each.place}) | {test} | {proof} |")
        lines.append("")
    return "\n".join(lines)


def _row(rule: Rule, proofs: Proofs) -> str:
    cells = [_cell(rule, proofs.get((rule.id, side), ()), rule.reasons.get(side)) for side in SIDES]
    return f"| `{rule.id}` | {rule.text} | {' | '.join(cells)} |"


def _cell(rule: Rule, tests: Sequence[str], reason: str | None) -> str:
    if reason and not tests:
        return f"not applicable: {reason}"
    return _links(tests)


def _links(tests: Iterable[str]) -> str:
    return "<br>".join(f"[{name}](../../{file})" for file, name in (test.split("::", 1) for test in tests))


def complaints(listed: Iterable[tuple[str, list[Rule]]], proofs: Proofs) -> Iterator[str]:
    """Yield a complaint for each rule without a test, and for each that has both a test and a reason to have none."""
    for rule in (rule for _, rules in listed for rule in rules):
        for side in SIDES:
            proven, excused = (rule.id, side) in proofs, side in rule.reasons
            if not proven and not excused:
                yield f"{rule.id}: no test proves it on the {side}'s side: {rule.text}"
            elif proven and excused:
                yield f"{rule.id}: a test proves it on the {side}'s side; remove its reason from rules.yaml"


def unkept(listed: Iterable[tuple[str, list[Promise]]], proofs: Proofs) -> Iterator[str]:
    """Yield a complaint for each promise without a test, and for each unknown promise that a test names."""
    known = {each.id: each for _, found in listed for each in found}
    named = {name for name, side in proofs if not side}
    yield from (f"{name}: no test proves it: {known[name].text}" for name in known if name not in named)
    yield from (
        f"{name}: a test names it, but it is not in promises.yaml" for name in sorted(named - known.keys())
    )


def main(arguments: Sequence[str]) -> int:
    listed = list(sections((TESTS / "rules.yaml").read_text()))
    promised = list(promises((TESTS / "promises.yaml").read_text()))
    collector = collected(TESTS)
    proofs = collector.proofs
    pages = ((PAGE, page(listed, proofs)), (PROMISES, page_of_promises(promised, proofs, collector.in_test)))
    found = [*complaints(listed, proofs), *unkept(promised, proofs)]
    for file, written in pages:
        if "--check" not in arguments:
            file.write_text(written)
        elif not file.exists() or file.read_text() != written:
            found.append(f"{file.name} is out of date: run make conformance")
    for complaint in found:
        print(complaint)  # noqa: T201
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
