"""BigQuery as a warehouse: its clients against a small server that speaks their protocols."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse import Fields, read
from sendoff.warehouse.databases.bigquery import credentials_of, url_of

from ...bigquery_server import BigQuery, bigquery_server
from .reading import FAILING, audience, end_task_while, traced_refusal

pytestmark = pytest.mark.proof

INSTALL = "needs BigQuery's clients: pip install -c constraints.txt 'google-cloud-bigquery[bqstorage]'"
PEM = Path(__file__).parents[2] / "keys/rsa-2048.pem"


@pytest.fixture
def clients() -> None:
    pytest.importorskip("google.cloud.bigquery", reason=INSTALL)
    pytest.importorskip("google.cloud.bigquery_storage", reason=INSTALL)


@pytest.fixture
def bigquery(clients: None) -> Iterator[tuple[BigQuery, str]]:
    with bigquery_server() as server:
        yield server


def test_rows_of_many_pages_are_an_audience(bigquery: tuple[BigQuery, str]) -> None:
    server, url = bigquery
    count = 25_000
    made = audience(
        url,
        f"SELECT range + 1 AS device_id, ['ios', 'android'][1 + range % 2] AS platform FROM range({count})",
    )
    assert list(made.identifiers) == list(range(1, count + 1))
    assert {name: len(ids) for name, ids in made.groups["platform"].items()} == {
        "ios": count // 2,
        "android": count // 2,
    }
    assert server.sent == count


def test_a_query_without_rows_still_gives_its_columns(bigquery: tuple[BigQuery, str]) -> None:
    _, url = bigquery
    with read(url, "SELECT range AS device_id FROM range(0)") as batches:
        assert [(batch.num_rows, batch.schema.names) for batch in batches] == [(0, ["device_id"])]


def test_only_a_few_pages_are_read_ahead(bigquery: tuple[BigQuery, str]) -> None:
    server, url = bigquery
    with read(url, "SELECT range AS device_id FROM range(5000000)") as batches:
        assert next(batches).num_rows == 10_000
        assert server.sent < 2_500_000  # what gRPC has on its way


def test_values_are_parameters_of_the_query(bigquery: tuple[BigQuery, str]) -> None:
    server, url = bigquery
    parameters = {
        "period_end": datetime(2026, 3, 1, 10, 30, tzinfo=UTC),
        "who": "o'clock\\' OR 1=1 --",
        "least": 2**40,
    }
    sql = "SELECT epoch(:period_end) AS a, :who AS b, :least AS c"
    with read(url, sql, parameters=parameters) as batches:
        [row] = [row for batch in batches for row in batch.to_pylist()]
    assert row == {"a": parameters["period_end"].timestamp(), "b": parameters["who"], "c": 2**40}
    assert server.jobs[0].sql.strip() == "SELECT epoch(?) AS a, ? AS b, ? AS c"


def test_a_job_has_its_dataset_and_its_limit(bigquery: tuple[BigQuery, str]) -> None:
    server, url = bigquery
    assert audience(f"{url}&maximum_bytes_billed=1000000", "SELECT 1 AS device_id").identifiers
    [job] = server.jobs
    assert job.configuration["query"]["defaultDataset"] == {"projectId": "shop", "datasetId": "sales"}
    assert job.configuration["query"]["maximumBytesBilled"] == "1000000"
    assert job.configuration["query"]["useLegacySql"] is False
    with pytest.raises(QueryError, match="Invalid value"):
        audience(f"{url}&maximum_bytes_billed=10GB", "SELECT 1 AS device_id")


def test_more_than_one_statement_is_refused(bigquery: tuple[BigQuery, str]) -> None:
    server, url = bigquery
    assert "found more than one statement" in traced_refusal(
        url, "SELECT 1 AS device_id -- x\n; DROP TABLE devices"
    )
    assert not server.planned


def test_a_comment_may_begin_with_a_hash(bigquery: tuple[BigQuery, str]) -> None:
    _, url = bigquery
    assert audience(url, "#standardSQL\nSELECT 1 AS device_id # it's for :nothing").identifiers
    assert "found more than one statement" in traced_refusal(
        url, "SELECT 1 AS device_id # '\n; DROP TABLE devices # '"
    )


def test_what_bigquery_does_not_call_a_select_is_not_run(bigquery: tuple[BigQuery, str]) -> None:
    server, url = bigquery
    # To BigQuery, three quotes begin and end a text. To Sendoff, the rest of the line is a text too.
    hidden = "SELECT ''' ' ''' AS name, 1 AS device_id; DROP TABLE devices -- '"
    assert "found a statement of the type SCRIPT" in traced_refusal(url, hidden)
    assert (len(server.planned), server.jobs) == (1, [])


# The end of a query


def test_a_task_that_is_ended_ends_its_query(bigquery: tuple[BigQuery, str]) -> None:
    server, url = bigquery
    end_task_while(lambda: server.jobs, url, "SELECT 'a slow one' AS external_id")
    [job] = server.jobs
    assert job.problem is not None
    assert job.problem["reason"] == "stopped"


# Errors


def test_the_error_of_a_function_is_told_without_data(bigquery: tuple[BigQuery, str]) -> None:
    said = traced_refusal(bigquery[1], FAILING)
    assert "no consent of …" in said
    assert "musterman" not in said


@pytest.mark.promise("private/secrets")
def test_no_data_is_in_an_error_or_a_log(
    bigquery: tuple[BigQuery, str], caplog: pytest.LogCaptureFixture
) -> None:
    server, url = bigquery
    caplog.set_level(logging.WARNING)
    word = "plan" + "ted"
    said = traced_refusal(
        url, "SELECT CAST(x AS BIGINT) AS device_id FROM (SELECT :who AS x)", parameters={"who": word}
    )
    assert word in server.jobs[0].problem["message"]  # type: ignore[index]
    assert "the warehouse said: Conversion Error" in said
    assert word not in said + caplog.text


def test_a_mistake_is_told_with_its_names_before_it_runs(bigquery: tuple[BigQuery, str]) -> None:
    server, url = bigquery
    assert '"nosuch" not found' in traced_refusal(url, "SELECT nosuch FROM range(3)")
    assert not server.jobs


# URLs, keys and connections


def key(**more: str) -> dict[str, str]:
    return {
        "type": "service_account",
        "project_id": "shop",
        "client_email": "reader@shop.example",
        "token_uri": "https://shop.example/token",
        "private_key": PEM.read_text(),
        "private_key_id": "1",
        **more,
    }


def test_a_key_logs_in(bigquery: tuple[BigQuery, str], tmp_path: Path) -> None:
    import jwt
    import requests
    from google.auth.transport.requests import Request

    server, url = bigquery
    endpoint = str(sa.make_url(url).query["api_endpoint"])
    file = tmp_path / "key.json"
    file.write_text(json.dumps(key(token_uri=f"{endpoint}/token")))
    credentials, project = credentials_of(sa.make_url(f"bigquery:///sales?key_path={file}"))
    credentials.refresh(Request(requests.Session()))
    assert (project, credentials.token) == ("shop", "t")
    [asked] = server.logins
    claims = jwt.decode(
        asked.partition("assertion=")[2].partition("&")[0], options={"verify_signature": False}
    )
    assert claims["iss"] == "reader@shop.example"


@pytest.mark.promise("private/secrets")
def test_a_wrong_key_is_not_told(bigquery: tuple[BigQuery, str]) -> None:
    _, url = bigquery
    words = base64.b64encode(json.dumps({"private_key": "pa55word"}).encode()).decode()
    url = url.replace("api_endpoint=http:", "api_endpoint=https:").replace("//shop", f"//key:{words}@shop")
    said = traced_refusal(url, "SELECT 1 AS device_id")
    assert "the warehouse said: Service account info was not in the expected format" in said
    assert "pa55word" not in said
    assert words not in said


def test_an_unknown_parameter_is_told(clients: None) -> None:
    said = traced_refusal("bigquery://shop?locaton=EU", "SELECT 1 AS device_id")
    assert "has locaton. Use key_path, location" in said


def test_an_airflow_connection_becomes_a_url(clients: None) -> None:
    def url(**extra: Any) -> sa.URL | None:
        return url_of(Fields(None, None, None, None, None, extra))

    plain = sa.URL.create("bigquery", host="shop")
    assert url(project="shop", num_retries=5, keyfile_dict="", scope="") == plain
    assert url(extra__google_cloud_platform__project="shop") == plain
    assert url(project="shop", key_path="/key.json", location="EU") == plain.set(
        query={"key_path": "/key.json", "location": "EU"}
    )
    for given in (key(), json.dumps(key())):
        found = url(keyfile_dict=given)
        assert found is not None
        assert found.host == "shop"
        credentials, project = credentials_of(sa.make_url(found.render_as_string(hide_password=False)))
        assert (credentials.service_account_email, project) == ("reader@shop.example", "shop")
    assert [url(key_secret_name="s"), url(impersonation_chain="a"), url(keyfile_dict="{")] == [None] * 3
