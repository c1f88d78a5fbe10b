"""Read what the plan of a launch needs: the audience, the identifiers to exclude, and the launches of verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from numbers import Integral

from sendoff import warehouse
from sendoff.arguments import check_flags
from sendoff.audience import (
    GROUP_COLUMNS,
    Audience,
    build_audience,
    check_groups,
    checked_columns,
    template_columns,
)
from sendoff.audience.identifiers import Identifiers
from sendoff.campaign import (
    Campaign,
    CampaignFolder,
    Period,
    VerdictsOf,
    VerdictSource,
    check_campaign,
    check_resend,
    launch_key,
)
from sendoff.errors import AudienceError, NobodyLeftError, NotFoundError, QueryError, UsageError
from sendoff.figures import counted
from sendoff.launch.dbt_project import ReadArtifact, read_local, with_dbt_tables
from sendoff.launch.suppression import Rule, Warehouses, read_excluded
from sendoff.launch.verdict_audience import (
    joined_sources,
    read_already_sent,
    read_verdict_exclusions,
    read_verdicts,
)
from sendoff.ledger import LaunchSource, Ledger
from sendoff.telemetry import metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The options of a run for its launch.

    ``size_limit``: maximum size of the audience, holdout included. ``due_at``: when the launch was due, from
    :func:`~sendoff.launch.gates.due_time`. ``send_late``: whether to send it however late it is. ``resend``: a number
    above 0 sends the period again, and needs a ``reason``, which the ledger keeps with the name ``who``.
    ``only_unsent``: with ``resend``, leave out people who got, or may have got, an earlier launch for the period.
    ``reported``: the key of the launch whose report started the run, if one did. ``origin``: what makes the launch, for
    the ledger. ``read_artifact``: reads a file that dbt wrote.

    Raise UsageError if an option has a wrong value, or if they do not fit together.
    """

    size_limit: int | None = None
    due_at: datetime | None = None
    send_late: bool = False
    resend: int = 0
    only_unsent: bool = False
    reason: str | None = None
    who: str | None = None
    reported: str | None = None
    origin: str | None = None
    read_artifact: ReadArtifact = read_local

    def __post_init__(self) -> None:
        """Check each option, and that they fit together."""
        check_resend(self.resend)
        check_flags(send_late=self.send_late, only_unsent=self.only_unsent)
        limit = self.size_limit
        if limit is not None:
            if isinstance(limit, bool) or not isinstance(limit, Integral) or limit < 1:
                raise UsageError(f"size_limit: found {limit!r}. Use a whole number from 1")
            object.__setattr__(self, "size_limit", int(limit))  # it may be one of NumPy
        if not isinstance(self.reason, str | None):
            raise UsageError(f"reason: found {type(self.reason).__name__}. Use a text, or leave it out")
        if self.only_unsent and not self.resend:
            raise UsageError(
                "only_unsent: there is no resend number, so the period is not sent again. Add one, such as 1"
            )


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The inputs of a plan. ``audience`` is None if the service chooses the recipients.

    ``already_sent``: the recipients of earlier launches for the period, if only the others are sent to.
    """

    folder: CampaignFolder
    campaign: Campaign
    period: Period
    options: LaunchOptions
    now: datetime
    audience: Audience | None = None
    excluded: Mapping[Rule, Identifiers] = field(default_factory=dict)
    already_sent: Identifiers | None = None
    sources: tuple[LaunchSource, ...] = ()


def read_inputs(
    ledger: Ledger | None,
    inputs: PlanInputs,
    warehouses: Warehouses,
    groups: Collection[str] = GROUP_COLUMNS,
) -> PlanInputs:
    """Resolve the campaign, and add the audience and the identifiers to exclude.

    ``groups``: the group columns to keep. Raise the errors of :func:`~sendoff.launch.plan.plan_launch`.
    """
    campaign, period, now = inputs.campaign, inputs.period, inputs.now
    check_campaign(campaign)  # it may not come from a file
    resolved = campaign.resolved(period.end)
    campaign.check_not_over(period.end, now)
    folder = with_dbt_tables(inputs.folder, inputs.options.read_artifact, now)
    inputs = replace(inputs, folder=folder, campaign=resolved)
    if (origin := _origin(folder)) is None:
        return inputs
    parameters = period.parameters
    try:
        from_verdicts = read_verdicts(ledger, folder, period, now=now, reported=inputs.options.reported)
        audience = (
            from_verdicts.audience if from_verdicts else _read_rows(folder, parameters, warehouses, groups)
        )
        _check_later(folder, audience)
    except (AudienceError, NotFoundError, QueryError) as error:
        text = f"campaign {folder.name}: {origin}: {error}"
        raise type(error)(text, not_launched=error.not_launched) from None
    if not len(audience.identifiers):
        raise nobody_left(folder, audience)
    by_verdict, sources = read_verdict_exclusions(ledger, folder, audience, period, now=now)
    excluded: dict[Rule, Identifiers] = {
        **read_excluded(folder, audience, parameters=parameters, warehouses=warehouses),
        **by_verdict,
    }
    asked = joined_sources([*(from_verdicts.sources if from_verdicts else ()), *sources])
    return replace(inputs, audience=audience, excluded=excluded, sources=asked)


def with_already_sent(ledger: Ledger | None, inputs: PlanInputs) -> PlanInputs:
    """Add the recipients of earlier launches for the period, if the launch leaves them out.

    Raise AudienceError if they are not known.
    """
    if not inputs.options.only_unsent:
        return inputs
    folder, period = inputs.folder, inputs.period
    own = launch_key(folder.campaign.connection, folder.name, period, inputs.options.resend)
    people, sources = read_already_sent(
        ledger,
        folder,
        inputs.audience,
        period,
        but=own,
        now=inputs.now,
        may_be_first=inputs.options.reported is not None,
    )
    return replace(inputs, already_sent=people, sources=joined_sources([*inputs.sources, *sources]))


def _check_later(folder: CampaignFolder, audience: Audience) -> None:
    """Raise AudienceError if the audience of a journey's first step lacks a column that a later step needs."""
    for step in folder.later:
        try:
            check_groups(step.campaign, audience)
        except AudienceError as error:
            raise AudienceError(f"step {step.name.rpartition('.')[2]}: {error}") from None


