"""Containers on this machine without Docker: namespaces, a bridge for each network, and the commands of the file.

Everything depends on one process, the *switch*. The network namespaces exist only in its mount namespace, and the
bridges only in its network namespace. When it ends, for any reason, nothing of the networks remains. Each container
depends on its first process. When that is killed, the kernel kills the whole container at once, like a power failure.
"""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from sendoff.demo.processes import Process, Supervisor

from .composition import OURS, ROOT, Service, image_environment, image_user

PROGRAMS = ("ip", "mount", "nginx", "nsenter", "redis-server", "setpriv", "unshare")
_IMAGES_OWN = (
    "/docker-entrypoint-initdb.d",
    "/var/lib",
)  # folders that exist only in the image of PostgreSQL
_SEARCHED = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
_NAMESPACES = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
_PROBE = (
    "mount -t tmpfs tmpfs /run && ip link add one type bridge && ip link add two type veth peer name three"
)


def missing() -> list[str]:
    """Return what this machine lacks to run containers without Docker."""
    lacks = [
        f"the program {name}" for name in PROGRAMS if shutil.which(name, path=":".join(_SEARCHED)) is None
    ]
    if _postgres_programs() is None:
        lacks.append("PostgreSQL's initdb")
    if not any(metadata.distributions(name="apache-airflow-providers-celery")):
        lacks.append("Airflow's provider for Celery")
    if os.geteuid() != 0:
        lacks.append("root")
    elif subprocess.run(
        [*_NAMESPACES, "--net", "sh", "-c", _PROBE], check=False, capture_output=True
    ).returncode:
        lacks.append("the right to create namespaces")
    return lacks


class Containers(Supervisor):
    """Starts containers as child processes, and stops them all on exit."""

    def __init__(self, folder: Path, networks: Mapping[str, str | None]) -> None:
        super().__init__(folder / "logs", grace=0.5)  # nothing in them needs time to stop
        self._folder = folder
        self._networks = {name: subnet or _free_subnet() for name, subnet in networks.items()}
        self._plugged: dict[str, dict[str, str]] = {}  # container -> network -> address

    def plug_in(self, services: Mapping[str, Service], reached: str) -> None:
        """Create the networks, and a namespace for each container. This machine can reach the network ``reached``."""
        holder = "mount -t tmpfs tmpfs /run && mkdir /run/netns && exec sleep infinity"
        command = ["unshare", "--net", "--mount", "sh", "-c", holder]
        self._switch = self.start("switch", command, {"PATH": ":".join(_SEARCHED)})
        self.wait_until(self._is_switched_on, "the switch is there")
        for number, (name, subnet) in enumerate(self._networks.items()):
            self._ip(f"link add {name} type bridge", f"link set {name} up")
            if name == reached:
                self._reach(name, f"sendoff{os.getpid() % 100_000}", ipaddress.ip_network(subnet))
            free = iter(list(ipaddress.ip_network(subnet).hosts())[19:])
            for service in services.values():
                for container in service.containers if name in service.networks else ():
                    address = service.networks[name] or str(next(free))
                    self._plug(container, name, number, address, ipaddress.ip_network(subnet).prefixlen)

    def _reach(self, network: str, link: str, subnet: ipaddress.IPv4Network | ipaddress.IPv6Network) -> None:
        pid = self._switch.pid
        _run(["ip", "link", "add", link, "type", "veth", "peer", "name", "machine", "netns", str(pid)])
        _run(["ip", "address", "add", f"{next(subnet.hosts())}/{subnet.prefixlen}", "dev", link])
        _run(["ip", "link", "set", link, "up"])
        self._ip(f"link set machine master {network} up")

    def _plug(self, container: str, network: str, number: int, address: str, bits: int) -> None:
        if container not in self._plugged:
            self._ip(f"netns add {container}", f"-n {container} link set lo up")
        self._plugged.setdefault(container, {})[network] = address
        port = f"p{number}-{list(self._plugged).index(container)}"
        self._ip(
            f"link add {port} type veth peer name eth{number} netns {container}",
            f"link set {port} master {network} up",
            f"-n {container} address add {address}/{bits} dev eth{number}",
            f"-n {container} link set eth{number} up",
        )

    def address(self, container: str, network: str) -> str:
        """Return the address of a container in a network."""
        return self._plugged[container][network]

    def hosts(self, container: str) -> str:
        """Return the hosts file of a container, with all containers that it can reach."""
        mine = self._plugged[container]
        lines = ["127.0.0.1 localhost", *(f"{mine[network]} {container}" for network in sorted(mine)[:1])]
        for other, theirs in self._plugged.items():
            shared = sorted(mine.keys() & theirs.keys())
            if other != container and shared:
                lines.append(f"{theirs[shared[0]]} {other}")
        return "\n".join(lines) + "\n"

    def start_container(self, container: Container) -> None:
        """Start a container, or restart a killed one. Its output goes to ``logs/<name>.log``."""
        specification = self._folder / f"{container.name}.json"
        specification.write_text(
            json.dumps(container.specification(self._folder, self.hosts(container.name)))
        )
        log = self._folder / "logs" / f"{container.name}.log"
        log.touch()
        log.chmod(0o666)  # nginx reopens it as its own user
        command = ["ip", "netns", "exec", container.name, *_NAMESPACES, sys.executable, "-I", str(_INSIDE)]
        container.child = self.start(
            container.name,
            [*self._entered(), *command, str(specification)],
            {"PATH": ":".join(_SEARCHED)},
            stays=container.service.restarts,
        )

    def kill(self, container: Container) -> None:
        """Kill all processes of a container at once."""
        assert container.child is not None
        container.first.kill()
        container.child.wait(120)
        container.child = None

    def _entered(self) -> list[str]:
        return ["nsenter", f"--target={self._switch.pid}", "--net", "--mount", "--"]

    def _is_switched_on(self) -> bool:
        """Check whether the switch has its own namespaces and is ready."""
        spaces = [Path("/proc", str(pid), "ns/mnt").readlink() for pid in (os.getpid(), self._switch.pid)]
        ready = [*self._entered(), "test", "-d", "/run/netns"]
        return spaces[0] != spaces[1] and subprocess.run(ready, check=False).returncode == 0

    def _ip(self, *commands: str) -> None:
        for command in commands:
            _run([*self._entered(), "ip", *command.split()])


