"""Making a launch: the audience is read, cut into segments and frozen, once for each launch key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from sqlalchemy import Engine

from sendoff import warehouse
from sendoff.audience import Audience, build_audience
from sendoff.campaign import Campaign, CampaignFolder
from sendoff.errors import AudienceError, CampaignError
from sendoff.identifiers import Identifiers, empty
from sendoff.ledger import Ledger
from sendoff.ledger.launches import Launch
from sendoff.period import Period, launch_key
from sendoff.sample import sample_request

__all__ = ["Launch", "Period", "launch_key", "prepare_launch", "read_audience"]


def prepare_launch(
    ledger: Ledger,
    folder: CampaignFolder,
    *,
    period: Period,
    source: str | Engine,
    resend: int = 0,
    now: datetime | None = None,
) -> Launch:
    """Read the audience, cut it into segments and freeze both in the ledger, once for each launch key.

    A launch that the ledger holds already is given back as it was frozen, without asking the warehouse again.
    ``source`` is a SQLAlchemy URL or engine. Raises what :func:`read_audience` raises.
    """
    campaign = folder.campaign
    key = launch_key(campaign.connection, folder.name, period, resend)
    if frozen := ledger.launches.find(key):
        return frozen
    audience = read_audience(folder, period=period, source=source)
    resolved = campaign.resolved(period.end)
    sample_request(resolved, audience)  # what cannot be written is refused before anything is frozen
    return ledger.launches.freeze(
        key,
        connection=campaign.connection,
        campaign=folder.name,
        period=period,
        resend=resend,
        definition=resolved.model_dump_json(),
        audience=audience,
        segments=segments_of(campaign, audience),
        now=now or datetime.now(UTC),
    )


def read_audience(folder: CampaignFolder, *, period: Period, source: str | Engine) -> Audience:
    """Run a campaign's query for a period and give its audience; nothing is stored.

    Raises QueryError and AudienceError; an audience of nobody is an error.
    """
    if folder.audience_sql is None:
        kind = folder.campaign.targeting.kind
        raise CampaignError(
            f"campaign {folder.name}: the service chooses its people (targeting.kind: {kind})"
        )
    parameters = {"period_start": period.start, "period_end": period.end}
    with warehouse.read(source, folder.audience_sql, parameters=parameters) as batches:
        audience = build_audience(batches)
    if not len(audience.identifiers):
        raise AudienceError(_nobody(folder.name, audience))
    return audience


def segments_of(campaign: Campaign, audience: Audience) -> Iterator[tuple[str | None, Identifiers]]:
    """Cut an audience into segments of the campaign's size, each with its edition, without overlap.

    The edition is a language where the campaign must be sent apart by language, else None. Who has two of its
    languages gets the one that stands first; who has none of them gets the campaign's own.
    """
    remaining = audience.identifiers
    own, *others = campaign.editions() or (None,)
    if others and "language" not in audience.groups:
        raise AudienceError(
            f"the campaign is sent apart in {own}, {', '.join(others)}, but its query gives no column language"
        )
    speakers = _by_language(audience)
    nobody = empty(remaining.kind)
    parts: list[tuple[str | None, Identifiers]] = []
    for language in others:
        members = remaining & speakers.get(str(language), nobody) - speakers.get(str(own), nobody)
        parts.append((language, members))
        remaining -= members
    for edition, members in [(own, remaining), *parts]:
        for segment in members.slices(campaign.segment_size):
            yield edition, segment


def _by_language(audience: Audience) -> dict[str, Identifiers]:
    """Give the people of each language; one that is written with a region, such as fr-CA, is that language."""
    speakers: dict[str, Identifiers] = {}
    for value, members in audience.groups.get("language", {}).items():
        language = value.replace("_", "-").partition("-")[0].lower()
        speakers[language] = speakers.get(language, empty(members.kind)) | members
    return speakers


def _nobody(campaign: str, audience: Audience) -> str:
    if not audience.rows:
        return f"campaign {campaign}: the audience query gave no rows; nothing was sent"
    reasons = ", ".join(f"{count} {reason}" for reason, count in audience.dropped.items())
    return f"campaign {campaign}: none of the {audience.rows} rows is left ({reasons}); nothing was sent"
