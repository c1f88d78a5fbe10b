"""The wheel and the images: what they are built from, and that a tag always gives the same wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILES = sorted(ROOT.glob("docker/**/Dockerfile"))
IGNORED = shutil.ignore_patterns("__pycache__")


def steps(dockerfile: Path) -> list[str]:
    """Return the instructions of a Dockerfile, one line each."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def built(source: Path, folder: Path, *, epoch: int = 1_700_000_000) -> dict[str, str]:
    """Build wheel and sdist without a package index. Return the hash of each file by its name."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    for target in ("wheel", "sdist"):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder],
            cwd=source,
            env=environment,
            check=True,
            capture_output=True,
        )
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def copied(names: list[str], folder: Path) -> Path:
    folder.mkdir()
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_image_installs_from_the_files_that_it_copied_before(dockerfile: Path, tmp_path: Path) -> None:
    before: list[str] = []
    for step in steps(dockerfile):
        words = step.split()
        if words[0] == "COPY":
            before += [word for word in words[1:-1] if not word.startswith("--")]
        if "install" in words and "-r" in words:
            assert words[words.index("-r") + 1] in before
        elif "pip install" in step:
            break
    else:
        pytest.fail("no step installs the project")
    allowed = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert [name for name in before if name.split("/")[0] not in allowed] == []
    assert len(built(copied(before, tmp_path / "context"), tmp_path / "dist")) == 2


def test_the_same_files_always_give_the_same_wheel_and_sdist(tmp_path: Path) -> None:
    sources = ["CHANGELOG.md", "LICENSE", "README.md", "dags", "include", "plugins", "pyproject.toml"]
    first = copied(sources, tmp_path / "first")
    second = copied(sources, tmp_path / "second")
    for path in second.rglob("*"):  # as in a clone of another day, by a user with another umask
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(path.stat().st_mode & 0o711 if path.is_dir() else path.stat().st_mode & 0o700)
    dist = built(first, tmp_path / "dist-1")
    assert sorted(Path(name).suffix for name in dist) == [".gz", ".whl"]
    assert built(second, tmp_path / "dist-2") == dist
    assert built(first, tmp_path / "dist-3", epoch=1_600_000_000) != dist


def test_the_build_backend_is_pinned_to_the_version_that_the_tests_build_with() -> None:
    required = PROJECT["build-system"]["requires"]
    assert re.fullmatch(r"hatchling==[\d.]+", *required)
    assert set(required) <= set((ROOT / "constraints.txt").read_text().splitlines())
    assert set(required) <= set(PROJECT["project"]["optional-dependencies"]["dev"])
