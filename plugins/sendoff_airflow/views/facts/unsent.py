"""What of a launch is not sent yet: how many recipients wait for it, and when it goes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sendoff.campaign import Campaign, Variation
from sendoff.dispatch import proposal_of
from sendoff.launch import has_begun, outlook_of, reached_recipients
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.states import DispatchState
from sendoff_airflow.views.airflow_state.deadlines import goes_out

_MOST_READ = 1_000_000
"""The most recipients whose identifiers a page reads to count those that the channels reach."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """What of a launch is not sent yet, and when it goes out if nothing stops it.

    The numbers of recipients are 0 if the service chooses the recipients. Without a time and ``words`` it goes out
    at once, or when the global pause ends. ``words``: the schedule in the service, if the service does not send it at
    once.
    """

    launch: LaunchRecord
    requests: int  # planned
    recipients: int  # of the planned requests
    untouched: int  # of these recipients: no attempt for them is in doubt
    unclear: int  # requests that are planned again after a doubt, or whose worker ended without an answer
    unclear_recipients: int
    is_begun: bool
    at: datetime | None
    last_at: datetime | None  # later than ``at`` if time zones get it one after the other
    words: str
    is_too_late: bool
    is_in_parts: bool  # only a part of it goes out then, and the others later
    awaits_choice: bool  # a person must choose a variant before the last part
    is_paused: bool  # by a global pause
    may_repeat: bool  # doubts are planned again, or resent without a question


def unsent_of(ledger: Ledger, launch: LaunchRecord, variations: Iterable[Variation] | None = None) -> Unsent:
    """Return what of a launch is not sent yet. ``variations``: those of its segments, if they were read already."""
    key = launch.launch_key
    requests, recipients, known, known_recipients = ledger.dispatch_queries.counts(key)
    if variations is None:
        variations = [part.variation for part in ledger.dispatch_queries.segment_sizes(key)]
    times, outlook = goes_out(launch, variations), outlook_of(ledger, launch)
    planned, untouched = recipients[DispatchState.PLANNED], known_recipients[DispatchState.PLANNED]
    repeated = requests[DispatchState.PLANNED] - known[DispatchState.PLANNED]
    interrupted = requests[DispatchState.IN_FLIGHT]
    doubts = requests[DispatchState.IN_DOUBT] + interrupted
    # Releasing a launch with a proposal is the choice.
    awaits_choice = outlook.awaits_choice and not proposal_of(launch, ledger.audit_log.of_launch(key))
    is_resent = Campaign.frozen(launch.definition).on_doubt == "resend"
    return Unsent(
        launch,
        requests[DispatchState.PLANNED],
        planned,
        untouched,
        interrupted + repeated,
        recipients[DispatchState.IN_FLIGHT] + planned - untouched,
        is_begun=has_begun(known),
        at=times.first_at if times else outlook.until,
        last_at=times.last_at if times else outlook.until,
        words=times.words if times else "",
        is_too_late=outlook.is_too_late,
        is_in_parts=outlook.is_in_parts and not times,
        awaits_choice=awaits_choice,
        is_paused=bool(ledger.pauses.of_connection(launch.connection)),
        may_repeat=bool(repeated or (doubts and is_resent)),
    )


def reached_of(ledger: Ledger, launch: LaunchRecord) -> int | None:
    """Return how many recipients the channels of a launch reach. None if all, or if it is not known or too large."""
    return reached_recipients(ledger, launch) if launch.audience <= _MOST_READ else None
