"""The steps of the scenarios: each function plays one or more launches with the faults that its name describes.

Each ends with ``env.run`` or ``env.carry_on``. Counting is done elsewhere.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tools.chaos.environment import DEVICES, ONE_BY_ONE, Environment
from tools.chaos.mutants import another_key
from tools.chaos.workers import DAY, DECIDED_AFTER

_MOST_TURNS = 6  # until some of the rest is accepted


def undisturbed(env: Environment) -> None:
    """Run two workers without any fault."""
    job = env.job()
    env.run(job, job)


def with_faults(
    *faults: Mapping[str, Any], waits: bool = False, **changes: Any
) -> Callable[[Environment], None]:
    """Return a function that runs two workers with a faulty service. ``waits``: also let it finish its post-backs.

    ``changes``: changes of the workers' job.
    """

    def play(env: Environment) -> None:
        for fault in faults:
            env.service.fault(**fault)
        job = env.job(**changes)
        workers = env.start(job, job)
        env.join(workers)
        env.carry_on(job)
        if waits:
            env.service.wait_until_quiet()
        env.result.faults += env.service.clear_faults()

    return play


def killed_between_lines(
    env: Environment, short: int = 6, long: int | None = None, mutant: str | None = None
) -> None:
    """Kill workers at each line of the protocol or at some lines: four pairs per launch, then two workers that live."""
    points = env.points("send", env.size.times(short, long or env.lines("send")))
    env.chance.shuffle(points)
    for deaths in _parts(points, 8):
        job = env.job(mutant=mutant, requests_at_once=ONE_BY_ONE)
        for pair in _parts(deaths, 2):
            env.kill_at(job, "send", pair)
        env.carry_on(job)


def killed_with_requests_at_once(env: Environment, short: int = 4, long: int = 80) -> None:
    """Kill two workers at a line that any of their threads reaches, each with several requests in progress."""
    last = 2 * env.lines("send")  # about four dispatches, one per thread
    for points in _parts([env.chance.randint(1, last) for _ in range(env.size.times(short, long))], 2):
        job = env.job()
        env.kill_at(job, "send", points)
        env.carry_on(job)


def own_requests(env: Environment, mutant: str | None = None) -> None:
    """Send requests of your own: two workers each are killed at a line, or the service loses the first answer.

    With a mutant, no worker is killed, because no other worker finishes its launch.
    """
    for number in range(2 if mutant else env.size.times(4, 40)):
        job = env.job(is_own_request=True, mutant=mutant, requests_at_once=ONE_BY_ONE)
        if mutant or number % 2:
            env.service.fault(kind="lost", at=["create"], count=1)
        else:
            points = [env.chance.randint(1, env.lines("send")) for _ in range(2)]
            env.kill_at(job, "send", points)
        env.run(job, job)
        env.run(job)  # as a task that was cleared
        env.result.faults += env.service.clear_faults()


def killed_at_a_rate(env: Environment, short: int = 2, long: int = 20, mutant: str | None = None) -> None:
    """Kill two workers at a time that share a rate limit, so that each record also reserves the next moment."""
    last = 2 * env.lines("send")  # about four dispatches
    for points in _parts([env.chance.randint(1, last) for _ in range(env.size.times(short, long))], 2):
        job = env.job(mutant=mutant, rate=50.0, requests_at_once=ONE_BY_ONE)
        env.kill_at(job, "send", points)
        env.carry_on(job)


def killed_under_a_daily_limit(
    env: Environment, short: int = 1, long: int = 6, mutant: str | None = None
) -> None:
    """Send a third of the recipients on each day: two workers at a time are killed, then two more use up the day.

    The long form kills twice on each day.
    """
    for _ in range(env.size.times(short, long)):
        limit = env.size.people // 3
        job = env.job(mutant=mutant, requests_at_once=ONE_BY_ONE, daily_limit=limit)
        for day in range(4):
            today = replace(job, ahead=timedelta(days=day))
            for _ in range(env.size.times(1, 2)):
                points = [env.chance.randint(1, env.lines("send")) for _ in range(2)]
                env.kill_at(today, "send", points)
            env.take_turn(today, today)
        env.carry_on(replace(job, ahead=timedelta(days=4)))


def killed_while_deciding(
    env: Environment, short: int = 2, long: int = 40, mutant: str | None = None
) -> None:
    """Kill two workers at a time while they decide the winner or send it, and let the other variant catch up.

    One variant is clearly ahead when the first workers judge, and no longer when the last ones would. In between, some
    of the rest is accepted, or a version that judges again would send one variant only.
    """
    points = env.points("decide", env.size.times(short, long))
    env.chance.shuffle(points)
    for pair in _parts(points, 2):
        job = env.job(mutant=mutant, decides=True, people=360, segment_size=18, requests_at_once=ONE_BY_ONE)
        env.send_test_share(job)
        env.open_variant(job, "cold")
        later = replace(job, ahead=2 * DECIDED_AFTER)
        env.kill_at(later, "decide", pair)
        # Of about six requests, half.
        sending = env.chance.randint(env.lines("send"), 3 * env.lines("send") // 2)
        for turn in range(1, _MOST_TURNS + 1):
            env.kill_at(later, "send", [turn * sending])
            if env.has_sent_rest(job):
                break
        env.open_variant(job, "warm")
        env.carry_on(later)


def opt_outs_in_waves(env: Environment, share: float | None = None, mutant: str | None = None) -> None:
    """Send in three waves over a day while recipients opt out at the receiver; kill workers and the receiver meanwhile.

    Each turn is some hours after the one before. In each, every recipient may opt out, and over a day, about ``share``
    of them do: 1 %, or 10 % in the short form. Another source suppresses the same recipients first, and a worker later
    replaces its entries by none.
    """
    share = share or (0.1 if env.size.is_short else 0.01)
    turns_a_day = env.size.times(3, 6)
    env.service.fault("slow", at=["create"], probability=1, seconds=0.1)
    job = env.job(mutant=mutant, in_waves=True, requests_at_once=ONE_BY_ONE)
    staying: list[int] = []
    for number in range(2 * turns_a_day):
        turn = replace(job, ahead=number * DAY / turns_a_day)
        workers = env.start(turn, turn)
        if number == 0:
            env.wait_until_begun(job)
            staying = sorted(map(int, env.backend.ledger.launches.audience(job.key)))
        leaving = [device for device in staying if env.chance.random() < share / turns_a_day]
        staying = [device for device in staying if device not in leaving]
        env.chance.shuffle(leaving)
        env.complain(turn, leaving)
        for device in leaving:
            env.pause(0.1)
            env.opt_out(turn, device)
        if number == 1:
            env.kill(env.backend.receiver)
            env.backend.receiver.start()
        env.pause(0.3)
        workers[0].kill()
        env.join(workers)
        env.let_time_pass(job)
        if env.is_made(job):
            break
    env.carry_on(replace(job, ahead=7 * DAY))
    env.result.faults += env.service.clear_faults()


def opens_in_waves(env: Environment, mutant: str | None = None) -> None:
    """Send a launch, then remind who did not open, in three waves, while some of them open the first message.

    Workers and the receiver are killed in between. Each new worker aggregates the opens before it claims a request.
    """
    source = env.job()
    turns_a_day = env.size.times(3, 6)
    opens = 18 // turns_a_day  # in each turn
    env.run(source, source)
    env.service.wait_until_quiet()
    env.service.fault("slow", at=["create"], probability=1, seconds=0.1)
    job = env.following(source, is_reminder=True, mutant=mutant, in_waves=True, requests_at_once=ONE_BY_ONE)
    for number in range(2 * turns_a_day):
        turn = replace(job, ahead=number * DAY / turns_a_day)
        workers = env.start(turn, turn)
        if number == 0:
            env.wait_until_begun(job)
            everyone = sorted(map(int, env.backend.ledger.launches.audience(job.key)))
            env.chance.shuffle(everyone)
        for device in everyone[opens * number : opens * (number + 1)]:
            env.open(turn, source, device)
            env.pause(0.1)
        if number == 1:
            env.kill(env.backend.receiver)
            env.backend.receiver.start()
        workers[0].kill()
        env.join(workers)
        env.let_time_pass(job)
        if env.is_made(job):
            break
    env.carry_on(replace(job, ahead=7 * DAY))
    env.result.faults += env.service.clear_faults()


def resent_to_the_unsent(env: Environment, mutant: str | None = None) -> None:
    """Send a period again to those who got nothing while its first launch goes on, and once more when it has ended.

    The service refuses two requests of the first launch and loses an answer. Workers of each launch are killed. The
    query returns other people each time, so there is always someone left.
    """
    some = env.lines("send")  # about two dispatches
    env.service.fault("403", at=["create"], count=2)
    env.service.fault("lost", at=["create"], count=1)
    first = env.job(mutant=mutant, requests_at_once=ONE_BY_ONE)
    env.kill_at(first, "send", [some, some])
    for again in (env.resent(first, number) for number in (1, 2)):
        # It asks who got the launches before, so it has more lines than another launch.
        env.kill_at(again, "freeze", [env.chance.randint(1, 2 * env.lines("freeze"))])
        # After that, it is frozen. The first time, the other launch has planned requests then.
        env.kill_at(again, "send", [1])
        dying = [replace(job, dies_in="send", dies_at=env.chance.randint(1, some)) for job in (first, again)]
        env.take_turn(*dying, first, again)
        env.let_time_pass(first)
        env.carry_on(again)
        env.carry_on(first)
    env.result.faults += env.service.clear_faults()


def killed_while_freezing(env: Environment, short: int = 3, long: int = 40) -> None:
    """Kill the first worker of a launch while it freezes the launch, at lines spread over that phase."""
    for point in env.points("freeze", env.size.times(short, long)):
        job = env.job()
        env.run(replace(job, dies_in="freeze", dies_at=point))


def notebooks_and_worker(env: Environment, mutant: str | None = None) -> None:
    """Run two notebooks and a worker that make and send one launch at the same time, and kill them while they do."""
    for point in env.points("freeze", env.size.times(2, 12)):
        job = env.job()
        notebook = replace(job, in_notebook=True, mutant=mutant)
        if mutant:
            env.result.launches.append(another_key(job.key))
        dying = replace(notebook, dies_in="freeze", dies_at=point)
        env.take_turn(dying, notebook, replace(job, dies_in="send", dies_at=point))
        env.take_turn(replace(notebook, dies_in="send", dies_at=point), job)
        env.carry_on(notebook)


def own_hours(env: Environment, mutant: str | None = None) -> None:
    """Open a launch at two hours, then send another one at these hours over a day, and kill workers.

    The first worker is killed while it freezes the launch. In each hour of the day, two start, and one is killed. The
    short form has three hours in place of six.
    """
    source = env.job(people=DEVICES)
    env.run(source, source)
    env.service.wait_until_quiet()
    begin = datetime.now(UTC)
    midpoint = begin.replace(minute=30, second=0, microsecond=0)  # of an hour, far from the next one
    env.open_at_hours(source, [midpoint.replace(minute=0) + timedelta(hours=n) for n in (2, 4)])
    env.aggregate(source)
    job = env.following(source, at_own_hours=True, mutant=mutant, requests_at_once=ONE_BY_ONE)
    point = env.chance.randint(1, env.lines("freeze"))
    env.join(env.start(replace(job, dies_in="freeze", dies_at=point)))
    for number in range(0, 6, env.size.times(2, 1)):  # hours
        turn = replace(job, ahead=midpoint - begin + timedelta(hours=number))
        point = env.chance.randint(1, 2 * env.lines("send"))
        env.take_turn(replace(turn, dies_in="send", dies_at=point), turn)
        env.take_turn(turn, turn)
    env.carry_on(replace(job, ahead=midpoint - begin + timedelta(hours=4)))


def _parts(points: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (points[start : start + size] for start in range(0, len(points), size))


def killed_at_any_moment(env: Environment) -> None:
    """Kill both workers at random moments, several times."""
    job = env.job()
    for _ in range(4):
        workers = env.start(job, job)
        for worker in workers:
            env.pause(0.15)
            worker.kill()
        env.join(workers)
        env.let_time_pass(job)
    env.carry_on(job)


def service_killed(env: Environment) -> None:
    """Kill the service while workers send to it, and restart it."""
    job = env.job()
    workers = env.start(job, job)
    env.pause(0.3)
    env.kill(env.service.process)
    env.service.process.start()
    env.join(workers)
    env.carry_on(job)


def receiver_killed(env: Environment) -> None:
    """Kill the receiver while post-backs arrive, and restart it; the long form does so three times."""
    job = env.job()
    workers = env.start(job, job)
    env.wait_until_begun(job)
    for _ in range(env.size.times(1, 3)):
        env.pause(0.3)
        env.kill(env.backend.receiver)
        env.backend.receiver.start()
    env.join(workers)
    env.carry_on(job)
    env.service.wait_until_quiet()


def aggregation_killed(
    env: Environment, short: int = 6, long: int | None = None, mutant: str | None = None
) -> None:
    """Kill the aggregating process at one line after the other, each time with post-backs to aggregate."""
    points = env.points("aggregate", env.size.times(short, long or env.lines("aggregate")), mutant)
    job = env.job(mutant=mutant)
    env.aggregate_earlier(job)
    env.run(job, job)
    env.service.wait_until_quiet()
    for point in points:
        if not env.pending():
            job = env.job(mutant=mutant)
            env.run(job, job)
            env.service.wait_until_quiet()
        env.aggregate(replace(job, dies_in="aggregate", dies_at=point), run=1)
    env.aggregate(job)


def erasure_killed(env: Environment, short: int = 4, long: int = 60, mutant: str | None = None) -> None:
    """Kill the erasing process at lines spread over the erasure, each time for other people, and start another one."""
    points = env.points("erase", env.size.times(short, long))
    count = min(
        10, DEVICES * 3 // 4 // len(points)
    )  # about half of them have post-backs; later launches need the rest
    for some in _parts(points, 10):
        job = env.job(mutant=mutant)
        env.run(job, job)
        env.service.wait_until_quiet()
        env.aggregate(job)
        for point in some:
            devices = env.recipients(job, count)
            env.erase(replace(job, dies_in="erase", dies_at=point), devices)
            env.erase(job, devices)


def clocks_apart(env: Environment) -> None:
    """Run three workers at once whose clocks are hours apart."""
    job = env.job()
    hours = env.chance.choice((1, 3, 26))
    jobs = [replace(job, ahead=timedelta(hours=ahead_by)) for ahead_by in (0, hours, -hours)]
    workers = env.start(*jobs)
    env.join(workers)
    env.carry_on(jobs[1])


def clocks_apart_and_doubts_resent(env: Environment, mutant: str | None = None) -> None:
    """Start a worker whose clock is ahead by more than a lease while another sends, with ``on_doubt: resend``.

    No process dies and no answer is lost, so no request is in doubt, and each is made once. The service is slow, so
    that requests are in flight when the second worker looks for dead ones.
    """
    env.service.fault("slow", at=["create"], probability=1, seconds=2)
    job = env.job(mutant=mutant, on_doubt="resend")
    first = env.start(job)
    env.wait_until_begun(job)
    ahead = timedelta(minutes=env.chance.choice((6, 60, 26 * 60)))
    env.join([*first, *env.start(replace(job, ahead=ahead))])
    env.carry_on(job)
    env.result.faults += env.service.clear_faults()


def database_stopped(env: Environment, how: signal.Signals) -> None:
    """Stop the ledger's PostgreSQL while workers send and post-backs arrive, and restart it."""
    assert env.backend.cluster is not None
    job = env.job()
    workers = env.start(job, job)
    env.wait_until_begun(job)
    env.pause(0.1)
    env.kill(env.backend.cluster.process, how)
    env.pause(0.5)
    env.backend.cluster.process.start()
    env.backend.ledger.close()  # its connections ended with the server
    env.join(workers)
    env.carry_on(job)
    env.service.wait_until_quiet()


def everything(env: Environment) -> None:
    """Combine several faults, and kill both workers and the receiver."""
    for kind, how in (
        ("lost", {}),
        ("500", {"after": True}),
        ("reset", {"after": True}),
        ("429", {"retry_after": 1}),
        ("token-expired", {}),
        ("duplicate", {}),
        ("reorder", {"seconds": 0.5}),
    ):
        env.service.fault(kind, probability=0.1, **how)
    killed_at_any_moment(env)
    env.kill(env.backend.receiver)
    env.backend.receiver.start()
    env.service.wait_until_quiet()
    env.result.faults += env.service.clear_faults()


def lost_answers(env: Environment, mutant: str) -> None:
    """Lose answers, with a wrong protocol that sends again."""
    env.service.fault("lost", at=["create"], count=4)
    job = env.job(mutant=mutant)
    env.run(job, job)
    env.result.faults += env.service.clear_faults()
