"""The campaign: what is sent, to whom and when, and the DAG that sends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from sendoff.campaign.audience_rules import AudienceRules, Percent
from sendoff.campaign.content import Channel, Channels, Message
from sendoff.campaign.field_types import (
    QUERY_ZONE,
    AssetName,
    ConnectionName,
    Day,
    FrozenModel,
    Int32,
    Language,
    Text,
    TimeZone,
    between,
    optional,
)
from sendoff.campaign.gates import Approval, Duration, Gates, ReportTiming
from sendoff.campaign.schedule import Now, Once, Recurring, Schedule, TimeToLive, Triggered
from sendoff.campaign.tags import names_in
from sendoff.campaign.targeting import ByQuery, Target
from sendoff.errors import CampaignError, LateError, SendoffError
from sendoff.period import Period

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
"""Schedules by name, as Airflow has them."""


@dataclass(frozen=True, slots=True)
class Variation:
    """What tells the people of one request from those of another, where a campaign is not the same for all.

    ``language`` where languages are sent apart, ``variant`` where there are variants, ``time_zone`` where each zone has
    a moment of its own; else None.
    """

    language: str | None = None
    variant: str | None = None
    time_zone: str | None = None


class Template(FrozenModel):
    """A live campaign of the service that is executed, with its own content, for each segment (section 4.3)."""

    id: Int32 = Field(description="Id of the live campaign")
    channels: Annotated[tuple[Channel, ...], Field(min_length=1, description="What the template uses")]
    parameters: Mapping[str, str] = Field(
        default={}, repr=False, description="Values for its variables, the same for everybody"
    )
    columns: tuple[Text, ...] = optional(
        "Columns of the query that hold each person's own values for its variables", ()
    )


class Variant(FrozenModel):
    """One side of a comparison: a share of the audience, and what these people get instead."""

    percent: Percent = Field(
        description="Share of those who are sent to, in percent; all of them add up to 100"
    )
    message: Message | None = optional("What replaces parts of message; what is not given here stays")
    channels: Channels = optional("Channels of the campaign that are replaced, each as a whole", Channels())
    template: Template | None = optional("What is executed instead of template")


class PostBacks(FrozenModel):
    """What the service is asked to report (section 6)."""

    kinds: tuple[Literal["delivery", "open"], ...] = optional(
        "What is reported; without delivery nobody is told missing", ("delivery", "open")
    )


class Campaign(FrozenModel):
    """One campaign: content, people and time, in words of the field; and the DAG that sends it.

    A value: a launch freezes it as JSON in the ledger and sends what it froze. Fields are checked one by one here, and
    together where a file is read and before a launch is planned (:mod:`~sendoff.campaign.validation`).
    """

    title: Annotated[
        Text, Field(max_length=200, description="Name of the campaign in the service; nobody receives it")
    ]
    language: Language | None = optional("Language of the words that are no translation")
    message: Message | None = optional("What push, web push and inbox messages share")
    channels: Channels = optional(
        "The channels that are used: one or more, but none beside template", Channels()
    )
    template: Template | None = optional("Execute this instead of creating a campaign with content")
    targeting: Target = optional("Who is sent to", ByQuery())
    send: Schedule = optional("When the service sends what the DAG hands over", Now())
    push_expiry: TimeToLive | None = optional("How long delivery of a push is retried; default 4 weeks")
    encryption: Text | None = optional(
        "Sent as given; the service's document does not show what its values mean"
    )
    post_backs: PostBacks = optional("What the service is asked to report", PostBacks())

    audience: AudienceRules = optional(
        "How the query's people are read, and who of them is left out", AudienceRules()
    )
    variants: Mapping[Text, Variant] = optional(
        "Sides of a comparison, by name: people are shared out among them by chance", default={}
    )
    gates: Gates = optional("What must hold before the first request", Gates())
    on_doubt: Literal["hold", "resend"] = optional(
        "What becomes of a request in doubt: held until evidence or a person settles it, or sent again at "
        "once, at most once, where twice is better than never",
        "hold",
    )
    approval: Approval = optional("Whether a person must agree before the first request", Approval())
    report: ReportTiming = optional("When the report is made", ReportTiming())

    connection: ConnectionName = optional("Airflow connection of the messaging service", "sendoff_default")
    warehouse: ConnectionName = optional(
        "Airflow connection that the audience query runs on", "sendoff_warehouse"
    )
    schedule: str | None = Field(
        None,
        description=f"When the DAG runs: cron of five fields, or one of {', '.join(PRESETS)}; default by hand",
        examples=["0 9 * * 1"],
    )
    schedule_time_zone: TimeZone = optional("IANA time zone of schedule and start", "UTC")
    after: tuple[AssetName, ...] = optional(
        "Names of Airflow's assets that start the DAG once all of them were renewed", ()
    )
    start: Day | None = optional("First day of the DAG; its first period begins then or later")
    owner: Annotated[Text, Field(max_length=500)] = optional("Owner of the DAG in Airflow", "sendoff")
    tags: tuple[Annotated[Text, Field(max_length=100)], ...] = optional(
        "Tags of the DAG in Airflow, beside sendoff", ()
    )
    segment_size: Annotated[int, between(1, 1_000_000)] = optional("Most people in one request", 10_000)
    parallelism: Annotated[int, between(1, 256)] = optional("Tasks that send at the same time", 4)
    pool: Annotated[Text, Field(max_length=256)] | None = optional("Airflow pool of the tasks that send")
    retries: Annotated[int, between(0, 100)] = optional("How often a task of the DAG is tried again", 8)
    alert_after: Duration | None = optional(
        "How long a run may take before the deployment is alerted; default never"
    )

    @classmethod
    def frozen(cls, definition: str) -> Self:
        """Return the campaign that a launch froze. Raise CampaignError if this version of Sendoff cannot read it.

        The rules of a file do not apply: its dates follow from its period, and a rule may be younger than the launch.
        """
        try:
            return cls.model_validate_json(definition)
        except ValidationError as error:
            places = {".".join(map(str, part["loc"])) or "all of it" for part in error.errors()}
            raise CampaignError(
                "this launch was frozen by another version of Sendoff, and this one cannot read of its definition: "
                f"{', '.join(sorted(places))}; use the version that froze it, or a newer one"
            ) from None

    @property
    def send_mode(self) -> Literal["create", "execute"]:
        """How a launch sends: a campaign for each segment, or an execution of the template."""
        return "execute" if self.template else "create"

    def channels_used(self) -> tuple[Channel, ...]:
        """Return the channels that reach people: the campaign's own, or the template's."""
        return self.template.channels if self.template else self.channels.used()

    def message_for(self, channel: Channel) -> Message:
        """Return the message of a push-like channel: the shared one, with the channel's own words in their place.

        A channel with a title or text of its own takes no translations from what is shared.
        """
        return _with_parts(self.message, self.channels.own_words(channel))

    def languages(self) -> tuple[Language, ...]:
        """Return the campaign's language and those of its translations, sorted behind it; () where it names none."""
        codes = {code for _, content in self.translated() for code in content.translations}
        return (self.language, *sorted(codes - {self.language})) if self.language else ()

    def translated(self) -> list[tuple[tuple[str, ...], Any]]:
        """Return each content that can be translated, with its path in the file."""
        shared: list[tuple[tuple[str, ...], Any]] = [(("message",), self.message)] if self.message else []
        channels = self.channels.items()
        return shared + [
            (("channels", name), each) for name, each in channels if hasattr(each, "translations")
        ]

    def separate_languages(self) -> tuple[Language, ...]:
        """Return the languages that need a request of their own, the campaign's own first.

        The service chooses between the languages of push and inbox messages by itself, and then there are none. It
        does not for emails and text messages (sections 2.6, 2.8): those must be sent apart, each as :meth:`variation`.
        """
        apart = any(content and content.translations for content in (self.channels.email, self.channels.sms))
        return self.languages() if apart else ()

    def filled_in(self) -> tuple[str, ...]:
        """Return the names of the tags in its words and those of its variants, sorted; a template keeps its own."""
        contents = [
            part.model_dump(mode="json", include={"message", "channels"}) for part in self._with_variants()
        ]
        return tuple(sorted(set(names_in(contents))))

    def _with_variants(self) -> list[Campaign | Variant]:
        return [self, *self.variants.values()]

    @property
    def default_zone(self) -> str | None:
        """The time zone of people whose column ``time_zone`` names none, where zones are sent apart."""
        if isinstance(self.send, Once) and self.send.default_time_zone:
            return self.send.default_time_zone
        return self.gates.window.default_time_zone if self.gates.window else None

    @property
    def fixed_period(self) -> Period | None:
        """The period of a campaign that the service repeats and that is created once; None: each run has its own."""
        return Period.of_campaign(self.send.start) if isinstance(self.send, Recurring | Triggered) else None

    @property
    def has_one_variation(self) -> bool:
        """Whether all people get the same at the same moment, so that one request is enough."""
        is_by_zone = isinstance(self.send, Once) and self.send.time_zone == QUERY_ZONE
        return not (self.separate_languages() or self.variants or is_by_zone)

    def variation(self, variation: Variation, period_end: datetime) -> Campaign:
        """Return the campaign for one variation: one variant, one language, one time zone."""
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
        """Return the campaign for the people of one variant: without variants."""
        if name not in self.variants:
            raise CampaignError(f"the campaign has no variant {name!r}")
        variant = self.variants[name]
        parts = {part: own for part in Message.model_fields if (own := getattr(variant.message, part, None))}
        return self.replace(
            message=_with_parts(self.message, parts) if parts else self.message,
            channels=self.channels.replace(**dict(variant.channels.items())),
            template=variant.template or self.template,
            variants={},
        )

    def _in_language(self, language: Language) -> Campaign:
        if language not in self.languages():
            raise CampaignError(f"the campaign has no words in {language!r}")
        contents = {name: _in_language(content, language) for name, content in self.channels.items()}
        message = _in_language(self.message, language)
        return self.replace(language=language, message=message, channels=self.channels.replace(**contents))

    def resolved(self, period_end: datetime) -> Campaign:
        """Return the campaign with every date that follows from the end of its period (an aware datetime).

        Raise CampaignError if something in it is over by then.
        """
        variants = {
            name: variant.replace(channels=_channels_at(f"variants.{name}.", variant.channels, period_end))
            for name, variant in self.variants.items()
        }
        return self.replace(
            send=_at("send", self.send, period_end),
            push_expiry=_at("push_expiry.until", self.push_expiry, period_end),
            channels=_channels_at("", self.channels, period_end),
            variants=variants,
        )

    def expiries(self) -> Iterator[tuple[tuple[str, ...], TimeToLive]]:
        """Yield each time to live, with its path in the file."""
        if self.push_expiry:
            yield ("push_expiry",), self.push_expiry
        paths: list[tuple[str, ...]] = [(), *(("variants", name) for name in self.variants)]
        for path, part in zip(paths, self._with_variants(), strict=True):
            if part.channels.inbox and part.channels.inbox.keep:
                yield (*path, "channels", "inbox", "keep"), part.channels.inbox.keep

    def check_not_over(self, period_end: datetime, now: datetime) -> None:
        """Raise an error if a day or moment that it lasts until is past.

        That is CampaignError if the file names the day, and LateError if the day follows from the period: then the
        campaign is right, and the launch too late. A once-off is not looked at here: the gate *send* is there for it.
        """
        if isinstance(self.send, Recurring | Triggered):
            _check_end(("send", "end"), self.send.ends_at(), now, CampaignError)
        for path, expiry in self.expiries():
            kind = CampaignError if expiry.until and expiry.until.date else LateError
            _check_end((*path, "until"), expiry.resolved(period_end).ends_at(), now, kind)


