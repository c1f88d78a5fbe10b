"""What the suppression list costs a worker: requests with a list of a million recipients, compared with an empty list.

A launch to a hundred million is frozen in three ledgers. In one, the list is empty. In the second, one in a hundred of
the recipients was on the list before: freezing left them out, and the requests look only whether others opted out
since. In the third, they all opted out after freezing, so that every request leaves out about a hundred and records
them, which is the worst case. Each round takes as many requests in each ledger, in turns: it claims a request, writes
its body, and records that it was accepted. Then it sends a smaller launch in each ledger to the local messaging
service, with four requests at once, as a worker does. Reading the list at the start is timed apart.

``BENCH_SCALE`` is the number of recipients in units of 100 million. ``BENCH_ROUNDS`` is the number of rounds.
``BENCH_DATABASES`` is ``sqlite`` or ``postgresql``, or both with a comma.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bench_dispatch import Service, serving
from freezing import freeze
from shared import postgres_ledger

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign, Period
from sendoff.dispatch.worker import LEASE, send_launch
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.wire import Targeting, request_body
from sendoff.states import Accepted

RECIPIENTS = int(100_000_000 * float(os.environ.get("BENCH_SCALE", "1")))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "12"))
DATABASES = os.environ.get("BENCH_DATABASES", "sqlite").split(",")
SEGMENT = 10_000
REQUESTS = 40  # in one turn
ONE_IN = 100
EMPTY, BEFORE, SINCE = "empty list", "listed before", "opted out since"
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
PERIOD = Period(NOW - timedelta(days=1), NOW)
SIGNER = PostBackSigner("http://127.0.0.1:9", ["s" * 32])
CAMPAIGN = Campaign.model_validate(
    {
        "title": "Spring",
        "connection": "service",
        "message": {"title": "Hello", "text": "It is spring"},
        "channels": {"android_push": {}},
        # The service accepts requests for later, and does nothing else.
        "send": {"kind": "once", "date": "2040-01-01", "time": "10:00", "time_zone": "UTC"},
        "segment_size": SEGMENT,
    }
)


def freeze_range(ledger: Ledger, first: int, last: int, resend: int = 0) -> str:
    """Freeze a launch to every number in a range that is not on the list, and return its key."""
    people = integers(np.arange(first, last + 1))
    people -= ledger.suppressions.active("device_id", people.kind, CAMPAIGN.suppression_scopes(), NOW)
    return freeze(ledger, CAMPAIGN, people, PERIOD, NOW, resend=resend)


def take(ledger: Ledger, key: str, requests: int) -> tuple[float, int]:
    """Claim, write and record some requests. Return the seconds and the number of recipients."""
    people, start = 0, time.perf_counter()
    for _ in range(requests):
        claim = ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE)
        assert claim is not None
        assert claim.content.identifiers is not None
        request_body(
            CAMPAIGN,
            title="Spring",
            targeting=Targeting("device_id", claim.content.identifiers, None),
            post_backs=SIGNER.for_dispatch(claim.dispatch_key),
            app_token=None,
        )
        ledger.dispatches.record(claim, Accepted(200, 17), NOW)
        people += len(claim.content.identifiers)
    return time.perf_counter() - start, people


def send(ledger: Ledger, key: str, service: Service) -> tuple[float, float]:
    """Send a small launch to the local service. Return the seconds, and those of this process' processor time."""
    start, cpu = time.perf_counter(), time.process_time()
    send_launch(ledger, key, service.service_connection())
    took = time.perf_counter() - start, time.process_time() - cpu
    if ledger.dispatch_queries.states(key) != {"accepted": REQUESTS}:
        sys.exit(f"not everything was accepted: {ledger.dispatch_queries.states(key)}")
    return took


def small(number: int) -> tuple[int, int]:
    """Return the first and the last recipient of a small launch."""
    first = 1 + number * REQUESTS * SEGMENT % RECIPIENTS
    return first, first + REQUESTS * SEGMENT - 1


def turns(ledgers: dict[str, Ledger], service: Service) -> Iterator[dict[str, dict[str, float]]]:
    """Yield the seconds of each round by ledger: of the ledger's part, and of whole dispatch."""
    on_list = np.random.default_rng(7).choice(RECIPIENTS, RECIPIENTS // ONE_IN, replace=False) + 1
    new = SuppressionChange("account", "device_id", "bench", "bench")
    keys: dict[str, list[str]] = {}
    for name, ledger in ledgers.items():
        ledger.migrate()
        if name == BEFORE:
            ledger.suppressions.add(new, on_list.tolist(), NOW)
        keys[name] = [freeze_range(ledger, 1, RECIPIENTS)]
        keys[name] += [freeze_range(ledger, *small(number), resend=number) for number in range(1, ROUNDS + 1)]
        if name == SINCE:
            ledger.suppressions.add(new, on_list.tolist(), NOW)
        seconds, people = take(ledger, keys[name][0], 1)
        print(f"  {name:18}{seconds:9.2f} s for the first request, {people:,} recipients")
    for number in range(ROUNDS):
        order = list(ledgers)[number % 3 :] + list(ledgers)[: number % 3]
        taken = {name: take(ledgers[name], keys[name][0], REQUESTS)[0] for name in order}
        sent = {name: send(ledgers[name], keys[name][number + 1], service) for name in order}
        yield {
            "claimed": taken,
            "sent": {name: seconds for name, (seconds, _) in sent.items()},
            "sent, CPU": {name: cpu for name, (_, cpu) in sent.items()},
        }


def compared(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Print and return what the list costs: medians over the rounds, in milliseconds for each request."""
    figures = {}
    for what in rounds[0]:
        of = {name: [1000 * each[what][name] / REQUESTS for each in rounds] for name in rounds[0][what]}
        print(f"  {what:10}" + "".join(f"  {name} {median(took):.3f} ms" for name, took in of.items()))
        for name in (BEFORE, SINCE):
            pairs = list(zip(of[name], of[EMPTY], strict=True))
            figures[f"{what}, {name}"] = {
                "ratio": round(median(took / bare for took, bare in pairs), 3),
                "ratio_of_the_fastest": round(min(of[name]) / min(of[EMPTY]), 3),
                "extra_ms_a_request": round(median(took - bare for took, bare in pairs), 3),
            }
    return figures


def measure(database: str) -> dict[str, Any]:
    """Return the figures of one database."""
    print(
        f"{database}: {RECIPIENTS:,} recipients, {RECIPIENTS // ONE_IN:,} on the list, {SEGMENT:,} to a request"
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        service = stack.enter_context(serving(folder, devices=1))
        ledgers = {}
        for number, name in enumerate((EMPTY, BEFORE, SINCE)):
            is_server = database == "postgresql"
            url = stack.enter_context(postgres_ledger()) if is_server else f"sqlite:///{folder}/{number}.db"
            ledgers[name] = stack.enter_context(closing(Ledger(url)))
        return compared(list(turns(ledgers, service)))


def main() -> None:
    """Print the cost by database, and one line of JSON."""
    print(json.dumps({"benchmark": "suppression", **{database: measure(database) for database in DATABASES}}))


if __name__ == "__main__":
    main()
