"""The commands that make things happen: time, hits, segments, locations, the end of a campaign."""

from __future__ import annotations

from typing import Annotated

import typer

from messaging_service.clock import Clock, advance, described, seconds_of
from messaging_service.terminal import DATABASE, Database, failing_clearly, opened, put_out

clock = typer.Typer(no_args_is_help=True, help="The time by which campaigns are sent.")


@clock.command("show")
def show_clock(database: Database = DATABASE) -> None:
    """Print the service's time, and by how many seconds it is ahead of the machine's."""
    with failing_clearly(), opened(database) as store:
        put_out(described(Clock(store)))


@clock.command("advance")
def advance_clock(
    duration: Annotated[str, typer.Argument(help="How far, such as 45s, 90m, 3h, 1d12h or 2w.")],
    database: Database = DATABASE,
) -> None:
    """Advance the time, also of a service that runs; what falls due in between happens."""
    with failing_clearly(), opened(database) as store:
        advance(store, seconds_of(duration))
        put_out(described(Clock(store)))
