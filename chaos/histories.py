"""The histories: what goes wrong in each, one row of the table for each.

To add one, write a function that plays it once on a :class:`~chaos.stage.Stage` and put a :class:`History` into
:data:`HISTORIES`. Whatever it does, it ends with ``stage.run`` or ``stage.carry_on``; counting is not its business.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from chaos.stage import Size, Stage
from sendoff.dispatch import LEASE

Place = Literal["sqlite", "sqlite apart", "postgresql"]
"""Which ledger: a protocol that is wrong on purpose has one apart, where it cannot harm other rows."""

Expected = Literal["none", "some", "any"]
_OVER_A_LEASE = LEASE + timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class History:
    """One row: what goes wrong, how it is played, and how often.

    ``expected``: whether duplicates and losses must be none, must be some (the protocol is broken on purpose), or are
    only shown (the service says that it did not do what it did). ``strikes``: whether something must have been
    killed or a fault must have struck, or else the row shows nothing.
    """

    name: str
    what: str
    play: Callable[[Stage], None]
    on: Place = "sqlite"
    short: int = 1
    long: int = 4
    expected: Expected = "none"
    strikes: bool = True

    def times(self, size: Size) -> int:
        """Give how often it is played; a history may play several launches each time."""
        return size.times(self.short, self.long)


def undisturbed(stage: Stage) -> None:
    """Two workers, and nothing goes wrong."""
    job = stage.job()
    stage.run(job, job)


def with_faults(*faults: Mapping[str, Any], waits: bool = False) -> Callable[[Stage], None]:
    """Two workers, and a service in which some things go wrong; ``waits``: also with what it posts back."""

    def play(stage: Stage) -> None:
        for fault in faults:
            stage.service.fault(**fault)
        job = stage.job()
        workers = stage.start(job, job)
        stage.join(workers)
        stage.carry_on(job)
        if waits:
            stage.wait_until_quiet()
        stage.played.faults += stage.service.clear_faults()

    return play


def killed_between_lines(
    stage: Stage, short: int = 6, long: int | None = None, broken: str | None = None
) -> None:
    """Workers die at each line of the protocol, or at some: two at once, four pairs in a launch, then two who live."""
    points = stage.points("send", stage.size.times(short, long or stage.lines("send")))
    stage.chance.shuffle(points)
    for deaths in _parts(points, 8):
        job = stage.job(broken=broken)
        for pair in _parts(deaths, 2):
            stage.join(stage.start(*(replace(job, dies_in="send", dies_at=point) for point in pair)))
            job = replace(job, ahead=job.ahead + _OVER_A_LEASE)
        stage.carry_on(job)


def killed_while_freezing(stage: Stage, short: int = 3, long: int = 40) -> None:
    """The first worker of a launch dies while it freezes it, at lines spread over that."""
    for point in stage.points("freeze", stage.size.times(short, long)):
        job = stage.job()
        stage.run(replace(job, dies_in="freeze", dies_at=point))


def _parts(points: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (points[start : start + size] for start in range(0, len(points), size))


def killed_at_any_moment(stage: Stage) -> None:
    """Both workers are killed somewhere, again and again."""
    job = stage.job()
    for _ in range(4):
        workers = stage.start(job, job)
        for worker in workers:
            stage.pause(0.15)
            worker.kill()
        stage.join(workers)
        job = replace(job, ahead=job.ahead + _OVER_A_LEASE)
    stage.carry_on(job)


def service_killed(stage: Stage) -> None:
    """The service is killed while it is sent to, and comes back."""
    job = stage.job()
    workers = stage.start(job, job)
    stage.pause(0.3)
    stage.kill(stage.service.server)
    stage.service.server.start()
    stage.join(workers)
    stage.carry_on(job)


def receiver_killed(stage: Stage) -> None:
    """The receiver is killed while post-backs come, three times, and comes back."""
    job = stage.job()
    workers = stage.start(job, job)
    stage.wait_until_begun(job)
    for _ in range(3):
        stage.pause(0.3)
        stage.kill(stage.side.receiver)
        stage.side.receiver.start()
    stage.join(workers)
    stage.carry_on(job)
    stage.wait_until_quiet()


def fold_killed(stage: Stage, short: int = 6, long: int | None = None, broken: str | None = None) -> None:
    """What folds is killed at a line, then at the next, and always has something to fold."""
    points = stage.points("fold", stage.size.times(short, long or stage.lines("fold")))
    job = stage.job(broken=broken)
    stage.fold_what_came_before(job)
    stage.run(job, job)
    stage.wait_until_quiet()
    for point in points:
        if not stage.unfolded():
            job = stage.job(broken=broken)
            stage.run(job, job)
            stage.wait_until_quiet()
        stage.fold(replace(job, dies_in="fold", dies_at=point), run=1)
    stage.fold(job)


def clocks_apart(stage: Stage) -> None:
    """Three workers at once, whose clocks are hours apart."""
    job = stage.job()
    hours = stage.chance.choice((1, 3, 26))
    jobs = [replace(job, ahead=timedelta(hours=each)) for each in (0, hours, -hours)]
    workers = stage.start(*jobs)
    stage.join(workers)
    stage.carry_on(jobs[1])


def database_stopped(stage: Stage, how: signal.Signals) -> None:
    """The ledger's PostgreSQL is stopped while workers send and post-backs come, and comes back."""
    assert stage.side.cluster is not None
    job = stage.job()
    workers = stage.start(job, job)
    stage.wait_until_begun(job)
    stage.pause(0.1)
    stage.kill(stage.side.cluster.server, how)
    stage.pause(0.5)
    stage.side.cluster.server.start()
    stage.join(workers)
    stage.carry_on(job)
    stage.wait_until_quiet()


