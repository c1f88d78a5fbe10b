"""Both grants and all six algorithms, with the real client against the real service."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sendoff.errors import CredentialsError, SettingsError
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret, Credentials, JwtBearer
from sendoff.service.private_key import read_private_key
from sendoff.service.tokens import TokenSource
from sendoff.states import Accepted, NotProcessed, Refused

from .algorithms import KEYS, SHORTEST

BODY = b"""
{"title": "A test", "broadcast": 0, "device_ids": [2, 4], "send_type": 0, "email": 1,
 "messages": {"7": {"email_subject": "s", "email_text": "t", "email_type": 1, "email_template": 1}}}
"""


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def private_pem(name: str) -> str:
    return (KEYS / f"{name}.pem").read_text()


def public_pem(name: str) -> str:
    key = read_private_key(private_pem(name)).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def certificate_pem(name: str, ends: datetime) -> str:
    key, subject = read_private_key(private_pem(name)), x509.Name([])
    starts = ends - timedelta(days=365)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, starts, ends)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def added(service: Any, kind: str, *options: str) -> dict[str, Any]:
    client_id: dict[str, Any] = service.command(
        "client-ids", "add", "--name", uuid4().hex, "--type", kind, *options
    )
    return client_id


def client_of(service: Any, folder: Path, name: str = "ec-256", *, held: str | None = None) -> JwtBearer:
    """Add a client ID of type Public Key with the key's public half, and return its credentials."""
    file = folder / f"{uuid4().hex}.pem"
    file.write_text(held or public_pem(name))
    return JwtBearer(added(service, "public-key", "--key", str(file))["client_id"], private_pem(name))


def secret_of(service: Any, **settings: Any) -> ClientSecret:
    return ClientSecret(service.client_id, service.client_secret, **settings)


def source(service: Any, credentials: Credentials, session: requests.Session) -> TokenSource:
    return TokenSource(credentials, service.base_url, session)


@pytest.mark.rule(
    "2.2/type", "2.2/key", "5/two_grants", "5.1/public_key", "5.1/x509", "5.1/spki", "5.1/RS256",
    "5.1/RS384", "5.1/RS512", "5.1/ES256", "5.1/ES384", "5.1/ES512", "8/key_sizes", side="client",
)  # fmt: skip
@pytest.mark.parametrize("form", ["SPKI", "X.509"])
@pytest.mark.parametrize("algorithm", SHORTEST)
def test_a_campaign_is_created_after_logging_in_with_each_algorithm(
    service_process: Any, session: requests.Session, tmp_path: Path, algorithm: str, form: str
) -> None:
    name = SHORTEST[algorithm]
    held = public_pem(name) if form == "SPKI" else certificate_pem(name, datetime.now(UTC) + timedelta(1))
    credentials = client_of(service_process, tmp_path, name, held=held)
    assert credentials.algorithm == algorithm
    tokens = source(service_process, credentials, session)
    assert isinstance(Client(service_process.base_url, session, tokens).create_campaign(BODY), Accepted)


@pytest.mark.rule("2.2/type", "5/two_grants", "5/bearer", "5.2/secret", side="client")
def test_a_campaign_is_created_after_logging_in_with_a_secret(
    service_process: Any, session: requests.Session
) -> None:
    tokens = source(service_process, secret_of(service_process, lifetime=60), session)
    assert isinstance(Client(service_process.base_url, session, tokens).create_campaign(BODY), Accepted)


@pytest.mark.rule("5.1/jti", "7/jti", "8/jti", side="client")
def test_each_login_is_new_so_that_the_service_takes_the_second_as_well(
    service_process: Any, session: requests.Session, tmp_path: Path
) -> None:
    tokens = source(service_process, client_of(service_process, tmp_path), session)
    first = tokens.token()
    assert tokens.token() == first
    assert tokens.renew(first) != first


def test_a_wrong_secret_is_told_and_nothing_is_sent(service_process: Any, session: requests.Session) -> None:
    tokens = source(service_process, ClientSecret(service_process.client_id, "wrong"), session)
    with pytest.raises(CredentialsError, match="refuses the client ID, or its secret or key"):
        tokens.token()
    outcome = Client(service_process.base_url, session, tokens).create_campaign(BODY)
    assert isinstance(outcome, NotProcessed)


