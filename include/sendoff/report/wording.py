"""The sentences of a report: how many people were reached, what cannot be known and why, and which sums are wrong.

They are the same in every form of the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sendoff.campaign import Period
from sendoff.figures import (
    PLATFORM,
    RELIABLE_PLATFORMS,
    WHY_OWN_UNKNOWABLE,
    WHY_UNKNOWABLE,
    LaunchStats,
    TimelinePoint,
    counted,
    counts_in_words,
    share,
    span_in_words,
    spoken_reason,
)
from sendoff.report.timeline import span
from sendoff.states import DispatchState, LaunchState, PostBackKind, Verdict

_OWN_REQUEST = "A request of your own: its JSON was sent as it was written."
_REQUESTS: Mapping[str, str] = {
    DispatchState.IN_DOUBT: "in doubt: the service gave no clear answer, and no post-back has shown since that it "
    "processed the request. Sending again might reach recipients twice.",
    DispatchState.WRITTEN_OFF: "written off by a person: it is not known whether the service processed the request.",
    DispatchState.REFUSED: "refused by the service: it reached no one.",
    DispatchState.SUPPRESSED: "not made: all its recipients were to be left out by then.",
}
"""Sentences on requests whose number of recipients is not known, after the count of requests."""

_CONTRADICTED = "although a post-back came or an earlier attempt got no clear answer"

_GOT_NOTHING: Mapping[str, str] = {
    "refused": "the service refused their requests",
    f"launch {LaunchState.REJECTED}": "the launch was rejected",
    f"launch {LaunchState.STOPPED}": "the launch was stopped before their turn",
}
"""Sentences on recipients who were not sent to, by reason, after their number."""

_NOT_MADE: Mapping[str, str] = {
    LaunchState.HELD: ": the launch is held.",
    LaunchState.PAUSED: ": the launch is paused.",
    LaunchState.REJECTED: ": the launch was rejected.",
    LaunchState.STOPPED: ": the launch was stopped.",
}


def reached(figures: LaunchStats) -> list[str]:
    """Return sentences on the least and the most people reached. The most may be unknown."""
    low, high = figures.reached
    if high is None:
        return [f"Reached: at least {low:,}; at most is not known."]
    if not figures.audience:
        return []
    shares = [share(count, figures.audience) for count in (low, high)]
    said = [f"Reached of the audience: at least {low:,} ({shares[0]}), at most {high:,} ({shares[1]})."]
    others = figures.audience - figures.control_group - figures.erased  # some of them were in the group
    if figures.control_group and others > 0:
        least, most = (share(count, others) for count in (low, high))
        opened = ""
        if figures.is_measured(Verdict.ENGAGED):
            opened = f"; {share(figures.verdicts.get(Verdict.ENGAGED, 0), others)} opened or clicked"
        people = f"Of the {others:,} {figures.noun[1]} outside the control group"
        said.append(f"{people}: at least {least}, at most {most}{opened}.")
    return said


def rounding(figures: LaunchStats) -> list[str]:
    """Return a sentence if the rounded shares of the verdicts do not sum to 100 %."""
    if figures.is_chosen_by_service or not figures.audience or figures.unaccounted_identifiers:
        return []
    counts = (*figures.verdicts.values(), figures.erased)
    tenths = sum(round(10 * float(f"{100 * count / figures.audience:.1f}")) for count in counts)
    if tenths == 1_000:
        return []
    return [
        f"The shares are rounded, so they sum to {tenths / 10:.1f} %. The numbers of {figures.noun[1]} add up."
    ]


def who_is_meant(figures: LaunchStats) -> list[str]:
    """Return sentences on the recipients and the request, if a reader may expect something else."""
    said = [_OWN_REQUEST] if figures.is_own_request else []
    one, many = figures.noun
    if figures.is_recurring:
        said.append(f"Sent again and again. A {one} may get many messages but counts once here.")
    if figures.is_chosen_by_service:
        named = counted(figures.audience, one, many)
        why = (
            "The request has no single list of people"
            if figures.is_own_request
            else "The service chose the people"
        )
        said.append(f"{why}, so their number is not known. Post-backs name {named}.")
    return said


def alarms(figures: LaunchStats) -> list[str]:
    """Return a sentence for each sum that does not add up."""
    wrong = (
        (figures.unaccounted_rows, "row", "neither kept nor dropped"),
        (figures.unaccounted_identifiers, "identifier", "without a verdict"),
    )
    return [
        f"DOES NOT ADD UP: {counted(count, noun)} {what}. Please report this defect."
        for count, noun, what in wrong
        if count
    ]


def requests_without_people(figures: LaunchStats) -> list[str]:
    """Return sentences on requests that were not accepted, if the service chose the people.

    How many people such a request was for is not known.
    """
    if not figures.is_chosen_by_service:
        return []
    known, refused = Counter(_known(figures)), figures.doubted.get(DispatchState.REFUSED, 0)
    known.subtract({DispatchState.IN_DOUBT: refused})
    said = [f"{counted(refused, 'request')} refused by the service, {_CONTRADICTED}."] if refused else []
    return said + [
        f"{counted(count, 'request')} {what}"
        for state, what in (
            *_REQUESTS.items(),
            (DispatchState.PLANNED, f"not made{_NOT_MADE.get(figures.state, '.')}"),
        )
        if (count := known.get(state))
    ]


def _known(figures: LaunchStats) -> Mapping[str, int]:
    """Return the requests by their known result. Those planned again or refused after a doubt are in doubt."""
    counts = Counter(figures.dispatches)
    counts.subtract(figures.doubted)
    counts[DispatchState.IN_DOUBT] += sum(figures.doubted.values())
    return +counts


def what_cannot_be_known(figures: LaunchStats) -> list[str]:
    """Return sentences on the people whose result cannot be known, with the reasons."""
    in_doubt = figures.verdicts.get(Verdict.IN_DOUBT, 0)
    said = [*_unmeasured(figures), *_unknowable(figures)]
    if in_doubt:
        said.append(f"{in_doubt:,} in doubt: {_why_in_doubt(figures)}. Sending again might reach them twice.")
    return said


def _why_in_doubt(figures: LaunchStats) -> str:
    under_way = ", or is still under way" if figures.dispatches.get(DispatchState.IN_FLIGHT) else ""
    why = f"their request got no clear answer{under_way}, and no post-back has shown since that it was processed"
    if not (refused := figures.doubted.get(DispatchState.REFUSED)):
        return why
    unclear = {DispatchState.IN_DOUBT, DispatchState.IN_FLIGHT, DispatchState.WRITTEN_OFF}
    if len(figures.doubted) == 1 and unclear.isdisjoint(figures.dispatches):
        return f"the service refused their request, {_CONTRADICTED}"
    return f"{why}. Exception: the service refused {counted(refused, 'request')}, {_CONTRADICTED}"


def got_nothing(figures: LaunchStats) -> list[str]:
    """Return sentences on the recipients who got nothing and get nothing by themselves, and what can be done."""
    said = [
        f"{counted(count, *figures.noun)} got nothing, because {why}."
        for reason, why in _GOT_NOTHING.items()
        if (count := figures.not_sent_because.get(reason))
    ]
    if said:
        said.append("Nothing more of this launch is sent to them.")
        if not (figures.is_own_request or figures.is_recurring):
            said.append("To reach them, send the period again only to those who got nothing.")
    return said


def _unmeasured(figures: LaunchStats) -> list[str]:
    return [
        f"Not measured: {verdict}. The launch did not request post-backs of {events}, or they do not carry these "
        f"identifiers. The {figures.verdicts.get(verdict, 0):,} is not a count."
        for verdict, events in ((Verdict.DELIVERED, "deliveries"), (Verdict.ENGAGED, "opens"))
        if not figures.is_measured(verdict)
    ]


def why_unknowable(figures: LaunchStats) -> Mapping[str, int]:
    """Return the number of unknowable people by reason. Older reports hold no reasons: return one only if certain."""
    unknowable = figures.verdicts.get(Verdict.UNKNOWABLE, 0)
    if not unknowable:
        return {}
    if figures.unknowable_because:
        return figures.unknowable_because
    if figures.is_recurring:
        return {"sent again": unknowable}
    is_certain = _unreliable(figures) and not any(map(figures.anomalies.get, ("unreadable", "forged")))
    return {PLATFORM: unknowable} if is_certain else {}


def _unknowable(figures: LaunchStats) -> list[str]:
    reasons = why_unknowable(figures)
    said = [_of_reason(figures, reason, count) for reason, count in reasons.items()]
    if not said and (unknowable := figures.verdicts.get(Verdict.UNKNOWABLE, 0)):
        said.append(
            f"{unknowable:,} unknowable: accepted, then silent where silence proves nothing. The audience query names "
            "no platform, deliveries on the platform are not reported reliably, there are no post-backs of deliveries, "
            "one could not be understood, or post-backs do not carry these identifiers."
        )
    return said


def _of_reason(figures: LaunchStats, reason: str, count: int) -> str:
    begin = f"{count:,} unknowable: accepted, then silent where silence proves nothing"
    whys = WHY_OWN_UNKNOWABLE if figures.is_own_request else WHY_UNKNOWABLE
    why = whys.get(reason, reason)
    if reason != PLATFORM or not (where := _unreliable(figures)):
        return f"{begin}: {why}."
    return f"{begin} ({', '.join(where)}). {why[0].upper()}{why[1:]}."


def _unreliable(figures: LaunchStats) -> list[str]:
    return [
        f"{platform} {counts[Verdict.UNKNOWABLE]:,}"
        for platform, counts in figures.by_platform.items()
        if counts.get(Verdict.UNKNOWABLE) and platform not in RELIABLE_PLATFORMS
    ]


def platform_remarks(figures: LaunchStats) -> list[str]:
    """Return a sentence if the platforms do not add up to the audience."""
    why = "an identifier with two platforms counts under both, and one without a platform under none"
    return _difference(figures, "platforms", figures.by_platform, why)


def variant_remarks(figures: LaunchStats) -> list[str]:
    """Return sentences on the rest, and on variants that do not add up to the audience."""
    why = f"{figures.noun[1]} in the control group get no variant"
    remarks = _difference(figures, "variants", variant_rows(figures), why)
    if not figures.rest:
        return remarks
    gets = f"gets {figures.winner}" if figures.winner else "waits until the winner is decided"
    rest = f"The variants above are those of the test share, which is compared. The rest {gets}, and is not compared."
    return [rest, *remarks]


def variant_rows(figures: LaunchStats) -> dict[str, Mapping[str, int]]:
    """Return the verdicts of each variant, and those of the rest if a winner goes to it."""
    rest = f"the rest: {figures.winner or 'not decided yet'}"
    return {**figures.by_variant, **({rest: figures.rest} if figures.rest else {})}


def _difference(
    figures: LaunchStats, what: str, groups: Mapping[str, Mapping[str, int]], why: str
) -> list[str]:
    total = sum(sum(row.values()) for row in groups.values())
    if not groups or total == figures.audience:
        return []
    reasons = [why] if total + figures.erased != figures.audience else []
    if figures.erased:
        reasons.append("those who were erased are in none")
    return [f"The {what} sum to {total:,}, not to {figures.audience:,}: {'; '.join(reasons)}."]


def period_in_words(key: str) -> str:
    """Return a period for everybody, such as ``9 Nov 2026 to 15 Nov 2026``."""
    period = Period.of(key)
    return " ".join(filter(None, [span_in_words(period.start, period.end), period.partition]))


def few_points(step: int, points: Sequence[TimelinePoint]) -> str:
    """Return a sentence in place of a timeline that has too few points for a chart."""
    if not points:
        return "No post-backs yet."
    deliveries = sum(point.deliveries for point in points)
    came = " and ".join(_came(deliveries, sum(point.opens for point in points)))
    length = span(step * len(points))
    within = length if length[0].isdigit() else f"one {length}"
    begin = points[0].at
    when = f"{begin:%Y-%m-%d %H:%M} {begin.tzinfo}"
    return f"{came}, all within {within} from {when}. That is too short for a chart."


def _came(deliveries: int, opens: int) -> tuple[str, str]:
    return counted(deliveries, "delivery", "deliveries"), counted(opens, "open or click", "opens or clicks")


def requests_and_post_backs(figures: LaunchStats) -> list[tuple[str, str]]:
    """Return the requests by state, the post-backs by kind, and the anomalies among them, as text."""
    came = _came(*(figures.post_backs.get(kind, 0) for kind in PostBackKind))
    anomalies = {spoken_reason(kind): count for kind, count in figures.anomalies.items()}
    return [
        ("requests", counts_in_words(_requests(figures)) or "none"),
        ("post-backs", ", ".join(came)),
        ("anomalies", counts_in_words(anomalies) or "none"),
    ]


def second_campaigns(figures: LaunchStats) -> list[str]:
    """Return a sentence on post-backs that name another campaign than the one known for their request."""
    if not (count := figures.anomalies.get("forged")):
        return []
    names = "names" if count == 1 else "name"
    what = f"{counted(count, 'post-back')} {names} another campaign than the service created for the request"
    why = "Either it was sent twice, for example after an older ledger was restored, or someone forged a post-back"
    return [f"{what}. {why}."]


def _requests(figures: LaunchStats) -> Mapping[str, int]:
    """Return the requests by state. A rejected or stopped launch never makes its planned requests."""
    if figures.state not in (LaunchState.REJECTED, LaunchState.STOPPED):
        return figures.dispatches
    known = _known(figures)
    others = {state: count for state, count in known.items() if state != DispatchState.PLANNED}
    left = known.get(DispatchState.PLANNED, 0)
    return others | {f"not made, and never will be (launch {figures.state})": left}
