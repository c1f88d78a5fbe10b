from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sendoff.app.connections import Connections
from sendoff.campaign import load_campaign
from sendoff.cli.send import _urls
from sendoff.cli.shared import warehouse_urls
from sendoff.errors import SettingsError
from sendoff.settings import Settings, connection_for, defaults_file, load_settings

SECRETS = "a" * 32, "b" * 32


def test_a_ledger_that_nobody_named_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENDOFF_LEDGER_URL", raising=False)
    with pytest.raises(SettingsError, match="SENDOFF_LEDGER_URL is not set"):
        load_settings().ledger()


def test_two_secrets_are_separated_by_a_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", " , ".join(SECRETS))
    assert [secret.get_secret_value() for secret in load_settings().post_back_secrets] == list(SECRETS)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TIMEOUT", "sixty", "a number"),
        ("TIMEOUT", "0", "above 0"),
        ("TIMEOUT", "91", "at most 90"),
        ("REQUESTS_AT_ONCE", "4.5", "a whole number"),
        ("ALLOW_HTTP", "maybe", "true or false"),
        ("MACHINE_OPEN_SECONDS", "-7", "at least 0"),
    ],
)
def test_a_wrong_value_is_described_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"SENDOFF_{name}", value)
    with pytest.raises(SettingsError, match=f"^SENDOFF_{name}: it must be {expected}$"):
        load_settings()


@pytest.mark.parametrize("secrets", ["short", ",".join([*SECRETS, "c" * 32]), "\n".join(SECRETS)])
def test_wrong_secrets_are_named_and_not_shown(monkeypatch: pytest.MonkeyPatch, secrets: str) -> None:
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", secrets)
    with pytest.raises(SettingsError, match="SENDOFF_POST_BACK_SECRETS") as caught:
        load_settings()
    assert secrets not in str(caught.value)


def test_an_empty_variable_is_like_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_MACHINE_OPEN_SECONDS", "")
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "")
    settings = load_settings()
    assert settings.machine_open_seconds == Settings.model_fields["machine_open_seconds"].default
    with pytest.raises(SettingsError, match="SENDOFF_LEDGER_URL is not set"):
        settings.ledger()


def test_a_setting_may_stand_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("sqlite:////data/ledger.db\n")
    (tmp_path / "secrets").write_text(",".join(SECRETS))
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "")  # an empty variable is not set
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
    for too_long in ("91", "inf"):
        with pytest.raises(SettingsError, match="timeout: it must be at most 90"):
            load_settings(timeout=too_long)
    assert "SENDOFF_TOKEN_LIFETIME: " in str(caught.value)
    assert "soon" not in str(caught.value)


def test_names_of_fields_are_a_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_FIELD_NAMES", '{"app_token": "application"}')
    assert load_settings().field_names == {"app_token": "application"}


WRONG_NAMES = [
    ("{", "it is not a JSON object"),
    ('["a"]', "it is not a JSON object"),
    ('{"device_ids": 1}', "device_ids: it must be a text"),
]


@pytest.mark.parametrize(("value", "problem"), WRONG_NAMES)
def test_wrong_names_of_fields_are_reported_under_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: str, problem: str
) -> None:
    monkeypatch.setenv("SENDOFF_FIELD_NAMES", value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value) == f"SENDOFF_FIELD_NAMES: {problem}"
    with pytest.raises(SettingsError) as caught:
        load_settings(field_names=value)
    assert str(caught.value) == f"field_names: {problem}"


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Install a package whose source of settings, ``vault``, has the given values, and choose it."""

    def install(**values: str) -> None:
        (tmp_path / "vault-1.0.dist-info").mkdir()
        (tmp_path / "vault-1.0.dist-info/METADATA").write_text(
            "Metadata-Version: 2.1\nName: vault\nVersion: 1.0\n"
        )
        (tmp_path / "vault-1.0.dist-info/entry_points.txt").write_text(
            "[sendoff.settings]\nvault = vault_settings:read\n"
        )
        (tmp_path / "vault_settings.py").write_text(
            f"""
from sendoff.settings import Found
def read(names, connection, warehouse):
    return {{name: Found(value, f"item {{name}}") for name, value in {values!r}.items() if name in names}}
