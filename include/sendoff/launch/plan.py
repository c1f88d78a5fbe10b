"""Making a launch: the audience is read, held against the campaign's rules and gates, cut into segments and frozen.

Once for each launch key: what the ledger holds already is given back as it was frozen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sendoff import warehouse
from sendoff.audience import (
    ALIKE,
    Audience,
    Segment,
    build_audience,
    segments_of,
    template_columns,
    with_parameters,
)
from sendoff.audience.identifiers import Identifiers
from sendoff.campaign import QUERY_ZONE, Campaign, CampaignFolder, Edition, Once
from sendoff.errors import AudienceError, OvertakenError, PermanentError, QueryError
from sendoff.launch.gates import GateResult, gates_decision, gates_of, lateness, raise_if_closed
from sendoff.launch.sample import sample_request
from sendoff.launch.suppression import Kept, Rule, Warehouses, apply_rules, read_excluded
from sendoff.ledger import Decision, Launch, Ledger
from sendoff.period import Period, launch_key

__all__ = ["Launch", "Period", "Plan", "Warehouses", "launch_key", "plan_launch", "prepare_launch"]

_log = logging.getLogger(__name__)

_MOST_PLANS = 20  # of one launch, each overtaken by another launch; then the caller comes again
_UNCUT = 2**62


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch as it would be frozen: nothing of it is stored.

    ``campaign`` is resolved for the period. ``audience`` is None where the service chooses the people. ``left_out``:
    whom the query named and who is not sent to, by reason; the holdout among them is part of the audience. ``segments``
    are everybody else. ``sends_at``: by when the service has sent; None: again and again. ``previous``: the campaign's
    last launch. ``not_compared``: sentences on what might have left somebody out and could not be compared.
    """

    campaign: Campaign
    audience: Audience | None
    left_out: Mapping[str, Identifiers]
    segments: tuple[Segment, ...]
    sends_at: datetime | None
    previous: Launch | None
    gates: tuple[GateResult, ...]
    not_compared: tuple[str, ...] = ()

    @property
    def people(self) -> int | None:
        """How many are sent to; None: the service chooses them, and nobody knows."""
        return sum(map(len, self.segments)) if self.audience else None


def prepare_launch(
    ledger: Ledger,
    folder: CampaignFolder,
    *,
    period: Period,
    warehouses: Warehouses,
    resend: int = 0,
    reason: str | None = None,
    who: str | None = None,
    size_limit: int | None = None,
    due_at: datetime | None = None,
    send_late: bool = False,
    now: datetime | None = None,
) -> Launch:
    """Read the audience, cut it into segments and freeze both in the ledger, once for each launch key.

    A launch that the ledger holds already is given back as it was frozen, without asking the warehouse again.
    ``resend``: above 0 it needs a ``reason``, which the ledger keeps with the name of ``who`` gave it. ``size_limit``:
    the most people that are kept, before the holdout. ``due_at``: when it was to be made, by
    :func:`~sendoff.launch.gates.due_at_of`; ``send_late``: somebody sends it however late it is. Raises
    LateError where it is
    too late, before the warehouse is asked, GateError where another gate is closed, and what :func:`plan_launch`
    raises; then nothing is frozen. Where its rules look at other launches and one is made meanwhile, it is planned
    again; OvertakenError where that does not end.
    """
    moment = now or datetime.now(UTC)
    connection = folder.campaign.connection
    key = launch_key(connection, folder.name, period, resend)
    if frozen := ledger.launches.find(key):
        return frozen
    resent = _resent(folder.name, key, resend, reason, who, moment)
    gates = folder.campaign.gates
    if gates.lateness and not send_late:
        raise_if_closed(folder.name, [lateness(gates.lateness, due_at, moment)])
    asked = _ask(folder, period=period, warehouses=warehouses, now=moment)
    for _ in range(_MOST_PLANS):
        seen = ledger.launches.count(connection) if folder.campaign.audience.depend_on_launches else None
        plan = _plan(
            ledger,
            folder,
            asked,
            period=period,
            size_limit=size_limit,
            due_at=due_at,
            send_late=send_late,
            now=moment,
        )
        raise_if_closed(folder.name, plan.gates)
        try:
            return ledger.launches.freeze(
                key,
                connection=connection,
                campaign=folder.name,
                period=period,
                resend=resend,
                definition=plan.campaign.model_dump_json(),
                audience=plan.audience,
                segments=plan.segments,
                now=moment,
                state="held" if plan.campaign.approval.is_needed(plan.people) else "released",
                due_at=due_at if gates.names_lateness and not send_late else None,
                sends_at=plan.sends_at,
                left_out=plan.left_out,
                seen=seen,
                decisions=[*resent, gates_decision(key, plan.gates, moment)],
            )
        except OvertakenError:
            if frozen := ledger.launches.find(key):
                return frozen
            _log.info(
                "campaign %s: another launch was made meanwhile, so this one is planned again", folder.name
            )
    raise OvertakenError(f"campaign {folder.name}: {_MOST_PLANS} times another launch was made meanwhile")


def plan_launch(
    ledger: Ledger | None,
    folder: CampaignFolder,
    *,
    period: Period,
    warehouses: Warehouses,
    size_limit: int | None = None,
    due_at: datetime | None = None,
    send_late: bool = False,
    now: datetime,
) -> Plan:
    """Run a campaign's query for a period and give the launch as it would be frozen; nothing is stored.

    Without a ledger it is the campaign's first launch, and nothing that needs the ledger leaves anybody out.

    Raises QueryError and AudienceError; an audience of nobody is an error. Raises CampaignError where a request for
    these people cannot be written, or what the file dates is over, and LateError where what follows from the period is.
    """
    asked = _ask(folder, period=period, warehouses=warehouses, now=now)
    return _plan(
        ledger,
        folder,
        asked,
        period=period,
        size_limit=size_limit,
        due_at=due_at,
        send_late=send_late,
        now=now,
    )


