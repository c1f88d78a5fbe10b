"""The figures of one launch: everything that a report shows, and nothing that names a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any, Self

from sendoff.states import LaunchState, Verdict

RELIABLE_PLATFORMS = frozenset({"chrome", "firefox", "opera", "email", "sms", "inbox", "webhook"})
"""Platforms whose deliveries are reported; not so Android push, iOS push and Safari (service.md, section 6)."""

UNREAD, PLATFORM, NO_PLATFORM = "post-back not understood", "unreliable platform", "unknown platform"
WHY_UNKNOWABLE: Mapping[str, str] = {
    "sent again": "what is sent again and again may still come",
    "not sent yet": "the service was still to send at that time",
    "not named": "no post-back carries what the audience query names people by",
    "not asked for": "post-backs of deliveries were not asked for",
    UNREAD: "a post-back of the same request was unreadable or forged, and may have been the delivery",
    PLATFORM: "deliveries by Android push, iOS push and Safari are not reported reliably",
    NO_PLATFORM: "the audience query names no platform for them",
}
"""Why silence proves nothing. Each of the first four holds for everybody whom a launch was sent to."""

ANOMALIES = ("unexpected", "forged", "late", "duplicate", "unreadable")
"""Post-backs that decide no verdict: counted, never dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStats:
    """Count one launch, from the rows of the query to one verdict for each identifier.

    These sums hold wherever the ledger is sound, and a report says aloud where one of the first two does not:

    .. code-block:: text

        rows .................. audience and all of dropped
        audience .............. all of verdicts
        verdicts[not_sent] .... all of not_sent_because
        verdicts[unknowable] .. all of unknowable_because
        a verdict ............. that of all variants, and for not_sent who is held out
        what is written out ... as many rows of each verdict: sendoff.report.export

    No sum holds of ``by_platform``, which is empty where the query gave none: an identifier that came with two
    platforms is counted under both, one that came with none under neither. ``by_variant`` is empty without variants.
    ``timeline`` counts the post-backs that were expected, ``post_backs`` all of them.

    Where the service chose the people there are no rows, nobody knows how many there are, and ``audience`` counts
    those who were heard of.
    """

    launch_key: str
    campaign: str
    period: str  # the logical period, as Airflow writes it
    as_of: datetime  # when the ledger was read
    rows: int  # rows that the audience query gave
    dropped: Mapping[str, int]  # rows left out, by reason
    audience: int  # identifiers that were left; those heard of, where the service chose the people
    segments: int
    dispatches: Mapping[str, int]  # by state
    verdicts: Mapping[str, int]  # identifiers by verdict
    by_platform: Mapping[str, Mapping[str, int]]  # platform, then verdict
    anomalies: Mapping[str, int]  # post-backs by anomaly
    post_backs: Mapping[str, int]  # post-backs by kind
    timeline: Sequence[tuple[datetime, int, int]]  # minute, deliveries, opens
    # What reports of before do not hold has a default.
    state: str = LaunchState.RELEASED  # of the launch: held, released, paused, rejected or stopped
    is_chosen_by_service: bool = False  # the people; then nobody is counted who was not heard of
    is_recurring: bool = False  # again and again, or whenever something happens
    not_sent_because: Mapping[str, int] = field(default_factory=dict)  # reason, then identifiers
    by_variant: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # variant, then verdict
    unknowable_because: Mapping[str, int] = field(default_factory=dict)  # reason, then identifiers
    unmeasured: Sequence[str] = ()  # kinds of post-backs of which nobody's can be known: delivery, open

    def __post_init__(self) -> None:
        for moment in (self.as_of, *(minute for minute, _, _ in self.timeline)):
            if moment.tzinfo is None:
                raise ValueError("a report's times carry a time zone")

    @property
    def known_verdicts(self) -> list[Verdict]:
        """Return the verdicts that are counted: all, or those of recipients who answered if the service chose them."""
        return [verdict for verdict in Verdict if verdict.is_observed or not self.is_chosen_by_service]

    @property
    def unaccounted_rows(self) -> int:
        """Rows that were neither kept nor dropped: anything but 0 is a defect."""
        if self.is_chosen_by_service:
            return self.rows
        return self.rows - self.audience - sum(self.dropped.values())

    @property
    def unaccounted_identifiers(self) -> int:
        """Identifiers without a verdict: anything but 0 is a defect."""
        return self.audience - sum(self.verdicts.values())

    @property
    def reached(self) -> tuple[int, int | None]:
        """How many the launch reached: at least, as post-backs prove, and at most, if every doubt is a reach.

        At most is None where the service chose the people: it is not known.
        """
        at_least = sum(self.verdicts.get(verdict, 0) for verdict in Verdict if verdict.is_observed)
        if self.is_chosen_by_service:
            return at_least, None
        return at_least, at_least + sum(
            self.verdicts.get(verdict, 0) for verdict in (Verdict.UNKNOWABLE, Verdict.IN_DOUBT)
        )

    def to_json(self) -> dict[str, Any]:
        """Give the figures as JSON values; ``from_json`` undoes it."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return values | {
            "timeline": [[minute.isoformat(), *counts] for minute, *counts in self.timeline],
            "unmeasured": list(self.unmeasured),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave, now or before this version; other members are passed over.

        A missing one without a default is a KeyError.
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
                    (datetime.fromisoformat(minute), deliveries, opens)
                    for minute, deliveries, opens in known["timeline"]
                ),
            }
        )


def share(count: int, whole: int) -> str:
    """Give a percentage as text, which says 0 or 100 only where nobody or everybody is meant."""
    if not whole:
        return "-"
    shown = f"{100 * count / whole:.1f} %"
    if count and shown == "0.0 %":
        return "<0.1 %"
    return ">99.9 %" if shown == "100.0 %" and count < whole else shown


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.isoformat() if isinstance(value, datetime) else value


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, singular or plural: ``1 person``, ``2,000 people``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
