"""Tests of the ledger drop its tables and partitions, so each test module has its own database.

Tests lock rows to decide who goes on. However long this takes, no claim is given back for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...databases import new_database


@pytest.fixture(scope="module")
def migrated_postgres(postgres_server: str, migrated_template: str) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database that the tests of one module share."""
    with new_database(postgres_server, template=migrated_template) as url:
        yield url


@pytest.fixture(autouse=True)
def _claims_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sendoff.ledger.requests.dispatches.LONGEST_WAIT", 3_600)
