"""The status of one identifier in a launch: suppressed, or in a segment with a dispatch and a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import Kind, from_bytes
from sendoff.campaign import Campaign
from sendoff.figures import (
    NO_PLATFORM,
    PLATFORM,
    RELIABLE_PLATFORMS,
    UNREAD,
    WHY_OWN_UNKNOWABLE,
    WHY_UNKNOWABLE,
)
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.ledger.requests.claims import VARIANT
from sendoff.ledger.requests.doubts import is_still_doubted, may_be_processed
from sendoff.ledger.storage.schema import (
    audience_groups,
    dispatch_totals,
    dispatches,
    reports,
    segments,
    suppressed,
    verdicts,
)
from sendoff.ledger.storage.stored_sets import GROUPS, SUPPRESSED, VERDICTS
from sendoff.ledger.suppression.withheld import request_state, withheld_by_verdict, withheld_of
from sendoff.states import Arm, DispatchState, LaunchState, Verdict

_LEFT_OUT = {
    "suppressed": "on the suppression list",
    "holdout": "control group",
    "priority": "a campaign with higher priority reaches them on the same day",
    "cap": "they already get as many messages as the cap allows",
    "size_limit": "this run was limited to fewer people",
    "already_sent": "they got, or may have got, an earlier launch for the same period",
}
_SENT = {
    Verdict.ENGAGED: "got it: opened or clicked",
    Verdict.DELIVERED: "got it: delivered",
    Verdict.MISSING: "sent, but no delivery was reported",
    Verdict.UNKNOWABLE: "sent, and it cannot be known whether it arrived",
}
_SENTENCES = {
    DispatchState.ACCEPTED: "sent, and not reported on yet",
    DispatchState.IN_FLIGHT: "may have been sent: the request is in progress",
    DispatchState.IN_DOUBT: "may have been sent: the service gave no clear answer",
    DispatchState.WRITTEN_OFF: "may have been sent: the service gave no clear answer, and it was not sent again",
    DispatchState.REFUSED: "not sent: the service refused the request",
    DispatchState.SUPPRESSED: "not sent: on the suppression list when the request was due",
}
_DOUBTED = "may have been sent: it is not clear whether the service processed an earlier request"
_CONTRADICTED = "may have been sent: the service refused the request, but a post-back came from it"
_CLEARED = "not sent: the service did not process the request, as was found out later"
_WITHHELD = {
    Verdict.ENGAGED: "not sent: opened or clicked an earlier message before the request was due",
    Verdict.DELIVERED: "not sent: got an earlier message before the request was due",
}
_WHEN = {
    Arm.OWN_HOUR: "own hour {:02}:00",
    Arm.EXPLORE: "explored hour {:02}:00",
    Arm.CONTROL: "control: at once",
}
_WAITING = {
    LaunchState.HELD: "not sent yet: the launch waits for a person",
    LaunchState.RELEASED: "not sent yet: its turn comes later",
    LaunchState.PAUSED: "not sent yet: the launch is paused",
    LaunchState.REJECTED: "not sent: the launch was rejected",
    LaunchState.STOPPED: "not sent: the launch was stopped",
}


@dataclass(frozen=True, slots=True)
class RecipientStatus:
    """The status of one identifier in a launch, without the identifier.

    ``reason``: why it is left out, such as ``cap`` or ``holdout``; None if it is in a segment or not in the query's
    result. ``dispatch``: the state of its request. ``verdict``: from the newest report, if there is one.
    ``awaits_winner``: its variant is decided when the test share of the launch has answered.
    ``verdict_because``: if the verdict is unknowable, why silence proves nothing. ``is_suspect``: a machine probably
    made all of its opens. ``is_doubted``: whether a request of its segment may have been processed, whatever the newest
    one became. ``is_contradicted``: this is so only because a post-back came from a refused request.
    ``withheld_because``: if a request left it out because of a verdict in another launch, that verdict. ``hour``: the
    hour of the day at which it gets the message, in its time zone; None for any. ``arm``: set only if the campaign
    sends at own hours and its hour is known or random.
    """

    launch_key: str
    launch_state: LaunchState
    is_own_request: bool = False  # someone wrote the request, instead of a campaign
    # False: the service chooses the recipients and no report has it, or they were deleted.
    is_known: bool = True
    reason: str | None = None
    segment: int | None = None
    variant: str | None = None
    language: str | None = None
    time_zone: str | None = None
    wave: int | None = None
    awaits_winner: bool = False
    dispatch: DispatchState | None = None
    verdict: Verdict | None = None
    verdict_because: str | None = None
    withheld_because: Verdict | None = None
    is_suspect: bool = False
    is_doubted: bool = False
    is_contradicted: bool = False
    hour: int | None = None
    arm: Arm | None = None
    # People were erased from the launch or before it, and it is none of the others.
    may_be_erased: bool = False
    deleted: str | None = None  # the sentence that the launch's recipients were deleted, if they were

    def __str__(self) -> str:
        return f"{self.sentence} ({self.details})" if self.details else self.sentence

    @property
    def is_named(self) -> bool:
        """Whether the launch's query returned it in a usable row, or a report has it."""
        return self.reason is not None or self.segment is not None or self.verdict is not None

    @property
    def is_sent(self) -> bool:
        """Whether the service accepted the request, or a report proves that it was sent."""
        return self.dispatch == DispatchState.ACCEPTED or self.is_received

    @property
    def is_received(self) -> bool:
        """Whether a report proves that it was received."""
        return self.verdict is not None and self.verdict.is_observed

    @property
    def is_waiting(self) -> bool:
        """Whether the launch may send and its request was not begun."""
        is_planned = self.segment is not None and self.dispatch in (None, DispatchState.PLANNED)
        is_not_sent = self.verdict in (None, Verdict.NOT_SENT)  # a report may be older than its turn
        may_go = is_not_sent and not self.is_doubted
        return is_planned and may_go and self.launch_state == LaunchState.RELEASED

    @property
    def sentence(self) -> str:
        """The status as one sentence, for people who do not know Sendoff."""
        if self.deleted:
            return f"not known: {self.deleted}"
        if not self.is_known:
            return "not known: the service chooses the people of this launch"
        if self.reason is not None:
            known = _LEFT_OUT.get(self.reason)
            return f"left out: {known}" if known else f"left out by rule: {self.reason}"
        if self.verdict in _SENT:
            if self.is_suspect:
                return f"{_SENT[self.verdict]}, probably by a machine"
            whys = WHY_OWN_UNKNOWABLE if self.is_own_request else WHY_UNKNOWABLE
            why = whys.get(self.verdict_because or "")
            return _SENT[self.verdict] + (f": {why}" if why else "")
        if self.segment is None:
            unseen = (
                "the request does not name it"
                if self.is_own_request
                else "the campaign's query did not return it in a usable row"
            )
            if self.may_be_erased:
                return f"not known: {unseen}, or it was erased"
            return f"not selected: {unseen}"
        return self._of_request

    @property
    def _of_request(self) -> str:
        """What became of its request, as a sentence."""
        if self.is_doubted and self.dispatch in (DispatchState.PLANNED, DispatchState.REFUSED):
            return _CONTRADICTED if self.is_contradicted else _DOUBTED
        if not self.is_doubted and self.dispatch == DispatchState.WRITTEN_OFF:
            return _CLEARED
        if self.awaits_winner and self.is_waiting:
            return "not sent yet: it gets the variant that wins in the test share, which is not decided yet"
        if (
            self.dispatch in (DispatchState.PLANNED, DispatchState.SUPPRESSED)
            and self.withheld_because in _WITHHELD
        ):
            return _WITHHELD[self.withheld_because]
        if self.dispatch in (None, DispatchState.PLANNED):
            return _WAITING[self.launch_state]
        return _SENTENCES[self.dispatch]

    @property
    def details(self) -> str:
        """The segment and the state of its request. Empty for an identifier without a segment."""
        if self.segment is None:
            return ""
        variation = [("variant", self.variant), ("language", self.language), ("zone", self.time_zone)]
        where = [
            f"segment {self.segment}",
            *(f"{name} {value}" for name, value in variation if value is not None),
            *((_WHEN[self.arm].format(self.hour),) if self.arm else ()),
            f"wave {self.wave}",
            f"request {_words(self.dispatch)}",
        ]
        return ", ".join(where)

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return {**asdict(self), "is_named": self.is_named, "sentence": self.sentence}


