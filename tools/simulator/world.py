"""The world outside of the product: the messaging service, and recipients who opt out or ask to be erased.

The service decides the fate of each request and sends post-backs to the receivers, again and again until one answers
2xx. It records what it did. The product never sees this record; the checker does.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter
from urllib3.exceptions import MaxRetryError, NewConnectionError

from sendoff.postbacks.group_commit import GroupCommit, Limits
from sendoff.postbacks.receiver import ReceiverApp
from sendoff.service import OptOut, OptOutSigner, PostBackSigner
from tools.simulator.machine import BEGIN, SECRET, Loop, Machine, Process

SERVICE = "https://service.example"
SIGNER = PostBackSigner("https://events.example", [SECRET])
STRANGER = 799_999  # a person in no launch

_LIMITS = Limits(gather=0.0, idle=math.inf)
_STALLS = (310.0, 325.0, 400.0, 250.0, 700.0)  # seconds; a lease is 300
_PATIENCE = 30.0  # seconds that the service waits for an answer to a post-back
_TOKEN = {"access_token": "token", "expires_in": 86_400, "token_type": "Bearer"}


class Fate(NamedTuple):
    """What becomes of a request: whether the service processes it, and what it answers. ``status``: 0: nothing."""

    name: str
    is_processed: bool
    status: int


FATES = (
    Fate("accepted", is_processed=True, status=200),
    Fate("no answer after processing", is_processed=True, status=0),
    Fate("no answer and not processed", is_processed=False, status=0),
    Fate("500 after processing", is_processed=True, status=500),
    Fate("500 and not processed", is_processed=False, status=500),
    Fate("refused", is_processed=False, status=422),
    Fate("rate limited", is_processed=False, status=429),
    Fate("not connected", is_processed=False, status=-1),
)
_DELAYS = (0.0, 0.5, 5.0, 25.0)
_POST_BACK_DELAYS = (0.0, 2.0, 20.0, 100.0, 400.0, 1_500.0)


@dataclass(slots=True)
class Habits:
    """How often things happen in one history."""

    failing: float  # of requests
    late: float  # of requests: their worker goes on about one lease after the answer, which is of any kind
    delivered: float  # of recipients of processed requests
    opened: float
    repeated: float  # of post-backs
    odd: float  # of post-backs that name someone else, or another campaign


class Service(BaseAdapter):
    """The messaging service, as an adapter of HTTP sessions. ``users``: the recipients of a broadcast."""

    def __init__(
        self, machine: Machine, habits: Habits, receivers: Sequence[Receiver], users: Sequence[int]
    ) -> None:
        super().__init__()
        self._machine, self._habits, self._receivers, self._users = machine, habits, receivers, users
        self._requests = self._campaigns = self._post_backs = 0

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """Answer a request of the product."""
        path = urlsplit(request.url or "").path
        if "campaign" not in path:
            return _response(request, 200, _TOKEN)
        task = self._machine.scheduler.current
        assert task is not None
        self._requests += 1
        number, body = self._requests, json.loads(request.body or b"")
        own = body.get("target_with_params", {})  # of a template's recipients
        people = body.get("device_ids", [int(person) for person in own])
        _, _, _, dispatch, _ = urlsplit(body["webhook_open"]).path.split("/")
        self._machine.record(
            "request", request=number, by=task.name, dispatch=dispatch, people=people,
            chooses=bool(body.get("broadcast") or "segment_ids" in body),
            values=[values["own"] for values in own.values()],
        )  # fmt: skip
        choices = self._machine.scheduler.choices
        is_late = choices.chance(f"lateness of {task.name}", self._habits.late)
        failing = 1 - 1 / len(FATES) if is_late else self._habits.failing
        weights = [1 - failing, *[failing / (len(FATES) - 1)] * (len(FATES) - 1)]
        fate = choices.pick(f"fate of {task.name}", FATES, weights)
        if fate.status < 0:
            self._machine.record("answer", request=number, answer=fate.name)
            reason = NewConnectionError(None, "refused")  # type: ignore[arg-type]
            raise requests.ConnectionError(MaxRetryError(None, "", reason))  # type: ignore[arg-type]
        answered: list[tuple[int, Any]] = []
        self._machine.scheduler.spawn(
            f"service {number}",
            lambda: self._serve(number, task.name, fate, body, people, answered),
            daemon=True,
        )
        self._machine.scheduler.wait(lambda: answered)
        if is_late:
            seconds = choices.pick(f"delay of {task.name}", _STALLS)
            self._machine.record(
                "fault", of=task.name, fault=f"it stops for {seconds:g} seconds after the answer"
            )
            self._machine.scheduler.sleep(seconds)
        status, content = answered[0]
        if not status:
            raise requests.ReadTimeout
        return _response(request, status, content)

    def close(self) -> None:
        """Do nothing."""

    def _serve(
        self,
        number: int,
        by: str,
        fate: Fate,
        body: Mapping[str, Any],
        people: Sequence[int],
        answered: list[tuple[int, Any]],
    ) -> None:
        """Process a request, whether or not its sender still lives, and answer it."""
        scheduler = self._machine.scheduler
        scheduler.sleep(scheduler.choices.pick(f"arrival of {by}", _DELAYS))
        campaign = None
        if fate.is_processed:
            self._campaigns += 1
            campaign = self._campaigns
            named = body.get(
                "id", campaign
            )  # post-backs of an execution name the template, and not its answer's ID
            people = self._reached(by, body, people)
            self._machine.record("processed", request=number, campaign=named, people=people)
            self._send_post_backs(named, people, body)
        scheduler.sleep(60.0 if not fate.status else scheduler.choices.pick(f"answer to {by}", _DELAYS))
        success = fate.status == 200
        content = {"success": success, "code": fate.status, "model": {"id": campaign}} if fate.status else {}
        self._machine.record("answer", request=number, answer=fate.name if fate.status else "none")
        answered.append((fate.status, content))

    def _reached(self, by: str, body: Mapping[str, Any], people: Sequence[int]) -> Sequence[int]:
        """Return the recipients of a request: all users for a broadcast, and any of them for saved segments."""
        chance = self._machine.scheduler.choices.chance
        if body.get("broadcast"):
            return self._users
        if "segment_ids" in body:
            return [user for user in self._users if not chance(f"{user} in no segment of {by}", 0.3)]
        return people

    def _send_post_backs(self, campaign: int, people: Sequence[int], body: Mapping[str, Any]) -> None:
        choices = self._machine.scheduler.choices
        for person in people:
            for kind, share in (("delivery", self._habits.delivered), ("open", self._habits.opened)):
                if not choices.chance(f"{kind} {person}", share):
                    continue
                named, its = person, campaign
                if choices.chance(f"odd {kind} {person}", self._habits.odd):
                    named, its = choices.pick(
                        f"oddness {person}", ((STRANGER, campaign), (person, campaign + 1_000))
                    )
                path = urlsplit(body[f"webhook_{kind}"]).path
                self._post_backs += 1
                number = self._post_backs
                self._machine.scheduler.spawn(
                    f"post-back {number}",
                    lambda number=number, path=path, named=named, its=its: self._deliver(
                        number, path, named, its
                    ),  # type: ignore[misc]
                    delay=choices.pick(f"delay {kind} {person}", _POST_BACK_DELAYS),
                )

    def _deliver(self, number: int, path: str, person: int, campaign: int) -> None:
        """Send a post-back until it is answered 2xx, and sometimes once more."""
        scheduler = self._machine.scheduler
        _, _, kind, dispatch, _ = path.split("/")
        facts = {"kind": kind, "dispatch": dispatch, "person": person, "campaign": campaign}
        time = int(BEGIN.timestamp() + scheduler.now)
        body = {"time": time, "campaign": {"id": campaign}, "device": {"id": person}}
        repeats = scheduler.choices.chance(f"repetition {number}", self._habits.repeated)
        for _ in range(1 + repeats):
            while True:
                receiver = scheduler.choices.pick(f"receiver of {number}", self._receivers)
                sent = self._machine.record("post-back", post_back=number, to=receiver.name, **facts)
                status = receiver.ask(path, json.dumps(body).encode())
                self._machine.record("post-back answer", of=sent, post_back=number, status=status, **facts)
                if status == 200:
                    break
                scheduler.sleep(7.0)


def _response(request: requests.PreparedRequest, status: int, content: Any) -> requests.Response:
    response = requests.Response()
    response.status_code, response.request, response.url = status, request, request.url or ""
    response._content, response._content_consumed = json.dumps(content).encode(), True  # type: ignore[attr-defined]
    response.raw = io.BytesIO()
    if status == 429:
        response.headers["Retry-After"] = "5"
    return response


class Receiver:
    """The address of one receiver. Its process may die and start again."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.name = f"receiver {number}"
        self._machine, self._starts = machine, 0
        self._process: Process | None = None
        self._app: ReceiverApp | None = None
        self._loop: Loop | None = None
        self.start()

    def start(self) -> None:
        """Start a new process."""
        self._starts += 1
        process = self._machine.start(f"{self.name}.{self._starts}", self._restart)
        self._process, self._app = process, None
        process.spawn("", lambda: self._run(process), daemon=True)

    def _restart(self) -> None:
        assert self._process is not None
        dead, self._app = self._process, None
        delay = self._machine.scheduler.choices.pick(f"restart {self.name}", (5.0, 60.0))

        def again() -> None:
            self._machine.end(dead)
            self.start()

        self._machine.scheduler.spawn(f"{self.name} starts", again, delay=delay)

    def _run(self, process: Process) -> None:
        loop, limits = Loop(), _LIMITS
        commit = GroupCommit(process.ledger, process.name, limits, process.now)
        commit.start()
        self._loop, self._app = loop, ReceiverApp(commit, process.ledger, SIGNER, limits, process.now)
        try:
            loop.run_forever()
        finally:
            asyncio.events._set_running_loop(None)
            loop.close()

    def ask(self, path: str, body: bytes) -> int:
        """Send a request, and return the status of the answer; 0 without one."""
        app, loop, process = self._app, self._loop, self._process
        if app is None or loop is None or process is None:
            return 0
        request = _Request(path, body)
        loop.call_soon_threadsafe(lambda: request.start(loop, app))
        self._machine.scheduler.wait(lambda: request.status or not process.is_alive, _PATIENCE)
        return request.status


