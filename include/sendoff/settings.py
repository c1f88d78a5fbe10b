"""What one deployment chooses outside of Airflow: read from ``SENDOFF_*`` environment variables."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sendoff.errors import SettingsError


class Settings(BaseSettings):
    """The settings of every Sendoff process; inside Airflow, connections override them.

    ``post_back_secrets`` are one or two, separated by commas: the first signs addresses, each verifies them, so
    that a secret is rotated by putting the new one in front and removing the old one when its launches are over.
    """

    model_config = SettingsConfigDict(env_prefix="SENDOFF_", frozen=True)

    ledger_url: str | None = Field(None, description="SQLAlchemy URL of the ledger database")
    public_url: str | None = Field(
        None, description="Where the service reaches the receiver, e.g. https://events.example.com"
    )
    post_back_secrets: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="One or two secrets that sign post-back addresses, newest first, separated by a comma"
    )

    def ledger(self) -> str:
        """Give the ledger's URL, or raise SettingsError: a ledger that nobody named would be a second one."""
        if self.ledger_url is None:
            raise SettingsError(
                "SENDOFF_LEDGER_URL is not set: which database holds the ledger? For example sqlite:////data/sendoff.db"
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
            raise ValueError("at most two secrets are valid at once: the new one and the one it replaces")
        if any(len(secret.get_secret_value()) < 32 for secret in secrets):
            raise ValueError("each secret needs 32 characters or more (try: openssl rand -hex 32)")
        return secrets


def load_settings() -> Settings:
    """Read the settings from the environment; a SettingsError names each wrong variable, never its value."""
    try:
        return Settings()
    except ValidationError as error:
        problems = "; ".join(
            f"SENDOFF_{'_'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False)
        )
        raise SettingsError(problems) from None
