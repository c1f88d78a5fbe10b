"""Tell apart the launches for several partitions of one period."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("launches") as table:
        table.add_column(
            sa.Column(
                "partition",
                sa.Text(),
                comment="the part of the period's data that it is for, where that is cut",
            )
        )


def downgrade() -> None:
    with op.batch_alter_table("launches") as table:
        table.drop_column("partition")
