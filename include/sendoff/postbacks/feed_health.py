"""Feed health: compares expected post-backs with received ones and reports each change of state once.

A state is reported only if it is certain. Deliveries are expected from recipients whose silence means something: their
request was accepted, the service sent it at least an hour ago, and their deliveries are reported reliably. If earlier
launches of the campaign show how many respond by that time, that many are expected; otherwise, one of fifty recipients.
Opens are expected only if earlier launches show how many are usual.

.. code-block:: text

    fifty should have responded, and none did ............................ silent
    fifty should have, and less than a tenth of the usual number did ..... degraded
    someone responded .................................................... as expected
    otherwise ............................................................ cannot tell, which changes nothing

The launches of a campaign with a schedule are a feed too, if the caller has the campaigns. They are silent if a period
ended an hour ago, and the ledger has neither its launch nor the reason why there is none.

A check looks at the newest hours of sending, as many as it takes until fifty recipients should have responded. The
ledger stores the last certain state. :func:`check_feeds` returns each change of it to only one caller.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter

from sendoff.audience.identifiers import Identifiers, empty
from sendoff.campaign import Campaign, CampaignFolder, last_period
from sendoff.errors import LaunchErrors, NotYetError
from sendoff.figures import RELIABLE_PLATFORMS, LaunchStats
from sendoff.ledger import DispatchTotals, Feed, FeedState, LaunchRecord, Ledger
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.measurable import measurable_recipients
from sendoff.service import MATCHED_BY
from sendoff.states import FeedHealth, PostBackKind, Verdict
from sendoff.telemetry import metrics

RECEIVER = Feed("", "receiver")

_GRACE = timedelta(hours=1)  # from sending until silence means something
_LATELY = timedelta(hours=24)  # anything sent earlier is ignored
_ENOUGH = 50  # expected responses before none of them means silence
_DEGRADED = 0.1  # of the usual number of responses by then
_EARLIER = 5  # launches for the baseline
_WORDS: Mapping[str, str] = {PostBackKind.DELIVERY: "delivery", PostBackKind.OPEN: "open or click"}


@dataclass(frozen=True, slots=True)
class Check:
    """The state of a feed of post-backs now, and the last certain state."""

    feed: Feed
    state: FeedHealth
    why: str
    last: FeedState | None = None


@dataclass(frozen=True, slots=True)
class FeedChange:
    """A change of a feed's certain state; ``before`` is None if no state was certain before."""

    feed: Feed
    before: FeedHealth | None
    after: FeedHealth
    why: str

    @property
    def is_alarm(self) -> bool:
        """Whether the feed became worse."""
        return self.after == FeedHealth.SILENT or (
            self.after == FeedHealth.DEGRADED and self.before != FeedHealth.SILENT
        )

    def __str__(self) -> str:
        return f"{self.feed}: {self.before or FeedHealth.CANNOT_TELL} -> {self.after}: {self.why}"


@dataclass(slots=True)
class _Hour:
    """The recipients of requests sent within one hour, or since it."""

    people: int = 0
    heard: int = 0
    due: float = 0  # how many should have responded by now
    usual: float = 0  # those of ``due`` that earlier launches predict

    def __iadd__(self, other: _Hour) -> _Hour:
        self.people += other.people
        self.heard += other.heard
        self.due += other.due
        self.usual += other.usual
        return self


_Hours = Mapping[Feed, Mapping[datetime, _Hour]]
_Earlier = Sequence[tuple[datetime, LaunchStats]]  # when an earlier launch went out, and its figures


def check_feeds(
    ledger: Ledger,
    campaigns: Iterable[CampaignFolder] = (),
    *,
    now: datetime | None = None,
    errors: LaunchErrors | None = None,
) -> list[FeedChange]:
    """Check every feed, store the certain states, and return the changes, each to only one of several callers.

    A feed that is as expected from the start has not changed. ``campaigns``: also check that these are launched.
    ``errors``: collects the permanent errors of launches, which are then left out. Without it, they are raised.
    """
    moment = now or datetime.now(UTC)
    changes = []
    for check in inspect_feeds(ledger, campaigns, now=moment, errors=errors):
        before = check.last.state if check.last else None
        if check.state in (FeedHealth.CANNOT_TELL, before):
            continue
        is_mine = ledger.feed_states.move(check.feed, before, check.state, check.why, moment)
        if is_mine and (before or check.state != FeedHealth.AS_EXPECTED):
            changes.append(FeedChange(check.feed, before, check.state, check.why))
    metrics.feeds(ledger.feed_states.states())
    return changes


