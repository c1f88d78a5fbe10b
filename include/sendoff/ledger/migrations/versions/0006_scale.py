"""Hold large sets in parts, count a launch's news, find planned dispatches by zone, keep post-backs by day.

An audience's people are from now on those of its segments and of its holdout, which they always were as well.
"""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_IN_PARTS = {
    "audience_groups": ["launch_key", "name", "value"],
    "left_out": ["launch_key", "reason"],
    "verdicts": ["launch_key", "verdict"],
}
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_DAYS = 7  # for which partitions are made; `sendoff maintain` goes on
_DOUBTFUL = sa.text("(state = 'in_doubt' OR state = 'written_off' OR state = 'planned')")
_IN_FLIGHT = sa.text("state = 'in_flight'")
_BY_WHICH = "by which they are kept apart, and forgotten"


def upgrade() -> None:
    with op.batch_alter_table("audiences") as table:
        table.drop_column("identifiers")
    if op.get_bind().dialect.supports_comments:
        op.create_table_comment("audiences", "its people are those of its segments and of its holdout")
    for name, key in _IN_PARTS.items():
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column("part", sa.Integer(), nullable=False, server_default="0"))
            table.alter_column("size", existing_type=sa.BigInteger(), comment="of this part")
            table.drop_constraint(op.f(f"pk_{name}"), type_="primary")
            table.create_primary_key(op.f(f"pk_{name}"), [*key, "part"])
    op.create_table(
        "list_parts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), autoincrement=False, nullable=False, server_default="0"),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="of this part"),
        sa.Column("identifiers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["name"], ["lists.name"], name=op.f("fk_list_parts_name"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("name", "part", name=op.f("pk_list_parts")),
    )
    op.execute("INSERT INTO list_parts (name, size, identifiers) SELECT name, size, identifiers FROM lists")
    op.drop_column("lists", "identifiers")  # not by copying the table: that would empty its parts
    with op.batch_alter_table("launches") as table:
        table.add_column(
            sa.Column(
                "news",
                sa.BigInteger(),
                nullable=False,
                server_default="0",
                comment="counts what happened that a report may show: post-backs that were folded, doubts that were "
                "resolved",
            )
        )
    with op.batch_alter_table("reports") as table:
        table.add_column(
            sa.Column(
                "news",
                sa.BigInteger(),
                nullable=False,
                server_default="0",
                comment="those of the launch that it shows",
            )
        )
    op.execute("UPDATE launches SET news = 1")  # so that each is reconciled once more
    with op.batch_alter_table("dispatches") as table:
        table.add_column(
            sa.Column("wave", sa.Integer(), nullable=False, server_default="1", comment="of its segment")
        )
        table.add_column(
            sa.Column(
                "time_zone",
                sa.Text(),
                nullable=False,
                server_default="",
                comment="of its segment; empty: none",
            )
        )
        table.drop_index(op.f("ix_dispatches_launch_key_state_segment"))
    op.execute(
        "UPDATE dispatches SET (wave, time_zone) = (SELECT segments.wave, coalesce(segments.time_zone, '') "
        "FROM segments WHERE segments.launch_key = dispatches.launch_key AND segments.number = dispatches.segment)"
    )
    op.create_index(
        op.f("ix_dispatches_launch_key_state_time_zone_wave_segment"),
        "dispatches",
        ["launch_key", "state", "time_zone", "wave", "segment"],
    )
    op.drop_index("ix_dispatches_doubtful", table_name="dispatches")
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
    op.execute(  # an answer that came late, while a later attempt was in flight, was passed over
        "UPDATE dispatches SET state = 'accepted' WHERE state IN ('planned', 'refused', 'in_doubt') "
        "AND EXISTS (SELECT 1 FROM outcomes WHERE outcomes.dispatch_key = dispatches.dispatch_key "
        "AND outcomes.kind IN ('accepted', 'evidence'))"
    )
    _keep_post_backs_apart()


def _keep_post_backs_apart() -> None:
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table("post_backs") as table:
            table.drop_constraint(op.f("pk_post_backs"), type_="primary")
            table.alter_column(
                "received_at", existing_type=sa.DateTime(timezone=True), nullable=False, comment=_BY_WHICH
            )
            table.create_primary_key(op.f("pk_post_backs"), ["receiver", "number", "received_at"])
        return
    # What is there already becomes one partition, and is not copied; the days that follow get one each.
    newest = op.get_bind().scalar(sa.text("SELECT max(received_at) FROM post_backs"))
    first = max(datetime.now(UTC), newest or _LONG_AGO).astimezone(UTC).date()
    first += timedelta(days=0 if newest is None else 1)
    before = f"post_backs_before_{first:%Y_%m_%d}"
    op.execute(f"ALTER TABLE post_backs RENAME TO {before}")
    op.execute(f"ALTER TABLE {before} DROP CONSTRAINT pk_post_backs")
    op.execute(f"CREATE TABLE post_backs (LIKE {before} INCLUDING COMMENTS) PARTITION BY RANGE (received_at)")
    op.create_primary_key(op.f("pk_post_backs"), "post_backs", ["receiver", "number", "received_at"])
    op.execute(f"COMMENT ON COLUMN post_backs.received_at IS '{_BY_WHICH}'")
    if newest is None:
        op.execute(f"DROP TABLE {before}")
    else:
        op.execute(
            f"ALTER TABLE post_backs ATTACH PARTITION {before} FOR VALUES FROM (MINVALUE) TO ('{first}T00:00:00Z')"
        )
    for day in (first + timedelta(days=number) for number in range(_DAYS)):
        op.execute(
            f"CREATE TABLE post_backs_{day:%Y_%m_%d} PARTITION OF post_backs "
            f"FOR VALUES FROM ('{day}T00:00:00Z') TO ('{day + timedelta(days=1)}T00:00:00Z')"
        )
    op.execute("CREATE TABLE post_backs_rest PARTITION OF post_backs DEFAULT")


def downgrade() -> None:
    raise NotImplementedError("sets that stand in parts do not fit where they stood before; restore a backup")
