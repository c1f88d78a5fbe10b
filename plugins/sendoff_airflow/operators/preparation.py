"""Find or create the launch of a run, from a campaign and its audience. Several operators share this."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sendoff.errors import CampaignError, NobodyLeftError, PermanentError
from sendoff.states import UNFINISHED
from sendoff_airflow.arguments import as_boolean, as_integer, as_text
from sendoff_airflow.errors import as_airflow_error
from sendoff_airflow.ledger_operator import QueryingOperator
from sendoff_airflow.lineage import openlineage
from sendoff_airflow.operators.assets import LaunchEventOperator
from sendoff_airflow.operators.origin import Origin, check_origin, run_and_task
from sendoff_airflow.operators.recipients import (
    VerdictsOfLaunch,
    absolute,
    described,
    is_hidden,
    of_shown,
    shown,
)
from sendoff_airflow.operators.reported import of_run, period_of_launch, reported_launch
from sendoff_airflow.run_notes import KEY as NOTE

if TYPE_CHECKING:
    from sendoff.campaign import Campaign, CampaignFolder
    from sendoff.launch import LaunchOptions
    from sendoff.ledger import LaunchRecord, Ledger

_LONGEST_NAME = 100
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
                check_origin(launch, origin)
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
        check_origin(launch, origin)
        return launch

    def _origin(self, context: Context) -> Origin:
        assert self.campaign is not None
        if isinstance(self.campaign, Path):
            campaign = str(absolute(self.campaign, self.dag.folder).resolve())
        else:
            campaign = self.campaign.model_dump_json()
        text = f"{campaign}\n{self.warehouse}\n{self._recipients()}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return Origin(*run_and_task(context), digest)

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


def _checked(campaign: str | Path | Campaign | Mapping[str, Any] | None, name: str) -> Path | Campaign | None:
    """Return a campaign, or the path of its folder. Mistakes in a mapping are errors of the DAG file."""
    if campaign is None:
        return None
    if isinstance(campaign, str | Path):
        return Path(campaign)
    return _of_fields(campaign, name)


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
