"""The recipients of another launch with some verdicts, as the audience of a launch.

The other launch, its source, is reconciled first, so that verdicts count every post-back that the ledger has.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from sendoff.audience import GROUP_COLUMNS, Audience, template_columns
from sendoff.audience.identifiers import Identifiers, empty, union
from sendoff.campaign import (
    MOST_DAYS,
    CampaignFolder,
    Period,
    VerdictExclusion,
    VerdictsOf,
    VerdictSource,
    counted_as,
)
from sendoff.errors import AudienceError, NotFoundError
from sendoff.launch.suppression import Rule
from sendoff.ledger import LaunchRecord, LaunchSource, Ledger
from sendoff.postbacks import reconcile_launch
from sendoff.states import PostBackKind, Verdict

UNKNOWABLE = "unknowable"
"""The reason to count recipients under who were left out because it cannot be known what happened to them."""

_log = logging.getLogger(__name__)
_OBSERVED = tuple(verdict for verdict in Verdict if verdict.is_observed)


@dataclass(frozen=True, slots=True)
class VerdictAudience:
    """An audience from verdicts, and the launch that they come from."""

    audience: Audience
    source: LaunchSource


def read_verdicts(
    ledger: Ledger | None,
    folder: CampaignFolder,
    period: Period,
    *,
    now: datetime | None = None,
    reported: str | None = None,
) -> VerdictAudience | None:
    """Return the audience of a campaign if it comes from verdicts in the ledger; None if it comes from elsewhere.

    ``reported``: the launch whose report started this run, if one did.

    Raise AudienceError without a ledger, if the campaign needs columns, or if it depends on opens that were not
    measured. Raise NotFoundError if the other campaign has no launch for the period, and ConflictError if others keep
    reconciling it meanwhile.
    """
    source, of = folder.campaign.audience.source, folder.audience_rows
    source = source if isinstance(source, VerdictSource) else None
    if source is None and not isinstance(of, VerdictsOf):
        return None
    if ledger is None:
        raise AudienceError("the verdicts are in the ledger, but no ledger was given")
    if columns := template_columns(folder.campaign):
        raise AudienceError(
            f"the templates use {', '.join(columns)}, but verdicts have no columns. Use audience.sql"
        )
    if source is not None:
        of = source.of_launch(source_launch(ledger, folder, source, period, reported).launch_key)
    assert isinstance(of, VerdictsOf)
    accepted = tuple(map(Verdict, of.verdicts))
    leaves_out = tuple(verdict for verdict in _OBSERVED if verdict not in accepted)
    audience = _audience(ledger, of, now)
    if folder.campaign.separate_languages() and "language" not in audience.groups:
        raise AudienceError(
            f"each recipient gets their language, but launch {of.launch_key} kept no languages, because its campaign "
            "has no translated emails or text messages. Use audience.sql"
        )
    return VerdictAudience(audience, LaunchSource(of.launch_key, accepted, leaves_out))


def source_launch(
    ledger: Ledger,
    folder: CampaignFolder,
    source: VerdictSource | VerdictExclusion,
    period: Period,
    reported: str | None = None,
) -> LaunchRecord:
    """Return the launch of another campaign that a period refers to, or raise NotFoundError.

    Raise RecipientsDeletedError if its recipients were deleted.

    It is the launch whose report started the run. Otherwise it is the newest whose own period ends within the period,
    or up to ``days`` before.
    """
    connection = folder.campaign.connection
    launch = ledger.launches.find(reported) if reported else None
    if launch is None or (launch.connection, launch.campaign) != (connection, source.of):
        launch = ledger.launches.ended_within(connection, source.of, period, source.days)
    if launch is None:
        newest = ledger.launches.ended_within(connection, source.of, period, MOST_DAYS)
        older = f", only an older one for {newest.period.key}" if newest else ""
        mend = "Launch it first, or allow an older one with days"
        if folder.within:  # a step of a journey, whose earlier step belongs to the same period
            mend = f"Send step {source.of.rpartition('.')[2]} first"
        raise NotFoundError(
            f"campaign {source.of} has no launch on {connection} for a period that ends within {period.key}{older}. "
            f"{mend}"
        )
    launch.check_recipients()
    _log.info(
        "campaign %s: the recipients come from launch %s of campaign %s, period %s",
        folder.name,
        launch.launch_key,
        launch.campaign,
        launch.period.key,
    )
    return launch


def read_verdict_exclusions(
    ledger: Ledger | None, folder: CampaignFolder, audience: Audience, period: Period, *, now: datetime
) -> tuple[dict[Rule, Identifiers], list[LaunchSource]]:
    """Return the recipients of exclusions by verdict, and the launches that claims ask about them.

    An exclusion whose campaign has no launch for the period leaves out no one. Raise AudienceError if its identifiers
    differ from those of the audience.
    """
    excluded: dict[Rule, Identifiers] = {}
    sources: list[LaunchSource] = []
    for exclusion in folder.campaign.audience.exclude if ledger else ():
        if not isinstance(exclusion, VerdictExclusion):
            continue
        assert ledger is not None
        try:
            launch = source_launch(ledger, folder, exclusion, period)
        except NotFoundError as error:
            _log.warning("campaign %s: %s leaves out no one: %s", folder.name, counted_as(exclusion), error)
            excluded[exclusion] = empty(audience.identifiers.kind)
            continue
        _check_comparable(launch, audience)
        reconcile_launch(ledger, launch.launch_key, now=now)
        sets = ledger.verdicts.sets(launch.launch_key)
        excluded[exclusion] = union(launch.kind, (sets[each] for each in exclusion.are if each in sets))
        leaves_out = tuple(verdict for verdict in _OBSERVED if verdict in exclusion.are)
        sources.append(LaunchSource(launch.launch_key, None, leaves_out))
    return excluded, sources


def read_already_sent(
    ledger: Ledger | None,
    folder: CampaignFolder,
    audience: Audience | None,
    period: Period,
    *,
    but: str,
    now: datetime,
) -> tuple[Identifiers, list[LaunchSource]]:
    """Return the recipients of earlier launches for a period, and these launches, which claims ask about.

    A recipient counts if their request was made, unless it was refused, and if it may still be made. The periods of a
    schedule never overlap, so if the campaign has one, launches for a part of the period count too. ``but``: the key of
    a launch that does not count. Raise AudienceError without a ledger or an earlier launch, and if a launch does not
    say who its recipients were.
    """
    if ledger is None:
        raise AudienceError("only_unsent: the earlier launches are in the ledger, but no ledger was given")
    if audience is None:
        raise AudienceError(
            f"campaign {folder.name}: only_unsent is not possible if the service chooses the recipients"
        )
    campaign, people, sources = folder.campaign, empty(audience.identifiers.kind), []
    names, or_of_a_part = (folder.name, *campaign.formerly), campaign.schedule is not None
    for launch in ledger.launches.of_period(campaign.connection, names, period, or_of_a_part=or_of_a_part):
        if launch.launch_key == but:
            continue
        launch.check_recipients()
        _check_comparable(launch, audience)
        reconcile_launch(ledger, launch.launch_key, now=now)
        sets = ledger.verdicts.sets(launch.launch_key)
        people |= ledger.launches.sent(launch.launch_key)
        people = union(people.kind, [people, *(sets[each] for each in sets if each != Verdict.NOT_SENT)])
        sources.append(LaunchSource(launch.launch_key, None, _OBSERVED))
    if not sources:  # often the wrong period was given, and everyone would get the message again
        raise AudienceError(
            f"campaign {folder.name}: only_unsent: there is no earlier launch for the period {period.key}, which would "
            "be sent to everyone. Use the period that was sent before, or send it without a resend number"
        )
    return people, sources


def _check_comparable(launch: LaunchRecord, audience: Audience) -> None:
    """Raise AudienceError if the recipients of a launch are not known, or not identified like an audience's."""
    if launch.is_chosen_by_service:
        raise AudienceError(
            f"the service chose the recipients of launch {launch.launch_key} of campaign {launch.campaign}, so they "
            "are not known"
        )
    if (launch.identified_by, launch.kind) != (audience.identified_by, audience.identifiers.kind):
        raise AudienceError(
            f"campaign {launch.campaign} identifies people by {launch.identified_by}, this one by "
            f"{audience.identified_by}, so they cannot be compared"
        )


