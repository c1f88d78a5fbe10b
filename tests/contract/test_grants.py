"""A launch from its audience to its report, each part of it under a PostgreSQL user with the least rights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests
import sqlalchemy as sa
from typer.testing import CliRunner

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign
from sendoff.cli import app
from sendoff.dispatch.control import stop
from sendoff.dispatch.request import Sender
from sendoff.dispatch.worker import Tally, work
from sendoff.errors import UnusableLedgerError
from sendoff.ledger import Ledger
from sendoff.ledger.grants import ROLES, grant_statements
from sendoff.period import Period, launch_key
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.service.client import Client
from sendoff.service.postbacks import Addresses
from sendoff.service.tokens import ClientSecret, TokenSource

from ..waiting import PATIENCE, until

SENDOFF = (sys.executable, "-c", "from sendoff.cli import main; main()")
SECRET = "secret of post-backs in this test"
ADDRESSES = Addresses("http://127.0.0.1:9", [SECRET])  # a signature is the same at every public address
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
KEY = launch_key("service", "spring", PERIOD)
CAMPAIGN = Campaign.model_validate(
    {
        "title": "Spring",
        "message": {"title": "Hello", "text": "It is spring"},
        "channels": {"web_push": {"browsers": ["chrome"]}},
    }
)

Urls = dict[str, str]


@pytest.fixture(scope="module")
def urls(postgres_url: str) -> Iterator[Urls]:
    """The URL of a migrated ledger as its owner, and as a user of each role, by the name of the role."""
    with closing(Ledger(postgres_url)) as ledger:
        ledger.migrate()
    users = {role: f'"{role} {uuid4().hex[:8]}"' for role in ROLES}  # a name that must be quoted
    engine = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for role, user in users.items():
            connection.execute(sa.text(f"CREATE USER {user} PASSWORD 'planted'"))
            for statement in grant_statements(role, user.strip('"')):
                connection.execute(sa.text(statement))
        url = sa.make_url(postgres_url)
        yield {
            "owner": postgres_url,
            **{
                role: url.set(username=user.strip('"'), password="planted").render_as_string(
                    hide_password=False
                )
                for role, user in users.items()
            },
        }
        for user in users.values():
            connection.execute(sa.text(f"DROP OWNED BY {user}"))
            connection.execute(sa.text(f"DROP USER {user}"))
    engine.dispose()


@pytest.fixture(scope="module")
def open_ledger(urls: Urls) -> Iterator[Callable[[str], Ledger]]:
    ledgers = {role: Ledger(url) for role, url in urls.items()}
    yield ledgers.__getitem__
    for ledger in ledgers.values():
        ledger.close()


@pytest.fixture
def receiver(urls: Urls, free_port: int, tmp_path: Path) -> Iterator[str]:
    """The public address of a receiver whose ledger lets it do nothing but receive."""
    public_url = f"http://127.0.0.1:{free_port}"
    settings = {
        "SENDOFF_LEDGER_URL": urls["receiver"],
        "SENDOFF_PUBLIC_URL": public_url,
        "SENDOFF_POST_BACK_SECRETS": SECRET,
    }
    with (tmp_path / "receiver.log").open("wb") as output:
        process = subprocess.Popen(
            [*SENDOFF, "receiver", "--port", str(free_port)],
            env=os.environ | settings,
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: process.poll() is not None or _is_ready(public_url))
        assert process.poll() is None, (tmp_path / "receiver.log").read_text()
        yield public_url
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _is_ready(public_url: str) -> bool:
    try:
        return requests.get(f"{public_url}/readyz", timeout=PATIENCE).ok
    except requests.RequestException:
        return False


@pytest.mark.promise("private/rights")
def test_a_launch_needs_no_more_than_the_rights_of_each_part(
    service_process: Any, receiver: str, urls: Urls, open_ledger: Callable[[str], Ledger]
) -> None:
    worker = open_ledger("worker")
    freeze(worker)
    session = requests.Session()
    login = ClientSecret(service_process.client_id, service_process.client_secret)
    tokens = TokenSource(login, service_process.base_url, session)
    sender = Sender(Client(service_process.base_url, session, tokens), Addresses(receiver, [SECRET]))
    assert work(worker, KEY, sender) == Tally(accepted=2)
    service_process.wait_until_quiet()

    figures = reconcile_launch(worker, KEY)
    assert figures.verdicts["delivered"] + figures.verdicts["engaged"] > 0
    assert figures.anomalies == dict.fromkeys(figures.anomalies, 0)

    reader = open_ledger("reader")
    assert reader.verdicts.figures(KEY).verdicts == figures.verdicts
    assert reader.dispatches.states(KEY) == {"accepted": 2}
    assert not open_ledger("receiver").post_backs.is_registered(0, "nobody", NOW)  # asked after an outage
    people(worker)

    places = dump(urls["owner"])
    assert [name for name, text in places.items() if "It is spring" in text] == ["launches"]
    everything = "\n".join(places.values())
    signatures = [
        ADDRESSES.sign(kind, dispatch.dispatch_key).rpartition("/")[2]
        for kind in ("delivery", "open")
        for dispatch in worker.dispatches.of_launch(KEY)
    ]
    for secret in (service_process.client_secret, tokens.token(), SECRET, "planted", *signatures):
        assert secret not in everything
        assert secret.encode().hex() not in everything  # as PostgreSQL writes bytes


def dump(url: str) -> dict[str, str]:
    """Every row of every table of a ledger, as text, by table."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = {
            name: "\n".join(connection.scalars(sa.text(f'SELECT each::text FROM "{name}" each')))
            for name in sa.inspect(connection).get_table_names()
        }
    engine.dispose()
    return found


