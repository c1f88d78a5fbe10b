"""Snowflake as a warehouse: the options of its driver, and the driver against a fake server."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import jwt
import pyarrow as pa
import pytest
import sqlalchemy as sa

from sendoff.audience.build import build_audience
from sendoff.errors import AudienceError, QueryError, WarehouseUnavailableError
from sendoff.warehouse import Fields, read
from sendoff.warehouse.databases.snowflake import driver_options, url_of
from sendoff.warehouse.query import Query
from sendoff.warehouse.rows import with_whole_numbers

from ...waiting import PATIENCE
from .reading import end_task_while

KEYS = Path(__file__).parents[2] / "keys"
URL = "snowflake://ann:pa55%2Fword@org-shop/sales/public?warehouse=small&role=reader"
WHOLE = "adbc.snowflake.sql.client_option.use_high_precision"


def options(url: str) -> dict[str, str]:
    return driver_options(sa.make_url(url))


def test_a_url_becomes_options_of_the_driver() -> None:
    assert options(URL) == {
        "username": "ann",
        "password": "pa55/word",
        "adbc.snowflake.sql.account": "org-shop",
        "adbc.snowflake.sql.auth_type": "auth_snowflake",
        "adbc.snowflake.sql.db": "sales",
        "adbc.snowflake.sql.schema": "public",
        "adbc.snowflake.sql.warehouse": "small",
        "adbc.snowflake.sql.role": "reader",
        "adbc.snowflake.sql.client_option.use_high_precision": "false",
        "adbc.snowflake.sql.client_option.login_timeout": "10s",
        "adbc.snowflake.sql.client_option.disable_telemetry": "true",
    }


def test_what_a_url_leaves_out_is_left_to_the_driver() -> None:
    assert set(options("snowflake://ann@org-shop")) == {
        "username",
        "adbc.snowflake.sql.account",
        "adbc.snowflake.sql.auth_type",
        "adbc.snowflake.sql.client_option.use_high_precision",
        "adbc.snowflake.sql.client_option.login_timeout",
        "adbc.snowflake.sql.client_option.disable_telemetry",
    }


@pytest.mark.parametrize(
    ("query", "way", "where"),
    [
        ("", "auth_snowflake", "password"),
        ("?authenticator=snowflake", "auth_snowflake", "password"),
        ("?authenticator=SNOWFLAKE", "auth_snowflake", "password"),
        (
            "?authenticator=programmatic_access_token",
            "auth_pat",
            "adbc.snowflake.sql.client_option.auth_token",
        ),
        ("?authenticator=oauth", "auth_oauth", "adbc.snowflake.sql.client_option.auth_token"),
        (
            "?authenticator=snowflake_jwt&private_key_file=/key.p8",
            "auth_jwt",
            "adbc.snowflake.sql.client_option.jwt_private_key_pkcs8_password",
        ),
        (
            "?private_key_file=/key.p8",
            "auth_jwt",
            "adbc.snowflake.sql.client_option.jwt_private_key_pkcs8_password",
        ),
    ],
)
def test_the_password_goes_where_the_authenticator_wants_it(query: str, way: str, where: str) -> None:
    found = options(f"snowflake://ann:s3cret@org-shop/sales{query}")
    assert found["adbc.snowflake.sql.auth_type"] == way
    assert [name for name, value in found.items() if value == "s3cret"] == [where]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("snowflake://ann:s3cret@/sales", "has no account"),
        (
            "snowflake://ann:s3cret@org-shop/sales?wharehouse=small",
            "has wharehouse. Use warehouse, role, region",
        ),
        (
            "snowflake://ann:s3cret@org-shop/sales?authenticator=externalbrowser",
            "authenticator externalbrowser",
        ),
    ],
)
def test_a_wrong_url_is_told_without_the_password(url: str, message: str) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        options(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("database", [2026, "2026"])
def test_an_airflow_connection_may_have_numbers_as_names(database: int | str) -> None:
    extra = {"account": 12345, "database": database, "warehouse": 7}
    url = url_of(Fields("", None, "ann", "pa55", None, extra))
    assert url == sa.make_url("snowflake://ann:pa55@12345/2026?warehouse=7")


def test_moments_and_texts_are_written_as_snowflake_reads_them() -> None:
    parameters = {"period_end": datetime(2026, 3, 1, 10, 30, tzinfo=UTC), "who": "o'clock\\"}
    query = Query("SELECT :period_end AS a, :who AS b", parameters, 1, sa.make_url(URL))
    assert (
        query.with_literals().strip()
        == "SELECT TO_TIMESTAMP_TZ('2026-03-01T10:30:00+00:00') AS a, 'o''clock\\\\' AS b"
    )


# Numbers of 38 digits, which other drivers return for whole numbers


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, None, 2**63 - 1], pa.int64()),
        ([-1, 5], pa.int64()),
        ([1, 2**64 - 1], pa.uint64()),
        ([], pa.int64()),
    ],
)
def test_decimals_without_a_fraction_are_whole_numbers(values: list[int | None], type_: pa.DataType) -> None:
    decimals = [None if value is None else Decimal(value) for value in values]
    batch = pa.record_batch({"DEVICE_ID": pa.array(decimals, pa.decimal128(38, 0)), "x": ["a"] * len(values)})
    found = with_whole_numbers(batch)
    assert found.schema.names == ["DEVICE_ID", "x"]
    assert found.column(0).type == type_
    assert found.column(0).to_pylist() == values


@pytest.mark.parametrize("type_", [pa.decimal128(38, 1), pa.decimal128(38, 0)])
def test_decimals_that_fit_no_whole_number_are_refused(type_: pa.DataType) -> None:
    batch = pa.record_batch({"device_id": pa.array([Decimal(2**64 + 1)], type_)})
    assert with_whole_numbers(batch) == batch
    with pytest.raises(AudienceError, match="must contain whole numbers"):
        build_audience([with_whole_numbers(batch)])


# The driver itself


@pytest.fixture
def driver() -> object:
    return pytest.importorskip(
        "adbc_driver_snowflake", reason="needs Snowflake's driver: pip install '.[snowflake]'"
    )


def test_every_option_is_one_of_the_driver(driver: object) -> None:
    known = {each.value for each in driver.DatabaseOptions} | {"username", "password"}
    every = "?warehouse=w&role=r&region=eu&host=h&port=1&protocol=https"
    given = set(options(f"snowflake://ann:x@org-shop/sales/public{every}"))
    given |= set(options("snowflake://ann:x@org-shop/sales?private_key_file=/key.p8"))
    given |= set(options("snowflake://ann:x@org-shop/sales?authenticator=oauth"))
    assert given - known == set()
    assert WHOLE in known


@pytest.mark.parametrize(
    "query", ["", "?private_key_file=key.p8", "?authenticator=programmatic_access_token"]
)
def test_the_driver_takes_the_options(driver: object, query: str) -> None:
    with closing(driver.connect(db_kwargs=options(f"snowflake://ann:x@org-shop/sales{query}"))):
        pass


class Answers(BaseHTTPRequestHandler):
    """A fake Snowflake: a session, and three devices for each query unless it begins with a mistake."""

    asked: ClassVar[list[str]] = []
    logins: ClassVar[list[dict[str, Any]]] = []
    aborted: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer = self._answer(self.path.partition("?")[0], body)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        with suppress(BrokenPipeError):  # the client of an aborted query does not wait
            self.wfile.write(json.dumps({"success": True, "code": None, "message": None, **answer}).encode())

    def _answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path.endswith("/login-request"):
            self.logins.append(json.loads(body)["data"])
            times = {"validityInSeconds": 3600, "masterValidityInSeconds": 3600}
            return {"data": {"token": "t", "masterToken": "m", "parameters": [], "sessionInfo": {}, **times}}
        if not path.endswith("/query-request"):
            self.asked.append(path)
            if path.endswith("/abort-request"):
                self.aborted.set()
            return {"data": None}
        sql = json.loads(body)["sqlText"].strip()
        self.asked.append(sql)
        if sql.endswith("slow"):
            self.aborted.wait(PATIENCE)
        if sql.endswith("mistake"):
            said = "SQL compilation error: error line 1 at position 7\ninvalid identifier 'MISTAKE'"
            told = {"sqlState": "42000", "errorCode": "000904", "queryId": "q"}
            return {"success": False, "code": "000904", "message": said, "data": told}
        return {"data": {"queryId": "q", "parameters": [], "statementTypeId": 4096, **_three_devices()}}

    def log_message(self, *what: object) -> None:
        pass


def _three_devices() -> dict[str, Any]:
    number = {"name": "DEVICE_ID", "type": "fixed", "precision": 38, "scale": 0, "nullable": True}
    text = {"name": "PLATFORM", "type": "text", "length": 9, "byteLength": 36, "nullable": True}
    schema = pa.schema(
        [
            pa.field(
                "DEVICE_ID", pa.int64(), metadata={"logicalType": "FIXED", "precision": "38", "scale": "0"}
            ),
            pa.field("PLATFORM", pa.string(), metadata={"logicalType": "TEXT"}),
        ]
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        columns = [pa.array([1, 2**53 + 1, None]), pa.array(["ios", "android", None])]
        writer.write_batch(pa.record_batch(columns, schema=schema))
    rows = base64.b64encode(sink.getvalue().to_pybytes()).decode()
    counts = {"total": 3, "returned": 3, "chunks": [], "queryResultFormat": "arrow"}
    return {"rowtype": [number, text], "rowsetBase64": rows, **counts}


@pytest.fixture
def snowflake(driver: object) -> Iterator[str]:
    """The URL of the fake Snowflake server."""
    Answers.asked.clear()
    Answers.aborted.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever).start()
        where = f"host=127.0.0.1&port={server.server_port}&protocol=http"
        yield f"snowflake://ann:s3cret@org-shop/sales/public?{where}"
        server.shutdown()


def test_numbers_of_38_digits_arrive_as_whole_numbers(snowflake: str) -> None:
    with read(snowflake, "SELECT device_id, platform FROM devices") as batches:
        made = build_audience(batches)
    assert (list(made.identifiers), made.dropped["null"]) == ([1, 2**53 + 1], 1)
    assert {name: list(ids) for name, ids in made.groups["platform"].items()} == {
        "ios": [1],
        "android": [2**53 + 1],
    }


def test_a_session_is_in_utc_reports_nothing_and_commits_nothing(snowflake: str) -> None:
    sql = "SELECT device_id FROM devices WHERE seen < :period_end"
    with read(snowflake, sql, parameters={"period_end": datetime(2026, 3, 1, tzinfo=UTC)}) as batches:
        assert sum(batch.num_rows for batch in batches) == 3
    asked = Answers.asked
    assert "ALTER SESSION SET TIMEZONE = 'UTC'" in asked
    assert "SELECT device_id FROM devices WHERE seen < TO_TIMESTAMP_TZ('2026-03-01T00:00:00+00:00')" in asked
    assert not [each for each in asked if "telemetry" in each or each.upper().startswith("COMMIT")]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", {"PASSWORD": "s3cret"}),
        ("&authenticator=programmatic_access_token", {"TOKEN": "s3cret"}),
        ("&authenticator=oauth", {"AUTHENTICATOR": "OAUTH", "TOKEN": "s3cret"}),
    ],
)
def test_the_driver_logs_in_as_the_url_says(snowflake: str, query: str, said: dict[str, str]) -> None:
    with read(snowflake + query, "SELECT device_id FROM devices") as batches:
        next(batches)
    assert said.items() <= Answers.logins[-1].items()


def test_the_driver_logs_in_with_a_key(snowflake: str) -> None:
    url = snowflake.replace(":s3cret", "") + f"&private_key_file={KEYS / 'rsa-2048.pem'}"
    with read(url, "SELECT device_id FROM devices") as batches:
        next(batches)
    said = Answers.logins[-1]
    assert said["AUTHENTICATOR"] == "SNOWFLAKE_JWT"
    claims = jwt.decode(said["TOKEN"], options={"verify_signature": False})
    assert claims["sub"].endswith("ANN")


def test_a_key_that_is_not_there_is_told(snowflake: str) -> None:
    url = f"{snowflake}&private_key_file=/nowhere/key.p8"
    with pytest.raises(QueryError, match="No such file"), read(url, "SELECT device_id FROM devices"):
        pass


def test_what_snowflake_says_of_a_mistake_is_told(snowflake: str) -> None:
    with (
        pytest.raises(QueryError, match="SQL compilation error") as caught,
        read(snowflake, "SELECT mistake"),
    ):
        pass
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.proof
def test_a_task_that_is_ended_ends_its_query(snowflake: str) -> None:
    end_task_while(lambda: "SELECT slow" in Answers.asked, snowflake, "SELECT slow")
    assert Answers.aborted.is_set()


def test_a_port_that_is_no_number_is_a_mistake(driver: object) -> None:
    url = "snowflake://ann:s3cret@org-shop/sales?host=127.0.0.1&port=none"
    with pytest.raises(QueryError, match="Port"), read(url, "SELECT 1 AS device_id"):
        pass


@pytest.mark.proof
def test_where_no_snowflake_answers_it_may_be_tried_again(driver: object, free_port: int) -> None:
    url = f"snowflake://ann:s3cret@org-shop/sales?host=127.0.0.1&port={free_port}&protocol=http"
    with pytest.raises(WarehouseUnavailableError) as caught, read(url, "SELECT 1 AS device_id"):
        pass
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
