"""The command that counts what is in the ledger."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sendoff.cli.shared import AsJson, LedgerUrl, app, opened, print_json
from sendoff.errors import LedgerUnavailableError, UnusableLedgerError
from sendoff.ledger import Ledger, LedgerStats

_log = logging.getLogger(__name__)


@app.command()
def metrics(
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
    every: Annotated[
        float | None, typer.Option(min=1, help="Repeat after this many seconds, and print nothing")
    ] = None,
) -> None:
    """Count launches, requests and doubts in the ledger, and export the metrics as the OTEL_* variables say.

    With --every, the command repeats this until it is stopped, and Prometheus can scrape it.
    """
    with opened(ledger_url, is_scraped=every is not None) as ledger:
        if every is not None:
            _go_on(ledger, every)
        elif as_json:
            print_json(_told(ledger.stats.collect_gauges()))
        else:
            _tell(ledger.stats.collect_gauges())


def _go_on(ledger: Ledger, every: float) -> None:
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    observed = False
    while True:
        try:
            ledger.stats.collect_gauges()
            observed = True
        except (LedgerUnavailableError, UnusableLedgerError) as error:
            if isinstance(error, UnusableLedgerError) and not observed:
                raise  # it has never worked, so waiting would hide a mistake
            _log.warning("%s; trying again in %g seconds", error, every)
        if stop.wait(every):
            return


def _told(counted: LedgerStats) -> dict[str, object]:
    """Return the counts as JSON values, with dispatches by connection and state."""
    moments = {
        name: at.isoformat() if at else None
        for name, at in (("pending_since", counted.pending_since), ("reported_at", counted.reported_at))
    }
    dispatches = {
        name: {state: count for (of, state), count in counted.dispatches.items() if of == name}
        for name in counted.doubts
    }
    return {"launches": counted.launches, "dispatches": dispatches, "doubts": counted.doubts, **moments}


def _as_table(counted: LedgerStats) -> Table:
    table = Table("what", "of", "state", "count", box=None)
    for state, count in counted.launches.items():
        table.add_row("launches", "", state, f"{count:,}")
    for (connection, state), count in counted.dispatches.items():
        table.add_row("dispatches", connection, state, f"{count:,}")
    for connection, count in counted.doubts.items():
        table.add_row("doubts", connection, "", f"{count:,}")
    return table


def _tell(counted: LedgerStats) -> None:
    Console(markup=False).print(_as_table(counted))
    since, reported = (
        f"{at:%Y-%m-%d %H:%M} UTC" if at else "none" for at in (counted.pending_since, counted.reported_at)
    )
    typer.echo(f"oldest post-back not yet aggregated: {since}; newest report: {reported}")
