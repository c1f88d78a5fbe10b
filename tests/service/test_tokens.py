"""Sections 4.1 and 5 of the document, against a real process."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from uuid import uuid4

import jwt
import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from jwt.utils import base64url_encode, der_to_raw_signature

from ..contract.algorithms import KEYS, SHORTEST
from ..waiting import PATIENCE

PATH = "/api/oauth/token"
CREATE = "/api/external/create/campaign"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def credentials(service, **more):
    return {
        "grant_type": "client_credentials",
        "client_id": service.client_id,
        "client_secret": service.client_secret,
        **more,
    }


@cache
def private_key(name):
    pem = (KEYS / f"{name}.pem").read_bytes()
    # Skip the check that the primes of the 8192-bit key are prime: they are, and the check takes seconds.
    return serialization.load_pem_private_key(pem, None, unsafe_skip_rsa_key_validation=True)


def public_pem(key):
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def certificate_pem(key, starts, ends):
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "client")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = builder.not_valid_before(starts).not_valid_after(ends).sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def add_key_client(service, folder: Path, pem: bytes, *options):
    file = folder / f"{uuid4().hex}.pem"
    file.write_bytes(pem)
    arguments = ("--name", "k", "--type", "public-key", "--key", str(file), *options)
    return service.command("client-ids", "add", *arguments)["client_id"]


def add_secret_client(service, *options):
    """Add a client ID of type Secret, and return its credentials."""
    client = service.command("client-ids", "add", "--name", "s", "--type", "secret", *options)
    return {name: client[name] for name in ("client_id", "client_secret")}


def claims_of(client_id, **more):
    now = int(time.time())
    claims = {"iss": client_id, "sub": client_id, "iat": now, "exp": now + 300, "jti": str(uuid4()), **more}
    return {name: value for name, value in claims.items() if value is not None}


def signed(claims, key, algorithm):
    """Sign like a client that does not check whether its key is long enough for the algorithm."""
    header = {"typ": "JWT", "alg": algorithm}
    text = b".".join(base64url_encode(json.dumps(part).encode()) for part in (header, claims))
    digest = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}[algorithm[2:]]()
    if algorithm.startswith("RS"):
        signature = key.sign(text, padding.PKCS1v15(), digest)
    else:
        signature = der_to_raw_signature(key.sign(text, ec.ECDSA(digest)), key.curve)
    return b".".join((text, base64url_encode(signature))).decode()


def change_row(service, table, column, value, client_id):
    with closing(sqlite3.connect(service.database.removeprefix("sqlite:///"))) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE client_id = ?", (value, client_id))
        connection.commit()


def value_of(service, table, column, client_id):
    with closing(sqlite3.connect(service.database.removeprefix("sqlite:///"))) as connection:
        query = f"SELECT {column} FROM {table} WHERE client_id = ?"
        return connection.execute(query, (client_id,)).fetchone()[0]


def seconds_until(end, moment):
    return int((end - moment).total_seconds())


def needs(algorithm):
    return pytest.mark.rule(f"5.1/{algorithm}", "8/key_sizes", side="service")


def ask(service, assertion):
    return service.post(PATH, data={"grant_type": JWT_BEARER, "assertion": assertion})


@pytest.fixture(scope="module")
def key():
    return private_key("ec-256")


@pytest.fixture(scope="module")
def key_client(service_process, tmp_path_factory, key):
    return add_key_client(service_process, tmp_path_factory.mktemp("keys"), public_pem(key))


@pytest.mark.rule(
    "2.1/access_token", "2.1/token_type", "2.1/expires_in", "4.1/path", "4.1/form", "4.1/json",
    "4.1/answer", "4.1/secret_grant_type", "5/two_grants", "5.2/secret", "5.2/fields", "9/no_version",
    side="service",
)  # fmt: skip
@pytest.mark.parametrize("how", ["data", "json"])
def test_a_secret_gives_a_token_by_form_and_by_json(service_process, how):
    answer = service_process.post(PATH, **{how: credentials(service_process)})
    assert answer.status_code == 200
    body = answer.json()
    assert set(body) == {"access_token", "token_type", "expires_in"}
    assert (body["token_type"], body["expires_in"]) == ("Bearer", 3600)
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.rule(
    "4.1/secret_grant_type", "4.1/client_id", "4.1/client_secret", "4.1/lifetime", "5.2/fields",
    side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_id": "nobody"}, 401, "invalid_client"),
        ({"client_id": None}, 400, "invalid_request"),
        ({"client_secret": None}, 400, "invalid_request"),
        ({"grant_type": None}, 400, "invalid_request"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"lifetime": 0}, 400, "invalid_request"),
        ({"lifetime": "soon"}, 400, "invalid_request"),
        ({"lifetime": True}, 400, "invalid_request"),
    ],
)
def test_a_wrong_token_request_is_refused_in_the_form_of_the_standard(service_process, change, status, error):
    fields = {name: v for name, v in credentials(service_process, **change).items() if v is not None}
    answer = service_process.post(PATH, json=fields)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert answer.json()["error_description"]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{"),
        ("application/json", b"[1]"),
        ("application/x-www-form-urlencoded", b"grant_type=client_credentials&grant_type=x"),
        ("text/plain", b"grant_type=client_credentials"),
        ("application/x-www-form-urlencoded", b"\xff\xfe"),
    ],
)
def test_an_unreadable_token_request_is_an_invalid_request(service_process, content_type, body):
    answer = service_process.post(PATH, data=body, headers={"Content-Type": content_type})
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")


@pytest.mark.rule("4.1/only_post", "7/only_post", side="service")
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_post_is_accepted_at_the_token_endpoint(service_process, method):
    right = credentials(service_process)
    url = service_process.base_url + PATH
    answer = requests.request(method, url, data=right, timeout=PATIENCE)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    if method != "HEAD":  # an answer to HEAD has no body
        assert answer.json()["error"] == "invalid_request"
    assert requests.post(url, data=right, timeout=PATIENCE).status_code == 200


@pytest.mark.rule("4.1/lifetime", "5.2/lifetime", "8/lifetime", side="service")
def test_a_lifetime_is_cut_at_a_day(service_process):
    asked = {wish: credentials(service_process, lifetime=wish) for wish in (60, 86_400, 86_401)}
    given = {wish: service_process.post(PATH, data=form).json() for wish, form in asked.items()}
    assert {wish: body["expires_in"] for wish, body in given.items()} == {
        60: 60,
        86_400: 86_400,
        86_401: 86_400,
    }


@pytest.mark.rule("2.2/expires_at", "3/token_expiry", "5.2/lifetime", "8/lifetime", side="service")
def test_a_token_ends_with_its_client_id(service_process):
    ends = datetime.now(UTC) + timedelta(minutes=30)
    fields = add_secret_client(service_process, "--expires-at", ends.isoformat())
    before = datetime.now(UTC)
    body = service_process.post(PATH, data=credentials(service_process, **fields)).json()
    assert seconds_until(ends, datetime.now(UTC)) <= body["expires_in"] <= seconds_until(ends, before)
    headers = {"Authorization": f"Bearer {body['access_token']}"}
    assert service_process.post(CREATE, json={}, headers=headers).status_code == 400
    change_row(service_process, "client_ids", "expires_at", time.time() - 1, fields["client_id"])
    assert service_process.post(CREATE, json={}, headers=headers).status_code == 401
    late = service_process.post(PATH, data=credentials(service_process, **fields))
    assert (late.status_code, late.json()["error"]) == (401, "invalid_client")


@pytest.mark.rule("2.1/expires_in", "5.3/expires_in", "5.3/401", "7/401", side="service")
def test_a_token_ends_after_its_lifetime(service_process):
    fields = add_secret_client(service_process)
    headers = {"Authorization": f"Bearer {service_process.token(**fields, lifetime=600)}"}
    assert service_process.post(CREATE, json={}, headers=headers).status_code == 400
    ends = value_of(service_process, "access_tokens", "expires_at", fields["client_id"])
    # As if the token had been issued earlier. A longer-lived token would still work.
    change_row(service_process, "access_tokens", "expires_at", ends - 600, fields["client_id"])
    assert service_process.post(CREATE, json={}, headers=headers).status_code == 401


@pytest.mark.rule(
    "2.2/key", "4.1/jwt_grant_type", "4.1/assertion", "5/two_grants", "5.1/public_key", "5.1/x509",
    "5.1/spki", "5.1/lifetime", side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=pytest.mark.rule(f"5.1/{name}", side="service")) for name in SHORTEST],
)
@pytest.mark.parametrize("form", ["spki", "x509"])
def test_a_signed_assertion_gives_a_token(service_process, tmp_path, algorithm, form):
    private = private_key(SHORTEST[algorithm])
    now = datetime.now(UTC)
    pem = public_pem(private) if form == "spki" else certificate_pem(private, now, now + timedelta(days=1))
    client_id = add_key_client(service_process, tmp_path, pem)
    answer = ask(service_process, jwt.encode(claims_of(client_id, lifetime=120), private, algorithm))
    assert (answer.status_code, answer.json().get("expires_in")) == (200, 120), answer.text


@pytest.mark.rule("4.1/json", side="service")
def test_an_assertion_is_accepted_as_json_too(service_process, key, key_client):
    assertion = jwt.encode(claims_of(key_client), key, "ES256")
    answer = service_process.post(PATH, json={"grant_type": JWT_BEARER, "assertion": assertion})
    assert answer.status_code == 200


@pytest.mark.rule(
    "5.1/iss", "5.1/sub", "5.1/exp", "5.1/iat", "5.1/nbf", "5.1/lifetime", "7/nbf", side="service"
)
@pytest.mark.parametrize(
    "change",
    [
        {"iss": None},
        {"iss": "nobody"},
        {"sub": None},
        {"sub": "somebody else"},
        {"exp": None},
        {"exp": 1},
        {"exp": float("inf")},
        {"exp": "soon"},
        {"iat": None},
        {"iat": True},
        {"iat": 2**33},
        {"nbf": 2**33},
        {"jti": 7},
        {"jti": "\0"},
        {"iss": "\0"},
        {"lifetime": -1},
        {"lifetime": "long"},
    ],
    ids=str,
)
def test_an_assertion_with_a_wrong_claim_is_refused(service_process, key, key_client, change):
    answer = ask(service_process, signed(claims_of(key_client, **change), key, "ES256"))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


@pytest.mark.rule("5.1/public_key", side="service")
def test_an_assertion_signed_by_another_key_is_refused(service_process, key_client):
    other = ec.generate_private_key(ec.SECP256R1())
    answer = ask(service_process, jwt.encode(claims_of(key_client), other, "ES256"))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


@pytest.mark.rule("5.1/algorithms", side="service")
def test_the_algorithm_is_not_taken_from_the_assertion(service_process, key, key_client):
    forged = [
        jwt.encode(claims_of(key_client), None, "none"),
        jwt.encode(claims_of(key_client), "x" * 64, "HS256"),
    ]
    assert [ask(service_process, assertion).status_code for assertion in forged] == [400, 400]


@pytest.mark.parametrize(
    ("name", "algorithm", "allowed"),
    [
        pytest.param("rsa-2048", "RS384", "RS256", marks=needs("RS384")),
        pytest.param("rsa-2048", "RS512", "RS256", marks=needs("RS512")),
        pytest.param("rsa-4096", "RS512", "RS256 or RS384", marks=needs("RS512")),
        pytest.param("ec-384", "ES256", "ES384", marks=needs("ES256")),
        pytest.param("ec-256", "ES384", "ES256", marks=needs("ES384")),
        pytest.param("ec-256", "ES512", "ES256", marks=needs("ES512")),
    ],
)
def test_an_algorithm_that_the_key_is_not_made_for_is_refused(
    service_process, tmp_path, name, algorithm, allowed
):
    private = private_key(name)
    client_id = add_key_client(service_process, tmp_path, public_pem(private))
    answer = ask(service_process, signed(claims_of(client_id), private, algorithm))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")
    assert answer.json()["error_description"] == f"the key of this client ID allows {allowed} only"


@pytest.mark.parametrize(
    ("make", "algorithm", "says"),
    [
        pytest.param(lambda: rsa.generate_private_key(65537, 1024), "RS256", "2048", marks=needs("RS256")),
        pytest.param(lambda: ec.generate_private_key(ec.SECP256K1()), "ES256", "P-256", marks=needs("ES256")),
    ],
    ids=["short RSA", "another curve"],
)
def test_a_key_that_would_not_be_added_is_refused_when_it_is_used(
    service_process, tmp_path, make, algorithm, says
):
    client_id = add_key_client(service_process, tmp_path, public_pem(private_key("ec-256")))
    weak = make()
    change_row(service_process, "client_ids", "key", public_pem(weak).decode(), client_id)
    answer = ask(service_process, signed(claims_of(client_id), weak, algorithm))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")
    assert says in answer.json()["error_description"]


@pytest.mark.rule("5.1/jti", "7/jti", "8/jti", side="service")
def test_a_jti_is_spent_once_even_across_a_restart(service_start, tmp_path):
    service = service_start()
    private = ec.generate_private_key(ec.SECP256R1())
    client_id = add_key_client(service, tmp_path, public_pem(private))
    assertion = jwt.encode(claims_of(client_id), private, "ES256")
    assert [ask(service, assertion).status_code for _ in range(2)] == [200, 400]
    service.stop()
    again = ask(service_start(), assertion)
    assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")


def test_a_refused_assertion_does_not_spend_its_jti(service_process, key, key_client):
    claims = claims_of(key_client)
    other = ec.generate_private_key(ec.SECP256R1())
    assert ask(service_process, jwt.encode(claims, other, "ES256")).status_code == 400
    assert ask(service_process, jwt.encode(claims, key, "ES256")).status_code == 200


def test_an_assertion_without_a_jti_may_be_used_again(service_process, key, key_client):
    assertion = jwt.encode(claims_of(key_client, jti=None), key, "ES256")
    assert [ask(service_process, assertion).status_code for _ in range(2)] == [200, 200]


@pytest.mark.rule("3/certificate_expiry", "5.1/x509_request", "7/certificate", side="service")
def test_a_certificate_that_has_ended_makes_every_request_fail(service_process, tmp_path, key):
    now = datetime.now(UTC)
    valid, ended = (
        certificate_pem(key, now - timedelta(days=2), now + timedelta(days=days)) for days in (1, -1)
    )
    client_id = add_key_client(service_process, tmp_path, valid)
    token = ask(service_process, signed(claims_of(client_id), key, "ES256")).json()["access_token"]
    assert (
        service_process.post(CREATE, json={}, headers={"Authorization": f"Bearer {token}"}).status_code == 400
    )
    change_row(service_process, "client_ids", "key", ended.decode(), client_id)
    assert (
        service_process.post(CREATE, json={}, headers={"Authorization": f"Bearer {token}"}).status_code == 401
    )
    answer = ask(service_process, signed(claims_of(client_id), key, "ES256"))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")
    assert "certificate expired" in answer.json()["error_description"]


@pytest.mark.rule("5.1/x509_upload", side="service")
@pytest.mark.parametrize(("starts", "ends", "says"), [(-2, -1, "expired"), (1, 2, "not valid before")])
def test_a_certificate_that_is_not_valid_now_is_refused_on_upload(
    service_process, tmp_path, key, starts, ends, says
):
    now = datetime.now(UTC)
    file = tmp_path / "certificate.pem"
    file.write_bytes(certificate_pem(key, now + timedelta(days=starts), now + timedelta(days=ends)))
    arguments = ("--name", "k", "--type", "public-key", "--key", str(file))
    assert says in service_process.command("client-ids", "add", *arguments, expect=1)["error"]


@pytest.mark.rule("5.1/x509_expiry", side="service")
def test_the_expiry_of_a_certificate_is_read_from_it_and_shown(service_process, tmp_path, key):
    now = datetime.now(UTC).replace(microsecond=0)
    file = tmp_path / "certificate.pem"
    file.write_bytes(certificate_pem(key, now - timedelta(days=1), now + timedelta(days=9)))
    arguments = ("--name", "k", "--type", "public-key", "--key", str(file))
    added = service_process.command("client-ids", "add", *arguments)
    assert added["expires_at"] == (now + timedelta(days=9)).isoformat()
    by_hand = (*arguments, "--expires-at", "2040-01-01")
    assert "leave out the expiry" in service_process.command("client-ids", "add", *by_hand, expect=1)["error"]


@pytest.mark.rule(
    "2.2/expires_at", "3/token_expiry", "5.1/spki_expiry", "5.1/lifetime", "8/lifetime", side="service"
)
def test_the_expiry_of_an_spki_key_is_set_by_hand(service_process, tmp_path, key):
    ends = datetime.now(UTC) + timedelta(minutes=10)
    client_id = add_key_client(service_process, tmp_path, public_pem(key), "--expires-at", ends.isoformat())
    before = datetime.now(UTC)
    token = ask(service_process, signed(claims_of(client_id, lifetime=3_600), key, "ES256")).json()
    assert seconds_until(ends, datetime.now(UTC)) <= token["expires_in"] <= seconds_until(ends, before)
    change_row(service_process, "client_ids", "expires_at", time.time() - 1, client_id)
    answer = ask(service_process, signed(claims_of(client_id), key, "ES256"))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


@pytest.mark.rule("5.1/direct", "9/direct", side="service")
def test_a_jwt_sent_directly_works_and_is_called_deprecated(service_process, key, key_client):
    headers = {"Authorization": f"Bearer {signed(claims_of(key_client), key, 'ES256')}"}
    body = {"title": "t", "push_text": "x", "android_push": 1, "device_ids": [1]}
    answer = service_process.post(CREATE, json=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["Deprecation"] == "@0"
    assert "/api/oauth/token" in answer.headers["Link"]
    again = service_process.post(CREATE, json=body, headers=headers)
    assert (again.status_code, "jti" in again.json()["message"]) == (401, True)
    assert "Deprecation" not in service_process.create(android_push=1, device_ids=[1]).headers
    [request] = [
        r
        for r in service_process.admin("requests")["requests"]
        if r["campaign_id"] == answer.json()["model"]["id"]
    ]
    assert request["warnings"][0].startswith("deprecated")


@pytest.mark.rule("5.1/jti", side="service")
def test_a_jwt_sent_directly_spends_its_jti_even_when_the_request_is_refused(
    service_process, key, key_client
):
    headers = {"Authorization": f"Bearer {signed(claims_of(key_client), key, 'ES256')}"}
    answers = [service_process.post(CREATE, json={}, headers=headers).status_code for _ in range(2)]
    assert answers == [400, 401]


def test_secrets_and_tokens_are_in_no_record(service_process):
    token = service_process.token()
    service_process.create(android_push=1, device_ids=[1], apptoken=service_process.app_token)
    shown = str(service_process.admin("requests")) + str(service_process.admin("campaigns"))
    for secret in (token, service_process.client_secret, service_process.app_token):
        assert secret not in shown
