"""How many recipients a change of a campaign adds and removes, by running the queries of both versions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sendoff.audience.identifiers import Identifiers, union
from sendoff.campaign import CampaignFolder, Period, VerdictSource
from sendoff.errors import SendoffError
from sendoff.launch.gates import GateResult
from sendoff.launch.plan import Plan, plan_launch
from sendoff.launch.suppression import Warehouses


@dataclass(frozen=True, slots=True)
class RecipientChange:
    """The recipients of both versions of a campaign, as counts. None: not known, or there is no such version.

    ``added`` and ``removed`` are None if the versions identify recipients by different columns. ``gates``: those of the
    new version, without a ledger. ``old_problem`` and ``new_problem``: why a version cannot be launched.
    ``are_in_ledger``: a version takes its recipients from verdicts in the ledger, so they are not counted.
    """

    before: int | None = None
    after: int | None = None
    added: int | None = None
    removed: int | None = None
    gates: tuple[GateResult, ...] = ()
    old_problem: str | None = None
    new_problem: str | None = None
    are_in_ledger: bool = False


def compare_recipients(
    old: CampaignFolder | None,
    new: CampaignFolder | None,
    *,
    period: Period,
    warehouses: Warehouses,
    now: datetime,
) -> RecipientChange:
    """Plan both versions of a campaign for a period without a ledger, and compare their recipients."""
    (before, old_problem), (after, new_problem) = (
        _plan(folder, period, warehouses, now) for folder in (old, new)
    )
    ours, theirs = (_recipients(plan) for plan in (before, after))
    added = removed = None
    if ours and theirs and (ours[0], ours[1].kind) == (theirs[0], theirs[1].kind):
        added, removed = len(theirs[1] - ours[1]), len(ours[1] - theirs[1])
    return RecipientChange(
        before.people if before else None,
        after.people if after else None,
        added,
        removed,
        after.gates if after else (),
        old_problem,
        new_problem,
        any(map(_takes_verdicts, (old, new))),
    )


def _plan(
    folder: CampaignFolder | None, period: Period, warehouses: Warehouses, now: datetime
) -> tuple[Plan | None, str | None]:
    if folder is None or _takes_verdicts(folder):
        return None, None
    try:
        return plan_launch(None, folder, period=period, warehouses=warehouses, now=now), None
    except SendoffError as error:
        return None, str(error)


def _takes_verdicts(folder: CampaignFolder | None) -> bool:
    return folder is not None and isinstance(folder.campaign.audience.source, VerdictSource)


def _recipients(plan: Plan | None) -> tuple[str, Identifiers] | None:
    """Return the identifier column of a plan and its recipients; None if they are not known."""
    if plan is None or plan.audience is None:
        return None
    sets = [segment.identifiers for segment in plan.segments if segment.identifiers is not None]
    return plan.audience.identified_by, union(plan.audience.identifiers.kind, sets)