def everything(stage: Stage) -> None:
    """Several faults at once, and both workers and the receiver are killed."""
    for kind, how in (
        ("lost", {}),
        ("500", {"after": True}),
        ("reset", {"after": True}),
        ("429", {"retry_after": 1}),
        ("token-expired", {}),
        ("duplicate", {}),
        ("reorder", {"seconds": 0.5}),
    ):
        stage.service.fault(kind, probability=0.1, **how)
    killed_at_any_moment(stage)
    stage.kill(stage.side.receiver)
    stage.side.receiver.start()
    stage.wait_until_quiet()
    stage.played.faults += stage.service.clear_faults()


def lost_answers(stage: Stage, broken: str) -> None:
    """Answers are lost, and a protocol that is wrong sends again."""
    stage.service.fault(**_request("lost"))
    job = stage.job(broken=broken)
    stage.run(job, job)
    stage.played.faults += stage.service.clear_faults()


def _request(kind: str, times: int = 4, **how: Any) -> dict[str, Any]:
    return {"kind": kind, "at": ["create"], "count": times, **how}


def _post_back(kind: str, **how: Any) -> dict[str, Any]:
    return {"kind": kind, "probability": 0.3, **how}


def _fault(name: str, what: str, *faults: Mapping[str, Any], waits: bool = False, short: int = 1) -> History:
    return History(name, what, with_faults(*faults, waits=waits), short=short)


def _lie(kind: str) -> History:
    return History(
        f"{kind} after processing",
        f"the service processes a request and answers {kind}, which says that it did not",
        with_faults(_request(kind, after=True)),
        short=0,
        long=2,
        expected="any",
    )


