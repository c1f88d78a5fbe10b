"""The notebook of the examples: all its cells run in an empty folder, and end in a report."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from ..ports import reserve_ports
from ..waiting import PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples/notebook.ipynb"
PORTS = ("8025", "8090")
MOST_STATEMENTS = 9

# Runs the cells of a notebook like Jupyter, and writes what they show to a file. The last but one is run again until
# all post-backs have come.
RUN = """
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell

*cells, report, stop = json.load(open("cells.json"))
shell = InteractiveShell.instance()
shown = []

def run(cell):
    done = shell.run_cell(cell)
    done.raise_error()
    return done.result

try:
    for cell in cells:
        result = run(cell)
        shown.append(result._repr_html_() if hasattr(result, "_repr_html_") else repr(result))
    until = time.monotonic() + float(sys.argv[1])
    while (result := run(report)).figures.post_backs.get("delivery", 0) < 200 and time.monotonic() < until:
        time.sleep(0.2)
    shown.append(result._repr_html_())
finally:
    run(stop)
json.dump(shown, open("shown.json", "w"))
"""


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_goes_from_an_empty_folder_to_a_report(tmp_path: Path) -> None:
    ports = dict(zip(PORTS, map(str, reserve_ports(len(PORTS))), strict=True))
    here = [re.sub(rf"\b({'|'.join(PORTS)})\b", lambda match: ports[match[0]], cell) for cell in cells()]
    assert not any(port in cell for port in PORTS for cell in here)  # a demo may be using these
    (tmp_path / "cells.json").write_text(json.dumps(here))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SENDOFF_")}
    environment = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        "IPYTHONDIR": str(tmp_path / ".ipython"),
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(PATIENCE)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, preview, sent, report = json.loads((tmp_path / "shown.json").read_text())
    assert "It would be sent to 300 devices." in preview
    assert sent == "{'accepted': 1}"
    assert "What became of the audience" in report
    processes = [int(number) for number in (tmp_path / "processes").read_text().split()]
    until(lambda: not any(Path(f"/proc/{number}/cmdline").exists() for number in processes))


def test_the_notebook_is_short_and_holds_no_output() -> None:
    shell = [cell for cell in cells() if cell.startswith(("%%", "!"))]
    python = [ast.parse(cell) for cell in cells() if cell not in shell]
    statements = [node for cell in python for node in ast.walk(cell) if isinstance(node, ast.stmt)]
    commands = re.findall(r"^sendoff (\S+)", "\n".join(shell), re.MULTILINE)
    steps = [command for command in commands if command != "receiver"]  # a server, like the service
    assert len(statements) + len(steps) <= MOST_STATEMENTS
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [cell for cell in stored if cell.get("outputs") or cell.get("execution_count")] == []
