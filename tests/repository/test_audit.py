"""The results of the dependency audit for all kinds of pip-audit output."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "audit.py"
SOUND = {"name": "idna", "version": "3.20", "vulns": []}
WEAK = {
    "name": "urllib3",
    "version": "2.8.0",
    "vulns": [{"id": "PYSEC-2099-1", "fix_versions": ["2.8.1"], "aliases": [], "description": "..."}],
}
SKIPPED = {"name": "orjson", "skip_reason": "Dependency not found and could not be audited: orjson (3.13.0)"}
OUT_OF_REACH = """Traceback (most recent call last):
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.osv.dev', port=443): Max retries exceeded"""


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_of_dependencies", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_pip_audit(printed: str, errors: str, status: int) -> list[str]:
    program = f"import sys; print({printed!r}); print({errors!r}, file=sys.stderr); sys.exit({status})"
    return [sys.executable, "-c", program]


def report(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


@pytest.mark.parametrize(
    ("printed", "errors", "ended", "status", "said"),
    [
        (report(SOUND), "No known vulnerabilities found", 0, 0, "no known vulnerabilities in 1 packages"),
        (
            report(SOUND, WEAK),
            "Found 1 known vulnerability in 1 package",
            1,
            1,
            "VULNERABLE: 1 known in 2 packages\n  urllib3 2.8.0: PYSEC-2099-1, fixed in 2.8.1",
        ),
        ("", OUT_OF_REACH, 1, 0, "LEFT OUT: no vulnerability database can be reached, so the packages "),
        # neither a report nor a failed connection
        (
            report(SOUND, SKIPPED),
            "No known vulnerabilities found",
            0,
            1,
            "AUDIT FAILED: not checked: orjson",
        ),
        (report(), "No known vulnerabilities found", 0, 1, "AUDIT FAILED: not checked: all packages"),
        ("", "pip-audit: error: unrecognized arguments", 2, 1, "AUDIT FAILED: pip-audit: error"),
        ("", "No module named pip_audit", 1, 1, "AUDIT FAILED: No module named pip_audit"),
        ("", "", 0, 1, "AUDIT FAILED: pip-audit printed nothing"),
    ],
)
def test_an_audit_ends_as_what_is_known_says(
    audit: ModuleType, tmp_path: Path, printed: str, errors: str, ended: int, status: int, said: str
) -> None:
    found, text = audit.audit(tmp_path / "constraints.txt", as_pip_audit(printed, errors, ended))
    assert (found, text[: len(said)]) == (status, said)


def test_the_script_ends_with_its_finding(tmp_path: Path) -> None:
    """If pip-audit is missing, or cannot read its file as here, the audit fails; it must not pass."""
    missing = tmp_path / "none.txt"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(missing)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.startswith("AUDIT FAILED: ")
