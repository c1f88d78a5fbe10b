"""Parameters of queries, and the parts of a database's messages that may be shown."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect

from sendoff.errors import QueryError
from sendoff.warehouse.query import (
    Parameter,
    Query,
    database_message,
    named_parameters,
    returned_columns,
    texts_of,
    without_signatures,
)
from sendoff.warehouse.sql_lexer import dialects, tokens

SQL = "SELECT device_id FROM devices WHERE name = 'Ann' AND value > 1"
MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=timezone(timedelta(hours=2)))
URL = sa.make_url("postgresql://reader:hunter2@db.example.com:5433/shop")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        # names in the query or the URL stay
        ('ERROR:  column "device_id" is ambiguous', 'column "device_id" is ambiguous'),
        ('FATAL:  role "reader" does not exist', 'role "reader" does not exist'),
        ('server at "db.example.com", port 5433 failed', 'server at "db.example.com", port 5433 failed'),
        ("near \"'Ann'\": syntax error", "near …: syntax error"),  # quotes in quotes: rather show too little
        # values that may come from a row are removed
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
        ("cannot read bob@example.com of customer 123456", "cannot read … of customer …"),
        # as Trino, BigQuery, ClickHouse and others show them: without quotes
        ("Value cannot be cast to date: anna", "Value cannot be cast to date: …"),
        ("400 Bad int64 value: anna; reason: invalid", "400 Bad int64 value: …; reason: invalid"),
        ("Cannot parse uuid anna: Cannot parse UUID", "Cannot parse uuid …: Cannot parse UUID"),
        ("Conversion failed: +353 86 (Anna-Maria) 🎈 7", "Conversion failed: +… … (…) … …"),
        ("Cannot cast devices.device_id to uuid, row 7", "Cannot cast devices.device_id to uuid, row 7"),
        (
            'column "value" is of devices alone',
            'column "value" is of devices alone',
        ),  # a name, if it is quoted
        ("could not convert name of devices to INT32", "could not convert name of devices to INT32"),
        # apostrophes are not quotes
        ("the server can't say why it won't", "the server can't say why it won't"),
        # later lines contain details of rows
        ("ERROR:  duplicate\nDETAIL:  Key (name)=(Bob)", "duplicate"),
        ("password hunter2 is wrong", "password … is wrong"),
        # in German, French, Spanish, Chinese and Japanese
        ("ungültige Eingabesyntax für Typ bigint: »anna«", "ungültige Eingabesyntax für Typ bigint: …"),
        ("Spalte »device_id« ist nicht eindeutig", 'Spalte "device_id" ist nicht eindeutig'),
        (
            "syntaxe invalide pour l\u2019entier : «\xa0anna\xa0»",
            "syntaxe invalide pour l'entier : …",
        ),
        ("la colonne «\xa0device_id\xa0» est ambigue", 'la colonne "\xa0device_id\xa0" est ambigue'),
        ("sintaxis no válida para bigint: «anna»", "sintaxis no válida para bigint: …"),
        ("„anna“ \u201aanna\u2018 “anna” \u2018anna\u2019", "…"),
        ("整数値「anna」は不正です", "整数値…は不正です"),
        ('値"anna"は範囲外です', "値…は範囲外です"),
        ("x" * 900, "x" * 300),
        ("", "OSError"),
    ],
)
def test_a_message_is_shown_without_data(said: str, shown: str) -> None:
    query = Query(SQL, {}, 1, URL)
    assert database_message(OSError(said), query) == f"the warehouse said: {shown}"


def test_the_words_of_a_function_of_mysql_are_shown_without_data() -> None:
    said = database_message(RuntimeError(1644, "no device for anna"), Query(SQL, {}, 1, URL))
    assert said == "the warehouse said: no … for …"


def test_texts_without_spaces_are_made_readable_in_linear_time() -> None:
    """If each character began another search for a mail address, this would take half an hour."""
    sql = f"SELECT device_id FROM devices WHERE seen>:seen_sinse+{'1+' * ((1 << 19) - 100)}(1)"
    with pytest.raises(QueryError, match=r"did you mean :seen_since\?.*line 1, column 42: …ce_id"):
        Query(sql, {"seen_since": MOMENT}, 1, URL).with_literals()
    said = database_message(OSError(f"no such thing: {'x' * (1 << 20)}"), Query(SQL, {}, 1, URL))
    assert said.startswith("the warehouse said: no such thing: xxx")


def test_columns_texts_and_addresses_are_found_in_linear_time() -> None:
    """If each part began a search through the rest or counted the lines before it, this would take many minutes."""
    assert returned_columns(f"WITH {'SELECT ' * 150_000}") == {}
    columns = ",\n".join(f"c{number}" for number in range(120_000))
    assert returned_columns(f"SELECT {columns} FROM x")["c119999"] == 120_000
    assert sum(line for _, line in texts_of("SELECT ''\n" * 100_000)) == 100_000 * 100_001 // 2
    assert len(without_signatures(f"a{'?' * 1_000_000}")) == 1_000_001


def test_a_query_does_not_show_its_parameters_or_the_password() -> None:
    shown = repr(Query(SQL, {"name": "s3cret"}, 1, URL))
    assert "s3cret" not in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("backend", "value", "literal"),
    [
        ("postgresql", "back\\slash'", "E'back\\\\slash'''"),
        ("duckdb", "back\\slash'", "'back\\slash'''"),
        ("sqlite", "back\\slash'", "'back\\slash'''"),
        ("snowflake", "back\\slash'", "'back\\\\slash'''"),
        ("postgresql", MOMENT, "TIMESTAMPTZ '2026-03-01 10:30:00+00:00'"),
        ("duckdb", MOMENT, "TIMESTAMPTZ '2026-03-01 10:30:00+00:00'"),
        ("sqlite", MOMENT, "'2026-03-01 10:30:00'"),
        ("snowflake", MOMENT, "TO_TIMESTAMP_TZ('2026-03-01T10:30:00+00:00')"),
        ("snowflake", None, "NULL"),
        ("snowflake", -7, "(-7)"),
    ],
)
def test_a_value_is_written_as_its_warehouse_reads_it(backend: str, value: Parameter, literal: str) -> None:
    query = Query("SELECT :value", {"value": value}, 1, sa.make_url(f"{backend}://host/shop"))
    assert query.with_literals().strip() == f"SELECT {literal}"


@pytest.mark.parametrize(
    ("sql", "mark", "placed", "values"),
    [
        ("SELECT :b, :a, :b", "?", "SELECT ?, ?, ?", (2, 1, 2)),
        # a driver with values takes a single percent sign for a placeholder
        ("SELECT 7 % :a", "%s", "SELECT 7 %% %s", (1,)),
        ("SELECT 7 % 2, ':a' -- :b", "%s", "SELECT 7 % 2, ':a' -- :b", ()),
        ("SELECT 7 % :a", "?", "SELECT 7 % ?", (1,)),
    ],
)
def test_values_are_given_in_the_order_of_their_marks(
    sql: str, mark: str, placed: str, values: tuple[int, ...]
) -> None:
    found, given = Query(sql, {"a": 1, "b": 2, "unused": 3}, 1, URL).with_places(mark)
    assert (found.strip(), given) == (placed, values)


def test_a_mark_that_nobody_knows_is_refused() -> None:
    with pytest.raises(QueryError, match=r"placeholder is :1. Use \?, %s"):
        Query("SELECT :a", {"a": 1}, 1, URL).with_places(":1")


def test_parameters_are_named_where_they_are_used() -> None:
    sql = """SELECT x::date, ':text', "col:umn" /* :comment */ FROM t WHERE id % :parts = :part AND a[1\\:n] = :part"""
    assert named_parameters(sql) == ["part", "parts"]


@pytest.mark.parametrize(
    ("sql", "bound", "written"),
    [
        ("SELECT :a::date, x::text", "SELECT %(a)s::date, x::text", "SELECT 7::date, x::text"),
        ("SELECT :a::text::date", "SELECT %(a)s::text::date", "SELECT 7::text::date"),
        ("SELECT s[:a:9], s[1\\:n]", "SELECT s[%(a)s:9], s[1:n]", "SELECT s[7:9], s[1:n]"),
        ("SELECT (:a)::date, :a", "SELECT (%(a)s)::date, %(a)s", "SELECT (7)::date, 7"),
    ],
)
def test_a_parameter_before_a_colon_is_put_in_and_its_cast_kept(sql: str, bound: str, written: str) -> None:
    query = Query(sql, {"a": 7}, 1, URL)
    assert named_parameters(sql) == ["a"]
    dialect = DefaultDialect(paramstyle="pyformat")
    assert str(query.with_bound_values("postgresql").compile(dialect=dialect)).strip() == bound
    assert query.with_literals().strip() == written
    placed = bound.replace("%(a)s", "?")
    assert query.with_places("?") == (placed + "\n", (7,) * placed.count("?"))


@pytest.mark.parametrize("text", ["$$it's :a$$", "$x$ :a $$ :b $x$", "E'it\\'s :a'"])
def test_nothing_is_put_into_a_text_that_postgresql_alone_knows(text: str) -> None:
    query = Query(f"SELECT {text}, :a", {"a": 7}, 1, URL)
    assert query.with_literals().strip() == f"SELECT {text}, 7"
    assert named_parameters(f"SELECT {text}") == []
    assert "uses :a, but" in _refusal("SELECT $$ :a $$", "sqlite")


def _refusal(sql: str, backend: str = "postgresql", **parameters: Parameter) -> str:
    with pytest.raises(QueryError) as error:
        Query(sql, parameters, 1, sa.make_url(f"{backend}://host/shop")).with_literals()
    return str(error.value)


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELECT 1\n  WHERE x > :perod_end::date", "(line 2, column 13: WHERE x > :perod_end::date)"),
        ("\n\nSELECT :perod_end", "(line 3, column 8: SELECT :perod_end)"),
        # the first one outside of texts and comments
        ("SELECT ':perod_end' -- :perod_end\n, :perod_end", "(line 2, column 3: , :perod_end)"),
        # data in the query itself is not shown
        (
            "SELECT 'ann@a.example', 4711 = :perod_end -- of ann",
            "(line 1, column 32: SELECT …, … = :perod_end …)",
        ),
        (
            f"SELECT {'a, ' * 50}:perod_end{', b' * 50}",
            f"(line 1, column 158: …{'a, ' * 10}:perod_end{', b' * 6}, …)",
        ),
    ],
)
def test_an_unknown_parameter_is_shown_with_its_place(sql: str, place: str) -> None:
    describe = _refusal(sql, period_end="x", part=1)
    assert (
        "uses :perod_end, but its parameters are :part, :period_end (did you mean :period_end?);" in describe
    )
    assert describe.endswith(place)


def test_a_parameter_without_its_first_word_is_guessed_by_its_last() -> None:
    shown = _refusal("SELECT :start", part=1, sent_at="x", period_start="x")
    assert "(did you mean :period_start?)" in shown


@pytest.mark.parametrize(
    ("sql", "describe"),
    [
        (
            "-- so\nDELETE FROM t",
            "begins with DELETE. Use one query that begins with SELECT, WITH, VALUES or",
        ),
        ("-- so\nDELETE FROM t", "(line 2, column 1: DELETE FROM t)"),
        ("SELECT ';'\n; DROP TABLE t", "Use one query (line 2, column 1: ; DROP TABLE t)"),
    ],
)
def test_what_is_not_one_query_is_shown_with_its_place(sql: str, describe: str) -> None:
    assert describe in _refusal(sql)


@pytest.mark.parametrize("backend", ["mysql", "mariadb", "starrocks"])
@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT 1 /*! INTO OUTFILE '/x' */", "/*!"),
        ("SELECT 1 /*!50110 + sleep(9) */", "/*!"),
        ("SELECT 1 /*M! INTO DUMPFILE '/x' */", "/*M!"),
        ("SELECT 1 /*M!100100 + sleep(9) */", "/*M!"),
        ("/*! */ SELECT 1", "/*!"),
        ("SELECT 1 /*! INTO OUTFILE '/x'", "/*!"),  # MySQL accepts it without an end
        (r"SELECT '\'' /*! INTO OUTFILE '/x' */ -- '", "/*!"),
        ("SELECT 1 INTO OUTFILE '/x'", "INTO OUTFILE"),
        ("SELECT 1 into\n\toutfile '/x'", "INTO OUTFILE"),
        ("SELECT 1 INTO/* here */DUMPFILE '/x'", "INTO DUMPFILE"),
        ("SELECT 1 INTO -- here\nDUMPFILE '/x'", "INTO DUMPFILE"),
        ("SELECT 5--1 INTO OUTFILE '/x'", "INTO OUTFILE"),
        ("SELECT 5--1 /*! INTO OUTFILE '/x' */", "/*!"),
        (r"""SELECT "\"" INTO OUTFILE '/x' -- " """, "INTO OUTFILE"),
    ],
)
def test_what_mysql_runs_in_comments_or_writes_to_files_is_refused(
    backend: str, sql: str, found: str
) -> None:
    describe = _refusal(sql, backend)
    assert describe.startswith(f"found {found}, which ")
    assert "(line 1, column " in describe


