"""A launch from its audience to its report; each part runs as a PostgreSQL user with the least privileges."""

from __future__ import annotations

import os
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

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign
from sendoff.cli.commands import app
from sendoff.demo.processes import Supervisor, answers
from sendoff.dispatch.control import stop
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import SendResult, send_launch
from sendoff.errors import UnusableLedgerError
from sendoff.ledger import Ledger
from sendoff.ledger.storage.grants import ROLES, grant_statements
from sendoff.ledger.suppression.suppressions import SuppressionChange
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource

from ..factories import KEY, NOW, make_launch

SENDOFF = (sys.executable, "-c", "from sendoff.cli import main; main()")
SECRET = "secret of post-backs in this test"
ADDRESSES = PostBackSigner("http://127.0.0.1:9", [SECRET])  # a signature is the same for every public address
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
    """The URL of a migrated ledger for its owner, and for a user of each role, by role name."""
    with closing(Ledger(postgres_url)) as ledger:
        ledger.migrate()
    users = {role: f'"{role} {uuid4().hex[:8]}"' for role in ROLES}  # a name that must be quoted
    engine = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as db:
        for role, user in users.items():
            db.execute(sa.text(f"CREATE USER {user} PASSWORD 'planted'"))
            for statement in grant_statements(role, user.strip('"')):
                db.execute(sa.text(statement))
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
            db.execute(sa.text(f"DROP OWNED BY {user}"))
            db.execute(sa.text(f"DROP USER {user}"))
    engine.dispose()


@pytest.fixture(scope="module")
def open_ledger(urls: Urls) -> Iterator[Callable[[str], Ledger]]:
    ledgers = {role: Ledger(url) for role, url in urls.items()}
    yield ledgers.__getitem__
    for ledger in ledgers.values():
        ledger.close()


@pytest.fixture
def receiver(urls: Urls, free_port: int, tmp_path: Path) -> Iterator[str]:
    """The public address of a receiver whose database user may only receive."""
    public_url = f"http://127.0.0.1:{free_port}"
    settings = {
        "SENDOFF_LEDGER_URL": urls["receiver"],
        "SENDOFF_PUBLIC_URL": public_url,
        "SENDOFF_POST_BACK_SECRETS": SECRET,
    }
    line = [*SENDOFF, "receiver", "--port", str(free_port)]
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(
            "receiver", line, os.environ | settings, ready=lambda: answers(f"{public_url}/readyz")
        )
        yield public_url


@pytest.mark.promise("private/rights")
def test_a_launch_needs_no_more_than_the_rights_of_each_part(
    service_process: Any, receiver: str, urls: Urls, open_ledger: Callable[[str], Ledger]
) -> None:
    worker = open_ledger("worker")
    freeze(worker)
    session = requests.Session()
    login = ClientSecret(service_process.client_id, service_process.client_secret)
    tokens = TokenSource(login, service_process.base_url, session)
    connection = ServiceConnection(
        Client(service_process.base_url, session, tokens), PostBackSigner(receiver, [SECRET])
    )
    worker.check()
    assert send_launch(worker, KEY, connection) == SendResult(accepted=2)
    service_process.wait_until_quiet()

    figures = reconcile_launch(worker, KEY)
    assert figures.verdicts["delivered"] + figures.verdicts["engaged"] > 0
    assert figures.anomalies == dict.fromkeys(figures.anomalies, 0)

    reader = open_ledger("reader")
    assert reader.verdicts.figures(KEY).verdicts == figures.verdicts
    assert reader.dispatch_queries.states(KEY) == {"accepted": 2}
    assert reader.stats.collect_gauges().reported_at is not None
    assert not open_ledger("receiver").post_backs.is_registered(0, "nobody", NOW)  # called after an outage
    opted_out = SuppressionChange("account", "device_id", "opt-out", "recipient")
    assert open_ledger("receiver").suppressions.add(opted_out, [4_711_000_000], NOW) == 1
    people(worker)

    places = dump(urls["owner"])
    assert [name for name, text in places.items() if "It is spring" in text] == ["launches"]
    everything = "\n".join(places.values())
    signatures = [
        ADDRESSES.sign(kind, dispatch.dispatch_key).rpartition("/")[2]
        for kind in ("delivery", "open")
        for dispatch in worker.dispatch_queries.of_launch(KEY)
    ]
    for secret in (service_process.client_secret, tokens.token(), SECRET, "planted", *signatures):
        assert secret not in everything
        assert secret.encode().hex() not in everything  # how PostgreSQL prints bytes


def dump(url: str) -> dict[str, str]:
    """Return all rows of all tables of a ledger as text, by table."""
    engine = sa.create_engine(url)
    with engine.connect() as db:
        found = {
            name: "\n".join(db.scalars(sa.text(f'SELECT each::text FROM "{name}" each')))
            for name in sa.inspect(db).get_table_names()
        }
    engine.dispose()
    return found


