"""An independent checker: it proves from the events of a history alone that the promises held.

It imports nothing of Sendoff. The events come from outside of it. They tell what the service received, processed and
answered, what people asked, and which answers they got. They also tell which rows the product committed, and what the
ledger holds at the end. Each rule is a function that yields a sentence for each breach.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]

_PROVEN = {
    "accepted": {"accepted"},
    "refused": {"refused"},
    "rate limited": {"not_processed"},
    "not connected": {"not_processed"},
}
"""The outcomes that an answer of the service proves. Any other answer proves nothing, so it must be in doubt."""
_STATE_AFTER = {
    "approved": "released",
    "released": "released",
    "resumed": "released",
    "wave": "released",
    "held": "held",
    "paused": "paused",
    "stopped": "stopped",
    "rejected": "rejected",
}
_ALLOWED = {
    "released": {"held"},
    "resumed": {"paused"},
    "paused": {"released"},
    "held": {"released"},
    "wave": {"released"},
    "stopped": {"held", "released", "paused"},
}
"""The states of a launch in which a decision is possible."""
_RESOLVED = {"resend_dispatch": "planned", "write_off_dispatch": "written_off"}
_CLEARED = {"refused", "not_processed"}
_FAILED = {"refused", "in_doubt", "written_off"}
_SILENT = {"missing", "unknowable"}
_ASKED_BY_SENDOFF = {"sendoff", "the end"}


@dataclass(slots=True)
class Attempt:
    """One claim of a dispatch, with the recipients that may be in its request and its known outcomes."""

    dispatch: str
    number: int
    event: Event
    left_out: set[int] = field(default_factory=set)
    kinds: list[str] = field(default_factory=list)
    requests: list[Event] = field(default_factory=list)

    def includes(self, person: int) -> bool:
        """Whether a recipient of the dispatch is in its request, or may have been if none is known."""
        if self.requests:
            return any(person in request["people"] for request in self.requests)
        return person not in self.left_out

    @property
    def is_cleared(self) -> bool:
        """Whether it is certain that the service did not process it."""
        return bool(_CLEARED.intersection(self.kinds))

    @property
    def is_doubted(self) -> bool:
        """Whether the service may have processed it."""
        return not self.is_cleared and "accepted" not in self.kinds


class History:
    """The events of one launch, put in order."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = list(events)
        self.by_kind: defaultdict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            self.by_kind[event["event"]].append(event)
        segments = {event["segment"]: event["people"] for event in self.by_kind["segments"]}
        people = {event["dispatch"]: segments[event["segment"]] for event in self.by_kind["dispatches"]}
        self.chosen_by_service = {dispatch for dispatch, some in people.items() if some is None}
        named = defaultdict[str, set[int]](set)
        for event in self.by_kind["post-back answer"]:
            if event["status"] == 200:
                named[event["dispatch"]].add(event["person"])
        # If the service chooses the recipients, they are known only from post-backs.
        self.people = {key: named[key] if some is None else set(some) for key, some in people.items()}
        self.answers = {event["request"]: event["answer"] for event in self.by_kind["answer"]}
        self.erased = {event["person"] for event in self.by_kind["erasure answer"]}
        # Who asked may have been killed before the answer, whether the request was stored or not.
        self.perhaps_erased = {event["person"] for event in self.by_kind["erasure"]}
        self.campaigns = {event["request"]: event["campaign"] for event in self.by_kind["processed"]}
        self.recorded_evidence = {
            event["dispatch"] for event in self.by_kind["outcomes"] if event["kind"] == "evidence"
        }
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self._read_attempts()

    def _read_attempts(self) -> None:
        claimed_by: dict[tuple[str, str], Attempt] = {}
        left_out: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        for event in self.events:
            key = event.get("dispatch"), event.get("attempt")
            match event["event"]:
                case "withheld":
                    left_out[key] |= set(event["people"])  # type: ignore[index]
                case "attempts":
                    attempt = Attempt(*key, event, left_out[key])  # type: ignore[arg-type,index]
                    self.attempts[key] = claimed_by[event["dispatch"], event["by"]] = attempt  # type: ignore[index]
                case "outcomes" if key in self.attempts and event["kind"] != "evidence":
                    self.attempts[key].kinds.append(event["kind"])
                case "request" if (event["dispatch"], event["by"]) in claimed_by:
                    claimed_by[event["dispatch"], event["by"]].requests.append(event)

    def of(self, dispatch: str) -> list[Attempt]:
        """Return the attempts of a dispatch in order."""
        return [attempt for (key, _), attempt in sorted(self.attempts.items()) if key == dispatch]

    def named(self, dispatch: str, kind: str) -> tuple[set[int], set[int]]:
        """Return the recipients in the post-backs of a dispatch: those who count, and those who may count.

        A post-back counts if it was answered 2xx. One that names another campaign counts only while the ledger cannot
        know the dispatch's own.
        """
        certain, possible = set[int](), set[int]()
        own = {
            self.campaigns.get(each["request"]) for attempt in self.of(dispatch) for each in attempt.requests
        }
        for event in self.by_kind["post-back answer"]:
            if event["dispatch"] == dispatch and event["kind"] == kind and event["status"] == 200:
                person = event["person"]
                if person in self.people[dispatch] and person not in self.erased:
                    possible.add(person)
                    if event["campaign"] in own and person not in self.perhaps_erased:
                        certain.add(person)
        return certain, possible

    def has_evidence(self, dispatch: str) -> bool | None:
        """Whether a post-back proves that a request of the dispatch was processed; None: it may."""
        found: set[bool | None] = set()
        own = {
            self.campaigns.get(each["request"]) for attempt in self.of(dispatch) for each in attempt.requests
        }
        for event in self.by_kind["post-back answer"]:
            if (
                event["dispatch"] == dispatch
                and event["status"] == 200
                and event["person"] in self.people[dispatch]
            ):
                is_own = event["campaign"] in own and event["person"] not in self.perhaps_erased
                found.add(True if is_own else None)
        return True if True in found else (None if found else False)

    def state(self, dispatch: str) -> set[str]:
        """Return the states that a dispatch may have at the end, by the events alone."""
        attempts, evidence = self.of(dispatch), self.has_evidence(dispatch)
        if any("accepted" in attempt.kinds for attempt in attempts):
            return {"accepted"}
        if evidence is not False and dispatch in self.recorded_evidence:  # a later refusal changes nothing
            return {"accepted"}
        state = self._state_without_evidence(dispatch, attempts)
        if evidence is None:
            return state | {"accepted"}
        return {"accepted"} if evidence and state & {"planned", "in_doubt", "written_off"} else state

    def _state_without_evidence(self, dispatch: str, attempts: list[Attempt]) -> set[str]:
        closed = {"suppressed", "written_off"} if self._may_be_closed(dispatch) else set()
        if not attempts:
            return {"planned"} | closed
        newest, state = attempts[-1], "in_doubt"
        resolved = [
            event
            for event in self.by_kind["decisions"]
            if event["dispatch"] == dispatch and event["kind"] in _RESOLVED and event["n"] > newest.event["n"]
        ]
        if "refused" in newest.kinds and not resolved:
            return {"refused"}
        if resolved:
            state = _RESOLVED[resolved[-1]["kind"]]
        elif "not_processed" in newest.kinds:
            state = "planned"
        return {state} | (closed if state == "planned" else set())

    def _may_be_closed(self, dispatch: str) -> bool:
        """Whether all recipients of a dispatch may have opted out, or been erased, before its next request."""
        gone = self.perhaps_erased | {event["person"] for event in self.by_kind["opt-out"]}
        return dispatch not in self.chosen_by_service and self.people[dispatch] <= gone

    def verdicts(self, dispatch: str, person: int) -> set[str]:
        """Return the verdicts that a recipient may have."""
        opened, may_have_opened = self.named(dispatch, "open")
        delivered, may_be_delivered = self.named(dispatch, "delivery")
        if person in opened:
            return {"engaged"}
        allowed = {"engaged"} if person in may_have_opened else set()
        if person in delivered:
            return {"delivered"} | allowed
        if person in may_be_delivered:
            allowed.add("delivered")
        return allowed | self._silent(dispatch, person)

    def _silent(self, dispatch: str, person: int) -> set[str]:
        if dispatch in self.chosen_by_service:
            return {"none"}
        attempts = self.of(dispatch)
        mine = [each for each in attempts if each.includes(person)]
        accepted = [each for each in mine if "accepted" in each.kinds]
        doubted = [each for each in mine if each.is_doubted]
        evidence = self.has_evidence(dispatch)
        if accepted:
            return _SILENT if accepted[-1] is attempts[-1] else _SILENT | {"in_doubt"}
        if not doubted:
            return {"not_sent"}
        if evidence is False and not any("accepted" in each.kinds for each in attempts):
            return {"in_doubt"}
        return _SILENT | {"in_doubt"}


