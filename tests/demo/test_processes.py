"""The demo's supervisor, with real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sendoff.demo import watchdog
from sendoff.demo.processes import Port, ProcessError, Supervisor, require_free

# A child that starts a grandchild in its own process group, as Airflow does for each task. Both keep running.
STUBBORN = """
import os, signal, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
time.sleep(600)
"""
OWNER = """
import sys, time
from pathlib import Path
from sendoff.demo.processes import Supervisor
with Supervisor(Path(sys.argv[1]), grace=1) as supervisor:
    supervisor.start("stubborn", [sys.executable, "-c", sys.argv[3], sys.argv[2]], {})
    time.sleep(600)
"""


def test_leaving_ends_children_and_grandchildren_in_other_process_groups(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs", grace=1) as supervisor:
        supervisor.start("stubborn", _stubborn(tmp_path), {})
        pids = _pids(tmp_path)
    assert not any(_runs(pid) for pid in pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_owner_is_ended(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "logs"), str(tmp_path / "pids"), STUBBORN]
    owner = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    pids = _pids(tmp_path)
    owner.send_signal(how)
    owner.wait(120)
    assert _soon(lambda: not any(_runs(pid) for pid in pids))


def test_a_command_gives_its_output(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        assert supervisor.run("say", ["/bin/echo", "two words"], {}) == "two words\n"


def test_a_failing_command_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('no such warehouse')"]
    with (
        Supervisor(tmp_path) as supervisor,
        pytest.raises(ProcessError, match=r"(?s)import ended.*no such ware"),
    ):
        supervisor.run("import", failing, {})


def test_a_child_that_dies_ends_the_waiting(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start("service", ["/bin/sh", "-c", "echo address in use; exit 3"], {})
        with pytest.raises(ProcessError, match=r"(?s)service ended with exit code 3.*address in use"):
            supervisor.wait_until(lambda: None, "the service answers", wait=120)


def test_a_child_that_was_expected_to_end_does_not_end_the_waiting(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        migration = supervisor.start("migrate", ["/bin/echo", "done"], {}, stays=False)
        assert _soon(lambda: migration.poll() is not None)
        supervisor.check()
        migration.finish()
        failing = supervisor.start("migrate", ["/bin/sh", "-c", "echo no disk; exit 1"], {}, stays=False)
        with pytest.raises(ProcessError, match=r"(?s)exit code 1.*no disk"):
            failing.finish()


def test_waiting_has_an_end(tmp_path: Path) -> None:
    with (
        Supervisor(tmp_path) as supervisor,
        pytest.raises(ProcessError, match="in vain until the moon is full"),
    ):
        supervisor.wait_until(lambda: None, "the moon is full", wait=0.3)


def test_a_missing_command_is_a_failure_like_any_other(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor, pytest.raises(ProcessError, match="ended with exit code 127"):
        supervisor.run("airflow", ["airflow-is-not-there"], {})


def test_a_taken_port_is_named_with_who_needs_it_and_the_option_for_another() -> None:
    with _unasked_for() as server:
        number = server.getsockname()[1]
        with pytest.raises(ProcessError, match=f"{number} is needed by the receiver.*--receiver-port"):
            require_free([Port(number, "the receiver", "--receiver-port")])
    require_free([Port(number, "the receiver", "--receiver-port")])


def test_a_session_that_is_over_is_forgotten() -> None:
    assert watchdog.watch([b"7\n", b"8\n", b"-7\n"]) == {8}


def _unasked_for() -> socket.socket:
    """Listen on a port outside the range that the system assigns, so that it is free again afterwards."""
    for number in range(20_000, 32_000):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", number))
    raise AssertionError("no port is free")


def _stubborn(folder: Path) -> list[str]:
    return [sys.executable, "-c", STUBBORN, str(folder / "pids")]


def _pids(folder: Path) -> list[int]:
    path = folder / "pids"
    assert _soon(lambda: path.exists() and path.read_text().count("\n") == 2)
    return [int(line) for line in path.read_text().split()]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    if not Path("/proc/self").exists():
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:  # it ended meanwhile
        return False


def _soon(true) -> bool:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 120
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found
