"""The parts of docker-compose.yml and docker/Dockerfile that are needed to run their commands without Docker."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
OURS = "sendoff"  # the image that docker/Dockerfile builds


@dataclass(frozen=True)
class Service:
    """A service of the file; ``secrets`` and ``volumes`` map mount targets to their sources."""

    name: str
    image: str
    user: str
    command: list[str]
    environment: Mapping[str, str]
    secrets: Mapping[str, str]  # target -> file of the secret
    volumes: Mapping[str, str]  # target -> named volume or ./path
    tmpfs: list[str]
    networks: Mapping[str, str | None]  # name -> address
    after: Mapping[str, str]  # service -> condition
    health: list[str]
    replicas: int
    restarts: bool
    raw: Mapping[str, Any]

    @property
    def containers(self) -> list[str]:
        """The names of its containers."""
        return (
            [f"{self.name}-{number + 1}" for number in range(self.replicas)]
            if self.replicas > 1
            else [self.name]
        )


def services(path: Path = ROOT / "docker-compose.yml") -> dict[str, Service]:
    """Return the services of all profiles."""
    document = yaml.safe_load(path.read_text())
    files = {name: each["file"] for name, each in document["secrets"].items()}
    return {name: _service(name, each, files) for name, each in document["services"].items()}


def subnets(path: Path = ROOT / "docker-compose.yml") -> dict[str, str | None]:
    """Return the networks, each with its subnet if the file sets one."""
    networks = yaml.safe_load(path.read_text())["networks"]
    return {name: each["ipam"]["config"][0]["subnet"] if each else None for name, each in networks.items()}


def image_environment(path: Path = ROOT / "docker/Dockerfile") -> dict[str, str]:
    """Return the environment variables that the image sets."""
    lines = re.findall(r"^ENV (.+)$", path.read_text(), re.MULTILINE)
    return dict(word.split("=", 1) for line in lines for word in shlex.split(line))


def image_user(path: Path = ROOT / "docker/Dockerfile") -> tuple[str, int]:
    """Return the name and the id of the user that the image runs as."""
    text = path.read_text()
    [name] = re.findall(r"^USER (\w+)$", text, re.MULTILINE)
    [number] = re.findall(rf"useradd .*--uid (\d+) {name}", text)
    return name, int(number)


def _service(name: str, raw: Mapping[str, Any], files: Mapping[str, str]) -> Service:
    networks = raw.get("networks", ["default"])
    after = raw.get("depends_on", {})
    return Service(
        name=name,
        image=raw["image"],
        user=str(raw.get("user", "")),
        command=[_unescaped(word) for word in raw.get("command", [])],
        environment={key: _unescaped(value) for key, value in raw.get("environment", {}).items()},
        secrets=dict(_secret(each, files) for each in raw.get("secrets", [])),
        volumes=dict(_volume(each) for each in raw.get("volumes", [])),
        tmpfs=list(raw.get("tmpfs", [])),
        networks={each: (networks[each] or {}).get("ipv4_address") for each in networks}
        if isinstance(networks, dict)
        else dict.fromkeys(networks),
        after={each: after[each]["condition"] for each in after},
        health=_check(raw.get("healthcheck", {}).get("test", [])),
        replicas=raw.get("deploy", {}).get("replicas", 1),
        restarts=raw.get("restart", "no") != "no",
        raw=raw,
    )


def _unescaped(text: str) -> str:
    plain = text.replace("$$", "\0")
    assert "$" not in plain, f"a variable of the machine that runs compose: {text}"
    return plain.replace("\0", "$")


def _secret(secret: str | Mapping[str, str], files: Mapping[str, str]) -> tuple[str, str]:
    if isinstance(secret, str):
        return f"/run/secrets/{secret}", files[secret]
    return secret["target"], files[secret["source"]]


def _volume(volume: str) -> tuple[str, str]:
    source, target, *_ = volume.split(":")
    return target, source


def _check(test: list[str]) -> list[str]:
    if not test:
        return []
    kind, *words = map(_unescaped, test)
    return ["sh", "-c", *words] if kind == "CMD-SHELL" else words
