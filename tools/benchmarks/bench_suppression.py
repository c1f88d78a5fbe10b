"""What the suppression list costs a worker: requests with a list of a million recipients, compared with an empty list.

A launch to a hundred million is frozen in a SQLite ledger. One in a hundred of its recipients is on the list, so that
every request leaves out about a hundred and records them. Each round takes as many requests with the list as without
it, in turns: it claims a request, writes its body, and records that it was accepted. No request is made, so the share
of the list in the speed of real dispatch is smaller than printed. Reading the list at the start is timed apart.

``BENCH_SCALE`` is the number of recipients in units of 100 million. ``BENCH_ROUNDS`` is the number of rounds.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import numpy as np

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign
from sendoff.dispatch.worker import LEASE
from sendoff.ledger import Ledger, NewLaunch, NewSuppression
from sendoff.period import Period, launch_key
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
    }
)


def freeze(ledger: Ledger, name: str) -> str:
    """Freeze a launch to every number up to the number of recipients, and return its key."""
    people = integers(np.arange(1, RECIPIENTS + 1))
    key = launch_key("service", name, PERIOD, 0)
    ledger.launches.freeze(
        NewLaunch(
            key,
            connection="service",
            campaign=name,
            period=PERIOD,
            resend=0,
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


def turns(place: Path) -> Iterator[dict[str, float]]:
    """Yield the seconds of each round, with and without the list."""
    ledgers = {name: Ledger(f"sqlite:///{place / name}.db") for name in ("empty", "full")}
    keys = {}
    for name, ledger in ledgers.items():
        ledger.migrate()
        keys[name] = freeze(ledger, "spring")
    on_list = np.random.default_rng(7).choice(RECIPIENTS, RECIPIENTS // ONE_IN, replace=False) + 1
    new = NewSuppression("account", "device_id", "bench", "bench")
    added = ledgers["full"].suppressions.add(new, on_list.tolist(), NOW)
    print(f"{RECIPIENTS:,} recipients, {added:,} on the list, requests of {SEGMENT:,}")
    for name, ledger in ledgers.items():
        seconds, people = take(ledger, keys[name], 1)
        print(f"first request, list {name}: {seconds:.2f} s, {people:,} recipients")
    for number in range(ROUNDS):
        order = list(ledgers) if number % 2 else list(reversed(ledgers))
        yield {name: take(ledgers[name], keys[name], REQUESTS)[0] for name in order}
    for ledger in ledgers.values():
        ledger.close()


def main() -> None:
    """Print the cost of each round, and one line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = list(turns(Path(folder)))
    for each in rounds:
        milliseconds = {name: 1000 * seconds / REQUESTS for name, seconds in each.items()}
        print(
            f"a request: {milliseconds['empty']:.2f} ms without, {milliseconds['full']:.2f} ms with the list"
        )
    ratio = median(each["full"] / each["empty"] for each in rounds)
    extra = median(1000 * (each["full"] - each["empty"]) / REQUESTS for each in rounds)
    print(json.dumps({"suppression": {"ratio": round(ratio, 3), "extra_ms_a_request": round(extra, 3)}}))


if __name__ == "__main__":
    main()
