"""Audiences without a query: data frames, Arrow tables and files."""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
import sqlalchemy as sa
from pyarrow import feather, ipc, parquet

from sendoff.audience import Audience, build_audience
from sendoff.errors import AudienceError
from sendoff.warehouse import Rows, audience_source, frames

TABLE = pa.table(
    {"device_id": pa.array([7, 14, 14, None]), "platform": pa.array(["ios", "ios", "android", None])}
)


def audience_of(given: Any, *columns: str) -> Audience:
    rows = audience_source(given)
    assert isinstance(rows, Rows)
    with rows.open() as batches:
        return build_audience(batches, columns=columns, wording=rows.wording)


def rows_of(given: Any) -> Rows:
    rows = audience_source(given)
    assert isinstance(rows, Rows)
    return rows


def refused(given: Any, *columns: str) -> str:
    """Return the error of something that is no audience. No value of a test's data may be in it or in its traceback."""
    with pytest.raises(AudienceError) as caught:
        audience_of(given, *columns)
    assert "734" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is None
    return str(caught.value)


def write_parquet(table: pa.Table, path: Path) -> None:
    parquet.write_table(table, path)


def write_csv(table: pa.Table, path: Path) -> None:
    arrow_csv.write_csv(table, path)


def write_arrow_file(table: pa.Table, path: Path) -> None:
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def write_arrow_stream(table: pa.Table, path: Path) -> None:
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def write_feather(table: pa.Table, path: Path) -> None:
    feather.write_feather(table, str(path))


FILES = [
    ("people.parquet", write_parquet),
    ("people.csv", write_csv),
    ("people.arrow", write_arrow_file),
    ("stream.arrow", write_arrow_stream),
    ("people.feather", write_feather),
    ("PEOPLE.CSV", write_csv),
    ("the people.parquet", write_parquet),
]


