"""A launch as the ledger has it, without its identifiers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import Kind, deletion_in_words
from sendoff.campaign import Period
from sendoff.errors import RecipientsDeletedError
from sendoff.figures import noun_of
from sendoff.ledger.storage.schema import audiences, launches, segments
from sendoff.states import LaunchState


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """A launch as it was frozen, without its identifiers, and its current state."""

    launch_key: str
    connection: str
    campaign: str
    period: Period
    resend: int
    definition: str  # the frozen campaign as JSON
    created_at: datetime
    settled_at: datetime | None  # when it was complete or quiet; later post-backs count as late
    state: LaunchState
    wave: int  # the newest wave that may be sent
    due_at: datetime | None  # when it was due
    sends_at: datetime | None  # when the service has sent it at the latest; None: recurring
    revision: int  # counts changes that a report may show
    is_chosen_by_service: bool  # then its recipients are not known in advance
    identified_by: str  # the column of the query that identifies recipients
    kind: Kind
    rows: int  # rows that the query returned
    audience: int  # identifiers that remained
    dropped: Mapping[str, int]  # reason -> rows
    segments: int
    erased: int = 0  # identifiers of the audience that were erased since
    origin: str | None = None  # the run and task that made it, and a digest of its campaign and audience
    winner: str | None = None  # the variant that the rest gets, once it is decided
    # Among the campaign's launches that compare something; None: nothing.
    comparison_number: int | None = None
    # The limit when its recipients were deleted, as those of every launch from before; None: they were not.
    recipients_deleted_before: datetime | None = None

    @property
    def title(self) -> str:
        """The title of the campaign, or its name if it has none."""
        return str(json.loads(self.definition).get("title") or self.campaign)

    @property
    def is_own_request(self) -> bool:
        """Whether someone wrote its request, instead of a campaign."""
        return "sends_with" in json.loads(self.definition)

    @property
    def deleted(self) -> str | None:
        """The sentence that its recipients were deleted, and since when; None if they were not."""
        day = self.recipients_deleted_before
        return None if day is None else deletion_in_words(day.date())

    def check_recipients(self) -> None:
        """Raise RecipientsDeletedError if its recipients were deleted."""
        if self.deleted:
            raise RecipientsDeletedError(
                f"launch {self.launch_key} of campaign {self.campaign}, period {self.period.key}: {self.deleted}. "
                "Nothing is sent again"
            )

    @property
    def noun(self) -> tuple[str, str]:
        """What one identifier stands for, singular and plural. A person may have several devices."""
        return noun_of(self.identified_by)


_SEGMENTS = (
    sa.select(sa.func.count())
    .select_from(segments)
    .where(segments.c.launch_key == launches.c.launch_key)
    .scalar_subquery()
)
LAUNCH = sa.select(
    launches,
    audiences.c.identified_by,
    audiences.c.kind,
    audiences.c.rows,
    audiences.c.size.label("audience"),
    audiences.c.dropped,
    audiences.c.is_chosen_by_service,
    audiences.c.erased,
    _SEGMENTS.label("segments"),
).join(audiences, audiences.c.launch_key == launches.c.launch_key)


def launch_of(row: sa.Row[Any]) -> LaunchRecord:
    """Return the launch of a row with the columns of ``LAUNCH``, and maybe others."""
    columns = row._mapping
    values = {name: columns[name] for name in LaunchRecord.__slots__ if name != "period"}
    return LaunchRecord(period=period_of(row), **values)


def period_of(row: sa.Row[Any]) -> Period:
    """Return the period of a row with its columns."""
    return Period(row.period_start, row.period_end, row.partition)


def period_columns(period: Period) -> dict[str, datetime | str | None]:
    """Return the columns of a period by name."""
    return {"period_start": period.start, "period_end": period.end, "partition": period.partition}
