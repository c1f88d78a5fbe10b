"""Two workers take steps of the protocol at the same time: every order of their statements keeps its promises.

`make test` explores some pairs of steps on SQLite and on PostgreSQL. `make proof` explores all on SQLite, and on
PostgreSQL a fifth more, which each commit draws. `make interleavings` explores all on both, with more orders of an
erasure, and on PostgreSQL of a fold. Each test prints its number of orders:
``pytest -rP -m "" tests/unit/ledger/test_interleavings.py``.
"""

from __future__ import annotations

import inspect
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations_with_replacement, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sendoff.ledger import Claim, Decision, Ledger
from sendoff.ledger.post_backs import aggregates
from sendoff.ledger.requests import claims, doubts
from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.schema import attempts, decisions, metadata, outcomes, withheld
from sendoff.ledger.storage.schema import dispatches as rows_of_dispatches
from sendoff.ledger.suppression.suppressions import SuppressionChange
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.erasure import continue_erasures, forget
from sendoff.states import Accepted, DecisionKind, InDoubt, Resolution
from tools.simulator.command import of_commit

from ...examples import PROFILE
from ...factories import KEY, LEASE, NOW, make_launch, post_back
from ...leases import end_leases
from .interleavings import Explorer, History, Point, Step

SECRET = "0123456789abcdef0123456789abcdef"
LATER = NOW + timedelta(minutes=1)
FIRST, SECOND = range(1, 3), range(3, 5)  # the recipients of the two dispatches
GONE = 3  # who opts out, and is erased
BY_CHANCE = {"id", "lease_until", "receiver", "stamp"}


@dataclass(frozen=True, slots=True)
class Beginning:
    """The rows that a history begins with. ``held``: the claim of the first dispatch, by the worker ``first``."""

    held: Claim
    rows: Mapping[str, Any]
    numbers: Mapping[str, Any]


