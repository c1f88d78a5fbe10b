"""The claims of docs/operations/security-tests.md that need neither the service nor Airflow."""

from __future__ import annotations

import html
import io
import json
import re
import string
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import requests
import sqlalchemy as sa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from requests.adapters import HTTPAdapter
from sqlalchemy.pool import NullPool
from urllib3 import HTTPResponse

from sendoff.audience.csv_list import read_people
from sendoff.campaign import load_campaign
from sendoff.errors import AudienceError, CampaignError, CredentialsError, QueryError, SendoffError
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret, JwtBearer
from sendoff.service.tokens import TokenSource
from sendoff.warehouse import read

ROOT = Path(__file__).resolve().parents[2]


def test_every_claim_names_a_test_that_exists() -> None:
    claims = [
        line for line in (ROOT / "docs/operations/security-tests.md").read_text().splitlines() if "::" in line
    ]
    assert len(claims) > 20
    for claim in claims:
        named = re.fullmatch(r"\| .+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|", claim)
        assert named, claim
        assert re.search(rf"^def {named[2]}\(", (ROOT / named[1]).read_text(), re.MULTILINE), claim


# Queries of audiences


@pytest.fixture(params=["sqlite", "sqlite engine", "postgresql", "postgresql engine"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | sa.Engine]:
    """A warehouse with one device, whose user may do everything."""
    if request.param.startswith("sqlite"):
        url = f"sqlite:///{tmp_path / 'shop.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    engine = sa.create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS devices"))
        connection.execute(sa.text("CREATE TABLE devices (device_id bigint)"))
        connection.execute(sa.text("INSERT INTO devices VALUES (1)"))
    yield engine if request.param.endswith("engine") else url
    engine.dispose()


def rows(source: str | sa.Engine, sql: str) -> list[dict[str, Any]]:
    with read(source, sql) as batches:
        return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT 1 AS n; DROP TABLE devices", "more than one statement"),
        ("SELECT 1 AS n; COMMIT; DROP TABLE devices", "more than one statement"),
        ("SELECT 1) TO PROGRAM 'touch {trace}'; COPY (SELECT 1", "more than one statement"),
        ("SELECT $$;$$ AS n; DROP TABLE devices", "more than one statement"),
        ("SELECT 'a' -- '\n; DROP TABLE devices", "more than one statement"),
        ("DROP TABLE devices", "begins with DROP"),
        ("COMMIT", "begins with COMMIT"),
        ("COPY (SELECT 1) TO '{trace}'", "begins with COPY"),
        ("COPY (SELECT 1) TO PROGRAM 'touch {trace}'", "begins with COPY"),
        ("DO $$ BEGIN DELETE FROM devices; END $$", "begins with DO"),
        ("ATTACH DATABASE '{trace}' AS other", "begins with ATTACH"),
        ("VACUUM INTO '{trace}'", "begins with VACUUM"),
        ("PRAGMA query_only = OFF", "begins with PRAGMA"),
        # comments whose end depends on the database
        ("/* /* */ SELECT 1 */ COPY (SELECT 1) TO PROGRAM 'touch {trace}'", "begins with /"),
        ("-- \rCOPY (SELECT 1) TO PROGRAM 'touch {trace}' /*\nSELECT 1 */", "begins with -"),
        ("-- \rSELECT 1 /*\nATTACH DATABASE '{trace}' AS other -- */", "begins with -"),
    ],
)
@pytest.mark.promise("private/reads")
def test_what_is_not_one_query_is_refused_before_it_reaches_the_warehouse(
    shop: str | sa.Engine, tmp_path: Path, sql: str, found: str
) -> None:
    trace = tmp_path / "trace"
    tmp_path.chmod(0o777)  # so that the database's own user could write here
    with pytest.raises(QueryError, match=f"found .*{found}.*. Use one query"):
        rows(shop, sql.format(trace=trace))
    assert not trace.exists()
    assert rows(shop, "SELECT count(*) AS n FROM devices") == [{"n": 1}]


@pytest.mark.parametrize(
    "sql",
    [
        "WITH gone AS (DELETE FROM devices RETURNING 1) SELECT count(*) AS n FROM gone",
        "SELECT 1 AS n INTO kept",
        "SELECT set_config('transaction_read_only', 'off', false) AS n",
        "SELECT load_extension('anything') AS n",
    ],
)
@pytest.mark.promise("private/reads")
def test_a_query_that_would_write_or_load_code_is_refused_by_the_warehouse(
    shop: str | sa.Engine, sql: str
) -> None:
    with pytest.raises(QueryError, match="the warehouse said"):
        rows(shop, sql)
    assert rows(shop, "SELECT count(*) AS n FROM devices") == [{"n": 1}]