def freeze(ledger: Ledger) -> None:
    chrome = integers([n for n in range(1, 701) if n % 7 == 2][:20])
    make_launch(ledger, chrome, size=10, campaign=CAMPAIGN)


def people(ledger: Ledger) -> None:
    """The command-line actions of people."""
    stop(ledger, KEY, "ann", "enough")
    ledger.uploaded_lists.store("staff", "device_id", integers([1]), "ann", NOW)
    ledger.uploaded_lists.store("staff", "device_id", integers([2]), "ann", NOW)
    ledger.uploaded_lists.delete("staff")
    ledger.ping()


FORBIDDEN = {
    "receiver": [
        "SELECT size FROM audiences",
        "SELECT identifiers FROM segments",
        "SELECT size FROM verdicts",
        "SELECT definition FROM launches",
        "SELECT block FROM post_backs",
        "SELECT aggregated_to FROM receivers",
        "DELETE FROM post_backs",
        "UPDATE post_backs SET last = 0",
        "UPDATE receivers SET aggregated_to = 0",
        "INSERT INTO dispatch_totals SELECT * FROM dispatch_totals",
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
        "UPDATE post_backs SET last = 0",
        "INSERT INTO post_backs SELECT * FROM post_backs",
        "TRUNCATE post_backs",
        "DROP TABLE post_backs",
    ],
    "reader": [
        "SELECT identifiers FROM audience_groups",
        "SELECT identifiers FROM segments",
        "SELECT template_values FROM segments",
        "SELECT identifiers FROM suppressed",
        "SELECT identifiers FROM uploaded_list_chunks",
        "SELECT identifiers FROM verdicts",
        "SELECT engaged FROM dispatch_totals",
        "SELECT definition FROM launches",
        "SELECT block FROM post_backs",
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
    with pytest.raises(sa.exc.ProgrammingError) as error, engine.connect() as db:
        db.execute(sa.text(statement))
    engine.dispose()
    assert getattr(error.value.orig, "sqlstate", None) == "42501"


def test_what_is_forbidden_is_told_as_such(open_ledger: Callable[[str], Ledger]) -> None:
    with pytest.raises(UnusableLedgerError, match="the ledger's user lacks the rights"):
        open_ledger("receiver").launches.get(KEY)


def test_a_worker_that_maintains_the_ledger_learns_that_only_the_owner_may(
    open_ledger: Callable[[str], Ledger],
) -> None:
    with pytest.raises(UnusableLedgerError, match=r"Only the owner of the tables may .* sendoff maintain"):
        open_ledger("worker").retention.prepare(datetime(2036, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("role", ROLES)
def test_each_part_learns_that_the_tables_are_newer(
    urls: Urls, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    newer = "this ledger was made by a newer Sendoff (its tables have revision 0999"
    engine = sa.create_engine(urls["owner"])
    with engine.begin() as db:
        [revision] = db.scalars(sa.text("SELECT version_num FROM alembic_version"))
        db.execute(sa.text("UPDATE alembic_version SET version_num = '0999'"))
    try:
        with closing(Ledger(urls[role])) as ledger, ledger._database.read() as db:
            assert [message for message in caplog.messages if newer in message] == caplog.messages != []
            with pytest.raises(UnusableLedgerError) as caught, ledger._database.translated():
                db.execute(sa.text("SELECT old_name FROM receivers"))
    finally:
        with engine.begin() as db:
            db.execute(sa.text("UPDATE alembic_version SET version_num = :old"), {"old": revision})
        engine.dispose()
    assert str(caught.value).startswith(newer)


def test_a_second_run_takes_away_what_a_user_has_too_much(urls: Urls) -> None:
    reader = sa.make_url(urls["reader"]).username
    assert reader is not None
    engine = sa.create_engine(urls["owner"], isolation_level="AUTOCOMMIT")
    with engine.connect() as db:
        allowed = sa.text("SELECT has_column_privilege(:who, 'launches', 'definition', 'SELECT')")
        db.execute(sa.text(f'GRANT SELECT, DELETE ON launches TO "{reader}"'))
        assert db.execute(allowed, {"who": reader}).scalar()
        for statement in grant_statements("reader", reader):
            db.execute(sa.text(statement))
        assert not db.execute(allowed, {"who": reader}).scalar()
    engine.dispose()


def test_the_command_prints_the_statements_with_names_quoted() -> None:
    printed = CliRunner().invoke(app, ["grants", 'a"; DROP', "--role", "receiver", "--schema", "led ger"])
    assert printed.exit_code == 0
    assert printed.output.splitlines() == grant_statements("receiver", 'a"; DROP', "led ger")
    assert 'GRANT INSERT ON TABLE "led ger"."post_backs" TO "a""; DROP";' in printed.output
    refused = CliRunner().invoke(app, ["grants", "ann", "--role", "boss"])
    assert "'boss' is not a role. Use receiver, worker, reader" in str(refused.exception)