def check_once(history: History) -> Iterator[str]:
    """No recipient gets the message twice, unless someone decided to send a request again.

    If the service chooses the recipients, no request is processed twice, because it may choose others each time.
    """
    again = Counter(
        event["dispatch"] for event in history.by_kind["decisions"] if event["kind"] == "resend_dispatch"
    )
    dispatch_of = {event["request"]: event["dispatch"] for event in history.by_kind["request"]}
    got = Counter(
        (person, dispatch_of[event["request"]])
        for event in history.by_kind["processed"]
        for person in event["people"]
    )
    processed = Counter(dispatch_of[event["request"]] for event in history.by_kind["processed"])
    for dispatch in sorted(history.chosen_by_service):
        if processed[dispatch] > 1 + again[dispatch]:
            yield f"dispatch {dispatch[:8]} was processed {processed[dispatch]} times, with {again[dispatch]} resends"
    totals = Counter[int]()
    for (person, dispatch), times in got.items():
        totals[person] += 1
        if times > 1 + again[dispatch]:
            yield f"{person} got {times} messages in dispatch {dispatch[:8]}, with {again[dispatch]} resends"
    yield from (
        f"{person} got messages in {number} dispatches" for person, number in totals.items() if number > 1
    )
    yield from _resent_by_itself(history)


