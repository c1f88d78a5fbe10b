"""Tokens: requests to the token endpoint, the meaning of its answers, and the token that threads share."""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import jwt
import pytest
import requests
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sendoff.errors import (
    CredentialsError,
    RateLimitedError,
    RetryableError,
    SendoffError,
    ServiceUnavailableError,
    SettingsError,
    UnreachableError,
)
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret, Credentials, JwtBearer
from sendoff.service.private_key import SigningKey
from sendoff.service.tokens import TokenSource, token_source_for
from sendoff.service.transport import MAX_RETRY_AFTER, Timeout

Keys = dict[str, SigningKey]
SECRET = "open_sesame"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclass
class Clock:
    """A clock that the test moves."""

    now: datetime = NOON
    asked: list[None] = field(default_factory=list)

    def __call__(self) -> datetime:
        self.asked.append(None)
        return self.now

    def pass_by(self, **time: float) -> None:
        self.now += timedelta(**time)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(script: Any, session: requests.Session, clock: Clock) -> TokenSource:
    return source_of(script, session, clock)


def source_of(script: Any, session: requests.Session, clock: Clock, *, silence: float = 60.0) -> TokenSource:
    """Return a token source with a read timeout in seconds."""
    credentials = ClientSecret("client-1", SECRET)
    return TokenSource(credentials, script.url, session, clock=clock, timeout=Timeout(60.0, silence))


def private_pem(key: SigningKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


# Requests


@pytest.mark.rule(
    "2.1/access_token", "4.1/path", "4.1/only_post", "4.1/form", "4.1/answer", "4.1/secret_grant_type",
    "4.1/client_id", "4.1/client_secret", "5.2/secret", "5.2/fields", "7/only_post", "9/no_version",
    side="client",
)  # fmt: skip
def test_a_client_secret_is_sent_as_a_form(script: Any, source: TokenSource) -> None:
    script.tell(script.token("abc"))
    assert source.token() == "abc"
    (request,) = script.requests
    assert request.line == "POST /api/oauth/token HTTP/1.1"
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert request.form == {
        "grant_type": "client_credentials",
        "client_id": "client-1",
        "client_secret": SECRET,
    }


@pytest.mark.rule("4.1/lifetime", "5.2/fields", side="client")
def test_a_wanted_lifetime_is_sent() -> None:
    assert ClientSecret("client-1", SECRET, lifetime=600).grant(NOON)["lifetime"] == "600"


@pytest.mark.rule("4.1/jwt_grant_type", "4.1/assertion", "5.1/iss", "5.1/sub", "5.1/lifetime", side="client")
@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"])
def test_an_assertion_is_signed_with_the_algorithm_of_the_key(keys: Keys, algorithm: str) -> None:
    credentials = JwtBearer("client-1", private_pem(keys[algorithm]), lifetime=600)
    grant = credentials.grant(NOON)
    assert credentials.algorithm == algorithm
    assert grant["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert set(grant) == {"grant_type", "assertion"}
    claims = verified(grant["assertion"], keys[algorithm], algorithm)
    assert (claims["iss"], claims["sub"], claims["lifetime"]) == ("client-1", "client-1", 600)


def verified(assertion: str, key: SigningKey, algorithm: str) -> dict[str, Any]:
    options: Any = {"verify_exp": False, "verify_iat": False, "verify_aud": False}
    claims: dict[str, Any] = jwt.decode(assertion, key.public_key(), algorithms=[algorithm], options=options)
    return claims


@pytest.mark.rule("5.1/exp", "5.1/iat", side="client")
def test_an_assertion_ends_in_minutes_and_was_made_a_moment_ago(keys: Keys) -> None:
    credentials = JwtBearer("client-1", private_pem(keys["ES256"]))
    claims = verified(credentials.grant(NOON)["assertion"], keys["ES256"], "ES256")
    assert 0 < NOON.timestamp() - claims["iat"] <= 30
    assert 60 <= claims["exp"] - NOON.timestamp() <= 600
    assert "aud" not in claims
    assert "lifetime" not in claims


def test_an_audience_is_claimed_where_one_is_set(keys: Keys) -> None:
    credentials = JwtBearer("client-1", private_pem(keys["ES256"]), audience="https://api.example.com")
    claims = verified(credentials.grant(NOON)["assertion"], keys["ES256"], "ES256")
    assert claims["aud"] == "https://api.example.com"


@pytest.mark.rule("5.1/jti", "7/jti", "8/jti", side="client")
def test_every_token_request_has_an_assertion_that_was_never_used(
    script: Any, session: requests.Session, keys: Keys
) -> None:
    source = TokenSource(JwtBearer("client-1", private_pem(keys["ES256"])), script.url, session)
    script.tell(script.answer(503), script.token("one"), script.token("two"))
    with pytest.raises(RetryableError):
        source.token()
    assert source.renew(source.token()) == "two"
    claims = [verified(request.form["assertion"], keys["ES256"], "ES256") for request in script.requests]
    assert len({UUID(each["jti"], version=4) for each in claims}) == 3


@pytest.mark.rule("5.1/direct", "9/direct", side="client")
def test_an_assertion_goes_to_the_token_endpoint_and_never_to_the_api(
    script: Any, session: requests.Session, keys: Keys
) -> None:
    source = TokenSource(JwtBearer("client-1", private_pem(keys["ES256"])), script.url, session)
    script.tell(script.token("abc"), script.answer(200, {"success": True}))
    Client(script.url, session, source).create_campaign(b"{}")
    login, campaign = script.requests
    assert (login.line, "Authorization" in login.headers) == ("POST /api/oauth/token HTTP/1.1", False)
    assert campaign.headers["Authorization"] == "Bearer abc"
    assert login.form["assertion"].encode() not in campaign.body


@pytest.mark.rule(
    "4.1/client_id", "4.1/client_secret", "4.1/lifetime", "5.1/lifetime", "5.2/lifetime", "8/lifetime",
    side="client",
)  # fmt: skip
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ClientSecret(" ", SECRET), "the client ID is empty"),
        (lambda: ClientSecret("client-1", ""), "the client secret is empty"),
        (lambda: ClientSecret("client-1", SECRET, lifetime=0), "between 1 and 86400"),
        (lambda: ClientSecret("client-1", SECRET, lifetime=86_401), "between 1 and 86400"),
        (lambda: JwtBearer("", "key"), "the client ID is empty"),
        (lambda: JwtBearer("client-1", SECRET), "this is not a private key in PEM form"),
    ],
)
def test_credentials_that_cannot_work_are_refused_before_they_are_sent(
    make: Callable[[], Credentials], problem: str
) -> None:
    with pytest.raises(CredentialsError, match=problem) as error:
        make()
    assert SECRET not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize(
    "url",
    [
        "api.example.com",
        "ftp://api.example.com",
        "https://",
        "https://:443",
        "https://api.example.com:0",
        "https://api.example.com:port",
        "https://u:p@api.example.com",
        "https://u@api.example.com",
        "https://a/?b",
        "https://a/#b",
    ],
)
def test_a_base_url_that_cannot_work_is_refused_and_not_quoted(session: requests.Session, url: str) -> None:
    with pytest.raises(SettingsError, match="the base URL must") as error:
        TokenSource(ClientSecret("client-1", SECRET), url, session)
    assert url.removeprefix("https://") not in str(error.value) or url == "https://"


