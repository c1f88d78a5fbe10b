"""Sections 4.1 and 5 of the document, against a real process."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import jwt
import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

PATH = "/api/oauth/token"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def credentials(service, **more):
    return {
        "grant_type": "client_credentials",
        "client_id": service.client_id,
        "client_secret": service.client_secret,
        **more,
    }


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


def claims_of(client_id, **more):
    now = int(time.time())
    claims = {"iss": client_id, "sub": client_id, "iat": now, "exp": now + 60, "jti": str(uuid4()), **more}
    return {name: value for name, value in claims.items() if value is not None}


def ask(service, assertion):
    return service.post(PATH, data={"grant_type": JWT_BEARER, "assertion": assertion})


@pytest.fixture(scope="module")
def key():
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def key_client(service_process, tmp_path_factory, key):
    return add_key_client(service_process, tmp_path_factory.mktemp("keys"), public_pem(key))


@pytest.mark.parametrize("how", ["data", "json"])
def test_a_secret_gives_a_token_by_form_and_by_json(service_process, how):
    answer = service_process.post(PATH, **{how: credentials(service_process)})
    assert answer.status_code == 200
    body = answer.json()
    assert set(body) == {"access_token", "token_type", "expires_in"}
    assert (body["token_type"], body["expires_in"]) == ("Bearer", 3600)
    assert answer.headers["Cache-Control"] == "no-store"


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


def test_only_post_is_accepted_at_the_token_endpoint(service_process):
    answer = requests.get(service_process.base_url + PATH, timeout=5)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert answer.json()["error"] == "invalid_request"


def test_a_lifetime_is_cut_at_a_day(service_process):
    asked = {wish: credentials(service_process, lifetime=wish) for wish in (60, 86_400, 86_401)}
    given = {wish: service_process.post(PATH, data=form).json() for wish, form in asked.items()}
    assert {wish: body["expires_in"] for wish, body in given.items()} == {
        60: 60,
        86_400: 86_400,
        86_401: 86_400,
    }


def test_a_token_ends_with_its_client_id(service_process):
    ends = datetime.now(UTC) + timedelta(seconds=3)
    arguments = ("--name", "short", "--type", "secret", "--expires-at", ends.isoformat())
    client = service_process.command("client-ids", "add", *arguments)
    fields = {"client_id": client["client_id"], "client_secret": client["client_secret"]}
    body = service_process.post(PATH, data=credentials(service_process, **fields)).json()
    assert 1 <= body["expires_in"] <= 3
    time.sleep(max(0.0, (ends - datetime.now(UTC)).total_seconds()) + 0.1)
    headers = {"Authorization": f"Bearer {body['access_token']}"}
    assert service_process.post("/api/external/create/campaign", json={}, headers=headers).status_code == 401
    late = service_process.post(PATH, data=credentials(service_process, **fields))
    assert (late.status_code, late.json()["error"]) == (401, "invalid_client")


def test_a_token_ends_after_its_lifetime(service_process):
    headers = {"Authorization": f"Bearer {service_process.token(lifetime=1)}"}
    path = "/api/external/create/campaign"
    assert service_process.post(path, json={}, headers=headers).status_code == 400
    time.sleep(1.1)
    assert service_process.post(path, json={}, headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("algorithm", "make"),
    [
        ("RS256", lambda: rsa.generate_private_key(65537, 2048)),
        ("ES256", lambda: ec.generate_private_key(ec.SECP256R1())),
        ("ES384", lambda: ec.generate_private_key(ec.SECP384R1())),
        ("ES512", lambda: ec.generate_private_key(ec.SECP521R1())),
    ],
)
@pytest.mark.parametrize("form", ["spki", "x509"])
def test_a_signed_assertion_gives_a_token(service_process, tmp_path, algorithm, make, form):
    private = make()
    now = datetime.now(UTC)
    pem = public_pem(private) if form == "spki" else certificate_pem(private, now, now + timedelta(days=1))
    client_id = add_key_client(service_process, tmp_path, pem)
    answer = ask(service_process, jwt.encode(claims_of(client_id, lifetime=120), private, algorithm))
    assert (answer.status_code, answer.json().get("expires_in")) == (200, 120), answer.text


def test_an_assertion_is_accepted_as_json_too(service_process, key, key_client):
    assertion = jwt.encode(claims_of(key_client), key, "ES256")
    answer = service_process.post(PATH, json={"grant_type": JWT_BEARER, "assertion": assertion})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"iss": None},
        {"iss": "nobody"},
        {"sub": None},
        {"sub": "somebody else"},
        {"exp": None},
        {"exp": 1},
        {"iat": None},
        {"iat": 2**33},
        {"nbf": 2**33},
        {"jti": 7},
        {"lifetime": -1},
        {"lifetime": "long"},
    ],
    ids=str,
)
def test_an_assertion_with_a_wrong_claim_is_refused(service_process, key, key_client, change):
    answer = ask(service_process, jwt.encode(claims_of(key_client, **change), key, "ES256"))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


def test_an_assertion_signed_by_another_key_is_refused(service_process, key_client):
    other = ec.generate_private_key(ec.SECP256R1())
    answer = ask(service_process, jwt.encode(claims_of(key_client), other, "ES256"))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


def test_the_algorithm_is_not_taken_from_the_assertion(service_process, key, key_client):
    forged = [
        jwt.encode(claims_of(key_client), None, "none"),
        jwt.encode(claims_of(key_client), "x" * 64, "HS256"),
    ]
    assert [ask(service_process, assertion).status_code for assertion in forged] == [400, 400]


def test_an_algorithm_that_the_key_is_too_short_for_is_refused(service_process, tmp_path):
    short = rsa.generate_private_key(65537, 2048)
    client_id = add_key_client(service_process, tmp_path, public_pem(short))
    answer = ask(service_process, jwt.encode(claims_of(client_id), short, "RS384"))
    assert answer.status_code == 400
    assert "RS256" in answer.json()["error_description"]


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


def test_a_certificate_that_has_ended_makes_requests_fail(service_process, tmp_path):
    private = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    client_id = add_key_client(
        service_process,
        tmp_path,
        certificate_pem(private, now - timedelta(days=1), now + timedelta(seconds=3)),
    )
    token = ask(service_process, jwt.encode(claims_of(client_id), private, "ES256")).json()
    assert token["expires_in"] <= 3
    time.sleep(3.1)
    answer = ask(service_process, jwt.encode(claims_of(client_id), private, "ES256"))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


def test_secrets_and_tokens_are_in_no_record(service_process):
    token = service_process.token()
    service_process.create(android_push=1, device_ids=[1], apptoken=service_process.app_token)
    shown = str(service_process.admin("requests")) + str(service_process.admin("campaigns"))
    for secret in (token, service_process.client_secret, service_process.app_token):
        assert secret not in shown
