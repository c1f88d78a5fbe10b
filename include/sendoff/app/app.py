"""The entry of the library: a ledger, a messaging service and a warehouse, and the launches between them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack
from uuid import uuid4

from sendoff.app.connections import Connections, user_name
from sendoff.app.launch import Launch
from sendoff.app.order import folder_given, is_frozen_as, order_of
from sendoff.app.results import LaunchPreview, SuppressionEntries, Suppressions
from sendoff.arguments import check_flags, check_reason
from sendoff.campaign import Given, Period, launch_key
from sendoff.errors import NotFoundError, SettingsError, UsageError
from sendoff.settings import Settings, load_settings

if TYPE_CHECKING:
    from datetime import date

    from sendoff.campaign import Campaign
    from sendoff.warehouse import Source

_log = logging.getLogger(__name__)


class MoreSettings(TypedDict, total=False):
    """The arguments of :func:`connect` that few callers need, with the names of the settings."""

    connection: str
    defaults: str | Path
    private_key: str
    private_key_passphrase: str
    algorithm: str
    token_audience: str
    token_lifetime: int
    app_token: str
    field_names: Mapping[str, str]
    timeout: float
    requests_per_second: float
    requests_at_once: int
    allow_http: bool
    ca_bundle: str
    proxy: str
    erasure_secret: str
    erasure_log: str


def connect(  # noqa: PLR0913 - an interface for users
    ledger: str | None = None,
    *,
    service: str | None = None,
    client_id: str | None = None,
    client_secret: str | None = None,
    public_url: str | None = None,
    post_back_secret: str | None = None,
    warehouse: Source | Mapping[str, Source] | None = None,
    **more: Unpack[MoreSettings],
) -> App:
    """Return an app for a ledger, a messaging service and a warehouse. Nothing is opened or sent yet.

    Each argument that is left out comes from its ``SENDOFF_*`` variable, and is only needed by the calls that use it.
    The other settings are arguments too, by their names, such as ``app_token`` and ``requests_per_second``.
    ``defaults`` is the path of a ``defaults.yaml``. Its ``rules`` apply to campaigns given as objects or mappings, and
    to folders without rules of their own.

    Raise SettingsError if a setting is wrong; its text never quotes the value.

    :param ledger: SQLAlchemy URL of the ledger
    :param service: base URL of the messaging service
    :param client_id: the client ID that the service issued
    :param client_secret: its secret; for a client ID with a key, use ``private_key``
    :param public_url: public URL of the receiver, where the service sends post-backs
    :param post_back_secret: the secret that signs the addresses of post-backs, as the receiver has it
    :param warehouse: SQLAlchemy URL or engine where the queries of campaigns run; or several by the name of their
        connection
    """
    named = {
        "ledger_url": ledger,
        "service_url": service,
        "client_id": client_id,
        "client_secret": client_secret,
        "public_url": public_url,
        "post_back_secrets": post_back_secret,
    }
    if unknown := more.keys() - Settings.model_fields.keys():
        raise TypeError(f"sendoff.connect has no argument {', '.join(sorted(unknown))}")
    given = {name: value for name, value in {**named, **more}.items() if value is not None}
    if "defaults" in given:
        given["defaults"] = str(given["defaults"])
    settings = load_settings(**given)
    url = settings.warehouse_url if "warehouse_url" in given else None
    return App(Connections(settings, url if warehouse is None else warehouse, user_name(), given))


class App:
    """A ledger, a messaging service and a warehouse. Make one with :func:`connect`; threads may share it."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sendoff app, connection {self._connections.settings.connection}>"

    def migrate(self) -> None:
        """Create the tables of the ledger, or bring them up to date, as ``sendoff migrate`` does; safe to repeat."""
        self._connections.ledger.migrate()

    def check_settings(self, *, reads_warehouse: bool = False) -> None:
        """Raise one SettingsError that lists all missing settings that preparing and sending a launch needs.

        If none is missing, raise one about a setting that cannot be used, such as a base URL without a host.
        ``reads_warehouse``: whether the audience comes from a warehouse.
        """
        from sendoff.app.service import NEEDED

        check_flags(reads_warehouse=reads_warehouse)
        settings, warehouse = self._connections.settings, self._connections.warehouse
        names = ["warehouse_url"] if reads_warehouse and warehouse is None else []
        settings.require("ledger_url", *names, *NEEDED)
        self._connections.service(settings.connection)

    def close(self) -> None:
        """Close the connections to the ledger."""
        self._connections.close()

    def prepare(  # noqa: PLR0913 - an interface for users
        self,
        campaign: Campaign | Mapping[str, Any] | str | Path,
        *,
        name: str | None = None,
        audience: Any = None,
        period: Given | None = None,
        size_limit: int | None = None,
        resend: int = 0,
        only_unsent: bool = False,
        reason: str | None = None,
        send_late: bool = False,
    ) -> Launch:
        """Read the audience, apply the campaign's rules and gates, and freeze the launch in the ledger. Send nothing.

        Connection, campaign, period and ``resend`` decide the launch. If the ledger has it already, from this call or
        a DAG, return it as it was frozen. A warning says so if other fields or an audience were given.

        Raise CampaignError, AudienceError or QueryError if the campaign, its audience or a query is wrong. Raise
        ValueError for a wrong period, and NotYetError if it has not ended. Raise GateError or LateError if a gate is
        closed. Raise UsageError if another argument has a wrong value, and SettingsError if a setting is missing. After
        an error, nothing is stored.

        :param campaign: the campaign, its fields as a mapping, or the path of its folder. A journey has a path for each
            step, ``<folder of the journey>/<step>``, and cannot be prepared whole
        :param name: the name of the campaign; by default that of its folder
        :param audience: SQL, a path (.sql, .parquet, .csv, .arrow, .feather), a DataFrame, an Arrow table, a list of
            dictionaries, or ``VerdictsOf`` another launch. Leave it out for the audience of a folder, and if the
            service chooses the recipients
        :param period: the period, such as ``"2026-11-16/2026-11-23"``; see ``Period.of``. A campaign that the
            service repeats has its own
        :param size_limit: send to this many people at most; for an unfinished launch for more people, it is an error
        :param resend: a number above 0 sends the period again
        :param only_unsent: with ``resend``, leave out people who got, or may have got, an earlier launch for the period
        :param reason: why it is sent again, for the audit log; required with ``resend``
        :param send_late: send the period however long ago it ended
        """
        from sendoff.launch import prepare_launch

        order = order_of(self._connections, campaign, name, audience, period)
        again = {"resend": resend, "only_unsent": only_unsent, "reason": reason}
        options = order.options(self._connections.who, size_limit, send_late=send_late, **again)
        asked_at = datetime.now(UTC)
        launch = prepare_launch(
            self._connections.ledger,
            order.folder,
            period=order.period,
            warehouses=self._connections.source,
            options=options,
        )
        change = ""
        if not is_frozen_as(launch, order.folder.campaign, order.period.end):
            change = " with other fields"
        elif audience is not None and launch.created_at < asked_at:
            change = ", and the audience of this call was not read"
        if change:
            _log.warning(
                "Launch %s of %s was frozen at %s%s. It stays as it is; preview() shows it.",
                launch.launch_key,
                launch.campaign,
                launch.created_at,
                change,
            )
        return Launch(self._connections, launch)

    def prepare_tests(
        self,
        campaign: Campaign | Mapping[str, Any] | str | Path,
        recipients: Any,
        *,
        name: str | None = None,
        variant: str | None = None,
    ) -> list[Launch]:
        """Freeze tests that send a campaign's message at once to a few people of your own. Send nothing yet.

        Return a launch for each variant, or only for the one that ``variant`` names. Their campaign is
        ``<name>-test``, so the launches of the campaign itself stay as they are. Of the campaign, a test has the
        content, the topic, the connection and the daily limits: it skips exclusions, holdout, gates and approval. The
        suppression list holds. Each call makes new tests.

        Raise the errors of :meth:`prepare`, and GateError for more than 100 recipients.

        :param campaign: as in :meth:`prepare`
        :param recipients: as ``audience`` in :meth:`prepare`, with the columns that the content needs
        :param name: the name of the campaign; by default that of its folder
        :param variant: the variant to test; by default each of them
        """
        from sendoff.launch import LaunchOptions, prepare_tests

        folder = folder_given(campaign, name, self._connections.settings, reads_query=False)
        self._connections.check(folder.campaign.connection)
        options = LaunchOptions(who=self._connections.who, origin=f"test\n{uuid4()}\n")
        tests = prepare_tests(
            self._connections.ledger,
            folder,
            recipients,
            moment=datetime.now(UTC),
            variant=variant,
            warehouses=self._connections.source,
            options=options,
        )
        return [Launch(self._connections, test) for test in tests]

    def preview(  # noqa: PLR0913 - an interface for users
        self,
        campaign: Campaign | Mapping[str, Any] | str | Path,
        *,
        name: str | None = None,
        audience: Any = None,
        period: Given | None = None,
        size_limit: int | None = None,
        resend: int = 0,
        only_unsent: bool = False,
        send_late: bool = False,
    ) -> LaunchPreview:
        """Return what :meth:`prepare` would freeze with these arguments. Store and send nothing.

        Raise the same errors. Closed gates are no error: the preview shows them.
        """
        from sendoff.launch import preview_campaign

        order = order_of(self._connections, campaign, name, audience, period)
        again = {"resend": resend, "only_unsent": only_unsent}
        options = order.options(self._connections.who, size_limit, send_late=send_late, **again)
        return LaunchPreview(
            preview_campaign(
                order.folder,
                period=order.period,
                warehouses=self._connections.source,
                ledger=self._connections.ledger,
                options=options,
                **self._connections.request_facts(),
            )
        )

    def launch(self, name: str, period: Given | None = None, *, resend: int = 0) -> Launch:
        """Return a launch that the ledger has. Raise NotFoundError if there is none.

        Raise UsageError for a resend number with a key, because a key names one launch already.

        :param name: the name of its campaign, or its key if ``period`` is left out
        """
        launches = self._connections.ledger.launches
        if period is None:
            if resend:
                raise UsageError(
                    "resend: a key names one launch already. Leave it out, or use the campaign's name and its period"
                )
            return Launch(self._connections, launches.get(name))
        known = Period.of(period)
        key = launch_key(self._connections.settings.connection, name, known, resend)
        try:
            return Launch(self._connections, launches.get(key))
        except NotFoundError:
            again = f", resend {resend}" if resend else ""
            raise NotFoundError(
                f"the ledger holds no launch of {name} for the period {known.key}{again}"
            ) from None

    def launches(self, name: str | None = None, *, limit: int = 20) -> list[Launch]:
        """Return the newest launches that the ledger has, the newest first, those of every connection.

        :param name: only launches of the campaign with this name
        :param limit: return at most this many
        """
        found = self._connections.ledger.launches.search(campaign=name, limit=limit)
        return [Launch(self._connections, each) for each in found]

    def suppress(  # noqa: PLR0913 - an interface for users
        self,
        recipients: Any,
        *,
        reason: str,
        identified_by: str | None = None,
        topic: str | None = None,
        channel: str | None = None,
        everything: bool = False,
        until: date | None = None,
        source: str = "python",
    ) -> int:
        """Suppress recipients: no request that is made from now on contains them. Return how many had no such entry.

        Without a topic, a channel or ``everything``, this stops every campaign that is not transactional. The audit log
        keeps your name, the reason and the count. Repeating a call changes nothing.

        Raise AudienceError if the recipients cannot be read, and SettingsError for another wrong argument. Nothing is
        changed then.

        :param recipients: identifiers, a DataFrame, an Arrow table, a list of dictionaries, or the ``Path`` of a CSV,
            Parquet or Arrow file
        :param reason: why, for the entries and the audit log
        :param identified_by: the column of the identifiers, such as ``device_id``; a table or a file may have exactly
            one such column instead
        :param topic: only campaigns on this topic
        :param channel: only campaigns that use this channel, such as ``email``
        :param everything: every campaign, also transactional ones
        :param until: the end of the entries: the start of a day in UTC, or an aware datetime; None: no end
        :param source: where the entries come from, such as the name of another system
        """
        from sendoff.launch import end_of, recipients_of, suppress, suppression_scope
        from sendoff.ledger import SuppressionChange

        check_reason(reason)
        if not isinstance(source, str):
            raise SettingsError(f"source: found a {type(source).__name__}. Use a text, such as source='crm'")
        now = datetime.now(UTC)
        scope = suppression_scope(topic, channel, everything=everything)
        end = end_of(until, now)
        named = recipients_of(recipients, identified_by)
        new = SuppressionChange(scope, named.identified_by, source, self._connections.who, reason, end)
        return suppress(self._connections.ledger, new, named.identifiers, now=now)

    def unsuppress(  # noqa: PLR0913 - an interface for users
        self,
        recipients: Any,
        *,
        reason: str,
        identified_by: str | None = None,
        topic: str | None = None,
        channel: str | None = None,
        everything: bool = False,
        source: str | None = None,
    ) -> int:
        """Remove recipients from one scope of the suppression list. Return how many were suppressed there.

        The arguments and errors are those of :meth:`suppress`. Entries of other scopes stay.

        :param source: only entries of this source; None: of every source, also the recipients' own opt-outs
        """
        from sendoff.launch import recipients_of, suppression_scope, unsuppress
        from sendoff.ledger import SuppressionChange

        check_reason(reason)
        scope = suppression_scope(topic, channel, everything=everything)
        named = recipients_of(recipients, identified_by)
        ended = SuppressionChange(scope, named.identified_by, source, self._connections.who, reason)
        return unsuppress(self._connections.ledger, ended, named.identifiers)

    def suppressions(self) -> Suppressions:
        """Return how many recipients are suppressed now, by scope, identifying column and source."""
        return Suppressions(self._connections.ledger.suppressions.sizes(datetime.now(UTC)))

    def suppression_entries(self, source: str | None = None) -> SuppressionEntries:
        """Return the entries of the suppression list that are in force, with their recipients.

        :param source: only entries of this source, such as ``opt-out``; None: of every source
        """
        from sendoff.report import SuppressionRows

        rows = SuppressionRows(self._connections.ledger, datetime.now(UTC), self._connections.who, source)
        return SuppressionEntries(rows)
