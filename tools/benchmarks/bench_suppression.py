"""What the suppression list costs a worker: requests with a list of a million recipients, compared with an empty list.

A launch to a hundred million is frozen in a SQLite ledger. One in a hundred of its recipients is on the list, so that
every request leaves out about a hundred and records them. Each round takes as many requests with the list as without
it, in turns: it claims a request, writes its body, and records that it was accepted. Then it sends a smaller launch in
each ledger to the local messaging service, with four requests at once, as a worker does. Reading the list at the start
is timed apart.

``BENCH_SCALE`` is the number of recipients in units of 100 million. ``BENCH_ROUNDS`` is the number of rounds.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import numpy as np
from bench_dispatch import Service, serving

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Period, launch_key
from sendoff.dispatch.worker import LEASE, send_launch
from sendoff.ledger import Ledger, NewLaunch, SuppressionChange
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.wire import Targeting, request_body
from sendoff.states import Accepted

RECIPIENTS = int(100_000_000 * float(os.environ.get("BENCH_SCALE", "1")))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "10"))
SEGMENT = 10_000
REQUESTS = 40  # in one turn
ONE_IN = 100
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
    }
)


def freeze(ledger: Ledger, first: int, last: int, resend: int = 0) -> str:
    """Freeze a launch to every number in a range, and return its key."""
    people = integers(np.arange(first, last + 1))
    key = launch_key("service", "spring", PERIOD, resend)
    ledger.launches.freeze(
        NewLaunch(
            key,
            connection="service",
            campaign="spring",
            period=PERIOD,
            resend=resend,
            definition=CAMPAIGN.model_dump_json(),
            audience=Audience("device_id", people, len(people), {}, {}),
            segments=(Segment(part) for part in people.slices(SEGMENT)),
            created_at=NOW,
            sends_at=NOW,
        )
    )
    return key


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


def send(ledger: Ledger, service: Service, number: int) -> tuple[float, float]:
    """Freeze another launch and send it to the local service. Return the seconds of sending, and those of the CPU."""
    first = 1 + number * REQUESTS * SEGMENT % RECIPIENTS
    key = freeze(ledger, first, first + REQUESTS * SEGMENT - 1, resend=number)
    start, cpu = time.perf_counter(), time.process_time()
    send_launch(ledger, key, service.service_connection())
    took = time.perf_counter() - start, time.process_time() - cpu
    if ledger.dispatch_queries.states(key) != {"accepted": REQUESTS}:
        sys.exit(f"not everything was accepted: {ledger.dispatch_queries.states(key)}")
    return took


def turns(place: Path, service: Service) -> Iterator[dict[str, dict[str, float]]]:
    """Yield the seconds of each round, with and without the list: of the ledger's part, and of whole dispatch.

    The time of the CPU is that of this process, which others on the machine hardly change.
    """
    ledgers = {name: Ledger(f"sqlite:///{place / name}.db") for name in ("empty", "full")}
    keys = {}
    for name, ledger in ledgers.items():
        ledger.migrate()
        keys[name] = freeze(ledger, 1, RECIPIENTS)
    on_list = np.random.default_rng(7).choice(RECIPIENTS, RECIPIENTS // ONE_IN, replace=False) + 1
    new = SuppressionChange("account", "device_id", "bench", "bench")
    added = ledgers["full"].suppressions.add(new, on_list.tolist(), NOW)
    print(f"{RECIPIENTS:,} recipients, {added:,} on the list, requests of {SEGMENT:,}")
    for name, ledger in ledgers.items():
        seconds, people = take(ledger, keys[name], 1)
        print(f"first request, list {name}: {seconds:.2f} s, {people:,} recipients")
    for number in range(ROUNDS):
        order = list(ledgers) if number % 2 else list(reversed(ledgers))
        taken = {name: take(ledgers[name], keys[name], REQUESTS)[0] for name in order}
        sent = {name: send(ledgers[name], service, number + 1) for name in order}
        yield {
            "claimed": taken,
            "sent": {name: seconds for name, (seconds, _) in sent.items()},
            "sent, CPU": {name: cpu for name, (_, cpu) in sent.items()},
        }
    for ledger in ledgers.values():
        ledger.close()


def main() -> None:
    """Print the cost of each round, and one line of JSON."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), devices=1) as service:
        rounds = list(turns(Path(folder), service))
    figures = {}
    for what in rounds[0]:
        seen = [each[what] for each in rounds]
        for each in seen:
            milliseconds = {name: 1000 * seconds / REQUESTS for name, seconds in each.items()}
            print(
                f"a request {what}: {milliseconds['empty']:.2f} ms without, {milliseconds['full']:.2f} ms with the list"
            )
        ratio = median(each["full"] / each["empty"] for each in seen)
        extra = median(1000 * (each["full"] - each["empty"]) / REQUESTS for each in seen)
        best = min(each["full"] for each in seen) / min(each["empty"] for each in seen)
        figures[what] = {
            "ratio": round(ratio, 3),
            "ratio_of_the_fastest": round(best, 3),
            "extra_ms_a_request": round(extra, 3),
        }
    print(json.dumps({"benchmark": "suppression", **figures}))


if __name__ == "__main__":
    main()
