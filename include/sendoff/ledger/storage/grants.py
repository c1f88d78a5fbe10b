"""The least rights of a PostgreSQL user on the ledger, as SQL for its owner to run.

The user that migrates owns the tables and needs no grant. The role ``receiver`` is for the receiver. ``worker`` is for
Airflow's workers and people at the command line. ``reader`` is for statistics, such as ``sendoff metrics``, and cannot
read recipients, messages, or the contents of post-backs.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from sendoff.ledger.storage.schema import (
    attempts,
    audience_groups,
    audiences,
    decisions,
    erased,
    erasure_queue,
    erasure_state,
    metadata,
    outcomes,
    pauses,
    post_backs,
    receivers,
    segments,
    suppressed,
    suppression_state,
    suppressions,
)

ROLES = ("receiver", "worker", "reader")

_APPENDED = "SELECT, INSERT"
_WORKER = {
    **dict.fromkeys((attempts, outcomes, decisions), _APPENDED),
    **dict.fromkeys((audiences, audience_groups, suppressed, segments), _APPENDED),  # frozen
    post_backs: "SELECT, UPDATE (block)",  # without erased people
    receivers: "SELECT, INSERT, UPDATE (aggregated_to)",  # an INSERT of no rows tests whether the ledger can be written
}
"""The rights of a worker on these tables. It has all rights on the others."""

_WORDS = frozenset({("launches", "definition"), ("suppressions", "identifier"), ("suppressions", "reason")})
"""Columns with texts of messages, identifiers, or words about a person."""

_quote = postgresql.dialect().identifier_preparer.quote_identifier  # type: ignore[no-untyped-call]


def grant_statements(role: str, user: str, schema: str = "public") -> list[str]:
    """Return the statements that give a user exactly the rights of a role on the tables of a schema.

    They cover only the current tables, so run them again after each migration. Raise ValueError for an unknown role.
    """
    if role not in ROLES:
        raise ValueError(f"{role!r} is not a role. Use one of: {', '.join(ROLES)}")
    where, who = _quote(schema), _quote(user)
    rights = {"receiver": _of_receiver, "worker": _of_worker, "reader": _of_reader}[role]()
    return [
        f"REVOKE CREATE ON SCHEMA {where} FROM PUBLIC, {who};",
        f"REVOKE ALL ON ALL TABLES IN SCHEMA {where} FROM PUBLIC, {who};",
        f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA {where} FROM PUBLIC, {who};",
        f"GRANT USAGE ON SCHEMA {where} TO {who};",
        f"GRANT SELECT ON TABLE {where}.alembic_version TO {who};",  # to learn that a newer Sendoff made the tables
        *(f"GRANT {right} ON {kind} {where}.{_quote(name)} TO {who};" for right, kind, name in rights),
    ]


def _of_receiver() -> Iterator[tuple[str, str, str]]:
    yield "INSERT", "TABLE", post_backs.name
    yield "INSERT, SELECT (receiver, name, started_at)", "TABLE", receivers.name  # to check its own number
    yield from _numbers(receivers)
    for table in (suppressions, suppression_state):  # an opt-out is added, or an ended entry begins again
        yield "SELECT, INSERT, UPDATE", "TABLE", table.name
    for table in (erased, erasure_state, pauses):  # no opt-out of an erased person or in a moved ledger
        yield "SELECT", "TABLE", table.name


def _of_worker() -> Iterator[tuple[str, str, str]]:
    for table in metadata.sorted_tables:
        yield _WORKER.get(table, "SELECT, INSERT, UPDATE, DELETE"), "TABLE", table.name
        if table is not receivers:
            yield from _numbers(table)


def _of_reader() -> Iterator[tuple[str, str, str]]:
    for table in metadata.sorted_tables:
        columns = [
            _quote(column.name)
            for column in table.columns
            if not isinstance(column.type, sa.LargeBinary) and (table.name, column.name) not in _WORDS
        ]
        if table is not erasure_queue:
            yield f"SELECT ({', '.join(columns)})", "TABLE", table.name


def _numbers(table: sa.Table) -> Iterator[tuple[str, str, str]]:
    if (column := table.autoincrement_column) is not None:
        yield "USAGE", "SEQUENCE", f"{table.name}_{column.name}_seq"
