"""Who of a query's people is not sent to, and why: the rules of a campaign's audience, one after the other.

.. code-block:: text

    exclude ....... people of queries, files, lists and other campaigns, in the order of the file
    priority ...... whom a better campaign of the same day is sent to
    cap ........... who would get too many messages in some days
    size_limit .... all but so many, in one run
    holdout ....... a share by chance, which stays part of the audience

What cannot be compared leaves nobody out, and is told instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa

from sendoff import warehouse
from sendoff.audience import (
    GROUP_COLUMNS,
    Audience,
    below,
    build_audience,
    read_people,
    smallest,
    those_among,
)
from sendoff.audience.identifiers import Identifiers, empty, union
from sendoff.campaign import (
    AudienceRules,
    Campaign,
    CampaignExclusion,
    CampaignFolder,
    Cap,
    Exclusion,
    FileExclusion,
    Holdout,
    ListExclusion,
    Priority,
    QueryExclusion,
    counted_as,
)
from sendoff.errors import AudienceError, NotFoundError, QueryError
from sendoff.ledger import Launch, Ledger
from sendoff.warehouse import Parameter

Warehouses = Callable[[str], warehouse.Source]
"""Gives what a warehouse's queries run on, such as a SQLAlchemy URL, by the name of its connection."""

Rule = Exclusion | Priority | Cap

_log = logging.getLogger(__name__)

_LONGEST_DAYS = 36_500  # more than any ledger holds
_ALIVE = ("held", "released", "paused")
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Kept:
    """What the rules leave of an audience.

    ``audience``: less everybody who was left out, but with the holdout. ``sent_to``: less the holdout too.
    ``left_out``: everybody whom the query named and who is not sent to, by reason, each under one. ``not_compared``:
    sentences on what could have left somebody out and could not be compared.
    """

    audience: Audience
    sent_to: Audience
    left_out: Mapping[str, Identifiers]
    not_compared: tuple[str, ...]


def read_excluded(
    folder: CampaignFolder,
    audience: Audience,
    *,
    parameters: Mapping[str, Parameter],
    warehouses: Warehouses,
) -> dict[Rule, Identifiers]:
    """Give the people of the exclusions that no ledger is needed for: those of queries and of files.

    Raises QueryError, and AudienceError where these people are not named as those of the audience are; both say of
    which exclusion.
    """
    found: dict[Rule, Identifiers] = {}
    for exclusion in folder.campaign.audience.exclude:
        if isinstance(exclusion, QueryExclusion):
            source = warehouses(exclusion.warehouse or folder.campaign.warehouse)
            sql = folder.exclusion_sql[exclusion.file]
            found[exclusion] = _people_of(
                source, sql, f"campaign {folder.name}: {exclusion.file}", parameters, audience
            )
        elif isinstance(exclusion, FileExclusion):
            file = folder.path / exclusion.file
            found[exclusion] = read_people(file, audience.identified_by, audience.identifiers.kind)
    return found


def apply_rules(
    folder: CampaignFolder,
    audience: Audience,
    *,
    excluded: Mapping[Rule, Identifiers],
    ledger: Ledger | None,
    sends_at: datetime,
    now: datetime,
    size_limit: int | None = None,
) -> Kept:
    """Hold an audience against its campaign's rules; the first that names somebody leaves them out.

    ``excluded``: what :func:`read_excluded` gave. ``sends_at``: the moment that days are counted from. ``now``: when
    other launches are sent that are to be sent at once and still wait. Without a ledger, the rules that need it are not
    applied. Raises AudienceError for a list that is not there or names people by another column.
    """
    rules = folder.campaign.audience
    sieve = _Sieve(audience.identifiers)
    notes: dict[str, None] = {}
    others = _Others(ledger, folder, audience, sends_at, now, notes) if ledger else None
    for rule, reason in _in_order(rules):
        if rule in excluded:
            sieve.leave_out(reason, excluded[rule])
        elif others is not None:
            sieve.leave_out(reason, others.named_by(rule, reason, sieve.left))
        else:
            notes[f"{reason} was not applied: there is no ledger to ask"] = None
    if size_limit is not None:
        sieve.leave_out("size_limit", _beyond(size_limit, sieve.left))
    audience = audience.less(sieve.left_out)
    if rules.holdout is None:
        return Kept(audience, audience, sieve.left_out, tuple(notes))
    held_out = {"holdout": _held_out(rules.holdout, folder.name, audience.identifiers)}
    return Kept(audience, audience.less(held_out), sieve.left_out | held_out, tuple(notes))


