"""Plant secrets, people and messages, run campaigns that succeed and fail, and search all traces for them.

The search covers plain text, hexadecimal, Base64 and URL encoding. It covers Airflow's database, logs and output, the
receiver's output, and the ledger, whose allowed places are listed. The service's own record is not ours.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import requests
import sqlalchemy as sa
from airflow.models.dagrun import DagRun
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from sendoff.campaign import load_campaign
from sendoff.demo.processes import Process, Supervisor, answers
from sendoff.ledger import Ledger
from sendoff.ledger.post_backs.blocks import StoredPostBack, decode
from sendoff.ledger.storage.schema import post_backs
from sendoff.service.postbacks import PostBackSigner
from sendoff_airflow.dags import campaign_dag
from sendoff_airflow.hooks.service import SendoffHook

from ..factories import make_warehouse
from ..waiting import PATIENCE

BIN = Path(sys.executable).parent
KEY_FILE = Path(__file__).parents[1] / "keys/ec-256.pem"
POST_BACK_SECRET = "planted-post-back-secret-of-canaries"
LEDGER_PASSWORD = "planted-ledger-password"
TITLE, TEXT = "planted headline of the message", "planted body of the message {{ds}} {{run_id}}"
TEMPLATE_TEXT = "planted body of the template for {{mail}}"
UNREADABLE = "planted unreadable post-back"
PERIOD = "WHERE :period_start < :period_end"

MESSAGE = f"""
title: Spring {{{{ 7*7 }}}} {{{{ macros.uuid }}}}
message:
  title: {TITLE}
  text: "{TEXT}"
channels:
  web_push: {{browsers: [chrome, firefox]}}
segment_size: 10
"""
ONE_TO_ONE = """
title: Points
template: {{id: {template}, channels: [web_push], columns: [mail], parameters: {{shop: planted shop name}}}}
segment_size: 10
"""


def forms(text: str) -> set[bytes]:
    """Return the ways a text may be encoded. In Base64 it may start within a group of three bytes."""
    data = text.encode()
    found = {data, data.hex().encode(), data.hex().upper().encode(), quote(text).encode()}
    found |= {quote(text, safe="").encode(), quote_plus(text).encode(), json.dumps(text)[1:-1].encode()}
    for ahead, start in ((0, 0), (1, 2), (2, 3)):
        for encode in (b64encode, urlsafe_b64encode):
            found.add(encode(b"\0" * ahead + data)[start : (ahead + len(data)) * 8 // 6])
    return found


def planted_in(data: bytes, canaries: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the names of the canaries in some bytes."""
    return {
        name
        for name, texts in canaries.items()
        if any(form in data for text in texts for form in forms(text))
    }


@pytest.mark.parametrize(
    "write",
    [
        str.encode,
        lambda text: text.encode().hex().encode(),
        lambda text: b64encode(f"Basic {text}:".encode()),
        lambda text: b64encode(f"Basic! {text}:".encode()),
        lambda text: urlsafe_b64encode(f"Basic!! {text}:".encode()),
        lambda text: quote(f"a={text}&b", safe="").encode(),
        lambda text: json.dumps({"a": text}).encode(),
    ],
)
def test_the_search_finds_a_canary_in_every_form(write: Callable[[str], bytes]) -> None:
    canary = "planted: Ünicode/secret+1?"
    assert planted_in(b"before " + write(canary) + b" after", {"it": [canary]}) == {"it"}
    assert (
        planted_in(b"before " + write("another text of that length") + b" after", {"it": [canary]}) == set()
    )


@dataclass
class Planted:
    """A deployment whose secrets, people and messages are all known to the test."""

    folder: Path
    ledger_url: str
    receiver: Process
    public_url: str
    template: int
    canaries: dict[str, list[str]] = field(repr=False)

    def campaign(self, name: str, text: str, sql: str, connection: str, warehouse: str = "shop") -> Any:
        folder = self.folder / name
        folder.mkdir()
        (folder / "campaign.yaml").write_text(f"{text}connection: {connection}\nwarehouse: {warehouse}\n")
        (folder / "audience.sql").write_text(sql)
        quick = {"quiet_for": timedelta(seconds=1), "default_args": {"retries": 0}}
        return campaign_dag(load_campaign(folder), pictures=self.folder / "reports", **quick)


