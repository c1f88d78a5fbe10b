"""The figures of one launch: all the numbers of a report, and nothing that identifies a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime, time, timedelta
from typing import Any, NamedTuple, Self

from sendoff.states import LaunchState, PostBackKind, Verdict


class TimelinePoint(NamedTuple):
    """The post-backs of a launch that were received in one minute, or in another step of time."""

    at: datetime
    deliveries: int
    opens: int


RELIABLE_PLATFORMS = frozenset({"chrome", "firefox", "opera", "email", "sms", "inbox", "webhook"})
"""Platforms with reliable delivery reports, unlike Android push, iOS push and Safari (service.md, section 6)."""

UNREAD, PLATFORM, NO_PLATFORM = "post-back not understood", "unreliable platform", "unknown platform"
WHY_UNKNOWABLE: Mapping[str, str] = {
    "sent again": "the service sends this campaign repeatedly, so a delivery may still come",
    "not sent yet": "the service had not sent the messages by then",
    "not named": "post-backs do not contain the identifier that the audience query uses",
    "not asked for": "the campaign did not request post-backs of deliveries",
    UNREAD: "a post-back of the same request was unreadable, or named another campaign (sent twice, or forged), and "
    "may have been the delivery",
    PLATFORM: "deliveries by Android push, iOS push and Safari are not reported reliably",
    NO_PLATFORM: "the audience query returned no platform for them",
}
"""Why silence proves nothing. Each of the first four reasons applies to all recipients of a launch."""

WHY_OWN_UNKNOWABLE: Mapping[str, str] = {
    **WHY_UNKNOWABLE,
    "not named": "post-backs do not contain the identifier that the request uses",
    "not asked for": "the request names another address for post-backs of deliveries",
    NO_PLATFORM: "a request of your own names no platforms, and deliveries on some are not reported reliably",
}
"""The same for a request that someone wrote, instead of a campaign."""

OPENED_SINCE, DELIVERED_SINCE = "opened since", "delivered since"
"""Reasons for *not sent*: a request left out the recipient because of their verdict in an earlier launch."""

ERASED_SINCE = "erased since"
"""Reason for members of a frozen audience who get no message: they were erased later."""

CONTROL_GROUP = "control group"
"""The name of the people who get no message, also as a side of a comparison."""

_REASONS: Mapping[str, str] = {
    "held out": CONTROL_GROUP,
    "holdout": CONTROL_GROUP,
    "suppressed": "on the suppression list",
    "already_sent": "already sent",
    "size_limit": "size limit",
    "cap": "over the cap on messages",
    "null": "without an identifier",
    OPENED_SINCE: "opened an earlier message since",
    DELIVERED_SINCE: "got an earlier message since",
    ERASED_SINCE: "erased: they asked to be forgotten",
    "forged": "of another campaign",
}

SPOKEN_REASONS = frozenset((*_REASONS, *_REASONS.values()))
"""The reasons and anomalies that reports have other words for, and these words."""

_SHOWN_BY = {Verdict.ENGAGED: PostBackKind.OPEN, Verdict.DELIVERED: PostBackKind.DELIVERY}

ANOMALIES = ("unexpected", "forged", "late", "duplicate", "unreadable")
"""Kinds of post-backs that decide no verdict. They are counted, never dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStats:
    """The counts of one launch, from the rows of the query to one verdict for each identifier.

    These sums add up unless the ledger is damaged. A report shows a warning if one of the first two does not:

    .. code-block:: text

        rows .................. audience + sum of dropped
        audience .............. sum of verdicts + erased
        verdicts[not_sent] .... sum of not_sent_because
        verdicts[unknowable] .. sum of unknowable_because
        each verdict .......... sum over by_variant and of rest; not_sent also counts the holdout
        export of verdicts .... as many rows for each verdict (sendoff.report.export)

    ``by_platform`` does not add up: an identifier with two platforms counts under both, and one without a platform
    under neither. It is empty if the query has no platforms. ``by_variant`` is empty without variants. With ``decide``,
    it counts the test share, and ``rest`` counts the others. ``by_arm`` is empty unless recipients got the message at
    their own hours, and leaves out those without a known hour. ``timeline`` counts expected post-backs only,
    ``post_backs`` all of them.

    If the service chose the recipients, there are no rows and their number is unknown. ``audience`` then counts the
    recipients that a post-back named.
    """

    launch_key: str
    campaign: str
    period: str  # the logical period, in Airflow's notation
    as_of: datetime  # when the ledger was read
    rows: int  # rows that the audience query returned
    dropped: Mapping[str, int]  # dropped rows, by reason
    audience: int  # identifiers kept; or those that a post-back named, if the service chose the recipients
    segments: int
    dispatches: Mapping[str, int]  # by state
    verdicts: Mapping[str, int]  # identifiers by verdict
    by_platform: Mapping[str, Mapping[str, int]]  # platform, then verdict
    anomalies: Mapping[str, int]  # post-backs by anomaly
    post_backs: Mapping[str, int]  # post-backs by kind
    timeline: Sequence[TimelinePoint]  # by minute
    # Fields that older reports lack have a default.
    state: str = LaunchState.RELEASED  # of the launch: held, released, paused, rejected or stopped
    is_chosen_by_service: bool = False  # whether the service chose the recipients
    is_own_request: bool = False  # whether someone wrote the request, instead of a campaign
    is_recurring: bool = False  # whether the service sends repeatedly, or on an event
    not_sent_because: Mapping[str, int] = field(default_factory=dict)  # reason, then identifiers
    by_variant: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # variant, then verdict
    # Verdicts of those who wait for the winner, or got it.
    rest: Mapping[str, int] = field(default_factory=dict)
    winner: str | None = None  # the variant that the rest gets, once it is decided
    suspects: int = 0  # of the engaged identifiers: a machine probably made all of their opens
    suspects_by_variant: Mapping[str, int] = field(default_factory=dict)
    by_arm: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # arm of own hours, then verdict
    suspects_by_arm: Mapping[str, int] = field(default_factory=dict)
    unknowable_because: Mapping[str, int] = field(default_factory=dict)  # reason, then identifiers
    erased: int = 0  # identifiers of the audience that were erased since; they have no verdict any more
    unmeasured: Sequence[str] = ()  # kinds of post-backs that cannot be measured: delivery, open
    identified_by: str | None = None  # the query's identifier column
    # Of the planned and refused dispatches, by state: an earlier attempt is in doubt, or a post-back came.
    doubted: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for moment in (self.as_of, *(at for at, _, _ in self.timeline)):
            if moment.tzinfo is None:
                raise ValueError("a report's times need a time zone")

    @property
    def noun(self) -> tuple[str, str]:
        """The noun for its recipients, singular and plural."""
        return noun_of(self.identified_by)

    @property
    def known_verdicts(self) -> list[Verdict]:
        """Return the verdicts that are counted: all, or only observed ones if the service chose the recipients."""
        return [verdict for verdict in Verdict if verdict.is_observed or not self.is_chosen_by_service]

    def is_measured(self, verdict: Verdict) -> bool:
        """Check whether post-backs can show a verdict. If they cannot, its number is not a count."""
        return _SHOWN_BY.get(verdict) not in self.unmeasured

    @property
    def unaccounted_rows(self) -> int:
        """Rows that were neither kept nor dropped: anything but 0 is a defect."""
        if self.is_chosen_by_service:
            return self.rows
        return self.rows - self.audience - sum(self.dropped.values())

    @property
    def unaccounted_identifiers(self) -> int:
        """Identifiers without a verdict: anything but 0 is a defect."""
        return self.audience - sum(self.verdicts.values()) - self.erased

    @property
    def control_group(self) -> int:
        """The number of recipients who get no message, so that the others can be compared with them."""
        return sum(self.not_sent_because.get(reason, 0) for reason in ("holdout", "held out"))

    @property
    def reached(self) -> tuple[int, int | None]:
        """The minimum and maximum number of recipients reached.

        Post-backs prove the minimum. The maximum also counts unknowable recipients and those in doubt. It is None if
        the service chose the recipients.
        """
        at_least = sum(self.verdicts.get(verdict, 0) for verdict in Verdict if verdict.is_observed)
        if self.is_chosen_by_service:
            return at_least, None
        return at_least, at_least + sum(
            self.verdicts.get(verdict, 0) for verdict in (Verdict.UNKNOWABLE, Verdict.IN_DOUBT)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values, which ``from_json`` reads."""
        return {field.name: json_value(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read figures that this version or an older one wrote with ``to_json``, and ignore unknown members.

        Raise KeyError if a member without a default is missing.
        """
        known = {
            field.name: values[field.name]
            for field in fields(cls)
            if field.name in values or (field.default is MISSING and field.default_factory is MISSING)
        }
        return cls(
            **known
            | {
                "as_of": datetime.fromisoformat(known["as_of"]),
                "unmeasured": tuple(known.get("unmeasured", ())),
                "timeline": tuple(
                    TimelinePoint(datetime.fromisoformat(minute), deliveries, opens)
                    for minute, deliveries, opens in known["timeline"]
                ),
            }
        )


def share(count: int, whole: int) -> str:
    """Return a percentage as text; it is 0 or 100 only if it is exactly that."""
    if not whole:
        return "-"
    shown = f"{100 * count / whole:.1f} %"
    if count and shown == "0.0 %":
        return "<0.1 %"
    return ">99.9 %" if shown == "100.0 %" and count < whole else shown


def json_value(value: Any) -> Any:
    """Return a value in JSON's types: a time in ISO format, and a tuple as a list."""
    if isinstance(value, Mapping):
        return {key: json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    return value.isoformat() if isinstance(value, datetime) else value


def duration(seconds: float) -> str:
    """Return a duration in words with its two largest units, such as ``15 h 49 min``."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds >= 0.1 else "0.1 s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "days" if days > 1 else "day"), (hour, "h"), (minute, "min"), (second, "s")]
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2])


def in_words(moment: datetime) -> str:
    """Return a time in UTC for everybody, such as ``9 Nov 2026 09:00 UTC``."""
    at = moment.astimezone(UTC)
    return f"{_date(at)} {at:%H:%M} UTC"


def span_in_words(start: datetime, end: datetime) -> str:
    """Return a span of time in UTC in the shortest form: whole days as their dates, and a moment once."""
    first, last = start.astimezone(UTC), end.astimezone(UTC)
    if first.time() == last.time() == time():
        last = max(first, last - timedelta(days=1))
        return _date(first) if first == last else f"{_date(first)} to {_date(last)}"
    moments = dict.fromkeys(map(in_words, (first, last)))
    return " to ".join(moments)


def _date(moment: datetime) -> str:
    return f"{moment.day} {moment:%b %Y}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, singular or plural: ``1 person``, ``2,000 people``."""
    return f"{count:,} {noun_for(count, noun, plural)}"


def noun_for(count: int, noun: str, plural: str | None = None) -> str:
    """Return a noun alone, singular or plural, for a number that stands elsewhere."""
    return noun if count == 1 else plural or f"{noun}s"


def rows_for(count: int, *, is_own_request: bool) -> str:
    """Return what the rows of a launch are, for a number that stands elsewhere."""
    one, of = ("identifier", "in the request") if is_own_request else ("row", "read")
    return f"{noun_for(count, one)} {of}"


def people_of(count: int | None) -> str:
    """Return a number of people in words; None: the service chooses them."""
    return "people chosen by the service" if count is None else counted(count, "person", "people")


def counts_in_words(counts: Mapping[str, int]) -> str:
    """Return the counts that are not zero with what they count, such as ``1,234 not sent, 5 engaged``."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence, such as ``a, b and c``. There must be one."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def noun_of(identified_by: str | None) -> tuple[str, str]:
    """Return the noun for the recipients of a launch, singular and plural, by the column that identifies them.

    A person with two devices is two recipients if the audience query returns devices.
    """
    return ("device", "devices") if (identified_by or "").startswith("device_") else ("person", "people")


def spoken_reason(reason: str) -> str:
    """Return the reason for a verdict, or an anomaly, in words. Reports in the ledger keep *held out* and *forged*."""
    return _REASONS.get(reason, reason)
