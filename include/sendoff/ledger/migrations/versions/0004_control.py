"""Pause launches, brake all of them, share a rate, and find what evidence can still resolve."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_DOUBTFUL = sa.text("(state IN ('in_doubt', 'written_off') OR (state = 'planned' AND attempt > 0))")
_IN_DOUBT = sa.text("state = 'in_doubt'")


def upgrade() -> None:
    with op.batch_alter_table("launches") as table:
        table.drop_constraint(op.f("ck_launches_state"), type_="check")
        table.create_check_constraint(
            op.f("ck_launches_state"), "state IN ('held', 'released', 'paused', 'rejected', 'stopped')"
        )
    with op.batch_alter_table("decisions") as table:
        table.alter_column(
            "kind",
            existing_type=sa.String(length=16),
            type_=sa.String(length=32),
            existing_nullable=False,
            existing_comment="gates, approved, rejected, held, released, stopped, ...",
        )
    op.create_table(
        "brakes",
        sa.Column("scope", sa.Text(), nullable=False, comment="all, or connection:<name>"),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("scope", name=op.f("pk_brakes")),
        comment="while a row is there, no request of its scope is made",
    )
    op.create_table(
        "rates",
        sa.Column("connection", sa.Text(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False, comment="no request is made before"),
        sa.PrimaryKeyConstraint("connection", name=op.f("pk_rates")),
        comment="when the workers of a connection, all together, may make their next request",
    )
    op.create_index(op.f("ix_outcomes_dispatch_key"), "outcomes", ["dispatch_key"], unique=False)
    op.drop_index("ix_dispatches_in_doubt", table_name="dispatches")
    op.create_index(
        "ix_dispatches_doubtful",
        "dispatches",
        ["dispatch_key"],
        unique=False,
        sqlite_where=_DOUBTFUL,
        postgresql_where=_DOUBTFUL,
    )


def downgrade() -> None:
    op.drop_index("ix_dispatches_doubtful", table_name="dispatches")
    op.create_index(
        "ix_dispatches_in_doubt",
        "dispatches",
        ["dispatch_key"],
        unique=False,
        sqlite_where=_IN_DOUBT,
        postgresql_where=_IN_DOUBT,
    )
    op.drop_index(op.f("ix_outcomes_dispatch_key"), table_name="outcomes")
    op.drop_table("rates")
    op.drop_table("brakes")
    op.execute("DELETE FROM decisions WHERE length(kind) > 16")
    with op.batch_alter_table("decisions") as table:
        table.alter_column(
            "kind",
            existing_type=sa.String(length=32),
            type_=sa.String(length=16),
            existing_nullable=False,
            existing_comment="gates, approved, rejected, held, released, stopped, ...",
        )
    op.execute("UPDATE launches SET state = 'held' WHERE state = 'paused'")
    with op.batch_alter_table("launches") as table:
        table.drop_constraint(op.f("ck_launches_state"), type_="check")
        table.create_check_constraint(
            op.f("ck_launches_state"), "state IN ('held', 'released', 'rejected', 'stopped')"
        )
