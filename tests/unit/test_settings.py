from __future__ import annotations

import pytest

from sendoff.errors import SettingsError
from sendoff.settings import load_settings

SECRETS = "a" * 32, "b" * 32


def test_a_ledger_that_nobody_named_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENDOFF_LEDGER_URL", raising=False)
    with pytest.raises(SettingsError, match="SENDOFF_LEDGER_URL is not set"):
        load_settings().ledger()


def test_two_secrets_are_separated_by_a_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", " , ".join(SECRETS))
    assert [secret.get_secret_value() for secret in load_settings().post_back_secrets] == list(SECRETS)


@pytest.mark.parametrize("secrets", ["short", ",".join([*SECRETS, "c" * 32])])
def test_wrong_secrets_are_named_and_not_shown(monkeypatch: pytest.MonkeyPatch, secrets: str) -> None:
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", secrets)
    with pytest.raises(SettingsError, match="SENDOFF_POST_BACK_SECRETS") as caught:
        load_settings()
    assert secrets not in str(caught.value)


def test_settings_do_not_print_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", SECRETS[0])
    assert SECRETS[0] not in repr(load_settings())
