"""Check the pinned dependencies for known vulnerabilities: ``python tests/audit.py [constraints.txt]``.

The exit status is 0 if there are none. It is also 0 if no vulnerability database can be reached; the output then says
that the audit was left out. It is 1 if a pinned version is vulnerable, or if the audit fails for any other reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PIP_AUDIT = (sys.executable, "-m", "pip_audit")
# "pypi" fails clearly without a connection, but reports "no vulnerabilities" for an index without such data.
OPTIONS = (
    "--no-deps",
    "--disable-pip",
    "--progress-spinner=off",
    "--format=json",
    "--vulnerability-service=osv",
)
OUT_OF_REACH = (
    "ConnectionError",
    "Could not connect",
    "Connection to OSV timed out",
    "ReadTimeout",
    "ConnectTimeout",
)


def audit(constraints: Path, command: Sequence[str] = PIP_AUDIT) -> tuple[int, str]:
    """Return the exit status and the output."""
    line = [*command, *OPTIONS, "--requirement", str(constraints)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        return 0, _left_out("no answer within ten minutes")
    report = _report(done.stdout)
    if report is None:
        said = (done.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1]
        if any(word in done.stderr for word in OUT_OF_REACH):
            return 0, _left_out(said)
        return 1, f"AUDIT FAILED: {said}"
    audited = [each for each in report["dependencies"] if "vulns" in each]
    found = list(_found(audited))
    passed_over = [each["name"] for each in report["dependencies"] if "vulns" not in each]
    if found:
        return 1, "\n".join([f"VULNERABLE: {len(found)} known in {len(audited)} packages", *found])
    if not audited or passed_over:
        return 1, f"AUDIT FAILED: not checked: {', '.join(passed_over) or 'all packages'}"
    return 0, f"no known vulnerabilities in {len(audited)} packages"


def _report(text: str) -> dict[str, Any] | None:
    try:
        report = json.loads(text)
    except ValueError:
        return None
    return report if isinstance(report, dict) and "dependencies" in report else None


def _found(packages: list[dict[str, Any]]) -> Iterator[str]:
    for package in packages:
        for each in package["vulns"]:
            mended = ", ".join(each.get("fix_versions") or ()) or "no version yet"
            yield f"  {package['name']} {package['version']}: {each['id']}, fixed in {mended}"


def _left_out(why: str) -> str:
    return f"LEFT OUT: no vulnerability database can be reached, so the packages were not checked ({why})"


def main() -> int:
    status, said = audit(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "constraints.txt")
    sys.stdout.write(f"{said}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