def test_neither_session_nor_netrc_add_credentials_of_their_own(
    script: Any,
    source: TokenSource,
    session: requests.Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    session.trust_env = True
    session.auth = ("me", "mine")
    session.headers["Authorization"] = "Basic bWU6bWluZQ=="
    script.tell(script.token())
    source.token()
    assert "Authorization" not in script.requests[0].headers


# Expiry warnings


@pytest.mark.parametrize(
    ("days", "says"), [(15, None), (14, "ends at 2026-12-04 12:00 UTC"), (-1, "ended at 2026-11-19 12:00 UTC")]
)  # fmt: skip
def test_a_warning_comes_two_weeks_before_a_certificate_ends(
    script: Any, session: requests.Session, keys: Keys, certified: Callable[[SigningKey, datetime], str],
    caplog: pytest.LogCaptureFixture, days: int, says: str | None,
) -> None:  # fmt: skip
    pem = private_pem(keys["ES256"]) + certified(keys["ES256"], NOON + timedelta(days=days))
    source = TokenSource(JwtBearer("client-1", pem), script.url, session, clock=lambda: NOON)
    script.tell(script.token())
    source.token()
    assert [says in warning for warning in source.warnings()] == [True] if says else not source.warnings()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"client ID client-1: {warning}" for warning in source.warnings()
    ]