def joined_sources(sources: Iterable[LaunchSource]) -> tuple[LaunchSource, ...]:
    """Return one source for each launch, which leaves out what any of its sources leaves out."""
    joined: dict[str, LaunchSource] = {}
    for each in sources:
        other = joined.get(each.launch_key, each)
        leaves_out = dict.fromkeys((*other.leaves_out, *each.leaves_out))
        accepted = each.accepted if other.accepted is None else other.accepted
        joined[each.launch_key] = LaunchSource(each.launch_key, accepted, tuple(leaves_out))
    return tuple(joined.values())


def _audience(ledger: Ledger, of: VerdictsOf, now: datetime | None) -> Audience:
    reconcile_launch(ledger, of.launch_key, now=now)
    launch = ledger.launches.get(of.launch_key)
    figures, sets = ledger.verdicts.snapshot(of.launch_key)
    accepted = {verdict: sets[verdict] for verdict in of.verdicts if verdict in sets}
    unknown = [sets[Verdict.UNKNOWABLE]] if Verdict.UNKNOWABLE in sets else []
    if _depends_on_opens(of.verdicts):
        if PostBackKind.OPEN in figures.unmeasured:
            raise AudienceError(
                f"launch {of.launch_key} of campaign {launch.campaign} did not measure opens, so it is not known who "
                "opened. Add open to post_backs.kinds of that campaign, or accept both delivered and engaged"
            )
        unread = _with_unread_opens(ledger, launch)
        if delivered := sets.get(Verdict.DELIVERED):
            unknown.append(delivered & unread)
        if Verdict.DELIVERED in accepted:
            accepted[Verdict.DELIVERED] -= unread
    held_out = union(launch.kind, ledger.launches.suppressed(of.launch_key, "holdout").values())
    people = union(launch.kind, accepted.values()) - held_out
    not_known = union(launch.kind, unknown) - held_out
    if Verdict.UNKNOWABLE in of.verdicts:
        people |= not_known
    dropped = {UNKNOWABLE: len(not_known)} if of.is_without_unknowable else {}
    rows = len(people) + sum(dropped.values())
    return Audience(launch.identified_by, people, rows, dropped, _groups(ledger, of.launch_key, people))


def _groups(ledger: Ledger, launch_key: str, people: Identifiers) -> dict[str, dict[str, Identifiers]]:
    """Return the groups of some recipients of a launch, such as their platforms, which decide later verdicts."""
    groups = {name: ledger.launches.groups(launch_key, name) for name in GROUP_COLUMNS}
    return {
        name: {value: some for value, members in values.items() if len(some := members & people)}
        for name, values in groups.items()
        if values
    }


def _depends_on_opens(verdicts: Collection[str]) -> bool:
    """Check whether opens decide who has one of the verdicts: one of *delivered* and *engaged* is among them."""
    return (Verdict.DELIVERED in verdicts) != (Verdict.ENGAGED in verdicts)


def _with_unread_opens(ledger: Ledger, launch: LaunchRecord) -> Identifiers:
    """Return the recipients of requests with an unread open, which may be the open of any of them."""
    totals = ledger.aggregates.iter_totals(launch.launch_key)
    unread = {key for key, part in totals if part.has_unread_opens}
    if not unread:
        return union(launch.kind, [])
    segments = ledger.dispatch_queries.segments(launch.launch_key)
    return union(launch.kind, (people for dispatch, people in segments if dispatch.dispatch_key in unread))
