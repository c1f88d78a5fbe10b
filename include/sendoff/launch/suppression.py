"""Suppression: which recipients are left out, and why. The rules of a campaign's audience apply one after the other.

.. code-block:: text

    erased ........ people who asked to be forgotten; their identifiers are not stored
    suppressed .... recipients on the suppression list
    already_sent .. recipients of earlier launches for the period, if a resend leaves them out
    exclude ....... recipients in queries, files, lists and other campaigns, in the order of the file
    priority ...... recipients of another campaign of the same day with the same or a better rank
    cap ........... recipients who would get too many messages of a scope in a number of days
    rules ......... the exclusions and the cap of the rules for all campaigns, unless the campaign is transactional
    size_limit .... all recipients above the size limit of a run
    holdout ....... a random share, which stays part of the audience

Launches and rules that cannot be compared suppress no recipients. A note reports each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa

from sendoff import warehouse
from sendoff.audience import (
    GROUP_COLUMNS,
    KINDS,
    Audience,
    build_audience,
    read_people,
    sample,
    sample_exactly,
    those_among,
)
from sendoff.audience.identifiers import Identifiers, empty, union
from sendoff.campaign import (
    MOST_DAYS,
    Campaign,
    CampaignExclusion,
    CampaignFolder,
    Cap,
    Exclusion,
    FileExclusion,
    ListExclusion,
    Period,
    Priority,
    QueryExclusion,
    counted_as,
)
from sendoff.errors import AudienceError, NotFoundError, QueryError, RecipientsDeletedError
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.states import LIVING, UNFINISHED
from sendoff.warehouse import Parameter

Warehouses = Callable[[str], warehouse.Source]
"""Returns a warehouse, such as a SQLAlchemy URL, for the name of its connection."""

Rule = Exclusion | Priority | Cap

_log = logging.getLogger(__name__)

_SOONER = timedelta(hours=2)
_KIND_WORDS = {"integer": "whole numbers", "string": "text"}
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class EligibleAudience:
    """The result of applying the rules to an audience.

    ``audience``: without suppressed recipients, but with the holdout. ``sent_to``: without the holdout too.
    ``suppressed``: identifiers of the query that get no message, each under one reason. ``not_compared``: sentences on
    launches and rules that could not be compared, and might have suppressed recipients. Each has the name of the
    campaign of such a launch, or None.
    """

    audience: Audience
    sent_to: Audience
    suppressed: Mapping[str, Identifiers]
    not_compared: Mapping[str, str | None]


def read_excluded(
    folder: CampaignFolder,
    audience: Audience,
    *,
    parameters: Mapping[str, Parameter],
    warehouses: Warehouses,
) -> dict[Rule, Identifiers]:
    """Return the recipients of exclusions that do not need the ledger: queries and files.

    Raise QueryError if a query fails, and AudienceError if an exclusion's identifier column differs from the
    audience's. Both errors name the exclusion.
    """
    excluded: dict[Rule, Identifiers] = {}
    for exclusion in folder.campaign.audience.exclude:
        if isinstance(exclusion, QueryExclusion):
            source = warehouses(exclusion.warehouse or folder.campaign.warehouse)
            place = f"campaign {folder.name}: {exclusion.file}"
            try:
                with warehouse.read(
                    source, folder.exclusion_sql[exclusion.file], parameters=parameters
                ) as batches:
                    people = build_audience(without_groups(batches))
            except (AudienceError, QueryError) as error:
                raise type(error)(f"{place}: {error}") from None
            _check_same_identifiers(place, people.identified_by, people.identifiers, audience)
            excluded[exclusion] = people.identifiers
        elif isinstance(exclusion, FileExclusion):
            file = folder.path / exclusion.file
            excluded[exclusion] = read_people(file, audience.identified_by, audience.identifiers.kind)
    return excluded


def apply_rules(  # noqa: PLR0913 - all named, with one caller
    folder: CampaignFolder,
    audience: Audience,
    *,
    excluded: Mapping[Rule, Identifiers],
    ledger: Ledger | None,
    sends_at: datetime,
    now: datetime,
    period: Period | None = None,
    already_sent: Identifiers | None = None,
    size_limit: int | None = None,
) -> EligibleAudience:
    """Apply a campaign's rules to an audience; the first rule that matches a recipient suppresses them.

    ``excluded``: from :func:`read_excluded`. ``sends_at``: when this launch sends; days count from there.
    ``now``: the assumed sending time of other launches that send at once but are still waiting. ``period``: of this
    launch, which may be sent again on purpose. ``already_sent``: recipients of earlier launches for it, to leave out.
    Without a ledger, the rules that need one do not apply. Raise AudienceError if a list does not exist, or has another
    identifier column.
    """
    if ledger:
        audience = _without_erased(ledger, audience)
    remaining = _Remaining(audience.identifiers)
    notes: dict[str, str | None] = {}
    others = None
    if ledger:
        others = _OtherLaunches(ledger, folder, audience, sends_at, now, period, notes)
        scopes, kind = folder.campaign.suppression_scopes(), audience.identifiers.kind
        listed = ledger.suppressions.active(audience.identified_by, kind, scopes, now)
        if len(listed):
            remaining.suppress("suppressed", listed)
    if already_sent is not None:
        remaining.suppress("already_sent", already_sent)
    for rule, reason in _reasons(folder.campaign):
        if rule in excluded:
            remaining.suppress(reason, excluded[rule])
        elif others:
            remaining.suppress(reason, others.named_by(rule, reason, remaining.people))
        else:
            notes[f"{reason} was not applied: no ledger was given"] = None
    if size_limit is not None:
        kept = sample_exactly(remaining.people, "size limit", size_limit)
        remaining.suppress("size_limit", remaining.people - kept)
    audience, suppressed = audience.less(remaining.suppressed), remaining.suppressed
    sent_to = audience
    if holdout := folder.campaign.audience.holdout:
        salt = f"holdout {holdout.salt or folder.first_name}"
        held_out = {"holdout": sample(audience.identifiers, salt, holdout.percent)}
        sent_to, suppressed = audience.less(held_out), suppressed | held_out
    return EligibleAudience(audience, sent_to, suppressed, notes)


def _reasons(campaign: Campaign) -> Iterator[tuple[Rule, str]]:
    """Yield the rules of a campaign, and then those for all campaigns, each with the reason to count under."""
    own, for_all = campaign.audience, campaign.rules_in_force
    for_all_caps = for_all.caps_for(campaign.suppression_scopes())
    for rules, priority, caps in ((own, own.priority, own.cap), (for_all, None, for_all_caps)):
        for exclusion in rules.exclude:
            yield exclusion, counted_as(exclusion)
        if priority:
            yield priority, "priority"
        for cap in caps:
            yield cap, "cap"


def _without_erased(ledger: Ledger, audience: Audience) -> Audience:
    """Return the audience without people who were erased. They are counted, but not kept among the suppressed."""
    erased = ledger.erasures.in_set(audience.identified_by, audience.identifiers)
    return audience.less({"erased": erased}) if len(erased) else audience


@dataclass(slots=True)
class _Remaining:
    """The recipients that are not suppressed yet, and the suppressed ones by reason."""

    people: Identifiers
    suppressed: dict[str, Identifiers] = field(default_factory=dict)

    def suppress(self, reason: str, people: Identifiers) -> None:
        members = those_among(self.people, reason, people)
        self.suppressed[reason] = self.suppressed.get(reason, empty(members.kind)) | members
        if len(members):
            self.people -= members


@dataclass(frozen=True, slots=True)
class _OtherLaunches:
    """The recipients of other launches and of lists in the ledger, as far as they concern one audience."""

    ledger: Ledger
    folder: CampaignFolder
    audience: Audience
    sends_at: datetime
    now: datetime
    period: Period | None
    notes: dict[str, str | None]  # as ``not_compared`` of an eligible audience
    _recipients: dict[str, Identifiers] = field(default_factory=dict)  # by launch key

    def named_by(self, rule: Rule, reason: str, people: Identifiers) -> Identifiers:
        """Return the recipients that a rule suppresses; the result may contain others than ``people``."""
        match rule:
            case ListExclusion():
                return self._on_list(rule)
            case CampaignExclusion():
                return self._of_campaign(rule, reason)
            case Priority():
                return self._of_better_campaigns(rule)
            case Cap():
                return self._over_cap(rule, people)
        raise TypeError(f"{type(rule).__name__} does not need the ledger")

    def _on_list(self, exclusion: ListExclusion) -> Identifiers:
        try:
            uploaded, people = self.ledger.uploaded_lists.get(exclusion.name)
        except NotFoundError as error:
            raise AudienceError(f"campaign {self.folder.name}: {error}") from None
        place = f"campaign {self.folder.name}: list {uploaded.name}"
        _check_same_identifiers(place, uploaded.identified_by, people, self.audience, is_list=True)
        return people

    def _of_campaign(self, exclusion: CampaignExclusion, reason: str) -> Identifiers:
        connection = self.folder.campaign.connection
        own = self.folder.names
        names = own if exclusion.name in own else (exclusion.name,)
        if names is not own and exclusion.name not in self.ledger.launches.campaigns(connection):
            _log.warning("%s: the ledger has no launch of that campaign on %s", reason, connection)
            note = f"{reason} leaves out no one: the ledger has no launch of that campaign on {connection}"
            self.notes[note] = None

        def concerns(launch: LaunchRecord) -> bool:
            is_this_again = launch.campaign in own and launch.period == self.period
            return launch.campaign in names and not is_this_again

        since = self.sends_at - _days(exclusion.days)
        return self._recipients_of_all(self._comparable(since, _NEVER, concerns, reason))

    def _of_better_campaigns(self, priority: Priority) -> Identifiers:
        def goes_first(launch: LaunchRecord) -> bool:
            if launch.campaign in self.folder.names:
                return False
            other = Campaign.frozen(launch.definition).audience.priority
            return other is not None and other.group == priority.group and other.rank <= priority.rank

        start = datetime.combine(self.sends_at.astimezone(UTC).date(), time(), UTC)
        until = start + timedelta(days=1)
        return self._recipients_of_all(
            self._comparable(start - timedelta.resolution, until, goes_first, "priority")
        )

    def _over_cap(self, cap: Cap, people: Identifiers) -> Identifiers:
        """Return the recipients with too many messages in any stretch of days that includes this launch."""

        def counts(launch: LaunchRecord) -> bool:
            return cap.scope in Campaign.frozen(launch.definition).suppression_scopes()

        length = _days(cap.days)
        launches = self._comparable(self.sends_at - length, self.sends_at + length, counts, "cap")
        later = {at for _, at in launches if at > self.sends_at}
        over = empty(people.kind)
        for end in sorted({self.sends_at, *later}):
            within = (launch for launch, at in launches if end - length < at <= end)
            over |= _in_at_least(cap.messages, map(self._recipients_of, within), people)
        return over

    def _comparable(
        self, since: datetime, until: datetime, concerns: Callable[[LaunchRecord], bool], reason: str
    ) -> list[tuple[LaunchRecord, datetime]]:
        """Return the launches that concern a rule and can be compared, each with its sending time; note the others.

        The launches send after ``since`` and before ``until``.
        """
        comparable = []
        own = self.audience.identified_by, self.audience.identifiers.kind
        for launch, at in self._sending(since):
            if not _falls_between(launch, at, since, until) or not concerns(launch):
                continue
            if at is None:
                self._note(reason, launch, "the service sends it repeatedly, at times that are not known")
            elif launch.is_chosen_by_service:
                self._note(reason, launch, "the service chooses its recipients")
            elif (launch.identified_by, launch.kind) != own:
                self._note(
                    reason,
                    launch,
                    f"it identifies people by {launch.identified_by} ({launch.kind}), this one by {own[0]} "
                    f"({own[1]}), so they cannot be compared",
                )
            else:
                comparable.append((launch, at))
        return comparable

    def _sending(self, since: datetime) -> Iterator[tuple[LaunchRecord, datetime | None]]:
        """Yield the launches that send after a moment, each with its sending time, or None if it sends repeatedly.

        A launch that sends at once but waits for approval, a pause, a window or a wave does not count as sent before
        now.
        """
        launches, connection = self.ledger.launches, self.folder.campaign.connection
        unsent = launches.unsent(*LIVING, connection=connection, of=UNFINISHED)
        waiting = {
            key: launch
            for key in unsent
            if Campaign.frozen((launch := launches.get(key)).definition).send.kind == "now"
        }
        for launch in launches.sending(connection, since):
            if launch.launch_key not in waiting:
                yield launch, launch.sends_at
        for launch in waiting.values():
            yield launch, max(launch.sends_at or self.now, self.now)

    def _note(self, reason: str, launch: LaunchRecord, why: str) -> None:
        _log.warning(
            "%s: launch %s of campaign %s does not count: %s", reason, launch.launch_key, launch.campaign, why
        )
        self.notes[f"{reason} does not count campaign {launch.campaign}: {why}"] = launch.campaign

    def _recipients_of_all(self, launches: Iterable[tuple[LaunchRecord, datetime]]) -> Identifiers:
        return union(self.audience.identifiers.kind, (self._recipients_of(launch) for launch, _ in launches))

    def _recipients_of(self, launch: LaunchRecord) -> Identifiers:
        """Return the recipients that a launch shares with the audience."""
        key = launch.launch_key
        if key not in self._recipients:
            if launch.deleted:
                raise RecipientsDeletedError(
                    f"campaign {self.folder.name}: a rule depends on who got campaign {launch.campaign} for period "
                    f"{launch.period.key}: {launch.deleted}. Give the rule a shorter time, or remove it"
                )
            self._recipients[key] = self.ledger.launches.sent(key) & self.audience.identifiers
        return self._recipients[key]


def _days(count: int) -> timedelta:
    """Return a number of days less two hours, because a weekly launch may be sooner than after seven days.

    Clocks go forward by an hour once a year, and Airflow does not start each run at the same second.
    """
    return timedelta(days=min(count, MOST_DAYS)) - _SOONER


def _falls_between(launch: LaunchRecord, at: datetime | None, since: datetime, until: datetime) -> bool:
    """Check whether a launch sends between two moments; a repeated one may, unless its last day was before them."""
    if at is not None:
        return since < at < until
    end = getattr(Campaign.frozen(launch.definition).send, "end", None)
    return not isinstance(end, date) or end >= since.date() - timedelta(days=1)  # in any time zone


def _in_at_least(count: int, sets: Iterable[Identifiers], people: Identifiers) -> Identifiers:
    """Return the members of ``people`` that are in at least ``count`` of the sets."""
    at_least = [people]
    for members in sets:
        at_least += [empty(people.kind)] * (len(at_least) <= count)
        for level in range(len(at_least) - 1, 0, -1):
            at_least[level] |= at_least[level - 1] & members
    return at_least[count] if len(at_least) > count else empty(people.kind)


def without_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches without their group columns, which may have many values."""
    for batch in batches:
        yield batch.select([name for name in batch.schema.names if name.lower() not in GROUP_COLUMNS])


def _check_same_identifiers(
    place: str, identified_by: str, people: Identifiers, audience: Audience, *, is_list: bool = False
) -> None:
    own = audience.identifiers
    if identified_by != audience.identified_by:
        found, needed = f"the identifier column {identified_by}", audience.identified_by
        option = f"with --column {audience.identified_by}"
        if len(own) and own.kind != KINDS[audience.identified_by][0]:
            option += " --numbers"
    elif len(people) and len(own) and people.kind != own.kind:
        found, needed = f"{identified_by} as {_KIND_WORDS[people.kind]}", _KIND_WORDS[own.kind]
        option = f"{'with' if own.kind == 'integer' else 'without'} --numbers"
    else:
        return
    remedy = f". Upload the list again {option}" if is_list else ""
    raise AudienceError(f"{place}: found {found}. Use {needed}, as in the audience{remedy}")