@pytest.mark.parametrize(
    ("backend", "sql"),
    [
        ("mysql", "SELECT 'INTO OUTFILE', '/*! x */', `/*! y */` /* INTO OUTFILE */ /*+ NO_INDEX(t) */"),
        ("mysql", "SELECT a AS into_outfile -- /*! no */"),
        ("postgresql", "SELECT 1 /*! a comment like any other */"),
        ("sqlite", "SELECT 1 /*! a comment like any other */"),
    ],
)
def test_what_only_looks_like_it_is_no_reason_to_refuse_a_query(backend: str, sql: str) -> None:
    assert Query(sql, {}, 1, sa.make_url(f"{backend}://host/shop")).with_literals().strip() == sql


@pytest.mark.parametrize(
    ("backend", "sql"),
    [
        ("postgresql", r"SELECT 1 AS name'\'; DROP TABLE devices; --'"),
        ("postgresql", "SELECT 1 AS a$$; DROP TABLE devices; SELECT 1 AS b$$"),
        ("postgresql", "SELECT 1 /* /* */ ' */; DROP TABLE devices; --'"),
        ("postgresql", "SELECT 1 -- '\r; DROP TABLE devices --'"),
        ("postgresql", r"SELECT '\''; DROP TABLE devices; --'"),  # with standard_conforming_strings off
        ("snowflake", r"SELECT '\''; DROP TABLE devices; --'"),
        ("sqlite", "SELECT $a$; DROP TABLE devices; SELECT $a$"),
        ("sqlite", "SELECT 1 AS `'`; DROP TABLE devices; --'"),
        ("sqlite", "SELECT 1 AS [']; DROP TABLE devices; --'"),
        ("sqlite", "SELECT 1 -- \r '\n; DROP TABLE devices --'"),
        ("sqlite", r"SELECT 1 AS e'\'; DROP TABLE devices; --'"),
        ("mysql", "SELECT 1 AS $a$; DROP TABLE t; SELECT 2 AS $a$"),
        ("mysql", "SELECT 5--1; DROP TABLE t"),
        ("mysql", r"""SELECT "\""; DROP TABLE t -- " """),
        ("postgresql", "SELECT $\u0663$'$\u0663$; DROP TABLE t; --'"),
        ("postgresql", "SELECT E''\n'a\\' E', '\\'; DROP TABLE t; --'"),
    ],
)
def test_no_text_or_comment_hides_a_second_statement(backend: str, sql: str) -> None:
    with pytest.raises(QueryError, match="found more than one statement"):
        Query(sql, {}, 1, sa.make_url(f"{backend}://host/shop")).with_literals()


