"""Settings of a deployment outside of Airflow, from ``SENDOFF_*`` environment variables.

Each value can also come from a file, as secrets often do: ``SENDOFF_LEDGER_URL_FILE`` is the path of a file that
contains the value of ``SENDOFF_LEDGER_URL``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sendoff.errors import SettingsError

_PREFIX = "SENDOFF_"


class Settings(BaseSettings):
    """The settings of every Sendoff process; inside Airflow, connections override them.

    ``post_back_secrets``: one or two secrets, separated by a comma. The first one signs post-back addresses, and either
    one verifies them. To rotate a secret, put the new one first, and remove the old one when its launches are over.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True)

    ledger_url: str | None = Field(None, repr=False, description="SQLAlchemy URL of the ledger database")
    public_url: str | None = Field(
        None,
        description="Public URL of the receiver, where the service sends post-backs, such as https://events.example.com",
    )
    post_back_secrets: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="One or two secrets to sign post-back addresses, newest first, separated by a comma"
    )

    def ledger(self) -> str:
        """Return the ledger's URL. Raise SettingsError if it is not set: a default would create a second ledger."""
        if self.ledger_url is None:
            raise SettingsError(
                "SENDOFF_LEDGER_URL is not set. Set it to the URL of the ledger database, such as "
                "sqlite:////data/sendoff.db"
            )
        return self.ledger_url

    @field_validator("post_back_secrets", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("post_back_secrets")
    @classmethod
    def _strong_enough(cls, secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if len(secrets) > 2:
            raise ValueError("at most two secrets are allowed: the new one and the one it replaces")
        if any(len(secret.get_secret_value()) < 32 for secret in secrets):
            raise ValueError(
                "each secret must have at least 32 characters; make one with: openssl rand -hex 32"
            )
        return secrets


def load_settings() -> Settings:
    """Read the settings from the environment and the files that it names.

    Raise SettingsError, with the name of each wrong variable but never its value.
    """
    try:
        return Settings(**_from_files())
    except ValidationError as error:
        problems = "; ".join(
            f"{_PREFIX}{'_'.join(str(part) for part in item['loc']).upper()}: "
            f"{item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_input=False, include_url=False)
        )
        raise SettingsError(problems) from None


def _from_files() -> dict[str, Any]:
    variables = {name: f"{_PREFIX}{name.upper()}" for name in Settings.model_fields}
    paths = {name: os.environ.get(f"{variable}_FILE") for name, variable in variables.items()}
    return {name: _from_file(variables[name], path) for name, path in paths.items() if path}


def _from_file(variable: str, path: str) -> str:
    if variable in os.environ:
        raise SettingsError(f"{variable} and {variable}_FILE are both set. Remove one of them")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingsError(f"{variable}_FILE: cannot read {path}: {reason}") from None
