"""Feed the suppression list: read recipients from arguments, files, frames and queries, and change their entries.

Each change is one transaction, with one entry in the audit log that has counts and no identifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from numbers import Integral
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from sendoff import warehouse
from sendoff.arguments import check_flags
from sendoff.audience import build_audience, count_people, kind_of
from sendoff.audience.identifiers import UNUSABLE_TEXT, Identifiers, as_integer, as_member, integers, strings
from sendoff.campaign import ACCOUNT, EVERYTHING, Channel, channel_scope, is_suppression_scope, topic_scope
from sendoff.errors import AudienceError, GateError, UsageError
from sendoff.figures import noun_of
from sendoff.launch.suppression import without_groups
from sendoff.ledger import Ledger, Replacement, SuppressionChange

MOST_REMOVED = 20
"""Percent of the entries of a source that a replacement may remove, unless the caller allows more."""


@dataclass(frozen=True, slots=True)
class NamedRecipients:
    """Recipients that a person, a file or a query names. ``skipped``: rows without a usable identifier."""

    identified_by: str
    identifiers: Identifiers
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.identifiers)

    @property
    def noun(self) -> tuple[str, str]:
        """What they are called, singular and plural."""
        return noun_of(self.identified_by)


def suppression_scope(
    topic: str | None = None, channel: str | None = None, *, everything: bool = False
) -> str:
    """Return the scope of entries: a topic, a channel, everything, or else every campaign that is not transactional.

    Raise UsageError if more than one is given, if there is no such topic or channel, or if ``everything`` is not a
    boolean.
    """
    check_flags(everything=everything)
    if sum((topic is not None, channel is not None, everything)) > 1:
        raise UsageError("found more than one of topic, channel and everything. Use one of them, or none")
    if channel is not None and channel not in list(Channel):
        raise UsageError(f"found the channel {channel!r}. Use {', '.join(Channel)}")
    if topic == "":
        raise UsageError("the topic is missing. Enter one, as in campaign.yaml")
    if topic is not None and not is_suppression_scope(topic_scope(topic)):
        raise UsageError(
            f"found the topic {topic!r}. Use at most 64 lower-case letters, digits, '-' and '_', as in campaign.yaml"
        )
    if topic is not None:
        return topic_scope(topic)
    if channel is not None:
        return channel_scope(channel)
    return EVERYTHING if everything else ACCOUNT


def describe_scope(scope: str) -> str:
    """Return the campaigns that a scope stops, in words."""
    kind, _, name = scope.partition(":")
    if kind == "channel":
        return f"campaigns with {Channel(name).label}"
    if kind == "topic":
        return f"campaigns on the topic {name}"
    return f"every campaign, {'also' if scope == EVERYTHING else 'except'} transactional ones"


def end_of(until: date | datetime | str | None, now: datetime) -> datetime | None:
    """Return the end of entries: the start of a day in UTC, or an aware moment. A text without a time zone is in UTC.

    Raise UsageError if it is not a date, not aware, or not in the future.
    """
    if until is None or until == "":
        return None
    if isinstance(until, str):
        try:
            if "W" in until:  # Python reads 2026-W47 as its Monday
                raise ValueError
            until = datetime.fromisoformat(until)
            until = until if until.tzinfo else until.replace(tzinfo=UTC)
        except ValueError:
            raise UsageError(f"found {until!r} as the end. Use a date such as 2027-01-31") from None
    if not isinstance(until, date):
        raise UsageError(f"found a {type(until).__name__} as the end. Use a date such as 2027-01-31")
    if not isinstance(until, datetime):
        until = datetime.combine(until, time(), UTC)
    if until.tzinfo is None:
        raise UsageError(
            f"the end {until.isoformat()} has no time zone. Add one, such as tzinfo=UTC, or use a date"
        )
    try:
        moment = until.astimezone(UTC)
    except OverflowError:
        raise UsageError("the end is after the year 9999 in UTC. Use an earlier date") from None
    if moment <= now:
        raise UsageError(f"the end {until:%Y-%m-%d} is in the past. Use a later date")
    return moment


def recipients_of(
    given: Any, identified_by: str | None = None, source: Callable[[], warehouse.Source] | None = None
) -> NamedRecipients:
    """Return the recipients that something names.

    ``given``: identifiers; a DataFrame, an Arrow table or a list of dictionaries; the ``Path`` of a CSV, Parquet or
    Arrow file; or SQL that ``source`` reads. ``identified_by``: the column that identifies them. Files, tables and
    queries with exactly one such column need not name it. ``source``: returns the warehouse; without it, SQL is an
    error.

    Raise AudienceError without any identifier in its text. Raise QueryError for a query that fails.
    """
    if isinstance(given, Path) and given.suffix.lower() == ".csv" and identified_by:
        return recipients_in_csv(given, identified_by)
    table = None if hasattr(given, "to_list") else warehouse.table_of(given)  # to_list: of a single column
    if table or hasattr(given, "open") or (isinstance(given, str) and source is not None):
        return _of_rows(table or given, identified_by, source)
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise AudienceError(
            f"found {type(given).__name__} as recipients. Use identifiers in a list, a Path, a DataFrame, an Arrow "
            "table or a list of dictionaries"
        )
    if identified_by is None:
        raise AudienceError(
            "the column of the identifiers is missing. Add identified_by, such as identified_by='device_id'"
        )
    return NamedRecipients(identified_by, _typed(given, identified_by))


def suppress(
    ledger: Ledger,
    new: SuppressionChange,
    identifiers: Identifiers,
    *,
    now: datetime | None = None,
) -> int:
    """Add recipients to the list, and return how many had no entry of this scope and source.

    An entry that is in force already stays as it is, unless the new one ends later.
    """
    return ledger.suppressions.add(new, identifiers, now or datetime.now(UTC), is_audited=True)


def unsuppress(ledger: Ledger, ended: SuppressionChange, identifiers: Identifiers) -> int:
    """Remove recipients from one scope of the list, and return how many were suppressed there.

    Without a source, this removes the entries of every source, also of the recipients' own opt-outs.
    """
    return ledger.suppressions.remove(ended, identifiers, datetime.now(UTC))


def replace_suppressions(
    ledger: Ledger,
    new: SuppressionChange,
    identifiers: Identifiers,
    *,
    most_removed: float = MOST_REMOVED,
    planned: Replacement | None = None,
) -> Replacement:
    """Make the entries of one scope and source exactly these, and return how many were added and removed.

    An entry with another end gets the new one, which may be earlier. That does not count as removed.

    ``most_removed``: raise GateError and change nothing if more than this percentage of the entries would be removed.
    ``planned``: the counts that someone has seen. Raise GateError if they are not right any more.
    """
    now = datetime.now(UTC)
    planned = planned or ledger.suppressions.planned(new, identifiers, now)
    if planned.removes_more_than(most_removed):
        raise GateError(
            f"nothing was changed: {planned.removed:,} of the {planned.before:,} entries from {new.source} would be "
            f"removed, more than {most_removed:g} %. Check that the new recipients are complete, or allow more"
        )
    return ledger.suppressions.replace(new, identifiers, now, planned)


def recipients_in_csv(file: Path | bytes, identified_by: str) -> NamedRecipients:
    """Return the recipients in a CSV file, or in the content of one.

    Raise AudienceError with the line, but without values.
    """
    counted = count_people(file, identified_by, kind_of(identified_by))
    return NamedRecipients(identified_by, counted.identifiers(), counted.null + counted.invalid)


def _of_rows(
    given: Any, identified_by: str | None, source: Callable[[], warehouse.Source] | None
) -> NamedRecipients:
    rows = warehouse.audience_source(given)
    if isinstance(rows, warehouse.Rows):
        try:
            with rows.open() as batches:
                audience = build_audience(without_groups(batches), wording=rows.wording)
        except AudienceError as error:
            raise AudienceError(f"{rows.origin}: {error}") from None
    elif source is None:
        raise AudienceError(
            "found SQL without a warehouse. Use a file, a DataFrame, an Arrow table or a list of dictionaries"
        )
    else:
        with warehouse.read(source(), rows) as batches:
            audience = build_audience(without_groups(batches))
    if identified_by not in (None, audience.identified_by):
        raise AudienceError(
            f"found the column {audience.identified_by}, but identified_by is {identified_by}"
        )
    skipped = audience.dropped["null"] + audience.dropped["invalid"]
    return NamedRecipients(audience.identified_by, audience.identifiers, skipped)


def _typed(given: Iterable[Any], identified_by: str) -> Identifiers:
    """Return identifiers as a set. Raise AudienceError with the place of the first that is none."""
    members = [each.as_py() if isinstance(each, pa.Scalar) else each for each in given]
    for place, each in enumerate(members, 1):
        if isinstance(each, bool) or not isinstance(each, str | Integral | UUID):
            raise AudienceError(
                f"identifier {place} of {len(members)} is of the type {type(each).__name__}. "
                "Use texts or whole numbers"
            )
    texts = [str(each).strip() for each in members]
    if kind_of(identified_by) == "string":
        for place, text in enumerate(texts, 1):
            if not text:
                raise AudienceError(f"identifier {place} of {len(texts)} is empty. Remove it")
            if as_member("string", text) is None:
                raise AudienceError(f"identifier {place} of {len(texts)} is {UNUSABLE_TEXT}. Remove it")
        return strings(texts)
    numbers = [number for text in texts if (number := as_integer(text)) is not None]
    if len(numbers) < len(texts):
        place = next(place for place, text in enumerate(texts, 1) if as_integer(text) is None)
        raise AudienceError(
            f"identifier {place} of {len(texts)} is not a whole number from 1 to {2**63 - 1:,}, as a {identified_by} "
            "must be. Correct it, or name its column with identified_by (--identified-by in a shell)"
        )
    return integers(numbers)
