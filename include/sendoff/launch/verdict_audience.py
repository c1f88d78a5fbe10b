"""The recipients of another launch with some verdicts, as the audience of a launch."""

from __future__ import annotations

from collections.abc import Iterable

from sendoff.audience import Audience, template_columns
from sendoff.audience.identifiers import Identifiers, union
from sendoff.campaign import CampaignFolder, VerdictsOf, VerdictSource
from sendoff.errors import AudienceError, NotFoundError
from sendoff.ledger import Ledger
from sendoff.period import Period
from sendoff.states import Verdict

UNKNOWABLE = "unknowable"
"""The reason to count recipients under who were left out because it cannot be known what happened to them."""


def read_verdicts(ledger: Ledger | None, folder: CampaignFolder, period: Period) -> Audience | None:
    """Return the audience of a campaign if it comes from verdicts in the ledger; None if it comes from elsewhere.

    Raise AudienceError without a ledger, or if the campaign needs columns. Raise NotFoundError if the other campaign
    has no launch, or no report, and ConflictError if others keep reconciling it meanwhile.
    """
    source, of = folder.campaign.audience.source, folder.audience_rows
    if source is None and not isinstance(of, VerdictsOf):
        return None
    if ledger is None:
        raise AudienceError("the verdicts are in the ledger, but no ledger was given")
    if columns := template_columns(folder.campaign):
        raise AudienceError(
            f"the templates use {', '.join(columns)}, but verdicts have no columns. Use audience.sql"
        )
    return _audience(ledger, of if isinstance(of, VerdictsOf) else _newest(ledger, folder, source, period))


def _newest(
    ledger: Ledger, folder: CampaignFolder, source: VerdictSource | None, period: Period
) -> VerdictsOf:
    """Return the verdicts of the other campaign's newest launch whose period ends no later than this one's."""
    assert source is not None
    connection = folder.campaign.connection
    launch = ledger.launches.previous(connection, source.of, period, includes_same=True)
    if launch is None:
        raise NotFoundError(
            f"campaign {source.of} has no launch up to {period.end:%Y-%m-%d %H:%M} on {connection}. Launch it first"
        )
    return source.of_launch(launch.launch_key)


def _audience(ledger: Ledger, of: VerdictsOf) -> Audience:
    launch = ledger.launches.get(of.launch_key)
    _, sets = ledger.verdicts.snapshot(of.launch_key)
    held_out = union(launch.kind, ledger.launches.suppressed(of.launch_key, "holdout").values())

    def recipients(verdicts: Iterable[str]) -> Identifiers:
        found = union(launch.kind, (sets[verdict] for verdict in verdicts if verdict in sets))
        return found - held_out if len(held_out) else found

    people, left_out = recipients(of.verdicts), {}
    if of.is_without_unknowable:
        left_out[UNKNOWABLE] = len(recipients([Verdict.UNKNOWABLE]))
    rows = len(people) + sum(left_out.values())
    return Audience(launch.identified_by, people, rows, dropped=left_out, groups={})
