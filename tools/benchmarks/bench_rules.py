"""The rules of a launch for integers, compared with the same rules by hand in numpy arrays and boolean masks.

Of the numbers from 1 up, nine in ten are recipients. An exclusion leaves out a tenth of them. A cap leaves out those in
two of three earlier launches, which went to three in ten each. A holdout of 5 % follows, and the rest is cut into
segments of 10,000 in two variants. The audience's fingerprint for freezing is computed too. The earlier launches are in
a SQLite ledger, or in files for numpy. Each run has its own process, so that its peak memory is its own. The process
holds the recipients and the exclusion before the clock starts.

``BENCH_SCALE`` is the number of recipients in units of 20 million; 1 takes about a minute on an idle machine, and 5 is
a hundred million. ``BENCH_ROUNDS`` is the number of rounds.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

NUMBERS = int(20_000_000 / 0.9 * float(os.environ.get("BENCH_SCALE", "1")))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))

SEGMENT = 10_000
HOLDOUT = 5
MOST_MESSAGES = 2
EARLIER = ("first", "second", "third")
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
STEPS = ("exclusion", "cap", "holdout", "variants and segments", "fingerprint")

_BLOCK = 1 << 20
_CAMPAIGN: dict[str, Any] = {
    "title": "Spring",
    "message": {"title": "Hello", "text": "It is spring"},
    "channels": {"android_push": {}},
    "send": {"kind": "once", "time": "09:30", "time_zone": "UTC"},
    "segment_size": SEGMENT,
}


def chosen(name: str, of: float) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield a random share of all numbers in sorted blocks, always the same for one name."""
    chance = np.random.default_rng(list(name.encode()))
    for start in range(1, NUMBERS + 1, _BLOCK):
        drawn = chance.random(min(_BLOCK, NUMBERS + 1 - start), np.float32)
        yield np.flatnonzero(drawn < of).astype(np.uint64) + np.uint64(start)


# With Sendoff


def identifiers(name: str, of: float) -> Any:
    import pyarrow as pa

    from sendoff.audience.identifiers import builder

    people = builder("integer")
    for block in chosen(name, of):
        people.add(pa.array(block))
    return people.identifiers()


def folder(**fields: Any) -> Any:
    from sendoff.campaign import Campaign, CampaignFolder

    made = Campaign.model_validate({**_CAMPAIGN, **fields})
    return CampaignFolder("spring", made, "SELECT device_id FROM devices", Path(), {})


def store_launches(place: Path) -> None:
    """Freeze the earlier launches in a ledger."""
    from freezing import freeze

    from sendoff.campaign import Period
    from sendoff.ledger import Ledger

    day = Period(NOW - timedelta(days=2), NOW - timedelta(days=1))
    ledger = Ledger(f"sqlite:///{place / 'ledger.db'}")
    ledger.migrate()
    campaign = folder().campaign
    for name in EARLIER:
        how = {"connection": campaign.connection, "name": name, "sends_at": day.end}
        freeze(ledger, campaign, identifiers(name, 0.3), day, NOW, **how)
    ledger.close()


def run_sendoff(place: Path) -> Iterator[int]:
    """Take one step after the other, and yield the number of recipients after each."""
    from sendoff.audience.build import Audience
    from sendoff.audience.segmentation import segments_of
    from sendoff.launch.suppression import apply_rules
    from sendoff.ledger import Ledger

    people, returned = identifiers("people", 0.9), identifiers("returned", 0.1)
    audience = Audience("device_id", people, len(people), {}, {})
    ledger = Ledger(f"sqlite:///{place / 'ledger.db'}")
    exclusion = folder(audience={"exclude": [{"kind": "file", "file": "returned.csv"}]})
    cap = folder(audience={"cap": {"messages": MOST_MESSAGES, "days": 7}})
    holdout = folder(audience={"holdout": {"percent": HOLDOUT}})
    variants = folder(variants={"a": {"percent": 50}, "b": {"percent": 50}}).campaign
    yield len(audience.identifiers)
    excluded = {exclusion.campaign.audience.exclude[0]: returned}
    kept = apply_rules(exclusion, audience, excluded=excluded, ledger=ledger, sends_at=NOW, now=NOW)
    yield len(kept.sent_to.identifiers)
    kept = apply_rules(cap, kept.sent_to, excluded={}, ledger=ledger, sends_at=NOW, now=NOW)
    yield len(kept.sent_to.identifiers)
    kept = apply_rules(holdout, kept.sent_to, excluded={}, ledger=ledger, sends_at=NOW, now=NOW)
    yield len(kept.sent_to.identifiers)
    segments = list(segments_of(variants, kept.sent_to, name="spring"))
    yield sum(map(len, segments))
    assert kept.audience.fingerprint
    yield len(kept.sent_to.identifiers)
    ledger.close()


# By hand, with numpy


def numbers(name: str, of: float) -> npt.NDArray[np.uint64]:
    whole = np.empty(int(NUMBERS * of + 10 * NUMBERS**0.5), np.uint64)
    end = 0
    for block in chosen(name, of):
        whole[end : end + len(block)] = block
        end += len(block)
    return whole[:end].copy()


