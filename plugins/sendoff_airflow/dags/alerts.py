"""What is told when a run takes longer than its campaign allows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from sendoff.errors import SendoffError
from sendoff_airflow import LEDGER

_log = logging.getLogger(__name__)


async def tell_of_silence(
    campaign: str, allowed: str, context: Mapping[str, Any], ledger_conn_id: str = LEDGER
) -> None:
    """Write an error to the triggerer's log: the campaign, its run, and what the ledger knows of the launch.

    For an AsyncCallback of a DeadlineAlert. ``allowed``: how long a run may take, in words.
    """
    try:
        known = await asyncio.to_thread(
            what_is_known, campaign, ledger_conn_id
        )  # all triggers share this loop
    except SendoffError as error:
        known = f"of the ledger: {error}"
    run = context["dag_run"]["dag_run_id"]
    _log.error("campaign %s: run %s has not ended after %s; %s", campaign, run, allowed, known)


def what_is_known(campaign: str, ledger_conn_id: str = LEDGER) -> str:
    """Say how far a campaign's newest launch is; counts and times only."""
    from sendoff_airflow.hooks.stores import ledger

    with closing(ledger(ledger_conn_id)) as book:
        found = book.launches.search(campaign=campaign, limit=1)
        if not found:
            return "the ledger holds no launch of it"
        [launch] = found
        states = book.dispatches.states(launch.launch_key)
        newest, _ = book.returns.newest(launch.launch_key)
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in states.items())
    heard = f"newest post-back {newest:%Y-%m-%d %H:%M:%S} UTC" if newest else "no post-back"
    return (
        f"launch {launch.launch_key} for {launch.period.key} is {launch.state}; dispatches: {counts}; {heard}"
    )
