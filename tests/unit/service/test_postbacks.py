import base64
import hmac
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr

from sendoff.errors import SettingsError
from sendoff.service.postbacks import PostBack, PostBackSigner
from sendoff.service.wire import PostBackAddresses
from sendoff.settings import Settings
from sendoff.states import PostBackKind

URL = "https://events.example.com"
OLD, NEW = "o" * 32, "n" * 32
KEY = "0123456789abcdef" * 2
NOW = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
ADDRESSES = PostBackSigner(URL, [NEW])


def path_of(address: str) -> str:
    return address.removeprefix(URL)


def test_an_address_is_the_hmac_of_its_own_path() -> None:
    digest = hmac.new(NEW.encode(), f"v1/open/{KEY}".encode(), "sha256").digest()
    signature = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert ADDRESSES.sign("open", KEY) == f"{URL}/v1/open/{KEY}/{signature}"


@pytest.mark.parametrize("kind", PostBackKind)
def test_what_was_signed_is_read_again(kind: str) -> None:
    assert ADDRESSES.read(path_of(ADDRESSES.sign(kind, KEY))) == (kind, KEY)


def wrong_paths() -> dict[str, str]:
    right = path_of(ADDRESSES.sign("open", KEY))
    _, v1, kind, key, signature = right.split("/")
    return {
        "another kind": f"/{v1}/delivery/{key}/{signature}",
        "another dispatch": f"/{v1}/{kind}/{'f' * 32}/{signature}",
        "the key in capitals": f"/{v1}/{kind}/{key.upper()}/{signature}",
        "a signature cut short": right[:-1],
        "a signature with padding": right + "=",
        "a signature grown longer": right + "A",
        "one character changed": right[:-2] + ("A" if right[-2] != "A" else "B") + right[-1],
        "no signature": f"/{v1}/{kind}/{key}/",
        "an unknown kind": f"/{v1}/bounce/{key}/{signature}",
        "another version": f"/v2/{kind}/{key}/{signature}",
        "something behind": f"{right}/more",
        "something in front": f"/more{right}",
        "a line break behind": f"{right}\n",
        "letters beyond ASCII": f"/{v1}/{kind}/{key}/{'é' * 43}",
        "half of a surrogate pair": f"/{v1}/{kind}/{key}/{chr(0xD800) * 43}",
        "digits of another script": f"/{v1}/{kind}/{'٣' * 32}/{signature}",
        "nothing": "/",
    }


@pytest.mark.parametrize("case", wrong_paths())
@pytest.mark.promise("private/forged")
def test_a_path_that_was_not_signed_is_not_read(case: str) -> None:
    assert ADDRESSES.read(wrong_paths()[case]) is None


@pytest.mark.parametrize("case", wrong_paths())
@pytest.mark.promise("private/forged")
def test_a_forged_path_is_not_read_after_the_true_one(case: str) -> None:
    signer = PostBackSigner(URL, [NEW])
    right = path_of(signer.sign("open", KEY))
    for _ in range(2):
        assert signer.read(right) == ("open", KEY)
        assert signer.read(wrong_paths()[case]) is None
    assert list(signer._valid) == [right]


def test_a_path_that_was_read_is_not_valid_for_a_signer_without_its_secret() -> None:
    before, during, after = (PostBackSigner(URL, secrets) for secrets in ([OLD], [NEW, OLD], [NEW]))
    path = path_of(before.sign("open", KEY))
    assert [signer.read(path) for signer in (before, during, after)] == [("open", KEY), ("open", KEY), None]


def test_the_paths_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sendoff.service.postbacks._MOST_REMEMBERED", 3)
    signer = PostBackSigner(URL, [NEW])
    keys = [f"{number:032x}" for number in range(10)]
    for _ in range(2):
        for key in keys:
            assert signer.read(path_of(signer.sign("open", key))) == ("open", key)
            assert len(signer._valid) <= 3


