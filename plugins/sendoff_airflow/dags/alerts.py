"""The alert for a run that takes longer than its campaign allows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from sendoff.errors import SendoffError
from sendoff.figures import counts_in_words
from sendoff_airflow import LEDGER

_log = logging.getLogger(__name__)


async def log_overdue_run(
    campaign: str, allowed: str, context: Mapping[str, Any], ledger_conn_id: str = LEDGER
) -> None:
    """Log an error in the triggerer: the campaign, its run, and the progress of its launch according to the ledger.

    This is the AsyncCallback of a DeadlineAlert. ``allowed``: how long a run may take, in words.
    """
    try:
        # In a thread, because all triggers share this event loop.
        progress = await asyncio.to_thread(launch_progress, campaign, ledger_conn_id)
    except SendoffError as error:
        progress = f"its progress is not known: {error}"
    run = context["dag_run"]["dag_run_id"]
    _log.error("campaign %s: run %s has not ended after %s; %s", campaign, run, allowed, progress)


def launch_progress(campaign: str, ledger_conn_id: str = LEDGER) -> str:
    """Return the progress of a campaign's newest launch, as counts and times only."""
    from sendoff_airflow.hooks.ledger import open_ledger

    with closing(open_ledger(ledger_conn_id)) as ledger:
        launch = next(iter(ledger.launches.search(campaign=campaign, limit=1)), None)
        if launch is None:
            return "the ledger has no launch of this campaign"
        states = ledger.dispatch_queries.states(launch.launch_key)
        newest = ledger.aggregates.newest(launch.launch_key).received_at
    heard = f"newest post-back {newest:%Y-%m-%d %H:%M:%S} UTC" if newest else "no post-backs"
    requests = f"requests: {counts_in_words(states)}"
    return f"launch {launch.launch_key} for {launch.period.key} is {launch.state}; {requests}; {heard}"
