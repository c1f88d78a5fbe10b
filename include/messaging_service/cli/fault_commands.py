"""The commands that add, list, and remove faults."""

from __future__ import annotations

from typing import Annotated

import typer

from messaging_service.cli.output import DATABASE, DatabaseOption, exit_on_error, open_store, print_json
from messaging_service.faults.faults import (
    POST_BACK_FAULTS,
    REQUEST_FAULTS,
    Fault,
    add_fault,
    list_faults,
    remove_faults,
)

faults = typer.Typer(no_args_is_help=True, help="Injected faults, which also work while the service runs.")


@faults.command("kinds")
def show_kinds() -> None:
    """Print the kinds of faults for requests and post-backs."""
    print_json({"requests": REQUEST_FAULTS, "post_backs": POST_BACK_FAULTS})


@faults.command("add")
def ask_for_fault(
    kind: Annotated[str, typer.Argument(help="Kind of fault; the command kinds lists them.")],
    at: Annotated[
        list[str] | None,
        typer.Option(
            help="Where: token, create, execute; delivery, open. Repeatable; by default all but token."
        ),
    ] = None,
    probability: Annotated[
        float | None,
        typer.Option(help="Share of requests or post-backs that fail, until the fault is removed."),
    ] = None,
    count: Annotated[int | None, typer.Option(help="Number of times that it happens; 1 by default.")] = None,
    after: Annotated[bool, typer.Option("--after", help="Process the request first.")] = False,
    seconds: Annotated[float | None, typer.Option(help="Seconds, for the kinds that wait.")] = None,
    retry_after: Annotated[
        int | None, typer.Option(help="Seconds in the header Retry-After, for 429 and 503.")
    ] = None,
    database: DatabaseOption = DATABASE,
) -> None:
    """Add a fault that takes effect at once, and print it."""
    with exit_on_error(), open_store(database) as store:
        fault = Fault(kind, tuple(at or ()), probability, count, after, seconds, retry_after)
        print_json(add_fault(store, fault))


@faults.command("list")
def show_faults(database: DatabaseOption = DATABASE) -> None:
    """Print the faults, with how often each happened and how often it remains to happen."""
    with exit_on_error(), open_store(database) as store:
        print_json({"faults": list_faults(store)})


@faults.command("clear")
def remove(
    number: Annotated[int | None, typer.Argument(help="Id of the fault to remove; all by default.")] = None,
    database: DatabaseOption = DATABASE,
) -> None:
    """Remove faults, and print how many were removed."""
    with exit_on_error(), open_store(database) as store:
        print_json({"removed": remove_faults(store, number)})
