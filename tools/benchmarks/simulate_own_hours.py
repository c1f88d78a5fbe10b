"""Simulated campaigns at own hours: what they gain, after how many launches the report shows it, and what they learn.

A launch goes out every week at 9:00, with the defaults of ``own_hours``. The window opens at 8:00 and closes at 21:00.
Each person has one hour of the day in that window, and a rate of opening (exponential, 10 % on average). A message that
arrives in that hour is opened ``lift`` times as often. An hour earlier or later, the gain is half as large. Half of the
opens come soon after the message (half-life of one hour), the others in the person's next hour. The functions of the
launch divide the people, and those of the report judge some looks in the three days after the start. The scenarios:

.. code-block:: text

    gain ............ 20,000 people, 30 % more opens at their hour
    small gain ...... the same with 15 %
    no gain ......... the same with 0 %
    changed ......... 30 % more, and everyone gets another hour after half of the launches
    never explored .. the same without a share at random hours

The figures are seeded. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from sendoff.audience.identifiers import Identifiers, integers
from sendoff.campaign import Campaign
from sendoff.comparison.statistics import Counted, compared_shares
from sendoff.launch.own_hours import LEARN_FROM, HoursOfLaunch, usual_hours
from sendoff.states import Arm

PEOPLE = 20_000
RATE = 0.1
WEEKS = 26  # launches of a campaign
LOOKS = (24, 30, 36, 42, 48, 54, 60, 66, 72)  # hours after the start
START = datetime(2026, 1, 5, 9, tzinfo=UTC)
FIRST, LAST = 8, 20  # hours of the window
_HALF_LIFE = 1.0  # hours
_REMEMBERED = LEARN_FROM // timedelta(days=7)  # launches
_GAINS, _LOSES = "gains", "loses"

Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ran:
    """A campaign that ran. ``shown``: what the report showed first, and after which launch, from 1; None: nothing.

    ``right``: the share of the people with a known hour who have the right one, give or take an hour, for each launch.
    ``known``: the share of all people whose hour is known. ``opened``: the shares of both compared sides that opened.
    """

    shown: tuple[int, str] | None
    right: Sequence[float]
    known: Sequence[float]
    opened: Sequence[tuple[float, float]]


@dataclass
class Town:
    """People with hours and rates, and the hours at which they opened the launches so far, the newest first."""

    chance: np.random.Generator
    lift: float
    people: int = PEOPLE
    past: list[Mapping[int, Identifiers]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rates = np.minimum(self.chance.exponential(RATE, self.people), 1 / self.lift)
        self.everyone = integers(np.arange(1, self.people + 1))
        self.change()

    def change(self) -> None:
        """Replace everyone's hour by a random one."""
        self.hours = self.chance.integers(FIRST, LAST + 1, self.people)

    def answers(self, arrived: Numbers) -> Numbers:
        """Return when each person opens the message, in hours after the start; infinity for never.

        ``arrived``: when it arrived, in hours after the start.
        """
        of_day = (arrived + START.hour) % 24
        apart = np.abs(of_day.astype(int) - self.hours)
        near = np.select([apart == 0, np.isin(apart, (1, 23))], [1.0, 0.5], 0.0)
        opens = self.chance.random(self.people) < self.rates * (1 + (self.lift - 1) * near)
        soon = arrived + self.chance.exponential(_HALF_LIFE / np.log(2), self.people)
        later = arrived + (self.hours + self.chance.random(self.people) - of_day) % 24
        at = np.where(self.chance.random(self.people) < 0.5, soon, later)
        return np.where(opens, at, np.inf)

    def remember(self, at: Numbers) -> None:
        """Store who opened a launch at which hour of the day."""
        came = np.flatnonzero(np.isfinite(at))
        of_day = (at[came] + START.hour).astype(int) % 24
        opened = {int(hour): integers(came[of_day == hour] + 1) for hour in np.unique(of_day)}
        self.past = [opened, *self.past][:_REMEMBERED]


def campaign_at_own_hours(explore: int) -> Campaign:
    """Return a campaign at own hours. ``explore``: the percentage at random hours."""
    return Campaign.model_validate(
        {
            "title": "Hello",
            "message": {"title": "Hello", "text": "Ten per cent off"},
            "channels": {"android_push": {}},
            "send": {"kind": "now", "own_hours": {"explore": explore}},
            "gates": {
                "window": {"earliest": f"{FIRST:02}:00", "latest": f"{LAST + 1}:00", "time_zone": "UTC"}
            },
        }
    )


