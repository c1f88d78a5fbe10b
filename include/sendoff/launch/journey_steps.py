"""When a step of a journey is due: after the step that its recipients come from was sent, and its wait."""

from __future__ import annotations

from datetime import datetime, timedelta

from sendoff.campaign import JourneyFolder, Period, launch_key
from sendoff.errors import GateError, NobodyLeftError, NotYetError
from sendoff.ledger import Ledger
from sendoff.states import DispatchState
from sendoff.times import utc_now

_LOOK_AGAIN = timedelta(seconds=30)


def step_due_at(ledger: Ledger, journey: JourneyFolder, number: int, period: Period) -> datetime | None:
    """Return when a step is due for a period; None for the first step. Steps are numbered from 0.

    Raise NobodyLeftError if the earlier step has no launch, because it had no recipients, or was sent to no one. Raise
    GateError if it was never prepared, and NotYetError while its requests are ahead.
    """
    earlier, step = journey.earlier(number), journey.journey.steps[number]
    if earlier is None:
        return None
    key = launch_key(earlier.campaign.connection, earlier.name, period)
    if ledger.launches.find(key) is None:
        if not ledger.not_launched.of_keys([key]):
            # The earlier step may be skipped itself, because of the one before it.
            step_due_at(ledger, journey, journey.campaigns.index(earlier), period)
            raise GateError(
                f"step {step.name}: the step {earlier.name} has no launch for this period. Send it first"
            )
        raise NobodyLeftError(f"step {step.name}: the step {earlier.name} was sent to no one in this period")
    return sent_at(ledger, key) + (step.wait.timedelta() if step.wait else timedelta(0))


def sent_at(ledger: Ledger, launch_key: str) -> datetime:
    """Return when a launch was sent: its last request, or when the service sent it if that is later.

    Raise NotYetError with a moment to look again while requests are ahead, and NobodyLeftError if the launch ended
    before its first request.
    """
    launch = ledger.launches.get(launch_key)
    states = ledger.dispatch_queries.states(launch_key)
    ahead = {DispatchState.IN_FLIGHT} | (set() if launch.state.is_final else {DispatchState.PLANNED})
    if states.keys() & ahead:
        raise NotYetError(f"launch {launch_key} is not sent completely", utc_now() + _LOOK_AGAIN)
    newest = ledger.dispatch_queries.newest_request(launch_key)
    if newest is None and launch.state.is_final:
        raise NobodyLeftError(f"launch {launch_key} was sent to no one")
    newest = newest or launch.created_at
    return max(newest, launch.sends_at or newest)
