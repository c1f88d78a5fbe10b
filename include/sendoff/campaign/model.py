"""The campaign: what is sent, to whom and when, and the DAG that sends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from sendoff.campaign.audience_rules import AudienceRules, Percent
from sendoff.campaign.content import Channel, Channels, Message
from sendoff.campaign.cron import PRESETS, checked_cron
from sendoff.campaign.field_types import (
    FROZEN,
    QUERY_ZONE,
    AssetName,
    ConnectionName,
    Day,
    Int32,
    Language,
    Text,
    TimeZone,
    Value,
)
from sendoff.campaign.gates import Approval, Duration, Gates, Waiting
from sendoff.campaign.schedule import Keeping, Now, Once, Recurring, Schedule, Triggered
from sendoff.campaign.tags import names_in
from sendoff.campaign.targeting import ByQuery, Target
from sendoff.campaign.validation import broken_rules
from sendoff.errors import CampaignError, LateError, SendoffError
from sendoff.period import Period


def _cron(schedule: str, info: ValidationInfo) -> str:
    return schedule if info.context == FROZEN else checked_cron(schedule)


@dataclass(frozen=True, slots=True)
class Edition:
    """What tells the people of one request from those of another, where a campaign is not the same for all.

    ``language`` where languages are sent apart, ``variant`` where there are variants, ``time_zone`` where each zone has
    a moment of its own; else None.
    """

    language: str | None = None
    variant: str | None = None
    time_zone: str | None = None


class Template(Value):
    """A live campaign of the service that is executed, with its own content, for each segment (section 4.3)."""

    id: Int32 = Field(description="Id of the live campaign")
    channels: Annotated[tuple[Channel, ...], Field(min_length=1, description="What the template uses")]
    parameters: Mapping[str, str] = Field(
        default={}, repr=False, description="Values for its variables, the same for everybody"
    )
    columns: tuple[Text, ...] = Field(
        (), description="Columns of the query that hold each person's own values for its variables"
    )


class Variant(Value):
    """One side of a comparison: a share of the audience, and what these people get instead."""

    percent: Percent = Field(
        description="Share of those who are sent to, in percent; all of them add up to 100"
    )
    message: Message | None = Field(
        None, description="What replaces parts of message; what is not given here stays"
    )
    channels: Channels = Field(
        Channels(), description="Channels of the campaign that are replaced, each as a whole"
    )
    template: Template | None = Field(None, description="What is executed instead of template")


class PostBacks(Value):
    """What the service is asked to report (section 6)."""

    kinds: tuple[Literal["delivery", "open"], ...] = Field(
        ("delivery", "open"), description="What is reported; without delivery nobody is told missing"
    )


class Campaign(Value):
    """One campaign: content, people and time, in words of the field; and the DAG that sends it.

    A value: a launch freezes it as JSON in the ledger and sends what it froze.
    """

    title: Annotated[
        Text, Field(max_length=200, description="Name of the campaign in the service; nobody receives it")
    ]
    language: Language | None = Field(None, description="Language of the words that are no translation")
    message: Message | None = Field(None, description="What push, web push and inbox messages share")
    channels: Channels = Field(
        Channels(), description="The channels that are used: one or more, but none beside template"
    )
    template: Template | None = Field(
        None, description="Execute this instead of creating a campaign with content"
    )
    targeting: Target = Field(ByQuery(), description="Who is sent to")
    send: Schedule = Field(Now(), description="When the service sends what the DAG hands over")
    push_expiry: Keeping | None = Field(
        None, description="How long delivery of a push is retried; default 4 weeks"
    )
    encryption: Text | None = Field(
        None, description="Sent as given; the service's document does not show what its values mean"
    )
    post_backs: PostBacks = Field(PostBacks(), description="What the service is asked to report")

    audience: AudienceRules = Field(
        AudienceRules(), description="How the query's people are read, and who of them is left out"
    )
    variants: Mapping[Text, Variant] = Field(
        default={}, description="Sides of a comparison, by name: people are shared out among them by chance"
    )
    gates: Gates = Field(Gates(), description="What must hold before the first request")
    on_doubt: Literal["hold", "resend"] = Field(
        "hold",
        description="What becomes of a request in doubt: held until evidence or a person settles it, or sent again at "
        "once, at most once, where twice is better than never",
    )
    approval: Approval = Field(Approval(), description="Whether a person must agree before the first request")
    report: Waiting = Field(Waiting(), description="When the report is made")

    connection: ConnectionName = Field(
        "sendoff_default", description="Airflow connection of the messaging service"
    )
    warehouse: ConnectionName = Field(
        "sendoff_warehouse", description="Airflow connection that the audience query runs on"
    )
    schedule: Annotated[str, AfterValidator(_cron)] | None = Field(
        None,
        description=f"When the DAG runs: cron of five fields, or one of {', '.join(PRESETS)}; default by hand",
        examples=["0 9 * * 1"],
    )
    schedule_time_zone: TimeZone = Field("UTC", description="IANA time zone of schedule and start")
    after: tuple[AssetName, ...] = Field(
        (), description="Names of Airflow's assets that start the DAG once all of them were renewed"
    )
    start: Day | None = Field(None, description="First day of the DAG; its first period begins then or later")
    owner: Annotated[Text, Field(max_length=500)] = Field(
        "sendoff", description="Owner of the DAG in Airflow"
    )
    tags: tuple[Annotated[Text, Field(max_length=100)], ...] = Field(
        (), description="Tags of the DAG in Airflow, beside sendoff"
    )
    segment_size: Annotated[
        int, Field(ge=1, le=1_000_000, strict=True, description="Most people in one request")
    ] = 10_000
    parallelism: Annotated[
        int, Field(ge=1, le=256, strict=True, description="Tasks that send at the same time")
    ] = 4
    pool: Annotated[Text, Field(max_length=256)] | None = Field(
        None, description="Airflow pool of the tasks that send"
    )
    retries: Annotated[
        int, Field(ge=0, le=100, strict=True, description="How often a task of the DAG is tried again")
    ] = 8
    alert_after: Duration | None = Field(
        None, description="How long a run may take before the deployment is alerted; default never"
    )

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        if info.context == FROZEN:
            return self
        broken = [(rule.path, rule.text) for rule in broken_rules(self)]
        if broken:
            text = "; ".join(f"{'.'.join(path)}: {text}" for path, text in broken)
            raise PydanticCustomError("campaign_rules", "{text}", {"text": text, "broken": broken})
        return self

    @classmethod
    def frozen(cls, definition: str) -> Self:
        """Give the campaign that a launch froze, as it is: the rules of a file are not asked of it again.

        Its dates follow from its period, and a rule may be younger than the launch. Raises CampaignError where another
        version of Sendoff wrote what this one cannot read.
        """
        try:
            return cls.model_validate_json(definition, context=FROZEN)
        except ValidationError as error:
            places = {".".join(map(str, each["loc"])) or "all of it" for each in error.errors()}
            raise CampaignError(
                "this launch was frozen by another version of Sendoff, and this one cannot read of its definition: "
                f"{', '.join(sorted(places))}; use the version that froze it, or a newer one"
            ) from None

    @property
    def way(self) -> Literal["create", "execute"]:
        """Say how a launch sends: a campaign for each segment, or an execution of the template."""
        return "execute" if self.template else "create"

    def used(self) -> tuple[Channel, ...]:
        """Give the channels that reach people: its own, or the template's."""
        return self.template.channels if self.template else self.channels.used()

    def words(self, channel: Channel) -> Message:
        """Give what a push-like channel says: its own words where it has any, and what all share elsewhere.

        A channel with a title or text of its own takes no translations from what is shared.
        """
        return _with_parts(self.message, self.channels.own_words(channel))

    def languages(self) -> tuple[Language, ...]:
        """Give the campaign's language and those of its translations, sorted behind it; () where it names none."""
        found = {code for _, content in self.translated() for code in content.translations}
        return (self.language, *sorted(found - {self.language})) if self.language else ()

    def translated(self) -> list[tuple[tuple[str, ...], Any]]:
        """Give each content that can be translated, with its path in the file."""
        places: list[tuple[tuple[str, ...], Any]] = [(("message",), self.message)]
        places += [
            (("channels", channel.value), getattr(self.channels, channel))
            for channel in self.channels.used()
            if hasattr(getattr(self.channels, channel), "translations")
        ]
        return [(path, content) for path, content in places if content is not None]

    def languages_apart(self) -> tuple[Language, ...]:
        """Give the languages that need a request of their own, the campaign's own first.

        The service chooses between the languages of push and inbox messages by itself, and then there are none. It
        does not for emails and text messages (sections 2.6, 2.8): those must be sent apart, each as :meth:`edition`.
        """
        apart = any(content and content.translations for content in (self.channels.email, self.channels.sms))
        return self.languages() if apart else ()

    def filled_in(self) -> tuple[str, ...]:
        """Return the names of the tags in its words and those of its variants, sorted; a template keeps its own."""
        written: list[Any] = [self.message, self.channels]
        written += [part for each in self.variants.values() for part in (each.message, each.channels)]
        return tuple(
            sorted({name for part in written if part for name in names_in(part.model_dump(mode="json"))})
        )

    @property
    def default_zone(self) -> str | None:
        """The time zone of people whose column ``time_zone`` names none, where zones are sent apart."""
        if isinstance(self.send, Once) and self.send.default_time_zone:
            return self.send.default_time_zone
        return self.gates.window.default_time_zone if self.gates.window else None

    @property
    def life(self) -> Period | None:
        """The period of a campaign that the service repeats and that is created once; None: each run has its own."""
        if not isinstance(self.send, Recurring | Triggered):
            return None
        return Period.of_campaign(self.send.start)

    @property
    def is_one_edition(self) -> bool:
        """Say whether all people get the same at the same moment, so that one request can say it."""
        is_by_zone = isinstance(self.send, Once) and self.send.time_zone == QUERY_ZONE
        return not (self.languages_apart() or self.variants or is_by_zone)

    def edition(self, edition: Edition, period_end: datetime) -> Campaign:
        """Give the campaign as the people of one edition get it: one variant, one language, one time zone."""
        made = self.as_variant(edition.variant) if edition.variant else self
        if edition.language:
            made = made._in_language(edition.language)
        if edition.time_zone and isinstance(made.send, Once) and made.send.time_zone == QUERY_ZONE:
            try:
                send = made.send.in_zone(edition.time_zone, period_end)
            except ValueError as error:
                raise CampaignError(f"send: {error}") from None
            made = made.model_copy(update={"send": send})
        return made

    def as_variant(self, name: str) -> Campaign:
        """Give the campaign as the people of one variant get it: without variants."""
        try:
            variant = self.variants[name]
        except KeyError:
            raise CampaignError(f"the campaign has no variant {name!r}") from None
        said = {part: own for part in Message.model_fields if (own := getattr(variant.message, part, None))}
        replaced = {channel.value: getattr(variant.channels, channel) for channel in variant.channels.used()}
        return self.model_copy(
            update={
                "message": _with_parts(self.message, said) if said else self.message,
                "channels": self.channels.model_copy(update=replaced),
                "template": variant.template or self.template,
                "variants": {},
            }
        )

    def _in_language(self, language: Language) -> Campaign:
        if language not in self.languages():
            raise CampaignError(f"the campaign has no words in {language!r}")
        channels = {
            channel.value: _in_language(getattr(self.channels, channel), language)
            for channel in self.channels.used()
        }
        return self.model_copy(
            update={
                "language": language,
                "message": _in_language(self.message, language),
                "channels": self.channels.model_copy(update=channels),
            }
        )

    def resolved(self, period_end: datetime) -> Campaign:
        """Give the campaign with every date that follows from the end of its period (an aware datetime).

        Raises CampaignError where what it says is over by then.
        """
        return self.model_copy(
            update={
                "send": _at("send", self.send, period_end),
                "push_expiry": _at("push_expiry.until", self.push_expiry, period_end),
                "channels": _channels_at("channels", self.channels, period_end),
                "variants": {
                    name: variant.model_copy(
                        update={
                            "channels": _channels_at(
                                f"variants.{name}.channels", variant.channels, period_end
                            )
                        }
                    )
                    for name, variant in self.variants.items()
                },
            }
        )

    def keepings(self) -> Iterator[tuple[tuple[str, ...], Keeping]]:
        """Yield all that it says of how long something lasts, with its path in the file."""
        if self.push_expiry:
            yield ("push_expiry",), self.push_expiry
        all_channels: list[tuple[tuple[str, ...], Channels]] = [((), self.channels)]
        all_channels += [(("variants", name), variant.channels) for name, variant in self.variants.items()]
        for path, channels in all_channels:
            if channels.inbox and channels.inbox.keep:
                yield (*path, "channels", "inbox", "keep"), channels.inbox.keep

    def check_not_over(self, period_end: datetime, now: datetime) -> None:
        """Raise an error if a day or moment that it lasts until is past.

        That is CampaignError if the file names the day, and LateError if the day follows from the period: then the
        campaign is right, and the launch too late. A once-off is not looked at here: the gate *send* is there for it.
        """
        if isinstance(self.send, Recurring | Triggered):
            _check_end(("send", "end"), self.send.ends_at(), now, CampaignError)
        for path, keeping in self.keepings():
            kind = CampaignError if keeping.until and keeping.until.date else LateError
            _check_end((*path, "until"), keeping.resolved(period_end).ends_at(), now, kind)


