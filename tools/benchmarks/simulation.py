"""A launch as a pipeline in virtual time, simulated with SimPy, to find where it waits and for what.

:class:`Costs` has the duration of each step, :class:`World` the behaviour of everything outside, and
:class:`Deployment` the amount of each resource. There is no randomness: the same arguments give the same result.

.. code-block:: text

    reading ─▶ rules ─▶ freezing ─▶ ledger ─▶ writing ─▶ service ─▶ receivers ─▶ storing ─▶ aggregating ─▶ reconciling
    parts      one      one         many      workers    its own    processes    ledger     one        one process

Reading, rules, and freezing run in sequence, because no request is sent before a launch is frozen. From then on,
everything runs at the same time until all post-backs are in. If there are too many dispatches, several are simulated
as one, with their total duration. Post-backs come in lots. *Aggregating* is the aggregation of post-backs.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

import simpy

Steps = Generator[simpy.Event, Any, None]


def _measured(unit: str, text: str) -> Any:
    return field(metadata={"unit": unit, "text": text})


def _chosen(default: float, unit: str, text: str, source: str = "") -> Any:
    return field(default=default, metadata={"unit": unit, "text": text, "source": source})


@dataclass(frozen=True)
class Costs:
    """The cost of each step in seconds of one process, unless stated otherwise; measured by ``steps.py``."""

    read: float = _measured("s/row", "reading a row into the audience")
    rules: float = _measured("s/person", "exclusion, holdout, fingerprint, cutting")
    freeze: float = _measured("s/segment", "freezing a segment and its dispatch")
    freeze_byte: float = _measured("s/byte", "plus, for each byte of its identifiers")
    transaction: float = _measured("s", "recording one request and claiming the next, one connection")
    transactions_per_second: float = _measured("1/s", "the maximum of these, over several processes")
    write: float = _measured("s/person", "writing the body of a request")
    receivers_per_second: float = _measured("1/s", "post-backs that one receiver process takes")
    store: float = _measured("s/post-back", "COPY into the ledger and its commit, 500 at a time")
    aggregate: float = _measured("s/post-back", "aggregating")
    aggregate_dispatch: float = _measured(
        "s/dispatch", "plus, for each dispatch with post-backs, in each run"
    )
    reconcile: float = _measured("s/person", "the verdicts of a launch")
    segment_bytes: float = _measured("B/person", "identifiers of a segment in the ledger")


@dataclass(frozen=True)
class World:
    """The launch and the behaviour of everything outside, each with its source."""

    devices: int = _chosen(1_000_000_000, "people", "recipients", "the question")
    segment_size: int = _chosen(10_000, "people", "recipients of one request", "a campaign's default")
    latency: float = _chosen(0.2, "s", "of an answer of the service", "assumed")
    requests_per_second: float = _chosen(
        0, "1/s", "that the service takes; 0: unlimited", "document: not shown"
    )
    messages_per_second: float = _chosen(
        0, "1/s", "that the service sends; 0: unlimited", "document: not shown"
    )
    delivery_share: float = _chosen(0.9, "", "deliveries per person", "assumed")
    open_share: float = _chosen(0.3, "", "opens or clicks per person", "assumed")
    delivery_half_life: float = _chosen(60, "s", "until half of the deliveries are reported", "assumed")
    open_half_life: float = _chosen(3_600, "s", "until half of the opens are reported", "assumed")
    tail: float = _chosen(
        0.001, "", "share of the post-backs that come last, all at once", "a simplification"
    )
    aggregate_every: float = _chosen(
        600, "s", "between aggregations while requests are sent", "the DAG sendoff_reconcile"
    )
    aggregate_every_quiet: float = _chosen(
        30, "s", "between aggregations after that", "the task wait_for_post_backs"
    )
    aggregate_run: int = _chosen(
        8_000_000, "", "post-backs of a receiver in one transaction", "aggregation.py"
    )
    quiet_for: float = _chosen(900, "s", "without a post-back before the verdicts", "a campaign's default")
    tick: float = _chosen(5, "s", "between checks of what the service has to send", "a simplification")
    most_steps: int = _chosen(20_000, "", "requests that are simulated separately", "a simplification")
    most_lots: int = _chosen(
        40_000, "", "lots of post-backs that are simulated separately", "a simplification"
    )

    def __post_init__(self) -> None:
        if not self.tail and (self.delivery_half_life or self.open_half_life):
            raise ValueError(
                "tail must be above 0: half of the rest comes in each half-life, so the last post-back never would"
            )

    @property
    def dispatches(self) -> int:
        """The number of requests of the launch."""
        return -(-self.devices // self.segment_size)

    @property
    def post_backs(self) -> float:
        """The number of post-backs."""
        return self.devices * (self.delivery_share + self.open_share)


@dataclass(frozen=True)
class Deployment:
    """The amount of each resource."""

    name: str = "one server"
    readers: int = _chosen(2, "", "parts of the query that are read at once")
    workers: int = _chosen(4, "", "tasks that send: the campaign's parallelism")
    requests_at_once: int = _chosen(4, "", "of each worker")
    receivers: int = _chosen(2, "", "receiver processes")
    processors: int = _chosen(8, "", "for all processes except the ledger's database")
    ledger_processors: int = _chosen(4, "", "of the ledger's database, for storing post-backs")


@dataclass(frozen=True)
class Used:
    """The usage of one resource. ``work``: seconds of all its servers together, without waiting.

    ``spared``: the part of the work that was done only because there was time for it.
    """

    name: str
    capacity: float
    begin: float = 0.0
    end: float = 0.0
    work: float = 0.0
    spared: float = 0.0
    items: int = 0
    mean_wait: float = 0.0
    mean_inside: float = 0.0
    mean_stay: float = 0.0

    @property
    def least(self) -> float:
        """The least seconds that a launch takes, however much there is of all other resources."""
        return (self.work - self.spared) / self.capacity

    @property
    def utilisation(self) -> float:
        """The share of time that it worked, between its first use and its last."""
        span = (self.end - self.begin) * self.capacity
        return self.work / span if span else 0.0


@dataclass
class Marks:
    """When the whole launch passed a stage, in seconds since its beginning."""

    read: float = 0.0
    frozen: float = 0.0
    requested: float = 0.0
    sent: float = 0.0  # sent by the service
    arrived: float = 0.0  # arrival of the last post-back at the receivers
    stored: float = 0.0
    aggregated: float = 0.0


@dataclass
class Peaks:
    """The highest values at any time."""

    waiting: float = 0.0  # post-backs that the service holds until they are stored
    wait: float = 0.0  # seconds until a post-back is stored
    pending: float = 0.0  # post-backs
    aggregate_runs: int = 0


@dataclass(frozen=True)
class Result:
    """A simulated launch."""

    deployment: Deployment
    elapsed: float
    stored: float
    aggregated: float
    marks: Marks
    peaks: Peaks
    used: tuple[Used, ...]

    @property
    def limits(self) -> list[Used]:
        """Return the resources; more of the first would help most."""
        return sorted(self.used, key=lambda each: -each.least)

    def of(self, name: str) -> Used:
        """Return one resource."""
        return next(each for each in self.used if each.name == name)


class Resource:
    """Several servers of one kind with their queue, optionally on processors that others share."""

    def __init__(
        self, env: simpy.Environment, name: str, capacity: float, on: Resource | None = None
    ) -> None:
        self._env, self._on, self.name, self.capacity = env, on, name, capacity
        self._servers = simpy.Resource(env, max(1, round(capacity)))
        self._begin, self._end, self._changed_at = math.inf, 0.0, 0.0
        self.work = self._waited = self._stayed = self._area = 0.0
        self._items = self._inside = 0
        self.spared = 0.0

    def use(self, seconds: float) -> Steps:
        """Wait for a server and use it for some seconds."""
        came = self.arrive()
        with self._servers.request() as turn:
            yield turn
            self._waited += self._env.now - came
            if self._on:
                yield from self._on.use(seconds)
            else:
                yield self._env.timeout(seconds)
        self.leave(came, seconds)

    def arrive(self) -> float:
        """Count an arrival, and return the time."""
        now = self._env.now
        self._begin = min(self._begin, now)
        self._count(1)
        return now

    def leave(self, came: float, work: float) -> None:
        """Count a departure. ``came``: the time of arrival; ``work``: the seconds of a server's work."""
        self._count(-1)
        self.work += work
        self._items += 1
        self._end = self._env.now
        self._stayed += self._end - came

    def _count(self, change: int) -> None:
        self._area += self._inside * (self._env.now - self._changed_at)
        self._inside, self._changed_at = self._inside + change, self._env.now

    def used(self) -> Used:
        """Return its usage until now."""
        if not self._items:
            return Used(self.name, self.capacity)
        span = self._end - self._begin
        return Used(
            name=self.name,
            capacity=self.capacity,
            begin=self._begin,
            end=self._end,
            work=self.work,
            spared=self.spared,
            items=self._items,
            mean_wait=self._waited / self._items,
            mean_inside=self._area / span if span else 0.0,
            mean_stay=self._stayed / self._items,
        )


