"""The processes that are killed: workers that freeze and send a launch, and processes that aggregate.

A worker does the same as a task in Airflow: it freezes the launch, or finds it frozen, and sends the planned
dispatches. A notebook does that with the Python library. The product has no hooks for this. The process traces its own
lines, on all its threads, with ``sys.settrace`` and kills itself at one of them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import requests

import sendoff
import sendoff.app.app
import sendoff.app.launch
import sendoff.app.order
import sendoff.dispatch.decisions
import sendoff.dispatch.policy
import sendoff.dispatch.request
import sendoff.dispatch.winner
import sendoff.dispatch.worker
import sendoff.launch.own_hours
import sendoff.launch.own_request
import sendoff.launch.plan
import sendoff.launch.plan_inputs
import sendoff.launch.verdict_audience
import sendoff.ledger.control.audit_log
import sendoff.ledger.control.daily_limits
import sendoff.ledger.control.rate_limits
import sendoff.ledger.erasure.erasure_steps
import sendoff.ledger.erasure.erasures
import sendoff.ledger.erasure.person_columns
import sendoff.ledger.launches.freeze
import sendoff.ledger.launches.launches
import sendoff.ledger.post_backs.aggregates
import sendoff.ledger.post_backs.block_batches
import sendoff.ledger.post_backs.block_format
import sendoff.ledger.post_backs.blocks
import sendoff.ledger.post_backs.post_backs
import sendoff.ledger.post_backs.totals
import sendoff.ledger.requests.claims
import sendoff.ledger.requests.dispatch_queries
import sendoff.ledger.requests.dispatches
import sendoff.ledger.requests.doubts
import sendoff.ledger.requests.evidence
import sendoff.ledger.requests.next_dispatch
import sendoff.ledger.requests.record_and_claim
import sendoff.ledger.results.verdicts
import sendoff.ledger.storage.database
import sendoff.ledger.storage.engines
import sendoff.ledger.storage.erasure_state
import sendoff.ledger.storage.stored_sets
import sendoff.ledger.suppression.active_suppressions
import sendoff.ledger.suppression.active_verdicts
import sendoff.ledger.suppression.withheld
import sendoff.postbacks.aggregation
import sendoff.postbacks.batch_totals
import sendoff.postbacks.erasure
import sendoff.postbacks.recipient_index
import sendoff.service.client
import sendoff.service.deadline
import sendoff.service.transport
from sendoff.audience.identifiers import integers
from sendoff.campaign import (
    Campaign,
    CampaignFolder,
    DeploymentRules,
    Period,
    WarmUp,
    launch_key,
    request_launch_key,
    topic_scope,
)
from sendoff.dispatch.request import DEFAULT_REQUESTS_AT_ONCE, ServiceConnection
from sendoff.dispatch.worker import send_launch
from sendoff.errors import GateError, PermanentError, RetryableError
from sendoff.launch.own_request import NewRequest
from sendoff.launch.plan import prepare_launch
from sendoff.launch.plan_inputs import LaunchOptions
from sendoff.launch.suppression_list import replace_suppressions
from sendoff.ledger import LaunchRecord, Ledger, SuppressionChange
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.erasure import continue_erasures, forget
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource
from sendoff.service.transport import Timeout
from tools.chaos import mutants
from tools.chaos.processes import SECRET

Phase = Literal["freeze", "send", "decide", "aggregate", "erase"]

LINES: dict[Phase, tuple[Any, ...]] = {
    "freeze": (
        sendoff.app.app,
        sendoff.app.order,
        sendoff.launch.own_hours,
        sendoff.launch.own_request,
        sendoff.launch.plan,
        sendoff.launch.plan_inputs,
        sendoff.launch.verdict_audience,
        sendoff.ledger.launches.launches,
        sendoff.ledger.launches.freeze,
        sendoff.ledger.storage.stored_sets,
        sendoff.ledger.storage.database,
        sendoff.ledger.storage.engines,
    ),
    "send": (
        sendoff.app.launch,
        sendoff.dispatch.worker,
        sendoff.dispatch.policy,
        sendoff.dispatch.request,
        sendoff.ledger.requests.dispatches,
        sendoff.ledger.suppression.active_verdicts,
        sendoff.ledger.requests.claims,
        sendoff.ledger.requests.next_dispatch,
        sendoff.ledger.requests.record_and_claim,
        sendoff.ledger.suppression.active_suppressions,
        sendoff.ledger.suppression.withheld,
        sendoff.ledger.control.daily_limits,
        sendoff.ledger.control.rate_limits,
        sendoff.ledger.requests.doubts,
        sendoff.ledger.requests.evidence,
        sendoff.ledger.requests.dispatch_queries,
        sendoff.ledger.results.verdicts,
        sendoff.ledger.storage.database,
        sendoff.ledger.storage.engines,
        sendoff.service.client,
        sendoff.service.deadline,
        sendoff.service.transport,
        mutants,
    ),
    "decide": (
        sendoff.dispatch.winner,
        sendoff.dispatch.policy,
        sendoff.dispatch.decisions,
        sendoff.ledger.control.audit_log,
        sendoff.ledger.requests.claims,
        sendoff.ledger.requests.next_dispatch,
        sendoff.ledger.storage.database,
        sendoff.ledger.storage.engines,
        mutants,
    ),
    "aggregate": (
        sendoff.postbacks.aggregation,
        sendoff.postbacks.batch_totals,
        sendoff.postbacks.recipient_index,
        sendoff.ledger.post_backs.post_backs,
        sendoff.ledger.post_backs.block_batches,
        sendoff.ledger.post_backs.block_format,
        sendoff.ledger.post_backs.aggregates,
        sendoff.ledger.post_backs.totals,
        sendoff.ledger.results.verdicts,
        sendoff.ledger.storage.database,
        sendoff.ledger.storage.engines,
        mutants,
    ),
    "erase": (
        sendoff.postbacks.erasure,
        sendoff.ledger.erasure.erasures,
        sendoff.ledger.erasure.erasure_steps,
        sendoff.ledger.erasure.person_columns,
        sendoff.ledger.storage.erasure_state,
        sendoff.ledger.post_backs.block_batches,
        sendoff.ledger.post_backs.block_format,
        sendoff.ledger.post_backs.blocks,
        sendoff.ledger.storage.database,
        sendoff.ledger.storage.engines,
        mutants,
    ),
}
"""The modules whose lines count in each phase."""

AGAIN = 75  # exit code of a worker that must be started again
_LONGEST_SLEEP = 0.1  # seconds; longer waits that the service asks for are shortened to this

DAY = timedelta(days=1)
"""How long it takes at least to send a launch in waves."""
_ROLLOUT = {"shares": [20, 50], "wait": {"length": 12, "unit": "hours"}, "refused": 100}
WORDS = {"cold": "It is cold", "warm": "It is warm"}
"""The text of each variant of a launch with a test share."""
DECIDED_AFTER = timedelta(minutes=1)
"""How long after the test share the winner is decided."""
_VARIANTS = {name: {"percent": 50, "message": {"text": text}} for name, text in WORDS.items()}
_DECIDE = {"share": 70, "after": {"length": 1, "unit": "minutes"}, "otherwise": "warm"}
_REMINDED = {"source": {"kind": "verdicts", "of": "chaos", "are": ["delivered"], "unknowable": "include"}}

_processes = multiprocessing.get_context("forkserver")
# pyarrow imports pandas, if it is installed, at its first conversion: 0.3 seconds of CPU in each process.
_processes.set_forkserver_preload(["tools.chaos.workers", "pandas"])


@dataclass(frozen=True, slots=True)
class Job:
    """The work of one process, and the line where it dies."""

    ledger_url: str
    service: str
    client_id: str
    client_secret: str
    receiver: str
    warehouse: str
    period: Period
    people: int
    segment_size: int
    requests_at_once: int = DEFAULT_REQUESTS_AT_ONCE
    ahead: timedelta = timedelta(0)  # how far its clock is ahead of the others
    dies_in: Phase = "send"
    dies_at: int | None = None  # the line, from 1; 0: never, but count the lines
    lines_to: str | None = None
    mutant: str | None = None
    on_doubt: str = "hold"
    answer_within: float = 60.0  # seconds; if the service takes longer, the request is in doubt
    in_notebook: bool = False
    is_own_request: bool = False  # a request of your own, in place of a campaign
    daily_limit: int | None = None  # recipients on a UTC day
    rate: float | None = None  # requests per second
    in_waves: bool = False  # in three waves, on a topic of its own that recipients opt out of
    decides: bool = False  # two variants to a test share, and the winner to the rest
    is_reminder: bool = False  # to recipients of the launch of the same day who did not open its message
    at_own_hours: bool = False  # to everyone, at the hours at which they opened the launch of the same day
    resend: int = 0  # above 0: only to those who got nothing from the launches before

    @property
    def key(self) -> str:
        """The launch key."""
        folder = self.folder()
        connection = folder.campaign.connection
        if self.is_own_request:
            return request_launch_key(connection, folder.name, self.period.key)
        return launch_key(connection, folder.name, self.period, self.resend)

    @property
    def topic(self) -> str:
        """The topic of a launch in waves."""
        return f"chaos-{self.period.start:%Y-%m-%d}"

    @property
    def complaints(self) -> SuppressionChange:
        """The entries of a source that each worker of a launch in waves replaces by none."""
        return SuppressionChange(topic_scope(self.topic), "device_id", "complaints", "chaos")

    def own_request(self) -> NewRequest:
        """Return the request of your own. Its title ends with the launch key, so that the service's record shows it."""
        body = {
            "title": f"Chaos [{self.key}]",
            "push_text": "Nothing twice, nothing lost",
            "web_push": 1,
            "web_push_chrome": 1,
            "device_ids": list(range(1, self.people + 1)),
        }
        folder = self.folder()
        connection = folder.campaign.connection
        return NewRequest(
            body=body, mode="create", name=folder.name, request_key=self.period.key, connection=connection
        )

    def folder(self) -> CampaignFolder:
        """Return the campaign. Its query returns other people each time."""
        campaign = Campaign.model_validate(
            {
                "title": "Chaos",
                "connection": f"service-{self.period.start:%Y-%m-%d}",  # a separate rate limit
                "message": {"title": "Hello", "text": "Nothing twice, nothing lost"},
                "channels": {
                    "android_push": {},
                    "ios_push": {},
                    "web_push": {"browsers": ["chrome", "firefox", "opera", "safari"]},
                },
                "segment_size": self.segment_size,
                "on_doubt": self.on_doubt,
                "gates": {
                    "failures": None,
                    "rollout": _ROLLOUT if self.in_waves else None,
                },  # go on, whatever fails
                "audience": _REMINDED if self.is_reminder else {},
                "topic": self.topic if self.in_waves else None,
                **({"variants": _VARIANTS, "decide": _DECIDE} if self.decides else {}),
                **({"send": {"kind": "now", "own_hours": {"explore": 0}}} if self.at_own_hours else {}),
            }
        )
        if self.daily_limit:
            limit = WarmUp(
                connection=campaign.connection,
                start=self.period.start.date(),
                first_day=self.daily_limit,
                growth=1,
                most=self.daily_limit,
            )
            campaign = campaign.replace(rules=DeploymentRules(warm_up=(limit,)))
        query = f"SELECT device_id, platform FROM devices ORDER BY random() LIMIT {self.people}"  # noqa: S608
        if self.is_reminder:
            return CampaignFolder("reminder", campaign, None, Path(self.warehouse).parent)
        if self.at_own_hours:
            query = "SELECT device_id, platform FROM devices"
        name = "hours" if self.at_own_hours else "chaos"
        return CampaignFolder(name, campaign, query, Path(self.warehouse).parent)


