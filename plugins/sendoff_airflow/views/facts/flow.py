"""The sums of a launch, line by line, so that readers can check that they add up."""

from __future__ import annotations

from collections.abc import Mapping

from sendoff.campaign import Campaign, OwnRequest
from sendoff.figures import ERASED_SINCE, noun_for, rows_for, spoken_reason
from sendoff.ledger import LaunchRecord
from sendoff.report import Block, Line, Sentence, Sum
from sendoff.states import DispatchState

_KNOWN = {"already_sent": "left out: got an earlier launch for the period, or may have"}


def checked(lines: Sum) -> list[Block]:
    """Return a sum as blocks, with an alarm if it does not add up."""
    if not lines.missing:
        return [lines]
    wrong = f"These figures do not add up: the difference is {lines.missing:,}. Please report this defect."
    return [lines, Sentence(wrong, is_alarm=True)]


def rows_to_people(launch: LaunchRecord, left_out: Mapping[str, int], people: int) -> Sum:
    """Return the sum from the rows of the query to the recipients. The holdout is part of the audience."""
    by_rule, held_out = left_out.keys() - {"holdout"}, left_out.get("holdout", 0)
    is_own = isinstance(Campaign.frozen(launch.definition), OwnRequest)
    return Sum(
        [
            Line("", launch.rows, rows_for(launch.rows, is_own_request=is_own)),
            *(
                Line(
                    "-",
                    count,
                    _KNOWN.get(reason, f"left out by rule: {spoken_reason(reason)}")
                    if reason in by_rule
                    else spoken_reason(reason),
                )
                for reason, count in launch.dropped.items()
                if count
            ),
            Line("=", launch.audience, "audience"),
            *([Line("-", held_out, "control group, which gets no message")] if held_out else []),
            *([Line("-", launch.erased, spoken_reason(ERASED_SINCE))] if launch.erased else []),
            Line("=", people, noun_for(people, *launch.noun)),
        ]
    )


def requests_by_state(states: Mapping[str, int], segments: int) -> Sum:
    """Return the sum of a launch's requests by state. There is one request for each segment."""
    made = [state for state in DispatchState if states.get(state)]
    lines = [
        Line("+" if number else "", states[state], state.replace("_", " "), state)
        for number, state in enumerate(made)
    ]
    return Sum([*lines, Line("=", segments, f"{noun_for(segments, 'request')}, one for each segment")])
