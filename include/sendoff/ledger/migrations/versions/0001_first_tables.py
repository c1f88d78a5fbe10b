"""Make the first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "launches",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("connection", sa.Text(), nullable=False),
        sa.Column("campaign", sa.Text(), nullable=False),
        sa.Column("period_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("period_end", sa.DateTime(timezone=True), nullable=False),
        sa.Column("resend", sa.Integer(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False, comment="the campaign as it was frozen, JSON"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "settled_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when quiet or complete; later post-backs count as late",
        ),
        sa.PrimaryKeyConstraint("launch_key", name=op.f("pk_launches")),
    )
    op.create_index(
        op.f("ix_launches_campaign_period_end"), "launches", ["campaign", "period_end"], unique=False
    )
    op.create_table(
        "post_backs",
        sa.Column("receiver", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False, comment="delivery or open"),
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=True, comment="the body's time"),
        sa.Column("device_id", sa.BigInteger(), nullable=True),
        sa.Column("profile_id", sa.BigInteger(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("send_id", sa.BigInteger(), nullable=True),
        sa.Column("campaign_id", sa.BigInteger(), nullable=True),
        sa.Column(
            "readable", sa.Boolean(), nullable=False, comment="false: in quarantine, the body says why"
        ),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("receiver", "number", name=op.f("pk_post_backs")),
    )
    op.create_table(
        "receivers",
        sa.Column("receiver", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "folded", sa.BigInteger(), nullable=False, comment="post-backs up to this number are folded"
        ),
        sa.PrimaryKeyConstraint("receiver", name=op.f("pk_receivers")),
        comment="one row for each receiver process, which numbers its post-backs in the order of its commits",
    )
    op.create_table(
        "returns",
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
            comment="somebody answered whom the dispatch was sent to",
        ),
        sa.Column("delivered", sa.LargeBinary(), nullable=False, comment="identifiers with a delivery"),
        sa.Column("engaged", sa.LargeBinary(), nullable=False, comment="identifiers with an open or click"),
        sa.PrimaryKeyConstraint("dispatch_key", name=op.f("pk_returns")),
        comment="what came back of one dispatch: its post-backs, folded",
    )
    op.create_table(
        "audience_groups",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, comment="a column of the query, such as platform"),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["launch_key"], ["launches.launch_key"], name=op.f("fk_audience_groups_launch_key")
        ),
        sa.PrimaryKeyConstraint("launch_key", "name", "value", name=op.f("pk_audience_groups")),
    )
    op.create_table(
        "audiences",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("identified_by", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=7), nullable=False, comment="integer or string"),
        sa.Column("rows", sa.BigInteger(), nullable=False, comment="rows that the query gave"),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.JSON(), nullable=False, comment="reason -> rows"),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["launch_key"], ["launches.launch_key"], name=op.f("fk_audiences_launch_key")
        ),
        sa.PrimaryKeyConstraint("launch_key", name=op.f("pk_audiences")),
    )
    op.create_table(
        "dispatches",
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column(
            "attempt",
            sa.Integer(),
            nullable=False,
            comment="number of the newest attempt; 0 before the first",
        ),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column(
            "lease_until",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="a worker silent beyond this counts as dead",
        ),
        sa.Column(
            "campaign_id", sa.BigInteger(), nullable=True, comment="the service's campaign.id, once known"
        ),
        sa.CheckConstraint(
            "state IN ('planned', 'in_flight', 'accepted', 'refused', 'in_doubt', 'written_off')",
            name=op.f("ck_dispatches_state"),
        ),
        sa.ForeignKeyConstraint(
            ["launch_key"], ["launches.launch_key"], name=op.f("fk_dispatches_launch_key")
        ),
        sa.PrimaryKeyConstraint("dispatch_key", name=op.f("pk_dispatches")),
    )
    op.create_index(
        "ix_dispatches_in_doubt",
        "dispatches",
        ["dispatch_key"],
        unique=False,
        sqlite_where=sa.text("state = 'in_doubt'"),
        postgresql_where=sa.text("state = 'in_doubt'"),
    )
    op.create_index(
        op.f("ix_dispatches_launch_key_state_segment"),
        "dispatches",
        ["launch_key", "state", "segment"],
        unique=False,
    )
    op.create_table(
        "reports",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["launch_key"], ["launches.launch_key"], name=op.f("fk_reports_launch_key")),
        sa.PrimaryKeyConstraint("launch_key", name=op.f("pk_reports")),
    )
    op.create_table(
        "segments",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "edition",
            sa.Text(),
            nullable=True,
            comment="the language of its request, where languages are sent apart",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["launch_key"], ["launches.launch_key"], name=op.f("fk_segments_launch_key")),
        sa.PrimaryKeyConstraint("launch_key", "number", name=op.f("pk_segments")),
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
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('engaged', 'delivered', 'missing', 'unknowable', 'in_doubt', 'not_sent')",
            name=op.f("ck_verdicts_verdict"),
        ),
        sa.ForeignKeyConstraint(["launch_key"], ["launches.launch_key"], name=op.f("fk_verdicts_launch_key")),
        sa.PrimaryKeyConstraint("launch_key", "verdict", name=op.f("pk_verdicts")),
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
            comment="the intent: committed before the request",
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
        sa.Column("status", sa.Integer(), nullable=True, comment="HTTP status, where one was read"),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["dispatch_key"], ["dispatches.dispatch_key"], name=op.f("fk_outcomes_dispatch_key")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outcomes")),
        comment="appended, never changed",
    )


def downgrade() -> None:
    op.drop_table("outcomes")
    op.drop_table("attempts")
    op.drop_table("verdicts")
    op.drop_table("timeline")
    op.drop_table("segments")
    op.drop_table("reports")
    op.drop_index(op.f("ix_dispatches_launch_key_state_segment"), table_name="dispatches")
    op.drop_index(
        "ix_dispatches_in_doubt",
        table_name="dispatches",
        sqlite_where=sa.text("state = 'in_doubt'"),
        postgresql_where=sa.text("state = 'in_doubt'"),
    )
    op.drop_table("dispatches")
    op.drop_table("audiences")
    op.drop_table("audience_groups")
    op.drop_table("returns")
    op.drop_table("receivers")
    op.drop_table("post_backs")
    op.drop_index(op.f("ix_launches_campaign_period_end"), table_name="launches")
    op.drop_table("launches")
