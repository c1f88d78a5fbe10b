"""Which tests may notice a changed module: those that import it, directly or through other modules, nearest first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.mutation.mutants import ROOT, SOURCES

FOLDERS = ("tests/unit", "tests/contract")


class Imports:
    """The imports among the modules of Sendoff, the local service, and the tests."""

    def __init__(self) -> None:
        files = [*SOURCES.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
        self._modules = {_module(file): file for file in files}
        self._imported = {name: set(self._names(name, file)) for name, file in self._modules.items()}
        self.tests = sorted(
            name
            for name, file in self._modules.items()
            if file.name.startswith("test_") and file.relative_to(ROOT).as_posix().startswith(FOLDERS)
        )

    def tests_of(self, path: str) -> list[str]:
        """Return the test files that import a module, ordered by how near they are to it."""
        module = _module(SOURCES / path)
        package, words = path.split("/")[1], set(re.findall(r"[a-z]+", path))
        nearness = {}
        for test in self.tests:
            distance = self._distances(test).get(module)
            if distance is not None:
                named = set(test.rsplit(".", 1)[1].split("_")) & words
                nearness[test] = (f".{package}." not in test, -len(named), distance, test)
        return [
            str(self._modules[test].relative_to(ROOT)) for test in sorted(nearness, key=nearness.__getitem__)
        ]

    @cache  # noqa: B019 (one object for a whole run)
    def _distances(self, start: str) -> dict[str, int]:
        distances, layer, distance = {start: 0}, {start}, 0
        while layer:
            distance += 1
            layer = {name for each in layer for name in self._imported[each]} - distances.keys()
            distances.update(dict.fromkeys(layer, distance))
        return distances

    def _names(self, name: str, file: Path) -> Iterator[str]:
        if file.name.startswith("test_"):  # pytest imports these
            parents = (name.rsplit(".", up)[0] + ".conftest" for up in range(1, name.count(".") + 1))
            yield from (each for each in parents if each in self._modules)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names if each.name in self._modules)
            elif isinstance(node, ast.ImportFrom):
                parts = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
                source = ".".join([*parts, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield from self._resolved(source, alias.name)

    def _resolved(self, source: str, name: str) -> Iterator[str]:
        """Yield the module that defines a name. The faces of packages name it in their stub."""
        if f"{source}.{name}" in self._modules:
            yield f"{source}.{name}"
        elif source in self._modules:
            yield _named_by_faces().get((source, name), source)


@cache
def _named_by_faces() -> dict[tuple[str, str], str]:
    return {
        (_module(stub), alias.asname or alias.name): f"{_module(stub)}.{node.module}"
        for stub in SOURCES.rglob("__init__.pyi")
        for node in ast.walk(ast.parse(stub.read_bytes()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _module(file: Path) -> str:
    parts = file.relative_to(SOURCES if SOURCES in file.parents else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
