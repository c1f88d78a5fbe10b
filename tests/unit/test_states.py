"""Final states, and the ledger's check for unknown ones."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from sendoff.ledger.storage import schema
from sendoff.states import DispatchState, FeedHealth, LaunchState, Verdict

CERTAIN = [state for state in FeedHealth if state.is_certain]


def test_only_rejected_and_stopped_launches_can_never_send_again() -> None:
    assert {state for state in LaunchState if state.is_final} == {"rejected", "stopped"}


def test_only_planned_requests_and_those_in_flight_are_not_finished() -> None:
    assert {state for state in DispatchState if not state.is_final} == {"planned", "in_flight"}


def test_only_a_post_back_makes_a_verdict_observed() -> None:
    assert {verdict for verdict in Verdict if verdict.is_observed} == {"engaged", "delivered"}
    assert Verdict.NOT_SENT.label == "not sent"


def test_a_state_is_its_string_in_json() -> None:
    assert json.dumps({"state": LaunchState.HELD}) == '{"state": "held"}'


@pytest.mark.parametrize(
    ("table", "states"),
    [
        ("launches", LaunchState),
        ("dispatches", DispatchState),
        ("verdicts", Verdict),
        ("feed_states", CERTAIN),
    ],
)
def test_the_ledger_accepts_these_states_and_no_others(table: str, states: Iterable[str]) -> None:
    checks = [
        str(rule.sqltext) for rule in schema.metadata.tables[table].constraints if hasattr(rule, "sqltext")
    ]
    assert any(f" IN {tuple(str(state) for state in states)}" in check for check in checks)