def _resent_by_itself(history: History) -> Iterator[str]:
    """Sendoff decides by itself to send a dispatch again only if one of its requests is in doubt, and no more."""
    uncertain: defaultdict[str, set[int]] = defaultdict(set)
    for event in history.events:
        match event["event"]:
            case "attempts":
                uncertain[event["dispatch"]].add(event["attempt"])
            case "outcomes" if event["kind"] in _CLEARED:
                uncertain[event["dispatch"]].discard(event["attempt"])
            case "decisions" if event["kind"] == "resend_dispatch" and event["who"] == "sendoff":
                number = len(uncertain[event["dispatch"]])
                if number != 1:
                    yield f"dispatch {event['dispatch'][:8]} is resent while {number} of its requests are in doubt"


def check_intent(history: History) -> Iterator[str]:
    """Each request has a claim of its own, committed before it by its own worker, and contains who was claimed.

    It lets the service choose the recipients only if the launch does. Values for a template are the recipient's own.
    """
    found = {event["n"]: attempt for attempt in history.attempts.values() for event in attempt.requests}
    for event in history.by_kind["request"]:
        attempt = found.get(event["n"])
        if attempt is None:
            yield f"request {event['request']} has no claim before it"
            continue
        is_chosen = attempt.dispatch in history.chosen_by_service
        claimed = set[int]() if is_chosen else history.people[attempt.dispatch] - attempt.left_out
        if not set(event["people"]) <= claimed:
            yield f"request {event['request']} contains someone whom its claim does not"
        if event.get("chooses", False) != is_chosen:
            yield f"request {event['request']} lets the service choose: {not is_chosen}; its launch: {is_chosen}"
        if event.get("values") and event["values"] != [str(person) for person in event["people"]]:
            yield f"request {event['request']} has values of other recipients"
    for attempt in history.attempts.values():
        if len(attempt.requests) > 1:
            yield f"attempt {attempt.number} of dispatch {attempt.dispatch[:8]} made {len(attempt.requests)} requests"


