"""The scenarios: the faults of each, one table row per scenario.

To add one, add a :class:`Scenario` to :data:`SCENARIOS`. If no function of :mod:`tools.chaos.steps` plays it, write one
there that plays it once on a :class:`~tools.chaos.environment.Environment`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tools.chaos import steps
from tools.chaos.environment import Environment, Size

BackendName = Literal["sqlite", "sqlite apart", "erasing", "erasing apart", "postgresql", "postgresql apart"]
"""The ledger to use. Protocols that are wrong on purpose, and erasures, have separate ones, where they cannot affect
other rows."""

Expected = Literal["none", "some", "any"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row: what goes wrong, the function that plays it, and how often.

    ``expected``: duplicates and losses must be ``none``, or ``some`` if the protocol is broken on purpose. With
    ``any``, they are only shown, because the service denies requests that it processed. ``strikes``: the row proves
    something only if a process was killed or a fault happened.
    """

    name: str
    what: str
    play: Callable[[Environment], None]
    on: BackendName = "sqlite"
    short: int = 1
    long: int = 4
    expected: Expected = "none"
    strikes: bool = True

    def times(self, size: Size) -> int:
        """Return how often it is played. Each time may include several launches."""
        return size.times(self.short, self.long)


def _request(kind: str, times: int = 4, **how: Any) -> dict[str, Any]:
    return {"kind": kind, "at": ["create"], "count": times, **how}


def _post_back(kind: str, **how: Any) -> dict[str, Any]:
    return {"kind": kind, "probability": 0.3, **how}


def _fault(
    name: str, what: str, *faults: Mapping[str, Any], waits: bool = False, short: int = 0, **changes: Any
) -> Scenario:
    return Scenario(name, what, steps.with_faults(*faults, waits=waits, **changes), short=short)


def _lie(kind: str) -> Scenario:
    return Scenario(
        f"{kind} after processing",
        f"the service processes a request and answers {kind}, as if it had not",
        steps.with_faults(_request(kind, after=True)),
        short=0,
        long=2,
        expected="any",
    )


def _on_postgresql(name: str, what: str, play: Callable[[Environment], None], long: int = 1) -> Scenario:
    return Scenario(name, what, play, on="postgresql", short=0, long=long)


