"""The pages on conformance and promises. They are tested here because collecting all tests needs Airflow."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "conformance.py"
RULES = """
sections:
  "1.2":
    title: Tokens
    rules:
      expiry: Tokens end
      page: {rule: A page lists them, client: no client sees it}
"""
BOTH = {("1.2/expiry", "service"): ["tests/a.py::test_a"], ("1.2/expiry", "client"): ["tests/b.py::test_b"]}
PAGE = {("1.2/page", "service"): ["tests/c.py::test_c", "tests/c.py::test_d"]}


@pytest.fixture(scope="module")
def conformance() -> ModuleType:
    spec = spec_from_file_location("conformance", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["conformance"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.proof
def test_the_page_is_up_to_date_and_no_row_is_empty() -> None:
    done = subprocess.run(
        [sys.executable, "-P", SCRIPT, "--check"], check=False, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_rule_has_a_row_with_its_tests_or_a_reason(conformance: ModuleType) -> None:
    page = conformance.page(list(conformance.sections(RULES)), {**BOTH, **PAGE})
    assert "## 1.2 Tokens" in page
    assert "| `1.2/expiry` | Tokens end | [test_a](../../tests/a.py) | [test_b](../../tests/b.py) |" in page
    assert (
        "[test_c](../../tests/c.py)<br>[test_d](../../tests/c.py) | not applicable: no client sees it |"
        in page
    )


def test_a_rule_without_a_test_is_complained_of(conformance: ModuleType) -> None:
    listed = list(conformance.sections(RULES))
    assert list(conformance.complaints(listed, {**BOTH, **PAGE})) == []
    assert list(conformance.complaints(listed, BOTH)) == [
        "1.2/page: no test proves it on the service's side: A page lists them"
    ]


def test_a_reason_beside_a_test_is_complained_of(conformance: ModuleType) -> None:
    proven = {**BOTH, **PAGE, ("1.2/page", "client"): ["tests/e.py::test_e"]}
    (complaint,) = conformance.complaints(list(conformance.sections(RULES)), proven)
    assert "remove its reason from rules.yaml" in complaint


PROMISES = """
Never twice:
  twice/doubt: {promise: A doubt is not sent again, page: control.md#in-doubt}
  twice/once: {promise: At most one is accepted, page: architecture.md}
"""


def test_each_promise_has_a_row_with_its_place_and_its_tests(conformance: ModuleType) -> None:
    proofs = {("twice/doubt", ""): ["tests/b.py::test_b", "tests/a.py::test_a"]}
    listed = list(conformance.promises(PROMISES))
    promise = "| `twice/doubt` | [A doubt is not sent again](control.md#in-doubt) "
    a, b = "[test_a](../../tests/a.py)", "[test_b](../../tests/b.py)"
    in_test = {"tests/a.py::test_a"}
    assert f"{promise}| {a} | {b} |" in conformance.page_of_promises(listed, proofs, in_test)
    in_test.add("tests/b.py::test_b")
    assert f"{promise}| {a}<br>{b} |  |" in conformance.page_of_promises(listed, proofs, in_test)


def test_a_promise_without_a_test_and_a_test_of_no_promise_are_complained_of(conformance: ModuleType) -> None:
    proofs = {
        **BOTH,
        ("twice/doubt", ""): ["tests/a.py::test_a"],
        ("twice/never", ""): ["tests/b.py::test_b"],
    }
    assert list(conformance.unkept(list(conformance.promises(PROMISES)), proofs)) == [
        "twice/once: no test proves it: At most one is accepted",
        "twice/never: a test names it, but it is not in promises.yaml",
    ]
