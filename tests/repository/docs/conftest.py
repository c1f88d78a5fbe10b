"""A folder like a clone after a run of the demo, and a shell in it, to try the pages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from datetime import date
from pathlib import Path
from threading import Timer

import pytest

from sendoff.demo.warehouse import export_directory, make_warehouse
from sendoff.ledger import Ledger

from ...acceptance.browser import browser  # noqa: F401  # a fixture for the tests of the site
from ...ports import reserve_ports

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
FORKS = Path(__file__).with_name("forks.py")
LONGEST = 600  # seconds per command
PORTS = ("8025", "8080", "8090")  # the ports that the pages name


class Terminal:
    """A bash in a separate folder, so that later blocks see what earlier blocks export or start.

    ``ports`` maps the ports that the pages name to free ones.
    """

    def __init__(self, folder: Path, ports: Mapping[str, int], settings: Mapping[str, str]) -> None:
        self.folder = folder
        self._ports = {name: str(port) for name, port in ports.items()}
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={
                **environment(folder),
                **{f"PORT_{name}": port for name, port in self._ports.items()},
                **settings,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[str, bool]:
        """Run commands, and return their output and whether all of them succeeded."""
        command = self.as_here(command)
        (self.folder / ".shims/block").write_text(command + "\n", encoding="utf-8")
        end = f"end-of-{time.monotonic_ns()}"
        assert self._shell.stdin is not None
        self._shell.stdin.write(
            f"failed=0; trap 'failed=$?' ERR; . {self.folder}/.shims/block < /dev/null\necho; echo {end} $failed\n"
        )
        self._shell.stdin.flush()
        output, status = self._read_to(end)
        for name, port in self._ports.items():
            output = re.sub(rf"\b{port}\b", name, output)
        return output.replace(str(self.folder), "/srv/sendoff"), status == "0"

    def as_here(self, text: str) -> str:
        """Replace the ports of a page by the ports of this test, which only this machine can reach."""
        for name, port in self._ports.items():
            text = re.sub(rf"\b{name}\b", port, text)
        return text.replace("0.0.0.0", "127.0.0.1")

    def where(self) -> Path:
        """Return the current folder of the shell."""
        return Path(f"/proc/{self._shell.pid}/cwd").resolve()

    def _read_to(self, end: str) -> tuple[str, str]:
        assert self._shell.stdout is not None
        lines: list[str] = []
        watch = Timer(LONGEST, os.killpg, (self._shell.pid, signal.SIGKILL))
        watch.start()
        try:
            for line in self._shell.stdout:
                if line.startswith(end):
                    return "".join(lines).removesuffix("\n"), line.split()[1]
                lines.append(line)
        finally:
            watch.cancel()
        raise AssertionError(f"the shell ended, or a command took {LONGEST} s: {''.join(lines)}")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        """End the shell and all processes in its process group."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._shell.pid, number)
                self._shell.wait(5)
        for pipe in (self._shell.stdin, self._shell.stdout):
            assert pipe is not None
            pipe.close()


def environment(folder: Path) -> dict[str, str]:
    ours = ("SENDOFF_", "AIRFLOW", "MESSAGING_SERVICE_", "OTEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {
        "PATH": f"{folder / '.shims'}:{BIN}:{kept['PATH']}",
        "AIRFLOW_HOME": str(folder / ".airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "TERM": "dumb",
        "MPLCONFIGDIR": str(folder / ".shims"),
    }


# If a page starts a server in a separate terminal, run it in the background and wait until it listens. Servers are
# processes like a reader's. The other commands run in forks of one process.
SHIM = """#!/bin/bash
case "$*" in
  "metrics --every"*) timeout 5 {program} "$@" || [ $? = 124 ];;
  serve*|receiver*)
    case "$*" in  # a port that is not named is the one of the pages
      *--port*) ;;
      serve*) set -- "$@" --port "$PORT_8025";;
      *) set -- "$@" --port "$PORT_8090";;
    esac
    log=$(mktemp "$(dirname "$0")/log.XXXXXX")
    {program} "$@" > "$log" 2>&1 &
    for _ in $(seq 1200); do
        if grep -qiE '"listening"|is available' "$log"; then head -1 "$log"; exit 0; fi
        if ! kill -0 $! 2> /dev/null; then cat "$log"; exit 1; fi
        sleep 0.1
    done
    cat "$log"; exit 1;;
  *) exec {forks} {name} "$@";;
esac
"""


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The address of a process that runs commands."""
    address = tmp_path_factory.mktemp("forks") / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        command = [sys.executable, str(FORKS), str(listener.fileno())]
        with subprocess.Popen(
            command,
            env=environment(address.parent),
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
        ) as process:
            yield address
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory, forks: Path) -> Path:
    """A folder like a clone after a run of the demo: the examples, a warehouse, the commands."""
    folder = tmp_path_factory.mktemp("clone") / "sendoff"
    for part in ("dags", "examples", "docs", "tools"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".demo").mkdir()
    make_warehouse(folder / ".demo/warehouse.db", customers=300, seed=1, today=date(2026, 11, 16))
    export_directory(folder / ".demo/warehouse.db", folder / ".demo/devices.csv")
    shutil.copy(folder / ".demo/devices.csv", folder / "devices.csv")
    with closing(Ledger(f"sqlite:///{folder / 'ledger.db'}")) as ledger:
        ledger.migrate()
    shutil.copy(folder / "ledger.db", folder / ".demo/ledger.db")
    (folder / "dags/my_alerts.py").write_text("def send_to_chat(context):\n    pass\n")
    commands = [folder / ".shims", folder / ".venv/bin"]
    for place in commands:
        place.mkdir(parents=True)
        for name in ("sendoff", "messaging-service"):
            asked = f"{sys.executable} -I -S {FORKS} {forks}"
            (place / name).write_text(SHIM.format(program=BIN / name, forks=asked, name=name))
            (place / name).chmod(0o755)
    (folder / ".venv/bin/activate").touch()  # the commands are already on the path
    return folder


@pytest.fixture
def settings() -> dict[str, str]:
    """The settings of a reader of any page other than the tutorial."""
    return {
        "MESSAGING_SERVICE_DATABASE": "sqlite:///service.db",
        "SENDOFF_LEDGER_URL": "sqlite:///ledger.db",
        "SENDOFF_PUBLIC_URL": "http://127.0.0.1:8090",
        "SENDOFF_POST_BACK_SECRETS": "a secret of at least 32 characters",
    }


@pytest.fixture
def terminal(clone: Path, tmp_path: Path) -> Iterator[Callable[[dict[str, str]], Terminal]]:
    """Opens a shell in a separate clone with the given settings, on first use."""
    opened: list[Terminal] = []
    with ExitStack() as stack:

        def give(settings: dict[str, str]) -> Terminal:
            if not opened:
                folder = shutil.copytree(clone, tmp_path / "sendoff", symlinks=True)
                ports = dict(zip(PORTS, reserve_ports(len(PORTS)), strict=True))
                opened.append(stack.enter_context(Terminal(folder, ports, settings)))
            return opened[0]

        yield give
