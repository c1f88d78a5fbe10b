"""Columns with members of an enumeration: conditions name them as literals, and anything else is a parameter."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from sendoff.ledger.storage.schema import dispatches
from sendoff.states import DispatchState

STATE = dispatches.alias("other").c.state


def test_a_condition_names_a_state_as_a_literal() -> None:
    assert str(STATE == DispatchState.PLANNED) == "other.state = 'planned'"
    assert str(STATE != DispatchState.ACCEPTED) == "other.state != 'accepted'"


@pytest.mark.parametrize("kind", [list, tuple, frozenset])
def test_a_condition_names_several_states_as_literals(kind: type[Collection[DispatchState]]) -> None:
    assert str(STATE.in_(kind([DispatchState.PLANNED]))) == "other.state IN ('planned')"  # type: ignore[call-arg]


@pytest.mark.parametrize("value", ["planned", "x' OR 1=1 --"])
def test_a_text_from_elsewhere_is_a_parameter(value: str) -> None:
    assert str(STATE.__eq__(value)) == "other.state = :state_1"
    assert value not in str(STATE.in_([value]))


def test_no_states_are_no_literals() -> None:
    assert "POSTCOMPILE" in str(STATE.in_([]))