def _origin(folder: CampaignFolder) -> str | None:
    """Return where the recipients come from, for errors; None if the service chooses them."""
    if folder.campaign.audience.source:
        return "audience.source"
    if rows := folder.audience_rows:
        return rows.origin
    return "audience.sql" if folder.audience_sql is not None else None


def _read_rows(
    folder: CampaignFolder,
    parameters: Mapping[str, warehouse.Parameter],
    warehouses: Warehouses,
    groups: Collection[str],
) -> Audience:
    """Read the audience from rows or from the query, with some of the group columns."""
    rows, campaign = folder.audience_rows, folder.campaign
    if isinstance(rows, warehouse.Rows):
        types = {name: each.type for name, each in campaign.audience.columns.items() if each.type}
        opened, wording = rows.open(types), rows.wording
    else:
        assert folder.audience_sql is not None
        source, partitions = warehouses(campaign.warehouse), campaign.audience.partitions
        opened = warehouse.read(source, folder.audience_sql, parameters=parameters, partitions=partitions)
        wording = warehouse.QUERY
    with opened as batches:
        checked = checked_columns(batches, campaign.audience.columns, wording)
        audience = build_audience(checked, columns=template_columns(campaign), groups=groups, wording=wording)
    metrics.audience_rows(len(audience.identifiers), audience.dropped)
    return audience


def groups_to_keep(folder: CampaignFolder) -> list[str]:
    """Return the group columns that a launch, its report or a later step uses; only a preview shows the others."""
    has_languages = any(each.campaign.separate_languages() for each in (folder, *folder.later))
    return [name for name in GROUP_COLUMNS if name != "language" or has_languages]


def nobody_left(folder: CampaignFolder, audience: Audience) -> AudienceError:
    """Return the error for an audience without recipients."""
    if audience.rows:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in audience.dropped.items() if count)
        text = f"none of the {audience.rows} rows is left ({reasons})"
        of_the_query = " of the query" if folder.audience_sql else ""
        why = f"none of {counted(audience.rows, 'row')}{of_the_query} is left: {reasons}"
    else:
        text, why = _without_rows(folder), "the audience is empty"
    return NobodyLeftError(f"campaign {folder.name}: {text}; nothing was sent", not_launched=why)


def _without_rows(folder: CampaignFolder) -> str:
    source, rows = folder.campaign.audience.source, folder.audience_rows
    if isinstance(source, VerdictSource):
        return f"campaign {source.of} has no one with the verdict {' or '.join(source.are)}"
    if isinstance(rows, VerdictsOf):
        return f"launch {rows.launch_key} has no one with the verdict {' or '.join(rows.verdicts)}"
    return "the audience query returned no rows" if folder.audience_sql else f"{_origin(folder)} has no rows"
