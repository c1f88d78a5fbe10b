"""The connection to the messaging service: Airflow's HttpHook, without what is dangerous in it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import urlsplit

import requests
from airflow.providers.http.hooks.http import HttpHook
from requests.adapters import HTTPAdapter

from sendoff.dispatch import MAX_REQUESTS_AT_ONCE, ServiceConnection
from sendoff.errors import (
    AmbiguousError,
    RateLimitedError,
    RefusedError,
    RetryableError,
    SendoffError,
    SettingsError,
    UnreachableError,
)
from sendoff.service import (
    Answer,
    Bearer,
    Client,
    PostBackSigner,
    TokenSource,
    message_of,
    retry_after_seconds,
    token_source_for,
)
from sendoff_airflow import SERVICE
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.hooks.connections import find_connection
from sendoff_airflow.hooks.service_fields import ServiceFields


class SendoffHook(HttpHook):
    """Return a client of the messaging service, made from a connection of type ``sendoff``.

    Unlike HttpHook it never turns an extra into a request header, nor login and password into basic authentication;
    it always has a time-out, follows no redirect, and repeats no request but one that was answered with a 401. Of the
    body of an error it shows only the service's message, redacted. The connection is looked up once, and one session
    serves all requests of the hook.
    """

    conn_name_attr = "sendoff_conn_id"
    default_conn_name = SERVICE
    conn_type = "sendoff"
    hook_name = "Sendoff messaging service"

    def __init__(self, sendoff_conn_id: str = default_conn_name) -> None:
        super().__init__(method="POST", http_conn_id=sendoff_conn_id)
        self.sendoff_conn_id = sendoff_conn_id

    def service_connection(self, signer: PostBackSigner) -> ServiceConnection:
        """Return all that a worker needs to send dispatches over this connection."""
        fields = self.fields
        return ServiceConnection(
            self.client(),
            signer,
            fields.app_token,
            fields.field_names,
            rate=fields.rate,
            can_list=fields.can_list,
            requests_at_once=fields.requests_at_once,
        )

    def client(self) -> Client:
        """Return a client that asks for tokens by itself; SettingsError and CredentialsError name a wrong field."""
        fields = self.fields
        return Client(
            fields.base_url,
            self.session,
            self.tokens(),
            timeout=fields.timeout,
            allow_http=fields.allow_http,
        )

    def tokens(self) -> TokenSource:
        """Return the source of tokens that this process shares for this connection."""
        fields = self.fields
        return token_source_for(
            fields.credentials, fields.base_url, self.session, allow_http=fields.allow_http
        )

    @cached_property
    def fields(self) -> ServiceFields:
        """The fields of the connection, looked up once."""
        connection = find_connection(self.sendoff_conn_id)
        if connection is None:
            raise SettingsError(f"there is no connection {self.sendoff_conn_id}")
        fields = ServiceFields(connection)
        if fields.unknown:
            self.log.warning(
                "connection %s: unknown extra fields are passed over: %s",
                self.sendoff_conn_id,
                ", ".join(fields.unknown),
            )
        return fields

    @cached_property
    def session(self) -> requests.Session:
        """The one HTTP session of this hook, for all of its threads: TLS and proxy as the connection says, no token."""
        session = requests.Session()
        session.auth = Bearer()  # or a .netrc of the worker would have its say
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(max_retries=0, pool_maxsize=MAX_REQUESTS_AT_ONCE))
        if self.fields.ca_bundle:
            session.verify = self.fields.ca_bundle
        if self.fields.proxy:
            session.proxies = {"http": self.fields.proxy, "https": self.fields.proxy}
        return session

    def get_conn(
        self,
        headers: dict[Any, Any] | None = None,  # noqa: ARG002  # headers belong to a request and do not stay
        extra_options: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> requests.Session:
        """Return the session of this hook."""
        return self.session

    @translate_errors
    def run(
        self,
        endpoint: str | None = None,
        data: dict[str, Any] | str | bytes | None = None,
        headers: dict[str, Any] | None = None,
        extra_options: dict[str, Any] | None = None,  # noqa: ARG002  # nothing of the transport is the caller's
        *,
        json: Any = None,
        **request_kwargs: Any,
    ) -> requests.Response:
        """Make one request of your own with a token, and return its answer; use :meth:`client` for campaigns.

        Pass the body as ``json``: the External API takes JSON only (sections 4.2 and 4.3). It is sent with the
        content type ``application/json``. ``data`` is sent as it is, and a mapping in ``data`` as a form.

        A 401 is answered with one new token and one retry (section 5.3), because it precedes any processing. What the
        service refused, or may have processed without an answer, fails the task at once. Airflow's retries repeat only
        what was certainly not processed, such as a request that was answered with a 429. The error shows the service's
        message, redacted.
        """
        url = f"{self.fields.base_url}/{(endpoint or '').lstrip('/')}"
        request = {**request_kwargs, "data": data, "json": json, "headers": headers}
        tokens = self.tokens()
        token = tokens.token()
        response = self._send(url, token, request)
        if response.status_code == requests.codes.unauthorized:
            response = self._send(url, tokens.renew(token), request)
        self.check_response(response)
        return response

    def _send(self, url: str, token: str, request: dict[str, Any]) -> requests.Response:
        transport = {"auth": Bearer(token), "timeout": self.fields.timeout, "allow_redirects": False}
        try:
            return self.session.request(self.method, url, **{**request, **transport})
        except Exception as error:  # the libraries may stumble over an answer, and Airflow would send again
            failure = AmbiguousError(f"{self.method} {_bare(url)}: no answer ({type(error).__name__})")
        raise failure

    def run_with_advanced_retry(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: no request that was sent is repeated, but one that was answered with a 401."""
        raise NotImplementedError("requests to the messaging service are not repeated; use client() or run()")

    def check_response(self, response: requests.Response) -> None:
        """Raise for every answer but 2xx; the error names the status and the service's message, redacted."""
        status = response.status_code
        text = f"{response.request.method} {_bare(response.url)}: HTTP {status}"
        if status == requests.codes.unauthorized:
            text += ", also with a new token"
        if message := message_of(Answer(status, response.content)):
            text += f": {message}"
        if status == requests.codes.too_many_requests:
            raise RateLimitedError(text, retry_after_seconds(response.headers.get("Retry-After")))
        if status >= requests.codes.server_error:
            raise AmbiguousError(text)
        if not response.ok or response.is_redirect:
            raise RefusedError(text)

    def test_connection(self) -> tuple[bool, str]:
        """Ask for a token of its own and send nothing; where that fails, say in one sentence what to change."""
        try:
            self.client()
            fields = self.fields
            fields.app_token, fields.field_names, fields.can_list  # noqa: B018  # which checks them
            fields.rate, fields.requests_at_once  # noqa: B018  # these, too
            tokens = TokenSource(
                fields.credentials, fields.base_url, self.session, allow_http=fields.allow_http
            )
            tokens.token()
        except SendoffError as error:
            return False, _with_advice(error)
        warnings = [f"But {warning}." for warning in tokens.warnings()]
        return True, " ".join([f"{self.fields.base_url} issued a token; nothing was sent.", *warnings])


def rate_of(sendoff_conn_id: str) -> float | None:
    """Return the requests per second that a connection allows; None: no limit, or no such connection."""
    connection = find_connection(sendoff_conn_id)
    return ServiceFields(connection).rate if connection else None


def _bare(url: str) -> str:
    """Return an address without user, query and fragment, which may hold what is in no log."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _with_advice(error: SendoffError) -> str:
    """Add what to do where the error itself names nothing that a person can change."""
    if isinstance(error, UnreachableError):
        return f"{error}; check the base URL, the proxy and the CA bundle, and that this machine may connect to it"
    return f"{error}; try again later" if isinstance(error, RetryableError) else str(error)
