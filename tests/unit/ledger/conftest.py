"""Tests of the ledger drop its tables and partitions, so each module of them has a database of its own."""

from __future__ import annotations

from contextlib import closing

import pytest

from sendoff.ledger import Ledger


@pytest.fixture(scope="module")
def migrated_postgres(postgres_url: str) -> str:
    """The URL of a PostgreSQL database with the tables of the ledger, which the tests of a module use in turn."""
    with closing(Ledger(postgres_url)) as ledger:
        ledger.migrate()
    return postgres_url
