"""The text of a query: check it, insert its parameters, and make the database's error messages safe to show."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from string import punctuation
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.types import UserDefinedType

from sendoff.errors import QueryError
from sendoff.warehouse.sql_lexer import (
    MAYBE_DATA,
    ODD,
    Dialect,
    Spot,
    code_of,
    dialects,
    is_like_mysql,
    selected_columns,
    tokens,
    usual_dialect,
)

Parameter = datetime | str | int | None

NO_ROWS = (
    "the statement returned no result, not even an empty one. Use a query that returns rows, such as SELECT "
    "without INTO"
)
"""The error for a statement that looks like a query but returns no rows."""

# Everything before the first word, except what databases read in different ways.
_OPENING, _OPENING_WITH_HASHES = (
    re.compile(rf"(?:[\s(]|{mark}[^\n\r]*\r?\n|/\*(?:(?!/\*|\*/).)*\*/)*", re.DOTALL)
    for mark in ("--", "(?:--|#)")
)
_WORD = re.compile(r"\w+|\S?")
# An escaped colon, the colon of a parameter, or those of a cast or a slice.
_COLON = re.compile(r"\\:|(?<![\w$:]):(?P<name>[\w$]+)|:+")
_EXECUTABLE = re.compile(r"/\*M?!")
_INTO_FILE = re.compile(r"\bINTO\s+(?:OUTFILE|DUMPFILE)\b", re.IGNORECASE)
_EMPTY = "the query is empty"
_QUERIES = ("SELECT", "WITH", "VALUES", "TABLE")
_MOST = 1 << 20  # characters of a query
_SECRET = re.compile("passw|passphrase|pwd|secret|token|key", re.IGNORECASE)
_QUOTES_OF_LANGUAGES = str.maketrans(
    "\xab\xbb\u2039\u203a\u201c\u201d\u201e\u201f\u300c\u300d\u300e\u300f\uff02\u2018\u2019\u201a\u201b\uff07",
    '"' * 13 + "'" * 5,
)
_LETTER = r"0-9A-Za-z_\xc0-\u024f"  # of languages with apostrophes; others quote beside a letter
_QUOTE = re.compile(rf"[\"`]|(?<![{_LETTER}])'|'(?![{_LETTER}])")
_QUOTED = re.compile(rf"(?<![{_LETTER}\"'`])([\"'`])((?:(?!\1).)*)\1(?![{_LETTER}\"'`])")
_QUERY_OF_URL = re.compile(r"(?<=\S)\?\S+")  # with a value, it may be a signature
_PART = re.compile(r"\w+")
_OF_MESSAGES = frozenset(
    _PART.findall(
        """
    a an and any are argument array as at bad base be because begin binary bigint bool boolean by byte bytes can cannot
    cast casting char character code column constraint conversion convert converting correct could data date datetime
    decimal different digit does double encoding end error exceeds exception exist expected expecting expression
    failed failure field fixed float float32 float64 for format found from function got has hex identifier if implicit
    in incompatible incorrect input instead int int16 int32 int64 int8 integer interval into invalid is it its json
    large length line literal long malformed mismatched missing more name near no not null number numeric object of on
    one only operand operator or out overflow parse parsing pos position precision query range read reason recognized
    required result return returned row rows scalar short single smallint source statement string subqueries subquery
    supported syntax table target text than the this time timestamp timestamptz to token too truncated try_cast type
    types uint16 uint32 uint64 uint8 unable undefined unexpected unknown unsupported use used uuid valid value values
    varchar variant was when while with within zone
    """
    )
)
_SPACES = re.compile(r"(\s+)")
_MARKS = f"{punctuation.replace('_', '')}…"
_DRIVER_PREFIX = re.compile(r"^(?:[A-Z_]+: )?(?:\[\w+\] )?(?:.*?(?:ERROR|FATAL): +)?")
_LINE = re.compile(r"^(LINE (\d+): )(.*)(?:\n( *)\^)?", re.MULTILINE)
_LONGEST = 300
_SEARCHED = 2_000  # characters of a part that may contain a value
# Behind these words, a message may contain a value of a row without quotes.
_OF_VALUE = re.compile(
    r"(?<![\w\"'`.])(?:values?|cast(?:s|ing)?|convert(?:s|ed|ing)?|conversion|pars(?:e|es|ed|ing|er))(?![\w\"'`])",
    re.IGNORECASE,
)
_SIGNAL_OF_MYSQL = 1644
_OF_FUNCTIONS = ("Invalid Input Error:", "[USER_RAISED_EXCEPTION]")  # of DuckDB and of Databricks
_NUMBERED = ("code", "column", "line", "pos", "position", "row")  # the number behind them is none of a row
_PLACES: Mapping[str, Literal["qmark", "format"]] = {"?": "qmark", "%s": "format"}
_FAMILIES = ("postgresql", "sqlite", "mysql")  # the databases of each read a query alike


@dataclass(frozen=True, slots=True)
class Query:
    """A query as its author wrote it, with the values of its parameters and the URL of its warehouse."""

    sql: str
    parameters: Mapping[str, Parameter] = field(repr=False)
    batch_rows: int
    url: sa.URL

    def part(self, number: int, parts: int) -> Query:
        """Return the query for one of the parts of its rows, counted from 0."""
        return replace(self, parameters={**self.parameters, "part": number, "parts": parts})

    def with_literals(self) -> str:
        """Return the query with its parameters as SQL literals. Raise QueryError for an unknown parameter."""
        backend = self.url.get_backend_name()
        text = self._text()
        for name in self._used(text):
            literal = _literal(name, self.parameters[name], backend)
            text = text.bindparams(sa.bindparam(name, _escaped(literal), type_=_Verbatim()))
        dialect = DefaultDialect(paramstyle="named")
        return str(text.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))

    def with_bound_values(self, backend: str) -> sa.TextClause:
        """Return the query with its parameters bound. Raise QueryError for an unknown parameter."""
        text = self._text()
        for name in self._used(text):
            value = self.parameters[name]
            if isinstance(value, datetime):
                moment = _in_utc(name, value)
                value = _sqlite_text(moment) if backend == "sqlite" else moment
            text = text.bindparams(sa.bindparam(name, value))
        return text

    def with_places(self, mark: str) -> tuple[str, tuple[Parameter, ...]]:
        """Return the query with a placeholder (``?`` or ``%s``) for each parameter, and the values in this order.

        A query without parameters stays as it is, because a driver without values replaces no placeholders. Raise
        QueryError for an unknown parameter or another placeholder.
        """
        if mark not in _PLACES:
            raise QueryError(f"the driver's placeholder is {mark}. Use {', '.join(_PLACES)}")
        text = self.with_bound_values("")
        style = _PLACES[mark] if _names(text) else "named"
        placed = text.compile(dialect=DefaultDialect(paramstyle=style))
        return str(placed), tuple(placed.params[name] for name in placed.positiontup or ())

    def _text(self) -> sa.TextClause:
        sql = self.sql.rstrip().rstrip(";").rstrip()  # keeps the line numbers of the file
        if not sql:
            raise QueryError(_EMPTY)
        if len(sql) > _MOST:
            raise QueryError(f"found a query of {len(sql):,} characters. Use at most {_MOST:,}")
        self._check_is_one_query(sql)
        ends = {code_of(sql, dialect).find(";") for dialect in dialects(self.url.get_backend_name(), sql)}
        end = ends.pop()  # only a comment follows
        return _clause(sql if ends or end < 0 else sql[:end], self._dialect)

    @property
    def _dialect(self) -> Dialect:
        return usual_dialect(self.url.get_backend_name())

    def place(self, spot: Spot) -> str:
        """Return the description of a place in the query, for errors."""
        return spot.describe(self.sql, self._dialect)

    def _problem(self, text: str, offset: int) -> QueryError:
        spot = Spot.at(self.sql, offset)
        error = QueryError(f"{text} ({self.place(spot)})")
        error.line = spot.line
        return error

    def _check_is_one_query(self, sql: str) -> None:
        """Refuse anything but a query, because even read-only, some statements can reach files and programs."""
        start = (_OPENING_WITH_HASHES if self._dialect.has_hashes else _OPENING).match(sql)
        word = _WORD.match(sql, begin := start.end() if start else 0)
        if (first := word[0] if word else "").upper() not in _QUERIES:
            if is_blank(sql, self.url.get_backend_name()):
                raise QueryError(_EMPTY)
            allowed = f"one query that begins with {', '.join(_QUERIES[:-1])} or {_QUERIES[-1]}"
            found = f"found a statement that begins with {first or 'nothing'}"
            raise self._problem(f"{found}. Use {allowed}", begin)
        backend = self.url.get_backend_name()
        for dialect in dialects(backend, sql):
            code = code_of(sql, dialect)
            if dialect.has_dollars:
                self._check_is_read_alike(sql, code)
            end = code.find(";")
            if end >= 0 and code[end:].strip("; \t\r\n"):
                raise self._problem("found more than one statement. Use one query", end)
            if is_like_mysql(backend):
                self._check_writes_no_file(sql, code, dialect)

    def _check_is_read_alike(self, sql: str, code: str) -> None:
        for odd in ODD.finditer(sql):
            at = odd.end() - 1
            if code[at] == sql[at]:
                found = f"found {sql[at]!a} beside a dollar sign or a quote, which databases read in different ways"
                raise self._problem(f"{found}. Use a letter or a space in its place", at)

    def _check_writes_no_file(self, sql: str, code: str, dialect: Dialect) -> None:
        """Refuse two features of MySQL and MariaDB: executable comments, and results written to a file."""
        at = 0
        for is_inert, text in tokens(sql, dialect):
            if mark := _EXECUTABLE.match(text) if is_inert else _EXECUTABLE.search(text):
                found = f"found {mark[0]}, which begins a comment that MySQL or MariaDB executes"
                allowed = "comments that begin with /* and a space, or with --"
                raise self._problem(f"{found}. Use {allowed}", at + mark.start())
            at += len(text)
        if into := _INTO_FILE.search(code):
            found = f"found {' '.join(into[0].upper().split())}, which writes a file on the database's server"
            raise self._problem(f"{found}. Use a query that returns its rows", into.start())

    def _used(self, text: sa.TextClause) -> list[str]:
        names = _names(text)
        if unknown := [name for name in names if name not in self.parameters]:
            known = ", ".join(f":{name}" for name in sorted(self.parameters)) or "none"
            near = [name for name in self.parameters if name.endswith(f"_{unknown[0]}")]
            near += get_close_matches(unknown[0], self.parameters, n=1)
            hint = f" (did you mean :{near[0]}?)" if near else ""
            colons = _COLON.finditer(code_of(self.sql, self._dialect))
            at = next((colon.start() for colon in colons if colon["name"] == unknown[0]), 0)
            raise self._problem(
                f"the query uses :{', :'.join(unknown)}, but its parameters are {known}{hint}; write \\: for a colon "
                "that does not begin a parameter",
                at,
            )
        return names


def is_blank(sql: str, *backends: str) -> bool:
    """Check whether a query has nothing but comments, for each of the databases; by default, for every database."""
    ways = (dialect for each in backends or _FAMILIES for dialect in dialects(each, sql))
    return not any(code_of(sql, dialect, "\0").strip("; \t\r\n") for dialect in ways)


def refusal(sql: str, parameters: Collection[str]) -> QueryError | None:
    """Return the error of a query that is refused for every database, or None. ``parameters``: their names."""
    problems = []
    for family in _FAMILIES:
        query = Query(sql, dict.fromkeys(parameters), 1, sa.URL.create(family))
        try:
            query.with_bound_values(family)
        except QueryError as problem:
            problems.append(problem)
    return problems[0] if len(problems) == len(_FAMILIES) else None


def returned_columns(sql: str) -> dict[str, int]:
    """Return columns that a query certainly returns, in lower case, with the lines that name them.

    They are known without running the query if it is a plain SELECT that names them, whatever database reads it. With
    an empty name among them, the query may return others too.
    """
    first, *others = map(dict, _selected(sql))
    certain = {name: at for name, at in first.items() if all(name in other for other in others)}
    lines = _lines(sql, certain)
    return lines if all(first.keys() == other.keys() for other in others) else {**lines, "": 1}


def repeated_columns(sql: str) -> dict[str, int]:
    """Return columns that a query certainly returns more than once, in lower case, with the last line of each."""
    ways = _selected(sql)
    counts = [Counter(name for name, _ in way) for way in ways]
    return _lines(
        sql, {name: at for name, at in ways[0] if name and all(count[name] > 1 for count in counts)}
    )


def _selected(sql: str) -> list[list[tuple[str, int]]]:
    """Return the columns of a plain SELECT, once for each way that databases read the query."""
    ways = {code_of(sql, dialect, "\0") for family in _FAMILIES for dialect in dialects(family, sql)}
    return [selected_columns(code) for code in sorted(ways)]


def _lines(sql: str, columns: Mapping[str, int]) -> dict[str, int]:
    ends = [end.start() for end in re.finditer("\n", sql)]
    return {name: bisect_left(ends, at) + 1 for name, at in columns.items()}


def named_parameters(sql: str) -> list[str]:
    """Return the sorted names of the parameters that a query uses, outside of texts and comments."""
    return _names(_clause(sql, usual_dialect()))


def texts_of(sql: str) -> Iterator[tuple[str, int]]:
    """Yield each text of a query without its quotes, and its line."""
    line = 1
    for is_inert, text in tokens(sql, usual_dialect()):
        if is_inert and text[0] in "'\"":
            yield text[1:-1], line
        line += text.count("\n")


def _clause(sql: str, dialect: Dialect) -> sa.TextClause:
    parts = (
        _escaped(text) if is_inert else _COLON.sub(_for_sqlalchemy, text)
        for is_inert, text in tokens(sql, dialect)
    )
    return sa.text(f"{''.join(parts)}\n")  # so that a last comment does not swallow COPY's closing bracket


def _for_sqlalchemy(colon: re.Match[str]) -> str:
    """Escape colons that do not begin a parameter: SQLAlchemy would miss a parameter before one, as in a cast."""
    return colon[0] if colon["name"] or colon[0] == "\\:" else _escaped(colon[0])


def _names(text: sa.TextClause) -> list[str]:
    return sorted(text.compile(dialect=DefaultDialect(paramstyle="named")).params)


def _escaped(text: str) -> str:
    return text.replace(":", "\\:")


class _Verbatim(UserDefinedType[str]):
    cache_ok = True

    def literal_processor(self, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        return str


def _literal(name: str, value: Parameter, backend: str) -> str:
    if isinstance(value, datetime):
        return _moment(_in_utc(name, value), backend)
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value)) if value >= 0 else f"({int(value)})"
    if "\0" in value:
        raise QueryError(f"parameter :{name} contains a NUL character, which no database can store")
    doubled = value.replace("'", "''")
    if "\\" not in value or backend in ("sqlite", "duckdb", "trino"):
        return f"'{doubled}'"
    escaped = doubled.replace("\\", "\\\\")
    if backend in ("snowflake", "clickhouse"):
        return f"'{escaped}'"
    return f"E'{escaped}'"  # does not depend on standard_conforming_strings


def _moment(moment: datetime, backend: str) -> str:
    if backend == "sqlite":
        return f"'{_sqlite_text(moment)}'"
    if backend == "snowflake":
        return f"TO_TIMESTAMP_TZ('{moment.isoformat()}')"
    if backend == "trino":
        return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f} UTC'"
    if backend == "clickhouse":
        return f"toDateTime64('{moment:%Y-%m-%d %H:%M:%S.%f}', 6, 'UTC')"
    return f"TIMESTAMPTZ '{moment.isoformat(' ')}'"


def _in_utc(name: str, moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise QueryError(f"parameter :{name} is a datetime without a time zone")
    return moment.astimezone(UTC)


def _sqlite_text(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(" ")


def database_message(error: BaseException, query: Query) -> str:
    """Return a driver's error message with the place in the query, without data, parameters or a password.

    Quoted words are kept only if the query or the warehouse's URL contains them; others may come from a row. The same
    applies to the words behind one such as *value* or *cast*, but usual words of messages are kept too.
    """
    if isinstance(error, ImportError):
        return f"the warehouse needs the Python package {error.name}, which is not installed"
    url = query.url
    known = " ".join(
        [
            query.sql,
            url.drivername,
            url.host or "",
            str(url.port),
            url.username or "",
            url.database or "",
            *url.query,
        ]
    )
    text = _DRIVER_PREFIX.sub("", _primary_message(error))
    options = [
        value for name, values in url.normalized_query.items() if _SECRET.search(name) for value in values
    ]
    for secret in filter(None, [url.password and str(url.password), *options]):
        text = text.replace(secret, "…")
    text = without_signatures(text)
    text = _without_data(text, known)
    if _is_of_function(error):
        text = _known_words(text[:_SEARCHED], known)
    text = text[:_LONGEST].strip().rstrip(".")
    spot = _spot(str(error), query.sql)
    return f"the warehouse said: {text}" + (f" ({query.place(spot)})" if spot else "")


def without_signatures(text: str) -> str:
    """Return a text without the queries of its URLs, because a signed URL lets anybody read a file of rows."""
    return _QUERY_OF_URL.sub(lambda query: "?…" if "=" in query[0] else query[0], text)


def _spot(message: str, sql: str) -> Spot | None:
    """Return the place that PostgreSQL and DuckDB report, without the column if inserted parameters moved it."""
    place = _LINE.search(message)
    if not place:
        return None
    head, line, text, spaces = place.groups()
    column = len(spaces or "") - len(head)
    of_file = dict(enumerate(sql.split("\n"), 1)).get(int(line), "")
    is_same = spaces is not None and column >= 0 and of_file[:column] == text[:column]
    return Spot(int(line), column + 1 if is_same else None)


def _is_of_function(error: BaseException) -> bool:
    """Check whether a function in the warehouse raised an error. Its words may be values without quotes."""
    error = getattr(error, "orig", None) or error
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
    # Of PostgreSQL, such as: PL/pgSQL function name(text) line 1 at RAISE.
    said, _, context = str(error).partition("\n")
    return (
        getattr(error, "is_of_function", False)
        or str(state).startswith("P0")
        or "PL/" in context
        or error.args[:1] == (_SIGNAL_OF_MYSQL,)
        or any(mark in said for mark in _OF_FUNCTIONS)
    )


def _primary_message(error: BaseException) -> str:
    error = getattr(error, "orig", None) or error
    details = dict(getattr(error, "details", None) or ())
    if primary := details.get(b"PG_DIAG_MESSAGE_PRIMARY") or details.get("PG_DIAG_MESSAGE_PRIMARY"):
        return primary.decode(errors="replace") if isinstance(primary, bytes) else str(primary)
    text = str(error)
    match error.args:
        # Of a driver of MySQL, with the error's number.
        case (int(), str(said)) if not isinstance(error, OSError):
            text = said
    return next(iter(text.strip().splitlines()), type(error).__name__)


def _without_data(text: str, known: str) -> str:
    text = text.translate(_QUOTES_OF_LANGUAGES)
    quotes = [match.start() for match in _QUOTE.finditer(text)]
    words = [match[2].strip("\"' \xa0\u202f") for match in _QUOTED.finditer(text)]
    if len(quotes) != 2 * len(words) or not all(
        _has_word(known, part) for word in words for part in word.split(".")
    ):
        # A value may contain quotes itself, so everything from the first to the last quote is removed.
        text = f"{text[: quotes[0]]}…{text[quotes[-1] + 1 :]}"
    text = MAYBE_DATA.sub(lambda match: match[0] if _has_word(known, match[0]) else "…", text)
    begin = _OF_VALUE.search(text)
    if begin is None:
        return text
    return text[: begin.end()] + _known_words(text[begin.end() :][:_SEARCHED], known)


def _known_words(text: str, known: str) -> str:
    """Return the part of a message that may contain a value, without words that may belong to it."""
    usual = _OF_MESSAGES | set(_PART.findall(known.lower()))
    shown: list[str] = []
    before = ""
    for token in _SPACES.split(text):
        word = token.strip(_MARKS)
        parts = _PART.findall(word.lower())
        is_place = word.isdecimal() and before in _NUMBERED
        is_safe = is_place or not word.strip() or (parts and usual.issuperset(parts))
        shown.append(token if is_safe else token.replace(word, "…"))
        before = word.lower() if word.strip() else before
    return "".join(shown)


def _has_word(text: str, word: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))
