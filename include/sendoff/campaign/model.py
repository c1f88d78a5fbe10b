"""The campaign model: content, recipients, schedule, and the DAG that sends it.

A launch freezes its campaign as JSON in the ledger and sends that copy. The models check each field by itself, and
:mod:`~sendoff.campaign.validation` checks how fields fit together. Editors show the docstrings and descriptions of the
models, because they become the JSON Schema of ``campaign.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from sendoff.campaign.audience_rules import AudienceRules, QueryExclusion
from sendoff.campaign.content import Channel, Channels, Message
from sendoff.campaign.dbt import Dbt
from sendoff.campaign.deployment_rules import DeploymentRules, WarmUp
from sendoff.campaign.error_messages import MOST_MISTAKES, sentences, with_required_kinds
from sendoff.campaign.field_types import (
    QUERY_ZONE,
    AssetName,
    ConnectionName,
    Day,
    FrozenModel,
    Language,
    Text,
    TimeZone,
    between,
    optional,
)
from sendoff.campaign.gates import Approval, Duration, Gates, ReportTiming
from sendoff.campaign.period import Period
from sendoff.campaign.schedule import Now, Once, OwnHours, Recurring, Schedule, TimeToLive, Triggered
from sendoff.campaign.scopes import TOPIC, scopes_of
from sendoff.campaign.tags import names_in
from sendoff.campaign.targeting import ByQuery, Target
from sendoff.campaign.variants import Decide, Template, Variant
from sendoff.errors import CampaignError, LateError, SendoffError

if TYPE_CHECKING:
    from sendoff.campaign.yaml_document import YamlPath

PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
}
"""Airflow's schedule presets, with their cron expressions."""

CREATED_FOR = ("device_id", "device_token", "device_uuid", "external_id")
"""The identifier columns that a campaign with its own content can have (section 2.9)."""

EXECUTED_FOR = ("device_id", "device_token", "external_id", "user_id")
"""The identifier columns that a campaign with a template can have (section 4.3)."""


@dataclass(frozen=True, slots=True)
class Variation:
    """The language, variant and time zone of one request, if a campaign differs between recipients.

    Each is set only if the campaign sends a separate request for each value; otherwise it is None.
    """

    language: str | None = None
    variant: str | None = None
    time_zone: str | None = None


class PostBacks(FrozenModel):
    """The post-backs requested from the service (section 6)."""

    kinds: tuple[Literal["delivery", "open"], ...] = optional(
        "Events that the service reports; without delivery, Sendoff cannot tell which recipients are missing",
        ("delivery", "open"),
    )


