"""The commands that control launches: pause, resume, release and stop them, and settle requests in doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from sendoff.app import user_name
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
    print_json,
    refuse_without_launch,
)
from sendoff.errors import NotFoundError, SettingsError, UsageError
from sendoff.figures import counted
from sendoff.launch import HeldByService
from sendoff.ledger import Doubt, Ledger, PendingResend
from sendoff.states import DispatchState, Resolution
from sendoff.telemetry import logs

_ALL_MADE = "all its requests had been made already"
_CONTINUED = "tasks that wait continue within half a minute"


@dataclass(frozen=True, slots=True)
class _Steered:
    """The launch to control and the reason. If ``launch`` is None: all launches of a connection, or of the ledger."""

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
    """Register an action as a command for one launch, all launches, or the launches of a connection."""

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
    given = launch is not None, everything, connection is not None
    if sum(given) != 1 or "" in (launch, connection):
        raise UsageError("Give exactly one of: a launch key, --all, or --connection NAME.")
    with opened(ledger_url) as ledger:
        yield _Steered(ledger, only_launch(ledger, launch) if launch else None, connection, why)


@_steering
def pause(steered: _Steered) -> None:
    """Pause a launch, all launches, or the launches of a connection: no further request until they are resumed."""
    from sendoff import dispatch as steering

    if key := steered.launch:
        steering.pause(steered.ledger, key, user_name(), steered.why)
        if not _planned(steered.ledger, key):
            typer.echo(f"{steered} paused; {_ALL_MADE}")
            return
    else:
        steering.pause_all(steered.ledger, user_name(), steered.why, connection=steered.connection)
        known = steered.ledger.launches.connections()
        if steered.connection and steered.connection not in known:
            names = ", ".join(known) or "none"
            logs.note(
                f"No launch uses the connection {steered.connection} so far. Connections with launches: {names}"
            )
    typer.echo(f"{steered} paused; no further request is made until it is resumed")


@app.command()
def resume(
    why: Why,
    launch: MaybeLaunch = None,
    everything: Everything = False,
    connection: OfConnection = None,
    discarded_copy: Annotated[
        bool,
        typer.Option(
            "--discarded-copy",
            help="With --all: resume a ledger that copy-ledger moved. Delete its copy first. If the copy sent "
            "anything, or ever sends, people get messages twice",
        ),
    ] = False,
    ledger_url: LedgerUrl = None,
) -> None:
    """Resume what was paused: a launch, all launches, or the launches of a connection."""
    if discarded_copy and not everything:
        raise UsageError("--discarded-copy needs --all, because a ledger is moved as a whole.")
    with _steered(ledger_url, why, launch, everything, connection) as steered:
        _resume(steered, discarded_copy)


def _resume(steered: _Steered, discarded_copy: bool) -> None:
    from sendoff import dispatch as steering

    ledger, key = steered.ledger, steered.launch
    if not key:
        if discarded_copy:
            steering.resume_moved(ledger, user_name(), steered.why)
        else:
            steering.resume_all(ledger, user_name(), steered.why, connection=steered.connection)
        typer.echo(f"{steered} resumed; {_CONTINUED}")
        typer.echo("continue a launch that was sent from a shell with: sendoff send LAUNCH")
        return
    steering.resume(ledger, key, user_name(), steered.why)
    planned, launch = _planned(ledger, key), ledger.launches.get(key)
    typer.echo(f"{steered} resumed; {_CONTINUED if planned else _ALL_MADE}")
    for global_pause in ledger.pauses.of_connection(launch.connection):
        typer.echo(f"but {global_pause}")
    if planned:
        typer.echo(f"not sent yet: {counted(planned, 'request')}; {steering.how_to_send_rest(launch)}")


def _planned(ledger: Ledger, launch_key: str) -> int:
    return ledger.dispatch_queries.states(launch_key).get(DispatchState.PLANNED, 0)


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
            help="Release the launch even though its campaign's approval.role has not approved it; the audit log "
            "records this",
        ),
    ] = False,
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            help="The variant that the rest gets, if the launch waits for a person to choose it",
        ),
    ] = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Release a held launch so that it is sent, or every launch that was held because something went wrong."""
    from sendoff import dispatch as steering

    if launch is None:
        refuse_without_launch(without_approval=without_approval, variant=variant)
    with _steered(ledger_url, why, launch, everything, connection) as steered:
        if key := steered.launch:
            steering.release(
                steered.ledger, key, user_name(), why, without_approval=without_approval, variant=variant
            )
            typer.echo(
                f"launch {key} is released. To continue it from a shell, run: sendoff send {key[:12]}. In Airflow, "
                "clear its tasks that failed or await approval"
            )
            return
        keys = steering.release_all(steered.ledger, user_name(), why, connection=connection)
    for key in keys:
        typer.echo(f"launch {key} is released")
    if keys:
        released = counted(len(keys), "launch", "launches")
        typer.echo(f"released: {released}; clear the tasks that failed, so that they continue")
    else:
        typer.echo("nothing to release: no launch is held because something went wrong")