def check_outcomes(history: History) -> Iterator[str]:
    """Each recorded outcome is what the answer proves, and nothing is recorded as accepted that was not."""
    for attempt in history.attempts.values():
        answers = [history.answers.get(event["request"], "none") for event in attempt.requests]
        name = f"attempt {attempt.number} of dispatch {attempt.dispatch[:8]}"
        for kind in attempt.kinds:
            if kind == "in_doubt":  # the worker may have died after the answer
                continue
            if kind == "not_processed" and not answers:
                continue
            if not answers or kind not in _PROVEN.get(answers[-1], set()):
                yield f"{name} is recorded as {kind}; the answer was: {', '.join(answers) or 'no request'}"


def check_post_backs(history: History) -> Iterator[str]:
    """No post-back that was answered 2xx is lost, and none counts twice."""
    sent, answered = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for event in history.by_kind["post-back"]:
        sent[event["dispatch"], event["kind"]] += 1
    for event in history.by_kind["post-back answer"]:
        answered[event["dispatch"], event["kind"]] += event["status"] == 200
    stored = Counter[tuple[str, str]]()
    for dispatch, deliveries, opens in _rows(history, "totals"):
        stored[dispatch, "delivery"], stored[dispatch, "open"] = deliveries, opens
    for key in sent | stored:
        if not answered[key] <= stored[key] <= sent[key]:
            yield (
                f"dispatch {key[0][:8]}, {key[1]}: {answered[key]} answered 2xx of {sent[key]} sent, "
                f"{stored[key]} counted"
            )