def test_a_token_that_lasts_for_ever_is_used(script: Any, session: requests.Session) -> None:
    source = TokenSource(ClientSecret("client-1", SECRET), script.url, session, clock=lambda: NOON)
    script.tell(script.token("token-one", expires_in=10**15))
    assert source.token() == "token-one"


@pytest.mark.rule("2.1/expires_in", "2.2/expires_at", "3/token_expiry", side="client")
@pytest.mark.parametrize(("given", "warned"), [(3599, True), (3600, False)])
def test_a_token_shorter_than_was_asked_for_is_a_sign_that_the_client_id_ends(
    script: Any, session: requests.Session, given: int, warned: bool
) -> None:
    credentials = ClientSecret("client-1", SECRET, lifetime=3600)
    source = TokenSource(credentials, script.url, session, clock=lambda: NOON)
    assert source.warnings() == ()
    script.tell(script.token(expires_in=given))
    source.token()
    says = (
        "lasts 3599 seconds, not the 3600 that were asked for: the client ID ends at 2026-11-20 12:59 UTC, or"
    )
    assert [says in warning for warning in source.warnings()] == [True] * warned


# Answers


@pytest.mark.rule("2.1/token_type", "4.1/answer", side="client")
@pytest.mark.parametrize(
    ("status", "content", "kind", "sentence"),
    [
        (400, {"error": "invalid_grant", "error_description": "old"}, CredentialsError, "invalid_grant: old"),
        (400, {"error": "no client_credentials here"}, CredentialsError, "no client_credentials here"),
        (401, {"error": "invalid_client"}, CredentialsError, "refuses the client ID, or its secret or key"),
        (403, {"code": 403, "message": "API access is off"}, CredentialsError, "(HTTP 403): API access is off"),
        (401, b"", CredentialsError, "(HTTP 401)"),
        (422, b"not json", CredentialsError, "(HTTP 422)"),
        (301, b"", SettingsError, "the base URL leads to another address (HTTP 301); correct it"),
        (404, b"", SettingsError, "there is no token endpoint at the base URL (HTTP 404); correct it"),
        (405, b"", SettingsError, "(HTTP 405); correct it"),
        (410, b"", SettingsError, "there is no token endpoint at the base URL (HTTP 410); correct it"),
        (408, b"", ServiceUnavailableError, "the service failed (HTTP 408)"),
        (429, b"", RateLimitedError, "the service limits the rate of requests (429)"),
        (425, b"", ServiceUnavailableError, "the service failed (HTTP 425)"),
        (499, b"", CredentialsError, "(HTTP 499)"),
        (103, b"", ServiceUnavailableError, "the service failed (HTTP 103)"),
        (500, b"", ServiceUnavailableError, "the service failed (HTTP 500)"),
        (503, b"<html>", ServiceUnavailableError, "the service failed (HTTP 503)"),
        (200, b"", SettingsError, "the answer contains none"),
        (200, b"[1]", SettingsError, "the answer contains none"),
        (200, {"access_token": ""}, SettingsError, "the answer contains none"),
        (200, {"access_token": "a\nb", "expires_in": 60}, SettingsError, "the answer contains none"),
        (200, {"access_token": "ab"}, SettingsError, "how long the token lasts (expires_in)"),
        (200, {"access_token": "ab", "expires_in": 0}, SettingsError, "how long the token lasts (expires_in)"),
        (200, {"access_token": "ab", "expires_in": True}, SettingsError, "how long the token lasts (expires_in)"),
        (200, {"access_token": "ab", "expires_in": 60, "token_type": "mac"}, SettingsError, "a type other than Bearer"),
        (200, {"access_token": "ab", "expires_in": 60, "token_type": [[]]}, SettingsError, "a type other than Bearer"),
    ],
)  # fmt: skip
def test_a_refusal_says_in_a_sentence_what_to_change(
    script: Any, source: TokenSource, status: int, content: Any, kind: type[SendoffError], sentence: str
) -> None:  # fmt: skip
    script.tell(script.answer(status, content))
    with pytest.raises(SendoffError) as error:
        source.token()
    assert type(error.value) is kind
    assert sentence in str(error.value)


def test_a_web_page_instead_of_a_token_is_told_as_such(script: Any, source: TokenSource) -> None:
    script.tell(
        script.answer(200, b"<html>Log in</html>", Content_Type="text/html; charset=utf-8"),
        script.answer(403, b"<html>No</html>", Content_Type="text/html"),
    )
    with pytest.raises(
        SettingsError, match="the base URL returned a web page; check that it is the URL of the service's API"
    ):
        source.token()
    with pytest.raises(SettingsError, match=r"no token endpoint at the base URL \(HTTP 403\)"):
        source.token()


