"""Create the first tables."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_DAYS = 7  # how many partitions to create; `sendoff maintain` creates the next ones
_DOUBTFUL = sa.text("(state = 'in_doubt' OR state = 'written_off' OR state = 'planned')")
_IN_FLIGHT = sa.text("state = 'in_flight'")


def upgrade() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch_key", sa.String(length=32), comment="null: all launches"),
        sa.Column(
            "kind",
            sa.String(length=32),
            nullable=False,
            comment="gates, approved, rejected, held, released, stopped, ...",
        ),
        sa.Column("who", sa.Text(), nullable=False, comment="a person, or the part of Sendoff that decided"),
        sa.Column("why", sa.Text()),
        sa.Column("detail", sa.JSON(), comment="the facts behind it; counts, never identifiers"),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        comment="appended, never changed",
    )
    op.create_index(op.f("ix_decisions_launch_key_id"), "decisions", ["launch_key", "id"])
    op.create_table(
        "daily_recipients",
        sa.Column("connection", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False, comment="in UTC"),
        sa.Column(
            "recipients",
            sa.BigInteger(),
            nullable=False,
            comment="of requests that were made or are in doubt",
        ),
        sa.PrimaryKeyConstraint("connection", "day", name=op.f("pk_daily_recipients")),
        comment="what counts against the daily limit of a connection; empty for connections without one",
    )
    op.create_table(
        "dispatch_totals",
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column("deliveries", sa.BigInteger(), nullable=False),
        sa.Column("opens", sa.BigInteger(), nullable=False),
        sa.Column("anomalies", sa.JSON(), nullable=False, comment="kind -> post-backs"),
        sa.Column(
            "newest_at", sa.DateTime(timezone=True), nullable=False, comment="when the newest was received"
        ),
        sa.Column(
            "is_evidence",
            sa.Boolean(),
            nullable=False,
            comment="a recipient of the dispatch responded",
        ),
        sa.Column("delivered", sa.LargeBinary(), nullable=False, comment="identifiers with a delivery"),
        sa.Column("engaged", sa.LargeBinary(), nullable=False, comment="identifiers with an open or click"),
        sa.Column(
            "suspects",
            sa.LargeBinary(),
            nullable=False,
            comment="engaged, but a machine probably made each of their opens",
        ),
        sa.PrimaryKeyConstraint("dispatch_key", name=op.f("pk_dispatch_totals")),
        comment="the aggregated post-backs of one dispatch",
    )
    op.create_table(
        "open_hours",
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column(
            "hour", sa.Integer(), autoincrement=False, nullable=False, comment="of the day in UTC, 0 to 23"
        ),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("dispatch_key", "hour", name=op.f("pk_open_hours")),
        comment="recipients of a dispatch by the hours of their opens, without opens that a machine probably made",
    )
    op.create_table(
        "erasures",
        sa.Column("request", sa.Integer(), nullable=False),
        sa.Column("identified_by", sa.Text(), nullable=False),
        sa.Column("people", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("step", sa.String(length=16), nullable=False, comment="the step that comes next"),
        sa.Column("position", sa.Text(), nullable=False, comment="how far the step is"),
        sa.Column(
            "finished_at",
            sa.DateTime(timezone=True),
            comment="null: its identifiers are still in the queue",
        ),
        sa.PrimaryKeyConstraint("request", name=op.f("pk_erasures")),
        comment="requests to erase people, without their identifiers",
    )
    op.create_table(
        "erasure_queue",
        sa.Column("request", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("identifier", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), comment="the identifier, if it is a whole number"),
        sa.ForeignKeyConstraint(["request"], ["erasures.request"], name=op.f("fk_erasure_queue_request")),
        sa.PrimaryKeyConstraint("request", "identifier", name=op.f("pk_erasure_queue")),
        comment="the people of unfinished requests; empty afterwards",
    )
    op.create_table(
        "erased",
        sa.Column("identified_by", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=7), nullable=False, comment="integer or string"),
        sa.Column("digest", sa.String(length=64), nullable=False, comment="HMAC-SHA256 of the identifier"),
        sa.Column(
            "bucket", sa.Integer(), nullable=False, comment="20 bits of a keyed hash, to find candidates fast"
        ),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("identified_by", "kind", "digest", name=op.f("pk_erased")),
        comment="people who were erased, by keyed hashes",
    )
    op.create_table(
        "erasure_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False, comment="goes up when people are erased"),
        sa.Column(
            "secret_check",
            sa.String(length=64),
            comment="shows whether a secret is the one that the hashes were made with",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_erasure_state")),
        comment="one row",
    )
    op.execute("INSERT INTO erasure_state (id, version) VALUES (1, 0)")
    op.create_table(
        "feed_states",
        sa.Column(
            "connection", sa.Text(), nullable=False, comment="empty: the receiver, for all connections"
        ),
        sa.Column("kind", sa.String(length=8), nullable=False, comment="delivery, open or receiver"),
        sa.Column("platform", sa.Text(), nullable=False, comment="empty: all platforms"),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("why", sa.Text(), nullable=False, comment="counts, never identifiers"),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('as expected', 'degraded', 'silent')", name=op.f("ck_feed_states_state")
        ),
        sa.PrimaryKeyConstraint("connection", "kind", "platform", name=op.f("pk_feed_states")),
        comment="the last certain state of each feed of post-backs; each change raises one alert",
    )
    op.create_table(
        "launches",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("connection", sa.Text(), nullable=False),
        sa.Column("campaign", sa.Text(), nullable=False),
        sa.Column("period_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("period_end", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "partition", sa.Text(), comment="which part of the period's data it is for, if that is divided"
        ),
        sa.Column("resend", sa.Integer(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False, comment="the frozen campaign as JSON"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "settled_at",
            sa.DateTime(timezone=True),
            comment="when it was complete or quiet; later post-backs count as late",
        ),
        sa.Column(
            "state",
            sa.String(length=16),
            server_default="released",
            nullable=False,
            comment="only a released launch is sent",
        ),
        sa.Column(
            "wave",
            sa.Integer(),
            server_default="1",
            nullable=False,
            comment="the newest wave that may be sent",
        ),
        sa.Column("winner", sa.Text(), comment="the variant of segments without one, once it is decided"),
        sa.Column(
            "comparison_number",
            sa.Integer(),
            comment="its number among the campaign's launches with variants, a holdout or own hours, as frozen",
        ),
        sa.Column("due_at", sa.DateTime(timezone=True), comment="when it was due; lateness counts from here"),
        sa.Column(
            "sends_at",
            sa.DateTime(timezone=True),
            comment="when the service has sent it at the latest; null: recurring",
        ),
        sa.Column(
            "revision",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="counts changes that a report may show: aggregated post-backs, resolved doubts",
        ),
        sa.Column(
            "tables_as_of",
            sa.DateTime(timezone=True),
            comment="time of the report that its DAG last wrote into the warehouse",
        ),
        sa.CheckConstraint(
            "state IN ('held', 'released', 'paused', 'rejected', 'stopped')", name=op.f("ck_launches_state")
        ),
        sa.PrimaryKeyConstraint("launch_key", name=op.f("pk_launches")),
    )
    op.create_index(op.f("ix_launches_campaign_period_end"), "launches", ["campaign", "period_end"])
    op.create_index(op.f("ix_launches_sends_at"), "launches", ["sends_at"])
    op.create_table(
        "not_launched",
        sa.Column("launch_key", sa.String(32), nullable=False, comment="the key that the launch would have"),
        sa.Column("campaign", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False, comment="of the campaign"),
        sa.Column("period_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("period_end", sa.DateTime(timezone=True), nullable=False),
        sa.Column("partition", sa.Text()),
        sa.Column("resend", sa.Integer(), nullable=False),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("why", sa.Text(), nullable=False, comment="counts and times, without identifiers"),
        sa.PrimaryKeyConstraint("launch_key", name=op.f("pk_not_launched")),
        comment="launches that were not made, such as because a gate was closed",
    )
    op.create_index(op.f("ix_not_launched_checked_at"), "not_launched", ["checked_at"])
    op.create_table(
        "parked_post_backs",
        sa.Column("receiver", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "first",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="number of the first post-back",
        ),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column("post_backs", sa.BigInteger(), nullable=False),
        sa.Column(
            "newest_at", sa.DateTime(timezone=True), nullable=False, comment="when the newest was received"
        ),
        sa.PrimaryKeyConstraint("receiver", "first", name=op.f("pk_parked_post_backs")),
        comment="post-backs that cannot be counted until their dispatch, or the reply to it, is known",
    )
    op.create_table(
        "pauses",
        sa.Column("scope", sa.Text(), nullable=False, comment="all, or connection:<name>"),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("scope", name=op.f("pk_pauses")),
        comment="while a row exists, no request in its scope is sent",
    )
    op.create_table(
        "post_backs",
        sa.Column("receiver", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "last",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="number of the last post-back",
        ),
        sa.Column(
            "first",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="number of the first post-back",
        ),
        sa.Column(
            "received_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when the newest was received; all came on one day in UTC, which on PostgreSQL has a partition",
        ),
        sa.Column(
            "block", sa.LargeBinary(), nullable=False, comment="the post-backs of one commit, compressed"
        ),
        sa.PrimaryKeyConstraint("receiver", "last", "first", "received_at", name=op.f("pk_post_backs")),
        comment="one row per commit; the body of a post-back is kept only if it could not be read",
        postgresql_partition_by="RANGE (received_at)",
    )
    op.create_table(
        "rate_limits",
        sa.Column("connection", sa.Text(), nullable=False),
        sa.Column(
            "next_at", sa.DateTime(timezone=True), nullable=False, comment="no request is sent before this"
        ),
        sa.PrimaryKeyConstraint("connection", name=op.f("pk_rate_limits")),
        comment="when the workers of a connection may send their next request",
    )
    op.create_table(
        "receivers",
        sa.Column("receiver", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "aggregated_to",
            sa.BigInteger(),
            nullable=False,
            comment="number of the last aggregated post-back",
        ),
        sa.PrimaryKeyConstraint("receiver", name=op.f("pk_receivers")),
        comment="one row per receiver process; each numbers its post-backs in commit order",
    )
    op.create_table(
        "uploaded_lists",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("identified_by", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=7), nullable=False, comment="integer or string"),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("uploaded_by", sa.Text(), nullable=False),
        sa.Column("uploaded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_uploaded_lists")),
        comment="recipients to leave out, uploaded for campaigns to name",
    )
    op.create_table(
        "suppression_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("stamp", sa.String(length=32), nullable=False, comment="new with each change"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suppression_state")),
        comment="one row; each change of the suppression list locks it first",
    )
    op.create_table(
        "suppressions",
        sa.Column(
            "scope", sa.Text(), nullable=False, comment="account, everything, topic:<name>, or channel:<name>"
        ),
        sa.Column("identified_by", sa.Text(), nullable=False),
        sa.Column("identifier", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False, comment="where it came from, such as opt-out or csv"),
        sa.Column("reason", sa.Text()),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), comment="null: without end"),
        sa.Column("removed_at", sa.DateTime(timezone=True), comment="null: no one removed it"),
        sa.Column("removed_by", sa.Text()),
        sa.Column("launch_key", sa.String(length=32), comment="the launch whose message led to an opt-out"),
        sa.Column("version", sa.BigInteger(), nullable=False, comment="of the change that wrote the row"),
        sa.PrimaryKeyConstraint(
            "scope", "identified_by", "identifier", "source", name=op.f("pk_suppressions")
        ),
        comment="recipients who must not get messages",
    )
    op.create_index(op.f("ix_suppressions_version"), "suppressions", ["version"])
    op.create_index(
        op.f("ix_suppressions_identified_by_identifier"), "suppressions", ["identified_by", "identifier"]
    )
    op.create_index(op.f("ix_suppressions_launch_key"), "suppressions", ["launch_key"])
    op.create_table(
        "audience_groups",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, comment="a column of the query, such as platform"),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("chunk", sa.Integer(), server_default="0", autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="of this chunk"),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["launch_key"], ["launches.launch_key"], name=op.f("fk_audience_groups_launch_key")
        ),
        sa.PrimaryKeyConstraint("launch_key", "name", "value", "chunk", name=op.f("pk_audience_groups")),
    )
    op.create_table(
        "audiences",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("identified_by", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=7), nullable=False, comment="integer or string"),
        sa.Column(
            "is_chosen_by_service",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="then no query runs, and the number of recipients is unknown",
        ),
        sa.Column("rows", sa.BigInteger(), nullable=False, comment="rows that the query returned"),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.JSON(), nullable=False, comment="reason -> rows"),
        sa.Column(
            "erased",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="recipients who were erased since",
        ),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["launch_key"], ["launches.launch_key"], name=op.f("fk_audiences_launch_key")
        ),
        sa.PrimaryKeyConstraint("launch_key", name=op.f("pk_audiences")),
        comment="its identifiers are in its segments and its holdout",
    )
    op.create_table(
        "dispatches",
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("wave", sa.Integer(), server_default="1", nullable=False, comment="of its segment"),
        sa.Column(
            "time_zone",
            sa.Text(),
            server_default="",
            nullable=False,
            comment="zone@hour of its segment; empty: none",
        ),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column(
            "attempt",
            sa.Integer(),
            nullable=False,
            comment="number of the newest attempt; 0 before the first",
        ),
        sa.Column("worker", sa.Text()),
        sa.Column(
            "lease_until",
            sa.DateTime(timezone=True),
            comment="a worker with no outcome by then counts as dead",
        ),
        sa.Column("campaign_id", sa.BigInteger(), comment="the service's campaign.id, once known"),
        sa.CheckConstraint(
            "state IN ('planned', 'in_flight', 'accepted', 'refused', 'in_doubt', 'written_off', 'suppressed')",
            name=op.f("ck_dispatches_state"),
        ),
        sa.ForeignKeyConstraint(
            ["launch_key"], ["launches.launch_key"], name=op.f("fk_dispatches_launch_key")
        ),
        sa.PrimaryKeyConstraint("dispatch_key", name=op.f("pk_dispatches")),
    )
    # Created first: of several indexes with the same cost, SQLite uses the newest.
    op.create_index(
        op.f("ix_dispatches_launch_key_state_time_zone_wave_segment"),
        "dispatches",
        ["launch_key", "state", "time_zone", "wave", "segment"],
    )
    op.create_index(
        "ix_dispatches_doubtful",
        "dispatches",
        ["state", "dispatch_key"],
        sqlite_where=_DOUBTFUL,
        postgresql_where=_DOUBTFUL,
    )
    op.create_index(
        "ix_dispatches_in_flight",
        "dispatches",
        ["lease_until"],
        sqlite_where=_IN_FLIGHT,
        postgresql_where=_IN_FLIGHT,
    )
    op.create_table(
        "reports",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "revision",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="revision of the launch that it shows",
        ),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["launch_key"], ["launches.launch_key"], name=op.f("fk_reports_launch_key")),
        sa.PrimaryKeyConstraint("launch_key", name=op.f("pk_reports")),
    )
    op.create_table(
        "comparisons",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("what", sa.Text(), nullable=False, comment="the outcome, such as converted"),
        sa.Column("compared_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False, comment="counts, shares or means, and intervals"),
        sa.ForeignKeyConstraint(
            ["launch_key"], ["launches.launch_key"], name=op.f("fk_comparisons_launch_key")
        ),
        sa.PrimaryKeyConstraint("launch_key", "what", name=op.f("pk_comparisons")),
        comment="the newest comparison of what recipients did after a launch, by outcome",
    )
    op.create_table(
        "launch_sources",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column(
            "accepted",
            sa.JSON(),
            comment="verdicts in the source that make its audience; null: it only leaves out",
        ),
        sa.Column(
            "leaves_out",
            sa.JSON(),
            nullable=False,
            comment="verdicts in the source that a request leaves out",
        ),
        sa.ForeignKeyConstraint(
            ["launch_key"], ["launches.launch_key"], name=op.f("fk_launch_sources_launch_key")
        ),
        sa.ForeignKeyConstraint(["source"], ["launches.launch_key"], name=op.f("fk_launch_sources_source")),
        sa.PrimaryKeyConstraint("launch_key", "source", name=op.f("pk_launch_sources")),
        comment="other launches whose verdicts decide about the recipients of a launch, until each request is claimed",
    )
    op.create_table(
        "segments",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("language", sa.Text(), comment="of the request, if the campaign has several"),
        sa.Column("variant", sa.Text(), comment="of the request, if the campaign has variants"),
        sa.Column("time_zone", sa.Text(), comment="of the recipients, if each zone is sent separately"),
        sa.Column(
            "hour",
            sa.Integer(),
            comment="hour of the day to send at, in the recipients' time zone; null: any",
        ),
        sa.Column(
            "arm",
            sa.String(length=8),
            comment="own_hour, control or explore, if recipients get messages at their own hours",
        ),
        sa.Column("wave", sa.Integer(), server_default="1", nullable=False, comment="1 is sent first"),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("identifiers", sa.LargeBinary(), comment="null: the service chooses the recipients"),
        sa.Column(
            "template_values",
            sa.LargeBinary(),
            comment="each recipient's values for the variables of a template",
        ),
        sa.Column(
            "body",
            sa.LargeBinary(),
            comment="the JSON of a request of your own; null: written from the campaign",
        ),
        sa.ForeignKeyConstraint(["launch_key"], ["launches.launch_key"], name=op.f("fk_segments_launch_key")),
        sa.PrimaryKeyConstraint("launch_key", "number", name=op.f("pk_segments")),
    )
    op.create_table(
        "suppressed",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column(
            "reason", sa.Text(), nullable=False, comment="an exclusion, cap, priority, size_limit or holdout"
        ),
        sa.Column("chunk", sa.Integer(), server_default="0", autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="of this chunk"),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["launch_key"], ["launches.launch_key"], name=op.f("fk_suppressed_launch_key")
        ),
        sa.PrimaryKeyConstraint("launch_key", "reason", "chunk", name=op.f("pk_suppressed")),
        comment="recipients in the query's result that the launch leaves out; only the holdout belongs to the audience",
    )
    op.create_table(
        "uploaded_list_chunks",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("chunk", sa.Integer(), server_default="0", autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="of this chunk"),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["name"],
            ["uploaded_lists.name"],
            name=op.f("fk_uploaded_list_chunks_name"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("name", "chunk", name=op.f("pk_uploaded_list_chunks")),
    )
    op.create_table(
        "timeline",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deliveries", sa.BigInteger(), nullable=False),
        sa.Column("opens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["launch_key"], ["launches.launch_key"], name=op.f("fk_timeline_launch_key")),
        sa.PrimaryKeyConstraint("launch_key", "minute", name=op.f("pk_timeline")),
    )
    op.create_table(
        "verdicts",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("chunk", sa.Integer(), server_default="0", autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="of this chunk"),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('engaged', 'delivered', 'missing', 'unknowable', 'in_doubt', 'not_sent')",
            name=op.f("ck_verdicts_verdict"),
        ),
        sa.ForeignKeyConstraint(["launch_key"], ["launches.launch_key"], name=op.f("fk_verdicts_launch_key")),
        sa.PrimaryKeyConstraint("launch_key", "verdict", "chunk", name=op.f("pk_verdicts")),
    )
    op.create_table(
        "attempts",
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when the intent was recorded, before the request",
        ),
        sa.ForeignKeyConstraint(
            ["dispatch_key"], ["dispatches.dispatch_key"], name=op.f("fk_attempts_dispatch_key")
        ),
        sa.PrimaryKeyConstraint("dispatch_key", "number", name=op.f("pk_attempts")),
        comment="appended, never changed",
    )
    op.create_table(
        "outcomes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column(
            "kind",
            sa.String(length=16),
            nullable=False,
            comment="accepted, refused, not_processed, in_doubt, evidence",
        ),
        sa.Column("status", sa.Integer(), comment="HTTP status, if one was read"),
        sa.Column("reason", sa.Text()),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["dispatch_key"], ["dispatches.dispatch_key"], name=op.f("fk_outcomes_dispatch_key")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outcomes")),
        comment="appended; only an erasure changes a row, if its reason names a person",
    )
    op.create_index(op.f("ix_outcomes_dispatch_key"), "outcomes", ["dispatch_key"])
    op.create_table(
        "withheld",
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "reason",
            sa.String(length=16),
            nullable=False,
            comment="suppressed, or their verdict in another launch",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["dispatch_key"], ["dispatches.dispatch_key"], name=op.f("fk_withheld_dispatch_key")
        ),
        sa.PrimaryKeyConstraint("dispatch_key", "attempt", "reason", name=op.f("pk_withheld")),
        comment="recipients that an attempt left out when it was claimed",
    )
    if op.get_bind().dialect.name == "postgresql":
        _make_partitions()


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
