"""What a person may do with a launch, in Python and at the command line; each is in the ledger with who and why."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sendoff.cli import app
from sendoff.control import reject, release, stop
from sendoff.errors import GateError, NotFoundError
from sendoff.ledger import Ledger
from sendoff.period import Period, launch_key
from sendoff.segments import Segment

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
KEY = launch_key("service", "spring", PERIOD)


def freeze(ledger: Ledger, state: str) -> None:
    ledger.launches.freeze(
        KEY,
        connection="service",
        campaign="spring",
        period=PERIOD,
        resend=0,
        definition="{}",
        audience=None,
        segments=[Segment(None)],
        now=NOW,
        state=state,
    )


@pytest.mark.parametrize(
    ("act", "state", "after"),
    [
        (release, "held", "released"),
        (reject, "held", "rejected"),
        (stop, "held", "stopped"),
        (stop, "released", "stopped"),
    ],
)
def test_a_person_decides_once(ledger: Ledger, act: Callable[..., None], state: str, after: str) -> None:
    freeze(ledger, state)
    act(ledger, KEY, "ann", "so it is", now=NOW)
    assert ledger.launches.get(KEY).state == after
    with pytest.raises(GateError, match=f"launch {KEY} is {after}, so it cannot be {after}"):
        act(ledger, KEY, "bob", "me too", now=NOW)
    (decision,) = ledger.decisions.of_launch(KEY)
    assert (decision.kind, decision.who, decision.why) == (after, "ann", "so it is")


@pytest.mark.parametrize("act", [release, stop])
def test_nothing_follows_a_rejection(ledger: Ledger, act: Callable[..., None]) -> None:
    freeze(ledger, "rejected")
    with pytest.raises(GateError, match="is rejected, so it cannot be"):
        act(ledger, KEY, "ann", "a second thought")


def test_a_launch_that_is_not_there_is_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError):
        release(ledger, KEY, "ann", "so it is")


@pytest.mark.parametrize(
    ("command", "after", "said"),
    [
        ("release", "released", "is released; clear its tasks that failed, so that they go on"),
        ("stop", "stopped", "is stopped: 1 requests are not made, and never will be"),
    ],
)
def test_the_command_line_decides_in_the_name_of_who_runs_it(
    tmp_path: Path, command: str, after: str, said: str
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger(url)
    ledger.migrate()
    freeze(ledger, "held")
    done = CliRunner().invoke(app, [command, KEY[:8], "--why", "looks right", "--ledger", url])
    assert (done.exit_code, done.output) == (0, f"launch {KEY} {said}\n")
    assert ledger.launches.get(KEY).state == after
    (decision,) = ledger.decisions.of_launch(KEY)
    assert (decision.who, decision.why) == (getpass.getuser(), "looks right")
    ledger.close()


@pytest.mark.parametrize("command", ["release", "stop"])
def test_the_command_line_asks_for_a_reason(command: str) -> None:
    done = CliRunner().invoke(app, [command, KEY])
    assert done.exit_code == 2
    assert "why" in done.output