HISTORIES: tuple[History, ...] = (
    History("nothing", "two workers share the launch", undisturbed, strikes=False),
    # Processes that die.
    History(
        "worker killed between two lines",
        "two workers at a time are killed at a line of the dispatch, the ledger or the client; each line once",
        killed_between_lines,
        long=1,
    ),
    History(
        "worker killed while it freezes",
        "the first worker is killed at a line of making the launch; to those after it the query gives other people",
        killed_while_freezing,
        long=1,
    ),
    History(
        "worker killed at any moment",
        "both workers are killed at a moment that chance chooses, four times",
        killed_at_any_moment,
        long=12,
    ),
    History(
        "fold killed between two lines",
        "what folds is killed at a line of folding; each line once",
        fold_killed,
        long=1,
    ),
    History("receiver killed", "the receiver is killed under load and started again", receiver_killed),
    History("service killed", "the service is killed under load and started again", service_killed),
    History(
        "clocks apart",
        "three workers at once, with clocks up to 26 hours apart",
        clocks_apart,
        long=6,
        strikes=False,
    ),
    # Requests that go wrong.
    _fault("reset before", "the connection is reset, nothing is processed", _request("reset")),
    _fault(
        "reset after", "the request is processed, then the connection is reset", _request("reset", after=True)
    ),
    _fault(
        "answer lost",
        "the request is processed, and the connection closes without an answer",
        _request("lost"),
    ),
    _fault(
        "time-out",
        "the request is processed, and the answer comes after the worker has given up",
        _request("slow", times=2, seconds=1),
    ),
    _fault("500 before", "500, nothing is processed", _request("500")),
    _fault("500 after", "the request is processed, then 500", _request("500", after=True)),
    _fault("502 before", "a gateway's page, nothing is processed", _request("502")),
    _fault("502 after", "the request is processed, then a gateway's page", _request("502", after=True)),
    _fault("web page before", "200 with a web page, nothing is processed", _request("html")),
    _fault(
        "web page after", "the request is processed, then 200 with a web page", _request("html", after=True)
    ),
    _fault("403", "refused, nothing is processed", _request("403")),
    _fault("401", "the token is refused, nothing is processed", _request("401")),
    _fault("token expired", "a token ends early", _request("token-expired")),
    _fault(
        "429 with Retry-After", "the service asks for a second of patience", _request("429", retry_after=1)
    ),
    _fault("429", "the service asks for patience, and does not say how long", _request("429")),
    _fault(
        "no token",
        "the token endpoint answers 500, 429 or 401, or resets the connection",
        *({"kind": kind, "at": ["token"], "count": 2} for kind in ("500", "429", "401", "reset")),
    ),
    # Post-backs that go wrong.
    _fault("post-backs twice", "each comes twice", {"kind": "duplicate", "probability": 1}, waits=True),
    _fault("post-backs late", "some come a second late", _post_back("delay", seconds=1), waits=True),
    _fault(
        "post-backs in disorder", "each comes in its own time", _post_back("reorder", seconds=1), waits=True
    ),
    _fault("post-backs in bursts", "many come at once", _post_back("burst", seconds=1), waits=True),
    _fault("post-backs damaged", "some cannot be read", _post_back("malformed"), waits=True),
    _fault(
        "post-backs lost",
        "some never come, and answers are lost too",
        _post_back("lose"),
        _request("lost"),
        waits=True,
    ),
    History("everything at once", "seven faults, workers killed, receiver killed", everything, long=6),
    # The ledger on PostgreSQL.
    History(
        "worker killed between two lines, PostgreSQL",
        "as above, on PostgreSQL, at lines spread over the protocol",
        partial(killed_between_lines, long=40),
        on="postgresql",
        short=0,
        long=1,
    ),
    History(
        "fold killed between two lines, PostgreSQL",
        "as above, on PostgreSQL, at lines spread over folding",
        partial(fold_killed, long=30),
        on="postgresql",
        short=0,
        long=1,
    ),
    History(
        "PostgreSQL restarted",
        "the ledger's database ends its connections, stops and starts again, under load",
        partial(database_stopped, how=signal.SIGINT),
        on="postgresql",
        short=0,
        long=3,
    ),
    History(
        "PostgreSQL crashed",
        "the ledger's database is stopped without a checkpoint and recovers, under load",
        partial(database_stopped, how=signal.SIGQUIT),
        on="postgresql",
        short=0,
        long=5,
    ),
    # Wrong on purpose: here the same counting must find something.
    History(
        "intent written after the request",
        "each worker marks a dispatch after it has sent it; some are killed in between",
        partial(killed_between_lines, short=2, long=8, broken="intent after request"),
        long=1,
        on="sqlite apart",
        expected="some",
    ),
    History(
        "doubt sent again",
        "a request without an answer counts as not made",
        partial(lost_answers, broken="doubt sent again"),
        long=2,
        on="sqlite apart",
        expected="some",
    ),
    History(
        "dead worker's dispatch sent again",
        "a dispatch whose worker was killed is planned again when its lease is over",
        partial(killed_between_lines, short=8, long=24, broken="dead sent again"),
        long=1,
        on="sqlite apart",
        expected="some",
    ),
    History(
        "mark moved before the post-backs are stored",
        "the fold's mark is moved on fetching; what folds is killed",
        partial(fold_killed, short=12, long=40, broken="mark before events"),
        long=1,
        on="sqlite apart",
        expected="some",
    ),
    # Outside of the promise: shown, and not asked to be none.
    _lie("401"),
    _lie("403"),
    _lie("429"),
)
