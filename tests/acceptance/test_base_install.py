"""The base install alone, in a new environment without Airflow and without development tools."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sendoff.demo.processes import Supervisor, answers

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = ["airflow", "aiohttp", "fastapi", "mypy", "pandas", "psycopg", "pytest"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command folder of a new environment after ``pip install .``, with nothing else in it."""
    venv = tmp_path_factory.mktemp("base") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "--disable-pip-version-check"]
    _check([*pip, "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", ROOT])
    return venv / "bin"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SENDOFF_LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.db'}",
        "SENDOFF_PUBLIC_URL": "http://127.0.0.1",
        "SENDOFF_POST_BACK_SECRETS": "a secret of at least 32 characters",
    }


def test_it_brings_neither_airflow_nor_tools(installed: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {FOREIGN} if u.find_spec(n)])"
    assert _check([installed / "python", "-c", code]) == "[]\n"


def test_every_command_says_what_it_does(installed: Path, environment: dict[str, str]) -> None:
    text = _check([installed / "sendoff", "--help"], environment)
    assert all(name in text for name in ("migrate", "receiver", "preview", "report", "demo"))


def test_the_receiver_runs_on_a_ledger_that_it_migrated(
    installed: Path, environment: dict[str, str], receiver: str
) -> None:
    with urllib.request.urlopen(f"{receiver}/healthz", timeout=120) as answer:
        assert answer.status == 200


def test_settings_from_airflow_need_airflow(installed: Path, environment: dict[str, str]) -> None:
    line = [installed / "sendoff", "report"]
    environment = {**environment, "SENDOFF_SETTINGS_FROM": "airflow"}
    ended = subprocess.run(line, check=False, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Airflow is not installed here" in ended.stderr


def test_the_demo_says_which_extras_it_needs(
    installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    demo = [installed / "sendoff", "demo", "--exit", "--workspace", tmp_path / "demo"]
    ended = subprocess.run(demo, check=False, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "pip install '.[airflow,service]'" in ended.stderr.replace("\n", " ")


@pytest.fixture
def receiver(installed: Path, environment: dict[str, str], free_port: int, tmp_path: Path) -> Iterator[str]:
    _check([installed / "sendoff", "migrate"], environment)
    line = [str(installed / "sendoff"), "receiver", "--port", str(free_port)]
    address = f"http://127.0.0.1:{free_port}"
    with Supervisor(tmp_path) as supervisor:
        supervisor.start("receiver", line, environment, ready=lambda: answers(f"{address}/healthz"))
        yield address


def _check(command: list[str | Path], environment: dict[str, str] | None = None) -> str:
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