@pytest.fixture
def planted(
    house: Any, postgres_url: str, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Planted]:
    people = [d for d in house.devices if house.platforms[d % len(house.platforms)] == "chrome"][:20]
    mails = {device: f"planted-{device}@example.com" for device in people}
    make_warehouse(tmp_path / "shop.db", "people (device_id INTEGER, mail TEXT)", mails.items())
    _make_postgres_warehouse(postgres_url, mails)
    database = f"sqlite:///{house.folder / 'service.db'}"
    public = load_pem_private_key(KEY_FILE.read_bytes(), None).public_key()
    (tmp_path / "public.pem").write_bytes(
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    by_key = _command("client-ids", "add", "--name", "k", "--type", "public-key")(
        "--key", str(tmp_path / "public.pem"), "--expires-at", "2099-01-01", "--database", database
    )
    by_secret = _command("client-ids", "add", "--name", "s", "--type", "secret")("--database", database)
    app = _command("apps", "add", "--name", "other")("--database", database)
    extra = {"grant": "jwt_bearer", "private_key": KEY_FILE.read_text()}
    host, conn = house.service, {"conn_type": "sendoff"}
    secret = {"login": by_secret["client_id"], "password": by_secret["client_secret"]}
    ledger_url = f"sqlite:///{tmp_path / 'ledger.db'}"
    public_url = f"http://127.0.0.1:{free_port}"
    connections = {
        "by_key": {**conn, "host": host, "login": by_key["client_id"], "extra": extra},
        "by_secret": {**conn, "host": host, **secret},
        "refused": {**conn, "host": host, **secret, "extra": {"field_names": {"device_ids": "nonsense"}}},
        "wrong": {**conn, "host": host, **secret, "password": "planted-wrong-secret"},
        "down": {**conn, "host": "http://127.0.0.1:9", **secret, "extra": {"app_token": app["apptoken"]}},
        "shop": {"conn_type": "sqlite", "host": str(tmp_path / "shop.db")},
        "big_shop": _as_connection(postgres_url),
        "sendoff_receiver": {
            "conn_type": "sendoff_receiver",
            "host": public_url,
            "password": POST_BACK_SECRET,
        },
    }
    for name, settings in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(settings))
    monkeypatch.setenv("SENDOFF_LEDGER_URL", ledger_url)
    with closing(Ledger(ledger_url)) as ledger:
        ledger.migrate()
    everybody = str(people[0])[:8]  # every ID starts with this, and nothing else does
    assert all(str(device).startswith(everybody) for device in people)
    canaries = {
        "device IDs": [everybody],
        "user IDs": [f"user-{everybody}"],
        "parameters": [f"planted-{everybody}", "planted shop name"],
        "words": [TITLE, TEXT.partition(" {{")[0], TEMPLATE_TEXT.partition(" {{")[0]],
        "client secrets": [by_secret["client_secret"], "planted-wrong-secret"],
        "private key": [line for line in KEY_FILE.read_text().splitlines() if "-----" not in line],
        "app token": [app["apptoken"]],
        "post-back secret": [POST_BACK_SECRET],
        "ledger password": [LEDGER_PASSWORD],
        "unreadable body": [UNREADABLE],
    }
    template = _make_template(house.service, by_secret)
    with _receiver(ledger_url, public_url, free_port, tmp_path) as receiver:
        yield Planted(tmp_path, ledger_url, receiver, public_url, template, canaries)