class Play:
    """A ledger and two actors that take steps, again and again from the same rows."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.databases = {name: Database(url) for name in ("left", "right")}
        self.checked = Database(url)
        self.engine = sa.create_engine(url)
        self.explorer = Explorer(self.databases, self.restore)
        for database in (*self.databases.values(), self.checked):
            database.ping()
        event.listen(self.checked._engine, "before_cursor_execute", self._note_written)

    def _note_written(self, _db: sa.Connection, _cursor: object, text: str, *_: object) -> None:
        """Note the tables that the checks write."""
        self.explorer.written |= Point.of(text).writes

    def close(self) -> None:
        self.explorer.close()
        self.engine.dispose()
        for database in (*self.databases.values(), self.checked):
            database.close()

    def ledger(self, database: Database) -> Ledger:
        """Return a ledger that has read nothing yet, over connections that are open already."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sendoff.ledger.ledger.Database", lambda _: database)
            return Ledger(self.url, erasure_secret=SECRET)

    def begin(self, *, is_free: bool, is_doubted: bool, is_opened: bool) -> None:
        """Freeze two dispatches, and claim the first for the worker ``first``, whose lease has ended.

        ``is_free``: the worker gave it back, so both are planned. ``is_doubted``: it is in doubt. ``is_opened``:
        someone has opened its message.
        """
        with self.checked.write() as db:
            for table in reversed(metadata.sorted_tables):
                db.execute(sa.delete(table))
            db.execute(
                sa.insert(metadata.tables["erasure_state"]), {"id": 1, "version": 0}
            )  # as migrations leave it
        ledger = self.ledger(self.checked)
        make_launch(ledger, [*FIRST, *SECOND], size=2)
        held = ledger.dispatches.claim(KEY, worker="first", now=NOW, lease=LEASE)
        assert held is not None
        end_leases(ledger)
        if is_free:
            ledger.dispatches.give_back(KEY, "first", NOW)
        elif is_doubted:
            assert ledger.doubts.expire_leases(KEY, NOW) == 1
        receiver = ledger.post_backs.register_receiver("r", NOW)
        if is_opened:
            ledger.post_backs.store(receiver, [(1, post_back(held.dispatch_key, "open", 1))])
        with self.engine.begin() as db:
            rows = {
                name: db.execute(sa.select(table)).mappings().all() for name, table in metadata.tables.items()
            }
            numbers = {}
            if db.dialect.name == "postgresql":
                query = "SELECT schemaname || '.' || sequencename, last_value FROM pg_sequences"
                numbers = dict(db.execute(sa.text(query)).all())  # type: ignore[arg-type]
        self.beginning, self.known = Beginning(held, rows, numbers), set()

    def restore(self, written: set[str]) -> None:
        """Put the rows of the beginning back into the tables that were written."""
        with self.engine.begin() as db:
            if db.dialect.name == "postgresql":
                db.execute(sa.text("SET LOCAL session_replication_role = replica"))  # no foreign keys
                again = (
                    f"setval('{name}', {number or 1}, {number is not None})"
                    for name, number in self.beginning.numbers.items()
                )
                db.execute(sa.text(f"SELECT {', '.join(again)}"))
            for name in written:
                db.execute(sa.delete(metadata.tables[name]))
                if rows := self.beginning.rows[name]:
                    db.execute(sa.insert(metadata.tables[name]), list(map(dict, rows)))

    def reached(self, names: Iterable[str] | None = None) -> str:
        """Return the rows of some tables as text, without what clocks and chance decide; default: the written ones."""
        with self.engine.connect() as db:
            written = [metadata.tables[name] for name in sorted(names or self.explorer.written)]
            rows = {
                table.name: sorted(
                    map(
                        repr,
                        db.execute(
                            sa.select(*(each for each in table.columns if each.name not in BY_CHANCE))
                        ),
                    )
                )
                for table in written
            }
        return repr(rows)

    def histories(self, left: str, right: str, *, is_reduced: bool = True) -> Iterator[History]:
        """Yield the histories of two steps; with long steps, those with few switches between the actors."""
        how: dict[str, Any] = {"is_reduced": is_reduced, "is_mirrored": left == right}
        if long := sum(step in LONG[self.engine.dialect.name] for step in (left, right)):
            is_more = PROFILE == "search" and self.engine.dialect.name == "sqlite" and long == 1
            how["switches"] = 2 if is_more else 1
        is_free = left == right == "claim"
        is_doubted = not {"resend", "write off"}.isdisjoint((left, right))
        is_opened = not is_free and "give back" not in (left, right)
        self.begin(is_free=is_free, is_doubted=is_doubted, is_opened=is_opened)

        def works() -> dict[str, Callable[[], object]]:
            ledgers = {name: self.ledger(database) for name, database in self.databases.items()}
            return {
                name: lambda step=step, ledger=ledgers[name], name=name: STEPS[step](
                    ledger, self.beginning.held, name
                )
                for name, step in (("left", left), ("right", right))
            }

        yield from self.explorer.explore(works, **how)

    def rows(self, table: sa.Table) -> list[Any]:
        with self.checked.read() as db:
            return list(db.execute(sa.select(table).order_by(*table.primary_key.columns)).all())


# The steps


def claim(ledger: Ledger, _: Claim, name: str) -> Claim | None:
    return ledger.dispatches.claim(KEY, worker=name, now=LATER, lease=LEASE)


def record(ledger: Ledger, held: Claim, _: str) -> None:
    ledger.dispatches.record(held, Accepted(200, 17), LATER)


def record_doubt(ledger: Ledger, held: Claim, _: str) -> None:
    ledger.dispatches.record(held, InDoubt("no answer"), LATER)


def record_and_claim(ledger: Ledger, held: Claim, _: str) -> Claim | None:
    return ledger.dispatches.record_and_claim(held, Accepted(200, 17), LATER, worker="first", lease=LEASE)


def expire(ledger: Ledger, _: Claim, __: str) -> int:
    return ledger.doubts.expire_leases(KEY, LATER)


def give_back(ledger: Ledger, _: Claim, __: str) -> None:
    ledger.dispatches.give_back(KEY, "first", LATER)


def add_up(ledger: Ledger, _: Claim, __: str) -> int:
    return aggregate(ledger, now=LATER)


def resend(ledger: Ledger, held: Claim, name: str) -> bool:
    return ledger.doubts.resolve(held.dispatch_key, Resolution.RESEND, name, "again", LATER)


