"""What a launch would be, without sending or storing anything: its people, its words, its requests, its cost.

Counts only. A preview names nobody, and holds no address or header of a webhook that may be a secret, unless
:meth:`Preview.to_json` is asked for the whole of its sample request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from sendoff.launch.gates import GateResult
from sendoff.launch.rendering import Rendering
from sendoff.launch.send_times import SendTimes
from sendoff.states import LaunchState


@dataclass(frozen=True, slots=True)
class AudienceChange:
    """How an audience differs from that of the campaign's last launch."""

    launch_key: str  # of the last launch
    period: str
    audience: int  # people of the last launch
    new: int
    kept: int
    gone: int


@dataclass(frozen=True, slots=True)
class ExistingLaunch:
    """A launch that the ledger already holds for the period: as it was frozen, and how far it was sent."""

    launch_key: str
    state: str
    created_at: datetime
    people: int | None  # None: the service chooses them
    requests: int
    requests_made: int  # whatever became of them
    accepted: int
    last_at: datetime | None  # when the newest answer was recorded; None before the first request

    @property
    def is_made(self) -> bool:
        """Whether every request was made."""
        return self.requests_made == self.requests

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is sent."""
        return self.is_made or LaunchState(self.state).is_final


@dataclass(frozen=True, slots=True)
class Zone:
    """One time zone's people, and the moment when they are sent to, on their clocks; None: at once, or repeatedly."""

    time_zone: str
    people: int
    sends_at: datetime | None


@dataclass(frozen=True, slots=True)
class ApprovalNeed:
    """Whether a person must approve the launch. ``role`` None: anybody whom Airflow lets. No answer rejects it."""

    is_needed: bool
    role: str | None
    within_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The figures of a launch that has not been sent, and one of its requests.

    ``audience`` and ``people`` are None if the service chooses the people. ``audience`` counts ``people``, who are sent
    to, and those of ``suppressed`` who were not ``dropped`` before. ``variants``, ``languages`` and ``time_zones`` are
    empty if they make no difference; ``waves`` are in their order. ``launch_key`` and ``state``: of a launch that is
    frozen in the ledger. ``existing_launch``: the launch that the ledger holds for the period, which a run continues
    instead of making the one that is previewed; of a frozen launch, itself once a request was made. ``request``: the
    first one with the number of its people instead of them; None if there is nobody to make one for.
    """

    campaign: str
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
    groups: Mapping[str, Mapping[str, int]]  # column of the query -> value -> people of the audience
    variants: Mapping[str, int]
    languages: Mapping[str, int]
    time_zones: Sequence[Zone]
    waves: Sequence[int]
    wave_wait_seconds: float | None
    send_times: SendTimes
    requests: int
    segment_size: int
    rate: float | None  # requests per second
    seconds: float | None  # that the requests take at that rate
    renderings: Sequence[Rendering]
    filled_in: Sequence[str]  # names of the tags that the service fills in for each person
    request: Mapping[str, Any] | None = field(repr=False)
    gates: Sequence[GateResult]
    approval: ApprovalNeed
    warnings: Sequence[str]
    whole_request: Mapping[str, Any] | None = field(repr=False)

    @property
    def would_send(self) -> bool:
        """Check whether a run would send this launch, once everybody agreed who must.

        It would not if a gate is closed, if somebody stopped the launch, if everything was sent, or if the ledger holds
        another launch for the period.
        """
        if self.existing_launch and (self.launch_key is None or self.existing_launch.is_made):
            return False
        is_stopped = self.state is not None and LaunchState(self.state).is_final
        return all(gate.is_open for gate in self.gates) and not is_stopped

    @property
    def held_out(self) -> int:
        """The number of people who are held out to measure against."""
        return self.suppressed.get("holdout", 0)

    def to_json(self, *, whole_request: bool = False) -> dict[str, Any]:
        """Return the preview as JSON values.

        With ``whole_request`` its request is as it would be sent, with the identifiers of its first three people: for
        somebody who may read the warehouse, never for a log or XCom.
        """
        values: dict[str, Any] = _plain(asdict(self))
        whole = values.pop("whole_request")
        if whole_request:
            values["request"] = whole
        return values | {"held_out": self.held_out, "would_send": self.would_send}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.isoformat() if isinstance(value, datetime) else value
