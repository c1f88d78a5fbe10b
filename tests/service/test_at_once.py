"""Concurrent transactions get different numbers on PostgreSQL; SQLite has only one writer at a time."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy import event, insert, select, text, update

from messaging_service.api.admin import progress
from messaging_service.campaigns.create import add_run
from messaging_service.campaigns.profiles import create_missing_profiles
from messaging_service.store import Store
from messaging_service.tables import campaigns, devices, post_backs, runs, webhook_calls

from ..waiting import PATIENCE, until

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TEMPLATE = {"title": "t", "trigger": 3, "send_type": 2, "content": b"{}", "warnings": [], "created_at": 0.0}


@pytest.fixture
def store(postgres_url):
    store = Store(postgres_url)
    yield store
    store.close()


def do_at_once(store, first, second):
    """Run ``second`` while the transaction of ``first`` is open, until it is done or waits for that transaction."""
    failures = []

    def other():
        try:
            with store.write() as connection:
                second(connection)
        except Exception as error:  # the assertion below reports it
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


def test_quiet_is_not_said_while_a_webhook_that_was_called_leaves_a_post_back(store):
    run = {"number": 1, "due_at": 0.0, "state": "done"}
    call = {"send_id": 1, "request": {}, "state": "taken", "due_at": 0.0}
    post_back = {"send_id": 1, "kind": "delivery", "body": b"{}", "state": "due", "due_at": 0.0}
    with store.write() as connection:
        campaign = connection.execute(
            insert(campaigns).values(TEMPLATE).returning(campaigns.c.id)
        ).scalar_one()
        added = insert(runs).values(**run, campaign_id=campaign).returning(runs.c.id)
        run_id = connection.execute(added).scalar_one()
        connection.execute(insert(webhook_calls).values(**call, run_id=run_id))
    waiting = [True]

    def note(_connection, _cursor, statement, *_):
        if "webhook_calls" in statement and waiting:  # note this call just before the calls are counted
            waiting.clear()
            with store.write() as connection:
                connection.execute(update(webhook_calls).values(state="done"))
                connection.execute(insert(post_backs).values(**post_back, run_id=run_id))

    event.listen(store.engine, "before_cursor_execute", note)
    assert not progress(store, NOW.timestamp())["quiet"]
    assert not waiting


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