def inspect_feeds(
    ledger: Ledger,
    campaigns: Iterable[CampaignFolder] = (),
    *,
    now: datetime | None = None,
    errors: LaunchErrors | None = None,
) -> list[Check]:
    """Aggregate new post-backs, and check each feed. The receiver comes first, and launches of ``campaigns`` last."""
    moment = now or datetime.now(UTC)
    aggregate(ledger, now=moment)
    last = {known.feed: known for known in ledger.feed_states.all()}
    found = errors or LaunchErrors()
    requests, hours = _hours(ledger, moment, found)
    if errors is None:
        found.raise_all()
    feeds = sorted(hours.keys() | {feed for feed in last if feed.kind in _WORDS})
    checks = [
        _check_receiver(ledger, requests, hours, moment),
        *(_check(feed, hours.get(feed, {})) for feed in feeds),
        *_check_launches(ledger, campaigns, moment),
    ]
    return [replace(check, last=last.get(check.feed)) for check in checks]


def _check(feed: Feed, hours: Mapping[datetime, _Hour]) -> Check:
    if not hours:
        why = f"nothing was sent in the last {_LATELY // timedelta(hours=1)} hours"
        return Check(feed, FeedHealth.CANNOT_TELL, why)
    so_far = _Hour()
    for since in sorted(hours, reverse=True):
        so_far += hours[since]
        if so_far.heard and so_far.heard >= _DEGRADED * so_far.usual:
            return Check(feed, FeedHealth.AS_EXPECTED, _sentence(feed, so_far, since))
        if so_far.due >= _ENOUGH:
            state = FeedHealth.DEGRADED if so_far.heard else FeedHealth.SILENT
            return Check(feed, state, _sentence(feed, so_far, since))
    why = "no recent recipient's silence would mean anything yet"
    if so_far.people:
        why = f"too few post-backs are due: {_sentence(feed, so_far, since)}"
    return Check(feed, FeedHealth.CANNOT_TELL, why)


def _sentence(feed: Feed, hour: _Hour, since: datetime) -> str:
    usual = f"; usually about {hour.usual:,.0f} by now" if hour.usual else ""
    return (
        f"{_WORDS[feed.kind]} reported for {hour.heard:,} of {hour.people:,} recipients sent to since "
        f"{since:%Y-%m-%d %H:%M} UTC{usual}"
    )


def _check_receiver(ledger: Ledger, requests: int, hours: _Hours, now: datetime) -> Check:
    receivers, newest = ledger.post_backs.reception()
    if not receivers:
        never = "no receiver was ever started"
        if requests:
            return Check(RECEIVER, FeedHealth.SILENT, f"{never}; {requests:,} requests asked for post-backs")
        why = f"{never}, and no recent request asked for post-backs"
        return Check(RECEIVER, FeedHealth.CANNOT_TELL, why)
    text = f"newest post-back {newest:%Y-%m-%d %H:%M} UTC" if newest else "no post-back yet"
    if newest and now - newest < _GRACE:
        return Check(RECEIVER, FeedHealth.AS_EXPECTED, text)
    so_far = _Hour()
    everywhere: defaultdict[tuple[datetime, str], list[_Hour]] = defaultdict(list)
    for feed, of in hours.items():
        if not feed.platform:
            for since, hour in of.items():
                everywhere[since, feed.connection].append(hour)
    for (since, _), kinds in sorted(everywhere.items(), key=itemgetter(0), reverse=True):
        if newest and newest >= since:
            return Check(RECEIVER, FeedHealth.AS_EXPECTED, text)
        # Deliveries and opens are due from the same recipients.
        so_far += _Hour(max(each.people for each in kinds), due=max(each.due for each in kinds))
        if so_far.due >= _ENOUGH:
            why = f"{text}; {so_far.people:,} recipients were sent to since {since:%Y-%m-%d %H:%M} UTC"
            return Check(RECEIVER, FeedHealth.SILENT, why)
    return Check(RECEIVER, FeedHealth.CANNOT_TELL, f"{text}; no later post-back was certainly due")


def _check_launches(ledger: Ledger, campaigns: Iterable[CampaignFolder], now: datetime) -> Iterator[Check]:
    """Yield the launches of each campaign whose schedule makes them. A campaign that was never launched has none.

    After a change of the schedule, the first period that counts begins after those that were launched before.
    """
    own = {folder.name: folder for folder in campaigns if not folder.campaign.after}
    current = {
        old: name for name, folder in own.items() for old in folder.names if old == name or old not in own
    }
    newest: dict[str, datetime] = {}
    for launched_as, _, end in ledger.overview.periods(current):
        name = current[launched_as]
        newest[name] = max(end, newest.get(name, end))
    for name, end in sorted(newest.items()):
        with suppress(NotYetError):
            period, feed = last_period(own[name].campaign, now - _GRACE), Feed(name, "launch")
            if period and end >= period.end:
                yield Check(feed, FeedHealth.AS_EXPECTED, f"the newest period ended {end:%Y-%m-%d %H:%M} UTC")
            elif period and end <= period.start:
                why = f"no launch for the period that ended {period.end:%Y-%m-%d %H:%M} UTC"
                yield Check(feed, FeedHealth.SILENT, why)


