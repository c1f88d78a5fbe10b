"""The commands for uploaded lists."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sendoff.app import user_name
from sendoff.cli.shared import AsJson, LedgerUrl, app, opened, print_json
from sendoff.figures import counted

lists = typer.Typer(
    help="Uploaded lists: recipients that a campaign leaves out if it names the list.", no_args_is_help=True
)
app.add_typer(lists, name="lists")


@lists.command()
def upload(
    name: Annotated[str, typer.Argument(help="Name of the list, as campaigns refer to it")],
    file: Annotated[Path, typer.Argument(help="A CSV file with a header", exists=True, dir_okay=False)],
    column: Annotated[
        str, typer.Option(help="Column of the identifiers, named as in the campaigns' queries")
    ] = "device_id",
    numbers: Annotated[
        bool, typer.Option("--numbers", help="The warehouse stores these tokens or UUIDs as whole numbers")
    ] = False,
    ledger_url: LedgerUrl = None,
) -> None:
    """Store the people of a CSV file as a list. Replace the list if there is one of this name."""
    from sendoff.audience import kind_of, read_people

    people = read_people(file, column, kind_of(column, numbers=numbers))
    with opened(ledger_url) as ledger:
        ledger.uploaded_lists.store(name, column, people, user_name(), datetime.now(UTC))
    typer.echo(f"list {name}: {counted(len(people), 'person', 'people')} by {column}")


@lists.command()
def show(ledger_url: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Show the lists, without their people."""
    with opened(ledger_url) as ledger:
        found = ledger.uploaded_lists.all()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    for each in found:
        typer.echo(
            f"{each.name}: {counted(each.size, 'person', 'people')} by {each.identified_by}, "
            f"uploaded by {each.uploaded_by} on {each.uploaded_at:%Y-%m-%d %H:%M} UTC"
        )
    if not found:
        typer.echo("there are no lists")


@lists.command()
def delete(
    name: Annotated[str, typer.Argument(help="Name of the list")], ledger_url: LedgerUrl = None
) -> None:
    """Delete a list. Campaigns that refer to it fail until it is uploaded again."""
    with opened(ledger_url) as ledger:
        ledger.uploaded_lists.delete(name)
    typer.echo(f"list {name} is deleted")
