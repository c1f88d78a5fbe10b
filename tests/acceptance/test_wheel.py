"""The wheel without the repository: what it contains, a new project, and the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..ports import reserve_ports
from .environment import linked_environment

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 900  # seconds for a whole demo on a busy machine


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command folder of an environment with the wheel."""
    place = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, ROOT], place)
    commands = linked_environment(place / "venv")
    run([commands / "pip", "install", "--quiet", "--no-deps", *place.glob("*.whl")], place)
    return commands


def run(command: list[str | Path], folder: Path) -> str:
    foreign = ("AIRFLOW", "PYTHON", "SENDOFF_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env={**kept, "HOME": str(folder), "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def test_the_packages_come_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import sendoff, messaging_service, sendoff_airflow as s; print(sendoff.__file__, s.__file__)"
    paths = run([installed / "python", "-c", code], tmp_path).split()
    assert all(Path(path).is_relative_to(installed.parent) for path in paths)


def test_a_new_project_is_complete_and_checked(installed: Path, tmp_path: Path) -> None:
    told = run([installed / "sendoff", "init", "project"], tmp_path)
    assert "wrote   project/dags/campaigns.py" in told
    told = run([installed / "sendoff", "check", "project"], tmp_path)
    assert told == "1 folder checked: 0 mistakes, 0 warnings\n"


def test_the_demo_runs_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    options = [
        part
        for name, port in zip(("airflow", "receiver", "service"), reserve_ports(3), strict=True)
        for part in (f"--{name}-port", str(port))
    ]
    told = run([installed / "sendoff", "demo", "--exit", "--customers", "400", *options], tmp_path)
    figures = json.loads(told.splitlines()[-1])
    assert figures["equals_truth"] is True
    assert figures["audience"] > 0
    assert (tmp_path / ".demo/dags/campaigns/lapsed_buyers/campaign.yaml").exists()