@dataclass
class Container:
    """A container of a service; ``sources`` maps the file's paths to real ones, ``more`` extends its environment."""

    service: Service
    name: str
    sources: Callable[[str], Path]
    more: Mapping[str, str] = field(default_factory=dict)
    more_binds: Mapping[str, str] = field(default_factory=dict)
    child: Process | None = None

    @property
    def first(self) -> psutil.Process:
        """Its first process; when that ends, the whole container ends."""
        first = self._find_first()
        assert first is not None, f"{self.name} does not run"
        return first

    def _find_first(self) -> psutil.Process | None:
        """Return its first process, or None if it does not run."""
        if self.child is None or self.child.poll() is not None:
            return None
        with suppress(psutil.NoSuchProcess):
            return next(iter(psutil.Process(self.child.pid).children()), None)
        return None

    def stop(self) -> None:
        """Stop all of its processes with SIGSTOP, including processes that they start meanwhile."""
        while running := [each for each in self._processes() if not _is_stopped(each)]:
            _send(running, signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue all of its processes."""
        _send(self._processes(), signal.SIGCONT)

    def _processes(self) -> list[psutil.Process]:
        return [self.first, *self.first.children(recursive=True)]

    def ended_well(self) -> bool:
        """Check whether its command has ended successfully."""
        return self.child is not None and self.child.poll() == 0

    def is_healthy(self) -> bool:
        """Run its health check, as defined in the file. Without one, it is healthy while it runs."""
        if not self.service.health:
            return True
        return self._find_first() is not None and self.run(self.service.health).returncode == 0

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command inside the container, as its user and with its environment."""
        inside = [f"--target={self.first.pid}", "--mount", "--net", "--pid", "--uts", "--ipc"]
        there = ["sh", "-c", 'cd "$0" && exec "$@"', self.cwd]
        return subprocess.run(
            ["nsenter", *inside, "--", *self.as_user, *there, *command],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )

    @property
    def is_ours(self) -> bool:
        """Check whether it uses this project's image."""
        return self.service.image == OURS

    @property
    def cwd(self) -> str:
        """The working folder of its commands."""
        return "/opt/sendoff" if self.is_ours else "/"

    @property
    def environment(self) -> dict[str, str]:
        """Its complete environment."""
        programs = (
            [str(_postgres_programs()), *_SEARCHED]
            if self.service.image.startswith("postgres")
            else _SEARCHED
        )
        image = {**image_environment(), "HOME": f"/home/{image_user()[0]}"} if self.is_ours else {"HOME": "/"}
        return {
            "PATH": ":".join(programs),
            "HOSTNAME": self.name,
            **image,
            **self.service.environment,
            **self.more,
        }

    @property
    def as_user(self) -> list[str]:
        """Return the command prefix that drops all capabilities.

        One capability remains: to read this project and Python, wherever they are installed. The user's permissions
        decide which files it may write.
        """
        user, group = self.user
        rights = "-all,+dac_read_search" if self.is_ours else "-all"
        caps = [f"--inh-caps={rights}", f"--bounding-set={rights}"]
        if self.is_ours:
            caps.append("--ambient-caps=+dac_read_search")
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs", *caps]

    @property
    def user(self) -> tuple[int, int]:
        """The ids of its user and group."""
        if self.is_ours and not self.service.user:
            return image_user()[1], image_user()[1]
        user, _, group = self.service.user.partition(":")
        if user.isdecimal():
            return int(user), int(group or user)
        known = pwd.getpwnam(user)
        return known.pw_uid, known.pw_gid

    def specification(self, folder: Path, hosts: str) -> dict[str, object]:
        """Return the specification for its first process."""
        name, number = image_user()
        passwords = Path("/etc/passwd").read_text() + f"{name}:x:{number}:{number}::/home/{name}:/bin/sh\n"
        binds = {
            "/etc/hosts": _written(folder / f"{self.name}.hosts", hosts),
            "/etc/passwd": _written(folder / f"{self.name}.passwd", passwords),
            **{_place(target): str(self.sources(source)) for target, source in self.service.secrets.items()},
            **{_place(target): str(self.sources(source)) for target, source in self.service.volumes.items()},
        }
        if self.is_ours:
            binds["/opt/sendoff/docker"] = str(ROOT / "docker")
        if self.service.image.startswith("postgres"):
            binds["/run/image/entry-point"] = str(_POSTGRES)
        for source in self.service.volumes.values():
            if not source.startswith("."):
                os.chown(self.sources(source), *self.user)
        return {
            "hostname": self.name,
            "as_user": self.as_user,
            "command": self.service.command or ["/run/image/entry-point"],
            "environment": self.environment,
            "cwd": self.cwd,
            "tmpfs": self.service.tmpfs,
            "keep": [str(ROOT), sys.prefix, sys.base_prefix],
            "binds": binds | dict(self.more_binds),
        }


_INSIDE = Path(__file__).with_name("inside.py")
_POSTGRES = Path(__file__).with_name("postgres-image")


def _send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):  # it may have ended already
            each.send_signal(number)


def _is_stopped(process: psutil.Process) -> bool:
    """Check whether a process is stopped or has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    return True


def _place(target: str) -> str:
    return f"/run/image{target}" if target.startswith(_IMAGES_OWN) else target


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def _postgres_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def _free_subnet() -> str:
    """Return a subnet from the range reserved for tests, without an address of this machine."""
    told = subprocess.run(["ip", "-json", "address"], check=True, capture_output=True, text=True).stdout
    used = [ipaddress.ip_address(each["local"]) for link in json.loads(told) for each in link["addr_info"]]
    subnets = ipaddress.ip_network("198.18.0.0/16").subnets(new_prefix=24)
    return str(next(each for each in subnets if not any(address in each for address in used)))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
