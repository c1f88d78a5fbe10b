"""The real messaging service on a free loopback port, in threads of this process or as a `serve` process."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import requests
import uvloop
from typer.testing import CliRunner

from messaging_service import web_process
from messaging_service.cli.main import main
from messaging_service.delivery import worker
from messaging_service.server import ServeSettings
from messaging_service.store import Store

from .waiting import PATIENCE

COMMAND = Path(sys.executable).with_name("messaging-service")
PLATFORMS = ("android", "ios", "chrome", "firefox", "opera", "safari", "edge")
QUICK = ("--delay-from", "0", "--delay-to", "0.05", "--first-pause", "0.05")


class Threads:
    """The service in this process: one thread answers requests, another delivers messages.

    This saves the seconds of processor time that the two processes of ``serve`` need to start.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2_048)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._store = Store(settings.worker.database)
        config = web_process.configure(self._store, settings.of_web(self._listener))
        answers, delivers = threading.Event(), threading.Event()
        self._server = web_process.WebServer(config, ready=answers.set)
        self._problems: list[BaseException] = []
        self._stop_delivering: Callable[[], object] = lambda: None

        async def deliver() -> None:
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            self._stop_delivering = lambda: loop.is_closed() or loop.call_soon_threadsafe(stop.set)
            delivers.set()
            await worker.run(settings.worker, stop)

        self._threads = [
            self._start(lambda: self._server.run(sockets=[self._listener]), answers),
            self._start(lambda: uvloop.run(deliver()), delivers),
        ]

    def _start(self, run: Callable[[], object], ready: threading.Event) -> threading.Thread:
        def act() -> None:
            try:
                run()
            except BaseException as problem:
                self._problems.append(problem)
            finally:
                ready.set()

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        assert ready.wait(PATIENCE)
        return thread

    def check(self) -> None:
        """Raise the error that ended one of the threads, if any."""
        for problem in self._problems:
            raise problem

    def stop(self) -> int:
        """Stop both threads, and return the exit status that a process would have."""
        self._server.should_exit = True
        self._stop_delivering()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        self._store.close()
        self._listener.close()
        self.check()
        return 0


