"""Write docs/proofs/conformance.md and docs/proofs/promises.md: what was promised, beside the tests that prove it.

The rules of the service's document stand in rules.yaml; ``@pytest.mark.rule("2.11/send_days", side="client")`` on a
test names what it proves. Sendoff's own promises stand in promises.yaml; ``@pytest.mark.promise("twice/doubt")`` names
one. Run ``python -P tests/conformance.py`` to write the pages, with ``--check`` to compare them only. It fails where a
rule has no test on a side that it concerns, a promise has none, or a test names what nobody promised.
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
"""The tests (as file::name) that prove a rule, by its id and the side; a promise's side is empty."""

_HEAD = """\
# Conformance

Every rule of the service's document, sections 2 to 9, and the tests that prove it: on the side of
`messaging_service`, and on the side of the client in `sendoff` and `sendoff_airflow`. The rules stand in
`tests/rules.yaml`, and each test says which of them it proves. `make conformance` writes this page; a test fails
where it is out of date, or where a rule has no test.
"""

_HEAD_OF_PROMISES = """\
# Promises

What Sendoff promises, where that is said in full, and the tests that hold it. `make test` runs the tests under
*Test*, `make proof` those under *Proof*. Each test names its promise, as in `@pytest.mark.promise("twice/doubt")`, and
the promises stand in `tests/promises.yaml`. `make conformance` writes this page; a test fails where it is out of date,
or where a promise has no test. The claims about
[security](../operations/security-tests.md) and the [rules of the service](conformance.md)
have tables of their own,
and [Nothing twice, nothing lost](../operations/reliability.md) counts what happens when everything breaks.
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


@dataclass(frozen=True)
class Promise:
    """One promise, and the place in docs/ that says it in full."""

    id: str
    text: str
    place: str


def promises(text: str) -> Iterator[tuple[str, list[Promise]]]:
    """Read promises.yaml: the headings, and the promises under each."""
    for heading, given in yaml.safe_load(text).items():
        yield heading, [Promise(name, each["promise"], each["page"]) for name, each in given.items()]


class Collector:
    """Finds which collected test proves which rule, and which holds which promise."""

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
    """Collect the tests of a folder without running them; RuntimeError where pytest cannot."""
    collector, said = Collector(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", str(folder)], [collector])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"the tests cannot be collected:\n{said.getvalue()[-2000:]}")
    return collector


def page(listed: Iterable[tuple[str, list[Rule]]], proofs: Proofs) -> str:
    """Write the page."""
    lines = [_HEAD]
    for heading, rules in listed:
        lines += [f"## {heading}\n", "| Rule | | Service | Client |", "|---|---|---|---|"]
        lines += [_row(rule, proofs) for rule in rules]
        lines.append("")
    return "\n".join(lines)


def page_of_promises(
    listed: Iterable[tuple[str, list[Promise]]], proofs: Proofs, in_test: Collection[str]
) -> str:
    """Write the page of promises; ``in_test``: the tests that `make test` runs."""
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
    """Name each rule without a test, and each that has both a test and a reason for having none."""
    for rule in (rule for _, rules in listed for rule in rules):
        for side in SIDES:
            proven, excused = (rule.id, side) in proofs, side in rule.reasons
            if not proven and not excused:
                yield f"{rule.id}: no test proves it on the {side}'s side: {rule.text}"
            elif proven and excused:
                yield f"{rule.id}: a test proves it on the {side}'s side; take its reason out of rules.yaml"


def unkept(listed: Iterable[tuple[str, list[Promise]]], proofs: Proofs) -> Iterator[str]:
    """Name each promise without a test, and each promise that a test names and nobody made."""
    known = {each.id: each for _, found in listed for each in found}
    named = {name for name, side in proofs if not side}
    yield from (f"{name}: no test holds it: {known[name].text}" for name in known if name not in named)
    yield from (
        f"{name}: a test names it, and promises.yaml does not" for name in sorted(named - known.keys())
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
            found.append(f"{file.name} is out of date: make conformance")
    for complaint in found:
        print(complaint)  # noqa: T201
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