def run(
    chance: np.random.Generator,
    lift: float,
    *,
    explore: int = 10,
    changes_after: int | None = None,
    people: int = PEOPLE,
    weeks: int = WEEKS,
) -> Ran:
    """Run a campaign. ``changes_after``: the launch after which everyone gets another hour."""
    town, campaign = Town(chance, lift, people), campaign_at_own_hours(explore)
    salt = str(chance.integers(2**63))
    shown: tuple[int, str] | None = None
    right, known, opened = [], [], []
    for week in range(1, weeks + 1):
        usual = usual_hours(town.everyone, town.past)
        found = np.full(people, -99)
        for hour, some in usual.items():
            found[_places(some)] = hour
        has_hour = found >= 0
        known.append(float(has_hour.mean()))
        right.append(float((np.abs(found - town.hours)[has_hour] <= 1).mean()) if has_hour.any() else 0.0)
        now = START + timedelta(weeks=week)
        divided = HoursOfLaunch(campaign, town.everyone, usual, salt=f"{salt} {week}", now=now)(None)
        arrived, sides = np.zeros(people), {Arm.OWN_HOUR: np.zeros(0, int), Arm.CONTROL: np.zeros(0, int)}
        for some, hour, arm in divided:
            assert some is not None
            places = _places(some)
            if hour is not None:
                arrived[places] = (hour - START.hour) % 24
            if arm in sides:
                sides[arm] = np.concatenate([sides[arm], places])
        at = town.answers(arrived)
        own, at_once = (np.sort(at[sides[arm]]) for arm in (Arm.OWN_HOUR, Arm.CONTROL))
        if len(own) and len(at_once):
            opened.append((float(np.isfinite(own).mean()), float(np.isfinite(at_once).mean())))
            if shown is None and (verdict := judged(own, at_once, np.sort(at), arrived.max(), len(opened))):
                shown = len(opened), verdict
        town.remember(at)
        if week == changes_after:
            town.change()
    return Ran(shown, right, known, opened)


def judged(own: Numbers, at_once: Numbers, everyone: Numbers, span: float, launch: int) -> str:
    """Return what the report shows at its first look that shows something; an empty text if none does.

    ``span``: the time that the requests took. ``launch``: its number among the compared launches.
    """
    for look in LOOKS:
        early = int(np.searchsorted(everyone, look) - np.searchsorted(everyone, look - span))
        sides = [
            Counted(name, int(np.searchsorted(side, look)), len(side), 0, early, 0)
            for name, side in (("own hour", own), ("at once", at_once))
        ]
        compared = compared_shares("engaged", sides, control="at once", launch=launch)
        for each in compared.differences:
            if each.interval and not each.interval.low <= 0 <= each.interval.high:
                return _GAINS if each.interval.low > 0 else _LOSES
    return ""


def _places(people: Identifiers) -> Places:
    return np.asarray(people.values(), dtype=np.int64) - 1


def simulated(campaigns: int, seed: int) -> dict[str, dict[str, float | None]]:
    """Return the figures of each scenario."""
    half = WEEKS // 2
    scenarios: dict[str, dict[str, float]] = {
        "gain": {"lift": 1.3},
        "small gain": {"lift": 1.15},
        "no gain": {"lift": 1.0},
        "changed": {"lift": 1.3, "changes_after": half},
        "never explored": {"lift": 1.3, "changes_after": half, "explore": 0},
    }
    found = {}
    for name, how in scenarios.items():
        count = campaigns if name == "no gain" else max(1, campaigns // 10)
        chance = np.random.default_rng(seed)
        found[name] = figures([run(chance, **how) for _ in range(count)])  # type: ignore[arg-type]
    return found


def figures(ran: Sequence[Ran]) -> dict[str, float | None]:
    """Return the figures of some campaigns, as shares, means over the campaigns, and numbers of launches."""
    gains = [each.shown[0] for each in ran if each.shown and each.shown[1] == _GAINS]
    loses = [each for each in ran if each.shown and each.shown[1] == _LOSES]
    last = [each.opened[-1] for each in ran]
    at = (2, 5, WEEKS // 2, WEEKS // 2 + 1, WEEKS // 2 + 5, WEEKS)
    return {
        "campaigns": len(ran),
        "shown": len(gains) / len(ran),
        "after_launches": median(gains) if gains else None,
        "loss_shown": len(loses) / len(ran),
        "opened_own": fmean(own for own, _ in last),
        "opened_at_once": fmean(at_once for _, at_once in last),
        **{f"known_{week}": fmean(each.known[week - 1] for each in ran) for week in at},
        **{f"right_{week}": fmean(each.right[week - 1] for each in ran) for week in at},
    }


def _lines(found: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    for scenario, its in found.items():
        for name, figure in its.items():
            is_number = figure is None or name in ("campaigns", "after_launches")
            yield f"{scenario:16} {name:18} {figure if is_number else f'{100 * (figure or 0):.1f} %'}"


def main() -> None:
    """Simulate the campaigns and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--campaigns", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    found = simulated(chosen.campaigns, chosen.seed)
    for line in _lines(found):
        print(line)
    print(json.dumps({"campaigns": chosen.campaigns, "seed": chosen.seed, **found}))


if __name__ == "__main__":
    main()