"""
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("SENDOFF_SETTINGS_FROM", "vault")

    monkeypatch.delitem(sys.modules, "vault_settings", raising=False)
    for name in ("LEDGER_URL", "PUBLIC_URL", "POST_BACK_SECRETS"):
        monkeypatch.delenv(f"SENDOFF_{name}", raising=False)
    return install


def test_a_source_and_the_environment_complete_each_other(
    monkeypatch: pytest.MonkeyPatch, vault: Callable[..., None]
) -> None:
    vault(ledger_url="sqlite:////data/ledger.db", post_back_secrets=",".join(SECRETS))
    monkeypatch.setenv("SENDOFF_PUBLIC_URL", "https://events.example.com")
    settings = load_settings()
    assert (settings.ledger(), settings.public_url) == (
        "sqlite:////data/ledger.db",
        "https://events.example.com",
    )
    assert [secret.get_secret_value() for secret in settings.post_back_secrets] == list(SECRETS)


@pytest.mark.parametrize(("value", "problem"), WRONG_NAMES)
def test_wrong_names_of_fields_in_a_source_are_reported_under_their_place(
    vault: Callable[..., None], value: str, problem: str
) -> None:
    vault(field_names=value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value) == f"item field_names: {problem}"


def test_only_the_settings_that_are_needed_are_looked_up(vault: Callable[..., None]) -> None:
    vault(ledger_url="sqlite:////data/ledger.db", public_url="https://events.example.com")
    settings = load_settings(["ledger_url"])
    assert (settings.ledger_url, settings.public_url) == ("sqlite:////data/ledger.db", None)


def test_a_warehouse_that_the_source_lacks_is_the_same_error_in_a_shell_and_in_python(
    monkeypatch: pytest.MonkeyPatch, vault: Callable[..., None]
) -> None:
    vault()
    monkeypatch.delenv("SENDOFF_WAREHOUSE_URL", raising=False)
    for source in (warehouse_urls([], []), Connections(load_settings(), None, "ann").source):
        with pytest.raises(SettingsError) as caught:
            source("shp")
        assert str(caught.value) == (
            "Vault has no connection shp, which the campaign names as its warehouse. Correct the campaign's field "
            "warehouse, or add the connection."
        )


def test_a_campaign_without_a_query_needs_no_warehouse_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vault: Callable[..., None]
) -> None:
    vault()
    monkeypatch.delenv("SENDOFF_WAREHOUSE_URL", raising=False)
    head = "title: A\nmessage: {title: A, text: B}\nchannels: {android_push: {}}\n"
    source = "audience: {source: {kind: verdicts, of: first, are: [missing]}}\n"
    for name, text in (("second", head + source), ("first", head)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "campaign.yaml").write_text(text)
    (tmp_path / "first/audience.sql").write_text("SELECT 1 AS device_id")
    second, first = load_campaign(tmp_path / "second"), load_campaign(tmp_path / "first")
    assert _urls([second], None) is None
    with pytest.raises(SettingsError, match="Vault has no connection sendoff_warehouse"):
        _urls([first], None)


def test_equal_values_in_both_are_no_conflict(
    monkeypatch: pytest.MonkeyPatch, vault: Callable[..., None]
) -> None:
    vault(public_url="https://events.example.com/", post_back_secrets=",".join(SECRETS))
    monkeypatch.setenv("SENDOFF_PUBLIC_URL", "https://events.example.com")
    monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", " , ".join(SECRETS))
    assert load_settings().public_url == "https://events.example.com"


@pytest.mark.parametrize("is_in_file", [False, True])
def test_different_values_are_an_error_that_names_both_places_and_no_value(
    monkeypatch: pytest.MonkeyPatch, vault: Callable[..., None], tmp_path: Path, is_in_file: bool
) -> None:
    vault(post_back_secrets=SECRETS[0])
    (tmp_path / "secret").write_text(SECRETS[1])
    variable = f"SENDOFF_POST_BACK_SECRETS{'_FILE' if is_in_file else ''}"
    monkeypatch.setenv(variable, str(tmp_path / "secret") if is_in_file else SECRETS[1])
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value) == (
        f"{variable} and the item post_back_secrets have different values. Remove {variable}, or set it to "
        "the same value."
    )


def test_a_different_erasure_secret_is_an_error_that_does_not_ask_to_remove_the_right_one(
    monkeypatch: pytest.MonkeyPatch, vault: Callable[..., None]
) -> None:
    vault(erasure_secret=SECRETS[0])
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", SECRETS[1])
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value) == (
        "SENDOFF_ERASURE_SECRET and the item erasure_secret have different values. Keep the secret that this ledger is "
        "used with, because no other one recognises the people who were erased. Remove the other one."
    )


def test_a_wrong_value_of_a_source_is_named_by_its_place(vault: Callable[..., None]) -> None:
    vault(post_back_secrets="short-secret")
    with pytest.raises(SettingsError, match=r"^item post_back_secrets: each secret must have") as caught:
        load_settings()
    assert "short-secret" not in str(caught.value)


def test_a_source_that_no_package_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDOFF_SETTINGS_FROM", "vaults")
    with pytest.raises(
        SettingsError, match=r"SENDOFF_SETTINGS_FROM: 'vaults' is not a source of settings\. Use airflow"
    ):
        load_settings()


def test_an_argument_overrides_a_source(vault: Callable[..., None]) -> None:
    vault(ledger_url="sqlite:////data/a.db", timeout="soon")
    settings = load_settings(ledger_url="sqlite:////data/b.db", timeout=5)
    assert (settings.ledger_url, settings.timeout) == ("sqlite:////data/b.db", 5)


def test_the_path_of_the_defaults_can_come_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "path").write_text("/srv/campaigns/defaults.yaml\n")
    monkeypatch.setenv("SENDOFF_DEFAULTS_FILE", str(tmp_path / "path"))
    assert defaults_file() == Path("/srv/campaigns/defaults.yaml")
    assert load_settings().defaults == "/srv/campaigns/defaults.yaml"
    monkeypatch.setenv("SENDOFF_DEFAULTS", "other.yaml")
    with pytest.raises(SettingsError, match="are both set"):
        defaults_file()


def test_a_campaigns_connection_counts_unless_the_environment_has_a_part_of_an_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SETTINGS_FROM", "CONNECTION", "SERVICE_URL", "APP_TOKEN", "FIELD_NAMES"):
        monkeypatch.delenv(f"SENDOFF_{name}", raising=False)
    assert connection_for("eu") is None
    monkeypatch.setenv("SENDOFF_SETTINGS_FROM", "airflow")
    assert connection_for("eu") == "eu"
    parts = {
        "CONNECTION": "us",
        "SERVICE_URL": "https://api.example.com",
        "APP_TOKEN": "t",
        "FIELD_NAMES": "{}",
    }
    for name, value in parts.items():
        with monkeypatch.context() as patch:
            patch.setenv(f"SENDOFF_{name}", value)
            assert connection_for("eu") is None