def test_the_key_of_another_client_id_is_told(
    service_process: Any, session: requests.Session, tmp_path: Path
) -> None:
    mixed = JwtBearer(client_of(service_process, tmp_path).client_id, private_pem("ec-384"))
    with pytest.raises(CredentialsError, match="refuses the client ID, or its secret or key"):
        source(service_process, mixed, session).token()


def end(service: Any, client_id: str, certificate: str) -> None:
    """Replace the certificate in the service by one from yesterday with the same key, as if a day had passed."""
    row = (certificate, (datetime.now(UTC) - timedelta(days=1)).timestamp(), client_id)
    with closing(sqlite3.connect(service.database.removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE client_ids SET key = ?, expires_at = ? WHERE client_id = ?", row)


@pytest.mark.rule("3/certificate_expiry", "5.1/x509_request", "7/certificate", side="client")
def test_a_certificate_that_has_ended_is_told_when_a_token_is_asked_for(
    service_start: Any, session: requests.Session, tmp_path: Path
) -> None:
    service = service_start()
    held = certificate_pem("ec-256", datetime.now(UTC) + timedelta(days=1))
    credentials = client_of(service, tmp_path, held=held)
    tokens = source(service, credentials, session)
    client = Client(service.base_url, session, tokens)
    assert isinstance(client.create_campaign(BODY), Accepted)
    end(service, credentials.client_id, certificate_pem("ec-256", datetime.now(UTC) - timedelta(days=1)))
    outcome = client.create_campaign(BODY)  # the token is refused, and so is the request for a new one
    assert isinstance(outcome, NotProcessed)
    assert outcome.is_permanent
    assert "certificate has expired" in outcome.reason


@pytest.mark.rule("2.2/expires_at", "3/token_expiry", "8/lifetime", side="client")
def test_a_client_id_that_ends_soon_shows_in_a_token_that_is_cut_short(
    service_process: Any, session: requests.Session
) -> None:
    ends = datetime.now(UTC) + timedelta(minutes=10)
    short = added(service_process, "secret", "--expires-at", ends.isoformat())
    credentials = ClientSecret(short["client_id"], short["client_secret"], lifetime=3600)
    tokens = source(service_process, credentials, session)
    tokens.token()
    (warning,) = tokens.warnings()
    assert "not the 3600 that were asked for: the client ID ends at" in warning


@pytest.mark.rule("2.2/scopes", side="client")
def test_what_the_scopes_of_a_client_id_leave_out_is_refused(
    service_process: Any, session: requests.Session
) -> None:
    reader = added(service_process, "secret", "--scope", "list")
    credentials = ClientSecret(reader["client_id"], reader["client_secret"])
    client = Client(service_process.base_url, session, source(service_process, credentials, session))
    outcome = client.create_campaign(BODY)
    assert isinstance(outcome, Refused)
    assert outcome.status == 403
    assert "create" in outcome.message


def test_a_base_url_with_a_path_too_much_is_told(service_process: Any, session: requests.Session) -> None:
    tokens = TokenSource(secret_of(service_process), f"{service_process.base_url}/api", session)
    with pytest.raises(SettingsError, match="there is no token endpoint at the base URL"):
        tokens.token()


@pytest.mark.rule("5.3/401", "7/401", side="client")
def test_a_token_that_the_service_forgot_is_renewed_and_the_request_repeated(
    service_process: Any, session: requests.Session
) -> None:
    tokens = source(service_process, secret_of(service_process), session)

    class Forgotten(TokenSource):
        """Starts with a token that the service does not know."""

        def token(self) -> str:
            return "forgotten"

        def renew(self, rejected: str) -> str:
            assert rejected == "forgotten"
            return tokens.token()

    forgotten = Forgotten(secret_of(service_process), service_process.base_url, session)
    assert isinstance(Client(service_process.base_url, session, forgotten).create_campaign(BODY), Accepted)
