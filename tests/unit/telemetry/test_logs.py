"""Logs as JSON: one object per line, whatever is logged, without the values of variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from sendoff.errors import SettingsError
from sendoff.telemetry import logs

START = "import logging; from sendoff.telemetry import logs; logs.start(); log = logging.getLogger('sendoff.test');"


def lines(code: str, **variables: str) -> list[dict[str, Any]]:
    line = [sys.executable, "-c", START + code]
    environment = os.environ | {"SENDOFF_LOG_FORMAT": "json"} | variables
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    return [json.loads(each) for each in ended.stderr.splitlines()]


def test_a_record_is_one_object_with_what_it_was_given() -> None:
    [told] = lines("log.warning('launch %s:\\n%d requests', 'a', 3, extra={'launch': 'a', 'odd': object})")
    assert told["message"] == "launch a:\n3 requests"
    assert (told["level"], told["logger"], told["launch"]) == ("warning", "sendoff.test", "a")
    assert told["time"].endswith("Z")
    assert told["odd"] == "<class 'object'>"


@pytest.mark.proof
def test_a_traceback_is_in_its_line_without_the_values_of_variables() -> None:
    code = """
def fail(secret):
    raise ValueError('no')
try:
    fail('plan' + 'ted')
except ValueError:
    log.exception('it failed')
"""
    [told] = lines(code)
    assert told["message"] == "it failed"
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("ValueError: no")
    assert "planted" not in json.dumps(told)


def test_an_error_that_nobody_caught_is_one_line() -> None:
    [told] = lines("raise OSError('away')")
    assert told["level"] == "critical"
    assert "OSError: away" in told["exception"]


def test_what_a_command_notes_is_one_line() -> None:
    [told] = lines("logs.note('sending')")
    assert (told["level"], told["logger"], told["message"]) == ("info", "sendoff.cli", "sending")


@pytest.mark.proof
def test_text_is_what_it_was() -> None:
    line = [sys.executable, "-c", START + "log.warning('careful'); log.info('unseen')"]
    surroundings = {name: value for name, value in os.environ.items() if name != "SENDOFF_LOG_FORMAT"}
    ended = subprocess.run(line, env=surroundings, capture_output=True, text=True, check=True)
    assert ended.stderr == "WARNING sendoff.test: careful\n"


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_LOG_FORMAT", "xml")
    with pytest.raises(SettingsError, match=r"SENDOFF_LOG_FORMAT: found xml\. Use text, json"):
        logs.of_receiver()
