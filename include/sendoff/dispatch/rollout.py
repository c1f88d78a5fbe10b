"""Sending to a few first: the next wave of a launch is opened only if those before it went well.

Judged are the waves that are open, all of them made: the requests that the service refused, and the people who are
missing. A request in doubt counts as refused until a post-back shows that it was not: what cannot be answered for is
no reason to go on. Once somebody released a launch that a wave had held, that wave and those before it are not judged
again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sendoff.audience.identifiers import union
from sendoff.campaign import Spread
from sendoff.errors import NotYetError
from sendoff.ledger import Decision, Launch, Ledger
from sendoff.postbacks import fold, reconcile_launch, whose_silence_tells

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of the waves that are judged; ``people``: those accepted whose silence would mean missing."""

    wave: int
    requests: int
    refused: int
    people: int = 0
    missing: int = 0

    def faults(self, spread: Spread) -> Iterator[str]:
        """Yield what is more than a campaign allows, each with what was found and what is allowed."""
        if _percent(self.refused, self.requests) > spread.refused:
            yield _fault(
                "refused", self.refused, self.requests, "requests refused or in doubt", spread.refused
            )
        if spread.missing is not None and _percent(self.missing, self.people) > spread.missing:
            yield _fault("missing", self.missing, self.people, "people missing", spread.missing)


def open_next_wave(ledger: Ledger, launch: Launch, spread: Spread, *, now: datetime) -> None:
    """Judge the open waves of a launch, and open the next one or hold the launch.

    ``launch``: as it was before its open waves were seen to be made. Where it has changed meanwhile, or something was
    decided of it, nothing happens: of any number of workers at once one decides, and a person before all of them.
    Raises NotYetError before the time of waiting is over.
    """
    launch_key = launch.launch_key
    seen = ledger.decisions.newest(launch_key)
    released = _released_after(ledger.decisions.of_launch(launch_key))
    if released >= launch.wave:
        _open(ledger, launch, "somebody released the launch", None, now, seen)
        return
    newest = ledger.dispatches.newest_outcome(launch_key, up_to_wave=launch.wave)
    if newest and now < (until := newest + spread.wait.timedelta()):
        raise NotYetError(f"launch {launch_key}: wave {launch.wave} is made, and post-backs may come", until)
    judged = _judge(ledger, launch, range(released + 1, launch.wave + 1), spread, now)
    if faults := list(judged.faults(spread)):
        why = f"after wave {launch.wave}: {'; '.join(faults)}"
        if ledger.decisions.decide(
            launch_key, "held", "sendoff", why, now=now, detail=asdict(judged), wave=launch.wave, since=seen
        ):
            _log.warning("launch %s is held %s", launch_key, why)
        return
    _open(ledger, launch, f"wave {launch.wave} went well", judged, now, seen)


def _open(
    ledger: Ledger, launch: Launch, why: str, judged: Judgement | None, now: datetime, seen: int
) -> None:
    detail = asdict(judged) if judged else None
    if ledger.decisions.decide(
        launch.launch_key, "wave", "sendoff", why, now=now, detail=detail, wave=launch.wave, since=seen
    ):
        _log.info("launch %s: wave %d is open", launch.launch_key, launch.wave + 1)


def _released_after(decisions: Iterable[Decision]) -> int:
    """Give the newest wave that held a launch which somebody released thereupon; 0 where there is none."""
    held = released = 0
    for decision in decisions:
        if decision.kind == "held":
            held = (decision.detail or {}).get("wave", 0)
        elif decision.kind == "released":
            held, released = 0, held or released
    return released


def _judge(ledger: Ledger, launch: Launch, waves: Sequence[int], spread: Spread, now: datetime) -> Judgement:
    if spread.missing is None:
        fold(ledger, now=now)
        return Judgement(launch.wave, *_requests(ledger, launch.launch_key, waves))
    reconcile_launch(ledger, launch.launch_key, now=now)
    reached = union(launch.kind, ledger.dispatches.accepted(launch.launch_key, waves))
    missing = reached & ledger.verdicts.sets(launch.launch_key)["missing"]
    told = reached & whose_silence_tells(ledger, launch, now)
    requests, refused = _requests(ledger, launch.launch_key, waves)
    return Judgement(launch.wave, requests, refused, len(told), len(missing))


def _requests(ledger: Ledger, launch_key: str, waves: Sequence[int]) -> tuple[int, int]:
    states: Counter[str] = Counter()
    for part in ledger.dispatches.progress(launch_key):
        if part.wave in waves:
            states[part.state] += part.dispatches
    made = states.total() - states["planned"] - states["in_flight"]
    return made, states["refused"] + states["in_doubt"]


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _fault(name: str, found: int, whole: int, what: str, allowed: float) -> str:
    share = _percent(found, whole)
    return f"gates.spread.{name}: found {found:,} of {whole:,} {what} ({share:.1f} %); allowed: at most {allowed:g} %"