@_steering
def stop(steered: _Steered) -> None:
    """Stop a launch for good, or every launch that still has requests to send. They never send again."""
    from sendoff import dispatch as steering
    from sendoff.launch import held_by_service

    ledger, key = steered.ledger, steered.launch
    if key:
        steering.stop(ledger, key, user_name(), steered.why)
        keys = [key]
    else:
        keys = steering.stop_all(ledger, user_name(), steered.why, connection=steered.connection)
    for each in keys:
        typer.echo(f"launch {each} is stopped{_never_made(_planned(ledger, each))}")
        for part in held_by_service(ledger, ledger.launches.get(each)):
            typer.echo(f"but {_sent_anyway(part)}")
    if not key:
        typer.echo(f"stopped: {counted(len(keys), 'launch', 'launches')}")


def _sent_anyway(part: HeldByService) -> str:
    """Return what the service sends of a stopped launch, and how to stop that."""
    people = counted(part.recipients, "recipient") if part.recipients else "the recipients that it chooses"
    at = f"until {part.sends_at:%Y-%m-%d %H:%M} UTC" if part.sends_at else "again and again"
    ids = ", ".join(map(str, part.campaign_ids)) or "whose IDs are not known"
    return (
        f"the service has accepted messages and sends them to {people} {at}; stop its campaigns there: {ids}"
    )


def _never_made(planned: int) -> str:
    if not planned:
        return f"; {_ALL_MADE}"
    return f": {counted(planned, 'request')} will never be made"


@app.command()
def doubts(launch: MaybeLaunch = None, ledger_url: LedgerUrl = None, as_json: AsJson = False) -> None:
    """List the requests in doubt, of one launch or of all, after settling those that post-backs prove.

    Also list the requests that were planned again and are not sent yet, with the command that sends them.
    """
    from sendoff import dispatch as steering

    with opened(ledger_url) as ledger:
        key = only_launch(ledger, launch) if launch else None
        found = steering.doubts(ledger, key)
        planned = ledger.doubts.pending_resends(key)
    if as_json:
        print_json([asdict(each) for each in found])
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
        str, typer.Argument(help="The key of a request in doubt, or the first characters of it")
    ],
    how: Annotated[
        Resolution,
        typer.Argument(
            help="Send it again (it may arrive twice), or write it off (it may never have arrived)"
        ),
    ],
    why: Why,
    ledger_url: LedgerUrl = None,
) -> None:
    """Settle a request in doubt: send it again, or write it off. The audit log keeps who decided, and why."""
    from sendoff import dispatch as steering

    with opened(ledger_url) as ledger:
        doubt = _only_doubt(ledger, dispatch)
        steering.resolve(ledger, doubt.dispatch_key, how, user_name(), why)
        planned = ledger.doubts.pending_resends(doubt.launch_key)
    if how is Resolution.RESEND:
        typer.echo(f"dispatch {doubt.dispatch_key} is planned again")
        for line in steering.how_to_continue(planned):
            typer.echo(line)
    else:
        typer.echo(f"dispatch {doubt.dispatch_key} is written off: its people stay in doubt")


def _only_doubt(ledger: Ledger, prefix: str) -> Doubt:
    found = [doubt for doubt in ledger.doubts.open() if doubt.dispatch_key.startswith(prefix)]
    if not found or not prefix:
        raise NotFoundError(f"No request in doubt starts with {prefix!r}. List them with: sendoff doubts")
    if len(found) > 1:
        raise SettingsError(f"More than one request in doubt starts with {prefix!r}. Give more of the key.")
    return found[0]
