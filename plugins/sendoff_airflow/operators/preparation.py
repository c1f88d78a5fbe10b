"""Find or create the launch of a run, from a campaign and its audience. Several operators share this."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sendoff.errors import CampaignError, NobodyLeftError, NotFoundError, PermanentError
from sendoff.states import UNFINISHED
from sendoff_airflow.arguments import as_boolean, as_integer, as_text
from sendoff_airflow.errors import as_airflow_error
from sendoff_airflow.ledger_operator import QueryingOperator
from sendoff_airflow.lineage import openlineage
from sendoff_airflow.operators.assets import LaunchEventOperator, report_asset
from sendoff_airflow.operators.recipients import (
    VerdictsOfLaunch,
    absolute,
    described,
    is_hidden,
    of_shown,
    shown,
)
from sendoff_airflow.period import period_of, scheduled_at
from sendoff_airflow.run_notes import KEY as NOTE

if TYPE_CHECKING:
    from sendoff.campaign import Campaign, CampaignFolder, Period
    from sendoff.launch import LaunchOptions
    from sendoff.ledger import LaunchRecord, Ledger

_LONGEST_NAME = 100
_MOST_NAMED = 10  # periods in the note of a run
_log = logging.getLogger(__name__)
_AIRFLOW_NAMES = {
    "data_interval_end",
    "data_interval_start",
    "dag_run",
    "ds",
    "ds_nodash",
    "logical_date",
    "macros",
    "params",
    "run_id",
    "task_instance",
    "ti",
    "ts",
    "ts_nodash",
    "ts_nodash_with_tz",
    "var",
}


class PreparingOperator(LaunchEventOperator, QueryingOperator):
    """An operator that finds the launch of its run's period in the ledger, or else reads the audience and freezes it.

    :param campaign: the campaign's folder with ``campaign.yaml``, a ``sendoff.campaign.Campaign``, or a mapping with
        the fields of ``campaign.yaml``
    :param audience: the recipients, unless the folder's ``audience.sql`` finds them: SQL, a ``.sql`` file, the path or
        URL of a Parquet, CSV or Arrow file, a DataFrame, an Arrow table, a list of dictionaries, or
        ``VerdictsOfLaunch(key)`` (templated)
    :param name: the campaign's name in the ledger, whose launches are sent once for each period; default: the
        folder's name, or else the IDs of the DAG and the task (templated)
    :param warehouse: the connection that the audience query reads; default: the campaign's (templated)
    :param resend: 0, or the number of a deliberate repetition for the same period (templated)
    :param only_unsent: with ``resend``, leave out people who got, or may have got, an earlier launch for the period
        (templated)
    :param reason: why the period is sent again; required for a resend (templated)
    :param size_limit: send to this many people at most (templated)
    :param send_late: send the period however long ago it ended; otherwise ``gates.lateness`` decides (templated)
    """

    template_fields: Sequence[str] = (
        "audience",
        "name",
        "warehouse",
        "resend",
        "only_unsent",
        "reason",
        "size_limit",
        "send_late",
    )
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"audience": "sql"}
    _source: CampaignFolder | None = None  # for the lineage

    def __init__(  # noqa: PLR0913 - an interface for users
        self,
        *,
        campaign: str | Path | Campaign | Mapping[str, Any] | None = None,
        audience: Any = None,
        name: str | None = None,
        warehouse: str | None = None,
        resend: int | str = 0,
        only_unsent: bool | str = False,
        reason: str | None = None,
        size_limit: int | str | None = None,
        send_late: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        try:
            self.campaign = _checked(campaign, name or self.task_id)
        except CampaignError as error:
            if self.is_mapped:
                raise as_airflow_error(error) from None
            raise
        self.audience = audience
        self.name = name
        self.warehouse = warehouse
        self.resend = resend
        self.only_unsent = only_unsent
        self.reason = reason
        self.size_limit = size_limit
        self.send_late = send_late

    @property
    def audience(self) -> Any:
        """The audience as Airflow may show it: SQL, a path, or an object that does not show its rows."""
        return self._audience

    @audience.setter
    def audience(self, given: Any) -> None:
        self._audience = shown(given)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the query for OpenLineage's provider, if the campaign is a folder with a query."""
        if self._is_in_folder and isinstance(self.campaign, Path):
            return openlineage.of_query(absolute(self.campaign, self.dag.folder))
        return None

    @property
    def _is_in_folder(self) -> bool:
        """Whether the audience is that of the campaign's folder."""
        return isinstance(self.campaign, Path) and self.audience is None

    def _campaign_folder(self, context: Context) -> CampaignFolder:
        """Return the campaign. It has its audience only if that is in its folder."""
        assert self.campaign is not None
        folder = read_campaign(
            self.campaign, self._name(context), self.dag.folder, has_audience=self._is_in_folder
        )
        changes = {name: value for name, value in self._changes().items() if value is not None}
        return replace(folder, campaign=folder.campaign.replace(**changes))

    def _changes(self) -> dict[str, str | None]:
        """Return the fields of the campaign that this operator's arguments change."""
        return {"warehouse": as_text(self.warehouse)}

    def _with_audience(self, folder: CampaignFolder) -> CampaignFolder:
        """Return a campaign with the audience of this task."""
        from sendoff import campaign

        if self._is_in_folder:
            return folder
        given = self.audience
        if isinstance(given, VerdictsOfLaunch):
            given = campaign.VerdictsOf(given.launch_key, given.verdicts)
        else:
            given = of_shown(given, self.dag.folder)
        if isinstance(self.campaign, Path):
            return folder.with_audience(given)
        return campaign.campaign_from(folder.campaign, folder.name, given)

    def _prepared(
        self, context: Context, ledger: Ledger, folder: CampaignFolder, options: LaunchOptions
    ) -> LaunchRecord:
        """Return the launch of this run. Read the audience only if the ledger does not have it yet."""
        from sendoff.campaign import launch_key
        from sendoff.launch import check_same_recipients, prepare_launch
        from sendoff_airflow.hooks.warehouse import warehouse_source

        origin = self._origin(context)
        reported, notes = reported_launch(context, ledger, folder, options)
        period = period_of_launch(context, folder.campaign, reported)
        options = of_run(context, folder.campaign, replace(options, origin=str(origin)), reported)
        key = launch_key(folder.campaign.connection, folder.name, period, options.resend)
        self._source = folder
        if launch := ledger.launches.find(key):
            # A run that was cleared may have other rows, but continues with those that it froze.
            began = context["dag_run"].start_date or launch.created_at
            if launch.created_at >= began or not is_hidden(self.audience):
                _check_origin(launch, origin)
            launch.check_recipients()
            check_same_recipients(ledger, launch, options)
            if ledger.dispatch_queries.states(key).keys().isdisjoint(UNFINISHED):
                self.log.warning(
                    "Nothing new is sent: all requests of launch %s, for period %s, were made before.",
                    key,
                    launch.period.key,
                )
            return launch
        self._source = self._with_audience(folder)
        try:
            # It may be the launch of another task, which was faster.
            launch = prepare_launch(
                ledger,
                self._source,
                period=period,
                warehouses=warehouse_source,
                options=options,
            )
        except PermanentError as error:
            if error.not_launched:
                context["ti"].xcom_push(NOTE, "\n".join([f"Not launched: {error.not_launched}.", *notes]))
            if isinstance(error, NobodyLeftError) and options.reported and options.only_unsent:
                raise AirflowSkipException(str(error)) from None
            raise
        _check_origin(launch, origin)
        return launch

    def _origin(self, context: Context) -> _Origin:
        assert self.campaign is not None
        if isinstance(self.campaign, Path):
            campaign = str(absolute(self.campaign, self.dag.folder).resolve())
        else:
            campaign = self.campaign.model_dump_json()
        text = f"{campaign}\n{self.warehouse}\n{self._recipients()}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return _Origin(*run_and_task(context), digest)

    def _recipients(self) -> str:
        """Return what names the recipients, such as the query, or a digest of rows."""
        return described(self.audience)

    def _options(self) -> LaunchOptions:
        """Return the options of this task. They do not depend on the campaign."""
        from sendoff.launch import LaunchOptions
        from sendoff_airflow.hooks.dbt import read_artifact

        return LaunchOptions(
            read_artifact=read_artifact,
            size_limit=as_integer("size_limit", self.size_limit),
            send_late=as_boolean("send_late", self.send_late),
            resend=as_integer("resend", self.resend) or 0,
            only_unsent=as_boolean("only_unsent", self.only_unsent),
            reason=None if self.reason in ("", "None") else as_text(self.reason),
        )

    def _name(self, context: Context) -> str | None:
        """Return the name of the campaign, or None if it is the folder's."""
        if self.name is not None:
            return as_text(self.name)
        if (context["ti"].map_index or 0) >= 0 and not self._is_in_folder:
            raise AirflowFailException(
                f"Task {self.task_id}: a mapped task needs a name, because all launches of one name and period are one "
                "launch. If each instance has an audience of its own, map the name too, such as "
                "expand_kwargs([{'name': 'spring_ie', 'audience': ...}, ...]). If the instances share the work on one "
                "audience, give all the same name, such as partial(name='spring')."
            )
        return None if isinstance(self.campaign, Path) else name_of(self.dag_id, self.task_id)


