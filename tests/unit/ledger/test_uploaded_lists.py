"""Uploaded suppression lists in the ledger: stored by name, replaced, and deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sendoff.audience.identifiers import Identifiers, empty, integers, strings
from sendoff.errors import NotFoundError, SettingsError
from sendoff.ledger import Ledger
from sendoff.ledger.suppression.uploaded_lists import UploadedList

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize("people", [integers([1, 2**63 - 1]), strings(["ann", "zoë"]), empty("integer")])
def test_a_list_is_given_as_it_was_uploaded(ledger: Ledger, people: Identifiers) -> None:
    uploaded = ledger.uploaded_lists.store("complaints", "device_token", people, "ann", NOW)
    assert uploaded == UploadedList("complaints", "device_token", people.kind, len(people), "ann", NOW)
    assert ledger.uploaded_lists.get("complaints") == (uploaded, people)
    assert ledger.uploaded_lists.all() == [uploaded]


def test_a_name_that_the_ledger_cannot_store_is_an_error(ledger: Ledger) -> None:
    with pytest.raises(
        SettingsError, match="the name of the list has a character that the ledger cannot store"
    ):
        ledger.uploaded_lists.store("sta\0ff", "device_id", integers([7]), "ann", NOW)


def test_an_upload_replaces_the_list_of_that_name_and_no_other(ledger: Ledger) -> None:
    ledger.uploaded_lists.store("staff", "device_id", integers([7]), "ann", NOW)
    ledger.uploaded_lists.store("complaints", "device_id", integers([1, 2]), "ann", NOW)
    ledger.uploaded_lists.store("complaints", "user_id", strings(["zoë"]), "bob", NOW + timedelta(days=1))
    assert [(each.name, each.size, each.uploaded_by) for each in ledger.uploaded_lists.all()] == [
        ("complaints", 1, "bob"),
        ("staff", 1, "ann"),
    ]
    assert ledger.uploaded_lists.get("complaints")[1] == strings(["zoë"])


def test_a_list_that_is_deleted_is_not_there(ledger: Ledger) -> None:
    ledger.uploaded_lists.store("complaints", "device_id", integers([1]), "ann", NOW)
    ledger.uploaded_lists.delete("complaints")
    assert ledger.uploaded_lists.all() == []
    with pytest.raises(
        NotFoundError,
        match="no list 'complaints'; upload it: sendoff lists upload complaints",
    ):
        ledger.uploaded_lists.get("complaints")
    with pytest.raises(NotFoundError, match="no list 'complaints'"):
        ledger.uploaded_lists.delete("complaints")