def freeze(ledger: Ledger) -> None:
    chrome = integers([n for n in range(1, 701) if n % 7 == 2][:20])
    audience = Audience("device_id", chrome, 20, {}, {}, chrome.fingerprint())
    ledger.launches.freeze(
        KEY,
        connection="service",
        campaign="spring",
        period=PERIOD,
        resend=0,
        definition=CAMPAIGN.model_dump_json(),
        audience=audience,
        segments=(Segment(each) for each in chrome.slices(10)),
        now=NOW,
        state="released",
        sends_at=NOW,
    )


def people(ledger: Ledger) -> None:
    """What people do at the command line."""
    stop(ledger, KEY, "ann", "enough")
    ledger.lists.store("staff", "device_id", integers([1]), "ann", NOW)
    ledger.lists.store("staff", "device_id", integers([2]), "ann", NOW)
    ledger.lists.delete("staff")
    ledger.ping()


FORBIDDEN = {
    "receiver": [
        "SELECT size FROM audiences",
        "SELECT identifiers FROM segments",
        "SELECT size FROM verdicts",
        "SELECT definition FROM launches",
        "SELECT body FROM post_backs",
        "SELECT folded FROM receivers",
        "DELETE FROM post_backs",
        "UPDATE post_backs SET readable = false",
        "UPDATE receivers SET folded = 0",
        "INSERT INTO returns SELECT * FROM returns",
        "UPDATE dispatches SET state = 'planned'",
        "TRUNCATE post_backs",
    ],
    "worker": [
        "UPDATE attempts SET worker = 'nobody'",
        "DELETE FROM attempts",
        "UPDATE outcomes SET kind = 'accepted'",
        "DELETE FROM outcomes",
        "UPDATE decisions SET who = 'nobody'",
        "DELETE FROM decisions",
        "UPDATE segments SET size = 0",
        "DELETE FROM segments",
        "UPDATE audiences SET size = 0",
        "DELETE FROM post_backs",
        "UPDATE post_backs SET readable = false",
        "INSERT INTO post_backs SELECT * FROM post_backs",
        "TRUNCATE post_backs",
        "DROP TABLE post_backs",
    ],
    "reader": [
        "SELECT identifiers FROM audience_groups",
        "SELECT identifiers FROM segments",
        "SELECT parameters FROM segments",
        "SELECT identifiers FROM left_out",
        "SELECT identifiers FROM list_parts",
        "SELECT identifiers FROM verdicts",
        "SELECT engaged FROM returns",
        "SELECT definition FROM launches",
        "SELECT kind FROM post_backs",
        "UPDATE reports SET as_of = as_of",
        "DELETE FROM reports",
    ],
}


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (role, statement)
        for role, own in FORBIDDEN.items()
        for statement in [*own, "CREATE TABLE mine (n integer)", "ALTER TABLE launches ADD COLUMN n integer"]
    ],
)
@pytest.mark.promise("private/rights")
def test_what_a_part_need_not_do_is_forbidden(urls: Urls, role: str, statement: str) -> None:
    engine = sa.create_engine(urls[role])
    with pytest.raises(sa.exc.ProgrammingError) as error, engine.connect() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()
    assert getattr(error.value.orig, "sqlstate", None) == "42501"


def test_what_is_forbidden_is_told_as_such(open_ledger: Callable[[str], Ledger]) -> None:
    with pytest.raises(UnusableLedgerError, match="the ledger's user may not do this"):
        open_ledger("receiver").launches.get(KEY)


def test_a_second_run_takes_away_what_a_user_has_too_much(urls: Urls) -> None:
    reader = sa.make_url(urls["reader"]).username
    assert reader is not None
    engine = sa.create_engine(urls["owner"], isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        allowed = sa.text("SELECT has_column_privilege(:who, 'launches', 'definition', 'SELECT')")
        connection.execute(sa.text(f'GRANT SELECT, DELETE ON launches TO "{reader}"'))
        assert connection.execute(allowed, {"who": reader}).scalar()
        for statement in grant_statements("reader", reader):
            connection.execute(sa.text(statement))
        assert not connection.execute(allowed, {"who": reader}).scalar()
    engine.dispose()


def test_the_command_prints_the_statements_with_names_quoted() -> None:
    printed = CliRunner().invoke(app, ["grants", 'a"; DROP', "--role", "receiver", "--schema", "led ger"])
    assert printed.exit_code == 0
    assert printed.output.splitlines() == grant_statements("receiver", 'a"; DROP', "led ger")
    assert 'GRANT INSERT ON TABLE "led ger"."post_backs" TO "a""; DROP";' in printed.output
    refused = CliRunner().invoke(app, ["grants", "ann", "--role", "boss"])
    assert "found boss; allowed: receiver, worker, reader" in str(refused.exception)
