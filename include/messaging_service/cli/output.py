"""Functions that all commands share: JSON output, errors, and access to the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import orjson
import typer
from sqlalchemy.exc import SQLAlchemyError

from messaging_service.store import Store

DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database", envvar="MESSAGING_SERVICE_DATABASE", help="SQLAlchemy URL of the service's database."
    ),
]
DATABASE = "sqlite:///messaging-service.db"


def print_json(value: Any) -> None:
    """Write a value to standard output as one line of JSON."""
    typer.echo(orjson.dumps(value).decode())


@contextmanager
def open_store(database: str) -> Iterator[Store]:
    """Open the database of a command, and close it afterwards."""
    store = Store(database)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Report an expected error as one JSON object on standard error, and exit with status 1.

    If the error has ``problems``, the object lists them too.
    """
    try:
        yield
    except SQLAlchemyError as error:
        _fail({"error": f"the database cannot be used: {type(error).__name__}: {_first_line(error)}"})
    except (ValueError, OSError) as error:
        problems = getattr(error, "problems", None)
        _fail(
            {"error": str(error)} if problems is None else {"error": str(error), "problems": list(problems)}
        )


def _fail(value: Any) -> None:
    typer.echo(orjson.dumps(value).decode(), err=True)
    raise typer.Exit(1)


def _first_line(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).partition("\n")[0]
