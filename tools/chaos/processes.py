"""The processes around the workers: the local service, a receiver, and a private PostgreSQL, all on loopback."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import sqlalchemy as sa

from messaging_service.campaigns.content import unpack
from sendoff.demo.processes import Process, Supervisor, answers

PLATFORMS = ("android", "ios", "chrome", "firefox", "opera", "safari", "edge")
SECRET = "secret-of-the-crash-proof-" + "s" * 32
os.environ["SENDOFF_ERASURE_SECRET"] = SECRET  # for this process and those that it starts
_held: list[socket.socket] = []
_TIMEOUT = 120.0
_QUICK = [
    "--delay-from",
    "0",
    "--delay-to",
    "0.2",
    "--first-pause",
    "0.05",
    "--longest-pause",
    "0.5",
    "--attempts",
    "60",
]


class ChaosError(Exception):
    """The crash tests themselves cannot go on, so they have proved nothing."""


def free_port() -> int:
    """Return a free loopback port, reserved as long as this process runs, for servers that receive only its number."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers set it
    holder.bind(("127.0.0.1", 0))
    _held.append(holder)
    return int(holder.getsockname()[1])


def _command(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@dataclass(frozen=True, slots=True)
class Sent:
    """A post-back that the service sent and that was answered 2xx."""

    dispatch_key: str
    kind: str
    device: int
    is_damaged: bool  # the service made its body unreadable


class Service:
    """The local messaging service, with its devices and its own record of everything that happened."""

    def __init__(self, supervisor: Supervisor, folder: Path, devices: int) -> None:
        self.supervisor = supervisor
        self._file = folder / "service.db"
        self._at = ("--database", f"sqlite:///{self._file}")
        table = folder / "devices.csv"
        rows = (f"{n},{PLATFORMS[n % len(PLATFORMS)]},,,,,," for n in range(1, devices + 1))
        head = "device_id,platform,profile_id,user_id,language,time_zone,external_id,email"
        table.write_text("\n".join([head, *rows]) + "\n")
        self._say("apps", "add", "--name", "chaos")
        client = self._say("client-ids", "add", "--name", "chaos", "--type", "secret")
        self._say("devices", "import", str(table))
        self.client_id: str = client["client_id"]
        self.client_secret: str = client["client_secret"]
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        serve = [_command("messaging-service"), "serve", "--port", str(port), *self._at, *_QUICK]
        self.process = supervisor.start("service", serve, ready=lambda: answers(f"{self.address}/healthz"))
        self._session = requests.Session()

    def fault(self, kind: str, **how: Any) -> None:
        """Add a fault."""
        reply = self._session.post(f"{self.address}/admin/faults", json={"kind": kind, **how}, timeout=30)
        if reply.status_code != requests.codes.created:
            raise ChaosError(f"the service does not know this fault: {reply.text}")

    def clear_faults(self) -> int:
        """Remove all faults, and return how often they happened."""
        faults = self._get("faults")["faults"]
        self._session.delete(f"{self.address}/admin/faults", timeout=30)
        return sum(each["happened"] for each in faults)

    def wait_until_quiet(self) -> None:
        """Wait until the service has nothing more to send or to post back."""
        self.supervisor.wait_until(
            lambda: bool(self._get("progress")["quiet"]), "the service is quiet", 300, every=0.05
        )

    def campaigns(self) -> Iterator[tuple[int, str]]:
        """Yield the ID and title of every campaign that the service accepted."""
        skip = 0
        while page := self._get(f"campaigns?count=1000&skip={skip}")["campaigns"]:
            yield from ((each["id"], each["title"]) for each in page)
            skip += len(page)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield the title of every campaign that the service accepted, and the text of its push message."""
        for title, content in self._read("SELECT title, content FROM campaigns"):
            yield title, unpack(content).get("push_text", "")

    def targeted(self, campaign: int) -> list[int]:
        """Return the devices that a campaign was sent to."""
        return list(self._get(f"campaigns/{campaign}/truth")["targeted"])

    def sent_post_backs(self) -> Iterator[Sent]:
        """Yield every post-back that was answered 2xx according to the service's record."""
        query = """
            SELECT substr(campaigns.title, -33, 32), post_backs.kind, sends.device_id,
                   post_backs.attempts = 1 AND coalesce(post_backs.faults LIKE '%malformed%', 0)
            FROM post_backs JOIN sends ON sends.id = post_backs.send_id
                            JOIN campaigns ON campaigns.id = sends.campaign_id
            WHERE post_backs.state = 'sent'
        """
        for key, kind, device, is_damaged in self._read(query):
            yield Sent(key, kind, device, bool(is_damaged))

    def _read(self, query: str) -> Iterator[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as connection:
            yield from connection.execute(query)

    def _get(self, path: str) -> dict[str, Any]:
        reply = self._session.get(f"{self.address}/admin/{path}", timeout=60)
        reply.raise_for_status()
        return dict(reply.json())

    def _say(self, *words: str) -> dict[str, Any]:
        line = [_command("messaging-service"), *words, *self._at]
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, timeout=_TIMEOUT)  # noqa: S603
        return dict(json.loads(done.stdout))


def receiver(supervisor: Supervisor, ledger_url: str) -> tuple[str, Process]:
    """Start a receiver on a ledger, and return its address and process."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    settings = {
        "SENDOFF_LEDGER_URL": ledger_url,
        "SENDOFF_PUBLIC_URL": address,
        "SENDOFF_POST_BACK_SECRETS": SECRET,
    }
    process = supervisor.start(
        f"receiver-{port}",
        [_command("sendoff"), "receiver", "--host", "127.0.0.1", "--port", str(port)],
        {**os.environ, **settings},
        ready=lambda: answers(f"{address}/readyz"),
    )
    return address, process


@dataclass
class Cluster:
    """A private PostgreSQL that scenarios may stop and start."""

    url: str
    process: Process = field(repr=False)


@contextmanager
def cluster(supervisor: Supervisor) -> Iterator[Cluster | None]:
    """Create a PostgreSQL cluster in its own folder, and remove it afterwards; None if the programs are missing."""
    programs = _postgres_programs()
    user = "postgres" if os.getuid() == 0 else None
    if programs is None or (user and not any(each.pw_name == user for each in pwd.getpwall())):
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="chaos-postgres-"))
    try:
        if user:
            shutil.chown(folder, user, user)
        data = str(folder / "data")
        subprocess.run(  # noqa: S603  # a system program
            [str(programs / "initdb"), "-D", data, "-U", "postgres", "--auth=trust", "-E", "UTF8"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=user,
            cwd=folder,
            timeout=_TIMEOUT,
        )
        port = free_port()
        url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder}
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        process = supervisor.start(
            "postgresql",
            [str(programs / "postgres"), "-D", data, *settings],
            ready=lambda: _is_ready(url),
            user=user,
            stop=signal.SIGINT,
        )
        try:
            yield Cluster(url, process)
        finally:
            process.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_programs() -> Path | None:
    program = shutil.which("postgres")
    places = [Path(program).parent] if program else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    usable = [place for place in places if (place / "initdb").exists()]
    return usable[-1] if usable else None


def _is_ready(url: str) -> bool:
    engine = sa.create_engine(url, connect_args={"connect_timeout": 5})
    try:
        with engine.connect():
            return True
    except sa.exc.OperationalError:
        return False
    finally:
        engine.dispose()
