"""Create the first tables."""

from datetime import UTC, datetime, timedelta
from typing import Any

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    false,
    text,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_COMPRESSED = {
    "audience_groups": ("identifiers",),
    "dispatch_totals": ("delivered", "engaged", "suspects"),
    "open_hours": ("identifiers",),
    "post_backs": ("block",),
    "segments": ("identifiers", "template_values"),
    "suppressed": ("identifiers",),
    "uploaded_list_chunks": ("identifiers",),
    "verdicts": ("identifiers",),
    "withheld": ("identifiers",),
}
"""Columns whose values PostgreSQL would try to compress again, which takes time and saves nothing."""
_DAYS = 7  # how many partitions to create; `sendoff maintain` creates the next ones
_DOUBTFUL = text("(state = 'in_doubt' OR state = 'written_off' OR state = 'planned')")
_IN_FLIGHT = text("state = 'in_flight'")
_KEY = String(32)
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_TIME = DateTime(timezone=True)


def _required(*args: Any, **options: Any) -> Column[Any]:
    """Return a column that is never null."""
    return Column(*args, nullable=False, **options)


def _of_launch() -> Column[str]:
    return Column("launch_key", _KEY, ForeignKey("launches.launch_key"), primary_key=True)


def _of_dispatch() -> Column[str]:
    return Column("dispatch_key", _KEY, ForeignKey("dispatches.dispatch_key"), primary_key=True)


def _chunk() -> tuple[Column[Any], ...]:
    return (
        Column("chunk", Integer, primary_key=True, server_default="0"),
        _required("size", BigInteger, comment="of this chunk"),
        _required("identifiers", LargeBinary),
    )