@pytest.mark.parametrize("backend", ["postgresql", "redshift", "duckdb", "snowflake"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS \u20ac$$; DROP TABLE t; SELECT 2 AS \u20ac$$",
        "SELECT $\u20ac$'$\u20ac$ AS a; DROP TABLE t; --'",
        "SELECT $x\u20acx$'$x\u20acx$ AS a; DROP TABLE t; --'",
        "SELECT \u20acE'\\'; DROP TABLE t; --'",
    ],
)
def test_a_character_that_some_databases_read_as_part_of_a_name_hides_no_statement(
    backend: str, sql: str
) -> None:
    assert "beside a dollar sign or a quote, which databases read in different ways" in _refusal(sql, backend)


@pytest.mark.parametrize(
    ("backend", "sql"),
    [
        ("postgresql", "SELECT $x$a;b$x$, E'it\\'s; c', $$;$$ AS \"a;b\" -- ; x"),
        ("postgresql", "SELECT 1 /* ; */ AS n /* /* */ */"),
        ("postgresql", r"SELECT a FROM t WHERE a LIKE 'x\' ESCAPE '\'"),
        ("duckdb", "SELECT $1, $2, a$b FROM t"),
        ("duckdb", "SELECT '5 \u20ac$$', 'c;d' AS \"\u20ac\" -- \u20ac$"),
        ("postgresql", "SELECT E'a'\n'it\\'s; b', 'c' AS \xe9$a"),
        ("mysql", 'SELECT 5--1, "b;c" -- ; d'),
        ("snowflake", r"SELECT 'it\'s' AS a, $$;$$ AS b"),
        ("sqlite", "SELECT ';' AS [a;b], `c;d` /* s3://bucket/*.csv; */"),
    ],
)
def test_what_stands_in_texts_names_and_comments_is_no_statement(backend: str, sql: str) -> None:
    query = Query(f"{sql};", {}, 1, sa.make_url(f"{backend}://host/shop"))
    assert query.with_literals().strip() == sql


