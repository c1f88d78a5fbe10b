"""The checker of histories: a good one passes, and each rule notices a bad one. All are written by hand."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tools.simulator import checker
from tools.simulator.checker import RULES, by_launch, check

Event = dict[str, Any]


def numbered(events: Sequence[Event]) -> list[Event]:
    """Return events with the members that every event has."""
    usual = {"by": "worker", "ledger": [0.0, 0.0], "who": "sendoff", "dispatch": None}
    return [{**usual, "began": n, **event, "n": n, "at": float(n)} for n, event in enumerate(events)]


def frozen() -> list[Event]:
    """Two dispatches, to the recipients 1 and 2 and to the recipient 3."""
    return [
        {"event": "begin", "lease": 300.0, "refused": 50},
        {"event": "segments", "segment": 1, "people": [1, 2]},
        {"event": "segments", "segment": 2, "people": [3]},
        {"event": "dispatches", "dispatch": "a", "segment": 1, "wave": 1},
        {"event": "dispatches", "dispatch": "b", "segment": 2, "wave": 2},
    ]


def request(
    dispatch: str, number: int, people: list[int], answer: str = "accepted", attempt: int = 1
) -> list[Event]:
    kind = {"accepted": "accepted", "refused": "refused", "rate limited": "not_processed"}.get(
        answer, "in_doubt"
    )
    processed = [{"event": "processed", "request": number, "campaign": number, "people": people}]
    return [
        {"event": "attempts", "dispatch": dispatch, "attempt": attempt},
        {"event": "request", "request": number, "dispatch": dispatch, "people": people},
        *(processed if answer in ("accepted", "none") else []),
        {"event": "answer", "request": number, "answer": answer},
        {"event": "outcomes", "dispatch": dispatch, "attempt": attempt, "kind": kind},
    ]


def wave(judged: int | None = None) -> Event:
    return {"event": "decisions", "kind": "wave", "judged": judged}


def post_back(dispatch: str, person: int, kind: str = "delivery", campaign: int = 1) -> list[Event]:
    facts = {"kind": kind, "dispatch": dispatch, "person": person, "campaign": campaign}
    return [{"event": "post-back", **facts}, {"event": "post-back answer", "status": 200, **facts}]


def end(
    verdicts: dict[str, list[int]],
    states: dict[str, str],
    totals: dict[str, tuple[int, int]] | None = None,
    audit: list[list[Any]] | None = None,
    suppressed: list[int] | None = None,
    erased: int = 0,
) -> list[Event]:
    counts = {verdict: len(people) for verdict, people in verdicts.items()}
    return [
        {"event": "report", "verdicts": counts, "erased": erased, "audience": 3},
        {"event": "doubts", "dispatches": [key for key, state in states.items() if state == "in_doubt"]},
        {"event": "states", "rows": [[key, state, 1] for key, state in states.items()]},
        {"event": "totals", "rows": [[key, *counted] for key, counted in (totals or {}).items()]},
        {"event": "audit", "rows": [["wave", "sendoff", None]] if audit is None else audit},
        {"event": "launch", "rows": [["released"]]},
        {"event": "suppressed", "rows": [[person] for person in suppressed or []]},
        *({"event": "verdict", "verdict": verdict, "people": people} for verdict, people in verdicts.items()),
    ]


DONE = {"a": "accepted", "b": "accepted"}
SENT = [*frozen(), *request("a", 1, [1, 2]), wave(), *request("b", 2, [3])]
GOOD = [*SENT, *post_back("a", 1), *end({"delivered": [1], "missing": [2, 3]}, DONE, {"a": (1, 0)})]
OPT_OUT = {"event": "opt-out answer", "person": 3, "status": 200}
OF_ANNA = {"who": "anna", "kind": "write_off_dispatch", "dispatch": "a"}
OF_ANNA_COMMITTED = {"event": "decisions", **OF_ANNA}
DOUBTED = [*frozen(), *request("a", 1, [1, 2], "none"), wave(), *request("b", 2, [3])]

OF_SENDOFF = {"event": "decisions", "who": "sendoff", "kind": "resend_dispatch", "dispatch": "a"}
PROVEN = [
    *frozen(),
    *request("a", 1, [1, 2], "none"),
    OF_SENDOFF,
    *request("a", 2, [1, 2], "refused", attempt=2)[:-1],
    *post_back("a", 1, "open"),
    {"event": "outcomes", "dispatch": "a", "attempt": 2, "kind": "evidence"},
]
REFUSED = {"event": "outcomes", "dispatch": "a", "attempt": 2, "kind": "refused"}
OPENED = {"engaged": [1], "in_doubt": [2], "missing": [3]}
RESENT: list[list[Any]] = [["resend_dispatch", "sendoff", "a"], ["wave", "sendoff", None]]


def test_a_launch_without_a_fault_is_good() -> None:
    assert check(numbered(GOOD)) == []


@pytest.mark.parametrize(
    "events",
    [
        [*DOUBTED, *end({"in_doubt": [1, 2], "missing": [3]}, {"a": "in_doubt", "b": "accepted"})],
        [
            *DOUBTED,
            *post_back("a", 1, "open"),
            *end({"engaged": [1], "missing": [2, 3]}, DONE, {"a": (0, 1)}),
        ],
        [
            *frozen(),
            *request("a", 1, [1, 2], "refused"),
            wave(),
            {"event": "opt-out", "person": 3},
            OPT_OUT,
            *end({"not_sent": [1, 2, 3]}, {"a": "refused", "b": "suppressed"}, suppressed=[3]),
        ],
        [
            *DOUBTED,
            {"event": "decision", **OF_ANNA},
            {"event": "decisions", **OF_ANNA},
            {"event": "decision answer", "done": True, **OF_ANNA},
            *end(
                {"in_doubt": [1, 2], "missing": [3]},
                {"a": "written_off", "b": "accepted"},
                audit=[["wave", "sendoff", None], ["write_off_dispatch", "anna", "a"]],
            ),
        ],
        [
            *frozen(),
            *request("a", 1, [1, 2], "rate limited"),
            *request("a", 2, [1, 2], attempt=2),
            wave(judged=1),
            *request("b", 3, [3]),
            *end({"missing": [1, 2, 3]}, DONE),
        ],
        [
            *frozen(),
            *request("a", 1, [1, 2], "rate limited")[:-2],
            {"event": "outcomes", "dispatch": "a", "attempt": 1, "kind": "in_doubt"},
            OF_SENDOFF,
            *request("a", 2, [1, 2], "none", attempt=2),
            {"event": "answer", "request": 1, "answer": "rate limited"},
            {"event": "outcomes", "dispatch": "a", "attempt": 1, "kind": "not_processed"},
            OF_SENDOFF,
            wave(),
            *request("b", 3, [3]),
            *request("a", 4, [1, 2], attempt=3),
            *end({"missing": [1, 2, 3]}, DONE, audit=[*RESENT[:1] * 2, RESENT[1]]),
        ],
        [
            *PROVEN,
            REFUSED,
            wave(judged=1),
            *request("b", 3, [3]),
            *end(OPENED, DONE, {"a": (0, 1)}, audit=RESENT),
        ],
        [
            *PROVEN[:-1],
            REFUSED,
            wave(),
            *request("b", 3, [3]),
            *end(OPENED, {"a": "refused", "b": "accepted"}, {"a": (0, 1)}, audit=RESENT),
        ],
    ],
    ids=[
        "in doubt",
        "evidence",
        "refused and opted out",
        "written off",
        "rate limited",
        "resent twice, because the first was not processed",
        "evidence before a late refusal",
        "refusal before evidence was looked at",
    ],
)
def test_other_good_histories_pass(events: list[Event]) -> None:
    assert check(numbered(events)) == []


def without(kind: str, events: list[Event] = GOOD) -> list[Event]:
    return [event for event in events if event["event"] != kind]


def changed(kind: str, **members: Any) -> list[Event]:
    return [{**event, **members} if event["event"] == kind else event for event in GOOD]


ALL_MISSING = end({"missing": [1, 2, 3]}, DONE)
BAD: dict[str, list[Event]] = {
    "once": [*SENT, {"event": "processed", "request": 1, "campaign": 9, "people": [1, 2]}, *ALL_MISSING],
    "intent": without("attempts"),
    "outcomes": [*frozen(), *request("a", 1, [1, 2], "none")[:-1], {**request("a", 1, [])[-1]}, *ALL_MISSING],
    "post-backs": [*SENT, *post_back("a", 1), *end({"delivered": [1], "missing": [2, 3]}, DONE)],
    "verdicts": [*SENT, *post_back("a", 1), *end({"missing": [1, 2, 3]}, DONE, {"a": (1, 0)})],
    "doubts": [*DOUBTED, *end({"in_doubt": [1, 2], "missing": [3]}, {"a": "refused", "b": "accepted"})],
    "opt-outs": [*frozen(), OPT_OUT, wave(), *request("b", 2, [3]), *ALL_MISSING],
    "erasures": [
        *SENT,
        {"event": "erasure answer", "person": 3, "who": "anna"},
        *end({"missing": [1, 2]}, DONE, erased=1),
        {"event": "remains", "person": 3, "tables": ["segments"]},
    ],
    "leases": [*DOUBTED[:-6], {**DOUBTED[-7], "by": "another", "ledger": [10.0, 20.0]}, *ALL_MISSING],
    "resolutions": [*SENT, {"event": "decisions", **OF_ANNA}, *ALL_MISSING],
    "control": [*frozen(), {"event": "decisions", "kind": "paused"}, *request("a", 1, [1, 2]), *ALL_MISSING],
    "waves": [*frozen(), *request("a", 1, [1, 2], "refused"), wave(judged=1), *end({}, {})],
    "audit": [*SENT, {"event": "decision answer", "done": True, **OF_ANNA}, *ALL_MISSING],
    "end": [*frozen(), *end({"not_sent": [1, 2, 3]}, {"a": "planned", "b": "planned"})],
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_notices_a_bad_history(rule: str) -> None:
    assert rule in {breach.partition(":")[0] for breach in check(numbered(BAD[rule]))}


@pytest.mark.parametrize(
    ("events", "breach"),
    [
        (changed("launch", rows=[["held"]]), "its audit log says released"),
        ([*GOOD, {"event": "verdict", "verdict": "not_sent", "people": [9]}], "is no recipient"),
        ([*GOOD, {"event": "verdict", "verdict": "not_sent", "people": [1]}], "has the verdicts"),
        (changed("report", audience=4), "in place of 4"),
        (
            changed("audit", rows=[["wave", "sendoff", None], ["stopped", "bob", None]]),
            "of bob, who did not ask",
        ),
        ([*GOOD, OPT_OUT], "the opt-out of 3 is lost"),
        ([*GOOD, {"event": "unexpected", "of": "worker", "kind": "KeyError", "text": "x"}], "KeyError"),
        (changed("dispatches", wave=3), "before its wave is open"),
        (
            [*frozen(), {"event": "decisions", "kind": "paused_all"}, *GOOD[5:]],
            "while all launches are paused",
        ),
        ([*PROVEN[:-1], OF_SENDOFF, *ALL_MISSING], "is resent while 2 of its requests are in doubt"),
        ([*frozen(), OF_SENDOFF, *ALL_MISSING], "is resent while 0 of its requests are in doubt"),
        (without("launch"), "the history has no end"),
        (
            [*DOUBTED[:-6], OF_ANNA_COMMITTED, wave(judged=1), *end({}, {})],
            "1 of 1 requests before it failed",
        ),
        (
            [
                *frozen(),
                {"event": "segments", "segment": 3, "people": [4]},
                {"event": "dispatches", "dispatch": "c", "segment": 3, "wave": 1},
                *request("a", 1, [1, 2], "refused"),
                wave(judged=1),
                *end({}, {}),
            ],
            "1 of 1 requests before it failed",
        ),
    ],
)
def test_parts_of_rules_notice_too(events: list[Event], breach: str) -> None:
    assert any(breach in found for found in check(numbered(events))), check(numbered(events))


OF_A_LAUNCH = {
    "segments",
    "dispatches",
    "decisions",
    "report",
    "doubts",
    "states",
    "totals",
    "audit",
    "launch",
    "verdict",
}


def of_launch(name: str, events: list[Event]) -> list[Event]:
    """Return the events of a history as those of one of several launches, with its own dispatches and requests."""
    found = []
    for event in events[1:]:
        own = dict(event)
        if event["event"] in OF_A_LAUNCH:
            own["launch"] = name
        if event.get("dispatch"):
            own["dispatch"] = f"{name}-{event['dispatch']}"
        if "request" in event:
            own["request"] = f"{name}-{event['request']}"
        if event["event"] in ("states", "totals"):
            own["rows"] = [[f"{name}-{key}", *rest] for key, *rest in event["rows"]]
        found.append(own)
    return found


def test_launches_are_judged_one_by_one() -> None:
    """The same people get a message of each, and what holds one does not hold the other."""
    begin = {"event": "begin", "lease": 300.0, "launches": ["x", "y"]}
    x, y = of_launch("x", GOOD), of_launch("y", [*SENT, *ALL_MISSING])
    assert check(numbered([begin, *x, *y])) == []
    of_x, of_y = by_launch(numbered([begin, *x, *y]))
    assert {event.get("launch") for event in of_x} == {None, "x"}
    assert {event["request"] for event in of_y if event["event"] == "request"} == {"y-1", "y-2"}

    paused = {"event": "decisions", "kind": "paused", "launch": "y"}
    breaches = check(numbered([begin, paused, *x, *y]))
    assert any("dispatch y-a is claimed while the launch is paused" in breach for breach in breaches)
    assert not any("dispatch x-" in breach for breach in breaches)

    twice = {"event": "processed", "request": "y-1", "campaign": 9, "people": [1, 2]}
    assert check(numbered([begin, *x, *y, twice])) == [
        f"once: {person} got 2 messages in dispatch y-a, with 0 resends" for person in (1, 2)
    ]


def test_a_resend_reaches_no_one_who_got_the_launch() -> None:
    begin = {"event": "begin", "lease": 300.0, "launches": ["x", "y"], "resends": {"y": "x"}}
    x, y = of_launch("x", GOOD), of_launch("y", [*SENT, *ALL_MISSING])
    assert check(numbered([begin, *x, *y])) == [
        f"resends: {person} got a launch and its resend" for person in (1, 2, 3)
    ]
    unmade = {"event": "not launched", "launch": "y", "people": [1, 2, 3]}
    assert check(numbered([begin, *x, unmade])) == []
    refused = [*frozen(), *request("a", 1, [1, 2]), wave(), *request("b", 2, [3], "refused")]
    rest = end({"missing": [1, 2], "not_sent": [3]}, {"a": "accepted", "b": "refused"})
    assert check(numbered([begin, *of_launch("x", [*refused, *rest]), unmade])) == [
        "resends: 3 got nothing, and the resend was not made"
    ]


CHOSEN = {"chooses": True}
SENT_TO_ALL: list[Event] = [
    {"event": "begin", "lease": 300.0},
    {"event": "segments", "segment": 1, "people": None},
    {"event": "dispatches", "dispatch": "a", "segment": 1, "wave": 1},
    {"event": "attempts", "dispatch": "a", "attempt": 1},
    {"event": "request", "request": 1, "dispatch": "a", "people": [], **CHOSEN},
    {"event": "processed", "request": 1, "campaign": 1, "people": [1, 2, 3]},
    {"event": "answer", "request": 1, "answer": "none"},
    {"event": "outcomes", "dispatch": "a", "attempt": 1, "kind": "in_doubt"},
    *post_back("a", 1, "open"),
    *post_back("a", 2),
]


def end_of_broadcast(
    verdicts: dict[str, list[int]], state: str = "accepted", audience: int = 2
) -> list[Event]:
    report, *others = end(verdicts, {"a": state}, {"a": (1, 1)}, audit=[])
    return [{**report, "audience": audience}, *others]


FOUND = {"engaged": [1], "delivered": [2]}


@pytest.mark.parametrize(
    ("events", "breach"),
    [
        (end_of_broadcast(FOUND), ""),
        (end_of_broadcast(FOUND, "in_doubt"), "doubts: dispatch a is in_doubt; the events allow ['accepted']"),
        (end_of_broadcast(FOUND, "suppressed"), "doubts: dispatch a is suppressed"),
        (end_of_broadcast({"engaged": [1]}, audience=1), "verdicts: 2 has the verdicts ['none']"),
        (end_of_broadcast({**FOUND, "missing": [3]}, audience=3), "verdicts: 3 has a verdict"),
        (end_of_broadcast({**FOUND, "missing": [3]}, audience=3), "has 3 people, and post-backs name 2"),
        ([*end_of_broadcast(FOUND), {"event": "report", "verdicts": {}, "erased": 1, "audience": 1}], "earlier one 2"),
        ([SENT_TO_ALL[5], *end_of_broadcast(FOUND)], "once: dispatch a was processed 2 times, with 0 resends"),
    ],
)  # fmt: skip
def test_a_broadcast_is_judged_by_its_post_backs(events: list[Event], breach: str) -> None:
    breaches = check(numbered([*SENT_TO_ALL, *events]))
    assert any(breach in each for each in breaches) if breach else breaches == []


@pytest.mark.parametrize(
    ("members", "breach"),
    [
        (CHOSEN, "request 1 lets the service choose: True; its launch: False"),
        ({"values": ["1", "3"]}, "request 1 has values of other recipients"),
    ],
)
def test_a_request_to_recipients_of_a_query_is_for_them_only(members: Event, breach: str) -> None:
    events = [{**event, **members} if event.get("people") == [1, 2] else event for event in GOOD]
    assert f"intent: {breach}" in check(numbered(events))


def test_the_checker_imports_nothing_of_sendoff_or_of_the_simulator() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    names = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= set(sys.stdlib_module_names) | {"collections.abc"}


def test_the_checker_judges_exported_files(tmp_path: Path) -> None:
    file = tmp_path / "histories.jsonl"
    lines = [json.dumps(event) for events in (GOOD, BAD["once"]) for event in numbered(events)]
    file.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-I", checker.__file__, file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "history 2: once: 1 got 2 messages" in done.stdout
    assert "2 histories checked" in done.stdout