def _hours(
    ledger: Ledger, now: datetime, errors: LaunchErrors
) -> tuple[int, dict[Feed, dict[datetime, _Hour]]]:
    """Return the number of recent requests that asked for post-backs, and their recipients by feed and hour."""
    asking = 0
    hours: defaultdict[Feed, defaultdict[datetime, _Hour]] = defaultdict(lambda: defaultdict(_Hour))
    for launch_key, sent in ledger.feed_states.sent(now - _LATELY).items():
        with errors.collect(launch_key):
            launch = ledger.launches.get(launch_key)
            kinds = Campaign.frozen(launch.definition).post_backs.kinds
            parts = list(_parts(ledger, launch, kinds, sent, now))
            if kinds:
                asking += sum(now - at >= _GRACE for at in sent.values())
            for feed, at, hour in parts:
                hours[feed][at.replace(minute=0, second=0, microsecond=0)] += hour
    return asking, {feed: dict(of) for feed, of in hours.items()}


def _parts(
    ledger: Ledger, launch: LaunchRecord, kinds: Sequence[str], sent: Mapping[str, datetime], now: datetime
) -> Iterator[tuple[Feed, datetime, _Hour]]:
    """Yield the sending time and the recipients of each dispatch and feed; no recipients if nothing is certain."""
    returned = ledger.aggregates.totals(launch.launch_key)
    earlier = ledger.feed_states.earlier(launch, _EARLIER)
    watched = [
        (Feed(launch.connection, kind, platform), people)
        for kind in kinds
        for platform, people in _watched(ledger, launch, kind, now)
    ]
    for dispatch, segment in ledger.dispatch_queries.segments(launch.launch_key):
        at, back = sent.get(dispatch.dispatch_key), returned.get(dispatch.dispatch_key)
        if at is None:
            continue
        for feed, people in watched:
            yield feed, at, _hour(feed, segment & people, back, earlier, now - at)


def _watched(
    ledger: Ledger, launch: LaunchRecord, kind: str, now: datetime
) -> Iterator[tuple[str, Identifiers]]:
    """Yield the recipients who can respond: all of them under an empty name, and by platform."""
    if kind == PostBackKind.DELIVERY:
        people = measurable_recipients(ledger, launch, now)
    elif launch.identified_by in MATCHED_BY:
        people = ledger.launches.audience(launch.launch_key)
    else:
        people = empty(launch.kind)
    yield "", people
    for platform, members in ledger.launches.groups(launch.launch_key, "platform").items():
        if among := people & members:
            yield platform, among


def _hour(
    feed: Feed, people: Identifiers, back: DispatchTotals | None, earlier: _Earlier, age: timedelta
) -> _Hour:
    if back and (back.has_unattributed_events if feed.kind == PostBackKind.DELIVERY else back.unread):
        return _Hour()
    heard = (
        len(people & (back.delivered if feed.kind == PostBackKind.DELIVERY else back.engaged)) if back else 0
    )
    if age < _GRACE:
        return _Hour(len(people), heard) if heard else _Hour()
    share = _usual_share(earlier, feed, age)
    if share is None:
        return _Hour(len(people), heard, due=len(people) if feed.kind == PostBackKind.DELIVERY else 0)
    return _Hour(len(people), heard, due=len(people) * share, usual=len(people) * share)


def _usual_share(earlier: _Earlier, feed: Feed, age: timedelta) -> float | None:
    """Return the share of recipients who usually respond within ``age`` of sending; None if it is unknown."""
    heard = people = by_then = ever = 0
    for sent_at, figures in earlier:
        timeline = [
            (minute - sent_at, deliveries if feed.kind == PostBackKind.DELIVERY else opens)
            for minute, deliveries, opens in figures.timeline
        ]
        if any(count for _, count in timeline):  # otherwise that launch was silent itself
            heard_of, all_of = _heard_of(figures, feed)
            heard, people = heard + heard_of, people + all_of
            ever += sum(count for _, count in timeline)
            by_then += sum(count for after, count in timeline if after <= age)
    return heard / people * by_then / ever if people >= _ENOUGH else None


def _heard_of(figures: LaunchStats, feed: Feed) -> tuple[int, int]:
    """Return how many recipients of a launch responded, and how many could have."""
    if feed.platform:
        counted = [figures.by_platform.get(feed.platform, {})]
    elif feed.kind == PostBackKind.DELIVERY and figures.by_platform and figures.verdicts[Verdict.UNKNOWABLE]:
        counted = [of for platform, of in figures.by_platform.items() if platform in RELIABLE_PLATFORMS]
    else:
        counted = [figures.verdicts]
    total: Counter[str] = Counter()
    for verdicts in counted:
        total.update(verdicts)
    heard = total[Verdict.ENGAGED]
    if feed.kind == PostBackKind.DELIVERY:
        heard += total[Verdict.DELIVERED]
        return heard, heard + total[Verdict.MISSING]
    return heard, heard + total[Verdict.DELIVERED] + total[Verdict.MISSING] + total[Verdict.UNKNOWABLE]