def run_and_task(context: Context) -> tuple[str, str]:
    """Return names of the run and of the task, with its map index, for the origin of a launch."""
    ti = context["ti"]
    mapped = "" if ti.map_index is None or ti.map_index < 0 else f"[{ti.map_index}]"
    return f"{ti.dag_id} {ti.run_id}", f"{ti.task_id}{mapped}"


class _Origin(NamedTuple):
    """Which run and task make a launch, and a digest of their campaign and audience."""

    run: str
    task: str
    digest: str

    def __str__(self) -> str:
        return "\n".join(self)


def _check_origin(launch: LaunchRecord, own: _Origin) -> None:
    """Raise AirflowFailException if another task of this run made a launch with another campaign or audience.

    A later run finds the launch of its period on purpose, and so does a second worker of the same launch.
    """
    made = _Origin(*launch.origin.split("\n")) if launch.origin else own
    if made.run == own.run and made.task != own.task and made.digest != own.digest:
        raise AirflowFailException(
            f"Task {own.task}: task {made.task} of this run made launch {launch.launch_key} of campaign "
            f"{launch.campaign}, with another campaign or audience. Nothing was sent to the audience of this task. "
            "Give each task a name of its own: all launches of one name and period are one launch."
        )


def _checked(campaign: str | Path | Campaign | Mapping[str, Any] | None, name: str) -> Path | Campaign | None:
    """Return a campaign, or the path of its folder. Mistakes in a mapping are errors of the DAG file."""
    if campaign is None:
        return None
    if isinstance(campaign, str | Path):
        return Path(campaign)
    return _of_fields(campaign, name)


