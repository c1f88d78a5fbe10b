"""What plays the histories: each function makes a launch go through what its name says, once or several times.

Whatever it does, it ends with ``stage.run`` or ``stage.carry_on``; counting is not its business.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tools.chaos.stage import ONE_BY_ONE, Stage


def undisturbed(stage: Stage) -> None:
    """Two workers, and nothing goes wrong."""
    job = stage.job()
    stage.run(job, job)


def with_faults(*faults: Mapping[str, Any], waits: bool = False, **changes: Any) -> Callable[[Stage], None]:
    """Two workers, and a service in which some things go wrong; ``waits``: also with what it posts back.

    ``changes`` are of the workers' job.
    """

    def play(stage: Stage) -> None:
        for fault in faults:
            stage.service.fault(**fault)
        job = stage.job(**changes)
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
        job = stage.job(broken=broken, requests_at_once=ONE_BY_ONE)
        for pair in _parts(deaths, 2):
            stage.join(stage.start(*(replace(job, dies_in="send", dies_at=point) for point in pair)))
            stage.end_leases(job)
        stage.carry_on(job)


def killed_with_requests_at_once(stage: Stage, short: int = 4, long: int = 80) -> None:
    """Two workers at once die at a line that any of their threads comes to, each with several requests in hand."""
    last = 2 * stage.lines("send")  # that is about four dispatches: one of each thread
    for points in _parts([stage.chance.randint(1, last) for _ in range(stage.size.times(short, long))], 2):
        job = stage.job()
        stage.join(stage.start(*(replace(job, dies_in="send", dies_at=point) for point in points)))
        stage.end_leases(job)
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
        stage.end_leases(job)
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


def clocks_apart_and_doubts_resent(stage: Stage, broken: str | None = None) -> None:
    """A worker whose clock is ahead by more than a lease begins while another sends, and doubts are sent again.

    Nobody dies and no answer is lost, so that nothing is in doubt, and each request is made once. The service is slow,
    so that requests are in flight when the second worker looks for dead ones.
    """
    stage.service.fault("slow", at=["create"], probability=1, seconds=2)
    job = stage.job(broken=broken, on_doubt="resend")
    first = stage.start(job)
    stage.wait_until_begun(job)
    ahead = timedelta(minutes=stage.chance.choice((6, 60, 26 * 60)))
    stage.join([*first, *stage.start(replace(job, ahead=ahead))])
    stage.carry_on(job)
    stage.played.faults += stage.service.clear_faults()


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
    stage.service.fault("lost", at=["create"], count=4)
    job = stage.job(broken=broken)
    stage.run(job, job)
    stage.played.faults += stage.service.clear_faults()
