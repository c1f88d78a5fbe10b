"""Hold the pinned dependencies against the known vulnerabilities: ``python tests/audit.py [constraints.txt]``.

Ends with 0 where none is known, and where no database of vulnerabilities can be asked, which it then says: that is no
finding, and no clean bill either. Ends with 1 where a pinned version is known to be vulnerable, or where the audit
failed for any other reason.
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
# "pypi" fails loudly where nobody answers, but takes an index without such data for "nothing is known".
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
    """Give the exit status and what to say."""
    line = [*command, *OPTIONS, "--requirement", str(constraints)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        return 0, _left_out("no answer within ten minutes")
    report = _report(done.stdout)
    if report is None:
        said = (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
        if any(word in done.stderr for word in OUT_OF_REACH):
            return 0, _left_out(said)
        return 1, f"AUDIT FAILED: {said}"
    audited = [each for each in report["dependencies"] if "vulns" in each]
    found = list(_found(audited))
    passed_over = [each["name"] for each in report["dependencies"] if "vulns" not in each]
    if found:
        return 1, "\n".join([f"VULNERABLE: {len(found)} known in {len(audited)} packages", *found])
    if not audited or passed_over:
        return 1, f"AUDIT FAILED: not looked up: {', '.join(passed_over) or 'any package'}"
    return 0, f"no vulnerability is known in {len(audited)} packages"


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
            yield f"  {package['name']} {package['version']}: {each['id']}, mended in {mended}"


def _left_out(why: str) -> str:
    return f"LEFT OUT: no database of vulnerabilities can be reached, so nothing is known either way ({why})"


def main() -> int:
    status, said = audit(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "constraints.txt")
    sys.stdout.write(f"{said}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
