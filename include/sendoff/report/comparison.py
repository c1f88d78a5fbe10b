"""Compare how many recipients of each variant of a launch engaged.

Post-backs show who opened the message. The holdout got no message, so its side has no share.
:mod:`sendoff.report.outcomes` compares what the people did afterwards, as the warehouse records it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from sendoff.campaign import Campaign
from sendoff.figures import LaunchStats, duration
from sendoff.launch import ANSWERED_AFTER
from sendoff.ledger import Launch, Ledger
from sendoff.postbacks import MATCHED_BY
from sendoff.report.statistics import Comparison, Side, compared_shares
from sendoff.states import PostBackKind, Verdict

CONTROL_GROUP = "control group"
"""The name of the side that gets no message."""

_SENT = (Verdict.ENGAGED, Verdict.DELIVERED, Verdict.MISSING, Verdict.UNKNOWABLE)
"""The verdicts of people who were certainly sent to."""


def of_engagement(ledger: Ledger, figures: LaunchStats) -> Comparison | None:
    """Compare how many of each variant engaged. Return None for a launch without variants.

    The shares are of the people who were certainly sent to. They leave out people in doubt or not sent to.
    """
    if not figures.by_variant:
        return None
    launch = ledger.launches.get(figures.launch_key)
    campaign = Campaign.frozen(launch.definition)
    unknown = _why_no_open_is_known(launch, campaign)
    sides = [
        (name, counts.get(Verdict.ENGAGED, 0), sum(counts.get(verdict, 0) for verdict in _SENT))
        for name, counts in figures.by_variant.items()
    ]
    many = launch.noun[1]
    holdout = figures.not_sent_because.get("held out", 0)
    nobody = (
        (Side(CONTROL_GROUP, holdout, note="not measurable, because they got no message"),) if holdout else ()
    )
    if unknown:
        unmeasured = (
            Side(name, people, note=f"not measurable, because {unknown}") for name, _, people in sides
        )
        found = Comparison("engaged", "share", tuple(unmeasured), noun=launch.noun)
    else:
        found = compared_shares("engaged", sides, noun=launch.noun)
    whom = (
        ()
        if unknown
        else (
            f"{many.capitalize()}: those of each variant that were certainly sent to. The shares are shares of them.",
        )
    )
    remarks = (*whom, *found.remarks, *_engagement_remarks(figures, launch, campaign))
    is_final = not _what_is_missing(figures, launch)
    return replace(found, sides=found.sides + nobody, remarks=remarks, is_final=is_final)


def _why_no_open_is_known(launch: Launch, campaign: Campaign) -> str:
    if PostBackKind.OPEN not in campaign.post_backs.kinds:
        return "the launch did not request post-backs of opens"
    if launch.identified_by not in MATCHED_BY:
        return f"post-backs do not carry {launch.identified_by} and so do not show who opened"
    return ""


def _engagement_remarks(figures: LaunchStats, launch: Launch, campaign: Campaign) -> Iterator[str]:
    for name, counts in figures.by_variant.items():
        left_out = [
            f"{count:,} {words}"
            for verdict, words in ((Verdict.IN_DOUBT, "in doubt"), (Verdict.NOT_SENT, "not sent to"))
            if (count := counts.get(verdict, 0))
        ]
        if left_out:
            yield (
                f"Of {name}, {' and '.join(left_out)} are not counted. The comparison is valid only if they are a "
                "random part of the variant."
            )
    hidden = sum(figures.anomalies.get(kind, 0) for kind in ("unreadable", "forged"))
    if hidden:
        yield f"{hidden:,} post-backs were unreadable or forged. Opens among them are not counted."
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