def _index(table: str, *columns: str, name: str | None = None, where: Any = None) -> None:
    """Create an index of a table that has several: of those with the same cost, SQLite uses the newest."""
    name = f"ix_{table}_{name or '_'.join(columns)}"
    op.create_index(op.f(name), table, columns, sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    op.create_table(
        "decisions",
        Column("id", _NUMBER, primary_key=True),
        Column("launch_key", _KEY, comment="null: all launches"),
        _required("kind", String(32), comment="gates, approved, rejected, held, released, stopped, ..."),
        _required("who", Text, comment="a person, or the part of Sendoff that decided"),
        Column("why", Text),
        Column("detail", JSON, comment="the facts behind it; counts, never identifiers"),
        _required("decided_at", _TIME),
        Index(None, "launch_key", "id"),
        comment="appended, never changed",
    )
    op.create_table(
        "daily_recipients",
        Column("connection", Text, primary_key=True),
        Column("day", Date, primary_key=True, comment="in UTC"),
        _required("recipients", BigInteger, comment="of requests that were made or are in doubt"),
        comment="what counts against the daily limit of a connection; empty for connections without one",
    )
    op.create_table(
        "dispatch_totals",
        Column("dispatch_key", _KEY, primary_key=True),
        _required("deliveries", BigInteger),
        _required("opens", BigInteger),
        _required("anomalies", JSON, comment="kind -> post-backs"),
        _required("newest_at", _TIME, comment="when the newest was received"),
        _required("is_evidence", Boolean, comment="a recipient of the dispatch responded"),
        _required("delivered", LargeBinary, comment="identifiers with a delivery"),
        _required("engaged", LargeBinary, comment="identifiers with an open or click"),
        _required(
            "suspects", LargeBinary, comment="engaged, but a machine probably made each of their opens"
        ),
        comment="the aggregated post-backs of one dispatch",
    )
    op.create_table(
        "open_hours",
        Column("dispatch_key", _KEY, primary_key=True),
        Column("hour", Integer, primary_key=True, comment="of the day in UTC, 0 to 23"),
        _required("identifiers", LargeBinary),
        comment="recipients of a dispatch by the hours of their opens, without opens that a machine probably made",
    )
    op.create_table(
        "erasures",
        Column("request", Integer, primary_key=True),
        _required("identified_by", Text),
        _required("people", BigInteger),
        _required("who", Text),
        _required("why", Text),
        _required("requested_at", _TIME),
        _required("step", String(16), comment="the step that comes next"),
        _required("position", Text, comment="how far the step is"),
        Column("finished_at", _TIME, comment="null: its identifiers are still in the queue"),
        comment="requests to erase people, without their identifiers",
    )
    op.create_table(
        "erasure_queue",
        Column("request", Integer, ForeignKey("erasures.request"), primary_key=True),
        Column("identifier", Text, primary_key=True),
        Column("number", BigInteger, comment="the identifier, if it is a whole number"),
        comment="the people of unfinished requests; empty afterwards",
    )
    op.create_table(
        "erased",
        Column("identified_by", Text, primary_key=True),
        Column("kind", String(7), primary_key=True, comment="integer or string"),
        Column("digest", String(64), primary_key=True, comment="HMAC-SHA256 of the identifier"),
        _required("bucket", Integer, comment="20 bits of a keyed hash, to find candidates fast"),
        _required("erased_at", _TIME),
        comment="people who were erased, by keyed hashes",
    )
    op.create_table(
        "erasure_state",
        Column("id", Integer, primary_key=True, autoincrement=False),
        _required("version", BigInteger, comment="goes up when people are erased"),
        Column(
            "secret_check",
            String(64),
            comment="shows whether a secret is the one that the hashes were made with",
        ),
        comment="one row",
    )
    op.execute("INSERT INTO erasure_state (id, version) VALUES (1, 0)")
    op.create_table(
        "feed_states",
        Column("connection", Text, primary_key=True, comment="empty: the receiver, for all connections"),
        Column("kind", String(8), primary_key=True, comment="delivery, open, receiver or launch"),
        Column("platform", Text, primary_key=True, comment="empty: all platforms"),
        _required("state", String(16)),
        _required("why", Text, comment="counts, never identifiers"),
        _required("since", _TIME),
        CheckConstraint("state IN ('as expected', 'degraded', 'silent')", name="state"),
        comment="the last certain state of each feed of post-backs; each change raises one alert",
    )
    op.create_table(
        "launches",
        Column("launch_key", _KEY, primary_key=True),
        _required("connection", Text),
        _required("campaign", Text),
        _required("period_start", _TIME),
        _required("period_end", _TIME),
        Column("partition", Text, comment="which part of the period's data it is for, if that is divided"),
        _required("resend", Integer),
        _required("definition", Text, comment="the frozen campaign as JSON"),
        _required("created_at", _TIME),
        Column("settled_at", _TIME, comment="when it was complete or quiet; later post-backs count as late"),
        _required("state", String(16), server_default="released", comment="only a released launch is sent"),
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
        Column("due_at", _TIME, comment="when it was due; lateness counts from here"),
        Column("sends_at", _TIME, comment="when the service has sent it at the latest; null: recurring"),
        _required(
            "revision",
            BigInteger,
            server_default="0",
            comment="counts changes that a report may show: aggregated post-backs, resolved doubts",
        ),
        Column(
            "tables_as_of", _TIME, comment="time of the report that its DAG last wrote into the warehouse"
        ),
        Column(
            "recipients_deleted_before",
            _TIME,
            comment="the limit when its recipients were deleted; null: they were not",
        ),
        CheckConstraint("state IN ('held', 'released', 'paused', 'rejected', 'stopped')", name="state"),
    )
    _index("launches", "campaign", "period_end")
    _index("launches", "sends_at")
    op.create_table(
        "not_launched",
        Column("launch_key", _KEY, primary_key=True, comment="the key that the launch would have"),
        _required("campaign", Text),
        _required("title", Text, comment="of the campaign"),
        _required("period_start", _TIME),
        _required("period_end", _TIME),
        Column("partition", Text),
        _required("resend", Integer),
        _required("checked_at", _TIME),
        _required("why", Text, comment="counts and times, without identifiers"),
        Index(None, "checked_at"),
        comment="launches that were not made, such as because a gate was closed",
    )
    op.create_table(
        "parked_post_backs",
        Column("receiver", Integer, primary_key=True),
        Column("first", BigInteger, primary_key=True, comment="number of the first post-back"),
        _required("last", BigInteger),
        _required("dispatch_key", _KEY),
        _required("post_backs", BigInteger),
        _required("newest_at", _TIME, comment="when the newest was received"),
        comment="post-backs that cannot be counted until their dispatch, or the reply to it, is known",
    )
    op.create_table(
        "pauses",
        Column("scope", Text, primary_key=True, comment="all, moved, or connection:<name>"),
        _required("who", Text),
        _required("why", Text),
        _required("paused_at", _TIME),
        comment="while a row exists, no request in its scope is sent",
    )
    op.create_table(
        "post_backs",
        Column("receiver", Integer, primary_key=True),
        Column("last", BigInteger, primary_key=True, comment="number of the last post-back"),
        Column("first", BigInteger, primary_key=True, comment="number of the first post-back"),
        Column(
            "received_at",
            _TIME,
            primary_key=True,
            comment="when the newest was received; all came on one day in UTC, which on PostgreSQL has a partition",
        ),
        _required("block", LargeBinary, comment="the post-backs of one commit, compressed"),
        comment="one row per commit; the body of a post-back is kept only if it could not be read",
        postgresql_partition_by="RANGE (received_at)",
    )
    op.create_table(
        "rate_limits",
        Column("connection", Text, primary_key=True),
        _required("next_at", _TIME, comment="no request is sent before this"),
        comment="when the workers of a connection may send their next request",
    )
    op.create_table(
        "receivers",
        Column("receiver", Integer, primary_key=True),
        _required("name", Text),
        _required("started_at", _TIME),
        _required("aggregated_to", BigInteger, comment="number of the last aggregated post-back"),
        comment="one row per receiver process; each numbers its post-backs in commit order",
    )
    op.create_table(
        "uploaded_lists",
        Column("name", Text, primary_key=True),
        _required("identified_by", Text),
        _required("kind", String(7), comment="integer or string"),
        _required("size", BigInteger),
        _required("uploaded_by", Text),
        _required("uploaded_at", _TIME),
        comment="recipients to leave out, uploaded for campaigns to name",
    )
    op.create_table(
        "suppression_state",
        Column("id", Integer, primary_key=True, autoincrement=False),
        _required("version", BigInteger),
        _required("stamp", String(32), comment="new with each change"),
        comment="one row; each change of the suppression list locks it first",
    )
    op.create_table(
        "suppressions",
        Column(
            "scope", Text, primary_key=True, comment="account, everything, topic:<name>, or channel:<name>"
        ),
        Column("identified_by", Text, primary_key=True),
        Column("identifier", Text, primary_key=True),
        Column("source", Text, primary_key=True, comment="where it came from, such as opt-out or csv"),
        Column("reason", Text),
        _required("author", Text),
        _required("added_at", _TIME),
        Column("until", _TIME, comment="null: without end"),
        Column("removed_at", _TIME, comment="null: no one removed it"),
        Column("removed_by", Text),
        Column("launch_key", _KEY, comment="the launch whose message led to an opt-out"),
        _required("version", BigInteger, comment="of the change that wrote the row"),
        comment="recipients who must not get messages",
    )
    _index("suppressions", "version")
    _index("suppressions", "identified_by", "identifier")
    _index("suppressions", "launch_key")
    op.create_table(
        "audience_groups",
        _of_launch(),
        Column("name", Text, primary_key=True, comment="a column of the query, such as platform"),
        Column("value", Text, primary_key=True),
        *_chunk(),
    )
    op.create_table(
        "audiences",
        _of_launch(),
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
    op.create_table(
        "dispatches",
        Column("dispatch_key", _KEY, primary_key=True),
        _required("launch_key", _KEY, ForeignKey("launches.launch_key")),
        _required("segment", Integer),
        _required("wave", Integer, server_default="1", comment="of its segment"),
        _required("time_zone", Text, server_default="", comment="zone@hour of its segment; empty: none"),
        _required("state", String(16)),
        _required("attempt", Integer, comment="number of the newest attempt; 0 before the first"),
        Column("worker", Text),
        Column("lease_until", _TIME, comment="a worker with no outcome by then counts as dead"),
        Column("campaign_id", BigInteger, comment="the service's campaign.id, once known"),
        CheckConstraint(
            "state IN ('planned', 'in_flight', 'accepted', 'refused', 'in_doubt', 'written_off', 'suppressed')",
            name="state",
        ),
    )
    _index("dispatches", "launch_key", "state", "time_zone", "wave", "segment")
    _index("dispatches", "state", "dispatch_key", name="doubtful", where=_DOUBTFUL)
    _index("dispatches", "lease_until", name="in_flight", where=_IN_FLIGHT)
    op.create_table(
        "reports",
        _of_launch(),
        _required("as_of", _TIME),
        _required("revision", BigInteger, server_default="0", comment="revision of the launch that it shows"),
        _required("figures", JSON),
    )
    op.create_table(
        "comparisons",
        _of_launch(),
        Column("what", Text, primary_key=True, comment="the outcome, such as converted"),
        _required("compared_at", _TIME),
        _required("result", JSON, comment="counts, shares or means, and intervals"),
        comment="the newest comparison of what recipients did after a launch, by outcome",
    )
    op.create_table(
        "launch_sources",
        _of_launch(),
        Column("source", _KEY, ForeignKey("launches.launch_key"), primary_key=True),
        Column(
            "accepted",
            JSON,
            comment="verdicts in the source that make its audience; null: it only leaves out",
        ),
        _required("leaves_out", JSON, comment="verdicts in the source that a request leaves out"),
        comment="other launches whose verdicts decide about the recipients of a launch, until each request is claimed",
    )
    _index("launch_sources", "source")
    op.create_table(
        "segments",
        _of_launch(),
        Column("number", Integer, primary_key=True),
        Column("language", Text, comment="of the request, if the campaign has several"),
        Column("variant", Text, comment="of the request, if the campaign has variants"),
        Column("time_zone", Text, comment="of the recipients, if each zone is sent separately"),
        Column(
            "hour", Integer, comment="hour of the day to send at, in the recipients' time zone; null: any"
        ),
        Column(
            "arm",
            String(8),
            comment="own_hour, control or explore, if recipients get messages at their own hours",
        ),
        _required("wave", Integer, server_default="1", comment="1 is sent first"),
        _required("size", BigInteger),
        _required("fingerprint", Text),
        Column("identifiers", LargeBinary, comment="null: the service chooses the recipients"),
        Column(
            "template_values", LargeBinary, comment="each recipient's values for the variables of a template"
        ),
        Column(
            "body", LargeBinary, comment="the JSON of a request of your own; null: written from the campaign"
        ),
    )
    op.create_table(
        "suppressed",
        _of_launch(),
        Column(
            "reason",
            Text,
            primary_key=True,
            comment="an exclusion, suppressed, already_sent, cap, priority, size_limit or holdout",
        ),
        *_chunk(),
        comment="recipients in the query's result that the launch leaves out; only the holdout belongs to the audience",
    )
    op.create_table(
        "uploaded_list_chunks",
        Column("name", Text, ForeignKey("uploaded_lists.name", ondelete="CASCADE"), primary_key=True),
        *_chunk(),
    )
    op.create_table(
        "timeline",
        _of_launch(),
        Column("wave", Integer, primary_key=True),
        Column("minute", _TIME, primary_key=True),
        _required("deliveries", BigInteger),
        _required("opens", BigInteger),
    )
    op.create_table(
        "verdicts",
        _of_launch(),
        Column("verdict", String(16), primary_key=True),
        *_chunk(),
        CheckConstraint(
            "verdict IN ('engaged', 'delivered', 'missing', 'unknowable', 'in_doubt', 'not_sent')",
            name="verdict",
        ),
    )
    op.create_table(
        "attempts",
        _of_dispatch(),
        Column("number", Integer, primary_key=True),
        _required("worker", Text),
        _required("started_at", _TIME, comment="when the intent was recorded, before the request"),
        comment="appended, never changed",
    )
    op.create_table(
        "outcomes",
        Column("id", _NUMBER, primary_key=True),
        _required("dispatch_key", _KEY, ForeignKey("dispatches.dispatch_key")),
        _required("attempt", Integer),
        _required("kind", String(16), comment="accepted, refused, not_processed, in_doubt, evidence"),
        Column("status", Integer, comment="HTTP status, if one was read"),
        Column("reason", Text),
        _required("recorded_at", _TIME),
        Index(None, "dispatch_key"),
        comment="appended; only an erasure changes a row, if its reason names a person",
    )
    op.create_table(
        "withheld",
        _of_dispatch(),
        Column("attempt", Integer, primary_key=True),
        Column(
            "reason", String(16), primary_key=True, comment="suppressed, or their verdict in another launch"
        ),
        _required("size", BigInteger),
        _required("identifiers", LargeBinary),
        comment="recipients that an attempt left out when it was claimed",
    )
    if op.get_bind().dialect.name == "postgresql":
        for table, columns in _COMPRESSED.items():
            changes = ", ".join(f"ALTER {column} SET STORAGE EXTERNAL" for column in columns)
            op.execute(f"ALTER TABLE {table} {changes}")
        _make_partitions()  # they take the storage of their table


def _make_partitions() -> None:
    today = datetime.now(UTC).date()
    for day in (today + timedelta(days=number) for number in range(_DAYS)):
        op.execute(
            f"CREATE TABLE post_backs_{day:%Y_%m_%d} PARTITION OF post_backs "
            f"FOR VALUES FROM ('{day}T00:00:00Z') TO ('{day + timedelta(days=1)}T00:00:00Z')"
        )
    op.execute("CREATE TABLE post_backs_rest PARTITION OF post_backs DEFAULT")


def downgrade() -> None:
    raise NotImplementedError("there is no revision before the first")