def test_json_is_read_also_if_it_is_labelled_as_a_web_page_or_has_a_byte_order_mark(
    script: Any, source: TokenSource
) -> None:
    granted = b'\xef\xbb\xbf{"access_token": "token-one", "expires_in": 60}'
    script.tell(
        script.answer(401, {"error": "invalid_client"}, Content_Type="text/html"),
        script.answer(200, granted, Content_Type="text/html; charset=UTF-8"),
    )
    with pytest.raises(CredentialsError, match=r"\(HTTP 401\): invalid_client"):
        source.token()
    assert source.token() == "token-one"


def test_a_redirect_is_not_followed_but_told(script: Any, source: TokenSource) -> None:
    script.tell(script.answer(301, Location="https://api.example.com/api/oauth/token?secret=1"))
    with pytest.raises(SettingsError, match=r"leads to https://api.example.com \(HTTP 301\); correct it"):
        source.token()
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "Fri, 20 Nov 2026 12:01:30 GMT"}, 90.0),
        ({"Retry_After": "Fri, 20 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"Retry_After": "Fri, 20 Nov 2026 12:01:30"}, 90.0),
        ({"Retry_After": "Fri, 20 Nov 2099 12:01:30 GMT"}, MAX_RETRY_AFTER),
        ({"Retry_After": "9" * 30}, MAX_RETRY_AFTER),
        ({"Retry_After": "²"}, None),
        ({"Retry_After": "soon"}, None),
        ({"Retry_After": "-5"}, None),
        ({}, None),
    ],
)
def test_patience_is_as_long_as_the_service_says(
    script: Any, source: TokenSource, header: dict[str, str], seconds: float | None
) -> None:
    script.tell(script.answer(429, b"", **header))
    with pytest.raises(RateLimitedError) as error:
        source.token()
    assert error.value.retry_after == seconds


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("http://api.example.com", False),
        ("http://service:8091", False),
        ("http://10.0.0.7", False),
        ("http://localhost.example.com", False),
        ("HTTP://api.example.com", False),
        ("http://localhost:8025", True),
        ("http://service.localhost", True),
        ("http://127.0.0.1:8025", True),
        ("http://127.8.8.8", True),
        ("http://[::1]:8025", True),
        ("https://api.example.com", True),
    ],
)
def test_an_unencrypted_base_url_is_for_this_machine_alone(
    session: requests.Session, url: str, is_allowed: bool
) -> None:
    credentials = ClientSecret("client-1", SECRET)
    good = TokenSource(credentials, "https://api.example.com", session)
    makers: list[Callable[..., object]] = [
        lambda **more: TokenSource(credentials, url, session, **more),
        lambda **more: token_source_for(credentials, url, session, **more),
        lambda **more: Client(url, session, good, **more),
    ]
    for make in makers:
        if is_allowed:
            make()
        else:
            with pytest.raises(
                SettingsError, match=r"the base URL begins with http://.*SENDOFF_ALLOW_HTTP"
            ) as error:
                make()
            assert "example" not in str(error.value)
            make(allow_http=True)


def test_what_was_not_sent_is_unreachable(session: requests.Session, free_port: int) -> None:
    credentials = ClientSecret("client-1", SECRET)
    with pytest.raises(UnreachableError, match=r"no connection to 127.0.0.1:\d+ was accepted"):
        TokenSource(credentials, f"http://127.0.0.1:{free_port}", session).token()
    with pytest.raises(UnreachableError, match=r"the host nowhere.invalid is not known"):
        TokenSource(credentials, "https://nowhere.invalid", session).token()


def test_silence_and_a_broken_connection_may_be_tried_again(
    script: Any, session: requests.Session, source: TokenSource, clock: Clock
) -> None:
    script.tell(
        script.close_at_once,
        script.reset,
        script.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
        script.silence,
    )
    for sentence in ("broke before an answer", "broke before an answer", "was cut off"):
        with pytest.raises(RetryableError, match=sentence):
            source.token()
    with pytest.raises(RetryableError, match=r"within 0\.3 seconds"):
        source_of(script, session, clock, silence=0.3).token()


# One token for all threads