def of_run(
    context: Context, campaign: Campaign, options: LaunchOptions, reported: LaunchRecord | None = None
) -> LaunchOptions:
    """Return options with the facts of a run: when its period was due, and who started it.

    ``reported``: the launch whose report started the run, if one did. If it is a resend, the launch has the same
    number, and leaves out people who got an earlier launch for the period.
    """
    from sendoff.launch import due_time

    run, period = context["dag_run"], period_of_launch(context, campaign, reported)
    if reported and reported.resend and not options.resend:
        reason = f"the report of resend {reported.resend} of {reported.campaign}"
        options = replace(options, resend=reported.resend, only_unsent=True, reason=reason)
    # A launch to recipients of another one follows that one, perhaps days after the period's end.
    source = campaign.audience.source
    follows = isinstance(getattr(context.get("task"), "audience", None), VerdictsOfLaunch)
    follows = follows or (source is not None and source.kind == "verdicts")
    by_clock = None if follows else scheduled_at(context, campaign, period)
    return replace(
        options,
        due_at=due_time(campaign, period, run.run_after, by_clock),
        who=run.triggering_user_name or f"{run.run_type.value} run {run.run_id}",
        reported=reported.launch_key if reported else None,
    )


def period_of_launch(context: Context, campaign: Campaign, reported: LaunchRecord | None = None) -> Period:
    """Return the period of a run. If a report started it, that is the period of the reported launch.

    So a report that is made again later starts no second launch to the same recipients.
    """
    return reported.period if reported else period_of(context, campaign)


