"""Add the launches that were not made."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
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


def downgrade() -> None:
    op.drop_table("not_launched")