@dataclass
class Coming:
    """Post-backs of one kind that come gradually: half of the rest within each half-life."""

    share: float
    half_life: float
    ahead: float = 0.0

    def come(self, sent: float, seconds: float) -> float:
        """Add recipients and let some seconds pass. Return how many post-backs came."""
        self.ahead += sent * self.share
        came = self.ahead * (1 - 2 ** (-seconds / self.half_life)) if self.half_life else self.ahead
        self.ahead -= came
        return came


class Launch:
    """One launch on its way through the stages; run it once."""

    def __init__(self, costs: Costs, world: World, deployment: Deployment) -> None:
        self._costs, self._world, self._deployment = costs, world, deployment
        self._env = env = simpy.Environment()
        self._processors = Resource(env, "processors", deployment.processors)
        self._reading = Resource(env, "reading", deployment.readers, self._processors)
        self._rules = Resource(env, "rules", 1, self._processors)
        self._freezing = Resource(env, "freezing", 1, self._processors)
        # As many as reach the maximum per second, if each takes as long as it does alone.
        self._ledger = Resource(
            env, "ledger transactions", max(1, round(costs.transactions_per_second * costs.transaction))
        )
        self._writing = Resource(env, "writing", deployment.workers, self._processors)
        self._requests = Resource(env, "requests at once", deployment.workers * deployment.requests_at_once)
        self._taking = Resource(env, "service takes", 1)
        self._sending = Resource(env, "service sends", 1)
        self._receiving = Resource(env, "receivers", deployment.receivers, self._processors)
        self._storing = Resource(env, "storing", deployment.ledger_processors)
        self._aggregating = Resource(env, "aggregating", 1, self._processors)
        self._reconciling = Resource(env, "reconciling", 1, self._processors)
        # Dispatches that are simulated as one.
        self._together = math.ceil(world.dispatches / world.most_steps)
        self._lot = max(1.0, world.post_backs / world.most_lots)
        self._lots: list[simpy.Process] = []
        self._left = world.devices  # recipients whose request has not begun
        self._to_send = 0.0  # recipients whose messages the service accepted and has not sent
        self._answered = 0  # dispatches
        self._waiting = self._stored = self._aggregated = 0.0  # post-backs
        self._peaks = Peaks()
        self._marks = Marks()
        self._all_are_requested = self._all_are_stored = False

    def run(self) -> Result:
        """Run the simulation."""
        self._env.process(self._whole())
        self._env.run()
        resources = [each for each in vars(self).values() if isinstance(each, Resource)]
        return Result(
            deployment=self._deployment,
            elapsed=self._env.now,
            stored=self._stored,
            aggregated=self._aggregated,
            marks=self._marks,
            peaks=self._peaks,
            used=tuple(used for used in (each.used() for each in resources) if used.items),
        )

    def _whole(self) -> Steps:
        costs, world, env = self._costs, self._world, self._env
        each = costs.read * world.devices / self._deployment.readers
        yield env.all_of([env.process(self._reading.use(each)) for _ in range(self._deployment.readers)])
        self._marks.read = env.now
        yield from self._rules.use(costs.rules * world.devices)
        stored_bytes = costs.segment_bytes * world.devices
        yield from self._freezing.use(costs.freeze * world.dispatches + costs.freeze_byte * stored_bytes)
        self._marks.frozen = env.now
        service, aggregating = env.process(self._serve()), env.process(self._aggregate())
        slots = self._deployment.workers * self._deployment.requests_at_once
        yield env.all_of([env.process(self._request()) for _ in range(slots)])
        self._all_are_requested, self._marks.requested = True, env.now
        yield service
        yield env.all_of(self._lots)
        self._all_are_stored, self._marks.stored = True, env.now
        yield aggregating
        self._marks.aggregated = env.now
        for resource in (self._aggregating, self._processors):
            resource.spared = self._aggregating.work - self._least_aggregating()
        yield env.timeout(world.quiet_for)
        yield from self._reconciling.use(costs.reconcile * world.devices)

    def _request(self) -> Steps:
        """Send one request after the other, as one of the threads of a worker."""
        costs, world = self._costs, self._world
        claim = self._ledger.capacity / costs.transactions_per_second
        while self._left:
            people = min(self._left, self._together * world.segment_size)
            self._left -= people
            dispatches = -(-people // world.segment_size)
            came = self._requests.arrive()
            yield from self._ledger.use(claim * dispatches)
            yield from self._writing.use(costs.write * people)
            if world.requests_per_second:
                yield from self._taking.use(dispatches / world.requests_per_second)
            yield self._env.timeout(world.latency * dispatches)
            self._requests.leave(came, (claim + world.latency) * dispatches + costs.write * people)
            self._answered += dispatches
            self._to_send += people

    def _serve(self) -> Steps:
        """Send the accepted messages, and post back in lots as recipients receive and open them."""
        world = self._world
        deliveries = Coming(world.delivery_share, world.delivery_half_life)
        opens = Coming(world.open_share, world.open_half_life)
        ready = 0.0
        while True:
            asked = self._all_are_requested
            sent = yield from self._send_some()
            ready += sum(kind.come(sent, world.tick) for kind in (deliveries, opens))
            to_come = deliveries.ahead + opens.ahead
            is_over = asked and not self._to_send and to_come <= world.tail * world.post_backs
            if is_over:
                ready += to_come
            while ready >= self._lot or (is_over and ready > 0):
                size = min(ready, self._lot)
                ready -= size
                self._lots.append(self._env.process(self._receive(size, is_over)))
            if is_over:
                self._marks.arrived = self._env.now
                return

    def _send_some(self) -> Generator[simpy.Event, Any, float]:
        """Send as much as the service can in a tick, and return the number of recipients."""
        tick, rate = self._world.tick, self._world.messages_per_second
        sent = min(self._to_send, rate * tick) if rate else self._to_send
        busy = sent / rate if rate else 0.0
        if busy:
            yield from self._sending.use(busy)
        if busy < tick:
            yield self._env.timeout(tick - busy)
        self._to_send -= sent
        if sent:
            self._marks.sent = self._env.now
        return sent

    def _receive(self, size: float, is_short_cut: bool) -> Steps:
        """Receive a lot of post-backs and store it; until then the service holds it.

        The last post-backs come together only in the simulation, so they do not count for the peaks.
        """
        came = self._env.now
        self._waiting += size
        if not is_short_cut:
            self._peaks.waiting = max(self._peaks.waiting, self._waiting)
        yield from self._receiving.use(size / self._costs.receivers_per_second)
        yield from self._storing.use(size * self._costs.store)
        self._waiting -= size
        self._stored += size
        if not is_short_cut:
            self._peaks.wait = max(self._peaks.wait, self._env.now - came)
        self._peaks.pending = max(self._peaks.pending, self._stored - self._aggregated)

    def _aggregate(self) -> Steps:
        """Aggregate the new post-backs repeatedly; each run is of one receiver."""
        world, costs = self._world, self._costs
        while True:
            yield self._env.timeout(
                world.aggregate_every_quiet if self._all_are_requested else world.aggregate_every
            )
            is_last = self._all_are_stored
            of_each = (self._stored - self._aggregated) / self._deployment.receivers
            while of_each > _NOTHING:
                size = min(of_each, world.aggregate_run)
                touched = touched_of(self._answered, size)
                for _ in range(self._deployment.receivers):
                    self._peaks.aggregate_runs += 1
                    yield from self._aggregating.use(
                        costs.aggregate * size + costs.aggregate_dispatch * touched
                    )
                    self._aggregated += size
                of_each -= size
            if is_last:
                return

    def _least_aggregating(self) -> float:
        """Return the seconds of aggregating everything in the fewest possible runs."""
        of_each = self._stored / self._deployment.receivers
        runs = math.ceil(of_each / self._world.aggregate_run - _NOTHING)
        if not runs:
            return 0.0
        touched = touched_of(self._answered, of_each / runs)
        each = runs * self._costs.aggregate_dispatch * touched
        return self._costs.aggregate * self._stored + each * self._deployment.receivers


def touched_of(dispatches: int, post_backs: float) -> float:
    """Return the mean number of dispatches in some post-backs, if each may come from any dispatch."""
    return dispatches * -math.expm1(-post_backs / dispatches) if dispatches else 0.0


def simulate(costs: Costs, world: World, deployment: Deployment) -> Result:
    """Simulate a launch."""
    return Launch(costs, world, deployment).run()


@dataclass(frozen=True)
class Step:
    """The first limit of a launch, how it was widened, and the launch with that change."""

    limit: str
    factor: int
    how: str
    costs: Costs
    world: World
    deployment: Deployment
    result: Result


def widened(costs: Costs, world: World, deployment: Deployment, result: Result) -> Step:
    """Double the first limit until another one comes first, and simulate the launch each time."""
    limit, factor, how = result.limits[0].name, 1, ""
    while result.limits[0].name == limit and factor < _MOST_WIDENED:
        costs, world, deployment, how = _doubled(limit, costs, world, deployment)
        factor *= 2
        result = simulate(costs, world, deployment)
    return Step(limit, factor, how, costs, world, deployment, result)


def _doubled(
    limit: str, costs: Costs, world: World, deployment: Deployment
) -> tuple[Costs, World, Deployment, str]:
    if limit in _MORE:
        name, how = _MORE[limit]
        return costs, world, replace(deployment, **{name: 2 * getattr(deployment, name)}), how
    if limit in _LARGER:
        name, how = _LARGER[limit]
        return costs, replace(world, **{name: 2 * getattr(world, name)}), deployment, how
    if limit == "ledger transactions":
        faster = 2 * costs.transactions_per_second
        return (
            replace(costs, transactions_per_second=faster),
            world,
            deployment,
            "a faster machine for the ledger",
        )
    halves = {name: getattr(costs, name) / 2 for name in _OF_ONE_PROCESS[limit]}
    return (
        replace(costs, **halves),
        world,
        deployment,
        "only one process does it: needs other code, or a faster processor",
    )


_MORE = {
    "reading": ("readers", "more parts"),
    "writing": ("workers", "more workers"),
    "requests at once": ("workers", "more workers"),
    "receivers": ("receivers", "more receivers"),
    "storing": ("ledger_processors", "more processors for the ledger"),
    "processors": ("processors", "more processors"),
}
_LARGER = {
    "service takes": ("requests_per_second", "the service's own"),
    "service sends": ("messages_per_second", "the service's own"),
}
_OF_ONE_PROCESS = {
    "rules": ("rules",),
    "freezing": ("freeze", "freeze_byte"),
    "aggregating": ("aggregate", "aggregate_dispatch"),
    "reconciling": ("reconcile",),
}
_MOST_WIDENED = 1 << 10
_NOTHING = 1e-6