class RemotePath:
    """A path that is none of Python's own, as object stores have them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.suffix = path.suffix

    def open(self, mode: str) -> Any:
        return self._path.open(mode)

    def __str__(self) -> str:
        return f"s3://shop/{self._path.name}"


@pytest.mark.parametrize("kind", [str, Path, RemotePath])
@pytest.mark.parametrize(("name", "write"), FILES)
def test_a_file_is_an_audience(
    tmp_path: Path, name: str, write: Callable[[pa.Table, Path], None], kind: Callable[[Any], Any]
) -> None:
    write(TABLE, tmp_path / name)
    audience = audience_of(kind(tmp_path / name))
    assert list(audience.identifiers) == [7, 14]
    assert (audience.rows, audience.dropped["null"], audience.dropped["duplicate"]) == (4, 1, 1)
    assert {value: len(members) for value, members in audience.groups["platform"].items()} == {
        "android": 1,
        "ios": 2,
    }


@pytest.mark.parametrize(("name", "write"), FILES)
def test_a_file_without_rows_has_columns_all_the_same(
    tmp_path: Path, name: str, write: Callable[[pa.Table, Path], None]
) -> None:
    write(TABLE.slice(0, 0), tmp_path / name)
    audience = audience_of(tmp_path / name)
    assert (audience.identified_by, audience.rows) == ("device_id", 0)


@pytest.mark.parametrize(
    "name", ["people.parquet", "people.csv", "people.arrow", "people.feather", "people.sql"]
)
@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), (b"\xff\xfe734\x00", "it is damaged, or not what its name says")],
)
def test_a_missing_or_damaged_file_is_an_error(
    tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    said = f"the file cannot be read ({problem}"
    if content is not None:
        (tmp_path / name).write_bytes(content)
        if name.endswith((".csv", ".sql")):
            said = "the file has text that is not UTF-8. Save it in UTF-8"
    assert said in refused(tmp_path / name)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_csv_file_may_have_other_delimiters(tmp_path: Path, delimiter: str) -> None:
    rows = (("device_id", "platform"), ("7", '"a,b"'), ("14", "ios"))
    (tmp_path / "people.csv").write_text("\n".join(map(delimiter.join, rows)))
    audience = audience_of(tmp_path / "people.csv")
    assert list(audience.identifiers) == [7, 14]
    assert sorted(audience.groups["platform"]) == ["a,b", "ios"]


@pytest.mark.parametrize(("name", "write"), [each for each in FILES if "csv" not in each[0].lower()])
def test_a_truncated_file_is_an_error(
    tmp_path: Path, name: str, write: Callable[[pa.Table, Path], None]
) -> None:
    write(pa.table({"device_id": list(range(50_000))}), tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    assert "damaged" in refused(tmp_path / name)


def test_the_values_of_a_csv_file_stay_as_they_are_written(tmp_path: Path) -> None:
    written = ["00340434161094042557", "12345678901234567890", "+4917012345", "1.10", "10:00", "NA", "null"]
    lines = [f"{number},{note}" for number, note in enumerate(written, 1)]
    empty = "99,\n" * 300_000  # more than the first block
    (tmp_path / "people.csv").write_text("device_id,note\n" + empty + "\n".join(lines))
    with rows_of(tmp_path / "people.csv").open() as batches:
        notes = pa.Table.from_batches(list(batches))["note"]
    assert notes.null_count == 300_000
    assert notes.drop_null().to_pylist() == written


def test_a_column_of_a_csv_file_has_the_type_that_the_campaign_states(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text(
        "device_id,Points,rate,since,at,vip\n1,007,1.5,2026-03-01,2026-03-01T09:00:00Z,true\n2,,,,,\n"
    )
    types = {"points": "integer", "rate": "number", "since": "date", "at": "timestamp", "vip": "boolean"}
    with rows_of(file).open(types) as batches:
        first, second = pa.Table.from_batches(list(batches)).to_pylist()
    at = datetime(2026, 3, 1, 9, tzinfo=UTC)
    assert list(first.values()) == [1, 7, 1.5, at.date(), at, True]
    assert list(second.values()) == [2, None, None, None, None, None]
    for name, problem in (
        ("points", "Points has a value that is not a whole number"),
        ("rate", "rate has a value that is not a number"),
        ("since", "since has a value that is not a date"),
        ("at", "at has a value that is not a time"),
        ("vip", "vip has a value that is not a boolean"),
    ):
        header = "Points" if name == "points" else name
        file.write_text(f"device_id,{header}\n1,x734\n")
        with pytest.raises(AudienceError, match=problem) as error, rows_of(file).open(types) as batches:
            list(batches)
        assert "734" not in str(error.value)


def test_texts_of_polars_are_read_also_beside_an_identifier_that_is_missing(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "device_id": [7, None],
            "platform": pl.Series(["ios", "web"], dtype=pl.Categorical),
            "city": ["a", "b"],
        }
    )
    frame.write_ipc(tmp_path / "people.arrow")
    for given in (frame, tmp_path / "people.arrow"):
        with rows_of(given).open() as batches:
            [batch] = batches
        kept = batch.filter(batch["device_id"].is_valid())
        assert kept.to_pylist() == [{"device_id": 7, "platform": "ios", "city": "a"}]


def test_an_index_that_is_also_a_column_is_read_once() -> None:
    frame = pd.DataFrame({"device_id": [7, 9], "city": ["a", "b"]}).set_index("device_id", drop=False)
    with rows_of(frame).open() as batches:
        assert pa.Table.from_batches(list(batches)).to_pydict() == {"device_id": [7, 9], "city": ["a", "b"]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "the file is empty"),
        ("\n", "the file is empty"),
        ("device_id\n7\nu734\n", "column device_id has a value that is not a whole number"),
        ("device_id\n9223372036854775808\n", "is not a whole number of at most 9,223,372,036,854,775,807"),
        ("device_id\n734.0\n", "column device_id has a value that is not a whole number of at most"),
        ("name,Device_ID\nann,u734\n", "column Device_ID has a value that is not a whole number"),
        ("device_id,points\n1\n734,5\n", "line 2: the number of values is 1, but the header has 2"),
        ("device_id,name\n1,ann\n2,bob,\n", "line 3: the number of values is 3, but the header has 2"),
        ('device_id,note\n1,a\n2,"b\n3,c\n', "line 3: a quotation mark begins a value and none ends it"),
        ('device_id,note\n1,"a\n2,b\n3,"c\n', "line 2: a quotation mark begins a value and none ends it"),
        (
            'device_id,note\n1,"' + "a" * 131_073 + '"\n',
            "line 2: a value has more than 131,072 characters. Shorten it",
        ),
        ('device_id,note\n1,"a\n' + "2,b\n" * 40_000, "or add the quotation mark that ends it"),
        ("device_id,name\n734,zo\udceb\n", "not UTF-8"),
        ("ann734,zoë\nbob,ann734\n", "its first line names no identifier column. Add a header with exactly"),
        ("device_id,user_id\n1,a\n", "it has device_id and user_id, but must have exactly one of"),
    ],
)
def test_a_csv_file_that_is_no_audience_is_an_error(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "people.csv").write_text(content, errors="surrogateescape")
    assert problem in refused(tmp_path / "people.csv")


def test_an_error_never_quotes_the_first_line_of_a_csv_file_that_may_be_a_recipient(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("device_id,ann734\n1,2\n")
    said = refused(tmp_path / "people.csv", "points")
    assert said.endswith(
        "template.columns: found points, which it does not have. Use columns of its first line"
    )


def test_a_csv_file_keeps_identifiers_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text('\ufeffexternal_id,note\n007,"two\nlines"\n08,\n')
    assert sorted(audience_of(tmp_path / "people.csv").identifiers) == ["007", "08"]


def test_blanks_in_the_header_of_a_csv_file_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("\n device_id , platform\n7,ios\n")
    assert audience_of(tmp_path / "people.csv").groups.keys() == {"platform"}


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"device_id": [7, 14, 14, None], "loyalty": "gold"}).astype({"device_id": "Int64"}),
        pd.DataFrame({"device_id": [0, 7, 14, 14]}).query("device_id > 0"),  # with an index of its own
        pd.DataFrame({"device_id": [7, 14]}).set_index("device_id"),  # pandas makes it a range
        pd.DataFrame({"device_id": [7, 14, 14]}).set_index("device_id"),
        pd.DataFrame({"device_id": [7, 14], "platform": pd.Categorical(["ios", "android"])}),
        TABLE,
        TABLE.to_batches()[0],
    ],
)
def test_a_frame_is_an_audience(frame: Any) -> None:
    audience = audience_of(frame)
    assert list(audience.identifiers) == [7, 14]
    assert not [name for name in audience.ignored_columns if "index" in name]


def test_a_frame_of_polars_is_an_audience() -> None:
    assert list(audience_of(pl.DataFrame({"device_id": [7, 14, None]})).identifiers) == [7, 14]
    assert 'pl.col("device_id").cast(pl.Int64)' in refused(pl.DataFrame({"device_id": [7.5]}))


def test_a_lazy_frame_is_collected_when_it_is_read() -> None:
    people = pl.LazyFrame({"device_id": [7, 14, 21]}).filter(pl.col("device_id") < 20)
    assert list(audience_of(people).identifiers) == [7, 14]
    wrong = pl.LazyFrame({"device_id": ["u734"]}).with_columns(pl.col("device_id").cast(pl.Int64))
    assert "cannot compute it (InvalidOperationError). Call collect()" in refused(wrong)


ROWS: list[dict[str, Any]] = [
    {"device_id": 7, "platform": "ios", "loyalty": "gold"},
    {"loyalty": None, "platform": "android", "device_id": 14},
    {"device_id": None, "platform": None, "loyalty": None},
]


def of_database() -> Any:
    with sa.create_engine("sqlite://").connect() as connection:
        statement = (
            "SELECT 7 AS device_id, 'ios' AS platform UNION SELECT 14, 'android' UNION SELECT null, null"
        )
        return connection.execute(sa.text(statement)).mappings().all()


@pytest.mark.parametrize("rows", [ROWS, tuple(ROWS), of_database()])
def test_a_list_of_dictionaries_is_an_audience(rows: Any) -> None:
    audience = audience_of(rows)
    assert list(audience.identifiers) == [7, 14]
    assert (audience.rows, audience.dropped["null"]) == (3, 1)
    assert sorted(audience.groups["platform"]) == ["android", "ios"]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            [{"device_id": 734}, {"device_id": 735, "x": "734"}],
            "row 2 has other keys than row 1. Use the same",
        ),
        ([{"device_id": 734}, {"device_id": 735}, {}], "row 3 has other keys than row 1"),
        ([{"device_id": 734}, (734,)], "row 2 is a tuple. Use a dictionary, like row 1"),
        ([{734: 734}], "row 1 has a key that is not a text"),
        ([{}], "it has no identifier column: found none"),
        (
            [{"device_id": "734"}],
            'text; convert it first, and keep None: row["device_id"] = int(row["device_id"])',
        ),
        (
            [{"device_id": 734}, {"device_id": "u734"}],
            'or of one that is no type of a column; convert it first, and keep None: row["device_id"] = int',
        ),
        ([{"device_id": None}, {"device_id": 734.0}], "row 2 has a number that may have a fraction"),
        ([{"user_id": b"734"}], 'convert it first, and keep None: row["user_id"] = str(row["user_id"])'),
        ([{"user_id": 734 << 64}], "column user_id has a whole number that is too large"),
        ([{"user_id": "734\udc80"}], "column user_id contains text that is not UTF-8"),
    ],
)
def test_dictionaries_that_are_no_audience_are_an_error_that_says_what_to_do(rows: Any, problem: str) -> None:
    assert problem in refused(rows)


def test_numbers_in_dictionaries_are_those_of_a_frame() -> None:
    rows = [{"device_id": 7, "points": 1}, {"device_id": 14, "points": 2.5}]
    of_rows, of_frame = (audience_of(given, "points").template_values for given in (rows, pd.DataFrame(rows)))
    assert of_rows is not None
    assert of_rows == of_frame


@pytest.mark.parametrize("given", [pd.DataFrame({"device_id": [7]}), [{"device_id": 7}]])
def test_a_frame_can_be_read_again(given: Any) -> None:
    rows = audience_source(given)
    assert [len(list(audience_of(rows).identifiers)) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (
            pd.DataFrame({"device_id": [734.0, None]}),
            'frame["device_id"] = frame["device_id"].astype("Int64")',
        ),
        (pd.DataFrame({"device_id": ["u734"]}), 'frame["device_id"].astype("Int64")'),
        (pd.DataFrame({"user_id": [7, "u734"]}), 'frame["user_id"].astype("string")'),
        (pd.DataFrame({"user_id": [734, None]}), 'frame["user_id"].astype("Int64")'),
        (pd.DataFrame([[734, 1]], columns=["device_id", "device_id"]), "it has a column more than once"),
        (pd.DataFrame({"user_id": [2**64 - 1, None]}, dtype=object), "a whole number that is too large"),
        (pd.DataFrame(), "it has no identifier column: found none"),
        (pd.Series([734]), "it cannot be read as a table"),
        (pa.table({"device_id": [734.5]}), "cast device_id to pa.int64()"),
        (pa.table({"user_id": [[734]]}), "cast user_id to pa.string()"),
        (pa.chunked_array([[734]]), "it cannot be read as a table"),
    ],
)
def test_a_frame_that_is_no_audience_is_an_error_that_says_what_to_do(frame: Any, problem: str) -> None:
    message = refused(frame)
    assert problem in message
    assert "CAST" not in message
    assert "query" not in message


def test_a_column_of_template_values_is_converted_in_the_frame() -> None:
    frame = pd.DataFrame({"device_id": [7], "points": [pd.Timedelta("1h")]})
    assert 'frame["points"].astype("string")' in refused(frame, "points")
    assert "which it does not have. Use its columns device_id, points" in refused(frame, "score")


@pytest.mark.parametrize(
    "given", [7, ["a"], {"device_id": [7]}, None, io.BytesIO(b"x"), pd.DataFrame, b"SELECT 1"]
)
def test_nothing_else_is_an_audience(given: Any) -> None:
    with pytest.raises(
        AudienceError, match="Use SQL, a path, a DataFrame, an Arrow table or a list of dictionaries"
    ):
        audience_source(given)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ([(734, "ios")], r"found list .* such as pd\.DataFrame\(rows, columns=\[\.\.\.\]\)"),
        ((row for row in ROWS), r"found generator .* such as pd\.DataFrame\(rows, columns="),
        (sa.select(sa.column("device_id")), r"found Select .* such as pd\.read_sql\(statement, engine\)"),
        (sa.text("SELECT 7"), r"found TextClause .* such as pd\.read_sql\(statement, engine\)"),
        ([], r"an empty list.*Use pd\.DataFrame\(\[\], columns=\[\.\.\.\]\)"),
    ],
)
def test_rows_of_another_type_are_an_error_with_the_remedy(given: Any, remedy: str) -> None:
    with pytest.raises(AudienceError, match=remedy) as caught:
        audience_source(given)
    assert "734" not in str(caught.value)


@pytest.mark.parametrize("given", ["people.xlsx", "people", Path("people.json"), "/data"])
def test_another_type_of_file_is_named(given: Any) -> None:
    with pytest.raises(AudienceError, match=r"not an audience. Use .sql, .parquet, .csv, .arrow, .feather"):
        audience_source(given)


@pytest.mark.parametrize("given", ["", " \n"])
def test_an_empty_text_is_no_audience(given: str) -> None:
    with pytest.raises(AudienceError, match="the audience is empty"):
        audience_source(given)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT device_id FROM devices",
        "select device_id from shop.csv",
        "-- everyone\nSELECT device_id FROM shop.parquet",
        "WITH a AS (SELECT 1) SELECT * FROM a.sql",
        "FROM 'people.parquet' SELECT device_id",
    ],
)
def test_sql_stays_sql(sql: str) -> None:
    assert audience_source(sql) == sql


def test_a_file_with_sql_is_a_query(tmp_path: Path) -> None:
    (tmp_path / "lapsed.sql").write_text("\ufeffSELECT 7 AS device_id")
    assert audience_source(tmp_path / "lapsed.sql") == "SELECT 7 AS device_id"
    (tmp_path / "lapsed.sql").write_text("-- later\n")
    with pytest.raises(AudienceError, match=r"lapsed.sql: the file is empty"):
        audience_source(str(tmp_path / "lapsed.sql"))


@pytest.mark.parametrize(
    "convert",
    [
        pa.Table.to_pylist,
        pa.Table.to_pandas,
        pl.from_arrow,
        lambda table: table,
        lambda table: table.set_column(1, table.column_names[1], table[1].dictionary_encode()),
    ],
)
def test_equal_rows_have_one_digest(
    monkeypatch: pytest.MonkeyPatch, convert: Callable[[pa.Table], Any]
) -> None:
    monkeypatch.setattr(frames, "_DIGESTED_AT_ONCE", 3)  # so that it cuts batches too
    given = convert(TABLE)
    own = rows_of(given).digest()
    assert rows_of(pickle.loads(pickle.dumps(given))).digest() == rows_of(given).digest() == own
    in_parts = convert(pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]))
    assert rows_of(in_parts).digest() == own
    others = [TABLE.slice(1), TABLE.rename_columns(["device_id", "language"]), TABLE.take([1, 0, 2, 3])]
    changed = TABLE.set_column(1, "platform", pa.array(["ios", "ios", "iosx", None]))
    assert own not in {rows_of(convert(each)).digest() for each in [*others, changed]}