def reported_launch(
    context: Context, ledger: Ledger, folder: CampaignFolder, options: LaunchOptions
) -> tuple[LaunchRecord | None, list[str]]:
    """Return the launch whose report started a run if the recipients come from it, and what the run's note says of it.

    Without such a report, that is None. If reports of several periods started the run, it is the launch that this run
    followed before. Otherwise it is the one of the newest period that this campaign has no launch for, under any of its
    names. The log and the note of the run list the other such periods.

    Raise NotFoundError if the ledger has none of the reported launches.
    """
    from sendoff.campaign import launch_key

    reported = _reported_launches(context, ledger, folder)
    if not reported:
        return None, []
    connection, (run, _) = folder.campaign.connection, run_and_task(context)
    sources = {
        launch_key(connection, folder.name, each.period, options.resend or each.resend): each
        for each in reported
    }
    made = {launch.launch_key: launch for launch in ledger.launches.of_keys(sources)}
    followed = [
        sources[key] for key, each in made.items() if each.origin and each.origin.split("\n")[0] == run
    ]
    new = [
        each
        for key, each in sources.items()
        if key not in made
        and (
            options.resend
            or each.resend
            or not ledger.launches.of_period(connection, folder.names, each.period)
        )
    ]
    chosen = [*followed, *new, *reported][0]
    notes = []
    if left := [each.period.key for each in new if each is not chosen]:
        more = f", and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        text = (
            f"This run is for period {chosen.period.key} of {chosen.campaign}. Reports of other periods started it "
            "too. To send for one of those, clear the task that made its report, and wait for the run that this starts "
            f"before you clear the next one. Left out: {', '.join(left[:_MOST_NAMED])}{more}."
        )
        _log.warning("%s", text)
        context["ti"].xcom_push(NOTE, text)
        notes.append(text)
    return chosen, notes


def _reported_launches(context: Context, ledger: Ledger, folder: CampaignFolder) -> list[LaunchRecord]:
    """Return the launches whose reports started a run, the newest period first, if the recipients come from them.

    Of several launches for a period, it is the last resend, which counts those before. An event that someone made
    without the key of a launch is left out.
    """
    source, connection = folder.campaign.audience.source, folder.campaign.connection
    if source is None or source.kind != "verdicts" or not context.get("triggering_asset_events"):
        return []
    events = context["triggering_asset_events"].get(report_asset(source.of)) or ()
    keys = {key for event in events if isinstance(key := event.extra.get("launch_key"), str)}
    if not keys:
        return []
    of_source = (connection, source.of)
    found = [each for each in ledger.launches.of_keys(keys) if (each.connection, each.campaign) == of_source]
    if not found:
        raise NotFoundError(
            f"reports of {source.of} started this run, but the ledger has no launch of {source.of} on {connection} "
            f"with one of their keys, such as {min(keys)}. To send to the recipients of another launch, trigger the DAG"
        )
    last = {each.period: each for each in sorted(found, key=lambda each: each.resend)}
    return sorted(last.values(), key=lambda each: (each.period.end, each.period.key), reverse=True)


def read_campaign(
    given: Path | Campaign | Mapping[str, Any], name: str | None, dag_folder: str, *, has_audience: bool
) -> CampaignFolder:
    """Return a campaign with its audience, or without one. ``name``: its name, which only a folder need not have.

    A relative path starts at ``dag_folder``, the folder of the DAG file. Raise CampaignError if the campaign is wrong.
    """
    from sendoff.campaign import CampaignFolder, load_campaign

    if isinstance(given, Path):
        folder = load_campaign(absolute(given, dag_folder), has_audience=has_audience)
        return folder if name is None else folder.named(name)
    assert name is not None
    return CampaignFolder(name, _of_fields(given, name), None, Path())


def _of_fields(given: Campaign | Mapping[str, Any], name: str) -> Campaign:
    """Return a campaign that is not in a folder. Raise CampaignError if it is wrong, or has a template of Airflow."""
    from sendoff.campaign import campaign_of

    campaign = campaign_of(given, name)
    if found := sorted(_AIRFLOW_NAMES & {tag.partition(".")[0] for tag in campaign.filled_in()}):
        raise CampaignError(
            f"campaign {name}: found {{{{ {found[0]} }}}}, a template of Airflow, which is not rendered in texts. "
            "Write the text in Python, or with a tag of the service that has another name"
        )
    return campaign


def name_of(*ids: str) -> str:
    """Return a campaign's name made of the IDs of a DAG and its parts.

    A long one, and one of IDs with other letters than English ones, ends in a digest, so that no two are the same.
    """
    text = ".".join(ids)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", text)
    if name == text and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}-{digest}"