def _in_order(rules: AudienceRules) -> list[tuple[Rule, str]]:
    """Give the rules that a campaign has, each with its reason."""
    found: list[tuple[Rule, str]] = [(each, counted_as(each)) for each in rules.exclude]
    found += [(rules.priority, "priority")] if rules.priority else []
    found += [(rules.cap, "cap")] if rules.cap else []
    return found


def _beyond(size_limit: int, people: Identifiers) -> Identifiers:
    if size_limit < 1:
        raise AudienceError(f"size limit: found {size_limit}; allowed: 1 or more")
    return people - smallest(people, "size limit", size_limit)


def _held_out(holdout: Holdout, campaign: str, people: Identifiers) -> Identifiers:
    return below(people, f"holdout {holdout.salt or campaign}", holdout.percent)


class _Sieve:
    """People whom rule after rule takes some out of."""

    def __init__(self, people: Identifiers) -> None:
        self.left = people
        self.left_out: dict[str, Identifiers] = {}

    def leave_out(self, reason: str, people: Identifiers) -> None:
        gone = those_among(self.left, reason, people)
        self.left_out[reason] = self.left_out.get(reason, empty(gone.kind)) | gone
        if len(gone):
            self.left -= gone


class _Others:
    """What the ledger knows of other launches and of lists, as far as they concern one audience."""

    def __init__(
        self,
        ledger: Ledger,
        folder: CampaignFolder,
        audience: Audience,
        sends_at: datetime,
        now: datetime,
        notes: dict[str, None],
    ) -> None:
        self._ledger = ledger
        self._folder = folder
        self._audience = audience
        self._sends_at = sends_at
        self._now = now
        self._notes = notes
        self._sent: dict[str, Identifiers] = {}

    def named_by(self, rule: Rule, reason: str, people: Identifiers) -> Identifiers:
        """Give whom a rule leaves out of some people, and perhaps others."""
        match rule:
            case ListExclusion():
                return self._on_list(rule)
            case CampaignExclusion():
                return self._of_campaign(rule, reason)
            case Priority():
                return self._of_better_campaigns(rule)
            case Cap():
                return self._who_had_enough(rule, people)
        raise TypeError(f"{type(rule).__name__} needs no ledger")

    def _on_list(self, exclusion: ListExclusion) -> Identifiers:
        try:
            uploaded, people = self._ledger.lists.get(exclusion.name)
        except NotFoundError as error:
            raise AudienceError(f"campaign {self._folder.name}: {error}") from None
        _check_named_alike(f"list {uploaded.name}", uploaded.identified_by, people, self._audience)
        return people

    def _of_campaign(self, exclusion: CampaignExclusion, reason: str) -> Identifiers:
        connection = self._folder.campaign.connection
        if exclusion.name not in self._ledger.launches.campaigns(connection):
            _log.warning("%s: the ledger holds no launch of it on %s", reason, connection)
            self._notes[f"{reason} leaves out nobody: the ledger holds no launch of it on {connection}"] = (
                None
            )
        since = self._sends_at - _days(exclusion.days)
        launches = self._comparable(since, _NEVER, lambda each: each.campaign == exclusion.name, reason)
        return self._all_sent(launch for launch, _ in launches)

    def _of_better_campaigns(self, priority: Priority) -> Identifiers:
        today = self._sends_at.astimezone(UTC).date()
        start = datetime.combine(today, time(), UTC)
        launches = self._comparable(
            start - timedelta.resolution,
            start + timedelta(days=1),
            lambda each: self._goes_first(each, priority),
            "priority",
        )
        return self._all_sent(launch for launch, _ in launches)

    def _who_had_enough(self, cap: Cap, people: Identifiers) -> Identifiers:
        """Give those who would get too many messages in some stretch of days that this launch falls in."""
        length = _days(cap.days)
        launches = self._comparable(self._sends_at - length, self._sends_at + length, lambda _: True, "cap")
        later = {at for _, at in launches if at > self._sends_at}
        enough = empty(people.kind)
        for end in sorted({self._sends_at, *later}):
            within = (launch for launch, at in launches if end - length < at <= end)
            enough |= _in_at_least(cap.messages, map(self._of, within), people)
        return enough

    def _goes_first(self, launch: Launch, own: Priority) -> bool:
        if launch.campaign == self._folder.name:
            return False
        other = Campaign.frozen(launch.definition).audience.priority
        return other is not None and other.group == own.group and other.rank <= own.rank

    def _comparable(
        self, since: datetime, until: datetime, concerns: Callable[[Launch], bool], reason: str
    ) -> list[tuple[Launch, datetime]]:
        """Give the launches that a rule is about, with the moment by which each is sent, and note the others.

        They are sent after ``since`` and before ``until``.
        """
        found = []
        for launch, at in self._sending(since):
            if not _falls_between(launch, at, since, until) or not concerns(launch):
                continue
            if at is None:
                self._pass_over(reason, launch, "it is sent again and again, and nobody knows when to whom")
            elif launch.is_chosen_by_service:
                self._pass_over(reason, launch, "the service chooses its people")
            elif not self._is_named_alike(launch):
                self._pass_over(reason, launch, _named_otherwise(launch, self._audience))
            else:
                found.append((launch, at))
        return found

    def _sending(self, since: datetime) -> Iterator[tuple[Launch, datetime | None]]:
        """Yield the launches that are sent after a moment, with the moment by which each is; None: again and again.

        What is to be sent at once and waits, for approval, a pause, a window or a wave, is not sent before now.
        """
        launches, connection = self._ledger.launches, self._folder.campaign.connection
        unsent = launches.unsent(*_ALIVE, connection=connection, of=("planned", "in_flight"))
        waiting = {key: launch for key in unsent if _is_sent_at_once(launch := launches.get(key))}
        for launch in launches.sending(connection, since):
            if launch.launch_key not in waiting:
                yield launch, launch.sends_at
        for launch in waiting.values():
            yield launch, max(launch.sends_at or self._now, self._now)

    def _pass_over(self, reason: str, launch: Launch, why: str) -> None:
        _log.warning(
            "%s: launch %s of %s is not counted: %s", reason, launch.launch_key, launch.campaign, why
        )
        self._notes[f"{reason} does not count campaign {launch.campaign}: {why}"] = None

    def _is_named_alike(self, launch: Launch) -> bool:
        own = self._audience
        return launch.identified_by == own.identified_by and launch.kind == own.identifiers.kind

    def _all_sent(self, launches: Iterable[Launch]) -> Identifiers:
        return union(self._audience.identifiers.kind, map(self._of, launches))

    def _of(self, launch: Launch) -> Identifiers:
        """Give whom of the audience a launch is sent to."""
        key = launch.launch_key
        if key not in self._sent:
            self._sent[key] = self._ledger.launches.sent(key) & self._audience.identifiers
        return self._sent[key]


