"""Add the JSON of requests that someone wrote."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "segments",
        sa.Column(
            "body",
            sa.LargeBinary(),
            comment="the JSON of a request of your own; null: written from the campaign",
        ),
    )


def downgrade() -> None:
    with op.batch_alter_table("segments") as segments:
        segments.drop_column("body")
