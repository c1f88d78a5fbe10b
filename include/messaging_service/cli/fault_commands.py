"""The commands by which faults are asked for and removed."""

from __future__ import annotations

from typing import Annotated

import typer

from messaging_service.cli.output import DATABASE, Database, exit_on_error, open_store, print_json
from messaging_service.faults.faults import (
    POST_BACK_FAULTS,
    REQUEST_FAULTS,
    Fault,
    add_fault,
    list_faults,
    remove_faults,
)

faults = typer.Typer(no_args_is_help=True, help="What goes wrong on request, also in a service that runs.")


@faults.command("kinds")
def show_kinds() -> None:
    """Print what can go wrong with requests and with post-backs."""
    print_json({"requests": REQUEST_FAULTS, "post_backs": POST_BACK_FAULTS})


@faults.command("add")
def ask_for_fault(
    kind: Annotated[str, typer.Argument(help="What goes wrong; see the command kinds.")],
    at: Annotated[
        list[str] | None,
        typer.Option(help="Where: token, create, execute; delivery, open. Repeatable; not token by default."),
    ] = None,
    probability: Annotated[float | None, typer.Option(help="Strikes so often until it is removed.")] = None,
    count: Annotated[int | None, typer.Option(help="Strikes the next so many times; 1 by default.")] = None,
    after: Annotated[bool, typer.Option("--after", help="The request is processed first.")] = False,
    seconds: Annotated[float | None, typer.Option(help="How long, for the kinds that wait.")] = None,
    retry_after: Annotated[int | None, typer.Option(help="The header's seconds, for 429 and 503.")] = None,
    database: Database = DATABASE,
) -> None:
    """Let something go wrong from now on, and print it."""
    with exit_on_error(), open_store(database) as store:
        fault = Fault(kind, tuple(at or ()), probability, count, after, seconds, retry_after)
        print_json(add_fault(store, fault))


@faults.command("list")
def show_faults(database: Database = DATABASE) -> None:
    """Print the faults, with how often each happened and how often it is still to come."""
    with exit_on_error(), open_store(database) as store:
        print_json({"faults": list_faults(store)})


@faults.command("clear")
def remove(
    number: Annotated[int | None, typer.Argument(help="Id of the one to remove; all by default.")] = None,
    database: Database = DATABASE,
) -> None:
    """Remove faults, and print how many that were."""
    with exit_on_error(), open_store(database) as store:
        print_json({"removed": remove_faults(store, number)})
