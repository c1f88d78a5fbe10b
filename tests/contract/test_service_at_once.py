"""Two transactions at once on PostgreSQL are given numbers of their own (SQLite has one writer at a time)."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy import insert, select, text

from messaging_service.campaigns import add_run
from messaging_service.profiles import create_missing_profiles
from messaging_service.store import Store, campaigns, devices, runs

from .patience import PATIENCE, until

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TEMPLATE = {"title": "t", "trigger": 3, "send_type": 2, "content": b"{}", "warnings": [], "created_at": 0.0}


@pytest.fixture
def store(postgres_url):
    store = Store(postgres_url)
    yield store
    store.close()


def do_at_once(store, first, second):
    """Do ``second`` while the transaction of ``first`` is still open, until it is done or waits for that one."""
    failures = []

    def other():
        try:
            with store.write() as connection:
                second(connection)
        except Exception as error:  # shown by the assertion below
            failures.append(error)

    thread = threading.Thread(target=other)
    with store.write() as connection:
        first(connection)
        thread.start()
        until(lambda: not thread.is_alive() or waits_for_a_lock(store))
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert failures == []


def waits_for_a_lock(store):
    here = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with store.read() as connection:
        return connection.execute(text(here)).scalar_one() > 0


def test_two_executions_at_once_are_runs_of_their_own(store):
    with store.write() as connection:
        added = insert(campaigns).values(TEMPLATE).returning(campaigns.c.id)
        campaign = connection.execute(added).scalar_one()

    def execute(connection):
        add_run(connection, campaign, {}, NOW)

    do_at_once(store, execute, execute)
    with store.read() as connection:
        numbers = select(runs.c.number).where(runs.c.campaign_id == campaign).order_by(runs.c.number)
        assert connection.execute(numbers).scalars().all() == [1, 2]


def creates(*users):
    variables = {user: {"email": f"{user}@example.org"} for user in users}
    return lambda connection: create_missing_profiles(connection, {"target_with_params": variables})


def test_profiles_that_are_created_at_once_have_ids_of_their_own(store):
    do_at_once(store, creates("a", "b"), creates("b", "c"))
    with store.read() as connection:
        found = connection.execute(select(devices).order_by(devices.c.device_id)).all()
    assert [row.user_id for row in found] == ["a", "b", "c"]
    assert [row.profile_id for row in found] == [1, 2, 3]
