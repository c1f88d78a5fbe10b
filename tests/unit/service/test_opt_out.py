"""The addresses where recipients opt out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendoff.errors import AudienceError
from sendoff.service import OPT_OUT_PATH, OptOut, OptOutSigner

KEY = "0123456789abcdef" * 2
OPT_OUT = OptOut(KEY, "account", "device_id", "40000017")
SIGNER = OptOutSigner("https://events.example.com/hooks", ["s" * 32])


def path_of(address: str, signer: OptOutSigner = SIGNER) -> str:
    return address.removeprefix(signer.public_url)


@given(identifier=st.text(min_size=1, max_size=200), scope=st.sampled_from(["account", "topic:news"]))
def test_an_address_says_who_opts_out_of_what(identifier: str, scope: str) -> None:
    try:
        identifier.encode()
    except UnicodeEncodeError:
        return
    opt_out = OptOut(KEY, scope, "user_id", identifier)
    assert SIGNER.read(path_of(SIGNER.sign(opt_out))) == opt_out


def test_a_proxy_may_pass_on_the_path_of_the_public_url_or_strip_it() -> None:
    path = path_of(SIGNER.sign(OPT_OUT))
    assert SIGNER.read(f"/hooks{path}") == SIGNER.read(path) == OPT_OUT


def test_the_path_of_the_public_url_may_be_the_beginning_of_every_address() -> None:
    signer = OptOutSigner("https://events.example.com/v1", SIGNER.secrets)
    path = path_of(SIGNER.sign(OPT_OUT))
    assert signer.read(f"/v1{path}") == signer.read(path) == OPT_OUT


def test_an_address_shows_no_identifier_and_is_the_same_each_time() -> None:
    opt_out = replace(OPT_OUT, identified_by="user_id", identifier="ada@example.com")
    address = SIGNER.sign(opt_out)
    assert address.startswith("https://events.example.com/hooks/v1/opt-out/")
    assert "ada" not in address
    assert "ada" not in repr(opt_out)
    assert SIGNER.sign(opt_out) == address
    assert len({SIGNER.sign(replace(opt_out, launch_key=key)) for key in (KEY, KEY[::-1])}) == 2


def test_no_character_of_an_address_can_be_changed() -> None:
    path = path_of(SIGNER.sign(OPT_OUT))
    start = len(OPT_OUT_PATH)
    for place in range(start, len(path) - 1):  # the last one has bits that mean nothing
        other = "A" if path[place] != "A" else "B"
        assert SIGNER.read(path[:place] + other + path[place + 1 :]) is None
    assert SIGNER.read(path[:-4]) is None


@pytest.mark.parametrize(
    "path", ["", "/v1/opt-out/", "/v1/opt-out/%00", f"/v1/opt-out/{'a' * 2000}", "/v1/opt-out/é"]
)
def test_other_paths_are_not_addresses(path: str) -> None:
    assert SIGNER.read(path) is None


def test_the_longest_identifier_has_an_address_that_works_and_longer_ones_have_none() -> None:
    longest = replace(OPT_OUT, scope=f"topic:{'t' * 64}", identified_by="device_token", identifier="é" * 450)
    assert SIGNER.read(path_of(SIGNER.sign(longest))) == longest
    with pytest.raises(AudienceError, match="an identifier of 901 bytes is too long") as caught:
        SIGNER.sign(replace(longest, identifier="é" * 450 + "e"))
    assert "é" not in str(caught.value)


def test_a_secret_can_be_replaced() -> None:
    old, new = "o" * 32, "n" * 32
    path = path_of(OptOutSigner(SIGNER.public_url, [old]).sign(OPT_OUT))
    assert OptOutSigner(SIGNER.public_url, [new, old]).read(path) == OPT_OUT
    assert OptOutSigner(SIGNER.public_url, [new]).read(path) is None
