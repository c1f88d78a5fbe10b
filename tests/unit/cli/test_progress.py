"""The progress of long work, in a terminal and elsewhere."""

from __future__ import annotations

import io
import logging
import threading

import pytest
from rich.console import Console

from sendoff.cli.progress import Steps
from sendoff.errors import LedgerUnavailableError


def test_outside_of_a_terminal_a_step_is_a_line_and_so_is_each_change() -> None:
    out, seen = io.StringIO(), threading.Event()
    counts = iter([0, 3])

    def done() -> int:
        count = next(counts, None)
        if count is None:
            seen.set()
            raise LedgerUnavailableError("the ledger did not answer")
        return count

    with Steps(Console(file=out), every=0.001).step("sending", 10, done):
        assert seen.wait(60)
    assert out.getvalue() == "sending\nsending: 3 of 10\n"


def test_outside_of_a_terminal_a_wait_that_goes_on_is_one_line() -> None:
    out = io.StringIO()
    steps = Steps(Console(file=out))
    for reason in ("the limit", "the limit", "the limit", "the window"):
        with steps.step("sending"):
            pass
        steps.wait(f"waiting: {reason}", 0)
    assert out.getvalue() == "sending\nwaiting: the limit\nwaiting: the window\n"


def test_if_the_log_is_json_so_are_the_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SENDOFF_LOG_FORMAT", "json")
    caplog.set_level(logging.INFO, "sendoff.cli")
    out = io.StringIO()
    with Steps(Console(file=out, force_terminal=True)).step("sending"):
        pass
    assert (out.getvalue(), caplog.messages) == ("", ["sending"])


def test_a_step_that_is_often_short_is_a_line_only_if_it_takes_long() -> None:
    shown = threading.Event()

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            shown.set()
            return super().write(text)

    out = Out()
    with Steps(Console(file=out), every=1000).step("reading", is_often_short=True):
        pass
    assert out.getvalue() == ""
    with Steps(Console(file=out), every=0.001).step("reading", is_often_short=True):
        assert shown.wait(60)
    assert out.getvalue() == "reading\n"


def test_in_a_terminal_a_bar_is_shown_and_removed() -> None:
    out, seen = io.StringIO(), threading.Event()

    def done() -> int:
        seen.set()
        return 7

    with Steps(Console(file=out, force_terminal=True, width=80)).step("sending", 10, done):
        assert seen.wait(60)
    assert "sending" in out.getvalue()
    assert "/10" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")  # the line is empty again