def check_verdicts(history: History) -> Iterator[str]:
    """Each recipient has exactly one verdict, and it follows from the events. The totals add up."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for event in history.by_kind["verdict"]:
        for person in event["people"]:
            found[person].append(event["verdict"])
    for dispatch, people in history.people.items():
        for person in sorted(people - history.erased):
            allowed, verdicts = history.verdicts(dispatch, person), found.pop(person, [])
            if dispatch in history.chosen_by_service:
                verdicts = verdicts or ["none"]
            if not verdicts and person in history.perhaps_erased:
                continue
            if len(verdicts) != 1 or verdicts[0] not in allowed:
                yield f"{person} has the verdicts {verdicts}; the events allow one of {sorted(allowed)}"
    yield from (f"{person} has a verdict, and is no recipient" for person in found)
    yield from _misreported(history)


def _misreported(history: History) -> Iterator[str]:
    """The totals of each report add up. The last report counts everyone of earlier ones.

    If the service chooses the recipients, a report counts no one without a post-back before it.
    """
    reports = history.by_kind["report"]
    for event in reports:
        total = sum(event["verdicts"].values()) + event["erased"]
        if total != event["audience"]:
            yield f"the report at {event['at']} has {total} people in place of {event['audience']}"
        named = {each["person"] for each in history.by_kind["post-back"] if each["n"] < event["n"]}
        if history.chosen_by_service and event["audience"] > len(named):
            yield f"the report at {event['at']} has {event['audience']} people, and post-backs name {len(named)}"
    if reports and reports[-1]["audience"] < (most := max(event["audience"] for event in reports)):
        yield f"the last report has {reports[-1]['audience']} people, and an earlier one {most}"


def check_doubts(history: History) -> Iterator[str]:
    """A dispatch is in doubt exactly if no evidence decides it, and every state follows from the events."""
    states = {dispatch: state for dispatch, state, _ in _rows(history, "states")}
    doubts = {dispatch for event in history.by_kind["doubts"] for dispatch in event["dispatches"]}
    for dispatch in history.people:
        allowed = history.state(dispatch)
        if states.get(dispatch) not in allowed:
            yield f"dispatch {dispatch[:8]} is {states.get(dispatch)}; the events allow {sorted(allowed)}"
        if (dispatch in doubts) != (states.get(dispatch) == "in_doubt"):
            yield f"dispatch {dispatch[:8]} is {states.get(dispatch)}, and {'' if dispatch in doubts else 'not '}listed"


def check_resolutions(history: History) -> Iterator[str]:
    """Only a dispatch in doubt is sent again or written off."""
    kinds: defaultdict[str, dict[int, list[str]]] = defaultdict(dict)
    for event in history.events:
        match event["event"]:
            case "attempts":
                kinds[event["dispatch"]][event["attempt"]] = []
            case "outcomes":
                kinds[event["dispatch"]].setdefault(event["attempt"], []).append(event["kind"])
            case "decisions" if event["kind"] in _RESOLVED:
                attempts = kinds[event["dispatch"]]
                newest = attempts[max(attempts)] if attempts else []
                known = {kind for each in attempts.values() for kind in each}
                if (
                    "in_doubt" not in newest
                    or known & {"accepted", "evidence"}
                    or _CLEARED.intersection(newest)
                ):
                    yield f"{event['who']}: {event['kind']} of dispatch {event['dispatch'][:8]}, which is not in doubt"


def check_opt_outs(history: History) -> Iterator[str]:
    """No one is in a request that was claimed after the answer to an opt-out, and no opt-out is lost."""
    until: dict[int, int] = {}
    for event in history.by_kind["opt-out answer"]:
        if event["status"] == 200:
            until.setdefault(event["person"], event["n"])
    yield from _contacted(history, until, "an opt-out")
    listed = {int(row[0]) for row in _rows(history, "suppressed")}
    yield from (
        f"the opt-out of {person} is lost"
        for person in until
        if person not in listed | history.perhaps_erased
    )


def check_erasures(history: History) -> Iterator[str]:
    """No one is in a request that was claimed after the answer to an erasure, and nothing of them is left."""
    until = {event["person"]: event["n"] for event in history.by_kind["erasure answer"]}
    yield from _contacted(history, until, "an erasure")
    for event in history.by_kind["remains"]:
        yield from (f"{event['person']} is still in {table}" for table in event["tables"])


def _contacted(history: History, until: Mapping[int, int], why: str) -> Iterator[str]:
    for attempt in history.attempts.values():
        for event in attempt.requests:
            for person in event["people"]:
                if until.get(person, attempt.event["began"]) < attempt.event["began"]:
                    yield f"{person} is in request {event['request']}, claimed after the answer to {why}"


def check_leases(history: History) -> Iterator[str]:
    """No one puts another worker's request in doubt before its lease has ended by the ledger's clock."""
    lease = next((event["lease"] for event in history.by_kind["begin"]), 0.0)
    for event in history.by_kind["outcomes"]:
        attempt = history.attempts.get((event["dispatch"], event["attempt"]))
        if attempt and event["kind"] == "in_doubt" and event["by"] != attempt.event["by"]:
            age = max(event["ledger"]) - min(attempt.event["ledger"])
            if age < lease:
                name = f"attempt {attempt.number} of dispatch {attempt.dispatch[:8]}"
                yield f"{name} is put in doubt by another worker after {age:g} seconds"


def check_control(history: History) -> Iterator[str]:
    """Nothing is claimed while the launch is held, paused or stopped, or its wave is closed. No decision is illegal.

    Nor is anything claimed while all launches are paused.
    """
    state, open_wave, is_open = "released", 1, True
    waves = {event["dispatch"]: event["wave"] for event in history.by_kind["dispatches"]}
    for event in history.events:
        if event["event"] == "decisions":
            if state not in _ALLOWED.get(event["kind"], {state}):
                yield f"{event['who']} {event['kind']} a launch that is {state}"
            state = _STATE_AFTER.get(event["kind"], state)
            open_wave += event["kind"] == "wave"
            is_open = {"paused_all": False, "resumed_all": True}.get(event["kind"], is_open)
        elif event["event"] == "attempts":
            name = f"attempt {event['attempt']} of dispatch {event['dispatch'][:8]}"
            if state != "released":
                yield f"{name} is claimed while the launch is {state}"
            if not is_open:
                yield f"{name} is claimed while all launches are paused"
            if waves[event["dispatch"]] > open_wave:
                yield f"{name} is claimed before its wave is open"


def check_waves(history: History) -> Iterator[str]:
    """Sendoff opens a wave only if few enough of the requests that were made before it are refused or in doubt.

    A dispatch that a post-back names does not count: who opened the wave may have known of it.
    """
    limit = next((event.get("refused", 100) for event in history.by_kind["begin"]), 100)
    waves = {event["dispatch"]: event["wave"] for event in history.by_kind["dispatches"]}
    for event in history.by_kind["decisions"]:
        if event["kind"] == "wave" and event.get("judged"):
            before = History(each for each in history.events if each["n"] < event["n"])
            named = {each["dispatch"] for each in before.by_kind["post-back"]}
            made = [key for key in before.people if waves[key] <= event["judged"] and before.of(key)]
            failed = [key for key in made if key not in named and before.state(key) <= _FAILED]
            if 100 * len(failed) > limit * len(made):
                yield f"wave {event['judged'] + 1} is open, and {len(failed)} of {len(made)} requests before it failed"


def check_audit(history: History) -> Iterator[str]:
    """Each decision is in the audit log once, with its author, and the log explains the state of the launch."""
    rows = Counter((kind, who) for kind, who, _ in _rows(history, "audit"))
    asked = Counter[tuple[str, str]]()
    for event in history.by_kind["decision answer"]:
        key = event["kind"], event["who"]
        asked[key] += 1
        if event["done"] is not None and rows[key] != event["done"]:
            yield f"{event['who']} {event['kind']}: done is {event['done']}, and the audit log has {rows[key]} entries"
    for event in history.by_kind["erasure answer"]:
        for kind in ("erasure_requested", "erased"):
            if not rows[kind, event["who"]]:
                yield f"the audit log has no entry {kind} of {event['who']}"
    people = {event["who"] for name in ("decision", "erasure") for event in history.by_kind[name]}
    yield from (
        f"the audit log has an entry {kind} of {who}, who did not ask"
        for kind, who in rows
        if who not in people | _ASKED_BY_SENDOFF
    )
    state = "released"
    for kind, _, _ in _rows(history, "audit"):
        state = _STATE_AFTER.get(kind, state)
    if (found := [row[0] for row in _rows(history, "launch")]) != [state]:
        yield f"the launch is {found}; its audit log says {state}"


def check_end(history: History) -> Iterator[str]:
    """Everything comes to an end, and no process fails in a way that is no answer."""
    for event in history.by_kind["endless"] + history.by_kind["unexpected"]:
        yield f"{event.get('of', '')}: {event.get('why', '')}{event.get('kind', '')} {event.get('text', '')}"
    is_released = [row[0] for row in _rows(history, "launch")] == ["released"]
    for dispatch, state, _ in _rows(history, "states"):
        if state == "in_flight" or (state == "planned" and is_released):
            yield f"dispatch {dispatch[:8]} is {state} at the end"
    if history.by_kind["begin"] and not history.by_kind["launch"]:
        yield "the history has no end"


def _rows(history: History, name: str) -> list[Any]:
    return [row for event in history.by_kind[name] for row in event["rows"]]


RULES: Mapping[str, Callable[[History], Iterator[str]]] = {
    "once": check_once,
    "intent": check_intent,
    "outcomes": check_outcomes,
    "post-backs": check_post_backs,
    "verdicts": check_verdicts,
    "doubts": check_doubts,
    "opt-outs": check_opt_outs,
    "erasures": check_erasures,
    "leases": check_leases,
    "resolutions": check_resolutions,
    "control": check_control,
    "waves": check_waves,
    "audit": check_audit,
    "end": check_end,
}


def check(events: Iterable[Event]) -> list[str]:
    """Return a sentence for each breach of a rule, with the name of the rule before it."""
    events = list(events)
    histories = [History(some) for some in by_launch(events)]
    breaches = [f"resends: {breach}" for breach in check_resends(events)]
    breaches += [
        f"{name}: {breach}"
        for history in histories
        for name, rule in RULES.items()
        for breach in rule(history)
    ]
    return list(dict.fromkeys(breaches))


def by_launch(events: Sequence[Event]) -> list[list[Event]]:
    """Return the events of each launch, with all that belong to no launch, such as an opt-out."""
    dispatches = {
        event["dispatch"]: event.get("launch") for event in events if event["event"] == "dispatches"
    }
    requests = {
        event["request"]: dispatches.get(event["dispatch"]) for event in events if event["event"] == "request"
    }

    def launch_of(event: Event) -> Any:
        return (
            event.get("launch") or dispatches.get(event.get("dispatch")) or requests.get(event.get("request"))
        )

    launches = next((event["launches"] for event in events if "launches" in event), [None])
    unmade = {event["launch"] for event in events if event["event"] == "not launched"}
    return [
        [event for event in events if launch_of(event) in (None, launch)]
        for launch in launches
        if launch not in unmade
    ]


def check_resends(events: Sequence[Event]) -> Iterator[str]:
    """No one gets the message of a launch and of its resend to those who got nothing.

    A resend that was not made would have had no recipients.
    """
    launch_of = {event["dispatch"]: event.get("launch") for event in events if event["event"] == "dispatches"}
    dispatch_of = {event["request"]: event["dispatch"] for event in events if event["event"] == "request"}
    got: defaultdict[Any, set[int]] = defaultdict(set)
    for event in events:
        if event["event"] == "processed":
            got[launch_of.get(dispatch_of[event["request"]])] |= set(event["people"])
    resends: Mapping[str, str] = next((event["resends"] for event in events if "resends" in event), {})
    unmade = {event["launch"]: event["people"] for event in events if event["event"] == "not launched"}
    for again, first in resends.items():
        yield from (f"{person} got a launch and its resend" for person in sorted(got[again] & got[first]))
        if again in unmade:
            [history] = (
                History(some) for some in by_launch(events) if any(e.get("launch") == first for e in some)
            )
            for person in sorted(_certainly_unsent(history) & set(unmade[again])):
                yield f"{person} got nothing, and the resend was not made"


def _certainly_unsent(history: History) -> set[int]:
    """Return the recipients whose requests were all refused, or never made in a launch that was stopped."""
    is_stopped = [row[0] for row in _rows(history, "launch")] == ["stopped"]
    found = set[int]()
    for dispatch, state, _ in _rows(history, "states"):
        is_over = state == "refused" or (state == "planned" and is_stopped)
        if is_over and not any(attempt.is_doubted for attempt in history.of(dispatch)):
            found |= history.people[dispatch]
    return found - history.perhaps_erased


def main() -> int:
    """Check the histories in files of JSON lines. A new one starts with an event ``begin``."""
    breaches = 0
    for file in sys.argv[1:]:
        histories: list[list[Event]] = []
        for line in Path(file).read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "begin" or not histories:
                histories.append([])
            histories[-1].append(event)
        for number, events in enumerate(histories, start=1):
            for breach in check(events):
                breaches += 1
                sys.stdout.write(f"{file}, history {number}: {breach}\n")
        sys.stdout.write(f"{file}: {len(histories)} histories checked\n")
    return int(breaches > 0)


if __name__ == "__main__":
    raise SystemExit(main())
