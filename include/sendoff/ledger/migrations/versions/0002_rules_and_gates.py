"""Remember who was left out and why, who decided what, and what tells segments apart."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("launches") as table:
        table.add_column(
            sa.Column(
                "state",
                sa.String(length=16),
                nullable=False,
                server_default="released",
                comment="held until somebody agrees; only what is released is sent",
            )
        )
        table.add_column(
            sa.Column(
                "wave",
                sa.Integer(),
                nullable=False,
                server_default="1",
                comment="the newest wave that may be sent",
            )
        )
        table.add_column(
            sa.Column(
                "due_at",
                sa.DateTime(timezone=True),
                comment="when it was to be made; lateness counts from here",
            )
        )
        table.add_column(
            sa.Column(
                "sends_at",
                sa.DateTime(timezone=True),
                comment="by when the service has sent; null: again and again",
            )
        )
        table.create_check_constraint(
            op.f("ck_launches_state"), "state IN ('held', 'released', 'rejected', 'stopped')"
        )
        table.create_index(op.f("ix_launches_sends_at"), ["sends_at"], unique=False)
    op.execute(  # launches that repeat have no moment by which they were sent
        "UPDATE launches SET sends_at = COALESCE(settled_at, created_at) "
        """WHERE definition NOT LIKE '%"kind":"recurring"%' AND definition NOT LIKE '%"kind":"triggered"%'"""
    )
    with op.batch_alter_table("audiences") as table:
        table.add_column(
            sa.Column(
                "is_chosen_by_service",
                sa.Boolean(),
                nullable=False,
                server_default=sa.false(),
                comment="then there is no query, and nobody knows how many they are",
            )
        )
    with op.batch_alter_table("segments") as table:
        table.alter_column(
            "edition",
            new_column_name="language",
            existing_type=sa.Text(),
            comment="of its request, where languages are sent apart",
            existing_comment="the language of its request, where languages are sent apart",
        )
        table.alter_column(
            "identifiers",
            existing_type=sa.LargeBinary(),
            nullable=True,
            comment="null: the service chooses the people",
        )
        table.add_column(sa.Column("variant", sa.Text(), comment="of its request, where there are variants"))
        table.add_column(
            sa.Column("time_zone", sa.Text(), comment="of its people, where zones are sent apart")
        )
        table.add_column(
            sa.Column("wave", sa.Integer(), nullable=False, server_default="1", comment="1 is sent first")
        )
        table.add_column(
            sa.Column(
                "parameters",
                sa.LargeBinary(),
                comment="each person's own values for the variables of a template",
            )
        )
    op.create_table(
        "left_out",
        sa.Column("launch_key", sa.String(length=32), nullable=False),
        sa.Column(
            "reason",
            sa.Text(),
            nullable=False,
            comment="an exclusion, cap, priority, size_limit or holdout",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["launch_key"], ["launches.launch_key"], name=op.f("fk_left_out_launch_key")),
        sa.PrimaryKeyConstraint("launch_key", "reason", name=op.f("pk_left_out")),
        comment="whom the query named and is not sent to; of these, only the holdout is part of the audience",
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch_key", sa.String(length=32), nullable=True, comment="null: every launch"),
        sa.Column(
            "kind",
            sa.String(length=16),
            nullable=False,
            comment="gates, approved, rejected, held, released, stopped, ...",
        ),
        sa.Column("who", sa.Text(), nullable=False, comment="a person, or what decided by itself"),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column(
            "detail", sa.JSON(), nullable=True, comment="what it was decided on; counts, never identifiers"
        ),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        comment="appended, never changed",
    )
    op.create_index(op.f("ix_decisions_launch_key_id"), "decisions", ["launch_key", "id"], unique=False)
    op.create_table(
        "lists",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("identified_by", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=7), nullable=False, comment="integer or string"),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.Column("uploaded_by", sa.Text(), nullable=False),
        sa.Column("uploaded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lists")),
        comment="people to leave out, uploaded for campaigns to name",
    )


def downgrade() -> None:
    for name in ("lists", "decisions", "left_out"):
        op.drop_table(name)
    with op.batch_alter_table("segments") as table:
        for column in ("parameters", "wave", "time_zone", "variant"):
            table.drop_column(column)
        table.alter_column("identifiers", existing_type=sa.LargeBinary(), nullable=False)
        table.alter_column("language", new_column_name="edition", existing_type=sa.Text())
    with op.batch_alter_table("audiences") as table:
        table.drop_column("is_chosen_by_service")
    with op.batch_alter_table("launches") as table:
        table.drop_index(op.f("ix_launches_sends_at"))
        table.drop_constraint(op.f("ck_launches_state"), type_="check")
        for column in ("sends_at", "due_at", "wave", "state"):
            table.drop_column(column)
