"""Compare how many recipients of each variant of a launch engaged.

Post-backs show who opened the message. The holdout got no message, so its side has no share.
:mod:`sendoff.report.outcomes` compares what the people did afterwards, as the warehouse records it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil

from sendoff.campaign import Campaign
from sendoff.comparison.balance import mismatch_of_own_hours, mismatch_of_sent, without_mismatch
from sendoff.comparison.result import Comparison, Side, amount, spoken
from sendoff.comparison.statistics import NOTICEABLE, Asked, Counted, compared_shares
from sendoff.figures import CONTROL_GROUP, LaunchStats, counted, duration
from sendoff.launch import ANSWERED_AFTER
from sendoff.ledger import LaunchRecord, Ledger, Progress
from sendoff.service import MATCHED_BY
from sendoff.states import UNFINISHED, Arm, LaunchState, PostBackKind, Verdict

_SENT = (Verdict.ENGAGED, Verdict.DELIVERED, Verdict.MISSING, Verdict.UNKNOWABLE)
"""The verdicts of people who were certainly sent to."""

_FEW_REQUESTS = 10  # at each end of a wave; some of them may never be made


def comparisons_of(ledger: Ledger, figures: LaunchStats, detect: float = NOTICEABLE) -> list[Comparison]:
    """Compare the variants of a launch, and its arms if recipients got the message at their own hours."""
    found = (of_engagement(ledger, figures, detect), of_own_hours(ledger, figures, detect))
    return [each for each in found if each]


def asked_about(launch: LaunchRecord, detect: float = NOTICEABLE, control: str = "") -> Asked:
    """Return what the ledger and the reader know of a comparison. ``detect``, ``control``: see :class:`Asked`."""
    number = launch.comparison_number or 1
    return Asked(control=control, noun=launch.noun, launch=number, detect=detect)


@dataclass(frozen=True, slots=True)
class _Measured:
    """What post-backs show about the sides of a launch: its variants, or its arms.

    ``took``: how much earlier one side may have gone out than another. ``early``: the opens of so long a time before
    the report. ``still_to_come``: as :func:`_still_to_come`.
    """

    launch: LaunchRecord
    campaign: Campaign
    sides: Sequence[Counted]
    mismatch: str
    took: timedelta
    early: int
    still_to_come: str

    @property
    def unknown(self) -> str:
        """Why post-backs show nothing about the sides, or an empty text."""
        if PostBackKind.OPEN not in self.campaign.post_backs.kinds:
            return "the launch did not request post-backs of opens"
        if self.launch.identified_by not in MATCHED_BY:
            return f"post-backs do not carry {self.launch.identified_by} and so do not show who opened"
        return ""

    def compared(self, detect: float, control: str = "") -> Comparison:
        """Compare the shares of the sides that engaged, if they are known and may be compared."""
        if self.unknown:
            note = f"not measurable, because {self.unknown}"
            sides = tuple(Side(each.name, each.people, note=note) for each in self.sides)
            return Comparison("engaged", "share", sides, noun=self.launch.noun)
        found = compared_shares("engaged", self.sides, **asked_about(self.launch, detect, control))
        return without_mismatch(found, self.mismatch)


def _counted(
    figures: LaunchStats, name: str, verdicts: Mapping[str, int], early: int, suspects: int
) -> Counted:
    return Counted(
        name,
        verdicts.get(Verdict.ENGAGED, 0),
        sum(verdicts.get(verdict, 0) for verdict in _SENT),
        verdicts.get(Verdict.IN_DOUBT, 0),
        _hidden(figures) + early,
        suspects,
    )


def _opens_within(figures: LaunchStats, time: timedelta, opens: Mapping[datetime, int]) -> int:
    """Return how many opens came within a time until the report. A minute that is partly within it counts in part."""
    if not time:
        return 0
    return ceil(sum(count * _part_within(figures, time, at) for at, count in opens.items()))


def _part_within(figures: LaunchStats, time: timedelta, at: datetime) -> float:
    """Return which part of a minute is within a time until the report. The last minute ends with the report."""
    begin, end = figures.as_of - time, min(at + timedelta(minutes=1), figures.as_of)
    if begin <= at:  # also if it was received while the report was made
        return 1.0
    return max(0.0, (end - begin) / (end - at))


def _hidden(figures: LaunchStats) -> int:
    return sum(figures.anomalies.get(kind, 0) for kind in ("unreadable", "forged"))


def _still_to_come(
    ledger: Ledger, figures: LaunchStats, launch: LaunchRecord, campaign: Campaign, *, is_waiting: bool
) -> str:
    """Return a sentence on the opens that may come after the report, or an empty text if hardly any do.

    The launch went out with its newest request, or when the service sent it if that was later. ``is_waiting``: requests
    to the people who are compared are not made yet.
    """
    if launch.settled_at is not None:
        return ""
    if launch.sends_at is None:
        return "The service still sends this launch, so opens still arrive."
    if is_waiting and not LaunchState(launch.state).is_final:
        return "Requests are still to be made, so opens still arrive."
    up_to_wave = 1 if campaign.decide else None
    newest = ledger.dispatch_queries.newest_request(launch.launch_key, up_to_wave=up_to_wave)
    after = figures.as_of - max(launch.sends_at, newest or launch.sends_at)
    if after >= ANSWERED_AFTER:
        return ""
    when = f"{duration(round(after.total_seconds()))} after" if after >= timedelta(seconds=1) else "before"
    return f"This report was made {when} the launch went out. Later opens are not in it."


def of_engagement(ledger: Ledger, figures: LaunchStats, detect: float = NOTICEABLE) -> Comparison | None:
    """Compare how many of each variant engaged. Return None for a launch without variants.

    The shares are of the people who were certainly sent to. People in doubt may have been sent to, and unreadable
    post-backs may be opens. A side is only ahead if it is so whatever became of them. People who get the winner of a
    test share are not compared. ``detect``: the relative difference that the outlook is about.
    """
    if not figures.by_variant:
        return None
    measured = _measured(ledger, figures)
    found = measured.compared(detect)
    sides, remarks = found.sides, (*found.remarks, *_engagement_remarks(figures, measured))
    if holdout := figures.not_sent_because.get("held out", 0):
        sides += (Side(CONTROL_GROUP, holdout, note="not measurable, because they got no message"),)
    if not measured.unknown:
        many = found.noun[1]
        whom = f"{many.capitalize()}: those of each variant that were certainly sent to. The shares are shares of them."
        remarks = (whom, *remarks)
    return replace(found, sides=sides, remarks=remarks, is_final=not measured.still_to_come)


def _measured(ledger: Ledger, figures: LaunchStats) -> _Measured:
    """Return what post-backs show about the variants."""
    launch = ledger.launches.get(figures.launch_key)
    campaign = Campaign.frozen(launch.definition)
    progress = ledger.dispatch_queries.progress(figures.launch_key)
    if campaign.decide:
        progress = [part for part in progress if part.wave == 1]  # the test share
    took = _sending(ledger, launch, progress)
    early = _opens_within(figures, took, _opens_of_sides(ledger, figures, campaign))
    sides = [
        _counted(figures, name, counts, early, figures.suspects_by_variant.get(name, 0))
        for name, counts in figures.by_variant.items()
    ]
    is_waiting = any(part.state in UNFINISHED for part in progress)
    mismatch = mismatch_of_sent(figures, campaign, sides, is_waiting=is_waiting)
    still_to_come = _still_to_come(ledger, figures, launch, campaign, is_waiting=is_waiting)
    return _Measured(launch, campaign, sides, mismatch, took, early, still_to_come)


def _sending(ledger: Ledger, launch: LaunchRecord, progress: Iterable[Progress]) -> timedelta:
    """Return how long the requests of a wave took, at most: by so much may one variant have gone out before another.

    The time is zero if the service sends the messages of all requests at a time after them, or if the wave is not
    complete. Then the variants are not compared if they are uneven.
    """
    sizes: Counter[int] = Counter()
    for part in progress:
        sizes[part.wave] += part.dispatches
    longest, before = timedelta(), 0
    for _, size in sorted(sizes.items()):
        few = min(size, _FEW_REQUESTS)
        begin = _made_at(ledger, launch, before, few)
        before += size
        end = _made_at(ledger, launch, before - few, few)
        if begin and end and (launch.sends_at is None or launch.sends_at < end[-1]):
            longest = max(longest, end[-1] - begin[0])
    return longest


def _made_at(ledger: Ledger, launch: LaunchRecord, before: int, count: int) -> list[datetime]:
    """Return when the first attempts of some requests ended, in the order of the requests.

    ``before``: how many requests of the launch come before them.
    """
    found = ledger.dispatch_queries.requests(launch.launch_key, offset=before, limit=count)
    return [each.recorded[0].recorded_at for each in found if each.recorded]


def _opens_of_sides(ledger: Ledger, figures: LaunchStats, campaign: Campaign) -> dict[datetime, int]:
    """Return the opens by minute that the figures count, without those of people who wait for a winner, or got it."""
    of_all = {at: opens for at, _, opens in figures.timeline}
    if not campaign.decide:
        return of_all
    # The ledger may have newer opens than the figures.
    of_test = ledger.aggregates.timeline(figures.launch_key, up_to_wave=1)
    return {at: min(opens, of_all.get(at, 0)) for at, _, opens in of_test}


def _engagement_remarks(figures: LaunchStats, measured: _Measured) -> Iterator[str]:
    campaign = measured.campaign
    for name, counts in figures.by_variant.items():
        if not_sent := counts.get(Verdict.NOT_SENT, 0):
            yield (
                f"Of {name}, {not_sent:,} not sent to are not counted. The comparison is valid only if they are a "
                "random part of the variant."
            )
        if in_doubt := counts.get(Verdict.IN_DOUBT, 0):
            yield (
                f"Of {name}, {in_doubt:,} are in doubt: they got the message, or did not. The intervals allow for both."
            )
    if hidden := _hidden(figures):
        yield (
            f"{hidden:,} post-backs were unreadable, or named another campaign (sent twice, or forged). The intervals "
            "allow for each to be an open of any variant."
        )
    if suspects := sum(figures.suspects_by_variant.values()):
        yield (
            f"A machine probably made all opens of {suspects:,} {measured.launch.noun[1]}. The intervals allow for "
            "each to be an open of a person, or none."
        )
    if len({campaign.as_variant(name).channels_used() for name in campaign.variants}) > 1:
        yield "The variants use different channels. An open does not mean the same on each."
    if measured.still_to_come:
        yield f"{measured.still_to_come} Early opens differ from later ones."
    if measured.early and not measured.unknown:
        yield (
            f"The requests took {duration(round(measured.took.total_seconds()))}, so one variant may have gone out "
            f"before another. The intervals allow for the {counted(measured.early, 'open')} of the same time before "
            "this report."
        )


@dataclass(frozen=True, slots=True)
class Leader:
    """The variant that is clearly ahead of all others; None if there is none. ``why``: a part of a sentence.

    ``engaged``, ``people``: the counts of each variant that this was judged by.
    """

    variant: str | None
    why: str
    engaged: Mapping[str, int] = field(default_factory=dict)
    people: Mapping[str, int] = field(default_factory=dict)


def leader_of(ledger: Ledger, figures: LaunchStats) -> Leader:
    """Return the variant that is clearly ahead by engagement, judged as the report judges it.

    The variant with the largest share is compared with each other one, at the level of the report, which compares all
    pairs. A worse variant wins in at most 5 % of launches, because it would have to be clearly ahead of the best one.
    """
    measured = _measured(ledger, figures)
    if measured.unknown:
        return Leader(None, f"no one can tell which variant is ahead, because {measured.unknown}")
    sides = {each.name: each for each in measured.sides}
    if missing := [name for name in measured.campaign.variants if name not in sides]:
        return Leader(None, f"no one in the test share got {' or '.join(missing)}")
    engaged = {name: each.answers for name, each in sides.items()}
    people = {name: each.people for name, each in sides.items()}
    if measured.mismatch:
        return Leader(None, f"the variants cannot be compared. {measured.mismatch}", engaged, people)
    best = max(sides.values(), key=lambda each: each.answers / each.people if each.people else 0.0)
    others = [each for each in sides.values() if each is not best]
    compared = compared_shares("engaged", [best, *others], **asked_about(measured.launch))
    is_ahead = all(
        each.interval is not None and each.interval.is_clear
        for each in compared.differences
        if each.against == best.name
    )
    shares = ", ".join(
        f"{side.name} {amount(side.estimate or 0, 'share')} of {side.people:,}" for side in compared.sides
    )
    if is_ahead:
        return Leader(best.name, f"{best.name} is clearly ahead (engaged: {shares})", engaged, people)
    return Leader(None, f"no variant is clearly ahead (engaged: {shares})", engaged, people)


def of_own_hours(ledger: Ledger, figures: LaunchStats, detect: float = NOTICEABLE) -> Comparison | None:
    """Compare how many engaged who got the message at their own hour, and at once although their hour is known.

    Return None for a launch without both arms. Nothing is compared before all requests are made. Recipients with an
    own hour had less time to open. The intervals therefore allow for all opens within a time before the report. It is
    as long as the requests took.
    """
    if not {Arm.OWN_HOUR, Arm.CONTROL} <= figures.by_arm.keys():
        return None
    measured = _measured_arms(ledger, figures)
    found = measured.compared(detect, control=measured.sides[1].name)
    if measured.unknown:
        return found
    remarks = (*_gain(found), *found.remarks, *_own_hour_remarks(figures, found.noun, measured.early))
    return replace(found, remarks=remarks, is_final=not measured.still_to_come)


def _measured_arms(ledger: Ledger, figures: LaunchStats) -> _Measured:
    """Return what post-backs show about the recipients with an own hour, and about those of them sent to at once."""
    launch = ledger.launches.get(figures.launch_key)
    campaign = Campaign.frozen(launch.definition)
    assert campaign.own_hours is not None
    took = ledger.dispatch_queries.sending_span(figures.launch_key)
    early = _opens_within(figures, took, {at: opens for at, _, opens in figures.timeline})
    own, at_once = (
        _counted(figures, name, figures.by_arm[arm], early, figures.suspects_by_arm.get(arm, 0))
        for arm, name in ((Arm.OWN_HOUR, "own hour"), (Arm.CONTROL, "at once"))
    )
    states = ledger.dispatch_queries.states(figures.launch_key).keys()
    is_waiting = not states.isdisjoint(UNFINISHED)
    mismatch = mismatch_of_own_hours(figures, campaign.own_hours.control, own, at_once, is_waiting=is_waiting)
    still_to_come = _still_to_come(ledger, figures, launch, campaign, is_waiting=is_waiting)
    return _Measured(launch, campaign, (own, at_once), mismatch, took, early, still_to_come)


def _gain(found: Comparison) -> Iterator[str]:
    """Yield a sentence on what own hours gain, unless the sides must not be compared."""
    for each in found.differences:
        if each.interval is None or not each.interval.is_clear:
            yield "No gain of sending at own hours can be shown, and no loss."
        else:
            low, high = (spoken(end, "share") for end in (each.interval.low, each.interval.high))
            yield f"Sending at own hours {'gains' if each.interval.low > 0 else 'loses'}: {low} to {high} engaged."


def _own_hour_remarks(figures: LaunchStats, noun: tuple[str, str], early: int) -> Iterator[str]:
    yield (
        f"Compared are the {noun[1]} whose hour is known from earlier opens. Chance decided who of them got the "
        "message at once."
    )
    if early:
        yield (
            f"The intervals allow for {counted(early, 'open')} shortly before this report, because those who got the "
            "message later had less time to open."
        )
    if explored := sum(figures.by_arm.get(Arm.EXPLORE, {}).values()):
        yield f"{counted(explored, *noun)} got the message at a random hour. They are not compared."
