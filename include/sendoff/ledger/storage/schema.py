"""The tables of the ledger, the same on SQLite and PostgreSQL.

They follow the life of a launch: what it froze, its attempts, its post-backs, and its verdicts. A set of identifiers is
stored as blobs in the format of :mod:`sendoff.audience.identifiers`, never as one row per identifier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
    literal_column,
    text,
)
from sqlalchemy.types import TypeDecorator

from sendoff.states import DispatchState, FeedHealth, LaunchState, OutcomeKind, Verdict

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

DOUBTFUL = text("(state = 'in_doubt' OR state = 'written_off' OR state = 'planned')")
"""The dispatches that evidence can still show to be accepted.

Planned dispatches count: after a backup is restored, the ledger may not know of their attempts. The condition does not
use ``IN``, because SQLite would then not see that it covers each of these states.
"""
IN_FLIGHT = text("state = 'in_flight'")
"""The dispatches whose worker may have died."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC, whether or not the database knows time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Convert an aware datetime to UTC. Raise ValueError for a naive one."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("the ledger stores only datetimes with a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return an aware datetime in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class _Literals(TypeDecorator.Comparator[Any], String.Comparator[Any]):
    """Compares a column with members of an enumeration as literals.

    The partial indexes of a table depend on them. If they were parameters, SQLite would plan a statement anew each time
    it is executed, which takes many times as long as executing it.
    """

    def operate(self, op: Any, *other: Any, **how: Any) -> Any:
        """Operate on an argument."""
        return super().operate(op, *(_as_literals(each) for each in other), **how)


def _as_literals(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return literal_column(f"'{value.value}'")
    if isinstance(value, Collection) and value and all(isinstance(each, StrEnum) for each in value):
        return [literal_column(f"'{each.value}'") for each in value]
    return value


class OneOf(TypeDecorator[StrEnum]):
    """A member of an enumeration, stored as its string."""

    impl = String
    cache_ok = True
    comparator_factory = _Literals

    def __init__(self, states: type[StrEnum]) -> None:
        super().__init__(16)
        self.states = states

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:  # noqa: ARG002
        """Return the member."""
        return None if value is None else self.states(value)


def _one_of(column: str, states: Iterable[StrEnum]) -> str:
    """Return the SQL condition that a column has one of the states."""
    return f"{column} IN {tuple(state.value for state in states)}"


def _required(*args: Any, **options: Any) -> Column[Any]:
    """Return a column that is never null."""
    return Column(*args, nullable=False, **options)


def _key(name: str, *args: Any, **options: Any) -> Column[str]:
    return _required(name, String(32), *args, **options)


def _revision(comment: str) -> Column[int]:
    return _required("revision", BigInteger, server_default="0", comment=comment)


def _chunk() -> tuple[Column[Any], ...]:
    """Return the columns of one numbered chunk of a set; databases limit the size of a value."""
    return (
        Column("chunk", Integer, primary_key=True, server_default="0"),
        _required("size", BigInteger, comment="of this chunk"),
        _required("identifiers", LargeBinary),
    )


launches = Table(
    "launches",
    metadata,
    _key("launch_key", primary_key=True),
    _required("connection", Text),
    _required("campaign", Text),
    _required("period_start", UtcDateTime),
    _required("period_end", UtcDateTime),
    Column("partition", Text, comment="which part of the period's data it is for, if that is divided"),
    _required("resend", Integer),
    _required("definition", Text, comment="the frozen campaign as JSON"),
    _required("created_at", UtcDateTime),
    Column(
        "settled_at", UtcDateTime, comment="when it was complete or quiet; later post-backs count as late"
    ),
    _required(
        "state",
        OneOf(LaunchState),
        server_default=LaunchState.RELEASED.value,
        comment="only a released launch is sent",
    ),
    _required("wave", Integer, server_default="1", comment="the newest wave that may be sent"),
    Column(
        "origin", Text, comment="the run and task that made it, and a digest of its campaign and audience"
    ),
    Column("winner", Text, comment="the variant of segments without one, once it is decided"),
    Column(
        "comparison_number",
        Integer,
        comment="its number among the campaign's launches with variants, a holdout or own hours, as frozen",
    ),
    Column("due_at", UtcDateTime, comment="when it was due; lateness counts from here"),
    Column("sends_at", UtcDateTime, comment="when the service has sent it at the latest; null: recurring"),
    _revision("counts changes that a report may show: aggregated post-backs, resolved doubts"),
    Column(
        "tables_as_of", UtcDateTime, comment="time of the report that its DAG last wrote into the warehouse"
    ),
    Column(
        "recipients_deleted_before",
        UtcDateTime,
        comment="the limit when its recipients were deleted; null: they were not",
    ),
    CheckConstraint(_one_of("state", LaunchState), name="state"),
    Index(None, "campaign", "period_end"),
    Index(None, "sends_at"),
)

audiences = Table(
    "audiences",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    _required("identified_by", Text),
    _required("kind", String(7), comment="integer or string"),
    _required(
        "is_chosen_by_service",
        Boolean,
        server_default=false(),
        comment="then no query runs, and the number of recipients is unknown",
    ),
    _required("rows", BigInteger, comment="rows that the query returned"),
    _required("size", BigInteger),
    _required("dropped", JSON, comment="reason -> rows"),
    _required("erased", BigInteger, server_default="0", comment="recipients who were erased since"),
    _required("fingerprint", Text),
    comment="its identifiers are in its segments and its holdout",
)

audience_groups = Table(
    "audience_groups",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("name", Text, primary_key=True, comment="a column of the query, such as platform"),
    Column("value", Text, primary_key=True),
    *_chunk(),
)

suppressed = Table(
    "suppressed",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column(
        "reason",
        Text,
        primary_key=True,
        comment="an exclusion, suppressed, already_sent, cap, priority, size_limit or holdout",
    ),
    *_chunk(),
    comment="recipients in the query's result that the launch leaves out; only the holdout belongs to the audience",
)

launch_sources = Table(
    "launch_sources",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    _key("source", ForeignKey("launches.launch_key"), primary_key=True),
    Column(
        "accepted", JSON, comment="verdicts in the source that make its audience; null: it only leaves out"
    ),
    _required("leaves_out", JSON, comment="verdicts in the source that a request leaves out"),
    Index(None, "source"),
    comment="other launches whose verdicts decide about the recipients of a launch, until each request is claimed",
)

segments = Table(
    "segments",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("language", Text, comment="of the request, if the campaign has several"),
    Column("variant", Text, comment="of the request, if the campaign has variants"),
    Column("time_zone", Text, comment="of the recipients, if each zone is sent separately"),
    Column("hour", Integer, comment="hour of the day to send at, in the recipients' time zone; null: any"),
    Column(
        "arm",
        String(8),
        comment="own_hour, control or explore, if recipients get messages at their own hours",
    ),
    _required("wave", Integer, server_default="1", comment="1 is sent first"),
    _required("size", BigInteger),
    _required("fingerprint", Text),
    Column("identifiers", LargeBinary, comment="null: the service chooses the recipients"),
    Column("template_values", LargeBinary, comment="each recipient's values for the variables of a template"),
    Column("body", LargeBinary, comment="the JSON of a request of your own; null: written from the campaign"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("launch_key", String(32), comment="null: all launches"),
    _required("kind", String(32), comment="gates, approved, rejected, held, released, stopped, ..."),
    _required("who", Text, comment="a person, or the part of Sendoff that decided"),
    Column("why", Text),
    Column("detail", JSON, comment="the facts behind it; counts, never identifiers"),
    _required("decided_at", UtcDateTime),
    Index(None, "launch_key", "id"),
    comment="appended, never changed",
)

not_launched = Table(
    "not_launched",
    metadata,
    _key("launch_key", primary_key=True, comment="the key that the launch would have"),
    _required("campaign", Text),
    _required("title", Text, comment="of the campaign"),
    _required("period_start", UtcDateTime),
    _required("period_end", UtcDateTime),
    Column("partition", Text),
    _required("resend", Integer),
    _required("checked_at", UtcDateTime),
    _required("why", Text, comment="counts and times, without identifiers"),
    Index(None, "checked_at"),
    comment="launches that were not made, such as because a gate was closed",
)

pauses = Table(
    "pauses",
    metadata,
    Column("scope", Text, primary_key=True, comment="all, moved, or connection:<name>"),
    _required("who", Text),
    _required("why", Text),
    _required("paused_at", UtcDateTime),
    comment="while a row exists, no request in its scope is sent",
)

rate_limits = Table(
    "rate_limits",
    metadata,
    Column("connection", Text, primary_key=True),
    _required("next_at", UtcDateTime, comment="no request is sent before this"),
    comment="when the workers of a connection may send their next request",
)

daily_recipients = Table(
    "daily_recipients",
    metadata,
    Column("connection", Text, primary_key=True),
    Column("day", Date, primary_key=True, comment="in UTC"),
    _required("recipients", BigInteger, comment="of requests that were made or are in doubt"),
    comment="what counts against the daily limit of a connection; empty for connections without one",
)

uploaded_lists = Table(
    "uploaded_lists",
    metadata,
    Column("name", Text, primary_key=True),
    _required("identified_by", Text),
    _required("kind", String(7), comment="integer or string"),
    _required("size", BigInteger),
    _required("uploaded_by", Text),
    _required("uploaded_at", UtcDateTime),
    comment="recipients to leave out, uploaded for campaigns to name",
)

uploaded_list_chunks = Table(
    "uploaded_list_chunks",
    metadata,
    Column("name", Text, ForeignKey("uploaded_lists.name", ondelete="CASCADE"), primary_key=True),
    *_chunk(),
)

suppression_state = Table(
    "suppression_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    _required("version", BigInteger),
    _required("stamp", String(32), comment="new with each change"),
    comment="one row; each change of the suppression list locks it first",
)

suppressions = Table(
    "suppressions",
    metadata,
    Column("scope", Text, primary_key=True, comment="account, everything, topic:<name>, or channel:<name>"),
    Column("identified_by", Text, primary_key=True),
    Column("identifier", Text, primary_key=True),
    Column("source", Text, primary_key=True, comment="where it came from, such as opt-out or csv"),
    Column("reason", Text),
    _required("author", Text),
    _required("added_at", UtcDateTime),
    Column("until", UtcDateTime, comment="null: without end"),
    Column("removed_at", UtcDateTime, comment="null: no one removed it"),
    Column("removed_by", Text),
    Column("launch_key", String(32), comment="the launch whose message led to an opt-out"),
    _required("version", BigInteger, comment="of the change that wrote the row"),
    Index(None, "version"),
    Index(None, "identified_by", "identifier"),
    Index(None, "launch_key"),
    comment="recipients who must not get messages",
)

erasures = Table(
    "erasures",
    metadata,
    Column("request", Integer, primary_key=True),
    _required("identified_by", Text),
    _required("people", BigInteger),
    _required("who", Text),
    _required("why", Text),
    _required("requested_at", UtcDateTime),
    _required("step", String(16), comment="the step that comes next"),
    _required("position", Text, comment="how far the step is"),
    Column("finished_at", UtcDateTime, comment="null: its identifiers are still in the queue"),
    comment="requests to erase people, without their identifiers",
)

erasure_queue = Table(
    "erasure_queue",
    metadata,
    Column("request", Integer, ForeignKey("erasures.request"), primary_key=True),
    Column("identifier", Text, primary_key=True),
    Column("number", BigInteger, comment="the identifier, if it is a whole number"),
    comment="the people of unfinished requests; empty afterwards",
)

erased = Table(
    "erased",
    metadata,
    Column("identified_by", Text, primary_key=True),
    Column("kind", String(7), primary_key=True, comment="integer or string"),
    Column("digest", String(64), primary_key=True, comment="HMAC-SHA256 of the identifier"),
    _required("bucket", Integer, comment="20 bits of a keyed hash, to find candidates fast"),
    _required("erased_at", UtcDateTime),
    comment="people who were erased, by keyed hashes",
)

erasure_state = Table(
    "erasure_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    _required("version", BigInteger, comment="goes up when people are erased"),
    Column(
        "secret_check", String(64), comment="shows whether a secret is the one that the hashes were made with"
    ),
    comment="one row",
)

dispatches = Table(
    "dispatches",
    metadata,
    _key("dispatch_key", primary_key=True),
    _key("launch_key", ForeignKey("launches.launch_key")),
    _required("segment", Integer),
    _required("wave", Integer, server_default="1", comment="of its segment"),
    _required("time_zone", Text, server_default="", comment="zone@hour of its segment; empty: none"),
    _required("state", OneOf(DispatchState)),
    _required("attempt", Integer, comment="number of the newest attempt; 0 before the first"),
    Column("worker", Text),
    Column("lease_until", UtcDateTime, comment="a worker with no outcome by then counts as dead"),
    Column("campaign_id", BigInteger, comment="the service's campaign.id, once known"),
    CheckConstraint(_one_of("state", DispatchState), name="state"),
    Index(None, "launch_key", "state", "time_zone", "wave", "segment"),
    Index(
        "ix_dispatches_doubtful", "state", "dispatch_key", sqlite_where=DOUBTFUL, postgresql_where=DOUBTFUL
    ),
    Index("ix_dispatches_in_flight", "lease_until", sqlite_where=IN_FLIGHT, postgresql_where=IN_FLIGHT),
)

attempts = Table(
    "attempts",
    metadata,
    _key("dispatch_key", ForeignKey("dispatches.dispatch_key"), primary_key=True),
    Column("number", Integer, primary_key=True),
    _required("worker", Text),
    _required("started_at", UtcDateTime, comment="when the intent was recorded, before the request"),
    comment="appended, never changed",
)

withheld = Table(
    "withheld",
    metadata,
    _key("dispatch_key", ForeignKey("dispatches.dispatch_key"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("reason", String(16), primary_key=True, comment="suppressed, or their verdict in another launch"),
    _required("size", BigInteger),
    _required("identifiers", LargeBinary),
    comment="recipients that an attempt left out when it was claimed",
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    _key("dispatch_key", ForeignKey("dispatches.dispatch_key")),
    _required("attempt", Integer),
    _required("kind", OneOf(OutcomeKind), comment="accepted, refused, not_processed, in_doubt, evidence"),
    Column("status", Integer, comment="HTTP status, if one was read"),
    Column("reason", Text),
    _required("recorded_at", UtcDateTime),
    Index(None, "dispatch_key"),
    comment="appended; only an erasure changes a row, if its reason names a person",
)

receivers = Table(
    "receivers",
    metadata,
    Column("receiver", Integer, primary_key=True),
    _required("name", Text),
    _required("started_at", UtcDateTime),
    _required("aggregated_to", BigInteger, comment="number of the last aggregated post-back"),
    comment="one row per receiver process; each numbers its post-backs in commit order",
)

post_backs = Table(
    "post_backs",
    metadata,
    Column("receiver", Integer, primary_key=True),
    Column("last", BigInteger, primary_key=True, comment="number of the last post-back"),
    Column("first", BigInteger, primary_key=True, comment="number of the first post-back"),
    Column(
        "received_at",
        UtcDateTime,
        primary_key=True,
        comment="when the newest was received; all came on one day in UTC, which on PostgreSQL has a partition",
    ),
    _required("block", LargeBinary, comment="the post-backs of one commit, compressed"),
    comment="one row per commit; the body of a post-back is kept only if it could not be read",
    postgresql_partition_by="RANGE (received_at)",
)

parked_post_backs = Table(
    "parked_post_backs",
    metadata,
    Column("receiver", Integer, primary_key=True),
    Column("first", BigInteger, primary_key=True, comment="number of the first post-back"),
    _required("last", BigInteger),
    _key("dispatch_key"),
    _required("post_backs", BigInteger),
    _required("newest_at", UtcDateTime, comment="when the newest was received"),
    comment="post-backs that cannot be counted until their dispatch, or the reply to it, is known",
)

dispatch_totals = Table(
    "dispatch_totals",
    metadata,
    _key("dispatch_key", primary_key=True),
    _required("deliveries", BigInteger),
    _required("opens", BigInteger),
    _required("anomalies", JSON, comment="kind -> post-backs"),
    _required("newest_at", UtcDateTime, comment="when the newest was received"),
    _required("is_evidence", Boolean, comment="a recipient of the dispatch responded"),
    _required("delivered", LargeBinary, comment="identifiers with a delivery"),
    _required("engaged", LargeBinary, comment="identifiers with an open or click"),
    _required("suspects", LargeBinary, comment="engaged, but a machine probably made each of their opens"),
    comment="the aggregated post-backs of one dispatch",
)

open_hours = Table(
    "open_hours",
    metadata,
    _key("dispatch_key", primary_key=True),
    Column("hour", Integer, primary_key=True, comment="of the day in UTC, 0 to 23"),
    _required("identifiers", LargeBinary),
    comment="recipients of a dispatch by the hours of their opens, without opens that a machine probably made",
)

timeline = Table(
    "timeline",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("wave", Integer, primary_key=True),
    Column("minute", UtcDateTime, primary_key=True),
    _required("deliveries", BigInteger),
    _required("opens", BigInteger),
)

feed_states = Table(
    "feed_states",
    metadata,
    Column("connection", Text, primary_key=True, comment="empty: the receiver, for all connections"),
    Column("kind", String(8), primary_key=True, comment="delivery, open, receiver or launch"),
    Column("platform", Text, primary_key=True, comment="empty: all platforms"),
    _required("state", OneOf(FeedHealth)),
    _required("why", Text, comment="counts, never identifiers"),
    _required("since", UtcDateTime),
    CheckConstraint(_one_of("state", (state for state in FeedHealth if state.is_certain)), name="state"),
    comment="the last certain state of each feed of post-backs; each change raises one alert",
)

verdicts = Table(
    "verdicts",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("verdict", OneOf(Verdict), primary_key=True),
    *_chunk(),
    CheckConstraint(_one_of("verdict", Verdict), name="verdict"),
)

reports = Table(
    "reports",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    _required("as_of", UtcDateTime),
    _revision("revision of the launch that it shows"),
    _required("figures", JSON),
)

comparisons = Table(
    "comparisons",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("what", Text, primary_key=True, comment="the outcome, such as converted"),
    _required("compared_at", UtcDateTime),
    _required("result", JSON, comment="counts, shares or means, and intervals"),
    comment="the newest comparison of what recipients did after a launch, by outcome",
)
