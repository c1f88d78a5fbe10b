"""The demo as a user runs it: the command, on free ports, with few customers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ..ports import reserve_ports
from ..waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SENDOFF = str(Path(sys.executable).with_name("sendoff"))
LONGEST = 900  # seconds for a whole demo on a busy machine
VERDICTS = ("delivered", "engaged", "missing", "unknowable", "in_doubt", "not_sent")


class Demo:
    """A demo in its own workspace, with its output in a file."""

    def __init__(self, folder: Path, directory: Path = ROOT) -> None:
        self.workspace = folder / "demo"
        self.output = folder / "output"
        self.sessions: set[int] = set()
        options = ["--exit", "--customers", "400", "--workspace", str(self.workspace), *free_ports()]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [SENDOFF, "demo", *options],
                cwd=directory,
                env={**os.environ, "DEMO_OF_TEST": str(self.workspace)},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def wait_for(self, beginning: str) -> None:
        deadline = time.monotonic() + LONGEST
        while not any(line.startswith(beginning) for line in self.lines()):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)

    def left_over(self) -> list[int]:
        """Return the running processes that descend from this demo.

        Its children have their own sessions and carry a mark. Their own children may hide the mark behind a title.
        """
        running = {pid: session for pid in psutil.pids() if (session := _session(pid))}
        self.sessions |= {session for pid, session in running.items() if _mark(pid) == str(self.workspace)}
        return [pid for pid, session in running.items() if session in self.sessions]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    if demo.process.poll() is None:
        demo.process.send_signal(signal.SIGINT)
        demo.process.wait(PATIENCE)


@pytest.mark.promise("honest/truth")
def test_it_ends_with_figures_that_equal_the_truth_and_leaves_no_process(demo: Demo) -> None:
    code = demo.process.wait(LONGEST)
    assert code == 0, demo.output.read_text()
    figures = json.loads(demo.lines()[-1])
    assert figures["equals_truth"] is True
    assert figures["audience"] == sum(figures[verdict] for verdict in VERDICTS) > 0
    assert figures["segments"] == figures["dispatches_accepted"] > 0
    assert figures["unexpected"] == figures["in_doubt"] == figures["not_sent"] == 0
    assert all(figures[verdict] > 0 for verdict in ("delivered", "engaged", "missing", "unknowable"))
    assert (demo.workspace / "report.png").read_bytes().startswith(b"\x89PNG")
    assert demo.left_over() == []


@pytest.mark.proof
@pytest.mark.parametrize(
    ("moment", "how"),
    [
        ("warehouse", signal.SIGINT),  # while the service starts
        ("receiver", signal.SIGKILL),  # while Airflow starts
        ("airflow", signal.SIGINT),  # while the campaign runs
    ],
)
def test_ended_at_any_moment_it_leaves_no_process(demo: Demo, moment: str, how: signal.Signals) -> None:
    demo.wait_for(moment)
    time.sleep(0.5)
    assert demo.left_over()
    demo.process.send_signal(how)
    demo.process.wait(PATIENCE)
    deadline = time.monotonic() + PATIENCE  # after kill -9, the watchdog may still be busy
    while demo.left_over() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert demo.left_over() == []


@pytest.mark.proof
def test_a_task_that_fails_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "dags", tmp_path / "dags")
    query = tmp_path / "dags/campaigns/lapsed_buyers/audience.sql"
    query.write_text("SELECT device_id FROM divices WHERE :period_end > 0")
    demo = Demo(tmp_path, directory=tmp_path)
    assert demo.process.wait(LONGEST) == 1
    text = demo.output.read_text()
    assert "the task audience of the DAG lapsed_buyers failed; the end of its log:" in text
    assert "divices" in text
    assert demo.left_over() == []


@pytest.mark.proof
def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        text = _fails(tmp_path, *free_ports(), "--receiver-port", str(number))
    assert f"{number} is needed by the receiver" in text
    assert "--receiver-port" in text
    assert not (tmp_path / "demo").exists()


@pytest.mark.proof
def test_a_folder_with_a_persons_files_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "demo" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("years of work")
    assert "Choose another folder with --workspace" in _fails(tmp_path, *free_ports())
    assert kept.read_text() == "years of work"


def free_ports() -> list[str]:
    options = ("--airflow-port", "--receiver-port", "--service-port")
    ports = reserve_ports(len(options))
    return [word for option, port in zip(options, ports, strict=True) for word in (option, str(port))]


def _fails(folder: Path, *options: str) -> str:
    command = [SENDOFF, "demo", "--exit", "--workspace", str(folder / "demo"), *options]
    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stdout
    return " ".join(ended.stderr.split())


def _mark(pid: int) -> str | None:
    try:
        return psutil.Process(pid).environ().get("DEMO_OF_TEST")
    except psutil.Error:
        return None


def _session(pid: int) -> int:
    """Return the session of a process, or 0 if the process ended or is a zombie."""
    try:
        return 0 if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getsid(pid)
    except (psutil.Error, ProcessLookupError):
        return 0
