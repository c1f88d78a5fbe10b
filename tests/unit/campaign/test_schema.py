"""The published schemas, which have each field's default, limits and description."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sendoff.cli.commands import app

FOLDER = Path(__file__).resolve().parents[3] / "dags/campaigns"


@pytest.mark.parametrize(
    ("command", "name"),
    [("schema", "campaign"), ("schema --defaults", "defaults"), ("schema --journey", "journey")],
)
def test_a_published_schema_is_that_of_the_model(command: str, name: str) -> None:
    file = FOLDER / f"{name}.schema.json"
    printed = CliRunner().invoke(app, command).output
    assert file.read_text(encoding="utf-8") == printed, f"run: sendoff {command} > {file.name}"
