"""The first process of a container: it mounts the files, drops privileges, runs the command, and reaps orphans.

Run it with new mount, process and host name namespaces, and with the path of a JSON file that holds the
specification. It uses the standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

COVERED = ("/opt", "/run", "/tmp")  # folders of the machine that the container does not see
SOURCES = Path("/run/.sources")


def main(specification: str) -> int:
    spec = json.loads(Path(specification).read_text())
    socket.sethostname(spec["hostname"])
    mount_all(spec)
    child = subprocess.Popen([*spec["as_user"], *spec["command"]], env=spec["environment"], cwd=spec["cwd"])
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    while True:  # wait for orphans too, because this is process 1
        number, status = os.wait()
        if number == child.pid:
            return os.waitstatus_to_exitcode(status)


def mount_all(spec: dict[str, Any]) -> None:
    """Mount each source at its target, over empty folders that hide the machine's own."""
    mount("-t", "tmpfs", "tmpfs", "/run")
    SOURCES.mkdir()
    kept = {place: place for place in spec["keep"] if place.startswith(COVERED)}
    binds = sorted((kept | spec["binds"]).items())
    for number, (_, source) in enumerate(binds):
        bind(Path(source), SOURCES / str(number))
    for covered in COVERED:
        if covered != "/run":
            mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", covered)
    for place in sorted(spec["tmpfs"]):
        Path(place).mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", place)
    for number, (target, _) in enumerate(binds):
        bind(SOURCES / str(number), Path(target))


def bind(source: Path, target: Path) -> None:
    if not target.exists():
        if not str(target).startswith(COVERED):
            raise FileNotFoundError(f"{target} would be created on the machine itself")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir() if source.is_dir() else target.touch()
    mount("--rbind", str(source), str(target))


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.exit(code if code >= 0 else 128 - code)
