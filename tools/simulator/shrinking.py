"""A failing history made smaller: choices that do not matter for its failure return to their default.

The default of every choice is the simple one: no fault, no switch, no such actor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tools.simulator.checker import Event

_MOST_TRIES = 400


def shrunk(
    taken: Mapping[str, Any], fails: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> dict[str, Any]:
    """Return fewer choices that still fail. ``fails``: returns the choices that a history took if it fails alike."""
    best, size, tries = dict(taken), max(len(taken) // 2, 1), 0
    while True:
        start, is_smaller = 0, False
        while start < len(best) and tries < _MOST_TRIES:
            tries += 1
            names = list(best)
            left = {name: best[name] for name in names[:start] + names[start + size :]}
            used = fails(left)
            if used is not None and len(used) < len(best):
                best, is_smaller = {name: left[name] for name in names if name in used and name in left}, True
            else:
                start += size
        if tries >= _MOST_TRIES or (size == 1 and not is_smaller):
            return best
        size = max(size // 2, 1)


def timeline(events: Sequence[Event]) -> Iterator[str]:
    """Yield a line for each event that a person needs to understand a history."""
    launches: Sequence[str] = next((event["launches"] for event in events if "launches" in event), ())
    several = launches if len(launches) > 1 else ()
    of_launch: dict[str | None, str] = {
        launch: f" of launch {number}" for number, launch in enumerate(several, start=1)
    }
    names = {
        event["dispatch"]: f"dispatch {event['segment']}{of_launch.get(event['launch'], '')}"
        for event in events
        if event["event"] == "dispatches"
    }
    for event in events:
        if sentence := _SENTENCES.get(event["event"]):
            dispatch = event.get("dispatch") or ""  # a decision may be about the whole launch
            launch = "" if dispatch else of_launch.get(event.get("launch"), "")
            named = _Facts({**event, "dispatch": names.get(dispatch, dispatch), "of launch": launch})
            yield f"{event['at']:9.1f}  {sentence.format_map(named)}".rstrip()


class _Facts(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "?"


_SENTENCES = {
    "segments": "segment {segment}{of launch} is frozen: {people}",
    "attempts": "{by} claims {dispatch}, attempt {attempt}",
    "withheld": "{by} leaves {people} out of {dispatch}, attempt {attempt}",
    "outcomes": "{by} records {dispatch}, attempt {attempt}: {kind}",
    "decisions": "{by} writes into the audit log: {kind}{of launch} by {who} {dispatch}",
    "request": "{by} sends request {request} of {dispatch} to {people}",
    "processed": "the service processes request {request} as campaign {campaign}, to {people}",
    "answer": "the service answers request {request}: {answer}",
    "post-back": "the service sends post-back {post_back}: {kind} of {dispatch} by {person}",
    "post-back answer": "post-back {post_back} is answered: {status}",
    "opt-out": "{person} opts out",
    "opt-out answer": "the opt-out of {person} is answered: {status}",
    "erasure": "{who} asks to erase {person}",
    "erasure answer": "the erasure of {person} is stored",
    "decision": "{who} decides: {kind}{of launch} {dispatch}",
    "decision answer": "{who} is answered: {done}",
    "crash": "{process} is killed",
    "clock": "the clock of {of} is now {ahead} seconds ahead",
    "fault": "{of}: {fault}",
    "error": "{of} ends with {kind}",
    "unexpected": "{of} fails: {kind}: {text}",
    "report": "a report{of launch}: {verdicts}, erased {erased}",
    "quiet": "no more faults from here on",
    "states": "the ledger's dispatches{of launch}: {rows}",
    "verdict": "{verdict}{of launch}: {people}",
    "endless": "no end: {why}",
}
