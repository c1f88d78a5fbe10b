"""The tables of the ledger, the same on SQLite and PostgreSQL.

Read from top to bottom as a launch lives: what it froze, what was tried, what came back, what was concluded.
Identifiers stand in blobs in the form of :mod:`sendoff.audience.identifiers`, never one row for each.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
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
    text,
)
from sqlalchemy.types import TypeDecorator

from sendoff.figures import VERDICTS

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

LAUNCH_STATES = ("held", "released", "paused", "rejected", "stopped")
DISPATCH_STATES = ("planned", "in_flight", "accepted", "refused", "in_doubt", "written_off")
SILENCE_STATES = ("as expected", "thin", "silent")
DOUBTFUL = text("(state = 'in_doubt' OR state = 'written_off' OR state = 'planned')")
"""The dispatches that evidence can still show to be accepted; of those never tried, after a backup was restored.

Not as ``IN``: from that, SQLite does not see that it covers each of the states.
"""
IN_FLIGHT = text("state = 'in_flight'")
"""The dispatches whose workers may be dead."""


class Moment(TypeDecorator[datetime]):
    """An aware datetime in UTC, on databases that know time zones and on those that do not."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Refuse a naive datetime; store the others in UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("the ledger takes aware datetimes only")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Give an aware datetime in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _key(name: str, *args: object, **kwargs: object) -> Column[str]:
    return Column(name, String(32), *args, nullable=False, **kwargs)  # type: ignore[arg-type]


def _part() -> Column[int]:
    """Give the number of one value of several that hold a set together, since a database's values have a limit."""
    return Column("part", Integer, primary_key=True, autoincrement=False, server_default="0")


launches = Table(
    "launches",
    metadata,
    _key("launch_key", primary_key=True),
    Column("connection", Text, nullable=False),
    Column("campaign", Text, nullable=False),
    Column("period_start", Moment, nullable=False),
    Column("period_end", Moment, nullable=False),
    Column("partition", Text, comment="the part of the period's data that it is for, where that is cut"),
    Column("resend", Integer, nullable=False),
    Column("definition", Text, nullable=False, comment="the campaign as it was frozen, JSON"),
    Column("created_at", Moment, nullable=False),
    Column("settled_at", Moment, comment="when quiet or complete; later post-backs count as late"),
    Column(
        "state",
        String(16),
        nullable=False,
        server_default="released",
        comment="held until somebody agrees; only what is released is sent",
    ),
    Column("wave", Integer, nullable=False, server_default="1", comment="the newest wave that may be sent"),
    Column("due_at", Moment, comment="when it was to be made; lateness counts from here"),
    Column("sends_at", Moment, comment="by when the service has sent; null: again and again"),
    Column(
        "news",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="counts what happened that a report may show: post-backs that were folded, doubts that were resolved",
    ),
    CheckConstraint(f"state IN {LAUNCH_STATES}", name="state"),
    Index(None, "campaign", "period_end"),
    Index(None, "sends_at"),
)

audiences = Table(
    "audiences",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("identified_by", Text, nullable=False),
    Column("kind", String(7), nullable=False, comment="integer or string"),
    Column(
        "is_chosen_by_service",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="then there is no query, and nobody knows how many they are",
    ),
    Column("rows", BigInteger, nullable=False, comment="rows that the query gave"),
    Column("size", BigInteger, nullable=False),
    Column("dropped", JSON, nullable=False, comment="reason -> rows"),
    Column("fingerprint", Text, nullable=False),
    comment="its people are those of its segments and of its holdout",
)

audience_groups = Table(
    "audience_groups",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("name", Text, primary_key=True, comment="a column of the query, such as platform"),
    Column("value", Text, primary_key=True),
    _part(),
    Column("size", BigInteger, nullable=False, comment="of this part"),
    Column("identifiers", LargeBinary, nullable=False),
)

left_out = Table(
    "left_out",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("reason", Text, primary_key=True, comment="an exclusion, cap, priority, size_limit or holdout"),
    _part(),
    Column("size", BigInteger, nullable=False, comment="of this part"),
    Column("identifiers", LargeBinary, nullable=False),
    comment="whom the query named and is not sent to; of these, only the holdout is part of the audience",
)