@pytest.mark.parametrize("backend", ["postgresql", "sqlite", "snowflake", "duckdb"])
@pytest.mark.parametrize("end", ["; -- the end", ";\n/* the end; */", ";\n;"])
def test_what_follows_the_end_of_a_query_is_left_out(backend: str, end: str) -> None:
    """A warehouse reads a query inside another one."""
    query = Query(f"SELECT 1{end}", {}, 1, sa.make_url(f"{backend}://host/shop"))
    assert query.with_literals().strip() == "SELECT 1"


@pytest.mark.parametrize("backend", ["bigquery", "clickhouse", "databricks", "trino"])
def test_two_dashes_begin_a_comment_without_a_space_except_on_mysql(backend: str) -> None:
    query = Query("SELECT 1;\n--ORDER BY 1", {}, 1, sa.make_url(f"{backend}://host/shop"))
    assert query.with_literals().strip() == "SELECT 1"


MANY = 50_000


@pytest.mark.proof
@pytest.mark.parametrize(
    "text",
    [
        "".join(f"$a{number}$ " for number in range(MANY)),
        "$a$ $b$ " * MANY,
        "/* " * MANY,
        "/* */ /* " * MANY,
        "'" * (MANY + 1),
        "''' " * MANY,
        "E'" * MANY,
        "e'\\" * MANY,
        '" ' * MANY + '"',
        "[ ` " * MANY,
        "--\n" * MANY,
        "$" * MANY,
        "E'a' " + "-- " * MANY,
        "E'a'" + "\n-- -- 'a'" * MANY,
    ],
    ids=range(14),
)
@pytest.mark.parametrize("backend", ["postgresql", "sqlite", "mysql"])
def test_parts_of_a_long_query_are_the_whole_of_it(text: str, backend: str) -> None:
    for dialect in dialects(backend, text):
        assert "".join(part for _, part in tokens(text, dialect)) == text


def test_a_query_has_a_largest_size() -> None:
    sql = "SELECT 1".ljust(1 << 20, "1")
    assert Query(sql, {}, 1, URL).with_literals().strip() == sql
    with pytest.raises(QueryError, match=r"found a query of 1,048,577 characters\. Use at most 1,048,576"):
        Query(f"{sql}1", {}, 1, URL).with_literals()
