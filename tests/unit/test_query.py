"""What a database says, and what of it may be shown."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sendoff.query import Query, what_the_database_said

SQL = "SELECT device_id FROM devices WHERE name = 'Ann'"
URL = sa.make_url("postgresql://reader:hunter2@db.example.com:5433/shop")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        # names of the query and of the address stay
        ('ERROR:  column "device_id" is ambiguous', 'column "device_id" is ambiguous'),
        ('FATAL:  role "reader" does not exist', 'role "reader" does not exist'),
        ('server at "db.example.com", port 5433 failed', 'server at "db.example.com", port 5433 failed'),
        ("near \"'Ann'\": syntax error", "near …: syntax error"),  # quotes in quotes: better too little
        # what may be of a row goes
        (
            'invalid input syntax for type bigint: "bob@example.com"',
            "invalid input syntax for type bigint: …",
        ),
        ('value "4711" is out of range', "value … is out of range"),
        ('invalid: "north"n"sea"', "invalid: …"),  # a value with quotes of its own
        ('invalid: "device_id"sea"', "invalid: …"),
        (
            "Incorrect integer value: 'o'neil' for column 'device_id' at row 1",
            "Incorrect integer value: … at row 1",
        ),
        ("cannot convert bob@example.com of customer 123456", "cannot convert … of customer …"),
        # apostrophes are no quotes
        ("the server can't say why it won't", "the server can't say why it won't"),
        # further lines hold details of rows
        ("ERROR:  duplicate\nDETAIL:  Key (name)=(Bob)", "duplicate"),
        ("password hunter2 is wrong", "password … is wrong"),
        ("x" * 900, "x" * 300),
        ("", "OSError"),
    ],
)
def test_a_message_is_shown_without_data(said: str, shown: str) -> None:
    query = Query(SQL, {}, 1, URL)
    assert what_the_database_said(OSError(said), query) == f"the warehouse said: {shown}"


def test_a_query_does_not_show_its_parameters_or_the_password() -> None:
    shown = repr(Query(SQL, {"name": "s3cret"}, 1, URL))
    assert "s3cret" not in shown
    assert "hunter2" not in shown