@pytest.mark.proof
@pytest.mark.promise("private/secrets")
def test_nothing_that_was_planted_is_left_where_it_must_not_be(
    house: Any,
    planted: Planted,
    run_dag: Callable[..., DagRun],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = f"SELECT device_id, mail FROM people {PERIOD}"
    one_to_one = ONE_TO_ONE.format(template=planted.template)
    states = {
        name: run_dag(planted.campaign(name, text, sql, connection, *warehouse), logical_date=house.day).state
        for name, text, sql, connection, *warehouse in (
            ("by_key", MESSAGE, f"SELECT device_id FROM people {PERIOD}", "by_key"),
            ("one_to_one", one_to_one, chosen, "by_secret"),
            ("refused", MESSAGE, chosen.replace(", mail", ""), "refused"),
            ("wrong", MESSAGE, chosen.replace(", mail", ""), "wrong"),
            ("down", MESSAGE, chosen.replace(", mail", ""), "down"),
            (
                "bad_query",
                MESSAGE,
                "SELECT CAST(mail AS bigint) AS device_id FROM people",
                "down",
                "big_shop",
            ),
        )
    }
    assert states == {"by_key": "success", "one_to_one": "success"} | dict.fromkeys(
        ("refused", "wrong", "down", "bad_query"), "failed"
    )
    _post_unreadable(planted)
    monkeypatch.setenv("SENDOFF_LEDGER_URL", f"postgresql+psycopg://ann:{LEDGER_PASSWORD}@127.0.0.1:9/ledger")
    lost = planted.campaign("ledger_down", MESSAGE, chosen, "by_secret")
    assert run_dag(lost, logical_date=house.day).state == "failed"
    monkeypatch.setenv("SENDOFF_LEDGER_URL", planted.ledger_url)
    house.wait_until_quiet()
    planted.receiver.end()  # it writes a summary

    printed = "".join(capfd.readouterr())
    for said in ("refuses the client ID", "no connection to 127.0.0.1:9", "the warehouse said", "refused 2"):
        assert said in printed
    canaries = planted.canaries | {
        "tokens": [SendoffHook(name).tokens().token() for name in ("by_key", "by_secret")],
        "post-back addresses": _signatures(planted),
    }
    assert planted_in(printed.encode(), canaries) == set()
    assert not re.search(r"eyJ[\w-]{20,}\.", printed)  # an assertion
    received = planted.receiver.log.read_bytes()
    assert b"since its start: stored=" in received
    assert planted_in(received, canaries) == set()
    _assert_airflow_holds_nothing(house.copy_airflow_home(), canaries)
    _assert_the_ledger_holds_what_it_may(planted, canaries)
    _assert_jinja_was_not_rendered(house)


def _assert_airflow_holds_nothing(home: Path, canaries: Mapping[str, Iterable[str]]) -> None:
    found = {
        (str(path.relative_to(home)), name)
        for path in home.rglob("*")
        if path.is_file()
        for name in planted_in(path.read_bytes(), canaries)
    }
    assert found == set()
    places = dict(_places(home / "airflow.db"))
    assert {place: names for place, data in places.items() if (names := planted_in(data, canaries))} == {}
    for of_version in (
        ("xcom.value", "xcom_v2.value"),  # the second name of each is that of Airflow 3.4
        ("rendered_task_instance_fields.rendered_fields", "rtif_v2.rendered_fields"),
        ("asset_event.extra",),
    ):
        assert any(places.get(name) for name in of_version), of_version
    assert places["serialized_dag.data"]


def _assert_the_ledger_holds_what_it_may(planted: Planted, canaries: Mapping[str, Iterable[str]]) -> None:
    """A dump of the ledger holds people and messages only where they belong, and no secrets."""
    ledger = Path(planted.ledger_url.removeprefix("sqlite:///"))
    stored = [*_places(ledger), *_post_backs(planted.ledger_url)]
    found = {(place, name) for place, data in stored for name in planted_in(data, canaries)}
    found = {(place, name) for place, name in found if place != "sqlite_master.sql"}
    assert found == {
        ("launches.definition", "words"),
        ("launches.definition", "parameters"),  # the values that are the same for everyone
        ("segments.template_values", "parameters"),  # each person's own values, which are sent
        ("segments.template_values", "device IDs"),
        ("post_backs.device_id", "device IDs"),
        ("post_backs.profile_id", "device IDs"),  # here a profile has the number of its device
        ("post_backs.user_id", "user IDs"),
        ("post_backs.user_id", "device IDs"),  # these user IDs contain device IDs
        ("post_backs.body", "unreadable body"),  # readable bodies are not kept
        ("post_backs.block", "unreadable body"),  # a small block is stored as it is
    }
    with closing(sqlite3.connect(ledger)) as db:
        dump = "\n".join(db.iterdump()).encode()
    assert planted_in(dump, canaries) <= {name for _, name in found}


def _post_backs(ledger_url: str) -> Iterator[tuple[str, bytes]]:
    """Yield each column of the post-backs in the blocks with all its values."""
    with closing(Ledger(ledger_url)) as ledger, ledger._database.read() as db:
        rows = db.execute(sa.select(post_backs))
        stored = [each for row in rows for each in decode(row.receiver, row.first, row.block)]
    assert stored
    for column in fields(StoredPostBack):
        yield (
            f"post_backs.{column.name}",
            b"\n".join(_as_bytes(getattr(each, column.name)) for each in stored),
        )


def _assert_jinja_was_not_rendered(house: Any) -> None:
    """The title and the text reach the service exactly as in the file."""
    campaigns = house.admin("campaigns?count=1000")["campaigns"]
    titles = [each["title"] for each in campaigns if each["title"].startswith("Spring ")]
    assert len(titles) == 2
    assert all(title.startswith("Spring {{ 7*7 }} {{ macros.uuid }} [") for title in titles)


def _places(database: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each column of each table of a SQLite database with all its values."""
    with closing(sqlite3.connect(database)) as db:
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            rows = db.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in rows.description]
            columns = list(zip(*rows.fetchall(), strict=True)) or [()] * len(names)
            for name, values in zip(names, columns, strict=True):
                yield f"{table}.{name}", b"\n".join(map(_as_bytes, values))


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b"" if value is None else str(value).encode()


def _signatures(planted: Planted) -> list[str]:
    signer = PostBackSigner(planted.public_url, [POST_BACK_SECRET])
    with closing(Ledger(planted.ledger_url)) as ledger:
        keys = [
            dispatch.dispatch_key
            for launch in ledger.launches.search("", limit=100)
            for dispatch in ledger.dispatch_queries.of_launch(launch.launch_key)
        ]
    assert keys
    return [signer.sign(kind, key).rpartition("/")[2] for key in keys for kind in ("delivery", "open")]


def _post_unreadable(planted: Planted) -> None:
    address = PostBackSigner(planted.public_url, [POST_BACK_SECRET]).sign("open", "0123456789abcdef" * 2)
    assert requests.post(address, data=UNREADABLE, timeout=PATIENCE).ok
    forged = f"{address[:-4]}0000"
    assert requests.post(forged, data=UNREADABLE, timeout=PATIENCE).status_code == 404


def _make_template(service: str, client: Mapping[str, str]) -> int:
    form = {name: client[name] for name in ("client_id", "client_secret")}
    answer = requests.post(
        f"{service}/api/oauth/token", data={"grant_type": "client_credentials", **form}, timeout=PATIENCE
    )
    made = requests.post(
        f"{service}/api/external/create/campaign",
        json={
            "title": "template",
            "trigger": 3,
            "push_text": TEMPLATE_TEXT,
            "web_push": 1,
            "web_push_chrome": 1,
        },
        headers={"Authorization": f"Bearer {answer.json()['access_token']}"},
        timeout=PATIENCE,
    )
    assert made.status_code == 200, made.text
    number: int = made.json()["model"]["id"]
    return number


def _command(*words: str) -> Callable[..., dict[str, Any]]:
    def run(*more: str) -> dict[str, Any]:
        line = [BIN / "messaging-service", *words, *more]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


@contextmanager
def _receiver(ledger_url: str, public_url: str, port: int, folder: Path) -> Iterator[Process]:
    settings = {
        "SENDOFF_LEDGER_URL": ledger_url,
        "SENDOFF_PUBLIC_URL": public_url,
        "SENDOFF_POST_BACK_SECRETS": POST_BACK_SECRET,
    }
    line = [str(BIN / "sendoff"), "receiver", "--port", str(port)]
    with Supervisor(folder) as supervisor:
        yield supervisor.start(
            "receiver", line, os.environ | settings, ready=lambda: answers(f"{public_url}/readyz")
        )


def _make_postgres_warehouse(url: str, mails: Mapping[int, str]) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as db:
        db.execute(sa.text("CREATE TABLE people (device_id bigint, mail text)"))
        rows = [{"device": device, "mail": mail} for device, mail in mails.items()]
        db.execute(sa.text("INSERT INTO people VALUES (:device, :mail)"), rows)
    engine.dispose()


def _as_connection(url: str) -> dict[str, Any]:
    parsed = sa.make_url(url)
    return {
        "conn_type": "postgres",
        "host": parsed.host,
        "port": parsed.port,
        "login": parsed.username,
        "password": parsed.password,
        "schema": parsed.database,
    }
