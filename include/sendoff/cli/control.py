"""The commands by which a person steers launches: pause, resume, release, stop, and settle doubts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from sendoff.cli.shared import (
    AsJson,
    Everything,
    LedgerUrl,
    MaybeLaunch,
    OfConnection,
    Why,
    app,
    only_launch,
    opened,
    who,
)
from sendoff.errors import NotFoundError, SettingsError
from sendoff.figures import counted
from sendoff.ledger import Doubt, Ledger, PendingResend


class Resolution(StrEnum):
    """What a person may do with a request in doubt."""

    RESEND = "resend"
    WRITE_OFF = "write-off"


@dataclass(frozen=True, slots=True)
class _Steered:
    """What a person steers: one launch, or where ``launch`` is None all of a connection or of the ledger; and why."""

    ledger: Ledger
    launch: str | None
    connection: str | None
    why: str

    def __str__(self) -> str:
        if self.launch:
            return f"launch {self.launch} is"
        of = f" of connection {self.connection}" if self.connection else ""
        return f"every launch{of} is"


def _steering(act: Callable[[_Steered], None]) -> Callable[..., None]:
    """Make a command of what may be done with one launch, with all, or with those of a connection."""

    def command(
        why: Why,
        launch: MaybeLaunch = None,
        everything: Everything = False,
        connection: OfConnection = None,
        ledger_url: LedgerUrl = None,
    ) -> None:
        with _steered(ledger_url, why, launch, everything, connection) as steered:
            act(steered)

    return app.command(act.__name__, help=act.__doc__)(command)


@contextmanager
def _steered(
    ledger_url: str | None, why: str, launch: str | None, everything: bool, connection: str | None
) -> Iterator[_Steered]:
    if sum((launch is not None, everything, connection is not None)) != 1:
        raise SettingsError("give one of the three: a launch key, --all, or --connection NAME")
    with opened(ledger_url) as ledger:
        yield _Steered(ledger, None if launch is None else only_launch(ledger, launch), connection, why)


@_steering
def pause(steered: _Steered) -> None:
    """Make no further request until somebody resumes: of a launch, of all, or of those of a connection."""
    from sendoff import dispatch as steering

    if steered.launch:
        steering.pause(steered.ledger, steered.launch, who(), steered.why)
    else:
        steering.pause_all(steered.ledger, who(), steered.why, connection=steered.connection)
    typer.echo(f"{steered} paused; workers wait, and go on once it is resumed")


@_steering
def resume(steered: _Steered) -> None:
    """Undo a pause: of a launch, of all, or of those of a connection, each as it was paused."""
    from sendoff import dispatch as steering

    ledger, key = steered.ledger, steered.launch
    if key:
        steering.resume(ledger, key, who(), steered.why)
    else:
        steering.resume_all(ledger, who(), steered.why, connection=steered.connection)
    typer.echo(f"{steered} resumed; its workers go on within half a minute")
    for global_pause in ledger.pauses.of_connection(ledger.launches.get(key).connection) if key else []:
        typer.echo(
            f"but launches are still paused ({global_pause.scope}) by {global_pause.who}: {global_pause.why}"
        )


@app.command()
def release(
    why: Why,
    launch: MaybeLaunch = None,
    everything: Everything = False,
    connection: OfConnection = None,
    without_approval: Annotated[
        bool,
        typer.Option(
            "--without-approval",
            help="Also where somebody of the campaign's approval.role must agree and did not; the ledger keeps that",
        ),
    ] = False,
    ledger_url: LedgerUrl = None,
) -> None:
    """Let a launch that is held be sent, or every one that was held because something went wrong."""
    from sendoff import dispatch as steering

    if without_approval and launch is None:
        raise SettingsError("--without-approval needs a launch: give its key, or enough of its beginning")
    with _steered(ledger_url, why, launch, everything, connection) as steered:
        if key := steered.launch:
            steering.release(steered.ledger, key, who(), why, without_approval=without_approval)
            typer.echo(
                f"launch {key} is released; clear its tasks that failed or still ask, so that they go on"
            )
            return
        keys = steering.release_all(steered.ledger, who(), why, connection=connection)
    for key in keys:
        typer.echo(f"launch {key} is released")
    if keys:
        released = counted(len(keys), "launch", "launches")
        typer.echo(f"released: {released}; clear the tasks that failed, so that they go on")
    else:
        typer.echo("no launch is held because something went wrong, so there is nothing to release")


@_steering
def stop(steered: _Steered) -> None:
    """Make no further request of a launch, or of every launch of which something is left, and never again."""
    from sendoff import dispatch as steering

    ledger, key = steered.ledger, steered.launch
    if key:
        steering.stop(ledger, key, who(), steered.why)
        keys = [key]
    else:
        keys = steering.stop_all(ledger, who(), steered.why, connection=steered.connection)
    for each in keys:
        typer.echo(
            f"launch {each} is stopped{_never_made(ledger.dispatch_queries.states(each).get('planned', 0))}"
        )
    if not key:
        typer.echo(f"stopped: {counted(len(keys), 'launch', 'launches')}")


def _never_made(planned: int) -> str:
    if not planned:
        return "; everything of it had been requested already"
    return f": {counted(planned, 'request')} {'is' if planned == 1 else 'are'} not made, and never will be"


@app.command()
def doubts(launch: MaybeLaunch = None, ledger_url: LedgerUrl = None, as_json: AsJson = False) -> None:
    """List the requests in doubt, of one launch or of all, after what post-backs prove is settled.

    Then those that were in doubt, are planned again and are not sent yet, with the command that sends them.
    """
    from sendoff import dispatch as steering

    with opened(ledger_url) as ledger:
        key = only_launch(ledger, launch) if launch else None
        found = steering.doubts(ledger, key)
        planned = ledger.doubts.pending_resends(key)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2, default=datetime.isoformat))
    else:
        _tell_doubts(found)
    for each in planned:
        line = f"{_request(each)}: planned again, not sent yet"
        typer.echo(line, err=as_json)
    for line in steering.how_to_continue(planned):
        typer.echo(line, err=as_json)


def _request(each: Doubt | PendingResend) -> str:
    people = f" ({counted(each.people, 'person', 'people')})" if each.people else ""
    segment = f"segment {each.segment:,}{people}"
    return f"{each.dispatch_key[:12]}  {each.campaign}, launch {each.launch_key[:12]}, {segment}"


def _tell_doubts(found: Sequence[Doubt]) -> None:
    if not found:
        typer.echo("nothing is in doubt")
        return
    for each in found:
        prove = "proves" if each.post_backs == 1 else "prove"
        proofs = f"{counted(each.post_backs, 'post-back')} that {prove} nothing"
        typer.echo(f"{_request(each)}, since {each.since:%Y-%m-%d %H:%M} UTC, {proofs}: {each.reason}")
    typer.echo("settle each with: sendoff resolve DISPATCH resend|write-off --why TEXT")


@app.command()
def resolve(
    dispatch: Annotated[
        str, typer.Argument(help="The key of a dispatch in doubt, or enough of its beginning")
    ],
    how: Annotated[
        Resolution,
        typer.Argument(help="Send it again (perhaps twice), or look for it no more (perhaps never)"),
    ],
    why: Why,
    ledger_url: LedgerUrl = None,
) -> None:
    """Settle a request in doubt: send it again, or write it off; the ledger keeps who did it, and why."""
    from sendoff import dispatch as steering

    with opened(ledger_url) as ledger:
        key = _only_doubt(ledger, dispatch)
        steering.resolve(ledger, key, "resend" if how is Resolution.RESEND else "write_off", who(), why)
        launch = next(
            (each.launch_key for each in ledger.doubts.pending_resends() if each.dispatch_key == key), None
        )
        planned = ledger.doubts.pending_resends(launch) if launch else []
    if how is Resolution.RESEND:
        typer.echo(f"dispatch {key} is planned again")
        for line in steering.how_to_continue(planned):
            typer.echo(line)
    else:
        typer.echo(f"dispatch {key} is written off: its people stay in doubt")


def _only_doubt(ledger: Ledger, prefix: str) -> str:
    found = [each.dispatch_key for each in ledger.doubts.open() if each.dispatch_key.startswith(prefix)]
    if not found:
        raise NotFoundError(f"nothing in doubt starts with {prefix!r}; see: sendoff doubts")
    if len(found) > 1:
        raise SettingsError(f"more than one dispatch in doubt starts with {prefix!r}; give more of the key")
    return found[0]
