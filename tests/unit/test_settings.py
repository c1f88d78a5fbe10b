from __future__ import annotations

from pathlib import Path

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


def test_a_setting_may_stand_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("sqlite:////data/ledger.db\n")
    (tmp_path / "secrets").write_text(",".join(SECRETS))
    monkeypatch.delenv("SENDOFF_LEDGER_URL", raising=False)
    monkeypatch.setenv("SENDOFF_LEDGER_URL_FILE", str(tmp_path / "ledger"))
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS_FILE", str(tmp_path / "secrets"))
    settings = load_settings()
    assert settings.ledger() == "sqlite:////data/ledger.db"
    assert [secret.get_secret_value() for secret in settings.post_back_secrets] == list(SECRETS)


def test_a_setting_and_its_file_at_once_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("sqlite:////data/ledger.db")
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "sqlite:////data/other.db")
    monkeypatch.setenv("SENDOFF_LEDGER_URL_FILE", str(tmp_path / "ledger"))
    with pytest.raises(SettingsError, match="SENDOFF_LEDGER_URL and SENDOFF_LEDGER_URL_FILE are both set"):
        load_settings()


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "ledger"
    if content:
        path.write_bytes(content)
    monkeypatch.delenv("SENDOFF_LEDGER_URL", raising=False)
    monkeypatch.setenv("SENDOFF_LEDGER_URL_FILE", str(path))
    with pytest.raises(SettingsError, match=f"SENDOFF_LEDGER_URL_FILE: cannot read {path}"):
        load_settings()


def test_wrong_secrets_of_a_file_are_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secrets").write_text("short-secret")
    monkeypatch.delenv("SENDOFF_POST_BACK_SECRETS", raising=False)
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS_FILE", str(tmp_path / "secrets"))
    with pytest.raises(SettingsError, match="SENDOFF_POST_BACK_SECRETS: each secret must have") as caught:
        load_settings()
    assert "short-secret" not in str(caught.value)


def test_settings_do_not_print_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", SECRETS[0])
    assert SECRETS[0] not in repr(load_settings())


def test_an_argument_stands_over_a_variable_and_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SENDOFF_TIMEOUT", "7")
    monkeypatch.setenv("SENDOFF_CLIENT_ID_FILE", str(tmp_path / "missing"))
    settings = load_settings(client_id="abc")
    assert (settings.client_id, settings.timeout) == ("abc", 7)


def test_a_wrong_argument_is_named_as_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_TOKEN_LIFETIME", "long")
    with pytest.raises(SettingsError) as caught:
        load_settings(timeout="soon")
    assert "timeout: " in str(caught.value)
    assert "SENDOFF_TOKEN_LIFETIME: " in str(caught.value)
    assert "soon" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "names"), [('{"app_token": "application"}', {"app_token": "application"}), ("{", None)]
)
def test_names_of_fields_are_a_json_object(
    monkeypatch: pytest.MonkeyPatch, value: str, names: dict[str, str] | None
) -> None:
    monkeypatch.setenv("SENDOFF_FIELD_NAMES", value)
    if names is None:
        with pytest.raises(SettingsError, match="SENDOFF_FIELD_NAMES: it is not a JSON object"):
            load_settings()
    else:
        assert load_settings().field_names == names
