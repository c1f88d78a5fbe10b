"""The commands for the clock, segments, locations, hits, and for stopping a campaign."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from sqlalchemy import Connection

from messaging_service.campaigns.create import stop_campaign
from messaging_service.campaigns.saved_segments import (
    create_location,
    create_segment,
    list_locations,
    list_segments,
)
from messaging_service.campaigns.triggers import hit_event, hit_location
from messaging_service.cli.output import DATABASE, DatabaseOption, exit_on_error, open_store, print_json
from messaging_service.clock import ServiceClock, advance, described, seconds_of
from messaging_service.envelope import RejectedError, not_storable

clock = typer.Typer(no_args_is_help=True, help="The clock that campaigns follow.")
segments = typer.Typer(no_args_is_help=True, help="Saved segments, which campaigns refer to by id.")
locations = typer.Typer(no_args_is_help=True, help="Locations, which campaigns refer to by id.")
hits = typer.Typer(no_args_is_help=True, help="Actions of people that trigger campaigns.")
campaigns = typer.Typer(no_args_is_help=True, help="Existing campaigns.")

Title = Annotated[str, typer.Option(help="Its name.")]


class _RefusedError(ValueError):
    def __init__(self, error: RejectedError) -> None:
        super().__init__(error.message)
        self.problems = tuple(f"{problem.field}: {problem.message}" for problem in error.problems)


def add_to(main: typer.Typer) -> None:
    """Add these commands to the program."""
    for name, group in (
        ("clock", clock),
        ("segments", segments),
        ("locations", locations),
        ("hits", hits),
        ("campaigns", campaigns),
    ):
        main.add_typer(group, name=name)


@clock.command("show")
def show_clock(database: DatabaseOption = DATABASE) -> None:
    """Print the service's time, and by how many seconds it is ahead of the machine's."""
    with exit_on_error(), open_store(database) as store:
        print_json(described(ServiceClock(store)))


@clock.command("advance")
def advance_clock(
    duration: Annotated[str, typer.Argument(help="Duration, such as 45s, 90m, 3h, 1d12h or 2w.")],
    database: DatabaseOption = DATABASE,
) -> None:
    """Advance the clock, even while the service runs; everything due in between happens."""
    with exit_on_error(), open_store(database) as store:
        advance(store, seconds_of(duration))
        print_json(described(ServiceClock(store)))


@segments.command("add")
def add_segment(
    title: Title,
    conditions: Annotated[Path, typer.Option(help="JSON file with the conditions.")],
    database: DatabaseOption = DATABASE,
) -> None:
    """Save a segment and print its id."""
    with exit_on_error():
        parsed = _parsed(conditions.read_bytes(), str(conditions))
        _write(database, lambda c, at: {"id": create_segment(c, title, parsed, at.time())})


@segments.command("list")
def show_segments(database: DatabaseOption = DATABASE) -> None:
    """Print all saved segments."""
    with exit_on_error(), open_store(database) as store, store.read() as connection:
        print_json({"segments": list_segments(connection)})


@locations.command("add")
def add_location(title: Title, database: DatabaseOption = DATABASE) -> None:
    """Save a location and print its id."""
    with exit_on_error():
        _write(database, lambda c, at: {"id": create_location(c, title, at.time())})


@locations.command("list")
def show_locations(database: DatabaseOption = DATABASE) -> None:
    """Print all locations."""
    with exit_on_error(), open_store(database) as store, store.read() as connection:
        print_json({"locations": list_locations(connection)})


@hits.command("location")
def at_location(
    device_id: Annotated[int, typer.Option(help="Id of the device.")],
    location_id: Annotated[int, typer.Option(help="Id of the location.")],
    action: Annotated[str, typer.Option(help="enter or exit.")] = "enter",
    database: DatabaseOption = DATABASE,
) -> None:
    """Make a device enter or leave a location, and print the triggered campaigns."""
    with exit_on_error():
        _write(database, lambda c, at: hit_location(c, device_id, location_id, action, at.now()))


@hits.command("event")
def of_event(
    event: Annotated[str, typer.Option(help="Name of the event.")],
    user_id: Annotated[str | None, typer.Option(help="The user who triggers it.")] = None,
    device_id: Annotated[
        int | None, typer.Option(help="The device that triggers it, instead of a user.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="Its value, as JSON.")] = None,
    database: DatabaseOption = DATABASE,
) -> None:
    """Make a user or a device trigger an event, and print the triggered campaigns."""
    with exit_on_error():
        read = None if value is None else _parsed(value, "--value")
        _write(database, lambda c, at: hit_event(c, event, user_id, device_id, read, at.now()))


@campaigns.command("stop")
def stop(
    campaign_id: Annotated[int, typer.Argument(help="Id of the campaign.")],
    database: DatabaseOption = DATABASE,
) -> None:
    """Stop a campaign: its waiting runs are not sent, and it can no longer be triggered."""
    with exit_on_error():
        _write(database, lambda c, at: _stopped(c, campaign_id, at.time()))


def _stopped(connection: Connection, campaign_id: int, now: float) -> dict[str, Any]:
    if not stop_campaign(connection, campaign_id, now):
        raise RejectedError(404, "There is no such campaign.")
    return {"campaign": campaign_id, "stopped": True}


def _write(database: str, make: Callable[[Connection, ServiceClock], Any]) -> None:
    with open_store(database) as store:
        at = ServiceClock(store)
        at.read_again()
        try:
            with store.write() as connection:
                result = make(connection, at)
        except RejectedError as error:
            raise _RefusedError(error) from None
        print_json(result)


def _parsed(text: str | bytes, name: str) -> Any:
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ValueError(f"{name} is not JSON") from None
    if problem := not_storable(read):
        raise ValueError(f"{name} {problem}")
    return read
