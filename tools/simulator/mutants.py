"""Protocols that are wrong on purpose. Each changes one line of the product's source when its module is imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed line of a module. ``before`` occurs once in it."""

    module: str
    before: str
    after: str


MUTANTS: Mapping[str, Mutant] = {
    "intent after the request": Mutant(
        "sendoff.ledger.requests.dispatches",
        "            claim = request.execute(db)\n            if claim is not None and limit",
        "            claim = request.execute(db); db.rollback()\n            if claim is not None and limit",
    ),
    "rate limit without end": Mutant(
        "sendoff.ledger.control.rate_limits", '"next_at": moment + step', '"next_at": moment + 100_000 * step'
    ),
    "intent missing": Mutant("sendoff.ledger.requests.claims", "db.execute(_INTENT, {", "dict({"),
    "lease by the worker's clock": Mutant(
        "sendoff.ledger.requests.doubts",
        'db.execute(expire, {"launch": launch_key})',
        "db.execute(sa.update(dispatches).where(IN_FLIGHT, dispatches.c.lease_until < now)"
        ".values(state=DispatchState.IN_DOUBT, lease_until=None).returning(dispatches))",
    ),
    "dead worker's request sent again": Mutant(
        "sendoff.ledger.requests.doubts",
        ".values(state=DispatchState.IN_DOUBT, lease_until=None)",
        ".values(state=DispatchState.PLANNED, lease_until=None)",
    ),
    "doubt taken as not processed": Mutant(
        "sendoff.service.client",
        "return InDoubt(exchange.reason)",
        "return NotProcessed(exchange.reason, is_unavailable=True)",
    ),
    "doubt taken as refused": Mutant(
        "sendoff.ledger.requests.dispatches",
        "OutcomeKind.IN_DOUBT: DispatchState.IN_DOUBT",
        "OutcomeKind.IN_DOUBT: DispatchState.REFUSED",
    ),
    "500 taken as refused": Mutant(
        "sendoff.service.client",
        "if status not in _REFUSALS:\n        return InDoubt",
        "if False:\n        return InDoubt",
    ),
    "late outcome overwrites a later attempt": Mutant(
        "sendoff.ledger.requests.dispatches",
        '        dispatches.c.attempt == sa.bindparam("by"),\n        dispatches.c.state.in_(',
        '        dispatches.c.attempt >= sa.bindparam("by"),\n        dispatches.c.state.in_(',
    ),
    "late acceptance ignored": Mutant(
        "sendoff.ledger.requests.dispatches",
        '    .where(dispatches.c.dispatch_key == sa.bindparam("of"))\n    .values(\n        state=sa.case((_GOES_ON',
        '    .where(dispatches.c.dispatch_key == sa.bindparam("of"), dispatches.c.state == "in_flight")\n'
        "    .values(\n        state=sa.case((_GOES_ON",
    ),
    "claim of another worker given back": Mutant(
        "sendoff.ledger.requests.claims",
        '    _in_hand.c.worker == sa.bindparam("name"),',
        "    sa.true(),",
    ),
    "hold not looked at": Mutant(
        "sendoff.ledger.requests.next_dispatch",
        "            launches.c.state == LaunchState.RELEASED,",
        "            sa.true(),",
    ),
    "global pause not looked at": Mutant(
        "sendoff.ledger.requests.next_dispatch",
        "            sa.not_(is_paused.correlate(launches)),",
        "            sa.true(),",
    ),
    "next wave open at once": Mutant(
        "sendoff.ledger.requests.next_dispatch",
        "            first.c.wave <= sa.select(OPEN_WAVE.c.wave).scalar_subquery(),",
        "            first.c.wave <= 1 + sa.select(OPEN_WAVE.c.wave).scalar_subquery(),",
    ),
    "wave not judged": Mutant(
        "sendoff.dispatch.rollout", "if allowed is not None and percent > allowed:", "if False:"
    ),
    "wave judged by requests that were not made": Mutant(
        "sendoff.dispatch.rollout",
        "WaveResult(launch.wave, states[DispatchState.ACCEPTED] + refused,",
        "WaveResult(launch.wave, sum(states.values()),",
    ),
    "suppression only when frozen": Mutant(
        "sendoff.ledger.requests.claims", "        if len(suppressed):", "        if False:"
    ),
    "left out and not recorded": Mutant(
        "sendoff.ledger.requests.claims", "db.execute(_LEAVE_OUT, {**key", "dict({**key"
    ),
    "doubt resolved that is over": Mutant(
        "sendoff.ledger.requests.doubts",
        "dispatches.c.dispatch_key == dispatch_key, dispatches.c.state == DispatchState.IN_DOUBT",
        "dispatches.c.dispatch_key == dispatch_key",
    ),
    "resent again and again": Mutant(
        "sendoff.dispatch.policy", '"on_doubt: resend", now, doubts=1', '"on_doubt: resend", now, doubts=None'
    ),
    "decision not in the audit log": Mutant(
        "sendoff.ledger.control.audit_log",
        "            append_decision(db, decision)\n        return True\n\n    def newest",
        "            pass\n        return True\n\n    def newest",
    ),
    "resolved doubt not in the audit log": Mutant(
        "sendoff.ledger.requests.doubts",
        "append_decision(db, Decision(row.launch_key, kind, who, why, now, detail))",
        "dict()",
    ),
    "resumed after a stop": Mutant(
        "sendoff.ledger.control.audit_log",
        "DecisionKind.RELEASED: ((LaunchState.HELD,)",
        "DecisionKind.RELEASED: ((LaunchState.HELD, LaunchState.STOPPED)",
    ),
    "post-back answered before its commit": Mutant(
        "sendoff.postbacks.group_commit",
        "            self._queue.append((post_back, stored))",
        "            self._queue.append((post_back, stored)); stored.set_result(True)",
    ),
    "numbers of post-backs used twice": Mutant(
        "sendoff.postbacks.group_commit",
        "        self._next_number += len(numbered)",
        "        self._next_number += 0",
    ),
    "mark moved early": Mutant(
        "sendoff.ledger.post_backs.aggregates",
        "            self._add(db, run)\n            if run.parked:",
        "            db.exec_driver_sql('COMMIT'); db.exec_driver_sql('BEGIN IMMEDIATE'); self._add(db, run)\n"
        "            if run.parked:",
    ),
    "mark without compare-and-set": Mutant(
        "sendoff.ledger.post_backs.aggregates",
        ".where(receivers.c.receiver == receiver, receivers.c.aggregated_to == after)",
        ".where(receivers.c.receiver == receiver)",
    ),
    "totals replaced": Mutant(
        "sendoff.ledger.post_backs.totals",
        "delivered=self.delivered | other.delivered",
        "delivered=other.delivered",
    ),
    "evidence not looked at": Mutant(
        "sendoff.ledger.post_backs.aggregates",
        "        return sum(self._resolve(some, now) for some in chunked(keys))",
        "        return 0",
    ),
    "conflicting post-back ignored": Mutant(
        "sendoff.postbacks.reconcile",
        "        Verdict.DELIVERED: delivered,",
        "        Verdict.DELIVERED: delivered - sent.refused - sent.in_doubt,",
    ),
    "verdicts overlap": Mutant(
        "sendoff.postbacks.reconcile",
        "(people - engaged - delivered for people in (sent.accepted, sent.in_doubt))",
        "(people - engaged for people in (sent.accepted, sent.in_doubt))",
    ),
    "opt-out answered before its commit": Mutant(
        "sendoff.postbacks.opt_out",
        "return await asyncio.wait_for(asyncio.shield(storing), self.answer_timeout)",
        "return True",
    ),
    "opt-out lost": Mutant(
        "sendoff.postbacks.opt_out",
        "                    suppressions.add(new, who, now)\n                except",
        "                    pass\n                except",
    ),
    "opt-out of all messages kept to its topic": Mutant(
        "sendoff.postbacks.opt_out", "return [opt_out.scope, *wider]", "return [opt_out.scope]"
    ),
    "erasure forgets verdicts": Mutant(
        "sendoff.ledger.erasure.erasure_steps",
        "        _erase_chunks(work, verdicts, verdicts.c.launch_key == key, gone)",
        "        pass",
    ),
    "erasure forgets post-backs": Mutant(
        "sendoff.ledger.erasure.erasure_steps",
        "            scrub(db, receiver, found[",
        "            dict(found=found[",
    ),
    "erasure not asked when frozen": Mutant(
        "sendoff.ledger.launches.launches",
        "check_version(db, launch.known_erasures)",
        "check_version(db, None)",
    ),
    "decision about every launch": Mutant(
        "sendoff.ledger.control.audit_log",
        '_CHANGE = sa.update(launches).where(launches.c.launch_key == sa.bindparam("launch"))',
        '_CHANGE = sa.update(launches).where(sa.bindparam("launch") != "")',
    ),
    "dispatch of another launch claimed": Mutant(
        "sendoff.ledger.requests.next_dispatch",
        'sa.and_(table.c.launch_key == sa.bindparam("launch"), table.c.state',
        'sa.and_(sa.bindparam("launch") != "", table.c.state',
    ),
    "planned counts as unsent": Mutant(
        "sendoff.launch.verdict_audience",
        "        people |= ledger.launches.sent(launch.launch_key)",
        "        pass",
    ),
    "everyone counts as sent": Mutant(
        "sendoff.launch.verdict_audience",
        "for each in sets if each != Verdict.NOT_SENT)",
        "for each in sets)",
    ),
    "verdicts of another launch replaced": Mutant(
        "sendoff.ledger.results.verdicts",
        "        own = verdicts.c.launch_key == key\n        with self._database.write()",
        "        own = sa.true()\n        with self._database.write()",
    ),
    "broadcast closed as without recipients": Mutant(
        "sendoff.ledger.requests.claims",
        "(segment.identifiers is not None and not len(segment.identifiers)):",
        "not len(segment.identifiers or ()):",
    ),
    "recipients of a broadcast not expected": Mutant(
        "sendoff.postbacks.batch_totals",
        'known = known | ((encodings == Encoding.OPEN) & marks(batch["device_id"].is_valid()))',
        "pass",
    ),
    "everything a broadcast": Mutant(
        "sendoff.service.wire.requests", "int(isinstance(chosen, Broadcast))", "1"
    ),
    "campaign ID of an execution kept": Mutant(
        "sendoff.service.client",
        "return replace(outcome, campaign_id=None) if isinstance(outcome, Accepted) else outcome",
        "return outcome",
    ),
    "template values of other recipients": Mutant(
        "sendoff.audience.template_values",
        "return _stream(_table(blob).filter(pc.invert(is_gone)))",
        "return _stream(_table(blob).slice(is_gone.true_count))",
    ),
}


def break_product(name: str) -> None:
    """Change the line of a mutant. Call it before anything imports the product."""
    mutant = MUTANTS[name]
    if mutant.module in sys.modules:
        raise RuntimeError("the module is imported already")
    sys.meta_path.insert(0, _Finder(mutant))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(name, spec.origin, self._mutant)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, origin: str, mutant: Mutant) -> None:
        super().__init__(name, origin)
        self._mutant = mutant

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002 (the name is known)
        return compile(changed(Path(self.path).read_text(), self._mutant), self.path, "exec")


def changed(source: str, mutant: Mutant) -> str:
    """Return the source with the changed line. Raise ValueError if the line does not occur exactly once."""
    if source.count(mutant.before) != 1:
        raise ValueError(f"{mutant.module} has {source.count(mutant.before)} times: {mutant.before!r}")
    return source.replace(mutant.before, mutant.after)
