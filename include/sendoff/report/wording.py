"""What a report says in sentences: whom it reached, what cannot be known and why, and which sums do not hold.

They are the same in each form of the report.
"""

from __future__ import annotations

from collections.abc import Mapping

from sendoff.figures import PLATFORM, RELIABLE_PLATFORMS, WHY_UNKNOWABLE, LaunchStats, counted, share
from sendoff.states import DispatchState, LaunchState, PostBackKind, Verdict

_SENT_AGAIN = "Sent again and again: one person may get many messages, and counts once here."
_REQUESTS: Mapping[str, str] = {
    DispatchState.IN_DOUBT: "in doubt: no clear answer came, and no post-back has shown since that it was processed. "
    "Sending again might reach people twice.",
    DispatchState.WRITTEN_OFF: "written off by a person: nobody knows whether it was processed, and nobody looks any "
    "more.",
    DispatchState.REFUSED: "refused by the service: it reached nobody.",
}
"""What is said of requests of which nobody knows for how many people they were."""

_NOT_MADE: Mapping[str, str] = {
    LaunchState.HELD: ": the launch is held.",
    LaunchState.PAUSED: ": the launch is paused.",
    LaunchState.REJECTED: ": the launch was rejected.",
    LaunchState.STOPPED: ": the launch was stopped.",
}


def reached(figures: LaunchStats) -> list[str]:
    """Say how many were reached: at least, and at most as far as that is known."""
    low, high = figures.reached
    if high is None:
        return [f"Reached: at least {low:,}; at most is not known."]
    if not figures.audience:
        return []
    shares = [share(count, figures.audience) for count in (low, high)]
    said = [f"Reached: at least {low:,} ({shares[0]}), at most {high:,} ({shares[1]})."]
    others = figures.audience - figures.not_sent_because.get("held out", 0)
    if 0 < others < figures.audience:
        shares = [share(count, others) for count in (low, high)]
        said.append(f"Of the {others:,} who are not held out: at least {shares[0]}, at most {shares[1]}.")
    return said


def rounding(figures: LaunchStats) -> list[str]:
    """Say that the shares of the verdicts, each rounded for itself, do not sum to 100 %, where they do not."""
    if figures.is_chosen_by_service or not figures.audience or figures.unaccounted_identifiers:
        return []
    tenths = sum(
        round(10 * float(f"{100 * count / figures.audience:.1f}")) for count in figures.verdicts.values()
    )
    if tenths == 1_000:
        return []
    return [
        f"Each share is rounded for itself, so that they sum to {tenths / 10:.1f} %. The numbers of people add up."
    ]


def who_is_meant(figures: LaunchStats) -> list[str]:
    """Say what must be known of whom a launch is for: that nobody knows them, or that they may get many messages."""
    said = [_SENT_AGAIN] if figures.is_recurring else []
    if figures.is_chosen_by_service:
        heard = f"{figures.audience:,} {'was' if figures.audience == 1 else 'were'} heard of"
        said.append(f"The service chose the people: how many it sent to is not known. {heard}.")
    return said


def alarms(figures: LaunchStats) -> list[str]:
    """Say which sums do not hold; nothing if the figures are sound."""
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
    """Say what became of requests that stand for nobody knows how many people: those whose people the service chose."""
    if not figures.is_chosen_by_service:
        return []
    return [
        f"{counted(count, 'request')} {what}"
        for state, what in (
            *_REQUESTS.items(),
            (DispatchState.PLANNED, f"not made{_NOT_MADE.get(figures.state, '.')}"),
        )
        if (count := figures.dispatches.get(state))
    ]


def what_cannot_be_known(figures: LaunchStats) -> list[str]:
    """Say whose verdict says that it cannot be known, and why."""
    in_doubt = figures.verdicts.get(Verdict.IN_DOUBT, 0)
    said = [*_unmeasured(figures), *_unknowable(figures)]
    if in_doubt:
        under_way = ", or is still under way" if figures.dispatches.get(DispatchState.IN_FLIGHT) else ""
        said.append(
            f"{in_doubt:,} in doubt: their request got no clear answer{under_way}, and no post-back has shown since"
            " that it was processed. Sending again might reach them twice."
        )
    return said


def _unmeasured(figures: LaunchStats) -> list[str]:
    kinds = {
        PostBackKind.DELIVERY: (Verdict.DELIVERED, "deliveries"),
        PostBackKind.OPEN: (Verdict.ENGAGED, "opens"),
    }
    return [
        f"How many {verdict} is not measured: post-backs of {events} were not asked for, or do not carry what names "
        f"these people. The {figures.verdicts.get(verdict, 0):,} is not a count of them."
        for kind, (verdict, events) in kinds.items()
        if kind in figures.unmeasured
    ]


def why_unknowable(figures: LaunchStats) -> Mapping[str, int]:
    """Count the unknowable by reason. For a report of before, which holds no reasons, only where one is certain."""
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
            f"{unknowable:,} unknowable: accepted, then silent where silence proves nothing: no platform in the "
            "audience query or one whose deliveries are not reported reliably, no post-backs of deliveries or one that "
            "could not be understood, or identifiers that post-backs do not carry."
        )
    return said


def _of_reason(figures: LaunchStats, reason: str, count: int) -> str:
    begin = f"{count:,} unknowable: accepted, then silent where silence proves nothing"
    why = WHY_UNKNOWABLE.get(reason, reason)
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
    """Say why the platforms do not add up to the audience, where they do not."""
    why = (
        "an identifier that came with two platforms counts under both, one that came with none under neither"
    )
    return _difference(figures, "platforms", figures.by_platform, why)


def variant_remarks(figures: LaunchStats) -> list[str]:
    """Say why the variants do not add up to the audience, where they do not."""
    return _difference(figures, "variants", figures.by_variant, "who is held out gets none of them")


def _difference(
    figures: LaunchStats, what: str, groups: Mapping[str, Mapping[str, int]], why: str
) -> list[str]:
    total = sum(sum(row.values()) for row in groups.values())
    if not groups or total == figures.audience:
        return []
    return [f"The {what} sum to {total:,}, not to {figures.audience:,}: {why}."]


def requests_and_post_backs(figures: LaunchStats) -> list[tuple[str, str]]:
    """Count the requests by state, the post-backs by kind, and those among them that decide no verdict."""
    deliveries, opens = (figures.post_backs.get(kind, 0) for kind in PostBackKind)
    came = (counted(deliveries, "delivery", "deliveries"), counted(opens, "open or click", "opens or clicks"))
    return [
        ("requests", _listed(figures.dispatches)),
        ("post-backs", ", ".join(came)),
        ("anomalies", _listed(figures.anomalies)),
    ]


def _listed(counts: Mapping[str, int]) -> str:
    some = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return ", ".join(some) or "none"
