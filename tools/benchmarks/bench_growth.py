"""How the cost of each step of a launch grows with the number of recipients: seconds and memory at three sizes.

One launch of each size goes through all steps in PostgreSQL, with the real code and without network. The audience is
read, rules are applied and segments frozen. Requests are claimed, written and recorded. Post-backs are stored,
aggregated and reconciled. Verdicts become the audience of another launch. Requests are claimed while a hundredth of
their recipients is on the suppression list. A hundred people are erased. One campaign folder for 10,000 recipients is
parsed. Each step runs in a process of its own, so that its peak memory is its own. Memory is counted beyond what the
process has after its imports.

Ten million verdicts become an audience once more at the end, because that has a limit of five seconds.

The exponent says by what the cost grows if the launch doubles: 1 is twice as much, 0 is no more. ``BENCH_SCALE`` is
the largest launch in millions of recipients. ``--picture FILE`` draws the figures. ``SENDOFF_TEST_POSTGRES_URL`` is
the server to use. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from shutil import copytree

import numpy as np
import sqlalchemy as sa
from freezing import freeze
from shared import peak_memory, postgres_ledger

from sendoff.audience.build import Audience, build_audience
from sendoff.audience.identifiers import Identifiers, integers
from sendoff.audience.segmentation import segments_of
from sendoff.campaign import (
    EVERYTHING,
    Campaign,
    CampaignFolder,
    Period,
    VerdictsOf,
    launch_key,
    load_campaign,
)
from sendoff.dispatch.worker import LEASE
from sendoff.launch.suppression import Rule, apply_rules
from sendoff.launch.verdict_audience import read_verdicts
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.ledger.storage.schema import dispatch_totals
from sendoff.postbacks import forget, reconcile_launch
from sendoff.postbacks.aggregation import aggregate
from sendoff.service.postbacks import PostBack, PostBackSigner
from sendoff.service.wire import Targeting, create_body
from sendoff.states import Accepted, Verdict
from sendoff.warehouse import read

SIZES = [round(1_000_000 * float(os.environ.get("BENCH_SCALE", "1")) / 4**step) for step in (2, 1, 0)]
FIRST = 1_000_000_000  # the recipients' numbers are around this, because the number of digits matters
AT_ONCE = 500  # post-backs per commit
REUSED = round(10_000_000 * float(os.environ.get("BENCH_SCALE", "1")))  # verdicts that become an audience
ERASED = 100  # people
EXAMPLES = Path(__file__).resolve().parents[2] / "examples/campaigns"
A_CAMPAIGN = 10_000  # recipients for each campaign folder
OPENS = 3  # every third recipient opens the message
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
KEY = launch_key("service", "spring", PERIOD)
CAMPAIGN = Campaign.model_validate(
    {
        "title": "Spring",
        "channels": {"email": {"from_address": 1, "subject": "Hello", "text": "It is spring"}},
        "audience": {"exclude": [{"kind": "file", "file": "returned.csv"}], "holdout": {"percent": 5}},
        "send": {"kind": "once", "date": "2040-01-01", "time": "10:00", "time_zone": "UTC"},
    }
)
SIGNER = PostBackSigner("https://events.example.com", ["s" * 32])


def people(size: int) -> Identifiers:
    """Return random numbers, nine tenths of a range."""
    drawn = np.random.default_rng(1).random(round(size / 0.9 * 1.01) + 100) < 0.9
    return integers((np.flatnonzero(drawn)[:size] + FIRST).astype(np.int64))


# The steps, in order. Each prepares what it needs and returns what is measured.


@dataclass(frozen=True)
class Place:
    """Where a step runs, and for how many recipients."""

    ledger: Ledger
    url: str
    size: int


def reading(at: Place) -> Callable[[], object]:
    engine = sa.create_engine(at.url)
    with engine.begin() as db:
        db.execute(
            sa.text(
                f"CREATE UNLOGGED TABLE devices AS SELECT n::bigint AS n FROM generate_series(1, {at.size}) n"
            )
        )
    engine.dispose()

    def read_all(query: str = "SELECT n AS device_id FROM devices") -> None:
        with read(at.url, query) as batches:
            build_audience(batches)

    read_all("SELECT 1::bigint AS device_id")  # imports the driver
    return read_all


def freezing(at: Place) -> Callable[[], object]:
    everyone = people(at.size)
    folder = CampaignFolder("spring", CAMPAIGN, "SELECT device_id FROM devices", Path(), {})
    excluded: dict[Rule, Identifiers] = {CAMPAIGN.audience.exclude[0]: people(at.size // 100)}
    now = datetime.now(UTC)

    def freeze_with_rules(name: str = "spring") -> str:
        audience = Audience("device_id", everyone, len(everyone), {}, {})
        kept = apply_rules(folder, audience, excluded=excluded, ledger=at.ledger, sends_at=now, now=now)
        parts = segments_of(CAMPAIGN, kept.sent_to, name=name)
        rules = {"audience": kept.audience, "segments": parts}
        return freeze(at.ledger, CAMPAIGN, everyone, PERIOD, NOW, name=name, **rules)

    return freeze_with_rules


def sending(at: Place, key: str = KEY) -> Callable[[], object]:
    def send() -> None:
        claim = at.ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE)
        while claim is not None:
            assert claim.content.identifiers is not None
            addresses = SIGNER.for_dispatch(claim.dispatch_key, CAMPAIGN.post_backs.kinds)
            targeting = Targeting("device_id", claim.content.identifiers)
            create_body(CAMPAIGN, title=CAMPAIGN.title, targeting=targeting, post_backs=addresses)
            claim = at.ledger.dispatches.record_and_claim(
                claim, Accepted(200, 45_678), NOW, worker="w", lease=LEASE
            )

    return send


def storing(at: Place) -> Callable[[], object]:
    receiver = at.ledger.post_backs.register_receiver("growth", NOW)
    coming = arrivals(at.ledger)

    def store() -> None:
        number = 1
        while some := [each for _, each in zip(range(AT_ONCE), coming, strict=False)]:
            at.ledger.post_backs.store(receiver, list(enumerate(some, number)))
            number += len(some)

    return store


def arrivals(ledger: Ledger) -> Iterator[PostBack]:
    """Yield a delivery for each recipient and an open for every third; neighbours are of different requests."""
    of_all = [
        (each.dispatch_key, iter(members))
        for each, members in ledger.dispatch_queries.segments(KEY)
        if members
    ]
    while of_all:
        left = []
        for dispatch_key, members in of_all:
            if (person := next(members, None)) is None:
                continue
            left.append((dispatch_key, members))
            for kind in ("delivery", "open") if int(person) % OPENS == 0 else ("delivery",):
                body = {
                    "time": int(NOW.timestamp()),
                    "device": {"id": person},
                    "profile": {"id": person, "user_id": f"customer-{person}"},
                    "send": {"id": person},
                    "campaign": {"id": 45_678},
                }
                yield PostBack.received(kind, dispatch_key, NOW, json.dumps(body).encode())
        of_all = left


def aggregating(at: Place) -> Callable[[], object]:
    return lambda: aggregate(at.ledger, now=NOW)


def reconciling(at: Place) -> Callable[[], object]:
    return lambda: reconcile_launch(at.ledger, KEY, now=NOW)


def reusing(at: Place) -> Callable[[], object]:
    """Reconcile a launch, and read verdicts of it. A third of its people engaged, and a third got the message."""
    key = freeze(at.ledger, CAMPAIGN, people(at.size), PERIOD, NOW, name="reused", resend=at.size)
    sending(at, key)()
    random = np.random.default_rng(2)
    with at.ledger._database.write() as db:
        for dispatch, members in at.ledger.dispatch_queries.segments(key):
            assert members is not None
            drawn = random.integers(0, 3, len(members))
            engaged, delivered = (integers(members.values()[drawn == number]) for number in range(2))
            row = {
                "dispatch_key": dispatch.dispatch_key,
                "deliveries": len(delivered),
                "opens": len(engaged),
                "anomalies": {},
                "newest_at": NOW,
                "is_evidence": True,
                "delivered": delivered.to_bytes(),
                "engaged": engaged.to_bytes(),
                "suspects": integers([]).to_bytes(),
            }
            db.execute(sa.insert(dispatch_totals), row)
    rows = VerdictsOf(key, (Verdict.ENGAGED, Verdict.DELIVERED, Verdict.MISSING))
    folder = CampaignFolder("reminder", CAMPAIGN, None, Path(), {}, audience_rows=rows)

    def audience() -> object:
        found = read_verdicts(at.ledger, folder, PERIOD)
        assert found
        return found.audience

    return audience


def suppressing(at: Place) -> Callable[[], object]:
    """Send as ``sending`` does, with every hundredth recipient of another launch on the suppression list."""
    key = freezing(at)("summer")
    on_list = people(at.size).values()[::100].tolist()
    at.ledger.suppressions.add(SuppressionChange(EVERYTHING, "device_id", "growth", "growth"), on_list, NOW)
    return sending(at, key)


def erasing(at: Place) -> Callable[[], object]:
    erased = people(at.size).values()[:: max(1, at.size // ERASED)].tolist()[:ERASED]
    at.ledger.erasure_log = str(Path(tempfile.mkdtemp()) / "erasures.jsonl")
    return lambda: forget(at.ledger, erased, identified_by="device_id", who="growth", reason="growth")


def parsing(at: Place) -> Callable[[], object]:
    place = Path(tempfile.mkdtemp())
    examples = sorted(EXAMPLES.iterdir())
    folders = [
        place / f"{each.name}_{number}"
        for number, each in enumerate(islice(cycle(examples), max(1, at.size // A_CAMPAIGN)))
    ]
    for folder, example in zip(folders, cycle(examples)):
        copytree(example, folder)
    return lambda: [load_campaign(folder) for folder in folders]


STEPS = (
    reading,
    freezing,
    sending,
    storing,
    aggregating,
    reconciling,
    reusing,
    suppressing,
    erasing,
    parsing,
)


# Measuring


@dataclass(frozen=True)
class Cost:
    """What a step took."""

    seconds: float
    mib: float


@dataclass(frozen=True)
class Growth:
    """What a step took at each size, and how it grows from the second size to the third."""

    costs: tuple[Cost, ...]
    time_exponent: float
    memory_exponent: float

    @classmethod
    def of(cls, costs: Sequence[Cost]) -> Growth:
        return cls(
            tuple(costs),
            exponent([each.seconds for each in costs]),
            exponent([each.mib for each in costs]),
        )


def exponent(values: Sequence[float]) -> float:
    """Return the exponent between the last two of several values, each at a size four times the one before."""
    return math.log(max(values[-1], 1e-9) / max(values[-2], 1e-9), 4)


def apart(step: str, url: str, size: int) -> Cost:
    """Measure one step in a process of its own."""
    # For the process that imports everything once and forks.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    processes = get_context("forkserver")
    processes.set_forkserver_preload(["bench_growth"])
    with ProcessPoolExecutor(1, processes) as process:
        return process.submit(measured, step, url, size).result()


def measured(step: str, url: str, size: int) -> Cost:
    """Run one step; called in a process of its own."""
    with closing(Ledger(url, erasure_secret="e" * 32)) as ledger:
        run = next(each for each in STEPS if each.__name__ == step)(Place(ledger, url, size))
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the preparation
        before, start = peak_memory(), time.perf_counter()
        run()
        return Cost(time.perf_counter() - start, peak_memory() - before)


def measure(say: Callable[[str], object] = print) -> dict[str, Growth]:
    """Return what each step took at each size."""
    found: dict[str, list[Cost]] = {step.__name__: [] for step in STEPS}
    for size in SIZES:
        with postgres_ledger() as url:
            for name, costs in found.items():
                costs.append(apart(name, url, size))
                say(f"  {size:>12,}  {name:12}{costs[-1].seconds:9.2f} s {costs[-1].mib:8.0f} MiB")
    return {name: Growth.of(costs) for name, costs in found.items()}


def draw(found: dict[str, Growth], picture: Path) -> None:
    """Draw seconds and memory over the number of recipients, both with logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, unit, title in zip(
        figure.subplots(1, 2), ("seconds", "mib"), ("seconds", "MiB beyond imports"), strict=True
    ):
        for name, growth in found.items():
            axes.loglog(SIZES, [max(getattr(each, unit), 0.01) for each in growth.costs], "o-", label=name)
        axes.set(xlabel="recipients", title=title)
        axes.grid(visible=True, alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize="small")
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the figures, for example as SVG")
    options = parser.parse_args()
    found = measure(lambda line: print(line, flush=True))
    print("\nexponents of time and memory")
    for name, growth in found.items():
        print(f"  {name:12}{growth.time_exponent:6.2f} {growth.memory_exponent:6.2f}")
    if options.picture:
        draw(found, options.picture)
    with postgres_ledger() as url:
        reused = apart("reusing", url, REUSED)
    print(f"\n{REUSED:,} verdicts became an audience in {reused.seconds:.2f} s ({reused.mib:,.0f} MiB)")
    steps = {name: asdict(each) for name, each in found.items()}
    print(
        json.dumps(
            {
                "benchmark": "growth",
                "sizes": SIZES,
                "verdicts_reused": REUSED,
                "verdicts_reused_seconds": round(reused.seconds, 2),
                **steps,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
