"""The command that starts a project: the DAG files, an example campaign, and a check in CI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from sendoff.cli.shared import app
from sendoff.errors import SettingsError

_STARTER = Path(__file__).with_name("starter")
_CAMPAIGN = "dags/campaigns/welcome"
_FILES = {
    "dags/.airflowignore": "airflowignore.txt",
    "dags/campaigns.py": "campaigns.py.txt",
    "dags/campaign_errors.py": "campaign_errors.py.txt",
    "dags/housekeeping.py": "housekeeping.py.txt",
    f"{_CAMPAIGN}/campaign.yaml": "campaign.yaml",
    f"{_CAMPAIGN}/audience.sql": "audience.sql",
    ".github/workflows/campaigns.yml": "campaigns.yml",
}


@app.command()
def init(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Where to start; created if it does not exist", file_okay=False),
    ] = Path(),
) -> None:
    """Start a project: write the DAG files, an example campaign, schemas for editors, and a workflow for CI.

    A file that exists is left as it is.
    """
    for name, content in _files():
        typer.echo(f"{'wrote ' if _is_written(folder / name, content) else 'exists'}  {folder / name}")
    typer.echo(f"Next, check the example campaign: sendoff check {folder / _CAMPAIGN}")


def _files() -> Iterator[tuple[str, str]]:
    from sendoff.campaign import campaign_schema, defaults_schema, journey_schema

    for name, source in _FILES.items():
        yield name, (_STARTER / source).read_text(encoding="utf-8")
    for file, made in {
        "campaign": campaign_schema,
        "defaults": defaults_schema,
        "journey": journey_schema,
    }.items():
        yield f"dags/campaigns/{file}.schema.json", json.dumps(made(), indent=2) + "\n"


def _is_written(file: Path, content: str) -> bool:
    """Write a file and return True, or return False if it exists, also as a link to nowhere."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(content)
    except FileExistsError:
        if file.is_dir() or not file.parent.is_dir():
            raise SettingsError(f"{file} cannot be written: something else has its name.") from None
        return False
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror or type(error).__name__}.") from None
    return True