def store_arrays(place: Path) -> None:
    for name in EARLIER:
        np.save(place / f"{name}.npy", numbers(name, 0.3))


def run_numpy(place: Path) -> Iterator[int]:
    """Take one step after the other, and yield the number of recipients after each."""
    from pandas.util import hash_array

    people, returned = numbers("people", 0.9), numbers("returned", 0.1)
    yield len(people)
    people = people[~np.isin(people, returned, assume_unique=True)]
    yield len(people)
    received = np.zeros(len(people), np.uint8)
    for name in EARLIER:
        received += np.isin(people, np.load(place / f"{name}.npy"), assume_unique=True)
    people = people[received < MOST_MESSAGES]
    yield len(people)
    sent_to = people[hash_array(people ^ np.uint64(1)) >= np.uint64(2**64 // 100 * HOLDOUT)]
    yield len(sent_to)
    first = hash_array(sent_to ^ np.uint64(2)) < np.uint64(2**63)
    variants = sent_to[first], sent_to[~first]
    segments = [part[at : at + SEGMENT] for part in variants for at in range(0, len(part), SEGMENT)]
    yield sum(map(len, segments))
    assert blake2b(people.data).hexdigest()
    yield len(sent_to)


RUNNERS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Iterator[int]]]] = {
    "numpy": (store_arrays, run_numpy),
    "sendoff": (store_launches, run_sendoff),
}


def child(name: str, what: str, place: Path) -> None:
    """Store the data, or run once and print the seconds and recipients of each step, and the peaks in MiB."""
    store, run = RUNNERS[name]
    if what == "store":
        store(place)
        return
    steps = run(place)
    people, seconds = [next(steps)], []
    held = _peak()
    for _ in STEPS:
        start = time.perf_counter()
        people.append(next(steps))
        seconds.append(time.perf_counter() - start)
    print(json.dumps([seconds, people, held, _peak()]))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(name: str, what: str, place: Path) -> str:
    line = [sys.executable, str(Path(__file__).resolve()), name, what, str(place)]
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout


Runs = dict[str, list[tuple[list[float], float, float]]]
"""For each runner and round: the seconds of each step, the memory before the steps, and the peak."""


def measure(place: Path) -> tuple[int, Runs]:
    """Run in turn for several rounds, and return the number of recipients and the measurements."""
    for name in RUNNERS:
        run(name, "store", place)
    seen: Runs = {name: [] for name in RUNNERS}
    for number in range(1, ROUNDS + 1):
        left = {}
        for name in RUNNERS:
            seconds, left[name], held, peak = json.loads(run(name, "run", place))
            seen[name].append((seconds, held, peak))
            print(f"  round {number}  {name:10}{sum(seconds):8.2f} s {peak:8.0f} MiB", flush=True)
        if left["numpy"][:3] != left["sendoff"][:3]:  # later steps draw at random, differently in each
            sys.exit(f"the remaining recipients differ: {left}")
    return left["sendoff"][0], seen


def report(people: int, seen: Runs) -> dict[str, float]:
    print(f"\n{people:,} people, medians of {ROUNDS} rounds")
    print(f"  {'':24}{'sendoff':>10}{'numpy':>10}{'sendoff':>16}")
    figures: dict[str, float] = {"people": people}
    totals = {name: median(sum(seconds) for seconds, _, _ in runs) for name, runs in seen.items()}
    for place, step in enumerate(STEPS):
        steps = {name: median(seconds[place] for seconds, _, _ in runs) for name, runs in seen.items()}
        _show(step, steps, people)
        figures[f"{step.replace(' ', '_')}_seconds"] = round(steps["sendoff"], 3)
    _show("in all", totals, people)
    held = {name: median(held for _, held, _ in runs) for name, runs in seen.items()}
    peak = {name: median(peak for _, _, peak in runs) for name, runs in seen.items()}
    for what, sizes in (("memory before", held), ("peak memory", peak)):
        print(f"  {what:24}{sizes['sendoff']:6.0f} MiB{sizes['numpy']:6.0f} MiB")
    return {
        **figures,
        "seconds": round(totals["sendoff"], 3),
        "nanoseconds_each": round(totals["sendoff"] / people * 1e9, 1),
        "peak_mib": round(peak["sendoff"], 1),
        "numpy_seconds": round(totals["numpy"], 3),
        "numpy_peak_mib": round(peak["numpy"], 1),
        "times_numpy_speed": round(totals["numpy"] / totals["sendoff"], 2),
        "numpy_memory_over_ours": round(peak["numpy"] / peak["sendoff"], 2),
    }


def _show(step: str, seconds: dict[str, float], people: int) -> None:
    each = seconds["sendoff"] / people * 1e9
    print(f"  {step:24}{seconds['sendoff']:8.2f} s{seconds['numpy']:8.2f} s{each:9.1f} ns each")


def main() -> None:
    print(f"Rules: {NUMBERS:,} numbers, nine in ten of them recipients")
    with tempfile.TemporaryDirectory(prefix="sendoff-bench-") as place:
        people, seen = measure(Path(place))
    print(json.dumps({"benchmark": "rules", **report(people, seen)}))


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], Path(sys.argv[3])) if len(sys.argv) > 1 else main()