def write_off(ledger: Ledger, held: Claim, name: str) -> bool:
    return ledger.doubts.resolve(held.dispatch_key, Resolution.WRITE_OFF, name, "enough", LATER)


def opt_out(ledger: Ledger, _: Claim, name: str) -> int:
    return ledger.suppressions.add(SuppressionChange("account", "device_id", "opt-out", name), [GONE], LATER)


def hold_and_release(ledger: Ledger, _: Claim, name: str) -> tuple[bool, bool]:
    decide = ledger.audit_log.decide
    held = decide(Decision(KEY, DecisionKind.HELD, name, "wait", LATER))
    return held, decide(Decision(KEY, DecisionKind.RELEASED, name, "go on", LATER))


def erase(ledger: Ledger, _: Claim, name: str) -> None:
    forget(ledger, [GONE], identified_by="device_id", who=name, reason="asked", now=LATER)


STEPS: Mapping[str, Callable[[Ledger, Claim, str], Any]] = {
    "claim": claim,
    "record": record,
    "record doubt": record_doubt,
    "record and claim": record_and_claim,
    "expire": expire,
    "give back": give_back,
    "aggregate": add_up,
    "resend": resend,
    "write off": write_off,
    "opt out": opt_out,
    "hold and release": hold_and_release,
    "erase": erase,
}
OF_FIRST = {"record", "record doubt", "record and claim", "give back"}  # only the worker "first" takes these
# Dozens of transactions. On PostgreSQL, only `make interleavings` plays all orders of a fold, which take minutes.
LONG = {"sqlite": {"erase"}, "postgresql": {"erase"} if PROFILE == "search" else {"erase", "aggregate"}}
PAIRS = [pair for pair in combinations_with_replacement(STEPS, 2) if not OF_FIRST.issuperset(pair)]
EVERY_DAY = {
    ("claim", "claim"),
    ("claim", "record and claim"),
    ("record", "expire"),
    ("claim", "opt out"),
    ("record doubt", "write off"),
}


