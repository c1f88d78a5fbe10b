"""Making a launch: the audience is read, held against the campaign's rules and gates, cut into segments and frozen.

Once for each launch key: what the ledger holds already is given back as it was frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine

from sendoff import warehouse
from sendoff.audience import Audience, build_audience
from sendoff.campaign import Campaign, CampaignFolder
from sendoff.errors import AudienceError
from sendoff.gates import GateResult, gates_of, raise_if_closed, record_gates
from sendoff.identifiers import Identifiers
from sendoff.ledger import Ledger
from sendoff.ledger.launches import Launch
from sendoff.parameters import template_columns, with_parameters
from sendoff.period import Period, launch_key
from sendoff.sample import sample_request
from sendoff.segments import Segment, segments_of

__all__ = ["Launch", "Period", "Plan", "launch_key", "plan_launch", "prepare_launch"]


Warehouses = Callable[[str], str | Engine]
"""Gives what a warehouse's queries run on, a SQLAlchemy URL or engine, by the name of its connection."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch as it would be frozen: nothing of it is stored.

    ``campaign`` is resolved for the period. ``audience`` is None where the service chooses the people. ``left_out``:
    whom the query named and who is not sent to, by reason; the holdout among them is part of the audience. ``segments``
    are everybody else. ``sends_at``: by when the service has sent; None: again and again. ``previous``: the campaign's
    last launch.
    """

    campaign: Campaign
    audience: Audience | None
    left_out: Mapping[str, Identifiers]
    segments: tuple[Segment, ...]
    sends_at: datetime | None
    previous: Launch | None
    gates: tuple[GateResult, ...]

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
    size_limit: int | None = None,
    due_at: datetime | None = None,
    now: datetime | None = None,
) -> Launch:
    """Read the audience, cut it into segments and freeze both in the ledger, once for each launch key.

    A launch that the ledger holds already is given back as it was frozen, without asking the warehouse again.
    ``size_limit``: the most people that it is sent to; ``due_at``: when it was to be made. Raises LateError where it
    is too late, GateError where another gate is closed, and what :func:`plan_launch` raises; then nothing is frozen.
    """
    moment = now or datetime.now(UTC)
    connection = folder.campaign.connection
    key = launch_key(connection, folder.name, period, resend)
    if frozen := ledger.launches.find(key):
        return frozen
    plan = plan_launch(
        ledger, folder, period=period, warehouses=warehouses, size_limit=size_limit, due_at=due_at, now=moment
    )
    raise_if_closed(folder.name, plan.gates)
    launch = ledger.launches.freeze(
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
        due_at=due_at,
        sends_at=plan.sends_at,
        left_out=plan.left_out,
    )
    record_gates(ledger, key, plan.gates, now=moment)
    return launch


def plan_launch(
    ledger: Ledger | None,
    folder: CampaignFolder,
    *,
    period: Period,
    warehouses: Warehouses,
    size_limit: int | None = None,  # noqa: ARG001 - not yet
    due_at: datetime | None = None,
    now: datetime,
) -> Plan:
    """Run a campaign's query for a period and give the launch as it would be frozen; nothing is stored.

    Without a ledger it is the campaign's first launch, and nothing that needs the ledger leaves anybody out.

    Raises QueryError and AudienceError; an audience of nobody is an error. Raises CampaignError where a request for
    these people cannot be written, or what the file dates is over.
    """
    campaign = folder.campaign.resolved(period.end)
    campaign.check_not_over(now)
    previous = ledger.launches.previous(campaign.connection, folder.name, period) if ledger else None
    audience = _read_audience(folder, period=period, warehouses=warehouses)
    segments = (
        tuple(with_parameters(segments_of(campaign, audience, name=folder.name), audience))
        if audience
        else (Segment(None),)
    )
    identified_by = audience.identified_by if audience else "device_id"
    for segment in _first_of_each_edition(segments):  # what cannot be written is refused before it is frozen
        sample_request(campaign, segment, identified_by=identified_by, period_end=period.end)
    sends_at = _sends_at(campaign, segments, period, now)
    return Plan(
        campaign=campaign,
        audience=audience,
        left_out={},
        segments=segments,
        sends_at=sends_at,
        previous=previous,
        gates=gates_of(
            campaign,
            audience=audience,
            segments=segments,
            previous=previous,
            due_at=due_at,
            period_end=period.end,
            now=now,
        ),
    )


def _first_of_each_edition(segments: Iterable[Segment]) -> Iterator[Segment]:
    seen = set()
    for segment in segments:
        if segment.edition not in seen:
            seen.add(segment.edition)
            yield segment


def _read_audience(folder: CampaignFolder, *, period: Period, warehouses: Warehouses) -> Audience | None:
    if folder.audience_sql is None:
        return None
    parameters = {"period_start": period.start, "period_end": period.end, "partition": period.partition}
    source = warehouses(folder.campaign.warehouse)
    with warehouse.read(source, folder.audience_sql, parameters=parameters) as batches:
        audience = build_audience(batches, columns=template_columns(folder.campaign))
    if not len(audience.identifiers):
        raise AudienceError(_nobody(folder.name, audience))
    return audience


def _sends_at(
    campaign: Campaign, segments: tuple[Segment, ...], period: Period, now: datetime
) -> datetime | None:
    """Give the moment by which everybody is sent to; what is sent at once is sent when it is frozen, or later."""
    editions = {segment.edition for segment in segments}
    moments = [campaign.edition(edition, period.end).send.sends_at() for edition in editions]
    known = [moment for moment in moments if moment is not None]
    return max([now, *known]) if known else None


def _nobody(campaign: str, audience: Audience) -> str:
    if not audience.rows:
        return f"campaign {campaign}: the audience query gave no rows; nothing was sent"
    reasons = ", ".join(f"{count} {reason}" for reason, count in audience.dropped.items())
    return f"campaign {campaign}: none of the {audience.rows} rows is left ({reasons}); nothing was sent"