def test_the_last_character_has_one_spelling() -> None:
    """Base64 leaves two bits unused, so a decoder would accept four spellings of the same signature."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    signature = ADDRESSES.sign("open", KEY).rpartition("/")[2]
    accepted = [last for last in alphabet if ADDRESSES.verify("open", KEY, signature[:-1] + last)]
    assert accepted == [signature[-1]]


def test_two_secrets_are_valid_while_one_replaces_the_other() -> None:
    before, both, after = (
        PostBackSigner(URL, [OLD]),
        PostBackSigner(URL, [NEW, OLD]),
        PostBackSigner(URL, [NEW]),
    )
    old, new = path_of(before.sign("open", KEY)), path_of(both.sign("open", KEY))
    assert (both.read(old), both.read(new)) == (("open", KEY), ("open", KEY))
    assert after.read(new) == ("open", KEY)
    assert after.read(old) is None


def test_a_public_path_may_stay_in_front_or_be_taken_off_by_a_proxy() -> None:
    for public in ("/hooks", "/v1", "/v"):
        signer = PostBackSigner(f"{URL}{public}/", [NEW])
        address = signer.sign("open", KEY)
        assert address.startswith(f"{URL}{public}/v1/open/")
        assert signer.read(path_of(address)) == ("open", KEY)
        assert signer.read(path_of(address).removeprefix(public)) == ("open", KEY)


@pytest.mark.parametrize(("kind", "key"), [("bounce", KEY), ("open", "short"), ("open", KEY.upper())])
def test_only_a_known_kind_and_a_dispatch_key_are_signed(kind: str, key: str) -> None:
    with pytest.raises(ValueError, match="known kind"):
        ADDRESSES.sign(kind, key)


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        (URL, []),  # never "no secret, no check"
        (URL, [""]),
        (URL, ["short"]),
        (URL, [NEW, OLD, NEW]),
        (URL, [NEW, f"{OLD}\n{OLD}"]),
        ("events.example.com", [NEW]),
        ("ftp://events.example.com", [NEW]),
        ("https://", [NEW]),
        ("https://[", [NEW]),
        ("https://events.example.com:99999", [NEW]),  # no such port, so no post-back could arrive
        ("https://events.example.com:0", [NEW]),
        ("https://jane:hunter2@events.example.com", [NEW]),
        ("https://events.example.com\r", [NEW]),  # urlsplit would drop the white space
        ("https://events.example.com/a b", [NEW]),
        ("https://events.example.com/?q=1", [NEW]),
        ("https://events.example.com/#part", [NEW]),
    ],
)
def test_unusable_settings_are_refused(url: str, secrets: list[str]) -> None:
    with pytest.raises(SettingsError) as refusal:
        PostBackSigner(url, secrets)
    assert "hunter2" not in str(refusal.value)


def test_missing_settings_are_named() -> None:
    settings = Settings(public_url=URL, post_back_secrets=(SecretStr(NEW),), _env_file=None)
    assert PostBackSigner.from_settings(settings) == PostBackSigner(URL, [NEW])
    assert Settings(public_url=f" {URL}/\r\n", _env_file=None).public_url == URL
    with pytest.raises(SettingsError, match="SENDOFF_PUBLIC_URL"):
        PostBackSigner.from_settings(settings.model_copy(update={"public_url": None}))
    with pytest.raises(SettingsError, match=r"SENDOFF_PUBLIC_URL.* must start with https://"):
        PostBackSigner.from_settings(settings.model_copy(update={"public_url": "events.example.com"}))
    with pytest.raises(SettingsError, match="SENDOFF_POST_BACK_SECRETS"):
        PostBackSigner.from_settings(settings.model_copy(update={"post_back_secrets": ()}))


def test_a_dispatch_gets_an_address_for_each_kind_that_is_wanted() -> None:
    assert ADDRESSES.for_dispatch(KEY, ["open"]) == PostBackAddresses(open=ADDRESSES.sign("open", KEY))
    assert ADDRESSES.for_dispatch(KEY).delivery == ADDRESSES.sign("delivery", KEY)


def test_no_repr_shows_a_secret_an_address_or_a_body() -> None:
    body = b'{"time": 1772355600, "device": {"id": 987654321}}'
    shown = repr([ADDRESSES, ADDRESSES.for_dispatch(KEY), PostBack.received("open", KEY, NOW, body)])
    signature = ADDRESSES.sign("open", KEY).rpartition("/")[2]
    assert not [planted for planted in (NEW, signature, "987654321") if planted in shown]


def test_a_body_is_read_as_it_arrives() -> None:
    body = b'{"time": 1772355600, "device": {"id": 5}, "campaign": {"id": 7}}'
    post_back = PostBack.received("delivery", KEY, NOW, body)
    assert post_back.fields is not None
    assert (post_back.fields.device_id, post_back.fields.campaign_id) == (5, 7)
    assert post_back.body == body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[1, 2]",
        b'{"time": 1772355600, "device": {"id": -1}}',
        b'{"time": 1772355600, "device": {"id": 1e400}}',
        b'{"time": 1772355600, "device": {"id": 123456789012345678901234567890}}',
        b'{"time": 1e400, "device": {"id": 5}}',
        b'{"a":' * 8_000 + b"1" + b"}" * 8_000,
        b"[" * 16_000,
        b'{"time": 1772355600, "device": {"id": 5}, "x": "\xff\xfe"}',
        b"\x00" * 100,
        b"\x1f\x8b\x08\x00compressed",
    ],
)
def test_an_unreadable_body_is_kept_as_it_came(body: bytes) -> None:
    post_back = PostBack.received("delivery", KEY, NOW, body)
    assert post_back == replace(post_back, fields=None, body=body)