def _check_end(path: tuple[str, ...], end: datetime | None, now: datetime, kind: type[SendoffError]) -> None:
    if end and end < now:
        found, seen = (f"{each.astimezone(UTC):%Y-%m-%d %H:%M} UTC" for each in (end, now))
        raise kind(
            f"{'.'.join(path)}: found an end at {found}; allowed: one after {seen}, for it is over by now"
        )


def _with_parts(message: Message | None, parts: Mapping[str, Any]) -> Message:
    """Give a message with parts of it replaced; another title or text has no translations but its own."""
    untranslated: dict[str, Any] = {"translations": {}} if "title" in parts or "text" in parts else {}
    return (message or Message()).model_copy(update={**untranslated, **parts})


def _in_language(content: Any, language: str) -> Any:
    if not getattr(content, "translations", None):
        return content
    translation = content.translations.get(language)
    words = translation.model_dump(exclude_none=True) if translation else {}
    return content.model_copy(update={**words, "translations": {}})


def _channels_at(path: str, channels: Channels, period_end: datetime) -> Channels:
    inbox = channels.inbox
    if not inbox or not inbox.keep:
        return channels
    keep = _at(f"{path}.inbox.keep.until", inbox.keep, period_end)
    return channels.model_copy(update={"inbox": inbox.model_copy(update={"keep": keep})})


def _at(path: str, timed: Any, period_end: datetime) -> Any:
    try:
        return timed and timed.resolved(period_end)
    except ValueError as error:
        raise CampaignError(f"{path}: {error}") from None
