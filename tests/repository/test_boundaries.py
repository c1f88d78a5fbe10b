"""The boundaries of the code: imports between packages, the content of DAG files, and of the repository."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "sendoff": ROOT / "include/sendoff",
    "messaging_service": ROOT / "include/messaging_service",
    "sendoff_airflow": ROOT / "plugins/sendoff_airflow",
}
FORBIDDEN = [
    ("sendoff", {"airflow", "sendoff_airflow", "messaging_service"}),
    ("messaging_service", {"airflow", "sendoff_airflow", "sendoff"}),
    ("sendoff_airflow", {"messaging_service"}),
]
HTTP = {"aiohttp", "http", "httpx", "requests", "urllib", "urllib3"}
SQL = re.compile(
    r"\b(select\s[^.]+\sfrom|insert\s+into|update\s+\w+\s+set|delete\s+from|create\s+table)\s", re.IGNORECASE
)
SECRET = re.compile(r"secret|password|token|private_key", re.IGNORECASE)
ONE_MACHINE = re.compile(r"(?<![\w.~/-])/(?:home|Users|root|work)/\w")
REGISTRY = re.compile(
    r"index[-_]url|find[-_]links|trusted[-_]host|pythonhosted\.|pypi\.org/simple|registry\.npmjs|deb\.debian\.",
    re.IGNORECASE,
)


@pytest.mark.parametrize(("package", "strangers"), FORBIDDEN)
@pytest.mark.promise("sound/borders")
def test_a_package_imports_no_package_that_lies_above_or_beside_it(package: str, strangers: set[str]) -> None:
    found = [
        f"{where}: {name}"
        for path in sorted(PACKAGES[package].rglob("*.py"))
        for where, name in _imports(path)
        if name.split(".")[0] in strangers
    ]
    assert found == []


def test_a_dag_file_holds_no_sql() -> None:
    assert [where for path in _dag_files() for where, text in _strings(path) if SQL.search(text)] == []


def test_a_dag_file_speaks_no_http() -> None:
    addresses = [where for path in _dag_files() for where, text in _strings(path) if "://" in text]
    clients = [
        where
        for path in _dag_files()
        for where, name in _imports(path)
        if name.split(".")[0] in HTTP or name.startswith("airflow.providers.http")
    ]
    assert addresses + clients == []


def test_a_dag_file_holds_no_secret() -> None:
    found = []
    for path in _dag_files():
        for node in ast.walk(_tree(path)):
            named: list[tuple[str, ast.expr]] = []
            if isinstance(node, ast.keyword) and node.arg:
                named = [(node.arg, node.value)]
            elif isinstance(node, ast.Assign):
                named = [(ast.unparse(target), node.value) for target in node.targets]
            elif isinstance(node, ast.Dict):
                named = [(ast.unparse(k), v) for k, v in zip(node.keys, node.values, strict=True) if k]
            found += [
                f"{path.name}:{value.lineno} {name}"
                for name, value in named
                if SECRET.search(name) and isinstance(value, ast.Constant) and isinstance(value.value, str)
            ]
    assert found == []


def test_nothing_in_the_tree_knows_one_machine_or_a_registry() -> None:
    me = Path(__file__).name
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in _tracked()
        if path.name != me
        for number, line in enumerate(_lines(path), 1)
        if ONE_MACHINE.search(line) or REGISTRY.search(line) or str(ROOT) in line
    ]
    assert found == []


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-airflow-next.txt"])
def test_constraints_hold_names_and_versions_only(file: str) -> None:
    pin = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*")
    lines = (ROOT / file).read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#") and not pin.fullmatch(line)] == []


def test_the_constraints_of_the_newest_airflow_differ_in_airflow_only() -> None:
    pins, newest = (
        dict(line.split("==") for line in (ROOT / file).read_text().splitlines() if "==" in line)
        for file in ("constraints.txt", "constraints-airflow-next.txt")
    )
    differ = {name for name in pins | newest if pins.get(name) != newest.get(name)}
    assert differ == {"apache-airflow", "apache-airflow-core", "apache-airflow-task-sdk"}


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (ONE_MACHINE, 'open("/home/ann/data.csv")'),
        (ONE_MACHINE, "see /Users/ann/notes.md"),
        (REGISTRY, "--extra-index-url https://example.com/simple"),
        (SQL, "SELECT device_id\nFROM devices"),
    ],
)
def test_each_rule_can_find_something(rule: re.Pattern[str], line: str) -> None:
    assert rule.search(line)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((f"{path.name}:{node.lineno}", alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield f"{path.name}:{node.lineno}", node.module


def _strings(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"{path.name}:{node.lineno}", node.value


def _dag_files() -> list[Path]:
    return sorted((ROOT / "dags").rglob("*.py"))


def _tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except UnicodeDecodeError:  # an image
        return []