def _days(count: int) -> timedelta:
    return timedelta(days=min(count, _LONGEST_DAYS))


def _is_sent_at_once(launch: Launch) -> bool:
    return Campaign.frozen(launch.definition).send.kind == "now"


def _falls_between(launch: Launch, at: datetime | None, since: datetime, until: datetime) -> bool:
    """Say whether a launch is sent between two moments; again and again, unless its last day was before them."""
    if at is not None:
        return since < at < until
    end = getattr(Campaign.frozen(launch.definition).send, "end", None)
    return not isinstance(end, date) or end >= since.date() - timedelta(days=1)  # in any time zone


def _named_otherwise(launch: Launch, audience: Audience) -> str:
    return (
        f"it names its people by {launch.identified_by} ({launch.kind}), this one by {audience.identified_by} "
        f"({audience.identifiers.kind}), and nobody can say who is in both"
    )


def _in_at_least(count: int, sets: Iterable[Identifiers], people: Identifiers) -> Identifiers:
    """Give those of some people who are in so many of the sets, or more."""
    at_least = [people]
    for members in sets:
        at_least += [empty(people.kind)] * (len(at_least) <= count)
        for level in range(len(at_least) - 1, 0, -1):
            at_least[level] |= at_least[level - 1] & members
    return at_least[count] if len(at_least) > count else empty(people.kind)


def _people_of(
    source: warehouse.Source,
    sql: str,
    file: str,
    parameters: Mapping[str, Parameter],
    audience: Audience,
) -> Identifiers:
    try:
        with warehouse.read(source, sql, parameters=parameters) as batches:
            found = build_audience(_without_groups(batches))
    except (AudienceError, QueryError) as error:
        raise type(error)(f"{file}: {error}") from None
    _check_named_alike(file, found.identified_by, found.identifiers, audience)
    return found.identifiers


def _without_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select([name for name in batch.schema.names if name.lower() not in GROUP_COLUMNS])


def _check_named_alike(what: str, identified_by: str, people: Identifiers, audience: Audience) -> None:
    own = audience.identifiers
    if identified_by != audience.identified_by:
        raise AudienceError(
            f"{what}: found people named by {identified_by}; allowed: {audience.identified_by}, as in audience.sql"
        )
    if len(people) and len(own) and people.kind != own.kind:
        raise AudienceError(
            f"{what}: found {identified_by} of {people.kind} kind; allowed: {own.kind}, as in audience.sql"
        )
