"""Compare how many recipients of each variant of a launch engaged.

Post-backs show who opened the message. The holdout got no message, so its side has no share.
:mod:`sendoff.report.outcomes` compares what the people did afterwards, as the warehouse records it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil

from sendoff.campaign import Campaign
from sendoff.figures import LaunchStats, counted, duration
from sendoff.launch import ANSWERED_AFTER
from sendoff.ledger import Launch, Ledger
from sendoff.postbacks import MATCHED_BY
from sendoff.report.balance import CONTROL_GROUP, mismatch_of_sent, without_mismatch
from sendoff.report.statistics import Comparison, Counted, Side, compared_shares
from sendoff.states import PostBackKind, Verdict

_SENT = (Verdict.ENGAGED, Verdict.DELIVERED, Verdict.MISSING, Verdict.UNKNOWABLE)
"""The verdicts of people who were certainly sent to."""

_FEW_REQUESTS = 10  # at each end of a wave; some of them may never be made


def of_engagement(ledger: Ledger, figures: LaunchStats) -> Comparison | None:
    """Compare how many of each variant engaged. Return None for a launch without variants.

    The shares are of the people who were certainly sent to. People in doubt may have been sent to, and unreadable
    post-backs may be opens. A side is only ahead if it is so whatever became of them.
    """
    if not figures.by_variant:
        return None
    launch = ledger.launches.get(figures.launch_key)
    campaign = Campaign.frozen(launch.definition)
    unknown = _why_no_open_is_known(launch, campaign)
    took = _sending(ledger, launch)
    early = _opens_within(figures, took)
    hidden = _hidden(figures) + early
    sides = [
        Counted(
            name,
            counts.get(Verdict.ENGAGED, 0),
            sum(counts.get(verdict, 0) for verdict in _SENT),
            counts.get(Verdict.IN_DOUBT, 0),
            hidden,
        )
        for name, counts in figures.by_variant.items()
    ]
    many = launch.noun[1]
    holdout = figures.not_sent_because.get("held out", 0)
    nobody = (
        (Side(CONTROL_GROUP, holdout, note="not measurable, because they got no message"),) if holdout else ()
    )
    if unknown:
        unmeasured = (
            Side(each.name, each.people, note=f"not measurable, because {unknown}") for each in sides
        )
        found = Comparison("engaged", "share", tuple(unmeasured), noun=launch.noun)
    else:
        found = without_mismatch(
            compared_shares("engaged", sides, noun=launch.noun), mismatch_of_sent(figures, campaign, sides)
        )
    whom = (
        ()
        if unknown
        else (
            f"{many.capitalize()}: those of each variant that were certainly sent to. The shares are shares of them.",
        )
    )
    remarks = (*whom, *found.remarks, *_engagement_remarks(figures, launch, campaign))
    if early and not unknown:
        text = (
            f"The requests took {duration(round(took.total_seconds()))}, so one variant may have gone out before "
            f"another. The intervals allow for the {counted(early, 'open')} of the same time before this report."
        )
        remarks = (*remarks, text)
    is_final = not _what_is_missing(figures, launch)
    return replace(found, sides=found.sides + nobody, remarks=remarks, is_final=is_final)


def _sending(ledger: Ledger, launch: Launch) -> timedelta:
    """Return how long the requests of a wave took, at most: by so much may one variant have gone out before another.

    The time is zero if the service sends the messages of all requests at a time after them, or if the wave is not
    complete. Then the variants are not compared if they are uneven.
    """
    sizes: Counter[int] = Counter()
    for part in ledger.dispatch_queries.progress(launch.launch_key):
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


def _made_at(ledger: Ledger, launch: Launch, before: int, count: int) -> list[datetime]:
    """Return when the first attempts of some requests ended, in the order of the requests.

    ``before``: how many requests of the launch come before them.
    """
    found = ledger.dispatch_queries.requests(launch.launch_key, offset=before, limit=count)
    return [each.recorded[0].recorded_at for each in found if each.recorded]


def _opens_within(figures: LaunchStats, time: timedelta) -> int:
    """Return how many opens came within a time until the report. A minute that is partly within it counts in part."""
    begin, minute = figures.as_of - time, timedelta(minutes=1)
    return ceil(
        sum(
            opens * min(1.0, max(0.0, (at + minute - begin) / minute))
            for at, _, opens in figures.timeline
            if time
        )
    )


def _hidden(figures: LaunchStats) -> int:
    return sum(figures.anomalies.get(kind, 0) for kind in ("unreadable", "forged"))


def _why_no_open_is_known(launch: Launch, campaign: Campaign) -> str:
    if PostBackKind.OPEN not in campaign.post_backs.kinds:
        return "the launch did not request post-backs of opens"
    if launch.identified_by not in MATCHED_BY:
        return f"post-backs do not carry {launch.identified_by} and so do not show who opened"
    return ""


def _engagement_remarks(figures: LaunchStats, launch: Launch, campaign: Campaign) -> Iterator[str]:
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
            f"{hidden:,} post-backs were unreadable or forged. The intervals allow for each to be an open of any "
            "variant."
        )
    if len({campaign.as_variant(name).channels_used() for name in campaign.variants}) > 1:
        yield "The variants use different channels. An open does not mean the same on each."
    if missing := _what_is_missing(figures, launch):
        yield f"{missing} Early opens differ from later ones."


def _what_is_missing(figures: LaunchStats, launch: Launch) -> str:
    """Return a sentence on the opens that may come after the report, or an empty text if hardly any do."""
    if launch.settled_at is not None:
        return ""
    if launch.sends_at is None:
        return "The service still sends this launch, so opens still arrive."
    after = figures.as_of - launch.sends_at
    if after >= ANSWERED_AFTER:
        return ""
    when = f"{duration(round(after.total_seconds()))} after" if after >= timedelta(seconds=1) else "before"
    return f"This report was made {when} the launch went out. Later opens are not in it."