def _resent(
    campaign: str, key: str, resend: int, reason: str | None, who: str | None, now: datetime
) -> list[Decision]:
    """Give the decision to send a period again, where that is what the launch does."""
    if not resend:
        return []
    if not reason or not reason.strip():
        raise PermanentError(
            f"campaign {campaign}: resend {resend} sends a period again that may have been sent before; "
            "found no reason; allowed: a reason, as text"
        )
    return [Decision(key, "resend", who or "unknown", reason.strip(), {"resend": resend}, now)]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a launch begins with: its campaign, resolved, and what the warehouse and the folder's files gave.

    ``audience``: None where the service chooses the people.
    """

    campaign: Campaign
    audience: Audience | None
    excluded: Mapping[Rule, Identifiers]


def _ask(folder: CampaignFolder, *, period: Period, warehouses: Warehouses, now: datetime) -> _Asked:
    campaign = folder.campaign.resolved(period.end)
    folder.campaign.check_not_over(period.end, now)
    if folder.audience_sql is None:
        return _Asked(campaign, None, {})
    parameters = {"period_start": period.start, "period_end": period.end, "partition": period.partition}
    source = warehouses(campaign.warehouse)
    parts = campaign.audience.parts
    try:
        with warehouse.read(source, folder.audience_sql, parameters=parameters, parts=parts) as batches:
            audience = build_audience(batches, columns=template_columns(campaign))
    except (AudienceError, QueryError) as error:
        raise type(error)(f"campaign {folder.name}: audience.sql: {error}") from None
    if not len(audience.identifiers):
        raise AudienceError(_nobody(folder.name, audience))
    excluded = read_excluded(folder, audience, parameters=parameters, warehouses=warehouses)
    return _Asked(campaign, audience, excluded)


def _plan(
    ledger: Ledger | None,
    folder: CampaignFolder,
    asked: _Asked,
    *,
    period: Period,
    size_limit: int | None,
    due_at: datetime | None,
    send_late: bool,
    now: datetime,
) -> Plan:
    campaign = asked.campaign
    previous = ledger.launches.previous(campaign.connection, folder.name, period) if ledger else None
    kept = _kept(ledger, folder, asked, period=period, size_limit=size_limit, now=now)
    segments = (
        tuple(with_parameters(segments_of(campaign, kept.sent_to, name=folder.name), kept.sent_to))
        if kept
        else (Segment(None),)
    )
    audience = kept.audience if kept else None
    identified_by = audience.identified_by if audience else "device_id"
    for segment in _first_of_each_edition(segments):  # what cannot be written is refused before it is frozen
        sample_request(campaign, segment, identified_by=identified_by, period_end=period.end)
    return Plan(
        campaign=campaign,
        audience=audience,
        left_out=kept.left_out if kept else {},
        segments=segments,
        sends_at=_sends_at(campaign, {segment.edition for segment in segments}, period, now),
        previous=previous,
        gates=gates_of(
            campaign,
            audience=audience,
            segments=segments,
            previous=previous,
            due_at=due_at,
            period_end=period.end,
            now=now,
            send_late=send_late,
        ),
        not_compared=kept.not_compared if kept else (),
    )


def _kept(
    ledger: Ledger | None,
    folder: CampaignFolder,
    asked: _Asked,
    *,
    period: Period,
    size_limit: int | None,
    now: datetime,
) -> Kept | None:
    """Hold the audience against the campaign's rules; None where the service chooses the people."""
    if asked.audience is None:
        if size_limit is not None:
            raise AudienceError(
                f"campaign {folder.name}: no size limit holds for people whom the service chooses"
            )
        return None
    editions = _editions(asked.campaign, asked.audience, folder.name)
    kept = apply_rules(
        folder,
        asked.audience,
        excluded=asked.excluded,
        ledger=ledger,
        sends_at=_sends_at(asked.campaign, editions, period, now) or now,
        now=now,
        size_limit=size_limit,
    )
    if not len(kept.sent_to.identifiers):
        raise AudienceError(_nobody(folder.name, kept.sent_to))
    return kept


def _editions(campaign: Campaign, audience: Audience, name: str) -> set[Edition]:
    """Give editions that between them are sent at every moment at which the whole audience would be."""
    if isinstance(campaign.send, Once) and campaign.send.time_zone == QUERY_ZONE:
        uncut = campaign.model_copy(update={"segment_size": _UNCUT})
        return {segment.edition for segment in segments_of(uncut, audience, name=name)}
    return {ALIKE}


def _first_of_each_edition(segments: Iterable[Segment]) -> Iterator[Segment]:
    seen = set()
    for segment in segments:
        if segment.edition not in seen:
            seen.add(segment.edition)
            yield segment


def _sends_at(
    campaign: Campaign, editions: Iterable[Edition], period: Period, now: datetime
) -> datetime | None:
    """Give the moment by which everybody is sent to; what is sent at once is sent when it is frozen, or later."""
    moments = [campaign.edition(edition, period.end).send.sends_at() for edition in editions]
    known = [moment for moment in moments if moment is not None]
    return max([now, *known]) if known else None


def _nobody(campaign: str, audience: Audience) -> str:
    if not audience.rows:
        return f"campaign {campaign}: the audience query gave no rows; nothing was sent"
    reasons = ", ".join(f"{count} {reason}" for reason, count in audience.dropped.items() if count)
    return f"campaign {campaign}: none of the {audience.rows} rows is left ({reasons}); nothing was sent"
