"""A preview of a launch: recipients, texts, requests and duration, without sending or storing anything.

A preview contains counts, but no identifiers, and no addresses or headers of webhooks that may be secret. The only
exception is the whole sample request that :meth:`Preview.to_json` can return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from sendoff.figures import json_value
from sendoff.launch.gates import GateResult
from sendoff.launch.rendering import Rendering
from sendoff.launch.send_times import SendTimes
from sendoff.states import LaunchState


@dataclass(frozen=True, slots=True)
class AudienceChange:
    """The difference between an audience and that of the campaign's last launch."""

    launch_key: str  # of the last launch
    period: str  # of the last launch
    audience: int  # size of the last launch's audience
    new: int
    kept: int
    gone: int


@dataclass(frozen=True, slots=True)
class ExistingLaunch:
    """A launch that the ledger already has for the period, and its progress."""

    launch_key: str
    state: str
    created_at: datetime
    people: int | None  # without those left out when it was sent; None if the service chooses the recipients
    requests: int
    requests_made: int  # with any outcome
    requests_left: int  # still planned
    accepted: int
    last_at: datetime | None  # when the newest outcome was recorded; None before the first request
    sends_at: datetime | None  # when the service has sent it at the latest; None: repeatedly

    @property
    def is_made(self) -> bool:
        """Whether no request is left to make."""
        return not self.requests_left

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is sent."""
        return self.is_made or LaunchState(self.state).is_final


@dataclass(frozen=True, slots=True)
class Zone:
    """The recipients in one time zone, and the local sending time; None if it sends at once or repeatedly."""

    time_zone: str
    people: int
    sends_at: datetime | None


@dataclass(frozen=True, slots=True)
class ApprovalNeed:
    """Whether a person must approve the launch, who may do so, and how long it waits before it is rejected.

    ``role`` is None if anyone with the permission in Airflow may approve it.
    """

    is_needed: bool
    role: str | None
    within_seconds: float


@dataclass(frozen=True, slots=True)
class SourceLaunch:
    """The launch whose recipients with some verdicts are the audience of another one.

    If its period was sent again, there are several, with the same campaign, period and verdicts.
    """

    launch_keys: Sequence[str]
    campaign: str
    period: str
    verdicts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The figures of a launch that has not been sent, and one of its requests.

    ``audience`` and ``people`` are None if the service chooses the recipients. ``people`` are the recipients.
    ``audience`` also counts the suppressed ones that are not in ``dropped``, such as the holdout and people who were
    erased since the freeze. ``variants``, ``languages``, ``time_zones`` and ``own_hours`` are empty if they make no
    difference. ``own_hours``: recipients by when they get the message, in words. ``launch_key`` and ``state`` are set
    for a launch frozen in the ledger.
    ``existing_launch``: the launch that the ledger has for the period; a run continues it instead of the one
    previewed here. For a frozen launch, it is that launch itself, once a request was made. ``request``: the first
    request, with the number of recipients in place of their identifiers; None if there is none. ``is_own_request``:
    someone wrote the request, so no campaign describes it. ``source``: the launch whose verdicts are the audience,
    if one is.
    """

    campaign: str
    title: str
    period: str
    launch_key: str | None
    state: str | None
    existing_launch: ExistingLaunch | None
    targeting: Literal["query", "broadcast", "saved_segments", "conditions"]
    identified_by: str | None
    rows: int
    dropped: Mapping[str, int]
    audience: int | None
    suppressed: Mapping[str, int]
    people: int | None
    change: AudienceChange | None
    groups: Mapping[str, Mapping[str, int]]  # column of the query -> value -> members of the audience
    variants: Mapping[str, int]
    languages: Mapping[str, int]
    time_zones: Sequence[Zone]
    own_hours: Mapping[str, int]
    waves: Sequence[int]
    wave_wait_seconds: float | None
    winner: str | None  # the variant that the rest gets, once it is decided
    decide: str  # how the winner is decided, as a sentence; empty without ``decide``
    send_times: SendTimes
    requests: int
    segment_size: int
    rate: float | None  # requests per second
    seconds: float | None  # duration of all requests at that rate
    renderings: Sequence[Rendering]
    filled_in: Sequence[str]  # names of the tags that the service fills in for each recipient
    request: Mapping[str, Any] | None = field(repr=False)
    gates: Sequence[GateResult]
    approval: ApprovalNeed
    warnings: Sequence[str]
    whole_request: Mapping[str, Any] | None = field(repr=False)
    is_own_request: bool = False
    source: SourceLaunch | None = None

    @property
    def would_send(self) -> bool:
        """Whether a run would send this launch, after approval if it needs one.

        It would not if a gate is closed, if the launch was rejected or stopped, if everything was sent, or if the
        ledger has another launch for the period.
        """
        if self.existing_launch and (self.launch_key is None or self.existing_launch.is_made):
            return False
        is_stopped = self.state is not None and LaunchState(self.state).is_final
        return all(gate.is_open for gate in self.gates) and not is_stopped

    @property
    def held_out(self) -> int:
        """The size of the holdout."""
        return self.suppressed.get("holdout", 0)

    def to_json(self, *, whole_request: bool = False) -> dict[str, Any]:
        """Return the preview as JSON values.

        With ``whole_request``, the request contains the identifiers of its first three recipients, or of all if someone
        wrote it. It is for people who may read the warehouse, never for logs or XCom.
        """
        values: dict[str, Any] = json_value(asdict(self))
        whole = values.pop("whole_request")
        if whole_request:
            values["request"] = whole
        return values | {"held_out": self.held_out, "would_send": self.would_send}
