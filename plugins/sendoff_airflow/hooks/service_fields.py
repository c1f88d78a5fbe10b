"""Read the fields of a connection of type ``sendoff`` one by one. Errors name a wrong field but not its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from airflow.sdk import Connection

from sendoff.dispatch import DEFAULT_REQUESTS_AT_ONCE, MAX_REQUESTS_AT_ONCE
from sendoff.errors import CredentialsError, SettingsError
from sendoff.ledger import check_rate
from sendoff.service import (
    ClientSecret,
    Credentials,
    JwtBearer,
    Timeout,
    checked_base_url,
)
from sendoff.service.wire import FieldNames
from sendoff_airflow.hooks.connections import extras, web_address
from sendoff_airflow.hooks.forms import service_form

T = TypeVar("T")

GRANTS = ("client_credentials", "jwt_bearer")

_KINDS: Mapping[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    dict: "a JSON object",
}


class ServiceFields:
    """The fields of one connection. Each property raises SettingsError if its field is wrong."""

    known = service_form()["conn-fields"].keys()

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @cached_property
    def base_url(self) -> str:
        """The base URL without a slash at its end. Without a scheme, ``https://`` is added."""
        if not (self._connection.host or "").strip():
            raise self._wrong(
                "the base URL (host field) is empty. Enter a URL such as https://api.example.com"
            )
        address = web_address(self._connection)
        url = address if "://" in address else f"https://{address}"
        return self._checked(lambda: checked_base_url(url, allow_http=self.allow_http))

    @property
    def credentials(self) -> Credentials:
        """The credentials to get a token with. Raise CredentialsError if the key cannot be used."""
        if not self._connection.login:
            raise self._wrong("the client ID (login field) is empty")
        grant = self._text("grant") or GRANTS[0]
        if grant not in GRANTS:
            raise self._wrong(f"the grant is none of {', '.join(GRANTS)}")
        read: Callable[[], Credentials] = self._client_secret if grant == GRANTS[0] else self._jwt_bearer
        return self._checked(read)

    def _client_secret(self) -> ClientSecret:
        if not self._connection.password:
            raise self._wrong(
                "the client secret (password field) is empty. For a client ID with a key, set the grant to jwt_bearer"
            )
        return ClientSecret(self._client_id, self._connection.password, lifetime=self._token_lifetime)

    def _jwt_bearer(self) -> JwtBearer:
        return JwtBearer(
            self._client_id,
            self.private_key(),
            algorithm=self._text("algorithm"),
            passphrase=self._text("private_key_passphrase"),
            audience=self._text("audience"),
            lifetime=self._token_lifetime,
        )

    def private_key(self) -> str:
        """Return the private key as PEM text, from the connection or from the file that it names."""
        key, path = self._text("private_key"), self._text("private_key_path")
        if key and not path:
            return key
        if not path or key:
            raise self._wrong("the grant jwt_bearer needs either private_key or private_key_path")
        try:
            return Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it is not text"
        raise self._wrong(f"the file in private_key_path cannot be read on this machine: {problem}")

    @property
    def _client_id(self) -> str:
        return self._connection.login or ""

    @property
    def _token_lifetime(self) -> int | None:
        return self._extra("token_lifetime", int)

    @property
    def app_token(self) -> str | None:
        """The token of the application whose devices receive the messages."""
        return self._text("app_token")

    @property
    def field_names(self) -> FieldNames:
        """The names of request fields, with the connection's corrections."""
        return self._checked(lambda: FieldNames(self._extra("field_names", dict) or {}))

    @property
    def timeout(self) -> Timeout:
        """How long to wait for the service."""
        value = self._extra("timeout", float)
        if value is not None and not 0 < value <= Timeout().deadline:
            raise self._wrong(
                f"timeout must be a number of seconds above 0, and at most {Timeout().deadline:g}"
            )
        return Timeout() if value is None else Timeout(answer=value)

    @property
    def ca_bundle(self) -> str | None:
        """A file with the certificates to trust."""
        path = self._text("verify")
        if path is not None and not Path(path).exists():
            raise self._wrong("the CA bundle (verify) is not a file on this machine")
        return path

    @property
    def proxy(self) -> str | None:
        """The proxy to use instead of the environment's."""
        return self._text("proxy")

    @property
    def rate(self) -> float | None:
        """The rate limit for all workers of the connection together, in requests per second. None: no limit."""
        value = self._extra("requests_per_second", float)
        if value is None:
            return None
        try:
            check_rate(value)
        except ValueError as error:
            problem = f"requests_per_second is wrong: {error}. Leave it empty for no limit"
        else:
            return value
        raise self._wrong(problem)

    @property
    def requests_at_once(self) -> int:
        """How many requests one worker makes at the same time."""
        value = self._extra("requests_at_once", int)
        if value is not None and not 1 <= value <= MAX_REQUESTS_AT_ONCE:
            raise self._wrong(f"requests_at_once must be a whole number from 1 to {MAX_REQUESTS_AT_ONCE}")
        return value or DEFAULT_REQUESTS_AT_ONCE

    @property
    def can_list(self) -> bool:
        """Whether the service can list its campaigns, so that doubts can be settled by reading the list."""
        return self._flag("can_list")

    @property
    def allow_http(self) -> bool:
        """Whether the base URL may start with ``http://`` for a service on another machine."""
        return self._flag("allow_http")

    def _flag(self, name: str) -> bool:
        value = self._extras.get(name)
        if value in (None, ""):
            return False
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in (
            "true",
            "false",
        ):  # text, if the connection is a URI
            return value.strip().lower() == "true"
        raise self._wrong(f"{name} must be true or false")

    @property
    def unknown(self) -> list[str]:
        """The names of unknown extra fields."""
        return sorted(self._extras.keys() - self.known)

    @cached_property
    def _extras(self) -> dict[str, Any]:
        return extras(self._connection)

    def _text(self, name: str) -> str | None:
        return (self._extra(name, str) or "").strip() or None

    def _extra(self, name: str, kind: type[T]) -> T | None:
        value = self._extras.get(name)
        if value in (None, ""):
            return None
        if isinstance(value, kind) and not isinstance(value, bool):
            return value
        try:
            if kind in (int, float) and isinstance(value, str | int) and not isinstance(value, bool):
                return kind(value)  # type: ignore[call-arg]  # a form may pass numbers as text
        except ValueError:
            pass
        raise self._wrong(f"{name} is not {_KINDS[kind]}")

    def _checked(self, read: Callable[[], T]) -> T:
        """Call ``read``, and add the connection's name to its errors."""
        try:
            return read()
        except (SettingsError, CredentialsError) as error:
            kind, text = type(error), str(error)
        name = f"connection {self._connection.conn_id}: "
        raise kind(text if text.startswith(name) else name + text)

    def _wrong(self, problem: str) -> SettingsError:
        return SettingsError(f"connection {self._connection.conn_id}: {problem}")
