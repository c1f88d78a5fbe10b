"""Silence: post-backs that should have come, held against those that did.

Only what is certain is said. Deliveries are expected of people whose silence means something: their request was
accepted, an hour has passed since the service sent, and their deliveries are reported reliably. Where earlier
launches of the campaign tell what is usual by that time, that many are expected; else one, of fifty people. Opens are
expected only where earlier launches tell: nobody has to open.

.. code-block:: text

    fifty should have been heard of, and nobody was ............ silent
    fifty should have been, and less than a tenth was .......... thin
    somebody was heard of ...................................... as expected
    otherwise .................................................. cannot tell, which changes nothing

Judged are the newest hours of sending, as many as it takes until fifty people should have been heard of. The ledger
keeps what was last certain; :func:`check_silence` gives each change of it once, whoever looks at the same time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sendoff import metrics
from sendoff.audience.identifiers import Identifiers, empty
from sendoff.campaign import Campaign
from sendoff.figures import RELIABLE_PLATFORMS, Figures
from sendoff.ledger import Known, Launch, Ledger, Returned, Source
from sendoff.postbacks.aggregate import MATCHED_BY, fold
from sendoff.postbacks.reconcile import whose_silence_tells

AS_EXPECTED, THIN, SILENT, CANNOT_TELL = "as expected", "thin", "silent", "cannot tell"
RECEIVER = Source("", "receiver")

_GRACE = timedelta(hours=1)  # from sending until silence means something
_LATELY = timedelta(hours=24)  # what was sent before is not looked at
_ENOUGH = 50  # who should have been heard of, before nobody means silence
_THIN = 0.1  # of those who are usually heard of by then
_EARLIER = 5  # launches that tell what is usual
_WORDS = {"delivery": "delivery", "open": "open or click"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What can be said of a source of post-backs at this moment, and what was last certain of it."""

    source: Source
    state: str  # as expected, thin, silent or cannot tell
    why: str
    last: Known | None


@dataclass(frozen=True, slots=True)
class Change:
    """What is certain of a source has changed; ``before`` is None where nothing was certain before."""

    source: Source
    before: str | None
    after: str
    why: str

    @property
    def is_alarm(self) -> bool:
        """Whether it became worse."""
        return self.after == SILENT or (self.after == THIN and self.before != SILENT)

    def __str__(self) -> str:
        return f"{self.source}: {self.before or CANNOT_TELL} -> {self.after}: {self.why}"


@dataclass(slots=True)
class _Hour:
    """Those who were sent to within one hour, or since it."""

    people: int = 0
    heard: int = 0
    due: float = 0  # who should have been heard of by now
    usual: float = 0  # those of them that earlier launches tell of

    def __iadd__(self, other: _Hour) -> _Hour:
        self.people += other.people
        self.heard += other.heard
        self.due += other.due
        self.usual += other.usual
        return self


_Hours = Mapping[Source, Mapping[datetime, _Hour]]


def check_silence(ledger: Ledger, *, now: datetime | None = None) -> list[Change]:
    """Look, keep what is certain now, and give what has changed: each change once, to one of those who look.

    That a source is as expected from the first is no change.
    """
    moment = now or datetime.now(UTC)
    changes = []
    for finding in look(ledger, now=moment):
        before = finding.last.state if finding.last else None
        if finding.state in (CANNOT_TELL, before):
            continue
        is_mine = ledger.silences.move(finding.source, before, finding.state, finding.why, moment)
        if is_mine and (before or finding.state != AS_EXPECTED):
            changes.append(Change(finding.source, before, finding.state, finding.why))
    metrics.silences(ledger.silences.states())
    return changes


def look(ledger: Ledger, *, now: datetime | None = None) -> list[Finding]:
    """Fold what came back, and say of each source of post-backs what can be said; the receiver is the first."""
    moment = now or datetime.now(UTC)
    fold(ledger, now=moment)
    last = {each.source: each for each in ledger.silences.all()}
    asking, hours = _hours(ledger, moment)
    found = {RECEIVER: _judge_receiver(ledger, asking, hours, moment)}
    for source in sorted(hours.keys() | last.keys() - {RECEIVER}):
        found[source] = _judge(source, hours.get(source, {}))
    return [Finding(source, *said, last.get(source)) for source, said in found.items()]


def _judge(source: Source, hours: Mapping[datetime, _Hour]) -> tuple[str, str]:
    if not hours:
        return CANNOT_TELL, f"nothing was sent in the last {_LATELY // timedelta(hours=1)} hours"
    so_far = _Hour()
    for since in sorted(hours, reverse=True):
        so_far += hours[since]
        if so_far.heard and so_far.heard >= _THIN * so_far.usual:
            return AS_EXPECTED, _sentence(source, so_far, since)
        if so_far.due >= _ENOUGH:
            return (THIN if so_far.heard else SILENT), _sentence(source, so_far, since)
    if not so_far.people:
        return CANNOT_TELL, "nobody was sent to lately whose silence would mean something by now"
    return CANNOT_TELL, f"too few should have been heard of: {_sentence(source, so_far, since)}"


def _sentence(source: Source, hour: _Hour, since: datetime) -> str:
    usual = f"; usually about {hour.usual:,.0f} by now" if hour.usual else ""
    return (
        f"{_WORDS[source.kind]} by {hour.heard:,} of {hour.people:,} people sent to since "
        f"{since:%Y-%m-%d %H:%M} UTC{usual}"
    )


