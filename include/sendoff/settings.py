"""Settings of a deployment outside of Airflow: the arguments of a call, or else ``SENDOFF_*`` environment variables.

Each value can also come from a file, as secrets often do: ``SENDOFF_LEDGER_URL_FILE`` is the path of a file that
contains the value of ``SENDOFF_LEDGER_URL``.

``SENDOFF_SETTINGS_FROM`` names a second source, such as ``airflow`` for Airflow's connections. A source is an entry
point of the group ``sendoff.settings``: a function of type :data:`SettingsSource`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from sendoff.errors import SettingsError

_PREFIX = "SENDOFF_"
_SOURCE = "SENDOFF_SETTINGS_FROM"
_GROUP = "sendoff.settings"
_NO_OBJECT = "it is not a JSON object"
_EXPECTED = {
    "bool_parsing": "it must be true or false",
    "float_parsing": "it must be a number",
    "int_parsing": "it must be a whole number",
    "string_type": "it must be a text",
    "dict_type": _NO_OBJECT,
    "greater_than": "it must be above {gt:g}",
    "greater_than_equal": "it must be at least {ge:g}",
    "less_than_equal": "it must be at most {le:g}",
}  # by the type of pydantic's error
WAREHOUSE = "sendoff_warehouse"
"""The connection of the warehouse, unless a campaign names another one."""


@dataclass(frozen=True, slots=True)
class Found:
    """A setting in another source: its value as text, and its place, such as ``Airflow connection sendoff_ledger``."""

    value: str = field(repr=False)
    place: str


SettingsSource = Callable[[Collection[str], str, str], Mapping[str, Found]]
"""Takes names of settings, and the names of the connections to the service and to the warehouse. Returns those of the
settings that it knows.