def cases() -> Iterator[Any]:
    drawn = PAIRS if PROFILE == "search" else Random(of_commit()).sample(PAIRS, len(PAIRS) // 5)
    for database, pair in product(("sqlite", "postgresql"), PAIRS):
        if database == "sqlite" or pair in EVERY_DAY or pair in drawn:
            marks = [] if pair in EVERY_DAY else [pytest.mark.proof]
            yield pytest.param(database, *pair, marks=marks)


# What holds after each history


def check(play: Play, history: History) -> None:
    """Check the promises of the protocol after one history, from the rows of the database."""
    assert not history.is_deadlocked
    for result in history.results.values():
        assert not isinstance(result, Exception), repr(result)
    dispatched = play.rows(rows_of_dispatches)
    tried, ended, decided = play.rows(attempts), play.rows(outcomes), play.rows(decisions)
    for row in dispatched:
        key = row.dispatch_key
        check_state(
            row,
            [each.number for each in tried if each.dispatch_key == key],
            [each for each in ended if each.dispatch_key == key],
            [each.kind for each in decided if (each.detail or {}).get("dispatch") == key],
        )
    check_claims(play, history, tried)
    check_hold(history, decided)
    if (reached := play.reached()) not in play.known:  # many orders lead to the same rows
        play.known.add(reached)
        check_the_end(play, history)


def check_state(row: Any, numbers: list[int], ended: list[Any], decided: list[str]) -> None:
    """Check that the state of a dispatch follows from its attempts, its outcomes, and decisions."""
    assert numbers == list(range(1, row.attempt + 1))
    assert (row.state == "in_flight") == (row.lease_until is not None)
    kinds = {number: [each.kind for each in ended if each.attempt == number] for number in numbers}
    resent = decided.count(DecisionKind.RESEND_DISPATCH)
    again = sum("not_processed" in kinds[number] for number in numbers) + resent
    assert len(numbers) <= 1 + again  # nothing is sent twice without a reason
    assert len(decided) <= 1
    last = kinds[numbers[-1]] if numbers else ["not_processed"]
    if row.state != "in_flight" and {"accepted", "evidence"} & {each.kind for each in ended}:
        expected = {"accepted"}
    elif not last:
        expected = {"in_flight"}
    elif "not_processed" in last:
        expected = {"planned"}
    elif decided:
        expected = {"planned" if resent else "written_off"}
    else:
        expected = {"in_doubt"}
    assert {row.state} == expected, (kinds, decided)


def check_claims(play: Play, history: History, tried: list[Any]) -> None:
    """Check that each claim has one owner, and no recipient who opted out before it."""
    claimed = [result for result in history.results.values() if isinstance(result, Claim)]
    rights = [(each.dispatch_key, each.attempt) for each in (play.beginning.held, *claimed)]
    assert sorted(rights) == sorted((each.dispatch_key, each.number) for each in tried)  # so none is lost
    left_out = Counter({(each.dispatch_key, each.attempt): each.size for each in play.rows(withheld)})
    for name, result in history.results.items():
        if not isinstance(result, Claim):
            continue
        assert result.content.identifiers is not None
        people = set(map(int, result.content.identifiers))
        whole = set(SECOND if result.dispatch_key != play.beginning.held.dispatch_key else FIRST)
        assert people <= whole
        asked = last_of(history, name, "suppression_state")
        if any(
            step.actor != name and "suppressions" in step.point.writes and is_end(step)
            for step in history.steps[:asked]
        ):
            assert GONE not in people
        assert people | ({GONE} & whole) == whole
        assert left_out[result.dispatch_key, result.attempt] in (
            (0, 1) if is_erased(history) else (len(whole - people),)
        )


def last_of(history: History, name: str, table: str) -> int:
    """Return the number of the last step of an actor that read a table; on SQLite, its transaction reads all."""
    return max(
        number
        for number, step in enumerate(history.steps)
        if step.actor == name and (step.point.text == "BEGIN IMMEDIATE" or table in step.point.reads)
    )


def is_end(step: Step) -> bool:
    return step.point.text == "the end of the transaction"


def is_erased(history: History) -> bool:
    return any("erased" in step.point.writes for step in history.steps)


def check_hold(history: History, decided: list[Any]) -> None:
    """Check that nothing is claimed between holding a launch and releasing it, and that the log has both."""
    kinds = Counter(each.kind for each in decided)
    answers = [result for result in history.results.values() if isinstance(result, tuple)]
    assert kinds[DecisionKind.HELD] == sum(held for held, _ in answers)
    assert kinds[DecisionKind.RELEASED] == sum(released for _, released in answers)
    if len(answers) != 1:
        return
    (holder,) = (name for name, result in history.results.items() if isinstance(result, tuple))
    held, released = (n for n, step in enumerate(history.steps) if step.actor == holder and is_end(step))
    for name, result in history.results.items():
        if isinstance(result, Claim):
            moved = last_of(history, name, "pauses")
            assert not held < moved < released


def check_the_end(play: Play, history: History) -> None:
    """Check what holds once everything that is left was done: each post-back counts once, and doubts are exact."""
    ledger = play.ledger(play.checked)
    continue_erasures(ledger, now=LATER)
    aggregate(ledger, now=LATER)
    end_leases(ledger)
    ledger.doubts.expire_leases(KEY, LATER)
    aggregate(ledger, now=LATER)
    totals = ledger.aggregates.totals(KEY)
    assert sum(each.opens for each in totals.values()) == len(play.beginning.rows["post_backs"])
    rows = play.rows(rows_of_dispatches)
    states = {row.dispatch_key: row.state for row in rows}
    assert {states[key] for key, each in totals.items() if each.is_evidence} <= {"accepted"}
    assert {each.dispatch_key for each in ledger.doubts.open(KEY)} == {
        key for key, state in states.items() if state == "in_doubt"
    }
    if is_erased(history):
        for _, people in ledger.dispatch_queries.segments(KEY):
            assert people is not None
            assert GONE not in set(map(int, people))


# The tests


@pytest.fixture(params=["sqlite", "postgresql"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Play]:
    if request.param == "sqlite":
        url = f"sqlite:///{shutil.copy(request.getfixturevalue('migrated_file'), tmp_path / 'ledger.db')}"
    else:
        url = request.getfixturevalue("migrated_postgres")
    with closing(Play(url)) as play:
        yield play


def explore(play: Play, left: str, right: str) -> int:
    """Check each history of two steps, and return their number. A failure shows the history."""
    number = 0
    for history in play.histories(left, right):
        number += 1
        try:
            check(play, history)
        except AssertionError as error:
            raise AssertionError(f"{error}\norder {number} of {left!r} and {right!r}:\n{history}") from error
    sys.stdout.write(f"{left} and {right}: {number} orders\n")
    return number


@pytest.mark.parametrize(("play", "left", "right"), list(cases()), indirect=["play"])
def test_every_order_of_two_steps_keeps_the_promises(play: Play, left: str, right: str) -> None:
    assert explore(play, left, right)


def broken(function: Callable[..., Any], line: str, instead: str = "") -> Any:
    """Return a function of the ledger with one line replaced."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(line) == 1
    module = inspect.getmodule(function)
    assert module is not None
    names: dict[str, Any] = {}
    exec(
        compile("from __future__ import annotations\n" + source.replace(line, instead), "broken", "exec"),
        vars(module),
        names,
    )
    return names[function.__name__]


def claim_whatever_another_claimed(patch: pytest.MonkeyPatch) -> None:
    lock, state = (
        ".with_for_update(skip_locked=True, of=first)",
        "dispatches.c.state == DispatchState.PLANNED,",
    )
    following, moved = broken(claims.next_planned, lock), broken(claims.claim_statement, state)
    patch.setattr(claims, "_CLAIM", moved(following(claims._OPEN_ZONES.limit(1).scalar_subquery())))
    patch.setattr(claims, "_CLAIM_IN_ZONE", moved(following(sa.bindparam("zone"))))


def add_up_what_another_added(patch: pytest.MonkeyPatch) -> None:
    mark = ", receivers.c.aggregated_to == after"
    patch.setattr(aggregates.Aggregates, "store_run", broken(aggregates.Aggregates.store_run, mark))


def resend_what_is_not_in_doubt(patch: pytest.MonkeyPatch) -> None:
    state = "dispatches.c.state == DispatchState.IN_DOUBT"
    patch.setattr(doubts.Doubts, "resolve", broken(doubts.Doubts.resolve, state, "sa.true()"))


@pytest.mark.parametrize(
    ("break_it", "left", "right"),
    [
        (claim_whatever_another_claimed, "claim", "claim"),
        (add_up_what_another_added, "aggregate", "aggregate"),
        (resend_what_is_not_in_doubt, "record", "resend"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_missing_compare_and_set_is_found(
    play: Play, break_it: Callable[[pytest.MonkeyPatch], None], left: str, right: str
) -> None:
    if play.databases["left"]._is_sqlite and break_it is claim_whatever_another_claimed:
        pytest.skip("SQLite admits one writer at a time, and this line is in its transaction")
    with pytest.MonkeyPatch.context() as patch:
        break_it(patch)
        with pytest.raises(AssertionError, match="order") as found:
            explore(play, left, right)
    sys.stdout.write(f"{found.value}\n")


COMPARED = [*product(("sqlite", "postgresql"), ("record",), ("expire", "resend"))]
COMPARED_IN_PROOF = [("sqlite", "claim", "expire")]
if PROFILE == "search":  # 3,003 orders
    COMPARED_IN_PROOF += [("postgresql", "claim", "expire")]


@pytest.mark.parametrize(
    ("play", "left", "right"),
    [*COMPARED, *(pytest.param(*each, marks=pytest.mark.proof) for each in COMPARED_IN_PROOF)],
    indirect=["play"],
)
def test_the_orders_that_are_left_out_lead_to_nothing_new(play: Play, left: str, right: str) -> None:
    reached: dict[bool, set[str]] = {True: set(), False: set()}
    numbers = Counter[bool]()
    for is_reduced, rows in reached.items():
        for history in play.histories(left, right, is_reduced=is_reduced):
            numbers[is_reduced] += 1
            rows.add(f"{play.reached(metadata.tables)} {history.results}")
    sys.stdout.write(
        f"{left} and {right}: {numbers[False]} orders, {numbers[True]} without those that equal another\n"
    )
    assert reached[True] == reached[False]
    assert numbers[True] <= numbers[False]
