"""Dispatch of a launch, compared with a bare ``requests`` session that posts the same, already encoded requests.

All of them send to the local messaging service, a separate process on loopback that knows the devices. Each sending
runs in its own process, so that its peak memory is its own, and sends another launch, so that the service does the same
work each time. The campaign has a later send date, so the service accepts requests and does nothing else. Sendoff's
time is that of ``send_launch()``. Both have an access token before, and the bare session has its bodies.

``BENCH_SCALE`` is the number of devices in millions; 1 takes about a minute on two idle processors, mostly for
importing the devices. A launch with large requests has four times as many. ``BENCH_ROUNDS`` is the number of rounds.
The result is the median of the rounds' ratios, and the ratio of the fastest runs is printed too. ``BENCH_LARGE=1`` also
sends one launch to ten times as many devices. ``BENCH_AIRFLOW=1`` also compares the operator with
``HttpOperator.expand`` over the segments, in an Airflow with a scheduler and a LocalExecutor.
``SENDOFF_TEST_POSTGRES_URL`` is the server to use. If none answers, only SQLite is measured.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
import requests
import sqlalchemy as sa
from freezing import freeze
from requests.adapters import HTTPAdapter
from shared import migrated, peak_memory, postgres_ledger

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign, Period
from sendoff.demo.airflow import Airflow, AirflowApi
from sendoff.demo.processes import Supervisor
from sendoff.dispatch.request import DEFAULT_REQUESTS_AT_ONCE, ServiceConnection
from sendoff.dispatch.worker import LEASE, send_launch
from sendoff.ledger import Ledger
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource
from sendoff.service.wire import CREATE_PATH, Targeting, create_body
from sendoff.states import Accepted

DEVICES = int(1_000_000 * float(os.environ.get("BENCH_SCALE", "1")))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SIZES = (10_000, 1_000)
ADDRESSES = PostBackSigner("http://127.0.0.1:9", ["s" * 32])
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
THREADS = (1, DEFAULT_REQUESTS_AT_ONCE)  # of the bare session
LONGER = 4  # times as many devices with the larger requests, so that starting takes little of the time
WORKERS = 2  # mapped tasks of the operator
MAPPED = 40  # mapped tasks of HttpOperator, each with one request of 10,000 devices
LIMIT = 900.0  # seconds for one run in Airflow
_launches = count(1)


@dataclass(frozen=True)
class Service:
    """The running service, and the one client ID that it knows."""

    base_url: str
    client_id: str
    client_secret: str

    def service_connection(self, requests_at_once: int = DEFAULT_REQUESTS_AT_ONCE) -> ServiceConnection:
        session = requests.Session()
        session.mount("http://", HTTPAdapter(max_retries=0, pool_maxsize=requests_at_once))
        tokens = TokenSource(ClientSecret(self.client_id, self.client_secret), self.base_url, session)
        tokens.token()  # the bare session has its token too before the clock starts
        return ServiceConnection(
            Client(self.base_url, session, tokens), ADDRESSES, requests_at_once=requests_at_once
        )

    def token(self) -> str:
        form = {"grant_type": "client_credentials", "client_id": self.client_id}
        reply = requests.post(
            f"{self.base_url}/api/oauth/token", data={**form, "client_secret": self.client_secret}, timeout=60
        )
        return str(reply.json()["access_token"])


@contextmanager
def serving(folder: Path, devices: int = DEVICES) -> Iterator[Service]:
    command = str(Path(sys.executable).with_name("messaging-service"))
    at = ("--database", f"sqlite:///{folder / 'service.db'}")

    def say(*words: str) -> dict[str, Any]:
        done = subprocess.run([command, *words, *at], check=True, stdout=subprocess.PIPE)
        return dict(json.loads(done.stdout))

    say("apps", "add", "--name", "bench")
    client = say("client-ids", "add", "--name", "bench", "--type", "secret")
    table = folder / "devices.csv"
    with table.open("w") as file:
        file.write("device_id,platform,profile_id,user_id,language,time_zone\n")
        file.writelines(f"{n},android,,,,\n" for n in range(1, devices + 1))
    say("devices", "import", str(table))
    with subprocess.Popen(
        [command, "serve", "--port", "0", *at], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            address = json.loads(server.stdout.readline())["listening"]
            yield Service(address, client["client_id"], client["client_secret"])
        finally:
            server.terminate()


def campaign(size: int) -> Campaign:
    return Campaign.model_validate(
        {
            "title": f"Spring {next(_launches)}",
            "connection": "service",
            "message": {"title": "Hello", "text": "It is spring"},
            "channels": {"android_push": {}},
            "send": {"kind": "once", "date": "2040-01-01", "time": "10:00", "time_zone": "UTC"},
            "segment_size": size,
        }
    )


def freeze_next(url: str, size: int, devices: int = DEVICES) -> str:
    """Freeze another launch and return its key."""
    people, now = integers(np.arange(1, devices + 1)), datetime.now(UTC)
    with closing(Ledger(url)) as ledger:
        return freeze(ledger, campaign(size), people, PERIOD, now, resend=next(_launches))


def devices_of(size: int) -> int:
    """Return the number of devices in a launch with requests of a size. The service also accepts unknown ones."""
    return DEVICES * (LONGER if size == SIZES[0] else 1)


def bodies(size: int, most: int | None = None) -> list[bytes]:
    """Return the request bodies of another launch."""
    spring = campaign(size)
    made = []
    for people in integers(np.arange(1, devices_of(size) + 1)).slices(size):
        key = uuid4().hex
        addresses = ADDRESSES.for_dispatch(key, spring.post_backs.kinds)
        made.append(
            create_body(
                spring,
                title=f"{spring.title} [{key}]",
                targeting=Targeting("device_id", people),
                post_backs=addresses,
            )
        )
        if len(made) == most:
            break
    return made


Took = tuple[float, float]
"""Seconds of wall-clock time, and of this process's CPU time."""


