"""Tests of the ledger drop its tables and partitions, so each test module has its own database."""

from __future__ import annotations

from contextlib import closing

import pytest

from sendoff.ledger import Ledger


@pytest.fixture(scope="module")
def migrated_postgres(postgres_url: str) -> str:
    """Return the URL of a migrated PostgreSQL database that the tests of one module share."""
    with closing(Ledger(postgres_url)) as ledger:
        ledger.migrate()
    return postgres_url
