"""The distribution is ``airflow-provider-sendoff``. No text recommends installing another project's ``sendoff``."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = "|".join(PROJECT["optional-dependencies"])
# The name in a place where an installer reads it: after a command with options, before extras, or before a pin.
WRONG = (
    re.compile(
        r"\b(?:pip3?|pipx|uv|poetry) (?:install|add|download|wheel)\b(?:[ =][^\s;&|]*)*?"
        r"[ =][\"'`]*sendoff(?![\w./:-])"
    ),
    re.compile(rf"(?<![\w/.-])sendoff\[(?:{EXTRAS})\b"),
    re.compile(r"^[\"' -]*sendoff *(?:[=~<>!]=|@ )", re.MULTILINE),
)


@pytest.mark.parametrize(
    "text",
    [
        "pip install sendoff",
        "pip install -c constraints.txt 'sendoff'",
        'python -m pip install --upgrade "sendoff[postgres]"',
        "uv add sendoff",
        "(the latter needs: sendoff[postgres])",
        "RUN pip install --no-cache-dir sendoff==0.1.0",
        "  sendoff==0.1.0",
    ],
)
def test_a_text_that_tells_people_to_install_sendoff_is_found(text: str) -> None:
    assert any(pattern.search(text) for pattern in WRONG)


@pytest.mark.parametrize(
    "text",
    [
        f"pip install '{PROJECT['name']}[postgres]'",
        "RUN pip install -c /tmp/sendoff/constraints.txt '/tmp/sendoff[airflow,celery,postgres]'",
        "install --directory --owner sendoff $AIRFLOW_HOME",
        "pip uninstall sendoff",
        "rows / sendoff[0]",
        "airflow connections add sendoff_ledger",
    ],
)
def test_a_text_that_does_not_is_left_alone(text: str) -> None:
    assert not any(pattern.search(text) for pattern in WRONG)


def test_the_pinned_versions_are_installed_and_fit_together() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {
        canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)
    }
    installed = {canonicalize_name(each.metadata["Name"]): each.version for each in distributions()}
    other = {name: version for name, version in installed.items() if pinned.get(name, version) != version}
    assert other == {}
    checked = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout) == (0, "No broken requirements found.\n")


def test_the_pinned_versions_run_on_the_oldest_python() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    too_new = {
        f"{each.name}=={each.version} needs Python {needed}"
        for each in distributions()
        if (needed := each.metadata["Requires-Python"]) and oldest not in SpecifierSet(needed)
    }
    assert too_new == set()


def test_no_text_tells_people_to_install_another_projects_package() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = listed.stdout.decode().split("\0")[:-1]
    files = [ROOT / name for name in names if (ROOT / name).is_file() and ROOT / name != Path(__file__)]
    assert len(files) > 500
    wrong = [
        f"{file.relative_to(ROOT)}: {found[0]}"
        for file in files
        if file.suffix not in (".png", ".svg")
        for pattern in WRONG
        if (found := pattern.search(file.read_text(encoding="utf-8", errors="replace")))
    ]
    assert wrong == []


@pytest.mark.parametrize("extra", ["", "postgres", "telemetry"])
def test_a_receiver_needs_nothing_of_airflow(extra: str) -> None:
    """The receiver's requirements include neither Airflow nor a provider of Airflow, even indirectly."""
    own = PROJECT["optional-dependencies"].get(extra, [])
    names = brought([*PROJECT["dependencies"], *own])
    assert {"sqlalchemy", "pydantic-core"} <= names  # the second is an indirect requirement
    assert [name for name in names if "airflow" in name] == []


BASE = {
    "adbc-driver-manager": "import adbc_driver_manager",
    "adbc-driver-sqlite": 'import_module(f"adbc_driver_{backend}',
    "alembic": "from alembic import",
    "croniter": "from croniter import",
    "granian": "from granian.",
    "holidays": "from holidays import",
    "jinja2": "from jinja2 import",
    "lazy-loader": "import lazy_loader",
    "markupsafe": "from markupsafe import",
    "numpy": "import numpy",
    "opentelemetry-api": "from opentelemetry import",
    "orjson": "import orjson",
    "pyarrow": "import pyarrow",
    "pydantic": "from pydantic import",
    "pydantic-settings": "from pydantic_settings import",
    "pyjwt": "import jwt",
    "pyroaring": "from pyroaring import",
    "pyyaml": "import yaml",
    "requests": "import requests",
    "rich": "from rich",
    "sqlalchemy": "import sqlalchemy",
    "structlog": "from structlog",
    "tenacity": "from tenacity import",
    "typer": "import typer",
    "urllib3": "from urllib3",
}
"""The packages of the base install, and how the library imports each."""


def test_the_base_install_has_only_what_the_library_imports() -> None:
    """Everything else belongs in an extra. The time zones of tzdata are no module."""
    wanted = [Requirement(each) for each in PROJECT["dependencies"]]
    assert {each.name for each in wanted} == {*BASE, "tzdata"}
    assert {extra for each in wanted for extra in each.extras} == {"crypto"}
    files = (ROOT / "include/sendoff").rglob("*.py")
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert [name for name, words in BASE.items() if words not in source] == []


def test_the_extra_airflow_brings_the_provider_of_postgresql() -> None:
    named = {Requirement(each).name for each in PROJECT["optional-dependencies"]["airflow"]}
    assert "apache-airflow-providers-postgres" in named


def test_the_wheel_that_the_readme_installs_is_the_one_that_is_built() -> None:
    wheel = f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}-py3-none-any.whl"
    assert f"'dist/{wheel}[airflow,postgres]'" in (ROOT / "README.md").read_text(encoding="utf-8")


def brought(requirements: list[str], python: Mapping[str, str] | None = None) -> set[str]:
    """Return the packages that a list of requirements installs. ``python``: markers of another Python than this one."""
    found: set[str] = set()
    todo = [Requirement(each) for each in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        wanted = todo.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        found.add(key[0])
        for line in distribution(wanted.name).requires or []:
            further = Requirement(line)
            marker = further.marker
            if marker is None or any(
                marker.evaluate({"extra": extra, **(python or {})}) for extra in ("", *wanted.extras)
            ):
                todo.append(further)
    return found


def test_the_distribution_is_named_as_providers_are_and_keeps_its_commands_and_packages() -> None:
    assert PROJECT["name"] == "airflow-provider-sendoff"
    assert set(PROJECT["scripts"]) == {"sendoff", "messaging-service"}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = {Path(package).name for package in build["targets"]["wheel"]["packages"]}
    assert packages == {"sendoff", "messaging_service", "sendoff_airflow"}