def send_with_sendoff(service: Service, url: str, key: str) -> Took:
    with closing(Ledger(url)) as ledger:
        ledger.ping()
        connection = service.service_connection()
        start, cpu = time.perf_counter(), time.process_time()
        tally = send_launch(ledger, key, connection)
        took = time.perf_counter() - start, time.process_time() - cpu
        if set(ledger.dispatch_queries.states(key)) != {"accepted"}:
            sys.exit(f"not everything was accepted: {tally}")
    return took


def send_barely(service: Service, file: str, threads: int) -> Took:
    ready: list[bytes] = pickle.loads(Path(file).read_bytes())
    with requests.Session() as session, ThreadPoolExecutor(threads) as pool:
        session.mount("http://", HTTPAdapter(pool_maxsize=threads))
        session.headers["Authorization"] = f"Bearer {service.token()}"
        session.headers["Content-Type"] = "application/json"

        def post(body: bytes) -> int:
            return session.post(service.base_url + CREATE_PATH, data=body, timeout=60).status_code

        start, cpu = time.perf_counter(), time.process_time()
        statuses = set(pool.map(post, ready))
        took = time.perf_counter() - start, time.process_time() - cpu
    if statuses != {200}:
        sys.exit(f"the service answered {statuses}")
    return took


def ledger_alone(url: str, size: int) -> float:
    """Return the seconds per request that the ledger takes if the service takes none."""
    key = freeze_next(url, size)
    with closing(Ledger(url)) as ledger:
        how: dict[str, Any] = {"worker": "alone", "lease": LEASE}
        claim = ledger.dispatches.claim(key, now=datetime.now(UTC), **how)
        taken = 0
        start = time.perf_counter()
        while claim is not None:
            taken += 1
            claim = ledger.dispatches.record_and_claim(claim, Accepted(200, taken), datetime.now(UTC), **how)
        return (time.perf_counter() - start) / taken


def child(what: str, *words: str) -> None:
    """Send once and print the seconds and the peak memory in MiB."""
    service = Service(**json.loads(os.environ["BENCH_SERVICE"]))
    if what == "sendoff":
        took = send_with_sendoff(service, os.environ["BENCH_URL"], *words)
    else:
        took = send_barely(service, words[0], int(words[1]))
    print(json.dumps([*took, peak_memory()]))


@dataclass(frozen=True)
class Run:
    """One sending, in its own process."""

    seconds: float
    cpu: float  # CPU seconds of the sending process
    peak: float  # MiB of memory


def run_child(service: Service, *words: str, url: str = "") -> Run:
    known = {
        "BENCH_SERVICE": json.dumps(service.__dict__),
        "BENCH_URL": url,
    }  # other users could see arguments
    line = [sys.executable, str(Path(__file__).resolve()), *words]
    done = subprocess.run(line, env={**os.environ, **known}, check=True, stdout=subprocess.PIPE)
    return Run(*json.loads(done.stdout))