class Process:
    """The service as a process of the command ``serve``."""

    def __init__(self, database: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "serve", "--port", "0", "--database", database, *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = json.loads(self.process.stdout.readline())["listening"]

    def check(self) -> None:
        """Fail if the process ended."""
        assert self.process.poll() is None, f"the service ended with status {self.process.returncode}"

    def stop(self) -> int:
        """Stop the process if it still runs, and return its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@dataclass
class LocalService:
    """A running service with one app, one secret client ID and 700 devices: ids 1 to 700, 100 on each platform.

    Device n has the platform PLATFORMS[n % 7], the profile n + 10000 and the user cust-n. From 601 on, two devices
    share a user. Devices with an even n have an email address.
    """

    base_url: str
    database: str
    app_token: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    running: Threads | Process
    _kept_token: str | None = field(default=None, repr=False)
    _status: int | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process of ``serve``, if the service was started with ``process=True``."""
        assert isinstance(self.running, Process)
        return self.running.process

    def command(self, *arguments: str, expect: int = 0) -> dict[str, Any]:
        return run_command(*arguments, "--database", self.database, expect=expect)

    def token(self, **more: Any) -> str:
        form = {"client_id": self.client_id, "client_secret": self.client_secret, **more}
        answer = self.post("/api/oauth/token", data={"grant_type": "client_credentials", **form})
        assert answer.status_code == 200, answer.text
        return answer.json()["access_token"]

    def post(self, path: str, **how: Any) -> requests.Response:
        return requests.post(self.base_url + path, timeout=PATIENCE, **how)

    def create(self, **fields: Any) -> requests.Response:
        body = {"title": "a test", "push_text": "hello", **fields}
        return self.post("/api/external/create/campaign", json=body, headers=self.bearer())

    def created(self, **fields: Any) -> int:
        """Create a campaign, and return its ID."""
        answer = self.create(**fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["model"]["id"]

    def execute(self, **fields: Any) -> requests.Response:
        return self.post("/api/external/execute/campaign", json=fields, headers=self.bearer())

    def bearer(self) -> dict[str, str]:
        if self._kept_token is None:
            self._kept_token = self.token()
        return {"Authorization": f"Bearer {self._kept_token}"}

    def admin(self, path: str) -> dict[str, Any]:
        answer = requests.get(f"{self.base_url}/admin/{path}", timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def now(self) -> datetime:
        """Return the time by the service's own clock."""
        return datetime.fromisoformat(self.admin("clock")["now"])

    def advance(self, by: str, *, wait: bool = True) -> None:
        """Advance the service's clock, such as by ``31m``, and wait until the service is quiet."""
        answer = self.post("/admin/clock/advance", json={"by": by})
        assert answer.status_code == 200, answer.text
        if wait:
            self.wait_until_quiet()

    def go_to(self, moment: datetime, *, wait: bool = True) -> None:
        self.advance(f"{(moment - self.now()).total_seconds():.3f}s", wait=wait)

    def wait_until_quiet(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while not (progress := self.admin("progress"))["quiet"]:
            self.running.check()
            assert time.monotonic() < deadline, f"not quiet after {PATIENCE:g} s: {progress}"
            time.sleep(0.02)
        return progress

    def stop(self) -> int:
        """Stop the service if it still runs, and return its exit status."""
        if self._status is None:
            self._status = self.running.stop()
        return self._status

    close = stop


def start_service(
    database: str, known: Mapping[str, str], *options: str, process: bool = False
) -> LocalService:
    """Start a service on a database; ``known`` holds the output of the commands that filled it.

    With ``process``, start the command ``serve``, for tests of processes. Several workers always need processes.
    """
    running = (
        Process(database, *options)
        if process or "--workers" in options
        else Threads(_settings(database, *options))
    )
    return LocalService(
        running.address, database, known["apptoken"], known["client_id"], known["client_secret"], running
    )


def _settings(database: str, *options: str) -> ServeSettings:
    """Return the settings that the command ``serve`` makes of these options."""
    taken: list[ServeSettings] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("messaging_service.server.serve", lambda settings, _: taken.append(settings))
        main(["serve", "--port", "0", "--database", database, *options], standalone_mode=False)
    return taken[0]


def fill(database: str, folder: Path) -> Mapping[str, str]:
    """Add an app, a client ID and the devices to a database, and return the output of the commands."""
    at = ("--database", database)
    app = run_command("apps", "add", "--name", "shop", *at)
    client = run_command("client-ids", "add", "--name", "tests", "--type", "secret", *at)
    run_command("devices", "import", str(write_devices(folder / "devices.csv")), *at)
    return {**app, **client}


def write_devices(path: Path, count: int = 700) -> Path:
    lines = ["device_id,platform,profile_id,user_id,language,time_zone,external_id,email,tier"]
    for n in range(1, count + 1):
        user = n if n <= 600 else 600 + (n + 1 - 600) // 2
        email = f"person{n}@example.org" if n % 2 == 0 else ""
        tier = "gold" if n % 3 else ""
        person = f"{n},{PLATFORMS[n % 7]},{n + 10_000},cust-{user},en,Europe/Dublin"
        lines.append(f"{person},ext-{n},{email},{tier}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run_command(*arguments: str, expect: int = 0) -> dict[str, Any]:
    """Run a command of the service, and return the JSON it printed.

    The command runs in this process, which is faster. ``serve`` needs a separate process, because it changes signal
    handlers and logging.
    """
    if arguments[0] == "serve":
        return run_process(*arguments, expect=expect)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == expect, done.output
    return json.loads(done.stdout if expect == 0 else done.stderr)


def run_process(*arguments: str, expect: int = 0) -> dict[str, Any]:
    """Run a command of the service in a separate process, and return the JSON it printed."""
    done = subprocess.run(
        [COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == expect, done.stderr
    return json.loads(done.stdout if expect == 0 else done.stderr)
