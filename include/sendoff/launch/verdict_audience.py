"""The recipients of another launch with some verdicts, as the audience of a launch.

The other launch, its source, is reconciled first, so that verdicts count every post-back that the ledger has.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain

from sendoff.audience import GROUP_COLUMNS, Audience, template_columns
from sendoff.audience.identifiers import Identifiers, Kind, empty, union
from sendoff.campaign import (
    MOST_DAYS,
    CampaignFolder,
    Period,
    VerdictExclusion,
    VerdictsOf,
    VerdictSource,
    counted_as,
)
from sendoff.errors import AudienceError, NobodyLeftError, NotFoundError
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
    """An audience from verdicts, and the launches that they come from."""

    audience: Audience
    sources: tuple[LaunchSource, ...]


def read_verdicts(
    ledger: Ledger | None,
    folder: CampaignFolder,
    period: Period,
    *,
    now: datetime | None = None,
    reported: str | None = None,
) -> VerdictAudience | None:
    """Return the audience of a campaign if it comes from verdicts in the ledger; None if it comes from elsewhere.

    ``reported``: the launch whose report started this run, if one did. If the period of the other campaign was sent
    again, all its launches for it count, or those up to the reported one. Each recipient has the most certain verdict
    of them.

    Raise AudienceError without a ledger, if the campaign needs columns, if it depends on opens that were not measured,
    or if the launches have different identifiers. Raise NotFoundError if the other campaign has no launch for the
    period, and NobodyLeftError if it is an earlier step that was sent to no one. Raise ConflictError if others keep
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
        newest = source_launch(ledger, folder, source, period, reported)
        launches = _of_same_period(ledger, newest)
        if not launches:  # a step of a journey that was rejected, or stopped before it sent anything
            step = source.of.rpartition(".")[2]
            raise NobodyLeftError(f"step {step} was sent to no one in this period")
        if newest.launch_key == reported:  # later ones have reports of their own
            launches = [each for each in launches if each.resend <= newest.resend]
        of = source.of_launch(newest.launch_key)
    else:
        assert isinstance(of, VerdictsOf)
        launches = [ledger.launches.get(of.launch_key)]
    accepted = tuple(map(Verdict, of.verdicts))
    leaves_out = tuple(verdict for verdict in _OBSERVED if verdict not in accepted)
    audience = _audience(ledger, launches, of, now)
    if folder.campaign.separate_languages() and "language" not in audience.groups:
        raise AudienceError(
            f"each recipient gets their language, but launch {of.launch_key} kept no languages, because its campaign "
            "has no translated emails or text messages. Use audience.sql"
        )
    sources = tuple(LaunchSource(each.launch_key, accepted, leaves_out) for each in launches)
    return VerdictAudience(audience, sources)


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
    or up to ``days`` before. Of an earlier step of the same journey, it is the launch for the same period.
    """
    connection = folder.campaign.connection
    launch = ledger.launches.find(reported) if reported else None
    is_step = folder.within and source.of.rpartition(".")[0] == folder.name.rpartition(".")[0]
    if is_step:  # another period may end within this one, and its recipients take their own steps
        of_period = ledger.launches.of_period(connection, [source.of], period)
        launch = of_period[-1] if of_period else None
    elif launch is None or (launch.connection, launch.campaign) != (connection, source.of):
        launch = ledger.launches.ended_within(connection, source.of, period, source.days)
    if launch is None:
        newest = ledger.launches.ended_within(connection, source.of, period, MOST_DAYS)
        older = f", only an older one for {newest.period.key}" if newest else ""
        mend = "Launch it first, or allow an older one with days"
        if is_step:
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

    An exclusion whose campaign has no launch for the period leaves out no one. If the period was sent again, all its
    launches count, as in :func:`read_verdicts`. Raise AudienceError if its identifiers differ from those of the
    audience.
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
        launches = _of_same_period(ledger, launch)
        for each in launches:
            _check_comparable(each, audience)
            reconcile_launch(ledger, each.launch_key, now=now)
        sets = _most_certain(launch.kind, [ledger.verdicts.sets(each.launch_key) for each in launches])
        excluded[exclusion] = union(launch.kind, (sets[each] for each in exclusion.are if each in sets))
        leaves_out = tuple(verdict for verdict in _OBSERVED if verdict in exclusion.are)
        sources += [LaunchSource(each.launch_key, None, leaves_out) for each in launches]
    return excluded, sources


def read_already_sent(  # noqa: PLR0913 - each is needed
    ledger: Ledger | None,
    folder: CampaignFolder,
    audience: Audience | None,
    period: Period,
    *,
    but: str,
    now: datetime,
    may_be_first: bool = False,
) -> tuple[Identifiers, list[LaunchSource]]:
    """Return the recipients of earlier launches for a period, and these launches, which claims ask about.

    A recipient counts if their request was made, unless it was refused, and if it may still be made. The periods of a
    schedule never overlap, so if the campaign has one, launches whose period overlaps it count too. ``but``: the key of
    a launch that does not count. Raise AudienceError without a ledger, without an earlier launch unless
    ``may_be_first``, and if a launch does not say who its recipients were.
    """
    if ledger is None:
        raise AudienceError("only_unsent: the earlier launches are in the ledger, but no ledger was given")
    if audience is None:
        raise AudienceError(
            f"campaign {folder.name}: only_unsent is not possible if the service chooses the recipients"
        )
    campaign, people, sources = folder.campaign, empty(audience.identifiers.kind), []
    of_period = partial(
        ledger.launches.of_period,
        campaign.connection,
        folder.names,
        period,
        or_overlapping=campaign.schedule is not None,
    )
    earlier = [launch for launch in of_period() if launch.launch_key != but]
    if not (earlier or may_be_first):  # often the wrong period was given
        raise AudienceError(
            f"campaign {folder.name}: only_unsent: there is no earlier launch for the period {period.key}, so it would "
            "be sent to everyone. Use the period that was sent before, or send it without a resend number"
        )
    for launch in of_period(is_sent=True):
        if launch.launch_key == but:
            continue
        launch.check_recipients()
        _check_comparable(launch, audience)
        reconcile_launch(ledger, launch.launch_key, now=now)
        sets = ledger.verdicts.sets(launch.launch_key)
        people |= ledger.launches.sent(launch.launch_key)
        people = union(people.kind, [people, *(sets[each] for each in sets if each != Verdict.NOT_SENT)])
        sources.append(LaunchSource(launch.launch_key, None, _OBSERVED))
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


def _of_same_period(ledger: Ledger, launch: LaunchRecord) -> list[LaunchRecord]:
    """Return the launches of a campaign for the period of one of them, unless they ended before they sent anything.

    Raise AudienceError if their recipients cannot be compared, and RecipientsDeletedError if some were deleted.
    """
    campaigns, period = [launch.campaign], launch.period
    found = ledger.launches.of_period(launch.connection, campaigns, period, is_sent=True)
    for each in found:
        each.check_recipients()
        if (each.identified_by, each.kind) != (launch.identified_by, launch.kind):
            raise AudienceError(
                f"the launches of campaign {launch.campaign} for period {period.key} identify people by "
                f"{each.identified_by} and {launch.identified_by}, so they cannot be compared"
            )
    return found


def _most_certain(kind: Kind, launches: Sequence[Mapping[str, Identifiers]]) -> Mapping[str, Identifiers]:
    """Return the recipients of some launches by the most certain of their verdicts."""
    if len(launches) == 1:
        return launches[0]
    known, found = empty(kind), {}
    for verdict in Verdict:
        found[verdict.value] = union(kind, (sets[verdict] for sets in launches if verdict in sets)) - known
        known |= found[verdict.value]
    return found


def _audience(
    ledger: Ledger, launches: Sequence[LaunchRecord], of: VerdictsOf, now: datetime | None
) -> Audience:
    snapshots = []
    for launch in launches:
        reconcile_launch(ledger, launch.launch_key, now=now)
        snapshots.append(ledger.verdicts.snapshot(launch.launch_key))
    kind, keys = launches[0].kind, [launch.launch_key for launch in launches]
    sets = _most_certain(kind, [each for _, each in snapshots])
    accepted = {verdict: sets[verdict] for verdict in of.verdicts if verdict in sets}
    unknown = [sets[Verdict.UNKNOWABLE]] if Verdict.UNKNOWABLE in sets else []
    if _depends_on_opens(of.verdicts):
        for launch, (figures, _) in zip(launches, snapshots, strict=True):
            if PostBackKind.OPEN in figures.unmeasured:
                raise AudienceError(
                    f"launch {launch.launch_key} of campaign {launch.campaign} did not measure opens, so it is not "
                    "known who opened. Add open to post_backs.kinds of that campaign, or accept both delivered and "
                    "engaged"
                )
        unread = union(kind, (_with_unread_opens(ledger, launch) for launch in launches))
        if delivered := sets.get(Verdict.DELIVERED):
            unknown.append(delivered & unread)
        if Verdict.DELIVERED in accepted:
            accepted[Verdict.DELIVERED] -= unread
    if Verdict.NOT_SENT in accepted:
        holdouts = (ledger.launches.suppressed(key, "holdout").values() for key in keys)
        accepted[Verdict.NOT_SENT] -= union(kind, chain.from_iterable(holdouts))
    people, not_known = union(kind, accepted.values()), union(kind, unknown)
    if Verdict.UNKNOWABLE in of.verdicts:
        people |= not_known
    dropped = {UNKNOWABLE: len(not_known)} if of.is_without_unknowable else {}
    rows = len(people) + sum(dropped.values())
    return Audience(launches[0].identified_by, people, rows, dropped, _groups(ledger, keys, people))


def _groups(
    ledger: Ledger, launch_keys: Sequence[str], people: Identifiers
) -> dict[str, dict[str, Identifiers]]:
    """Return the groups of some recipients of launches, such as their platforms, which decide later verdicts.

    A recipient is in all groups of the newest launch that has them in one.
    """
    groups: dict[str, dict[str, Identifiers]] = {}
    for name in GROUP_COLUMNS:
        left = people
        for key in reversed(launch_keys):
            of_launch = ledger.launches.groups(key, name)
            for value, members in of_launch.items():
                of_name = groups.setdefault(name, {})
                if some := members & left:
                    of_name[value] = of_name[value] | some if value in of_name else some
            left -= union(people.kind, of_launch.values())
    return groups


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
