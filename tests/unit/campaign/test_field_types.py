"""The types of single fields: which values they take, and how errors describe the others."""

from __future__ import annotations

from datetime import UTC, date, datetime, time

import pytest

from sendoff.campaign.field_types import describe, is_web_address
from sendoff.campaign.gates import Approval

from .campaigns import broken, campaign

WEB_ADDRESSES = [
    "https://a.example",
    "https://a.example:8443/b?c#d",
    "http://localhost/a",
    "http://127.0.0.1:80",
]


@pytest.mark.parametrize(
    ("address", "is_good"),
    [
        *((address, True) for address in [*WEB_ADDRESSES, "http://[::1]/a", "HTTPS://A.EXAMPLE"]),
        ("https://", False),
        ("https:///a", False),
        ("http://a.example", False),
        ("http://localhost.a.example", False),
        ("ftp://a.example", False),
        ("a.example", False),
        ("https://a.example/b c", False),
        ("https://a.example/b\tc", False),
        ("https://a.example/\x01", False),
        ("https://[a.example", False),
    ],
)
def test_a_web_address_is_https_or_on_this_machine(address: str, is_good: bool) -> None:
    assert is_web_address(address) is is_good


@pytest.mark.parametrize(
    ("link", "is_good"),
    [
        *((address, True) for address in [*WEB_ADDRESSES, "shop://basket/42", "shop:basket", "a-b+c.1://d"]),
        ("shop://", False),
        ("shop:", False),
        ("shop", False),
        ("1shop://basket", False),
        ("shop://basket 42", False),
        ("javascript:alert(1)", False),
        ("DATA:text/html,a", False),
        ("http://a.example", False),
    ],
)
def test_a_link_leads_into_the_app_or_to_a_web_address(link: str, is_good: bool) -> None:
    fields = {"message": {"text": "T", "url": link}, "channels": {"ios_push": {}}}
    if is_good:
        campaign(**fields)
    else:
        assert "no spaces" in broken(**fields)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x" * 40, repr("x" * 40)),
        ("x" * 41, "a text of 41 characters"),
        ("a b", "a text of 3 characters"),
        ("a\x07", "a text of 2 characters"),
        ("x", "'x'"),
        ({}, "a mapping"),
        ([], "an empty list"),
        ([1], "a list"),
        (None, "nothing"),
        (5, "5"),
        (date(2026, 3, 1), "the date 2026-03-01"),
        (datetime(2026, 3, 1, 9, tzinfo=UTC), "the time 2026-03-01 09:00:00+00:00"),
        (time(18, 30), "a value of the Python type datetime.time"),
    ],
)
def test_an_error_shows_short_words_and_the_size_of_others(value: object, words: str) -> None:
    assert describe(value) == words


@pytest.mark.parametrize(
    ("fields", "people", "is_needed"),
    [
        ({}, 10, False),
        ({"needed": "always"}, 1, True),
        ({"needed": "above", "above": 5}, 5, False),
        ({"needed": "above", "above": 5}, 6, True),
        ({"needed": "above", "above": 5}, None, True),  # the service chooses them
    ],
)
def test_approval_is_needed_above_a_number_of_recipients(
    fields: dict[str, object], people: int | None, is_needed: bool
) -> None:
    assert Approval.model_validate(fields).is_needed(people) is is_needed
