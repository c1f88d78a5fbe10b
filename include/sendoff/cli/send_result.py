"""What `sendoff send` did with a launch: its result, as text or as JSON, and its exit code."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from sendoff.cli.shared import print_json
from sendoff.figures import counted, counts_in_words, people_of
from sendoff.states import DispatchState, LaunchState

if TYPE_CHECKING:
    from sendoff import Launch, Period


class Status(StrEnum):
    """The result of the command."""

    SENT = "sent"
    ALREADY_SENT = "already sent"
    NOT_YET = "not yet"
    HELD = "held"
    NOT_SENT = "not sent"
    SKIPPED = "skipped"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


_DONE = (Status.SENT, Status.ALREADY_SENT, Status.SKIPPED, Status.REFUSED)
_EXIT_CODES = {**dict.fromkeys(_DONE, 0), Status.REFUSED: 1, Status.INTERRUPTED: 130}
_NOT_NOW = 3
"""The exit code if nothing is wrong, but the launch was not sent, or not completely."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was done with one launch. ``period``: that of a step of a journey. ``until``: when to try again."""

    status: Status
    launch: Launch | None
    message: str = ""
    until: datetime | None = None
    period: Period | None = None
    is_reported: bool = False

    @property
    def is_done(self) -> bool:
        """Whether no request is left."""
        return self.status in _DONE

    @property
    def exit_code(self) -> int:
        """The exit code of a command with only this result."""
        return _EXIT_CODES.get(self.status, _NOT_NOW)


def print_result(result: Result, folder: str, *, as_json: bool) -> None:
    """Print a result, and what to run next. ``folder``: the campaign's, quoted for a shell."""
    launch = result.launch
    if as_json:
        print_json(_as_json(result))
        return
    if launch is None:
        typer.echo(f"{result.status}: {result.message or 'nothing was frozen'}")
        return
    people, requests = people_of(launch.people), launch.requests
    if held_out := launch.held_out:
        people += f", {held_out:,} of them in the control group"
    total = counted(sum(requests.values()), "request")
    typer.echo(f"launch {launch.key[:12]} of {launch.name}, period {launch.period.key}: {people}, {total}")
    typer.echo(f"{result.status}: {result.message or counts_in_words(requests)}")
    if requests.get(DispatchState.IN_DOUBT):
        typer.echo(f"Some requests got no clear answer. List them with: sendoff doubts {launch.key[:12]}")
    elif result.status is Status.ALREADY_SENT and not result.period:  # a journey is often run again
        typer.echo(f"To send the period again, to everyone in it, run: {again(launch, folder)}")
        if launch.people is not None:  # otherwise the service chooses them
            typer.echo("To leave out those who got it, add: --only-unsent")
    if result.is_reported:
        from sendoff.report import as_terminal

        Console().print(as_terminal(launch.report().document))
    elif result.status in (Status.SENT, Status.ALREADY_SENT):
        typer.echo(f"For its report, run: sendoff report {launch.key[:12]}")
    elif not launch.state.is_final and result.status not in (Status.HELD, Status.REFUSED):
        resume = (
            f"sendoff resume {launch.key[:12]} --why TEXT; " if launch.state == LaunchState.PAUSED else ""
        )
        typer.echo(f"To continue, run: {resume}sendoff send {launch.key[:12]}")


def again(launch: Launch, folder: str) -> str:
    """Return the command that sends the period of a launch again."""
    return f"sendoff send {folder} --period {shlex.quote(launch.period.key)} --resend NUMBER --reason TEXT"


def print_rest(what: str, results: Iterable[Result]) -> None:
    """Print how to send the steps that were not sent. Another day, the schedule has another period."""
    for result in results:
        if result.period and not result.is_done:
            typer.echo(
                f"For what is left, run: sendoff send {shlex.quote(what)} --period {result.period.key}"
            )
            return


def _as_json(result: Result) -> dict[str, Any]:
    launch = result.launch
    values: dict[str, Any] = {
        "status": result.status,
        "message": result.message or None,
        "until": result.until.isoformat() if result.until else None,
    }
    if result.period:
        values["period"] = result.period.key
    if launch:
        values |= {
            "launch": launch.key,
            "campaign": launch.name,
            "period": launch.period.key,
            "state": launch.state,
            "people": launch.people,
            "held_out": launch.held_out,
            "requests": launch.requests,
            "report": launch.report().to_json() if result.is_reported else None,
        }
    return values
