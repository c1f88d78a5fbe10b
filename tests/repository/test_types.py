"""The types of the library, as a type checker sees them in the script of a user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/use-from-python.md"


def test_a_type_checker_accepts_the_examples_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = re.findall(r"```python[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    files = [tmp_path / f"example_{number}.py" for number in range(len(examples))]
    for file, text in zip(files, examples, strict=True):
        file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("MYPYPATH", str(ROOT / "include"))
    options = ["--strict", "--ignore-missing-imports", "--config-file=", f"--cache-dir={tmp_path}"]
    said, errors, status = api.run([*options, *map(str, files)])
    assert (said, errors, status) == (f"Success: no issues found in {len(files)} source files\n", "", 0)
