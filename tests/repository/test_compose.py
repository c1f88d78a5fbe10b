"""Static checks of docker-compose.yml and the image.

tests/acceptance/test_cluster.py runs them.
"""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, each in SERVICES.items() if each["image"] == "sendoff")
STAY = sorted(name for name, each in SERVICES.items() if each["restart"] != "no")
FOREIGN = {  # image -> its programs that the file uses
    "nginx:1.28": {"nginx", "curl"},
    "postgres:17": {"pg_isready"},
    "redis:7": {"redis-server", "redis-cli", "grep", "sed", "sh"},
}
SHELL = {"cat", "exec", "hostname", "sh"}  # programs of every Debian system


def test_compose_itself_accepts_the_file() -> None:
    command = next(
        (
            words
            for words in (["docker", "compose"], ["docker-compose"])
            if shutil.which(words[0])
            and subprocess.run([*words, "version"], check=False, capture_output=True).returncode == 0
        ),
        None,
    )
    if command is None:
        pytest.skip("needs docker-compose: neither `docker compose` nor `docker-compose` is installed")
    read = subprocess.run(
        [*command, "--file", ROOT / "docker-compose.yml", "--profile", "try", "config"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert read.returncode == 0, read.stderr
    assert yaml.safe_load(read.stdout)["services"].keys() == SERVICES.keys()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_program_that_a_service_runs_is_in_its_image(name: str) -> None:
    service = SERVICES[name]
    named = programs(service.get("command", [])) | programs(
        service.get("healthcheck", {}).get("test", [])[1:]
    )
    if name not in OURS:
        assert named <= FOREIGN[service["image"]]
        return
    beside = Path(sys.executable).parent
    for program in named - SHELL:
        if program == "celery" and not (beside / program).exists():
            pytest.skip("needs the extra celery: pip install '.[celery]'")
        path = ROOT / program if "/" in program else beside / program
        assert path.stat().st_mode & stat.S_IXUSR, f"{program} cannot be run"


def programs(words: list[str]) -> set[str]:
    """Return the programs of a command; for a shell command line, those at the start of each command."""
    if not words:
        return set()
    line = words[2] if words[:2] == ["sh", "-c"] else words[0]
    if words[:2] != ["sh", "-c"] and len(words) > 1:
        return {words[0]}
    plain = re.sub(r"\b[A-Z_]+=\"\$\$\((\w+)[^)]*\)\"", r"; \1 ;", line)
    plain = re.sub(r"\$\$\((\w+)\)", "", plain)
    found = {part.split()[0] for part in re.split(r"[;|]", plain) if part.strip()}
    return {each for each in found if each != "exec"} | set(re.findall(r"exec ([\w-]+)", line))


def test_programs_are_found_in_a_line_for_the_shell() -> None:
    line = 'PASSWORD="$$(sed -n p /x)" redis-cli ping | grep -q PONG'
    assert programs([line]) == {"sed", "redis-cli", "grep"}
    assert programs(["sh", "-c", 'A="$$(cat /x)" exec serve --now']) == {"cat", "serve"}
    assert programs(["airflow", "scheduler"]) == {"airflow"}


@pytest.mark.parametrize("name", STAY)
def test_every_service_that_stays_is_watched_bounded_and_started_again(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
    assert int(service["logging"]["options"]["max-file"]) < 10


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_service_is_root_or_reached_from_other_machines(name: str) -> None:
    service = SERVICES[name]
    assert name in OURS or service["user"] not in {"root", "0", "0:0"}
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    if name in OURS:
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert "user" not in service
    assert re.search(r"^USER sendoff$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)


def test_the_proxy_reaches_receivers_and_nothing_else() -> None:
    neighbours = {
        name for name, each in SERVICES.items() if set(each["networks"]) & set(SERVICES["proxy"]["networks"])
    }
    assert neighbours == {"proxy", "receiver-1", "receiver-2", "service"}


def test_workers_and_receivers_know_no_secret_that_they_do_not_use() -> None:
    assert "airflow_database" not in SERVICES["worker"]["secrets"]
    assert set(SERVICES["receiver-1"]["secrets"]) == {"erasure_secret", "ledger", "post_back_secrets"}
    for name in set(OURS) & set(STAY):
        text = " ".join(
            map(str, [*SERVICES[name].get("environment", {}).values(), *SERVICES[name]["command"]])
        )
        named = {Path(path).name for path in re.findall(r"/run/secrets/\w+", text)}
        assert named <= set(SERVICES[name]["secrets"]), name


def test_no_secret_stands_in_the_file() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"\$\{", text)
    assert not re.search(r"://[^/\s]*:[^/\s]*@", text)


def test_make_secrets_makes_each_file_once(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    subprocess.run([ROOT / "docker/make-secrets", folder], check=True)
    assert {f"./secrets/{path.name}" for path in folder.iterdir()} == {
        each["file"] for each in COMPOSE["secrets"].values()
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644, "a container's user could not read it"
        assert path.name == "databases.sql" or not path.read_bytes().endswith(b"\n"), path.name
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = subprocess.run([ROOT / "docker/make-secrets", folder], check=False, capture_output=True)
    assert again.returncode == 1
    assert f"{folder} exists, so nothing was changed" in again.stderr.decode()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert len(set(before.values())) == len(before)


def test_the_proxy_finds_the_receivers_even_if_one_is_stopped() -> None:
    addresses = {
        name: each["networks"]["outside"]["ipv4_address"]
        for name, each in SERVICES.items()
        if name.startswith("receiver-")
    }
    assert SERVICES["proxy"]["extra_hosts"] == addresses


@pytest.mark.parametrize(
    ("openssl", "said"),
    [
        (None, "openssl is missing. Install it"),
        ("echo 0123456789 && exit 1", ""),
        (f'[ $2 = -hex ] && {shutil.which("openssl")} "$@"', ""),
    ],
    ids=["missing", "fails", "fails at the Fernet key"],
)
def test_make_secrets_leaves_nothing_behind_if_it_fails(
    tmp_path: Path, openssl: str | None, said: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mkdir", "mktemp", "mv", "rm", "tr"):
        (programs / name).symlink_to(shutil.which(name) or "")
    if openssl is not None:
        (programs / "openssl").write_text(f"#!/bin/sh\n{openssl}\n")
        (programs / "openssl").chmod(0o755)
    (tmp_path / "docker").mkdir()
    done = subprocess.run(
        ["/bin/sh", ROOT / "docker/make-secrets", tmp_path / "docker/secrets"],
        env={"PATH": str(programs)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert said in done.stderr
    assert list((tmp_path / "docker").iterdir()) == []