class Campaign(FrozenModel):
    """A messaging campaign, and the settings of the DAG that sends it."""

    if TYPE_CHECKING:  # type checkers would refuse dictionaries for the nested fields

        def __init__(self, *, title: str, **fields: Any) -> None: ...

    else:

        def __init__(self, /, **fields: Any) -> None:
            """Check the fields. Raise one CampaignError that lists all mistakes."""
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise CampaignError(mistakes_in_words("campaign", error.errors(include_url=False))) from None

        __init__.__pydantic_base_init__ = True  # only a call gets here: pydantic validates trees without it

    title: Annotated[
        Text,
        Field(max_length=200, description="Name of the campaign in the service; recipients do not see it"),
    ]
    language: Language | None = optional("Language of the original texts; required if there are translations")
    message: Message | None = optional("Content that push, web push and inbox messages share")
    channels: Channels = optional(
        "Channels to send on: at least one, or none if you use a template", Channels()
    )
    template: Template | None = optional(
        "Template in the service to execute, instead of creating a campaign with the content given here"
    )
    targeting: Target = optional("How the recipients are chosen", ByQuery())
    send: Schedule = optional(
        "When the service sends the messages, once the DAG has made the requests", Now()
    )
    push_expiry: TimeToLive | None = optional(
        "How long the service keeps trying to deliver a push message; 4 weeks by default"
    )
    encryption: Text | None = optional(
        "Passed on to the service unchanged; its documentation does not explain the values"
    )
    post_backs: PostBacks = optional("Events that the service reports back", PostBacks())
    topic: Annotated[str, Field(strict=True, pattern=f"^{TOPIC}$")] | None = optional(
        "What the campaign is about, such as news; recipients can opt out of a topic"
    )
    transactional: Annotated[Text, Field(max_length=200)] | None = optional(
        "Why recipients must get this message, such as a receipt. Entries of the suppression list for the whole "
        "account do not stop it then. Of the rules for all campaigns, only daily limits apply"
    )

    audience: AudienceRules = optional(
        "How the audience query is read, and which recipients are left out", AudienceRules()
    )
    variants: Mapping[Text, Variant] = optional(
        "Variants to compare, by name; recipients are split between them at random", default={}
    )
    decide: Decide | None = optional(
        "Send the variants to a test share first, and the winner to the rest; without it, everyone gets a variant"
    )
    gates: Gates = optional("Checks that must pass before the launch sends", Gates())
    on_doubt: Literal["hold", "resend"] = optional(
        "What to do if it is unclear whether the service processed a request. hold: wait until evidence or a "
        "person decides. resend: send it again at once, but only once; some recipients may get the message twice",
        "hold",
    )
    approval: Approval = optional("Whether a person must approve the launch before it sends", Approval())
    report: ReportTiming = optional(
        "When the report is made, and where its results are written", ReportTiming()
    )

    connection: ConnectionName = optional("Airflow connection of the messaging service", "sendoff_default")
    warehouse: ConnectionName = optional(
        "Airflow connection of the database that the audience query reads", "sendoff_warehouse"
    )
    dbt: Dbt = optional("The dbt project whose models the queries read, and the gates of these models", Dbt())
    formerly: tuple[Annotated[Text, Field(max_length=250)], ...] = optional(
        "Earlier names of the campaign, oldest first, if its folder was renamed. A period that was sent under one of "
        "them is not sent again",
        (),
    )
    schedule: str | None = Field(
        None,
        description="When the DAG runs: a cron expression of five fields, or one of "
        f"{', '.join(PRESETS)}; without it, you trigger the DAG by hand",
        examples=["0 9 * * 1"],
    )
    schedule_time_zone: TimeZone = optional("IANA time zone of schedule and start", "UTC")
    after: tuple[AssetName, ...] = optional(
        "Names of Airflow assets; the DAG runs when all of them have been updated. With a schedule, each of its runs "
        "also waits for them, from Airflow 3.4 on",
        (),
    )
    start: Day | None = optional("First day of the DAG; no period begins before it")
    owner: Annotated[Text, Field(max_length=500)] = optional("Owner of the DAG in Airflow", "sendoff")
    tags: tuple[Annotated[Text, Field(max_length=100)], ...] = optional(
        "Tags of the DAG in Airflow, in addition to sendoff", ()
    )
    segment_size: Annotated[int, between(1, 1_000_000)] = optional(
        "Maximum number of recipients in one request", 10_000
    )
    parallelism: Annotated[int, between(1, 256)] = optional("Number of tasks that send at the same time", 4)
    pool: Annotated[Text, Field(max_length=256)] | None = optional("Airflow pool of the tasks that send")
    retries: Annotated[int, between(0, 100)] = optional(
        "How many times Airflow retries a failed task of the DAG. The command sendoff send has no retries", 8
    )
    alert_after: Duration | None = optional(
        "How long a run may take before an alert is sent; never by default"
    )

    rules: DeploymentRules = optional(
        "Rules for all campaigns, which no campaign can weaken. A transactional campaign is exempt from all but the "
        "daily limits",
        DeploymentRules(),
    )

    @classmethod
    @lru_cache(maxsize=256)  # a worker and the pages read the same ones again and again
    def frozen(cls, definition: str) -> Campaign:
        """Return the campaign that a launch froze. Raise CampaignError if this version of Sendoff cannot read it.

        The rules for files do not apply: dates have already been derived from the period, and a rule may be newer
        than the launch.
        """
        try:
            model = OwnRequest if _Kind.model_validate_json(definition).sends_with else cls
            return model.model_validate_json(definition, context={"is_frozen": True})
        except ValidationError as error:
            places = {".".join(map(str, part["loc"])) or "all of it" for part in error.errors()}
            raise CampaignError(
                "this launch was frozen by another version of Sendoff, and this version cannot read parts of its "
                f"definition: {', '.join(sorted(places))}. Use the version that froze it, or a newer one"
            ) from None

    @property
    def send_mode(self) -> Literal["create", "execute"]:
        """How a launch sends: it creates a campaign, or executes the template, for each segment."""
        return "execute" if self.template else "create"

    def channels_used(self) -> tuple[Channel, ...]:
        """Return the channels that the campaign sends on: its own, or the template's."""
        return self.template.channels if self.template else self.channels.used()

    def suppression_scopes(self) -> tuple[str, ...]:
        """Return the scopes of the suppression list that stop this campaign, sorted.

        A request goes over all its channels, so an entry for one of them stops it. The channels of variants count too.
        """
        channels = {channel for part in self.parts() for channel in part.channels_used()}
        return scopes_of(self.topic, channels, is_transactional=self.transactional is not None)

    def message_for(self, channel: Channel) -> Message:
        """Return the message of a push-like channel: the shared message, overridden by the channel's own fields.

        A channel with its own title or text does not use the translations of the shared message. A channel with its
        own url does not use theirs.
        """
        return _with_parts(self.message, self.channels.own_words(channel))

    def languages(self) -> tuple[Language, ...]:
        """Return the campaign's language, then its translations' languages, sorted; () if it names no language."""
        codes = {code for _, content in self.translated() for code in content.translations}
        return (self.language, *sorted(codes - {self.language})) if self.language else ()

    def translated(self) -> list[tuple[tuple[str, ...], Any]]:
        """Return each translatable content with its path in the file."""
        shared: list[tuple[tuple[str, ...], Any]] = [(("message",), self.message)] if self.message else []
        channels = self.channels.items()
        return shared + [
            (("channels", name), each) for name, each in channels if hasattr(each, "translations")
        ]

    def separate_languages(self) -> tuple[Language, ...]:
        """Return the languages that need a separate request, the campaign's own language first; () if none do.

        The service itself picks the language of push and inbox messages. For emails and text messages it does not
        (sections 2.6, 2.8), so each language is sent as its own :meth:`variation`.
        """
        apart = any(content and content.translations for content in (self.channels.email, self.channels.sms))
        return self.languages() if apart else ()

    def filled_in(self) -> tuple[str, ...]:
        """Return the sorted names of the tags in the campaign's texts and its variants' texts.

        The tags inside a template are not known.
        """
        contents = [part.model_dump(mode="json", include={"message", "channels"}) for part in self.parts()]
        return tuple(sorted(set(names_in(contents))))

    def parts(self) -> tuple[Campaign, ...]:
        """Return the campaign itself, and the campaign as the recipients of each variant get it."""
        return (self, *map(self.as_variant, self.variants))

    def refuses(self, identified_by: str) -> str | None:
        """Return why the service cannot send the campaign to recipients of an identifier column, or None if it can."""
        allowed = EXECUTED_FOR if self.template else CREATED_FOR
        if identified_by in allowed:
            return None
        what = "a template cannot be executed" if self.template else "a campaign cannot be created"
        other = "" if self.template else f"; a template can be executed for {', '.join(EXECUTED_FOR)}"
        return f"{what} for recipients identified by {identified_by}, only by {', '.join(allowed)}{other}"

    @property
    def other_warehouses(self) -> frozenset[str]:
        """The connections that exclusions read besides the campaign's own warehouse."""
        read = (each.warehouse for each in self.audience.exclude if isinstance(each, QueryExclusion))
        return frozenset(filter(None, read)) - {self.warehouse}

    @property
    def shows_opt_outs(self) -> bool:
        """Whether the template of the campaign or of a variant shows recipients their own address to opt out."""
        return any(part.template and part.template.unsubscribe_url for part in self.parts())

    @property
    def rules_in_force(self) -> DeploymentRules:
        """The rules of the deployment for this campaign: only the daily limits if it is transactional."""
        return self.rules.limits_only() if self.transactional else self.rules

    @property
    def warm_up(self) -> WarmUp | None:
        """The daily limit of the campaign's connection, or None if it has none."""
        return next((each for each in self.rules.warm_up if each.connection == self.connection), None)

    @property
    def default_zone(self) -> str | None:
        """The time zone of recipients without a value in the column ``time_zone``, if zones are sent separately."""
        return self.own_default_zone or self.rules_in_force.default_time_zone

    @property
    def own_default_zone(self) -> str | None:
        """The default time zone that the campaign itself names. If there is one, the query needs the column."""
        if isinstance(self.send, Once) and self.send.default_time_zone:
            return self.send.default_time_zone
        return self.gates.window.default_time_zone if self.gates.window else None

    @property
    def own_hours(self) -> OwnHours | None:
        """How recipients get messages at their own hours, or None if they do not."""
        return self.send.own_hours if isinstance(self.send, Now) else None

    @property
    def own_hours_take(self) -> timedelta:
        """How long the recipients' own hours take: a day for each wave."""
        if self.own_hours is None:
            return timedelta()
        return timedelta(days=1 + (len(self.gates.rollout.shares) if self.gates.rollout else 0))

    def clock_zone(self, time_zone: str | None) -> str:
        """Return the time zone of the hours of recipients in ``time_zone``, or of recipients without one."""
        window = self.gates.window
        fixed = window.time_zone if window and window.time_zone != QUERY_ZONE else None
        return time_zone or fixed or self.rules_in_force.default_time_zone or self.schedule_time_zone

    @property
    def fixed_period(self) -> Period | None:
        """The only period of a campaign that is created once and repeated by the service; None if each run has one."""
        return Period.of_campaign(self.send.start) if isinstance(self.send, Recurring | Triggered) else None

    @property
    def has_one_variation(self) -> bool:
        """Whether all recipients get the same content at the same moment, so that requests need not be split."""
        is_by_zone = isinstance(self.send, Once) and self.send.time_zone == QUERY_ZONE
        return not (self.separate_languages() or self.variants or is_by_zone)

    def possible(self, variation: Variation) -> tuple[Variation, ...]:
        """Return the variations that recipients may get: one for each variant if the winner is not known yet."""
        if self.decide is None or variation.variant is not None:
            return (variation,)
        return tuple(replace(variation, variant=name) for name in self.variants)

    def variation(self, variation: Variation, period_end: datetime) -> Campaign:
        """Return the campaign for one variation, without other variants, languages and time zones."""
        campaign = self.as_variant(variation.variant) if variation.variant else self
        if variation.language:
            campaign = campaign._in_language(variation.language)
        send = campaign.send
        if variation.time_zone and isinstance(send, Once) and send.time_zone == QUERY_ZONE:
            try:
                return campaign.replace(send=send.in_zone(variation.time_zone, period_end))
            except ValueError as error:
                raise CampaignError(f"send: {error}") from None
        return campaign

    def as_variant(self, name: str) -> Campaign:
        """Return the campaign as the recipients of one variant get it, without variants."""
        if name not in self.variants:
            raise CampaignError(f"the campaign has no variant {name!r}")
        variant = self.variants[name]
        parts = {part: own for part in Message.model_fields if (own := getattr(variant.message, part, None))}
        return self.replace(
            message=_with_parts(self.message, parts) if parts else self.message,
            channels=self.channels.replace(**dict(variant.channels.items())),
            template=variant.template or self.template,
            variants={},
            decide=None,
        )

    def _in_language(self, language: Language) -> Campaign:
        if language not in self.languages():
            raise CampaignError(f"the campaign has no texts in the language {language!r}")
        contents = {name: _in_language(content, language) for name, content in self.channels.items()}
        message = _in_language(self.message, language)
        return self.replace(language=language, message=message, channels=self.channels.replace(**contents))

    def resolved(self, period_end: datetime) -> Campaign:
        """Return the campaign with all its dates, derived from the end of its period (an aware datetime).

        Raise CampaignError if one of these moments lies before the end of the period.
        """
        variants = {
            name: variant.replace(channels=_channels_at(f"variants.{name}.", variant.channels, period_end))
            for name, variant in self.variants.items()
        }
        return self.replace(
            send=_at("send", self.send, period_end, self.schedule_time_zone),
            push_expiry=_at("push_expiry.until", self.push_expiry, period_end),
            channels=_channels_at("", self.channels, period_end),
            variants=variants,
        )

    def expiries(self) -> Iterator[tuple[tuple[str, ...], TimeToLive]]:
        """Yield each time to live, with its path in the file."""
        if self.push_expiry:
            yield ("push_expiry",), self.push_expiry
        channels: dict[tuple[str, ...], Channels] = {(): self.channels}
        channels |= {("variants", name): variant.channels for name, variant in self.variants.items()}
        for path, each in channels.items():
            if each.inbox and each.inbox.keep:
                yield (*path, "channels", "inbox", "keep"), each.inbox.keep

    def check_not_over(self, period_end: datetime, now: datetime) -> None:
        """Raise an error if an end date or expiry has passed.

        Raise CampaignError if the file names the day. Raise LateError if the day follows from the period: the campaign
        is fine then, but the launch is too late. The gate *send* checks campaigns that send once.
        """
        if (end := self._last_sending()) and end < now:
            raise CampaignError(
                f"send.end: nothing is sent after {_utc(end)}, which has passed. Use a later end"
            )
        for path, expiry in self.expiries():
            kind = CampaignError if expiry.until and expiry.until.date else LateError
            _check_end((*path, "until"), expiry.resolved(period_end).ends_at(), now, kind)

    def has_ended(self, now: datetime) -> bool:
        """Check whether an end date or expiry has passed; the campaign must be resolved."""
        ends = [self._last_sending(), *(expiry.ends_at() for _, expiry in self.expiries())]
        return any(end and end < now for end in ends)

    def _last_sending(self) -> datetime | None:
        """Return when the last message can be sent, or None without an end; a campaign that sends once has none.

        A recurring campaign is over after its last time, although its last day may not be.
        """
        if isinstance(self.send, Recurring):
            return self.send.last_at()
        return self.send.ends_at() if isinstance(self.send, Triggered) else None


