"""Keep which post-backs wait for their dispatch, and which sources of post-backs are silent."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "set_aside",
        sa.Column("receiver", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "first",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="number of the first of them",
        ),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("dispatch_key", sa.String(length=32), nullable=False),
        sa.Column("post_backs", sa.BigInteger(), nullable=False),
        sa.Column(
            "newest_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when the newest was received",
        ),
        sa.PrimaryKeyConstraint("receiver", "first", name=op.f("pk_set_aside")),
        comment="post-backs that wait for their dispatch, or for its reply, to be held against",
    )
    op.create_table(
        "silences",
        sa.Column("connection", sa.Text(), nullable=False, comment="empty: the receiver, of all connections"),
        sa.Column("kind", sa.String(length=8), nullable=False, comment="delivery, open or receiver"),
        sa.Column("platform", sa.Text(), nullable=False, comment="empty: everybody"),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("why", sa.Text(), nullable=False, comment="counts, never identifiers"),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('as expected', 'thin', 'silent')", name=op.f("ck_silences_state")),
        sa.PrimaryKeyConstraint("connection", "kind", "platform", name=op.f("pk_silences")),
        comment="what was last certain of each source of post-backs; one alarm is given for each change",
    )


def downgrade() -> None:
    op.drop_table("silences")
    op.drop_table("set_aside")