@pytest.mark.rule("2.1/expires_in", "5.3/expires_in", "8/lifetime", side="client")
def test_a_token_is_kept_until_shortly_before_it_ends(script: Any, source: TokenSource, clock: Clock) -> None:
    script.tell(script.token("one", 3600), script.token("two", 3600))
    assert source.token() == "one"
    clock.pass_by(minutes=54, seconds=59)
    assert source.token() == "one"
    clock.pass_by(seconds=1)
    assert source.token() == "two"


@pytest.mark.rule("5.3/expires_in", side="client")
def test_a_short_token_is_replaced_when_a_quarter_of_it_is_left(
    script: Any, source: TokenSource, clock: Clock
) -> None:
    script.tell(script.token("one", 60), script.token("two", 60))
    source.token()
    clock.pass_by(seconds=44)
    assert source.token() == "one"
    clock.pass_by(seconds=1)
    assert source.token() == "two"


def test_the_old_token_serves_until_it_ends_where_a_new_one_cannot_be_had(
    script: Any, source: TokenSource, clock: Clock
) -> None:
    script.tell(script.token("one", 3600), script.answer(503), script.answer(503), script.token("two"))
    source.token()
    clock.pass_by(minutes=56)
    assert source.token() == "one"
    assert source.token() == "one"
    assert len(script.requests) == 2  # it does not retry at once
    clock.pass_by(minutes=5)
    with pytest.raises(RetryableError):
        source.token()
    assert source.token() == "two"


@pytest.mark.parametrize("status", [429, 503])
def test_a_token_is_not_asked_for_early_before_the_service_wants_to_be_asked(
    script: Any, source: TokenSource, clock: Clock, status: int
) -> None:
    script.tell(script.token("one"), script.answer(status, b"", Retry_After="90"), script.token("two"))
    source.token()
    clock.pass_by(minutes=56)
    assert source.token() == "one"
    clock.pass_by(seconds=60)
    assert source.token() == "one"
    assert len(script.requests) == 2
    clock.pass_by(seconds=31)
    assert source.token() == "two"


def test_while_one_thread_replaces_a_token_the_others_go_on_with_the_old_one(
    script: Any, source: TokenSource, clock: Clock
) -> None:
    was_served = threading.Event()
    script.tell(script.token("one", 3600), script.once(was_served.is_set, script.token("two")))
    source.token()
    clock.pass_by(minutes=56)
    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(source.token)
        script.wait_for(2)
        assert source.token() == "one"
        was_served.set()
        assert replacing.result() == "two"
    assert source.token() == "two"


def at_once(count: int, call: Callable[[], str]) -> list[str | SendoffError]:
    """Call a function from several threads at the same moment."""
    barrier = threading.Barrier(count)

    def wait_and_call(_: int) -> str | SendoffError:
        barrier.wait()
        try:
            return call()
        except SendoffError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_call, range(count)))


def all_ask(clock: Clock, count: int) -> Callable[[], bool]:
    """Check whether ``count`` threads want a token: each reads the clock once, and the requesting one twice."""
    return lambda: len(clock.asked) > count


def test_a_token_is_fetched_once_however_many_threads_ask(
    script: Any, source: TokenSource, clock: Clock
) -> None:
    script.tell(script.once(all_ask(clock, 16), script.token("one")))
    assert at_once(16, source.token) == ["one"] * 16
    assert len(script.requests) == 1


def test_threads_that_waited_for_a_failure_share_it(script: Any, source: TokenSource, clock: Clock) -> None:
    failure = script.answer(429, b"", Retry_After="9")
    script.tell(script.once(all_ask(clock, 16), failure), script.token("two"))
    failures = at_once(16, source.token)
    assert [type(each) for each in failures] == [RateLimitedError] * 16
    assert {each.retry_after for each in failures if isinstance(each, RateLimitedError)} == {9.0}
    assert len(script.requests) == 1
    assert source.token() == "two"


def test_a_rejected_token_is_renewed_once_however_many_threads_were_rejected(
    script: Any, source: TokenSource
) -> None:
    asked: list[None] = []

    def renew() -> str:
        asked.append(None)
        return source.renew(rejected)

    script.tell(script.token("one"), script.once(lambda: len(asked) == 16, script.token("two")))
    rejected = source.token()
    assert at_once(16, renew) == ["two"] * 16
    assert source.renew(rejected) == "two"
    assert source.token() == "two"
    assert len(script.requests) == 2