class OwnRequest(Campaign):
    """The description of a request that someone wrote, in place of the campaign of its launch.

    The request itself is in the launch's only segment. A campaign file cannot contain these fields.
    """

    sends_with: Literal["create", "execute"]
    known_channels: tuple[Channel, ...] = ()

    @property
    def send_mode(self) -> Literal["create", "execute"]:
        """Which operation of the service receives the request."""
        return self.sends_with

    def channels_used(self) -> tuple[Channel, ...]:
        """Return the channels that the request names, or all channels if it names none: it may use any."""
        return self.known_channels or tuple(Channel)


def campaign_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``campaign.yaml``, which editors use to complete and check the file."""
    schema = schema_with_rules()
    del schema["properties"]["rules"]
    schema["$defs"] = {name: each for name, each in schema["$defs"].items() if name not in _OF_RULES}
    return schema


def schema_with_rules() -> dict[str, Any]:
    """Return the JSON Schema of campaigns with the rules for all of them, which only ``defaults.yaml`` may have."""
    schema = with_required_kinds(Campaign.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


_OF_RULES = ("DeploymentRules", "QuietHours", "WarmUp")
_schema = cache(schema_with_rules)


def validated(tree: Any) -> tuple[Campaign | None, list[ErrorDetails]]:
    """Return the campaign of a tree in JSON's types, or None and the errors."""
    try:
        return Campaign.model_validate(tree), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def mistakes_of(errors: Sequence[ErrorDetails]) -> list[tuple[YamlPath, str]]:
    """Return the place and the sentence of each error of a campaign, as in :func:`sentences`."""
    return sentences(errors, _schema()) if errors else []  # making the schema takes long