def start_worker(job: Job) -> BaseProcess:
    """Start a process that freezes and sends a launch."""
    return _start(_send_from_notebook if job.in_notebook else _send, job)


def start_aggregation(job: Job, run: int) -> BaseProcess:
    """Start a process that aggregates ``run`` post-backs in each transaction."""
    return _start(_aggregate, job, run)


def start_erasure(job: Job, devices: Sequence[int]) -> BaseProcess:
    """Start a process that finishes interrupted erasures, and erases devices."""
    return _start(_erase, job, devices)


def _run(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    logging.disable(logging.WARNING)  # the errors are intended
    target(*arguments)


def _start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = _processes.Process(target=_run, args=(target, arguments), daemon=True)
    process.start()
    return process


def _send(job: Job) -> None:
    mutants.apply(job.mutant)
    session = requests.Session()
    tokens = TokenSource(ClientSecret(job.client_id, job.client_secret), job.service, session)
    client = Client(job.service, session, tokens, timeout=Timeout(60.0, job.answer_within))
    connection = ServiceConnection(
        client,
        PostBackSigner(job.receiver, [SECRET]),
        rate=job.rate,
        requests_at_once=job.requests_at_once,
    )
    with closing(Ledger(job.ledger_url)) as ledger:
        try:
            with _followed(job, "freeze"):
                launch = _frozen(ledger, job)
            if job.in_waves:
                with suppress(GateError):  # another worker does it at the same time
                    replace_suppressions(ledger, job.complaints, integers([]), most_removed=100)
            with _followed(job, "send"), _followed(job, "decide"):
                send_launch(
                    ledger,
                    launch.launch_key,
                    connection,
                    now=lambda: datetime.now(UTC) + job.ahead,
                    sleep=lambda seconds: time.sleep(min(seconds, _LONGEST_SLEEP)),
                )
        except (RetryableError, PermanentError):
            sys.exit(AGAIN)


def _send_from_notebook(job: Job) -> None:
    mutants.apply(job.mutant)
    folder = job.folder()
    app = sendoff.connect(
        job.ledger_url,
        service=job.service,
        client_id=job.client_id,
        client_secret=job.client_secret,
        public_url=job.receiver,
        post_back_secret=SECRET,
        warehouse=job.warehouse,
        connection=folder.campaign.connection,
        requests_at_once=job.requests_at_once,
        timeout=job.answer_within,
    )
    with app:
        try:
            with _followed(job, "freeze"):
                launch = app.prepare(
                    folder.campaign, name=folder.name, audience=folder.audience_sql, period=job.period
                )
            with _followed(job, "send"):
                launch.send()
        except (RetryableError, PermanentError):
            sys.exit(AGAIN)


def _frozen(ledger: Ledger, job: Job) -> LaunchRecord:
    if job.is_own_request:
        return sendoff.launch.own_request.prepare_request(ledger, job.own_request(), period=job.period)
    options = LaunchOptions(resend=job.resend, only_unsent=job.resend > 0, reason="chaos")
    return prepare_launch(
        ledger, job.folder(), period=job.period, warehouses=lambda _: job.warehouse, options=options
    )


def _aggregate(job: Job, run: int) -> None:
    mutants.apply(job.mutant)
    with closing(Ledger(job.ledger_url)) as ledger:
        try:
            with _followed(job, "aggregate"):
                aggregate(ledger, run=run)
        except RetryableError:
            sys.exit(AGAIN)


def _erase(job: Job, devices: Sequence[int]) -> None:
    mutants.apply(job.mutant)
    with closing(Ledger(job.ledger_url)) as ledger:
        try:
            with _followed(job, "erase"):
                continue_erasures(ledger)
                erased = ledger.erasures.people().among("device_id", integers(devices))
                if left := [device for device in devices if device not in erased]:
                    forget(ledger, left, identified_by="device_id", who="chaos", reason="tests")
        except RetryableError:
            sys.exit(AGAIN)


@contextmanager
def _followed(job: Job, phase: Phase) -> Iterator[None]:
    """Count the lines of a phase as they run, and kill this process at the line where it dies."""
    if job.dies_at is None or job.dies_in != phase:
        yield
        return
    dies_at = job.dies_at
    files = {module.__file__ for module in LINES[phase]}
    lines = 0

    def follow(_frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines >= dies_at > 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return follow

    def begin(frame: FrameType, _event: str, _: object) -> Any:
        return follow if frame.f_code.co_filename in files else None

    threading.settrace(begin)  # for threads that start from now on
    sys.settrace(begin)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)
        if job.lines_to:
            Path(job.lines_to).write_text(str(lines))


def join(processes: Sequence[BaseProcess], seconds: float) -> list[int | None]:
    """Wait until the processes end, kill those that do not, and return all exit codes."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]