def _check_end(path: tuple[str, ...], end: datetime | None, now: datetime, kind: type[SendoffError]) -> None:
    if end and end < now:
        found, allowed = (f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" for moment in (end, now))
        where = ".".join(path)
        raise kind(f"{where}: found an end at {found}; allowed: one after {allowed}, for it is over by now")


def _with_parts(message: Message | None, parts: Mapping[str, Any]) -> Message:
    """Return a message with parts of it replaced; another title or text has no translations but its own."""
    untranslated: dict[str, Any] = {"translations": {}} if "title" in parts or "text" in parts else {}
    return (message or Message()).replace(**untranslated | dict(parts))


def _in_language(content: Any, language: str) -> Any:
    if not getattr(content, "translations", None):
        return content
    translation = content.translations.get(language)
    words = translation.model_dump(exclude_none=True) if translation else {}
    return content.replace(**words, translations={})


def _channels_at(path: str, channels: Channels, period_end: datetime) -> Channels:
    inbox = channels.inbox
    if not inbox or not inbox.keep:
        return channels
    keep = _at(f"{path}channels.inbox.keep.until", inbox.keep, period_end)
    return channels.replace(inbox=inbox.replace(keep=keep))


def _at(path: str, timed: Any, period_end: datetime) -> Any:
    try:
        return timed and timed.resolved(period_end)
    except ValueError as error:
        raise CampaignError(f"{path}: {error}") from None