def mistakes_in_words(name: str, errors: Sequence[ErrorDetails]) -> str:
    """Return a line for each of the first errors of a campaign from Python. ``name``: begins each line."""
    mistakes = mistakes_of(errors[:MOST_MISTAKES])
    return "\n".join(f"{name}: {'.'.join(map(str, place))}: {text}" for place, text in mistakes)


class _Kind(BaseModel):
    """The field of a frozen definition that tells a request of someone's own from a campaign."""

    sends_with: str | None = None


def _check_end(path: tuple[str, ...], end: datetime | None, now: datetime, kind: type[SendoffError]) -> None:
    if end and end < now:
        where = ".".join(path)
        raise kind(f"{where}: the end at {_utc(end)} has passed. Use an end after {_utc(now)}")


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _with_parts(message: Message | None, parts: Mapping[str, Any]) -> Message:
    """Return the message with some fields replaced.

    A new title or text drops the shared translations. A new url replaces theirs too.
    """
    message, changed = message or Message(), dict(parts)
    if "title" in parts or "text" in parts:
        changed = {"translations": {}} | changed
    elif "url" in parts:
        # Each url is written out, so that the service cannot mix it with those of the message.
        translations = {
            code: each.replace(url=parts["url"]) if each.url else each
            for code, each in message.translations.items()
        }
        changed = {"translations": translations} | changed
    return message.replace(**changed)


def _in_language(content: Any, language: str) -> Any:
    if not getattr(content, "translations", None):
        return content
    translation = content.translations.get(language)
    words = translation.model_dump(exclude_none=True) if translation else {}
    return content.replace(**words, translations={})


def _channels_at(path: str, channels: Channels, period_end: datetime) -> Channels:
    inbox = channels.inbox
    if not inbox:
        return channels
    keep = _at(f"{path}channels.inbox.keep.until", inbox.keep, period_end)
    return channels.replace(inbox=inbox.replace(keep=keep))


def _at(path: str, timed: Any, period_end: datetime, *clock: str) -> Any:
    try:
        return timed and timed.resolved(period_end, *clock)
    except ValueError as error:
        raise CampaignError(f"{path}: {error}") from None