def measure(service: Service, ledgers: dict[str, str], size: int, folder: Path) -> dict[str, list[Run]]:
    """Send in turn, for several rounds."""
    seen: dict[str, list[Run]] = {}
    for number in range(1, ROUNDS + 1):
        for threads in THREADS:
            file = folder / "bodies"
            file.write_bytes(pickle.dumps(bodies(size)))
            run = run_child(service, "bare", str(file), str(threads))
            seen.setdefault(f"bare, {threads} at once", []).append(run)
        for name, url in ledgers.items():
            key = freeze_next(url, size, devices_of(size))
            seen.setdefault(name, []).append(run_child(service, "sendoff", key, url=url))
        took = ", ".join(f"{name} {runs[-1].seconds:.2f} s" for name, runs in seen.items())
        print(f"  round {number}: {took}", flush=True)
    return seen


def report(size: int, seen: dict[str, list[Run]], alone: dict[str, float]) -> dict[str, float]:
    """Print the medians and return the ratios of each round and of the fastest runs, which are disturbed least."""
    made = -(-devices_of(size) // size)
    print(f"\n{devices_of(size):,} devices, {size:,} to a request")
    print(f"  {'':18}{'requests/s':>12}{'ms each':>9}{'CPU ms':>8}{'MiB':>6}")
    for name, runs in seen.items():
        seconds, cpu, peak = (
            median(getattr(run, part) for run in runs) for part in ("seconds", "cpu", "peak")
        )
        print(
            f"  {name:18}{made / seconds:12.0f}{seconds / made * 1e3:9.2f}{cpu / made * 1e3:8.2f}{peak:6.0f}"
        )
    figures: dict[str, float] = {f"requests_{size}": made}
    for name, each in alone.items():
        key = name.lower()
        share = each * made / median(run.seconds for run in seen[name])
        print(
            f"  {name}: the ledger alone takes {each * 1e3:.2f} ms for each request, {share:.0%} of the time"
        )
        for threads in THREADS:
            bare = seen[f"bare, {threads} at once"]
            ratios = [other.seconds / own.seconds for own, other in zip(seen[name], bare, strict=True)]
            best = min(run.seconds for run in bare) / min(run.seconds for run in seen[name])
            figures |= {
                f"{key}_{size}_to_bare_{threads}": round(median(ratios), 3),
                f"{key}_{size}_to_bare_{threads}_at_best": round(best, 3),
            }
        figures[f"{key}_{size}_ledger_ms"] = round(each * 1e3, 2)
        figures[f"{key}_{size}_peak_mib"] = round(median(run.peak for run in seen[name]), 1)
    return figures


def send_large(service: Service, ledgers: dict[str, str]) -> dict[str, float]:
    """Send once to ten times as many devices; the service also accepts those it does not know."""
    figures: dict[str, float] = {}
    for name, url in ledgers.items():
        key = freeze_next(url, SIZES[0], 10 * DEVICES)
        run = run_child(service, "sendoff", key, url=url)
        print(f"  {name}: {10 * DEVICES:,} devices in {run.seconds:.1f} s, {run.peak:.0f} MiB")
        figures |= {f"{name.lower()}_large_seconds": round(run.seconds, 2)}
        figures |= {f"{name.lower()}_large_peak_mib": round(run.peak, 1)}
    return figures


DAGS = """
from datetime import datetime
from pathlib import Path
from airflow.providers.http.operators.http import HttpOperator
from airflow.sdk import DAG, task
from sendoff_airflow.operators import CreateCampaignOperator

with DAG("bare", schedule=None, start_date=datetime(2026, 1, 1)):
    @task
    def bodies():
        return [path.read_text() for path in sorted(Path({bodies!r}).iterdir())]

    HttpOperator.partial(
        task_id="send", http_conn_id="bare", endpoint={path!r}, log_response=False
    ).expand(data=bodies())

with DAG("ours", schedule=None, start_date=datetime(2026, 1, 1)):
    CreateCampaignOperator.partial(task_id="send", launch_key={key!r}).expand(worker=list(range(1, {workers} + 1)))
"""


def in_airflow(service: Service, url: str, folder: Path) -> dict[str, float]:
    """Run both ways in one Airflow. Return requests per second, from the first task's start to the last one's end."""
    written, dags = folder / "written", folder / "dags"
    written.mkdir()
    dags.mkdir()
    for number, body in enumerate(bodies(SIZES[0], MAPPED)):
        (written / f"{number:06}.json").write_bytes(body)
    key = freeze_next(url, SIZES[0])
    source = DAGS.format(bodies=str(written), path=CREATE_PATH, key=key, workers=WORKERS)
    (dags / "both.py").write_text(source)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    airflow = Airflow(folder / "airflow", dags, port, variables(service, url))
    with Supervisor(folder / "logs") as supervisor:
        airflow.migrate(supervisor).finish()
        airflow.start(supervisor)
        api = AirflowApi(airflow.address)
        supervisor.wait_until(api.healthy, "Airflow is well")
        api.log_in()
        took = {}
        for dag in ("bare", "ours"):
            supervisor.wait_until(partial(api.has_dag, dag), f"the DAG {dag} is read")
            took[dag] = seconds_of(api, supervisor, dag)
    with closing(Ledger(url)) as ledger:
        made = ledger.dispatch_queries.states(key)["accepted"]
    bare = min(MAPPED, -(-DEVICES // SIZES[0])) / took["bare"]
    ours = made / took["ours"]
    print(f"\nin Airflow, 10,000 devices to a request, {DEFAULT_REQUESTS_AT_ONCE} tasks at a time")
    print(f"  HttpOperator.expand over {MAPPED} segments {took['bare']:8.1f} s {bare:8.2f} requests/s")
    print(f"  operator over {WORKERS} workers, {made} requests {took['ours']:6.1f} s {ours:8.2f} requests/s")
    return {
        "airflow_http_operator_per_second": round(bare, 2),
        "airflow_operator_per_second": round(ours, 2),
        "airflow_times_http_operator": round(ours / bare, 1),
    }


def variables(service: Service, url: str) -> dict[str, str]:
    bearer = {"Authorization": f"Bearer {service.token()}", "Content-Type": "application/json"}
    login = {"login": service.client_id, "password": service.client_secret}
    receiver = {"conn_type": "sendoff_receiver", "host": "http://127.0.0.1:9", "password": "s" * 32}
    known = {
        "bare": {"conn_type": "http", "host": service.base_url, "extra": bearer},
        "sendoff_default": {"conn_type": "sendoff", "host": service.base_url, **login},
        "sendoff_receiver": receiver,
    }
    connections = {f"AIRFLOW_CONN_{name.upper()}": json.dumps(each) for name, each in known.items()}
    return {**connections, "SENDOFF_LEDGER_URL": url}


def seconds_of(api: AirflowApi, supervisor: Supervisor, dag: str) -> float:
    run = api.trigger(dag)

    def ended() -> bool:
        return api.state(dag, run) in ("success", "failed")

    supervisor.wait_until(ended, f"the DAG {dag} has ended", LIMIT)
    if api.state(dag, run) != "success":
        sys.exit(f"the run of the DAG {dag} failed")
    path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances?limit=1000"
    tasks = [each for each in api._call("GET", path)["task_instances"] if each["map_index"] >= 0]
    starts = min(datetime.fromisoformat(each["start_date"]) for each in tasks)
    ends = max(datetime.fromisoformat(each["end_date"]) for each in tasks)
    return (ends - starts) / timedelta(seconds=1)


def main() -> None:
    print(f"Dispatch: {DEVICES:,} devices, {os.cpu_count()} processors for all")
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-dispatch-")))
        ledgers = {"SQLite": migrated(f"sqlite:///{folder / 'ledger.db'}")}
        try:
            ledgers["PostgreSQL"] = stack.enter_context(postgres_ledger())
        except sa.exc.OperationalError:
            print("no PostgreSQL answers: SQLite alone is measured")
        service = stack.enter_context(serving(folder))
        for size in SIZES:
            alone = {name: ledger_alone(url, size) for name, url in ledgers.items()}
            figures |= report(size, measure(service, ledgers, size, folder), alone)
        if os.environ.get("BENCH_LARGE"):
            figures |= send_large(service, ledgers)
        if os.environ.get("BENCH_AIRFLOW"):
            figures |= in_airflow(service, list(ledgers.values())[-1], folder)
    print(json.dumps({"benchmark": "dispatch", "devices": DEVICES, **figures}))


if __name__ == "__main__":
    child(*sys.argv[1:]) if len(sys.argv) > 1 else main()