@pytest.mark.parametrize(
    "sql",
    [
        "-- who\r\n/* ; */ SELECT device_id FROM devices",
        "select device_id from devices where ';' <> '--;';",
        "WITH all_of_them AS (SELECT device_id FROM devices) SELECT device_id FROM all_of_them",
        'SELECT device_id AS "device_id" FROM devices -- a; b',
    ],
)
def test_every_form_of_one_query_is_read(shop: str | sa.Engine, sql: str) -> None:
    assert rows(shop, sql) == [{"device_id": 1}]


def test_what_only_postgresql_reads_is_read_too(postgres_url: str) -> None:
    assert rows(postgres_url, "(SELECT 1 AS n) UNION (SELECT 1)") == [{"n": 1}]
    assert rows(postgres_url, r"SELECT $x$a;b$x$ AS a, E'it\'s; c' AS b") == [{"a": "a;b", "b": "it's; c"}]


# Folders of campaigns


def campaign_folder(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "spring"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(text)
    (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    return folder


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch {trace}']",
        "!!python/object/new:pathlib.Path.touch ['{trace}']",
        "!!python/name:os.system",
        "!!python/module:this",
        "!include {trace}",
        "!!binary aGVsbG8=",
    ],
)
@pytest.mark.parametrize("place", ["title: {value}", "channels: {value}", "{value}", "? {value}\n: 1"])
@pytest.mark.promise("private/reads")
def test_a_campaign_file_constructs_nothing(tmp_path: Path, place: str, value: str) -> None:
    trace = tmp_path / "trace"
    folder = campaign_folder(tmp_path, place.format(value=value.format(trace=trace)))
    with pytest.raises(CampaignError, match="tags are not supported"):
        load_campaign(folder)
    assert not trace.exists()


EXCLUDING = """
title: A
message: {{title: T, text: T}}
channels: {{android_push: }}
audience:
  exclude:
    - {{kind: {kind}, file: "{file}"}}
"""


@pytest.mark.parametrize(
    "file",
    ["/etc/passwd", "../other.csv", "..", "a/b.csv", "~/people.csv", ".env", "x\\\\y.csv", "a\\nb"],
)
@pytest.mark.parametrize("kind", ["file", "query"])
def test_an_exclusion_names_a_file_of_its_folder_alone(tmp_path: Path, kind: str, file: str) -> None:
    folder = campaign_folder(tmp_path, EXCLUDING.format(kind=kind, file=file))
    with pytest.raises(CampaignError, match="the name of a file in the campaign's folder, without a path"):
        load_campaign(folder)


