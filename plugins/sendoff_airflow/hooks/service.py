"""The connection to the messaging service: Airflow's HttpHook without its unsafe features."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import urlsplit

import requests
from airflow.providers.http.hooks.http import HttpHook

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
    service_session,
    token_source_for,
)
from sendoff_airflow import SERVICE
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.hooks.connections import find_connection
from sendoff_airflow.hooks.service_fields import ServiceFields


class SendoffHook(HttpHook):
    """Call the messaging service through a connection of type ``sendoff``.

    Unlike HttpHook, this hook never turns extras into request headers, or login and password into basic authentication.
    It always has a time-out, follows no redirects, and repeats a request only after a 401. Its errors show only the
    service's message, redacted. It looks up the connection once and uses one session for all requests.
    """

    conn_name_attr = "sendoff_conn_id"
    default_conn_name = SERVICE
    conn_type = "sendoff"
    hook_name = "Sendoff messaging service"

    def __init__(self, sendoff_conn_id: str = default_conn_name) -> None:
        super().__init__(method="POST", http_conn_id=sendoff_conn_id)
        self.sendoff_conn_id = sendoff_conn_id

    def service_connection(self, signer: PostBackSigner) -> ServiceConnection:
        """Return what a worker needs to make requests over this connection."""
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
        """Return a client that gets its own tokens. Raise SettingsError or CredentialsError for a wrong field."""
        fields = self.fields
        return Client(
            fields.base_url,
            self.session,
            self.tokens(),
            timeout=fields.timeout,
            allow_http=fields.allow_http,
            place=f"connection {self.sendoff_conn_id}",
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
            raise SettingsError(f"There is no connection {self.sendoff_conn_id}. Add it in Airflow.")
        fields = ServiceFields(connection)
        if fields.unknown:
            self.log.warning(
                "connection %s: unknown extra fields are ignored: %s",
                self.sendoff_conn_id,
                ", ".join(fields.unknown),
            )
        return fields

    @cached_property
    def session(self) -> requests.Session:
        """The HTTP session of this hook for all of its threads, with the connection's TLS and proxy but no token."""
        return service_session(MAX_REQUESTS_AT_ONCE, ca_bundle=self.fields.ca_bundle, proxy=self.fields.proxy)

    def get_conn(
        self,
        headers: dict[Any, Any] | None = None,  # noqa: ARG002  # headers belong to one request, not to the session
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
        extra_options: dict[str, Any] | None = None,  # noqa: ARG002  # callers cannot change the transport
        *,
        json: Any = None,
        **request_kwargs: Any,
    ) -> requests.Response:
        """Make one request of your own with a token, and return the response. For campaigns, use :meth:`client`.

        Pass the body as ``json``: the External API takes only JSON (sections 4.2 and 4.3). The hook sends it with the
        content type ``application/json``. It sends ``data`` as it is, and a mapping in ``data`` as a form.

        After a 401, the hook gets a new token and retries once (section 5.3), because a 401 precedes any processing.
        The task fails at once if the service refused the request, or may have processed it without an answer. Airflow
        retries only requests that were certainly not processed, such as after a 429. The error shows the service's
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
        transport = {
            "auth": Bearer(token),
            "timeout": self.fields.timeout.of_requests,
            "allow_redirects": False,
            # Otherwise the library prefers HTTPS_PROXY and REQUESTS_CA_BUNDLE to what the session has.
            "proxies": dict(self.session.proxies),
            "verify": self.fields.ca_bundle,
        }
        try:
            return self.session.request(self.method, url, **{**request, **transport})
        # The libraries may fail on a response, and Airflow would retry the request.
        except Exception as error:
            failure = AmbiguousError(f"{self.method} {_bare(url)}: no answer ({type(error).__name__})")
        raise failure

    def run_with_advanced_retry(self, *_: Any, **__: Any) -> NoReturn:
        """Raise NotImplementedError: a request is repeated only after a 401."""
        raise NotImplementedError(
            "Requests to the messaging service are not repeated. Use client() or run()."
        )

    def check_response(self, response: requests.Response) -> None:
        """Raise an error unless the status is 2xx. It names the status and the service's message, redacted."""
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
        if not 200 <= status < 300:
            raise RefusedError(text)

    def test_connection(self) -> tuple[bool, str]:
        """Request a token and send nothing. If that fails, return a sentence on what to change."""
        try:
            self.client()
            fields = self.fields
            fields.app_token, fields.field_names, fields.can_list  # noqa: B018  # reading a field checks it
            fields.rate, fields.requests_at_once  # noqa: B018  # these too
            tokens = TokenSource(
                fields.credentials, fields.base_url, self.session, allow_http=fields.allow_http
            )
            tokens.token()
        except SendoffError as error:
            return False, _with_advice(error)
        warnings = [f"But {warning}." for warning in tokens.warnings()]
        return True, " ".join([f"{self.fields.base_url} issued a token. Nothing was sent.", *warnings])


def rate_of(sendoff_conn_id: str) -> float | None:
    """Return the rate limit of a connection in requests per second, or None without a limit or a connection."""
    connection = find_connection(sendoff_conn_id)
    return ServiceFields(connection).rate if connection else None


def _bare(url: str) -> str:
    """Return a URL without user, query and fragment, which may hold secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _with_advice(error: SendoffError) -> str:
    """Return an error's text, with advice if the error does not say what to change."""
    if isinstance(error, UnreachableError):
        return f"{error}; check the base URL, the proxy and the CA bundle, and whether this machine can connect to it"
    return f"{error}; try again later" if isinstance(error, RetryableError) else str(error)