def _wrong(
    name: str,
    what: str,
    play: Callable[[Environment], None],
    on: BackendName = "sqlite apart",
    short: int = 1,
    long: int = 1,
) -> Scenario:
    return Scenario(name, what, play, on, short, long, expected="some")


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "nothing",
        "two workers share the launch, each with four requests at once",
        steps.undisturbed,
        strikes=False,
    ),
    # Processes that die.
    Scenario(
        "worker killed between two lines",
        "two workers at a time are killed at a line of the dispatch, the ledger or the client; each line once",
        steps.killed_between_lines,
        long=1,
    ),
    Scenario(
        "worker killed with requests at once",
        "two workers at a time, each with four requests in progress, are killed at a random line",
        steps.killed_with_requests_at_once,
        long=1,
    ),
    Scenario(
        "worker killed while it freezes",
        "the first worker is killed at a line of making the launch; later workers get other people from the query",
        steps.killed_while_freezing,
        long=1,
    ),
    Scenario(
        "worker killed at any moment",
        "both workers are killed at a random moment, four times",
        steps.killed_at_any_moment,
        long=12,
    ),
    Scenario(
        "notebooks and a worker at once",
        "two notebooks and a worker make and send one launch at the same time, and are killed at lines of it",
        steps.notebooks_and_worker,
        long=1,
    ),
    Scenario(
        "aggregation killed between two lines",
        "the aggregating process is killed at a line of aggregation; each line once",
        steps.aggregation_killed,
        long=1,
    ),
    Scenario(
        "restart in the middle of an erasure",
        "the erasing process is killed at a line of the erasure, and another one continues",
        steps.erasure_killed,
        on="erasing",
        long=1,
    ),
    Scenario("receiver killed", "the receiver is killed under load and started again", steps.receiver_killed),
    Scenario("service killed", "the service is killed under load and started again", steps.service_killed),
    Scenario(
        "clocks apart",
        "three workers at once, with clocks up to 26 hours apart",
        steps.clocks_apart,
        long=6,
        strikes=False,
    ),
    Scenario(
        "clocks apart, doubts sent again",
        "a worker begins while another sends, and its clock is 6 minutes to 26 hours ahead; on_doubt: resend",
        steps.clocks_apart_and_doubts_resent,
    ),
    Scenario(
        "request of your own",
        "workers that send one request are killed at a line, or its answer is lost; later workers send it again",
        steps.own_requests,
        long=1,
    ),
    Scenario(
        "workers killed at a rate",
        "two workers at a time are killed while they share a rate limit, whose next moment each record reserves",
        steps.killed_at_a_rate,
        long=1,
    ),
    Scenario(
        "workers killed under a daily limit",
        "two workers at a time are killed while a new sender may reach only so many recipients a day",
        steps.killed_under_a_daily_limit,
        long=1,
    ),
    Scenario(
        "opting out between waves",
        "1 % of the recipients opt out at random while a launch is sent in waves over a day, and a file that named "
        "them before no longer does; workers and the receiver are killed",
        steps.opt_outs_in_waves,
        long=30,
    ),
    Scenario(
        "worker killed while it decides the winner",
        "two workers at a time are killed at a line of deciding which variant the rest gets, or while they send it; "
        "then the other variant catches up",
        steps.killed_while_deciding,
        long=1,
    ),
    Scenario(
        "opening between waves",
        "recipients open an earlier message while those who did not are reminded in waves; workers and the receiver "
        "are killed",
        steps.opens_in_waves,
        long=30,
    ),
    Scenario(
        "sent again to those who got nothing",
        "a period is sent again to those who got nothing while its first launch goes on, and then once more; requests "
        "are refused or lose their answer, and workers of each launch are killed",
        steps.resent_to_the_unsent,
        long=12,
    ),
    Scenario(
        "workers killed at own hours",
        "recipients open a launch at two hours of the day, and get the next one then; workers are killed in each hour, "
        "while they freeze it or send it",
        steps.own_hours,
        long=6,
    ),
    # Requests that go wrong.
    _fault("reset before", "the connection is reset, nothing is processed", _request("reset")),
    _fault(
        "reset after",
        "the request is processed, then the connection is reset",
        _request("reset", after=True),
        short=1,
    ),
    _fault(
        "answer lost",
        "the request is processed, and the connection closes without an answer",
        _request("lost"),
        short=1,
    ),
    _fault(
        "time-out",
        "the request is processed, and the answer comes after the worker has given up",
        _request("slow", times=2, seconds=1),
        answer_within=0.5,
    ),
    _fault("500 before", "500, nothing is processed", _request("500"), short=1),
    _fault("500 after", "the request is processed, then 500", _request("500", after=True)),
    _fault("502 before", "a gateway's page, nothing is processed", _request("502")),
    _fault("502 after", "the request is processed, then a gateway's page", _request("502", after=True)),
    _fault("web page before", "200 with a web page, nothing is processed", _request("html")),
    _fault(
        "web page after",
        "the request is processed, then 200 with a web page",
        _request("html", after=True),
        short=1,
    ),
    _fault("403", "refused, nothing is processed", _request("403")),
    _fault("401", "the token is refused, nothing is processed", _request("401")),
    _fault("token expired", "a token ends early", _request("token-expired")),
    _fault("429 with Retry-After", "the service asks to wait for a second", _request("429", retry_after=1)),
    _fault("429", "the service asks to wait, and does not say how long", _request("429")),
    _fault(
        "no token",
        "the token endpoint answers 500, 503, 429 or 401, or resets the connection",
        *({"kind": kind, "at": ["token"], "count": 2} for kind in ("500", "429", "401", "reset")),
        {"kind": "503", "at": ["token"], "count": 1, "retry_after": 1},
        short=1,
    ),
    # Post-backs that go wrong.
    _fault("post-backs twice", "each comes twice", {"kind": "duplicate", "probability": 1}, waits=True),
    _fault("post-backs late", "some come a second late", _post_back("delay", seconds=1), waits=True),
    _fault(
        "post-backs in disorder",
        "each comes after a random delay",
        _post_back("reorder", seconds=1),
        waits=True,
    ),
    _fault("post-backs in bursts", "many come at once", _post_back("burst", seconds=1), waits=True),
    _fault(
        "post-backs of other types",
        "some have texts as IDs, and times in milliseconds",
        _post_back("retyped"),
        waits=True,
        short=1,
    ),
    _fault("post-backs damaged", "some cannot be read", _post_back("malformed"), waits=True, short=1),
    _fault(
        "post-backs lost",
        "some never come, and answers are lost too",
        _post_back("lose"),
        _request("lost"),
        waits=True,
        short=1,
    ),
    Scenario("everything at once", "seven faults, workers killed, receiver killed", steps.everything, long=6),
    # The ledger on PostgreSQL.
    _on_postgresql(
        "workers killed at own hours, PostgreSQL", "as above, on PostgreSQL", steps.own_hours, long=2
    ),
    _on_postgresql(
        "sent again to those who got nothing, PostgreSQL",
        "as above, on PostgreSQL",
        steps.resent_to_the_unsent,
        long=3,
    ),
    _on_postgresql(
        "clocks apart, doubts sent again, PostgreSQL",
        "as above, on PostgreSQL, whose clock judges the leases",
        steps.clocks_apart_and_doubts_resent,
        long=4,
    ),
    _on_postgresql(
        "worker killed between two lines, PostgreSQL",
        "as above, on PostgreSQL, at lines spread over the protocol",
        partial(steps.killed_between_lines, long=40),
    ),
    _on_postgresql(
        "aggregation killed between two lines, PostgreSQL",
        "as above, on PostgreSQL, at lines spread over aggregation",
        partial(steps.aggregation_killed, long=30),
    ),
    _on_postgresql("workers killed at a rate, PostgreSQL", "as above, on PostgreSQL", steps.killed_at_a_rate),
    _on_postgresql(
        "workers killed under a daily limit, PostgreSQL",
        "as above, on PostgreSQL",
        steps.killed_under_a_daily_limit,
    ),
    _on_postgresql(
        "worker killed while it decides the winner, PostgreSQL",
        "as above, on PostgreSQL, at fewer lines",
        partial(steps.killed_while_deciding, long=16),
    ),
    _on_postgresql(
        "PostgreSQL restarted",
        "the ledger's database ends its connections, stops and starts again, under load",
        partial(steps.database_stopped, how=signal.SIGINT),
        long=3,
    ),
    _on_postgresql(
        "PostgreSQL crashed",
        "the ledger's database is stopped without a checkpoint and recovers, under load",
        partial(steps.database_stopped, how=signal.SIGQUIT),
        long=5,
    ),
    # Wrong on purpose: here, the same counting must find something.
    _wrong(
        "intent written after the request",
        "each worker marks a dispatch after it has sent it; some are killed in between",
        partial(steps.killed_between_lines, short=8, long=8, mutant="intent after request"),
    ),
    _wrong(
        "doubt sent again",
        "a request without an answer counts as not made",
        partial(steps.lost_answers, mutant="doubt sent again"),
        long=2,
    ),
    _wrong(
        "dead worker's dispatch sent again",
        "a dispatch whose worker was killed is planned again when its lease ends",
        partial(steps.killed_between_lines, short=8, long=24, mutant="dead sent again"),
        short=0,
    ),
    _wrong(
        "lease by the worker's clock",
        "a worker counts as dead when its lease ends by another worker's clock; on_doubt: resend",
        partial(steps.clocks_apart_and_doubts_resent, mutant="lease by the worker's clock"),
        long=2,
        short=0,
    ),
    _wrong(
        "claim not committed, PostgreSQL",
        "the statement that records an outcome and claims the next dispatch is rolled back, and its request is sent",
        partial(steps.killed_between_lines, long=8, mutant="claim not committed"),
        short=0,
        on="postgresql apart",
    ),
    _wrong(
        "claim at a rate not committed, PostgreSQL",
        "the same while workers share a rate limit",
        partial(steps.killed_at_a_rate, long=8, mutant="claim not committed"),
        short=0,
        on="postgresql apart",
    ),
    _wrong(
        "mark moved before the post-backs are stored",
        "the mark of aggregation is moved on fetching; the aggregating process is killed",
        partial(steps.aggregation_killed, short=12, long=40, mutant="mark before events"),
    ),
    _wrong(
        "key of a notebook",
        "a notebook derives another launch key than a worker for the same campaign and period",
        partial(steps.notebooks_and_worker, mutant="key of a notebook"),
    ),
    _wrong(
        "request key with the attempt",
        "each worker that finds a request of your own frozen adds its attempt to the request key",
        partial(steps.own_requests, mutant="request key with the attempt"),
    ),
    _wrong(
        "counted after the request",
        "each worker counts recipients against the daily limit after it has sent to them; some are killed in between",
        partial(steps.killed_under_a_daily_limit, short=2, mutant="counted after the request"),
    ),
    _wrong(
        "suppression list asked only when the launch is frozen",
        "workers do not ask the suppression list again when they claim a request; half of the recipients opt out",
        partial(steps.opt_outs_in_waves, share=0.5, mutant="asked only when frozen"),
        short=0,
        long=4,
    ),
    _wrong(
        "verdicts asked only when the launch is frozen",
        "workers do not ask again who opened the earlier message when they claim a request of a reminder",
        partial(steps.opens_in_waves, mutant="verdicts only when frozen"),
        long=4,
    ),
    _wrong(
        "planned counts as unsent",
        "a resend to those who got nothing takes in recipients of requests that its first launch has still to make",
        partial(steps.resent_to_the_unsent, mutant="planned counts as unsent"),
        short=2,
        long=3,
    ),
    _wrong(
        "file that replaces entries of every source",
        "a worker replaces the entries of one source in the suppression list, and ends those of all sources; half of "
        "the recipients opt out",
        partial(steps.opt_outs_in_waves, share=0.5, mutant="replaced whatever the source"),
        long=4,
    ),
    _wrong(
        "winner judged at each claim",
        "workers open the rest without storing a winner, and judge the test share again at each claim",
        partial(steps.killed_while_deciding, short=8, long=8, mutant="judged at each claim"),
    ),
    _wrong(
        "own hours ignored",
        "workers send to everyone at once, whatever the hour of the recipients",
        partial(steps.own_hours, mutant="own hours ignored"),
    ),
    _wrong(
        "control group drawn anew",
        "each worker that plans a launch at own hours draws its control group by chance, not from the launch key",
        partial(steps.own_hours, mutant="control group drawn anew"),
        short=0,
    ),
    _wrong(
        "queue of an erasure emptied too early",
        "the identifiers are deleted before the last step; the erasing process is killed",
        partial(steps.erasure_killed, short=2, long=4, mutant="queue emptied early"),
        short=0,
        on="erasing apart",
    ),
    _wrong(
        "erasure that skips blocks",
        "people are erased from sets and lists, and the blocks of post-backs stay as they are",
        partial(steps.erasure_killed, short=2, long=4, mutant="blocks skipped"),
        on="erasing apart",
    ),
    # Outside the promise: these are shown and need not be zero.
    _lie("401"),
    _lie("403"),
    _lie("429"),
)