@pytest.mark.parametrize("name", ["campaign.yaml", "audience.sql", "people.csv", "people.sql"])
def test_a_link_out_of_the_folder_is_refused_and_not_read(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "passwords"
    outside.write_text("planted: secret\n")
    kind = "query" if name == "people.sql" else "file"
    file = name if name.startswith("people") else "people.csv"
    folder = campaign_folder(tmp_path, EXCLUDING.format(kind=kind, file=file))
    if file != name:
        (folder / file).write_text("device_id\n1\n")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(CampaignError, match="found a link that leads out of the campaign's folder") as error:
        load_campaign(folder)
    assert "planted" not in str(error.value)


def test_links_inside_of_the_folder_are_followed_as_mounted_volumes_have_them(tmp_path: Path) -> None:
    folder = campaign_folder(tmp_path, EXCLUDING.format(kind="file", file="people.csv"))
    data = folder / "..data"
    data.mkdir()
    (data / "people.csv").write_text("device_id\n1\n")
    for name in ("campaign.yaml", "audience.sql"):
        (folder / name).rename(data / name)
    for name in ("campaign.yaml", "audience.sql", "people.csv"):
        (folder / name).symlink_to(Path("..data") / name)
    mounted = tmp_path / "mounted"
    mounted.symlink_to(folder)
    assert load_campaign(mounted).campaign == load_campaign(folder).campaign


def test_the_text_of_a_file_that_is_no_list_of_people_is_in_no_error(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("planted-secret-line\nplanted-secret-second\n")
    with pytest.raises(AudienceError) as error:
        read_people(file, "device_id", "integer")
    assert "planted" not in str(error.value)


# Error messages


class Echo(HTTPAdapter):
    """Returns the same prepared answer to all requests, like a service that repeats its input."""

    def __init__(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(max_retries=0)
        self._answer = status, content, headers

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        status, content, headers = self._answer
        body = io.BytesIO(content)
        raw = HTTPResponse(body, headers=dict(headers), status=status, preload_content=False)
        return self.build_response(request, raw)


ECHOED: dict[str, Callable[[str], str]] = {
    "plain": str,
    "a form": lambda text: urlencode({"client_secret": text}),
    "a path": lambda text: quote(text, safe=""),
    "JSON": json.dumps,
    "basic": lambda text: b64encode(f"client-1:{text}".encode()).decode(),
    "HTML": html.escape,
    "a repr": repr,
    "a header": lambda text: f"Authorization: Bearer {text}",
}
SECRETS = st.text(string.ascii_letters + string.digits + string.punctuation, min_size=20, max_size=60).map(
    "A1{}".format
)
STATUSES = st.sampled_from([200, 201, 302, 400, 401, 403, 404, 408, 409, 418, 422, 429, 500, 503])
PLACES = st.sampled_from(["error", "error_description", "message", "token_type", "errors", "expires_in"])
HEADERS = st.sampled_from(
    [{}, {"Content-Type": "text/html"}, {"Retry-After": "7"}, {"Location": "https://b.c/"}]
)


MARKS = re.compile(r"^[ ~^]+$", re.MULTILINE)
"""The lines of a traceback that mark positions in the line above."""


def echoing(status: int, content: bytes, headers: Mapping[str, str]) -> requests.Session:
    session = requests.Session()
    session.mount("https://", Echo(status, content, headers))
    return session


def assert_tells_nothing(said: str, secret: str) -> None:
    """Assert that the text contains no half of the secret, in any encoding."""
    said = MARKS.sub("", said)  # a secret may look like these lines
    for write in ECHOED.values():
        written = write(secret)
        for part in (secret, written, secret[: len(secret) // 2], secret[len(secret) // 2 :]):
            assert part not in said


@example(secret="A1" + "^" * 40, status=400, place="error", form="plain", headers={}, cut=0)
@settings(deadline=None)
@given(
    secret=SECRETS,
    status=STATUSES,
    place=PLACES,
    form=st.sampled_from(sorted(ECHOED)),
    headers=HEADERS,
    cut=st.integers(0, 60),
)
@pytest.mark.promise("private/secrets")
def test_no_failed_login_tells_the_client_secret(
    secret: str, status: int, place: str, form: str, headers: dict[str, str], cut: int
) -> None:
    content = json.dumps({"error": "no", place: f"you sent {ECHOED[form](secret)}, which is wrong"}).encode()
    session = echoing(status, content[: len(content) - cut] if cut > 50 else content, headers)
    source = TokenSource(ClientSecret("client-1", secret), "https://a.example", session)
    with pytest.raises(SendoffError) as error:
        source.token()
    assert_tells_nothing("".join(traceback.format_exception(error.value)) + repr(error.value), secret)


@settings(deadline=None)
@given(
    token=st.text(string.ascii_letters + string.digits + "-._~+/", min_size=20, max_size=60).map(
        "A1{}==".format
    ),
    status=STATUSES,
    place=PLACES,
    form=st.sampled_from(sorted(ECHOED)),
    headers=HEADERS,
)
@pytest.mark.promise("private/secrets")
def test_no_outcome_of_a_request_tells_the_token(
    token: str, status: int, place: str, form: str, headers: dict[str, str]
) -> None:
    echoed = f"you sent {ECHOED[form](token)}, which is wrong"
    content = json.dumps({"success": False, "code": status, "message": "no", place: echoed}).encode()
    login = echoing(200, json.dumps({"access_token": token, "expires_in": 3600}).encode(), {})
    source = TokenSource(ClientSecret("client-1", "s" * 20), "https://a.example", login)
    client = Client("https://a.example", echoing(status, content, headers), source)
    assert_tells_nothing(repr(client.create_campaign(b"{}")), token)


PEM = (Path(__file__).parents[1] / "keys/rsa-2048.pem").read_text()


@settings(deadline=None)
@given(
    place=st.integers(0, len(PEM)),
    length=st.integers(0, 200),
    put=st.text("\n\r \\-=+/ABCnr:", max_size=8),
    passphrase=st.none() | st.just("planted passphrase"),
)
def test_no_broken_key_is_quoted(place: int, length: int, put: str, passphrase: str | None) -> None:
    broken = PEM[:place] + put + PEM[place + length :]
    try:
        JwtBearer("client-1", broken, passphrase=passphrase)
    except CredentialsError as error:
        said = "".join(traceback.format_exception(error))
        assert "planted" not in said
        assert not [line for line in PEM.splitlines()[1:-1] if line[:16] in said or line[-16:] in said]