segments = Table(
    "segments",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("language", Text, comment="of its request, where languages are sent apart"),
    Column("variant", Text, comment="of its request, where there are variants"),
    Column("time_zone", Text, comment="of its people, where zones are sent apart"),
    Column("wave", Integer, nullable=False, server_default="1", comment="1 is sent first"),
    Column("size", BigInteger, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("identifiers", LargeBinary, comment="null: the service chooses the people"),
    Column("parameters", LargeBinary, comment="each person's own values for the variables of a template"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("launch_key", String(32), comment="null: every launch"),
    Column(
        "kind", String(32), nullable=False, comment="gates, approved, rejected, held, released, stopped, ..."
    ),
    Column("who", Text, nullable=False, comment="a person, or what decided by itself"),
    Column("why", Text),
    Column("detail", JSON, comment="what it was decided on; counts, never identifiers"),
    Column("decided_at", Moment, nullable=False),
    Index(None, "launch_key", "id"),
    comment="appended, never changed",
)

brakes = Table(
    "brakes",
    metadata,
    Column("scope", Text, primary_key=True, comment="all, or connection:<name>"),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("set_at", Moment, nullable=False),
    comment="while a row is there, no request of its scope is made",
)

rates = Table(
    "rates",
    metadata,
    Column("connection", Text, primary_key=True),
    Column("next_at", Moment, nullable=False, comment="no request is made before"),
    comment="when the workers of a connection, all together, may make their next request",
)

lists = Table(
    "lists",
    metadata,
    Column("name", Text, primary_key=True),
    Column("identified_by", Text, nullable=False),
    Column("kind", String(7), nullable=False, comment="integer or string"),
    Column("size", BigInteger, nullable=False),
    Column("uploaded_by", Text, nullable=False),
    Column("uploaded_at", Moment, nullable=False),
    comment="people to leave out, uploaded for campaigns to name",
)

list_parts = Table(
    "list_parts",
    metadata,
    Column("name", Text, ForeignKey("lists.name", ondelete="CASCADE"), primary_key=True),
    _part(),
    Column("size", BigInteger, nullable=False, comment="of this part"),
    Column("identifiers", LargeBinary, nullable=False),
)

dispatches = Table(
    "dispatches",
    metadata,
    _key("dispatch_key", primary_key=True),
    _key("launch_key", ForeignKey("launches.launch_key")),
    Column("segment", Integer, nullable=False),
    Column("wave", Integer, nullable=False, server_default="1", comment="of its segment"),
    Column("time_zone", Text, nullable=False, server_default="", comment="of its segment; empty: none"),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False, comment="number of the newest attempt; 0 before the first"),
    Column("worker", Text),
    Column("lease_until", Moment, comment="a worker silent beyond this counts as dead"),
    Column("campaign_id", BigInteger, comment="the service's campaign.id, once known"),
    CheckConstraint(f"state IN {DISPATCH_STATES}", name="state"),
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
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("worker", Text, nullable=False),
    Column("started_at", Moment, nullable=False, comment="the intent: committed before the request"),
    comment="appended, never changed",
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    _key("dispatch_key", ForeignKey("dispatches.dispatch_key")),
    Column("attempt", Integer, nullable=False),
    Column(
        "kind", String(16), nullable=False, comment="accepted, refused, not_processed, in_doubt, evidence"
    ),
    Column("status", Integer, comment="HTTP status, where one was read"),
    Column("reason", Text),
    Column("recorded_at", Moment, nullable=False),
    Index(None, "dispatch_key"),
    comment="appended, never changed",
)

receivers = Table(
    "receivers",
    metadata,
    Column("receiver", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("folded", BigInteger, nullable=False, comment="post-backs up to this number are folded"),
    comment="one row for each receiver process, which numbers its post-backs in the order of its commits",
)

post_backs = Table(
    "post_backs",
    metadata,
    Column("receiver", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(8), nullable=False, comment="delivery or open"),
    _key("dispatch_key"),
    Column("received_at", Moment, primary_key=True, comment="by which they are kept apart, and forgotten"),
    Column("occurred_at", Moment, comment="the body's time"),
    Column("device_id", BigInteger),
    Column("profile_id", BigInteger),
    Column("user_id", Text),
    Column("send_id", BigInteger),
    Column("campaign_id", BigInteger),
    Column("readable", Boolean, nullable=False, comment="false: in quarantine, the body says why"),
    Column("body", LargeBinary, nullable=False),
    postgresql_partition_by="RANGE (received_at)",
)

set_aside = Table(
    "set_aside",
    metadata,
    Column("receiver", Integer, primary_key=True, autoincrement=False),
    Column("first", BigInteger, primary_key=True, autoincrement=False, comment="number of the first of them"),
    Column("last", BigInteger, nullable=False),
    _key("dispatch_key"),
    Column("post_backs", BigInteger, nullable=False),
    Column("newest_at", Moment, nullable=False, comment="when the newest was received"),
    comment="post-backs that wait for their dispatch, or for its reply, to be held against",
)

returns = Table(
    "returns",
    metadata,
    _key("dispatch_key", primary_key=True),
    Column("deliveries", BigInteger, nullable=False),
    Column("opens", BigInteger, nullable=False),
    Column("anomalies", JSON, nullable=False, comment="kind -> post-backs"),
    Column("newest_at", Moment, nullable=False, comment="when the newest was received"),
    Column("is_evidence", Boolean, nullable=False, comment="somebody answered whom the dispatch was sent to"),
    Column("delivered", LargeBinary, nullable=False, comment="identifiers with a delivery"),
    Column("engaged", LargeBinary, nullable=False, comment="identifiers with an open or click"),
    comment="what came back of one dispatch: its post-backs, folded",
)

timeline = Table(
    "timeline",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("minute", Moment, primary_key=True),
    Column("deliveries", BigInteger, nullable=False),
    Column("opens", BigInteger, nullable=False),
)

silences = Table(
    "silences",
    metadata,
    Column("connection", Text, primary_key=True, comment="empty: the receiver, of all connections"),
    Column("kind", String(8), primary_key=True, comment="delivery, open or receiver"),
    Column("platform", Text, primary_key=True, comment="empty: everybody"),
    Column("state", String(16), nullable=False),
    Column("why", Text, nullable=False, comment="counts, never identifiers"),
    Column("since", Moment, nullable=False),
    CheckConstraint(f"state IN {SILENCE_STATES}", name="state"),
    comment="what was last certain of each source of post-backs; one alarm is given for each change",
)

verdicts = Table(
    "verdicts",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("verdict", String(16), primary_key=True),
    _part(),
    Column("size", BigInteger, nullable=False, comment="of this part"),
    Column("identifiers", LargeBinary, nullable=False),
    CheckConstraint(f"verdict IN {VERDICTS}", name="verdict"),
)

reports = Table(
    "reports",
    metadata,
    _key("launch_key", ForeignKey("launches.launch_key"), primary_key=True),
    Column("as_of", Moment, nullable=False),
    Column(
        "news", BigInteger, nullable=False, server_default="0", comment="those of the launch that it shows"
    ),
    Column("figures", JSON, nullable=False),
)
