"""Queries about many launches at once, for lists: their selection, their order, and the facts about each.

The number of statements does not grow with the number of launches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from sendoff.ledger.control.audit_log import DECIDES
from sendoff.ledger.launches.launch_record import LAUNCH, LaunchRecord, launch_of
from sendoff.ledger.launches.launches import is_one_of
from sendoff.ledger.launches.not_launched import IS_CURRENT
from sendoff.ledger.requests.doubts import KNOWN_STATE
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.joins import OF_SEGMENT
from sendoff.ledger.storage.ledger_time import LedgerTime
from sendoff.ledger.storage.schema import (
    attempts,
    audiences,
    decisions,
    dispatches,
    launches,
    not_launched,
    outcomes,
    reports,
    segments,
    suppressed,
)
from sendoff.ledger.suppression.withheld import REMAINING
from sendoff.states import REACHED_NO_ONE, DecisionKind, DispatchState, LaunchState, PostBackKind, Verdict


class CampaignPeriod(NamedTuple):
    """A period of a campaign."""

    campaign: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Selection:
    """Which launches to list. An empty member selects all of them."""

    campaigns: Collection[str]
    keys: Collection[str] | None = None
    words: str = ""  # in the title or the name of the campaign
    since: datetime | None = None  # of the time of sending
    until: datetime | None = None

    @classmethod
    def of(cls, chosen: Collection[LaunchRecord]) -> Selection:
        """Return the selection of some launches."""
        return cls({launch.campaign for launch in chosen}, [launch.launch_key for launch in chosen])

    def where(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions on the launches."""
        conditions = self._conditions(launches.c.campaign, _TITLE, _goes_out_at)
        if self.keys is not None:
            conditions.append(is_one_of(launches.c.launch_key, self.keys))
        return conditions

    def where_not_made(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions on launches that were not made. The time is that of their check."""
        columns = (not_launched.c.campaign, not_launched.c.title, not_launched.c.checked_at)
        return [IS_CURRENT, *self._conditions(*columns)]

    def _conditions(
        self, campaign: sa.ColumnElement[str], title: sa.ColumnElement[str], time: sa.ColumnElement[datetime]
    ) -> list[sa.ColumnElement[bool]]:
        conditions: list[sa.ColumnElement[bool]] = [campaign.in_(self.campaigns)]
        if words := self.words.replace("_", " "):
            texts = (title, sa.func.replace(campaign, "_", " "))
            conditions.append(sa.or_(*(text.icontains(words, autoescape=True) for text in texts)))
        if self.since is not None:
            conditions.append(time >= self.since)
        if self.until is not None:
            conditions.append(time < self.until)
        return conditions


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What the ledger knows about the progress of a launch."""

    state: LaunchState
    connection: str
    sends_at: datetime | None  # when the service has sent it at the latest; None: recurring
    created_at: datetime
    is_settled: bool
    is_reported: bool
    was_held: bool  # because something went wrong
    requests: Mapping[str, int]  # by state
    known: Mapping[str, int]  # by their known result: in doubt if any attempt is, or not processed
    is_leased: bool  # a worker is making a request
    begun_at: datetime | None = None  # its first request, of a recurring launch
    send: Mapping[str, Any] | None = None  # the frozen schedule of a recurring launch


@dataclass(frozen=True, slots=True)
class ListedLaunch:
    """A launch in a list. ``reached`` and ``opened`` come from its newest report."""

    launch: LaunchRecord
    recipients: int | None  # without the control group; None: the service chooses them
    sends_at: datetime | None  # when it went out or will go out, if that is known
    reached: int | None  # at least
    opened: int | None


class PlannedPart(NamedTuple):
    """A wave and time zone with planned requests."""

    wave: int
    time_zone: str | None


class AcceptedPart(NamedTuple):
    """The accepted requests of a launch for one time zone."""

    time_zone: str | None
    recipients: int  # 0 if the service chooses them
    campaign_ids: Sequence[int]  # in the service, as far as they are known


class Overview(LedgerPart):
    """Queries about many launches of a ledger."""

    def count(self, selection: Selection, *, with_not_made: bool = False) -> int:
        """Count the selected launches. ``with_not_made``: and those that were not made."""
        total: Any = sa.select(sa.func.count()).where(*selection.where()).scalar_subquery()
        if with_not_made:
            others = sa.select(sa.func.count()).select_from(not_launched).where(*selection.where_not_made())
            total += others.scalar_subquery()  # of the same moment, as a launch may be made now
        return int(self._database.scalar(sa.select(total)))

    def keys(
        self,
        selection: Selection,
        *,
        order: str = "created",
        is_ascending: bool = False,
        offset: int = 0,
        limit: int | None = None,
        with_not_made: bool = False,
    ) -> list[str]:
        """Return the keys of a page of the selected launches, sorted by a column of ``ORDERS``.

        Launches without a value come last. ``with_not_made``: together with the launches that were not made. These have
        the time of their check instead of a time of sending. Members of the selection's ``keys`` are launches.
        """
        value, at = ORDERS[order], launches.c.created_at
        chosen: Any = _OF_ALL.add_columns(value.label("value"), at.label("at")).where(*selection.where())
        if with_not_made:
            value, at = _ORDERS_NOT_MADE.get(order, sa.cast(sa.null(), value.type)), not_launched.c.checked_at
            others = sa.select(not_launched.c.launch_key, value.label("value"), at.label("at"))
            chosen = sa.union_all(chosen, others.where(*selection.where_not_made()))
        found = chosen.subquery()
        by = found.c.value.asc() if is_ascending else found.c.value.desc()
        query = sa.select(found.c.launch_key).order_by(
            sa.nulls_last(by), found.c.at.desc(), found.c.launch_key
        )
        return self._database.scalars(query.offset(offset).limit(limit))

    def keys_not_made(self, selection: Selection) -> list[str]:
        """Return the keys of the selected launches that were not made, newest first."""
        query = sa.select(not_launched.c.launch_key).where(*selection.where_not_made())
        newest_first = (not_launched.c.checked_at.desc(), not_launched.c.launch_key)
        return self._database.scalars(query.order_by(*newest_first))

    def page(
        self,
        selection: Selection,
        *,
        order: str = "created",
        is_ascending: bool = False,
        offset: int = 0,
        limit: int | None = None,
    ) -> list[ListedLaunch]:
        """Return a page of the selected launches, in the order of :meth:`keys`."""
        keys = self.keys(selection, order=order, is_ascending=is_ascending, offset=offset, limit=limit)
        rows = self._database.rows(_LISTED.where(launches.c.launch_key.in_(keys)))
        listed = {row.launch_key: _listed(row) for row in rows}
        return [listed[key] for key in keys]

    def newest(self, campaigns: Collection[str], *, is_reported: bool = False) -> dict[str, ListedLaunch]:
        """Return the newest launch of each campaign, by name.

        ``is_reported``: the newest one that was sent, at least in part, and has a report.
        """
        place = sa.func.row_number().over(
            partition_by=launches.c.campaign, order_by=(launches.c.created_at.desc(), launches.c.launch_key)
        )
        ranked = sa.select(launches.c.launch_key, place.label("place")).where(
            launches.c.campaign.in_(campaigns)
        )
        if is_reported:
            ranked = ranked.join(reports, reports.c.launch_key == launches.c.launch_key).where(_IS_SENT)
        found = ranked.subquery()
        first = sa.select(found.c.launch_key).where(found.c.place == 1)
        rows = self._database.rows(_LISTED.where(launches.c.launch_key.in_(first)))
        return {row.campaign: _listed(row) for row in rows}

    def periods(self, campaigns: Collection[str]) -> list[CampaignPeriod]:
        """Return each period with a launch, or with a launch that was not made."""
        tables = (launches, not_launched)
        queries = (
            sa.select(table.c.campaign, table.c.period_start, table.c.period_end).where(
                table.c.campaign.in_(campaigns)
            )
            for table in tables
        )
        return [CampaignPeriod(*row) for row in self._database.rows(sa.union(*queries))]

    def facts(self, selection: Selection) -> dict[str, LaunchFacts]:
        """Return the facts about each selected launch by its key, newest first."""
        chosen = selection.where()
        requests: defaultdict[str, Counter[str]] = defaultdict(Counter)
        known: defaultdict[str, Counter[str]] = defaultdict(Counter)
        with self._database.read() as db:
            for key, state, known_state, count in db.execute(_REQUESTS.where(*chosen)):
                requests[key][state] += count
                known[key][known_state] += count
            leased = set(db.scalars(_LEASED))
            return {
                key: LaunchFacts(*(*facts, requests[key], known[key], key in leased, begun_at, send))
                for key, *facts, begun_at, send in db.execute(_FACTS.where(*chosen))
            }

    def requested_at(self, launch_keys: Collection[str]) -> dict[str, datetime]:
        """Return when the newest request of each of some launches was begun, if there is one."""
        return self._newest(_STARTED.where(is_one_of(dispatches.c.launch_key, launch_keys)))

    def exchanged_at(self, launch_keys: Collection[str]) -> dict[str, datetime]:
        """Return when the newest request of each of some launches was begun, or was answered if that is later."""
        are_of = is_one_of(dispatches.c.launch_key, launch_keys)
        return self._newest(_STARTED.where(are_of), _ANSWERED.where(are_of))

    def acted_at(self, launch_keys: Collection[str]) -> dict[str, datetime]:
        """Return when each of some launches was last decided about, or a request of it was begun, if ever."""
        return self._newest(
            _STARTED.where(is_one_of(dispatches.c.launch_key, launch_keys)),
            _DECIDED.where(is_one_of(decisions.c.launch_key, launch_keys)),
        )

    def _newest(self, *queries: sa.Select[Any]) -> dict[str, datetime]:
        """Return the newest moment of each launch that some queries find."""
        found: dict[str, datetime] = {}
        with self._database.read() as db:
            for query in queries:
                for key, moment in db.execute(query):
                    found[key] = max(moment, found.get(key, moment))
        return found

    def planned_parts(self, launch_keys: Collection[str]) -> dict[str, list[PlannedPart]]:
        """Return the waves and time zones of some launches with planned requests."""
        parts: dict[str, list[PlannedPart]] = {}
        query = _PLANNED.where(is_one_of(dispatches.c.launch_key, launch_keys))
        for key, wave, zone in self._database.rows(query):
            parts.setdefault(key, []).append(PlannedPart(wave, zone or None))
        return parts

    def accepted_parts(self, launch_key: str) -> list[AcceptedPart]:
        """Return the accepted requests of a launch by time zone."""
        recipients: Counter[str] = Counter()
        ids: defaultdict[str, set[int]] = defaultdict(set)
        accepted = self._database.rows(_ACCEPTED.where(dispatches.c.launch_key == launch_key))
        for zone, campaign_id, size in accepted:
            recipients[zone] += int(size)
            ids[zone] |= set() if campaign_id is None else {campaign_id}
        return [
            AcceptedPart(zone or None, recipients[zone], sorted(ids[zone])) for zone in sorted(recipients)
        ]

    def recipients_at_most(self, launch_keys: Collection[str]) -> dict[str, int]:
        """Return how many recipients of each of some launches have its message at most, by key.

        Launches that no one can have got are left out, and so are those whose recipients the service chooses.
        """
        rows = self._database.rows(_AT_MOST.where(is_one_of(dispatches.c.launch_key, launch_keys)))
        return {key: int(people) for key, people in rows if people}


def _verdict(verdict: Verdict) -> Any:
    return reports.c.figures["verdicts", verdict.value].as_integer()


_DEFINITION = sa.type_coerce(
    sa.cast(launches.c.definition, sa.JSON().with_variant(sa.Text(), "sqlite")), sa.JSON
)
"""The frozen definition of a launch. SQLite reads JSON from texts."""
_TITLE = _DEFINITION["title"].as_string()
_OF_LAUNCH = dispatches.c.launch_key == launches.c.launch_key
_REPORTED = sa.outerjoin(launches, reports, reports.c.launch_key == launches.c.launch_key)
_IS_SENT = (
    sa.exists()
    .where(
        _OF_LAUNCH,
        KNOWN_STATE.in_((DispatchState.ACCEPTED, DispatchState.IN_DOUBT, DispatchState.WRITTEN_OFF)),
    )
    .correlate(launches)
)
# Not a join: without statistics, PostgreSQL would read all attempts again for each launch.
_FIRST_OF_DISPATCH = (
    sa.select(sa.func.min(attempts.c.started_at))
    .where(attempts.c.dispatch_key == dispatches.c.dispatch_key)
    .correlate(dispatches)
    .scalar_subquery()
)
_FIRST_ATTEMPT = (
    sa.select(sa.func.min(_FIRST_OF_DISPATCH)).where(_OF_LAUNCH).correlate(launches).scalar_subquery()
)
_goes_out_at = sa.case(
    (sa.and_(launches.c.state.in_((LaunchState.REJECTED, LaunchState.STOPPED)), ~_IS_SENT), None),
    (launches.c.sends_at > launches.c.created_at, launches.c.sends_at),
    else_=_FIRST_ATTEMPT,
)
"""When a launch goes out: a time in the request to the service, or else when its first request was begun."""
_HELD_OUT = (
    sa.select(sa.func.coalesce(sa.func.sum(suppressed.c.size), 0))
    .where(suppressed.c.launch_key == launches.c.launch_key, suppressed.c.reason == "holdout")
    .correlate(launches)
    .scalar_subquery()
)
_RECIPIENTS = sa.case(
    (audiences.c.is_chosen_by_service, None), else_=audiences.c.size - audiences.c.erased - _HELD_OUT
)
_UNMEASURED = sa.cast(reports.c.figures["unmeasured"], sa.Text)
_IS_OPEN_UNKNOWN = _UNMEASURED.contains(PostBackKind.OPEN)
_REACHED = sa.case(
    (sa.and_(_IS_OPEN_UNKNOWN, _UNMEASURED.contains(PostBackKind.DELIVERY)), None),
    (reports.c.as_of.is_not(None), _verdict(Verdict.ENGAGED) + _verdict(Verdict.DELIVERED)),
    else_=None,
)
_OPENED = sa.case(
    (_IS_OPEN_UNKNOWN, None), (reports.c.as_of.is_not(None), _verdict(Verdict.ENGAGED)), else_=None
)
_OF_ALL = sa.select(launches.c.launch_key).select_from(
    _REPORTED.join(audiences, audiences.c.launch_key == launches.c.launch_key)
)
_LISTED = LAUNCH.outerjoin(reports, reports.c.launch_key == launches.c.launch_key).add_columns(
    _RECIPIENTS.label("recipients"),
    _goes_out_at.label("goes_out_at"),
    _REACHED.label("reached"),
    _OPENED.label("opened"),
)
_FACTS = (
    sa.select(
        *(launches.c[name] for name in ("launch_key", "state", "connection", "sends_at", "created_at")),
        launches.c.settled_at.is_not(None),
        reports.c.as_of.is_not(None),
        sa.exists().where(
            decisions.c.launch_key == launches.c.launch_key, decisions.c.kind == DecisionKind.HELD
        ),
        sa.case((launches.c.sends_at.is_(None), _FIRST_ATTEMPT)),
        sa.case((launches.c.sends_at.is_(None), _DEFINITION["send"])),
    )
    .select_from(_REPORTED)
    .order_by(launches.c.created_at.desc(), launches.c.launch_key)
)
_REQUESTS = (
    sa.select(dispatches.c.launch_key, dispatches.c.state, KNOWN_STATE, sa.func.count())
    .join(launches, _OF_LAUNCH)
    .group_by(dispatches.c.launch_key, dispatches.c.state, "known")
)
_LEASED = (
    sa.select(dispatches.c.launch_key)
    .where(dispatches.c.state == DispatchState.IN_FLIGHT, dispatches.c.lease_until > LedgerTime())
    .distinct()
)
_STARTED = (
    sa.select(dispatches.c.launch_key, sa.func.max(attempts.c.started_at))
    .join(attempts, attempts.c.dispatch_key == dispatches.c.dispatch_key)
    .group_by(dispatches.c.launch_key)
)
_ANSWERED = (
    sa.select(dispatches.c.launch_key, sa.func.max(outcomes.c.recorded_at))
    .join(outcomes, outcomes.c.dispatch_key == dispatches.c.dispatch_key)
    .where(outcomes.c.status.is_not(None))
    .group_by(dispatches.c.launch_key)
)
_DECIDED = (
    sa.select(decisions.c.launch_key, sa.func.max(decisions.c.decided_at))
    .where(DECIDES)
    .group_by(decisions.c.launch_key)
)
_PLANNED = (
    sa.select(dispatches.c.launch_key, dispatches.c.wave, dispatches.c.time_zone)
    .where(dispatches.c.state == DispatchState.PLANNED)
    .distinct()
)
_ACCEPTED = (
    sa.select(dispatches.c.time_zone, dispatches.c.campaign_id, sa.func.sum(REMAINING))
    .join(segments, OF_SEGMENT)
    .where(dispatches.c.state == DispatchState.ACCEPTED)
    .group_by(dispatches.c.time_zone, dispatches.c.campaign_id)
)
_AT_MOST = (
    sa.select(dispatches.c.launch_key, sa.func.sum(REMAINING))
    .join(segments, OF_SEGMENT)
    .where(KNOWN_STATE.not_in(REACHED_NO_ONE))
    .group_by(dispatches.c.launch_key)
)

ORDERS: Mapping[str, sa.ColumnElement[Any]] = {
    "created": launches.c.created_at,
    "campaign": launches.c.campaign,
    "sends": _goes_out_at,
    "period": launches.c.period_end,
    "recipients": _RECIPIENTS,
    "reached": _REACHED,
    "opened": _OPENED,
    "requests": sa.select(sa.func.count()).where(_OF_LAUNCH).correlate(launches).scalar_subquery(),
}
"""The columns that a list can be sorted by."""


_ORDERS_NOT_MADE: Mapping[str, sa.ColumnElement[Any]] = {
    "created": not_launched.c.checked_at,
    "campaign": not_launched.c.campaign,
    "sends": not_launched.c.checked_at,
    "period": not_launched.c.period_end,
}


def _listed(row: sa.Row[Any]) -> ListedLaunch:
    recipients = None if row.recipients is None else int(row.recipients)
    return ListedLaunch(launch_of(row), recipients, row.goes_out_at, row.reached, row.opened)
