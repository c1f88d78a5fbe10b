"""Both grants and all six algorithms, of the real client against the real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from sendoff.auth import ClientSecret, Credentials, JwtBearer, TokenSource
from sendoff.client import Client
from sendoff.errors import CredentialsError, SettingsError
from sendoff.keys import SigningKey
from sendoff.outcome import Accepted, NotProcessed

ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
BODY = b"""
{"title": "A test", "broadcast": 0, "device_ids": [2, 4], "send_type": 0, "email": 1,
 "messages": {"7": {"email_subject": "s", "email_text": "t", "email_type": 1, "email_template": 1}}}
"""


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def mersenne_key(one: int, other: int) -> rsa.RSAPrivateKey:
    """Make a long RSA key at once, from two known primes, which searching new ones takes ten seconds and more for."""
    q, p = 2**one - 1, 2**other - 1
    d = pow(65537, -1, (p - 1) * (q - 1))
    public = rsa.RSAPublicNumbers(65537, p * q)
    numbers = rsa.RSAPrivateNumbers(p, q, d, d % (p - 1), d % (q - 1), pow(q, -1, p), public)
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)


def private_key(algorithm: str) -> SigningKey:
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    if algorithm in curves:
        return ec.generate_private_key(curves[algorithm])
    primes = {"RS256": (1279, 2203), "RS384": (2203, 2281), "RS512": (4253, 4423)}
    return mersenne_key(*primes[algorithm])


def client_of(service: Any, key: SigningKey, folder: Path, **settings: Any) -> JwtBearer:
    """Add a client ID of type Public Key to the service, and give the credentials for it."""
    file = folder / f"{len(list(folder.iterdir()))}.pem"
    file.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    added = service.command(
        "client-ids", "add", "--name", file.stem + folder.name, "--type", "public-key", "--key", str(file)
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return JwtBearer(added["client_id"], pem, **settings)


def secret_of(service: Any, **settings: Any) -> ClientSecret:
    return ClientSecret(service.client_id, service.client_secret, **settings)


def source(service: Any, credentials: Credentials, session: requests.Session) -> TokenSource:
    return TokenSource(credentials, service.base_url, session)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_campaign_is_created_after_logging_in_with_each_algorithm(
    service_process: Any, session: requests.Session, tmp_path: Path, algorithm: str
) -> None:
    credentials = client_of(service_process, private_key(algorithm), tmp_path)
    assert credentials.algorithm == algorithm
    tokens = source(service_process, credentials, session)
    assert isinstance(Client(service_process.base_url, session, tokens).create_campaign(BODY), Accepted)


def test_a_campaign_is_created_after_logging_in_with_a_secret(
    service_process: Any, session: requests.Session
) -> None:
    tokens = source(service_process, secret_of(service_process, lifetime=60), session)
    assert isinstance(Client(service_process.base_url, session, tokens).create_campaign(BODY), Accepted)


def test_each_login_is_new_so_that_the_service_takes_the_second_as_well(
    service_process: Any, session: requests.Session, tmp_path: Path
) -> None:
    tokens = source(service_process, client_of(service_process, private_key("ES256"), tmp_path), session)
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
    registered = client_of(service_process, private_key("ES256"), tmp_path)
    other = client_of(service_process, private_key("ES256"), tmp_path)
    mixed = JwtBearer(registered.client_id, other.private_key)
    with pytest.raises(CredentialsError, match="refuses the client ID, or its secret or key"):
        source(service_process, mixed, session).token()


def test_a_base_url_with_a_path_too_much_is_told(service_process: Any, session: requests.Session) -> None:
    tokens = TokenSource(secret_of(service_process), f"{service_process.base_url}/api", session)
    with pytest.raises(SettingsError, match="there is no token endpoint at the base URL"):
        tokens.token()


def test_a_token_that_the_service_forgot_is_renewed_and_the_request_repeated(
    service_process: Any, session: requests.Session
) -> None:
    tokens = source(service_process, secret_of(service_process), session)

    class Forgotten(TokenSource):
        """Begins with a token that the service does not know."""

        def token(self) -> str:
            return "forgotten"

        def renew(self, rejected: str) -> str:
            assert rejected == "forgotten"
            return tokens.token()

    forgotten = Forgotten(secret_of(service_process), service_process.base_url, session)
    assert isinstance(Client(service_process.base_url, session, forgotten).create_campaign(BODY), Accepted)
