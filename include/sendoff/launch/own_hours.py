"""Own hours: divide the recipients of a launch by the hour of the day at which they opened earlier messages.

The usual hour of a recipient comes from the post-backs of opens in the launches of the same connection. Counting back
from the newest launch, it is the first hour that occurs in two launches. If there is none, it is the hour of the newest
open. A hash of the launch and the recipient decides between the arms:

.. code-block:: text

    explore ....... a random hour, with or without a known hour
    control ....... a known hour, but at once
    own_hour ...... the known hour
    none .......... no known hour, so at once

Hours are stored in UTC, and become hours of the recipient's time zone when a launch is planned. An hour that the window
or the rules never allow is replaced by the nearest one that they allow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from sendoff.audience import Timed, split, those_among
from sendoff.audience.identifiers import Identifiers, empty, union
from sendoff.campaign import Campaign, moment, next_open
from sendoff.ledger import Ledger, SegmentSize
from sendoff.states import Arm

LEARN_FROM = timedelta(days=90)
"""The age of the oldest launches whose opens count."""

_HOURS = range(24)
_LAST_MINUTE = timedelta(minutes=59)  # of an hour
_DAYS = 14  # to look for a day with allowed hours


class HoursOfLaunch:
    """The hours of the recipients of one launch. ``salt``: unique for the launch."""

    def __init__(
        self,
        campaign: Campaign,
        people: Identifiers,
        usual: Mapping[int, Identifiers],
        *,
        salt: str,
        now: datetime,
    ) -> None:
        settings = campaign.own_hours
        assert settings is not None
        self._campaign, self._salt, self._now = campaign, salt, now
        self._explore, others = split(people, f"explore {salt}", [settings.explore, 100 - settings.explore])
        known = union(people.kind, usual.values()) & others
        self._control, treated = split(known, f"control {salt}", [settings.control, 100 - settings.control])
        self._unknown = others - known
        self._own = {hour: some & treated for hour, some in usual.items()}
        self._found: dict[str | None, list[Timed]] = {}

    def __call__(self, zone: str | None) -> Sequence[Timed]:
        """Return all recipients, divided by the hours at which those in a time zone get the message."""
        if zone not in self._found:
            self._found[zone] = list(self._divided(zone))
        return self._found[zone]

    def _divided(self, zone: str | None) -> Iterator[Timed]:
        yield Timed(self._unknown)
        yield Timed(self._control, arm=Arm.CONTROL)
        allowed = allowed_hours(self._campaign, zone, self._now)
        clock = ZoneInfo(self._campaign.clock_zone(zone))
        own: defaultdict[int, list[Identifiers]] = defaultdict(list)
        for hour, people in self._own.items():
            in_utc = datetime.combine(self._now.astimezone(UTC), time(hour, tzinfo=UTC))
            own[_nearest(in_utc.astimezone(clock).hour, allowed)].append(people)
        for hour, sets in sorted(own.items()):
            yield Timed(union(self._unknown.kind, sets), hour, Arm.OWN_HOUR)
        shares = [100 / len(allowed)] * len(allowed)
        for hour, people in zip(allowed, split(self._explore, f"hour {self._salt}", shares), strict=True):
            yield Timed(people, hour, Arm.EXPLORE)


def hours_of_launch(
    ledger: Ledger | None,
    campaign: Campaign,
    people: Identifiers,
    *,
    identified_by: str,
    salt: str,
    now: datetime,
) -> HoursOfLaunch:
    """Read the hours of the recipients' earlier opens, and divide the recipients by them."""
    launches: Iterable[Mapping[int, Identifiers]] = ()
    if ledger is not None:
        launches = ledger.aggregates.hours_of_opens(
            campaign.connection, identified_by, people.kind, now - LEARN_FROM
        )
    return HoursOfLaunch(campaign, people, usual_hours(people, launches), salt=salt, now=now)


def usual_hours(people: Identifiers, launches: Iterable[Mapping[int, Identifiers]]) -> dict[int, Identifiers]:
    """Return the recipients by their usual hour in UTC, without those whose hour is not known.

    ``launches``: who opened at which hour, the newest launch first.
    """
    nobody = empty(people.kind)
    once = dict.fromkeys(_HOURS, nobody)
    twice, newest = dict(once), dict(once)
    undecided, seen = people, nobody
    for opened in launches:
        decided, in_launch = nobody, nobody
        for hour, openers in sorted(opened.items()):
            some = those_among(people, "opens", openers) & undecided
            newest[hour] |= some - seen - in_launch
            if len(once[hour]):
                agree = (some & once[hour]) - decided
                twice[hour] |= agree
                decided |= agree
            once[hour] |= some
            in_launch |= some
        seen |= in_launch
        undecided -= decided
        if not len(undecided):
            break
    found = {hour: twice[hour] | (newest[hour] & undecided) for hour in _HOURS}
    return {hour: some for hour, some in found.items() if len(some)}


def allowed_hours(campaign: Campaign, zone: str | None, now: datetime) -> list[int]:
    """Return the hours of the day at which the window and the rules allow messages to a time zone.

    An hour must be open from its beginning to its end. If none is, those count that are open when they begin. All
    hours of one day count: the first day after today that has allowed hours. All hours are returned if there is no such
    day soon.
    """
    window, rules = campaign.gates.window, campaign.rules_in_force

    def is_open(at: datetime) -> bool:
        return next_open(rules, window, zone, at) == at

    clock = campaign.clock_zone(zone)
    today = now.astimezone(ZoneInfo(clock)).date()
    if window or rules.restricts_times:
        for count in range(1, _DAYS + 1):
            day = today + timedelta(days=count)
            starts = [(hour, moment(day, f"{hour:02}:00", clock).astimezone(UTC)) for hour in _HOURS]
            if begun := [(hour, at) for hour, at in starts if is_open(at)]:
                whole = [hour for hour, at in begun if is_open(at + _LAST_MINUTE)]
                return whole or [hour for hour, _ in begun]
    return list(_HOURS)


def _nearest(hour: int, allowed: Sequence[int]) -> int:
    """Return the allowed hour with the least distance on the clock; of two, the earlier one."""
    return min(allowed, key=lambda each: min((each - hour) % 24, (hour - each) % 24))


def hours_by_words(sizes: Iterable[SegmentSize]) -> dict[str, int]:
    """Return the numbers of recipients by when they get the message, in words."""
    words = {None: "at once, no hour known", Arm.CONTROL: "at once, control group"}
    found: dict[str, int] = {}
    for _, _, people, hour, arm in sorted(
        sizes, key=lambda size: (size.hour is not None, size.hour or 0, size.arm or "")
    ):
        name = (
            words[arm] if hour is None else f"{hour:02}:00, {'own' if arm == Arm.OWN_HOUR else 'random'} hour"
        )
        found[name] = found.get(name, 0) + people
    return found