def test_a_rejected_token_is_never_given_out_again(script: Any, source: TokenSource) -> None:
    script.tell(script.token("one"), script.answer(500), script.token("two"))
    with pytest.raises(RetryableError):
        source.renew(source.token())
    assert source.token() == "two"


@pytest.fixture
def no_sources() -> Iterator[None]:
    from sendoff.service import tokens

    tokens._sources.clear()
    yield
    tokens._sources.clear()


@pytest.mark.usefixtures("no_sources")
def test_a_process_has_one_source_for_each_connection(session: requests.Session) -> None:
    one = ClientSecret("client-1", SECRET)
    source = token_source_for(one, "https://a.example", session)
    assert (
        token_source_for(ClientSecret("client-1", SECRET), "https://a.example", requests.Session()) is source
    )
    others = [
        token_source_for(ClientSecret("client-2", SECRET), "https://a.example", session),
        token_source_for(ClientSecret("client-1", SECRET + "!"), "https://a.example", session),
        token_source_for(ClientSecret("client-1", SECRET, lifetime=60), "https://a.example", session),
        token_source_for(one, "https://b.example", session),
    ]
    session.verify = False
    others.append(token_source_for(one, "https://a.example", session))
    assert len({id(each) for each in (source, *others)}) == 6


@pytest.mark.usefixtures("no_sources")
def test_a_forked_process_starts_without_the_sources_of_its_parent(session: requests.Session) -> None:
    from sendoff.service import tokens

    token_source_for(ClientSecret("client-1", SECRET), "https://a.example", session)
    with tokens._sources_lock:  # as if another thread were requesting a token
        child = os.fork()
        if child == 0:
            os._exit(len(tokens._sources) + tokens._sources_lock.locked())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Secrets


def test_no_secret_is_in_a_repr(keys: Keys, session: requests.Session) -> None:
    pem = private_pem(keys["ES256"])
    bearer = JwtBearer("client-1", pem, passphrase=SECRET)
    shown = repr(
        [ClientSecret("client-1", SECRET), bearer, TokenSource(bearer, "https://a.example", session)]
    )
    assert SECRET not in shown
    assert "BEGIN" not in shown


@pytest.mark.parametrize("grant", ["secret", "key"])
def test_no_secret_is_in_a_failure_or_a_log(
    script: Any, session: requests.Session, keys: Keys, caplog: pytest.LogCaptureFixture, grant: str
) -> None:
    """The service echoes the request in every way it can, and fails in every way it can."""
    caplog.set_level(logging.DEBUG)
    pem = private_pem(keys["ES256"])
    credentials = ClientSecret("client-1", SECRET) if grant == "secret" else JwtBearer("client-1", pem)
    source = TokenSource(credentials, script.url, session, timeout=Timeout(60, 60))
    impatient = TokenSource(credentials, script.url, session, timeout=Timeout(60, 0.3))
    sent: list[str] = []

    def repeat(status: int, **headers: str) -> Any:
        def step(connection: Any, read: Callable[[], None]) -> None:
            read()
            form = script.requests[-1].form
            sent.append(form.get("client_secret") or form["assertion"])
            told = dict.fromkeys(
                ("error", "error_description", "message", "token_type"), f"you sent {sent[-1]}"
            )
            content = {**told, "access_token": f"bad {sent[-1]}\n"}
            script.answer(status, content, **headers)(connection, lambda: None)

        return step

    script.tell(
        *[repeat(status) for status in (200, 400, 401, 403, 404, 418, 429, 500)],
        repeat(302, Location="https://elsewhere.example/path"),
        repeat(403, Content_Type="text/html"),
        script.close_at_once,
        script.reset,
        script.raw(b"HTTP/1.1 200"),
        script.silence,
    )
    told = []
    for each in [source] * 13 + [impatient]:
        with pytest.raises(SendoffError) as error:
            each.token()
        told.append("".join(traceback.format_exception(error.value)))
    assert len(sent) == 10
    for secret in (*sent, SECRET, pem.splitlines()[1]):
        assert secret not in "".join(told)
        assert secret not in caplog.text


def test_no_token_is_in_a_log(
    script: Any, source: TokenSource, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    script.tell(script.token("very-secret-token"), script.answer(500))
    source.token()
    clock.pass_by(minutes=56)
    source.token()
    assert "client ID client-1 has a new access token for 3600 seconds" in caplog.text
    assert "could not be renewed early" in caplog.text
    assert "very-secret-token" not in caplog.text
    assert "very-secret-token" not in repr(source._token)
