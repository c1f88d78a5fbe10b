"""What became of one identifier in a launch: left out for a reason, or in a segment, with its dispatch and verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import Kind, from_bytes
from sendoff.figures import NO_PLATFORM, PLATFORM, RELIABLE_PLATFORMS, UNREAD, WHY_UNKNOWABLE
from sendoff.ledger.schema import audience_groups, dispatches, reports, segments, suppressed, verdicts
from sendoff.ledger.stored_sets import GROUPS, SUPPRESSED, VERDICTS
from sendoff.states import DispatchState, LaunchState, Verdict

_SENTENCES = {
    DispatchState.ACCEPTED: "sent to",
    DispatchState.IN_FLIGHT: "perhaps sent to: its request is being made",
    DispatchState.IN_DOUBT: "perhaps sent to: nobody knows whether its request was processed",
    DispatchState.WRITTEN_OFF: "perhaps sent to: nobody knows whether its request was processed, and it is written off",
    DispatchState.REFUSED: "not sent to: the service refused its request",
}
_WAITING = {
    LaunchState.HELD: "not sent to yet: the launch is held",
    LaunchState.RELEASED: "not sent to yet: its request is planned",
    LaunchState.PAUSED: "not sent to yet: the launch is paused",
    LaunchState.REJECTED: "not sent to: the launch was rejected",
    LaunchState.STOPPED: "not sent to: the launch was stopped",
}


@dataclass(frozen=True, slots=True)
class RecipientStatus:
    """What became of one identifier in a launch; it does not say which identifier that is.

    ``reason``: why it is left out, such as ``cap`` or ``holdout``; None for one that is in a segment, and for one that
    the query did not name. ``dispatch``: the state of its request. ``verdict``: as of the newest report, if there is
    one; ``verdict_because``: why silence proves nothing, of one that is unknowable.
    """

    launch_key: str
    launch_state: LaunchState
    is_known: bool = True  # False: the service chooses the people
    reason: str | None = None
    segment: int | None = None
    variant: str | None = None
    language: str | None = None
    time_zone: str | None = None
    wave: int | None = None
    dispatch: DispatchState | None = None
    verdict: Verdict | None = None
    verdict_because: str | None = None

    @property
    def is_named(self) -> bool:
        """Check whether the launch's query named it, and in a row that could be used."""
        return self.reason is not None or self.segment is not None

    @property
    def sentence(self) -> str:
        """Return it as one sentence."""
        if not self.is_known:
            return "nobody knows: the service chooses the people of this launch"
        if self.reason == "holdout":
            return "not sent to: held out, to measure against"
        if self.reason is not None:
            return f"not sent to: left out for the reason {self.reason!r}"
        if self.segment is None:
            return "not sent to: the launch's query did not name it in a row that could be used"
        where = [
            f"segment {self.segment}",
            *(f"{name} {value}" for name, value in self._variation() if value is not None),
            f"wave {self.wave}",
            f"dispatch {self.dispatch}",
            f"verdict {self.verdict}" if self.verdict else "not reconciled yet",
        ]
        sentence = (
            _WAITING[self.launch_state]
            if self.dispatch in (None, DispatchState.PLANNED)
            else _SENTENCES[self.dispatch]
        )
        why = WHY_UNKNOWABLE.get(self.verdict_because or "")
        return f"{sentence} ({', '.join(where)})" + (f"; silence proves nothing: {why}" if why else "")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "is_named": self.is_named, "sentence": self.sentence}

    def _variation(self) -> list[tuple[str, str | None]]:
        return [("variant", self.variant), ("language", self.language), ("zone", self.time_zone)]


def recipient_status(
    db: sa.Connection, launch_key: str, launch_state: LaunchState, kind: Kind, identifier: int | str
) -> RecipientStatus:
    """Look one identifier up among those whom a launch leaves out, then in its segments."""
    reason = SUPPRESSED.name_of(db, identifier, suppressed.c.launch_key == launch_key)
    if reason is not None:
        return RecipientStatus(launch_key, launch_state, reason=reason)
    with db.execute(_SEGMENTS.where(segments.c.launch_key == launch_key)) as rows:
        place = next((row for row in rows if _may_hold(row, kind, identifier)), None)
    if place is None:
        return RecipientStatus(launch_key, launch_state)
    if place.identifiers is None:
        return RecipientStatus(launch_key, launch_state, is_known=False)
    verdict = VERDICTS.name_of(db, identifier, verdicts.c.launch_key == launch_key)
    return RecipientStatus(
        launch_key,
        launch_state,
        segment=place.number,
        variant=place.variant,
        language=place.language,
        time_zone=place.time_zone,
        wave=place.wave,
        dispatch=db.scalar(_state(launch_key, place.number)),
        verdict=Verdict(verdict) if verdict else None,
        verdict_because=_why_unknowable(db, launch_key, identifier)
        if verdict == Verdict.UNKNOWABLE
        else None,
    )


def _why_unknowable(db: sa.Connection, launch_key: str, identifier: int | str) -> str | None:
    """Return the reason of one who is unknowable; None if the newest report holds no reasons.

    A report with several holds only those that depend on the platform, and what cannot be understood.
    """
    because = reports.c.figures["unknowable_because"]
    reasons = list(db.scalar(sa.select(because).where(reports.c.launch_key == launch_key)) or ())
    if len(reasons) < 2:
        return reasons[0] if reasons else None
    of_launch = (audience_groups.c.launch_key == launch_key, audience_groups.c.name == "platform")
    reliable = audience_groups.c.value.in_(RELIABLE_PLATFORMS)
    if GROUPS.name_of(db, identifier, *of_launch, sa.not_(reliable)) is not None:
        return PLATFORM
    return UNREAD if GROUPS.name_of(db, identifier, *of_launch, reliable) is not None else NO_PLATFORM


def _may_hold(row: sa.Row[Any], kind: Kind, identifier: int | str) -> bool:
    return row.identifiers is None or identifier in from_bytes(kind, row.identifiers)


_SEGMENTS: sa.Select[Any] = (
    sa.select(
        *(segments.c[name] for name in ("number", "variant", "language", "time_zone", "wave", "identifiers"))
    )
    .order_by(segments.c.number)
    .execution_options(stream_results=True, max_row_buffer=20)
)


def _state(launch_key: str, segment: int) -> sa.Select[DispatchState]:
    return sa.select(dispatches.c.state).where(
        dispatches.c.launch_key == launch_key, dispatches.c.segment == segment
    )