class _Request:
    """One HTTP request in the interface of the receiver's server: scope and protocol in one."""

    method = "POST"

    def __init__(self, path: str, body: bytes) -> None:
        self.path, self._body, self.status = path, body, 0
        self.headers = {"content-length": str(len(body))}
        self._task: asyncio.Task[Any] | None = None

    def start(self, loop: Loop, app: Any) -> None:
        self._task = loop.create_task(app(self, self))

    async def __call__(self) -> bytes:
        return self._body

    def response_empty(self, status: int, _headers: Any) -> None:
        self.status = status

    def response_str(self, status: int, _headers: Any, _body: str) -> None:
        self.status = status


def opt_out(
    machine: Machine, receivers: Sequence[Receiver], launch_key: str, person: int, *, is_widened: bool
) -> None:
    """Opt out as a recipient does, until the address answers 200.

    ``is_widened``: the address opts out of a topic that no launch has, and the second button of all messages.
    """
    scope = "topic:news" if is_widened else "account"
    address = OptOutSigner.of(SIGNER).sign(OptOut(launch_key, scope, "device_id", str(person)))
    form = b"List-Unsubscribe=One-Click" + (b"&scope=account" if is_widened else b"")
    path = urlsplit(address).path
    for number in range(100):
        receiver = receivers[number % len(receivers)]
        machine.record("opt-out", person=person)
        status = receiver.ask(path, form)
        machine.record("opt-out answer", person=person, status=status)
        if status == 200:
            return
        machine.scheduler.sleep(10.0)