def _words(state: str | None) -> str:
    return str(state).replace("_", " ")


def recipient_status(db: sa.Connection, launch: LaunchRecord, identifier: int | str) -> RecipientStatus:
    """Look for an identifier among those that the launch leaves out, then in its segments."""
    launch_key, kind = launch.launch_key, launch.kind
    found = partial(RecipientStatus, launch_key, launch.state, launch.is_own_request)
    if launch.deleted:
        return found(is_known=False, deleted=launch.deleted)
    reason = SUPPRESSED.name_of(db, identifier, suppressed.c.launch_key == launch_key)
    if reason is not None:
        return found(reason=reason)
    with db.execute(_SEGMENTS.where(segments.c.launch_key == launch_key)) as rows:
        place = next((row for row in rows if _may_hold(row, kind, identifier)), None)
    if place is None:
        return found(may_be_erased=launch.erased > 0 or launch.dropped.get("erased", 0) > 0)
    name = VERDICTS.name_of(db, identifier, verdicts.c.launch_key == launch_key)
    verdict = Verdict(name) if name else None
    if place.identifiers is None:
        return found(is_known=verdict is not None, verdict=verdict)
    withheld = withheld_by_verdict(db, launch_key).items()
    of_segment = (dispatches.c.launch_key == launch_key, dispatches.c.segment == place.number)
    dispatch = db.execute(_DISPATCH.where(*of_segment)).one()
    left_out = withheld_of(db, launch_key).get(dispatch.dispatch_key)
    is_suspect = dispatch.suspects is not None and identifier in from_bytes(kind, dispatch.suspects)
    has_rest = Campaign.frozen(launch.definition).decide is not None
    return found(
        segment=place.number,
        variant=place.variant,
        language=place.language,
        time_zone=place.time_zone,
        wave=place.wave,
        awaits_winner=has_rest and place.variant is None,
        dispatch=request_state(dispatch.state, identifier, left_out),
        verdict=verdict,
        verdict_because=_why_unknowable(db, launch_key, identifier)
        if verdict == Verdict.UNKNOWABLE
        else None,
        withheld_because=next((reason for reason, people in withheld if identifier in people), None),
        is_suspect=verdict == Verdict.ENGAGED and is_suspect,
        is_doubted=dispatch.is_doubted,
        is_contradicted=dispatch.is_contradicted,
        hour=place.hour,
        arm=Arm(place.arm) if place.arm else None,
    )


def _why_unknowable(db: sa.Connection, launch_key: str, identifier: int | str) -> str | None:
    """Return why an identifier's verdict is unknowable; None if the newest report has no reasons.

    If a report has several reasons, they depend only on the platform and on unreadable post-backs.
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


_COLUMNS = ("number", "language", "time_zone", "wave", "hour", "arm", "identifiers")
_SEGMENTS: sa.Select[Any] = (
    sa.select(*(segments.c[name] for name in _COLUMNS), VARIANT)
    .order_by(segments.c.number)
    .execution_options(stream_results=True, max_row_buffer=20)
)
_DISPATCH = sa.select(
    dispatches.c.dispatch_key,
    dispatches.c.state,
    dispatch_totals.c.suspects,
    may_be_processed(dispatches.c.dispatch_key).label("is_doubted"),
    sa.and_(
        dispatches.c.state == DispatchState.REFUSED,
        may_be_processed(dispatches.c.dispatch_key),
        sa.not_(is_still_doubted(dispatches.c.dispatch_key)),
    ).label("is_contradicted"),
).outerjoin(dispatch_totals, dispatch_totals.c.dispatch_key == dispatches.c.dispatch_key)