Raises SettingsError if it cannot look them up.
"""


class Settings(BaseSettings):
    """The settings of every Sendoff process; inside Airflow, connections override them.

    ``post_back_secrets``: one or two secrets, separated by a comma. The first one signs post-back addresses, and either
    one verifies them. ``docs/how-to/rotate-a-key.md`` has the order for replacing one.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, env_ignore_empty=True, frozen=True)

    ledger_url: str | None = Field(
        None,
        repr=False,
        description="SQLAlchemy URL of the ledger database, such as sqlite:////data/sendoff.db",
    )
    public_url: str | None = Field(
        None,
        description="Public URL of the receiver, where the service sends post-backs, such as https://events.example.com",
    )
    post_back_secrets: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (),
        description="One or two secrets, separated by a comma: the first signs post-back addresses, and both are "
        "valid. The receiver and whoever sends need the same (create one: openssl rand -hex 32)",
    )
    warehouse_url: str | None = Field(
        None,
        repr=False,
        description="SQLAlchemy URL of the warehouse where the query of a campaign runs, whatever its `warehouse` is",
    )
    defaults: str | None = Field(
        None,
        description="Path of a [`defaults.yaml`](../how-to/set-defaults.md) whose `rules` apply to campaigns without "
        "such a file beside them, such as campaigns from Python",
    )
    opt_out_texts: str | None = Field(
        None,
        description="[Texts of the page to opt out](receiver.md#texts-of-the-page) by language, as YAML; default: "
        "English",
    )
    connection: str = Field(
        "sendoff_default",
        description="Name of the connection to the messaging service, as in Airflow and in a campaign's `connection`",
    )
    service_url: str | None = Field(
        None, description="Base URL of the messaging service, such as https://api.example.com"
    )
    client_id: str | None = Field(None, description="Client ID that the service issued")
    client_secret: SecretStr | None = Field(None, description="Client secret, for a client ID with a secret")
    private_key: SecretStr | None = Field(
        None, description="Private key as PEM text, for a client ID with a key, instead of a client secret"
    )
    private_key_passphrase: SecretStr | None = Field(
        None, description="Passphrase of an encrypted private key"
    )
    algorithm: str | None = Field(
        None,
        description="Algorithm for the private key, such as RS256; default: chosen by the type of the key",
    )
    token_audience: str | None = Field(None, description="For a private key: the `aud` claim of assertions")
    token_lifetime: int | None = Field(
        None, description="How long a token should be valid, in seconds; default: the service decides"
    )
    app_token: SecretStr | None = Field(
        None, description="Token of the application whose devices get the messages"
    )
    field_names: Annotated[dict[str, str], NoDecode] = Field(
        {}, description="Corrected names of request fields, as a JSON object; see [unknowns](unknowns.md)"
    )
    timeout: float = Field(
        60, gt=0, le=90, description="How long to wait for the answer to one request, in seconds; at most 90"
    )
    requests_per_second: float | None = Field(
        None, description="Rate limit for all workers of the connection together; default: no limit"
    )
    requests_at_once: int = Field(
        4, description="How many requests a worker makes at the same time, from 1 to 16"
    )
    erasure_secret: SecretStr | None = Field(
        None,
        description="Secret under which erased people are remembered by their hashes, at least 32 characters; keep "
        "it as long as the ledger",
    )
    erasure_log: str | None = Field(
        None,
        description="Path of a file outside the ledger that lists the hashes of erased people, for a restored ledger",
    )
    machine_open_seconds: float = Field(
        2,
        ge=0,
        le=86_400,
        description="Opens within so many seconds of the delivery are "
        "[probably a machine's](verdicts.md#opens-by-machines); 0: no open is",
    )
    allow_http: bool = Field(
        False, description="Whether the base URL may start with http:// if the service is on another machine"
    )
    ca_bundle: str | None = Field(
        None, description="Path of a file with the certificates to trust instead of the default ones"
    )
    proxy: str | None = Field(
        None,
        repr=False,
        description="Proxy to use, such as http://proxy.example.com:3128; default: HTTPS_PROXY",
    )

    def ledger(self) -> str:
        """Return the ledger's URL. Raise SettingsError if it is not set: a default would create a second ledger."""
        self.require("ledger_url")
        return str(self.ledger_url)

    def require(self, *names: str) -> None:
        """Raise one SettingsError that lists all settings with these names that are not set, and what each one is.

        A private key is enough instead of a client secret.
        """
        missing = [name for name in names if not getattr(self, name)]
        if self.private_key and "client_secret" in missing:
            missing.remove("client_secret")
        if not missing:
            return
        fields = type(self).model_fields
        if len(missing) == 1:
            name = missing[0]
            raise SettingsError(f"{_variable(name)} is not set. Set it: {fields[name].description}")
        lines = [f"- {_variable(name)}: {fields[name].description}" for name in missing]
        raise SettingsError("\n".join([f"{len(missing)} settings are not set. Set all of them:", *lines]))

    @classmethod
    def settings_customise_sources(cls, *_: Any, **sources: Any) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments and the environment only. The other sources have nothing, and take as long."""
        return sources["init_settings"], sources["env_settings"]

    @field_validator("public_url", "service_url")
    @classmethod
    def _without_slash(cls, value: str | None) -> str | None:
        return value.strip().rstrip("/") if value else value

    @field_validator("post_back_secrets", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("field_names", mode="before")
    @classmethod
    def _parsed(cls, value: object) -> object:
        if isinstance(value, str):
            try:
                return json.loads(value)
            except ValueError:
                raise ValueError(_NO_OBJECT) from None
        return value

    @field_validator("erasure_secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value()) < 32:
            raise ValueError("it must have at least 32 characters; make one with: openssl rand -hex 32")
        return secret

    @field_validator("post_back_secrets")
    @classmethod
    def _strong_enough(cls, secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if len(secrets) > 2:
            raise ValueError("at most two secrets are allowed: the new one and the one it replaces")
        if any(len(secret.get_secret_value()) < 32 for secret in secrets):
            raise ValueError(
                "each secret must have at least 32 characters; make one with: openssl rand -hex 32"
            )
        if any(len(secret.get_secret_value().splitlines()) > 1 for secret in secrets):
            raise ValueError("a secret has a line break in it; separate two secrets by a comma")
        return secrets


def load_settings(needed: Collection[str] = (), warehouse: str = WAREHOUSE, /, **given: Any) -> Settings:
    """Return the settings that are given, and read the others from the environment and from SENDOFF_SETTINGS_FROM.

    ``needed``: the settings to look up in that source. Default: all that are not given. ``warehouse``: the connection
    that has ``warehouse_url`` in that source, as a campaign names it. Raise SettingsError for a wrong value, or if the
    environment and the source have different values. The error names settings, but never a value.
    """
    names = [name for name in needed or Settings.model_fields if name not in given]
    source = os.environ.get(_SOURCE)
    own = environment_settings(**given)
    return (
        _combined(own, _source(source)(names, own.connection, warehouse), given) if source and names else own
    )


def combined_settings(found: Mapping[str, Found], /, **given: Any) -> Settings:
    """Return the settings that are given, then those that were found elsewhere, then those of the environment.

    Raise SettingsError for a wrong value, or if the environment has another value than was found elsewhere.
    """
    return _combined(environment_settings(**given), found, given)


def _combined(own: Settings, found: Mapping[str, Found], given: Mapping[str, Any]) -> Settings:
    both = _validated(given, found)
    for name, each in found.items():
        if name in own.model_fields_set and getattr(own, name) != getattr(both, name):
            variable = _variable(name)
            variable = variable if os.environ.get(variable) else f"{variable}_FILE"
            mend = f"Remove {variable}, or set it to the same value."
            if name == "erasure_secret":
                mend = (
                    "Keep the secret that this ledger is used with, because no other one recognises the people who "
                    "were erased. Remove the other one."
                )
            raise SettingsError(f"{variable} and the {each.place} have different values. {mend}")
    return both


_OF_ACCOUNT = {
    *("connection", "service_url", "client_id", "client_secret", "private_key", "private_key_passphrase"),
    *("algorithm", "token_audience", "app_token", "field_names", "proxy", "ca_bundle"),
}


def has_source() -> bool:
    """Return whether SENDOFF_SETTINGS_FROM names a second source of settings."""
    return bool(os.environ.get(_SOURCE))


def connection_for(named: str) -> str | None:
    """Return the connection to the service to use for a campaign that names one; None: the one of the settings.

    SENDOFF_SETTINGS_FROM has a service for each name. The environment has one service and account, if it has any part
    of these.
    """
    return None if not has_source() or environment_settings().model_fields_set & _OF_ACCOUNT else named


def no_warehouse(name: str, remedy: str, *, is_looked_up: bool) -> SettingsError:
    """Return the error for a connection without a warehouse. ``remedy``: what to add.

    ``is_looked_up``: whether the settings were read for it.
    """
    if is_looked_up and (source := os.environ.get(_SOURCE)):
        return SettingsError(
            f"{source.capitalize()} has no connection {name}, which the campaign names as its warehouse. Correct "
            "the campaign's field warehouse, or add the connection."
        )
    return SettingsError(f"No warehouse was given for the connection {name}. Add {remedy}.")


def defaults_file() -> Path | None:
    """Return the path of the file whose rules apply to campaigns without a file of their own, or None.

    It reads this variable alone, because each campaign of a DAG file needs it. Raise SettingsError if the file that
    ``SENDOFF_DEFAULTS_FILE`` names cannot be read.
    """
    variable = _variable("defaults")
    file = os.environ.get(f"{variable}_FILE")
    path = _from_file(variable, file) if file else os.environ.get(variable)
    return Path(path) if path else None


def environment_settings(**given: Any) -> Settings:
    """Return the settings that are given, and read the others from the environment and the files that it names.

    Raise SettingsError, with the name of each wrong setting but never its value.
    """
    return _validated(given, {})


def _source(name: str) -> SettingsSource:
    known = entry_points(group=_GROUP)
    if name not in known.names:
        raise SettingsError(
            f"{_SOURCE}: {name!r} is not a source of settings. Use {' or '.join(sorted(known.names)) or 'none'}."
        )
    source: SettingsSource = known[name].load()
    return source


def _validated(given: Mapping[str, Any], found: Mapping[str, Found]) -> Settings:
    values = {name: each.value for name, each in found.items()}
    try:
        return Settings(**{**_from_files(given), **values, **given})
    except ValidationError as error:
        problems = "; ".join(
            f"{_named(str(item['loc'][0]), given, found)}: {_problem(item)}"
            for item in error.errors(include_input=False, include_url=False)
        )
        raise SettingsError(problems) from None


def _problem(error: ErrorDetails) -> str:
    expected = _EXPECTED.get(error["type"])
    text = expected.format(**error.get("ctx", {})) if expected else error["msg"].removeprefix("Value error, ")
    return ": ".join([*map(str, error["loc"][1:]), text])


def _named(name: str, given: Collection[str], found: Mapping[str, Found]) -> str:
    """Return the name of a setting as its author knows it: an argument, a place in a source, or a variable."""
    if name in given:
        return name
    return found[name].place if name in found else _variable(name)


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


def _from_files(given: Collection[str]) -> dict[str, Any]:
    variables = {name: _variable(name) for name in Settings.model_fields if name not in given}
    paths = {name: os.environ.get(f"{variable}_FILE") for name, variable in variables.items()}
    return {name: _from_file(variables[name], path) for name, path in paths.items() if path}


def _from_file(variable: str, path: str) -> str:
    if os.environ.get(variable):
        raise SettingsError(f"{variable} and {variable}_FILE are both set. Remove one of them")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingsError(f"{variable}_FILE: cannot read {path}: {reason}") from None
