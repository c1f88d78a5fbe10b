"""When a step of a journey is due: after the step that its recipients come from was sent, and its wait."""

from __future__ import annotations

from datetime import datetime, timedelta

from sendoff.campaign import JourneyFolder, Period, launch_key
from sendoff.errors import GateError, NobodyLeftError, NotYetError
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.states import DispatchState
from sendoff.times import utc_now

_LOOK_AGAIN = timedelta(seconds=30)


def step_due_at(ledger: Ledger, journey: JourneyFolder, number: int, period: Period) -> datetime | None:
    """Return when a step is due for a period; None for the first step. Steps are numbered from 0.

    Raise NobodyLeftError if the earlier step has no launch, because it had no recipients, or was sent to no one. Raise
    GateError if it was never prepared, and NotYetError while its requests are ahead. All launches of the period count,
    whatever their resend number.
    """
    earlier, step = journey.earlier(number), journey.journey.steps[number]
    if earlier is None:
        return None
    connection = earlier.campaign.connection
    launches = ledger.launches.of_period(connection, [earlier.name], period)
    if not launches:
        if not ledger.not_launched.of_keys([launch_key(connection, earlier.name, period)]):
            # The earlier step may be skipped itself, because of the one before it.
            step_due_at(ledger, journey, journey.campaigns.index(earlier), period)
            raise GateError(
                f"step {step.name}: the step {earlier.name} has no launch for this period. Send it first"
            )
        raise NobodyLeftError(f"step {step.name}: the step {earlier.name} was sent to no one in this period")
    return sent_at(ledger, launches[-1]) + (step.wait.timedelta() if step.wait else timedelta(0))


def sent_at(ledger: Ledger, launch: LaunchRecord) -> datetime:
    """Return when the period of a launch was sent: its last request, or when the service sent it if that is later.

    All launches of the period count, whatever their resend number. Raise NotYetError with a moment to look again while
    requests of one are ahead, and NobodyLeftError if all ended before their first request.
    """
    launches = ledger.launches.of_period(launch.connection, [launch.campaign], launch.period)
    moments = [at for each in launches if (at := _sent_at(ledger, each))]
    if not moments:
        raise NobodyLeftError(f"launch {launch.launch_key} was sent to no one")
    return max(moments)


def _sent_at(ledger: Ledger, launch: LaunchRecord) -> datetime | None:
    """Return when a launch was sent; None if it ended before its first request."""
    states = ledger.dispatch_queries.states(launch.launch_key)
    ahead = {DispatchState.IN_FLIGHT} | (set() if launch.state.is_final else {DispatchState.PLANNED})
    if states.keys() & ahead:
        raise NotYetError(f"launch {launch.launch_key} is not sent completely", utc_now() + _LOOK_AGAIN)
    newest = ledger.dispatch_queries.newest_request(launch.launch_key)
    if newest is None and launch.state.is_final:
        return None
    newest = newest or launch.created_at
    return max(newest, launch.sends_at or newest)