def _judge_receiver(ledger: Ledger, asking: int, hours: _Hours, now: datetime) -> tuple[str, str]:
    receivers, newest = ledger.post_backs.heard()
    if not receivers:
        if asking:
            return SILENT, f"no receiver was ever started; {asking:,} requests asked for post-backs"
        return (
            CANNOT_TELL,
            "no receiver was ever started, and nothing that was sent lately asked for post-backs",
        )
    told = f"newest post-back {newest:%Y-%m-%d %H:%M} UTC" if newest else "no post-back yet"
    if newest and now - newest < _GRACE:
        return AS_EXPECTED, told
    everywhere = [each for source, of in hours.items() if not source.platform for each in of.items()]
    so_far = _Hour()
    for since, hour in sorted(everywhere, key=lambda each: each[0], reverse=True):
        if newest and newest >= since:
            return AS_EXPECTED, told
        so_far += hour
        if so_far.due >= _ENOUGH:
            return SILENT, f"{told}; {so_far.people:,} people were sent to since {since:%Y-%m-%d %H:%M} UTC"
    return CANNOT_TELL, f"{told}; nothing certainly should have come since"


def _hours(ledger: Ledger, now: datetime) -> tuple[int, dict[Source, dict[datetime, _Hour]]]:
    """Give how many requests that ask for post-backs the service sent lately, and whom by source and hour."""
    asking = 0
    hours: defaultdict[Source, defaultdict[datetime, _Hour]] = defaultdict(lambda: defaultdict(_Hour))
    for launch_key, sent in ledger.silences.sent(now - _LATELY).items():
        launch = ledger.launches.get(launch_key)
        kinds = Campaign.frozen(launch.definition).post_backs.kinds
        if kinds:
            asking += sum(now - at >= _GRACE for at in sent.values())
        for source, at, hour in _parts(ledger, launch, kinds, sent, now):
            hours[source][at.replace(minute=0, second=0, microsecond=0)] += hour
    return asking, {source: dict(of) for source, of in hours.items()}


def _parts(
    ledger: Ledger, launch: Launch, kinds: Sequence[str], sent: Mapping[str, datetime], now: datetime
) -> Iterator[tuple[Source, datetime, _Hour]]:
    """Yield for each dispatch and source when the service sent, and whom: nobody where nothing is certain."""
    returned = ledger.returns.returned(launch.launch_key)
    yardstick = _Yardstick(ledger.silences.earlier(launch, _EARLIER))
    watched = [
        (Source(launch.connection, kind, platform), people)
        for kind in kinds
        for platform, people in _watched(ledger, launch, kind, now)
    ]
    for dispatch, segment in ledger.dispatches.segments(launch.launch_key):
        at, back = sent.get(dispatch.dispatch_key), returned.get(dispatch.dispatch_key)
        if at is None:
            continue
        for source, people in watched:
            yield source, at, _hour(source, segment & people, back, yardstick, now - at)


def _watched(ledger: Ledger, launch: Launch, kind: str, now: datetime) -> Iterator[tuple[str, Identifiers]]:
    """Yield those of a launch who can be heard of: all of them, under an empty name, and by platform."""
    if kind == "delivery":
        people = whose_silence_tells(ledger, launch, now)
    elif launch.identified_by in MATCHED_BY:
        people = ledger.launches.audience(launch.launch_key)
    else:
        people = empty(launch.kind)
    yield "", people
    for platform, members in ledger.launches.groups(launch.launch_key, "platform").items():
        if among := people & members:
            yield platform, among


def _hour(
    source: Source, people: Identifiers, back: Returned | None, yardstick: _Yardstick, age: timedelta
) -> _Hour:
    if back and (back.may_hide_deliveries if source.kind == "delivery" else back.unread):
        return _Hour()
    heard = len(people & (back.delivered if source.kind == "delivery" else back.engaged)) if back else 0
    if age < _GRACE:
        return _Hour(len(people), heard) if heard else _Hour()
    share = yardstick.share(source, age)
    if share is None:
        return _Hour(len(people), heard, due=len(people) if source.kind == "delivery" else 0)
    return _Hour(len(people), heard, due=len(people) * share, usual=len(people) * share)


@dataclass(frozen=True)
class _Yardstick:
    """What is usual of a campaign, by its earlier launches: when the service sent each, and its figures."""

    earlier: Sequence[tuple[datetime, Figures]]

    def share(self, source: Source, age: timedelta) -> float | None:
        """Give the share of people who are usually heard of so long after sending; None where that is unknown."""
        heard = people = by_then = ever = 0
        for sent_at, figures in self.earlier:
            timeline = [
                (minute - sent_at, deliveries if source.kind == "delivery" else opens)
                for minute, deliveries, opens in figures.timeline
            ]
            if any(count for _, count in timeline):  # else it was silent itself
                heard_of, all_of = _heard_of(figures, source)
                heard, people = heard + heard_of, people + all_of
                ever += sum(count for _, count in timeline)
                by_then += sum(count for after, count in timeline if after <= age)
        return heard / people * by_then / ever if people >= _ENOUGH else None


def _heard_of(figures: Figures, source: Source) -> tuple[int, int]:
    """Give how many of a launch were heard of, and of how many."""
    if source.platform:
        counted = [figures.by_platform.get(source.platform, {})]
    elif source.kind == "delivery" and figures.by_platform and figures.verdicts["unknowable"]:
        counted = [of for platform, of in figures.by_platform.items() if platform in RELIABLE_PLATFORMS]
    else:
        counted = [figures.verdicts]
    total: Counter[str] = Counter()
    for verdicts in counted:
        total.update(verdicts)
    if source.kind == "delivery":
        heard = total["engaged"] + total["delivered"]
        return heard, heard + total["missing"]
    return total["engaged"], total["engaged"] + total["delivered"] + total["missing"] + total["unknowable"]
