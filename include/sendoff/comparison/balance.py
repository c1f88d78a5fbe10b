"""Check whether chance explains how the people of a launch are divided between the sides of a comparison.

If a side lost people for a reason that depends on the side, the remaining people of the sides are not alike, and the
comparison means nothing. Such a comparison has no differences, but a sentence that says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lgamma, log, log1p

from sendoff.campaign import Campaign
from sendoff.comparison.result import Comparison
from sendoff.comparison.sequential import Answers, differs
from sendoff.comparison.statistics import Counted
from sendoff.figures import CONTROL_GROUP, DELIVERED_SINCE, OPENED_SINCE, LaunchStats, spoken_reason
from sendoff.states import Arm, LaunchState, Verdict

FALSE_ALARMS = 0.001
"""The probability that sides are ever called unbalanced although only chance divided the people."""

_NEGLIGIBLE = 1e-12

_CAUSES = {
    "refused": "refused by the service",
    **{reason: spoken_reason(reason) for reason in ("suppressed", OPENED_SINCE, DELIVERED_SINCE)},
}
_UNRELATED = ("held out", "null", "invalid", "duplicate")  # they do not depend on the side


def are_shares_off(planned: Mapping[str, float], people: Mapping[str, int]) -> bool:
    """Check whether the sides have other shares of the people than planned, and chance hardly explains it.

    If chance alone divided the people, the probability of True is at most half of :data:`FALSE_ALARMS`.
    """
    whole, shares = sum(people.values()), sum(planned.values())
    alpha = FALSE_ALARMS / 4 / len(planned)
    return any(_is_rare(people[name], whole, percent / shares, alpha) for name, percent in planned.items())


def _is_rare(count: int, whole: int, share: float, alpha: float) -> bool:
    """Check whether chance seldom puts so few, or so many, of the people on a side with this share of them.

    ``alpha``: the largest probability of True for too few, and that for too many, if chance alone divided the people.
    """
    if count > whole * share:
        count, share = whole - count, 1 - share
    log_first = lgamma(whole + 1) - lgamma(count + 1) - lgamma(whole - count + 1)
    log_first += count * log(share) + (whole - count) * log1p(-share)
    term = total = 1.0  # as parts of the first term of the binomial distribution's tail
    while count and term > _NEGLIGIBLE * total:
        term *= count / (whole - count + 1) * (1 - share) / share
        total, count = total + term, count - 1
    return log_first + log(total) < log(alpha)


def are_losses_off(assigned: Mapping[str, int], counted_people: Mapping[str, int]) -> bool:
    """Check whether some sides lost more of their assigned people than the others, and chance hardly explains it.

    If chance alone chose who was lost, the probability of ever returning True is at most half of
    :data:`FALSE_ALARMS`, at all looks together.
    """
    if not assigned:
        return False
    whole, lost = sum(assigned.values()), {name: assigned[name] - counted_people[name] for name in assigned}
    alpha = FALSE_ALARMS / 2 / len(assigned)
    return any(
        differs(Answers(lost[name], people), Answers(sum(lost.values()) - lost[name], whole - people), alpha)
        for name, people in assigned.items()
    )


def without_mismatch(found: Comparison, mismatch: str) -> Comparison:
    """Return a comparison, without its differences if there is a reason not to compare its sides."""
    return replace(found, differences=(), outlook="", mismatch=mismatch) if mismatch else found


def mismatch_of_assigned(
    campaign: Campaign, people: Mapping[str, int], dropped: Mapping[str, int], many: str
) -> str:
    """Return a sentence if chance hardly explains how the people were assigned to the sides, or an empty text.

    ``dropped``: the rows of the query that were left out, by reason. ``many``: the plural noun for the people.
    """
    planned = _planned(campaign, people)
    assigned = {name: people[name] for name in planned}
    if len(planned) < 2 or not are_shares_off(planned, assigned):
        return ""
    whole, shares = sum(assigned.values()), sum(planned.values())
    sizes = [
        f"{name} has {count:,} {many} instead of about {round(whole * planned[name] / shares):,}"
        for name, count in assigned.items()
    ]
    causes = {
        f"left out ({_CAUSES.get(reason, reason.replace('_', ' '))})": count
        for reason, count in dropped.items()
        if reason not in _UNRELATED
    }
    return (
        f"Do not compare these sides: {' and '.join(sizes)}. Chance hardly explains that.{_possible(causes)}"
    )


def _planned(campaign: Campaign, people: Mapping[str, int]) -> Mapping[str, float]:
    """Return the planned share of each side with a known share, in percent."""
    holdout = campaign.audience.holdout
    held_out = holdout.percent if holdout and CONTROL_GROUP in people else 0.0
    variants = {name: variant.percent for name, variant in campaign.variants.items()}
    variants = variants or dict.fromkeys(people.keys() - {CONTROL_GROUP}, 100.0)
    sent_to = 100 - held_out
    if campaign.decide:  # the rest of the people are on no side
        sent_to *= campaign.decide.share / 100
    planned = {name: share * sent_to / 100 for name, share in variants.items()}
    planned |= {CONTROL_GROUP: held_out} if held_out else {}
    return {name: share for name, share in planned.items() if name in people}


def mismatch_of_sent(
    figures: LaunchStats, campaign: Campaign, sides: Sequence[Counted], *, is_waiting: bool
) -> str:
    """Return why the variants must not be compared by what the service reports, or an empty text.

    ``is_waiting``: requests to some of these people are not made yet.
    """
    assigned = {name: sum(counts.values()) for name, counts in figures.by_variant.items()}
    many = figures.noun[1]
    if off := mismatch_of_assigned(campaign, assigned, figures.dropped, many):
        return off
    if not are_losses_off(assigned, {each.name: each.people for each in sides}):
        return ""
    lost = " and ".join(
        f"{assigned[each.name] - each.people:,} of {assigned[each.name]:,} {many} of {each.name}"
        for each in sides
        if each.people < assigned[each.name]
    )
    if is_waiting and not LaunchState(figures.state).is_final:
        return f"The variants cannot be compared yet: requests are still to be made, to {lost}."
    causes = {
        "in doubt": figures.verdicts[Verdict.IN_DOUBT],
        **{
            _CAUSES.get(reason, reason): count
            for reason, count in figures.not_sent_because.items()
            if reason not in _UNRELATED
        },
    }
    return (
        f"Do not compare these sides: {lost} were not certainly sent to. Chance hardly explains that the losses "
        f"differ.{_possible(causes)}"
    )


def mismatch_of_own_hours(
    figures: LaunchStats, control: float, own: Counted, at_once: Counted, *, is_waiting: bool
) -> str:
    """Return why the arms of own hours must not be compared, or an empty text. ``control``: its share, in percent."""
    if is_waiting and not LaunchState(figures.state).is_final:
        return "The sides cannot be compared yet: requests are still to be made."
    assigned = {
        each.name: sum(figures.by_arm[arm].values())
        for arm, each in ((Arm.OWN_HOUR, own), (Arm.CONTROL, at_once))
    }
    counts = {each.name: each.people for each in (own, at_once)}
    sizes = " and ".join(f"{name} {counts[name]:,} of {size:,}" for name, size in assigned.items())
    if are_shares_off({own.name: 100 - control, at_once.name: control}, assigned):
        return f"Do not compare these sides: their sizes ({sizes}) are not as planned. Chance hardly explains that."
    if are_losses_off(assigned, counts):
        return f"Do not compare these sides: sent to were {sizes}. Chance hardly explains that the losses differ."
    return ""


def _possible(causes: Mapping[str, int]) -> str:
    found = ", ".join(f"{count:,} {cause}" for cause, count in causes.items() if count)
    return f" Possible causes in the whole launch: {found}." if found else ""
