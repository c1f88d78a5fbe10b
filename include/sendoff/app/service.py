"""The connection to the messaging service from the settings."""

from __future__ import annotations

from pydantic import SecretStr

from sendoff.dispatch import ServiceConnection
from sendoff.errors import SettingsError
from sendoff.ledger import check_rate
from sendoff.service import (
    Client,
    ClientSecret,
    Credentials,
    JwtBearer,
    PostBackSigner,
    Timeout,
    checked_base_url,
    service_session,
    token_source_for,
)
from sendoff.service.wire import FieldNames
from sendoff.settings import Settings, has_source

NEEDED = ("service_url", "client_id", "client_secret", "public_url", "post_back_secrets")
"""The settings without which no request can be made."""


def service_connection(settings: Settings) -> ServiceConnection:
    """Return what a worker needs to make requests. Nothing is sent yet.

    Raise SettingsError if a setting is missing or wrong, and CredentialsError if the key or secret cannot be used.
    """
    settings.require(*NEEDED)
    signer = PostBackSigner.from_settings(settings)
    try:
        base_url = checked_base_url(str(settings.service_url), allow_http=settings.allow_http)
    except SettingsError as error:
        raise SettingsError(f"SENDOFF_SERVICE_URL: {error}") from None
    session = service_session(settings.requests_at_once, ca_bundle=settings.ca_bundle, proxy=settings.proxy)
    tokens = token_source_for(credentials_of(settings), base_url, session, allow_http=settings.allow_http)
    return ServiceConnection(
        Client(
            base_url,
            session,
            tokens,
            timeout=Timeout(answer=settings.timeout),
            allow_http=settings.allow_http,
            place=place_of(settings),
        ),
        signer,
        _secret(settings.app_token),
        FieldNames(settings.field_names),
        rate=rate_of(settings),
        requests_at_once=settings.requests_at_once,
    )


def credentials_of(settings: Settings) -> Credentials:
    """Return the credentials: a client ID with either a secret or a private key."""
    settings.require("client_id", "client_secret")
    client_id = str(settings.client_id)
    secret, key = _secret(settings.client_secret), _secret(settings.private_key)
    if secret and key:
        raise SettingsError("there are a client secret and a private key. Remove one of them")
    if key:
        return JwtBearer(
            client_id,
            key,
            algorithm=settings.algorithm,
            passphrase=_secret(settings.private_key_passphrase),
            audience=settings.token_audience,
            lifetime=settings.token_lifetime,
        )
    if not secret:
        raise SettingsError("the client secret is empty. Set SENDOFF_CLIENT_SECRET")
    return ClientSecret(client_id, secret, lifetime=settings.token_lifetime)


def rate_of(settings: Settings) -> float | None:
    """Return the rate limit in requests per second; None without one. Raise SettingsError if it cannot be one."""
    rate = settings.requests_per_second
    if rate is not None:
        try:
            check_rate(rate)
        except ValueError as error:
            raise SettingsError(f"requests_per_second is wrong: {error}") from None
    return rate


def place_of(settings: Settings) -> str:
    """Return where a person corrects the login."""
    if has_source():
        return f"Airflow connection {settings.connection}"
    names = ["SENDOFF_SERVICE_URL", "SENDOFF_CLIENT_ID"]
    names.append("SENDOFF_PRIVATE_KEY" if settings.private_key else "SENDOFF_CLIENT_SECRET")
    if settings.app_token:
        names.append("SENDOFF_APP_TOKEN")
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _secret(given: SecretStr | None) -> str | None:
    return given.get_secret_value().strip() or None if given else None
