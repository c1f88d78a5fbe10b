"""Counting: compares the service's own record of each launch with the ledger."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import sqlalchemy as sa

from sendoff.audience import split
from sendoff.campaign import ACCOUNT, Campaign
from sendoff.ledger import DispatchTotals, Ledger
from sendoff.ledger.post_backs.post_backs import stored_runs
from sendoff.ledger.storage.schema import attempts, dispatches, outcomes, segments
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.states import Arm, DispatchState, OutcomeKind
from tools.chaos.environment import Result
from tools.chaos.processes import Sent, Service

_KNOWN_IF_ACCEPTED = {DispatchState.ACCEPTED, DispatchState.IN_DOUBT}
_KNOWN_OTHERWISE = {*DispatchState} - {DispatchState.ACCEPTED, DispatchState.WRITTEN_OFF}
_AT_MOST_AFTER = timedelta(seconds=1)
_OPENS_AFTER = timedelta(seconds=30)  # a worker aggregates new opens at least every 20 seconds
_ALL = 100_000  # requests
_KEY = re.compile(r"\[([0-9a-f]{32})\]$")


@dataclass
class Count:
    """The counts of the launches of one row.

    ``duplicates``: messages of a period that a device got after its first. ``lost_dispatches``: requests that the
    service accepted and the ledger has neither as accepted nor in doubt, or that only the ledger has as accepted.
    ``lost_post_backs``: post-backs answered 2xx that are missing in the ledger's totals. ``above_limit``:
    recipients above the daily limit, of all requests claimed on a day except those not processed.
    ``lost_opt_outs``: recipients whose opt-out was answered 200 and is not in the suppression list with all its
    scopes. ``sent_after_opt_out``: recipients in an accepted request that was claimed more than a second after their
    opt-out was answered.
    ``sent_after_open``: the same for opens of an earlier message, if it was claimed more than 30 seconds later.
    ``other_variants``: requests to the rest of a launch with another variant than the first of them.
    ``wrong_hours``: recipients in a request that was claimed outside of their own hour, or who are in the control
    group although they should not be, or the reverse. ``unfinished``: dispatches that are planned or in flight at
    the end. ``in_doubt``: dispatches still in doubt. ``resolved``: doubts that post-backs settled. ``kept``: people
    who were erased and are still in the ledger.
    """

    launches: int = 0
    dispatches: int = 0
    duplicates: int = 0
    lost_dispatches: int = 0
    lost_post_backs: int = 0
    above_limit: int = 0
    lost_opt_outs: int = 0
    sent_after_opt_out: int = 0
    other_variants: int = 0
    wrong_hours: int = 0
    sent_after_open: int = 0
    in_doubt: int = 0
    resolved: int = 0
    unfinished: int = 0
    post_backs: int = 0
    killed: int = 0
    faults: int = 0
    kept: int = 0

    @property
    def sent_too_late(self) -> int:
        """Recipients in requests that were claimed after they opted out or opened."""
        return self.sent_after_opt_out + self.sent_after_open

    @property
    def lost(self) -> int:
        """Lost dispatches, post-backs and opt-outs together, and erased people who were kept."""
        return self.lost_dispatches + self.lost_post_backs + self.lost_opt_outs + self.kept


@dataclass
class Record:
    """The service's own record: each accepted request's devices and texts, and each post-back that was answered 2xx."""

    campaigns: Mapping[str, Sequence[Sequence[int]]]  # dispatch key -> for each campaign: its devices
    post_backs: Mapping[str, Sequence[Sent]]
    texts: Mapping[str, Sequence[str]]  # dispatch key -> for each campaign: the text of its push message
    counted: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, service: Service) -> Record:
        """Read the complete record."""
        campaigns: dict[str, list[Sequence[int]]] = defaultdict(list)
        for number, title in service.campaigns():
            campaigns[_key_in(title)].append(service.targeted(number))
        post_backs: dict[str, list[Sent]] = defaultdict(list)
        for sent in service.sent_post_backs():
            post_backs[sent.dispatch_key].append(sent)
        texts: dict[str, list[str]] = defaultdict(list)
        for title, text in service.texts():
            texts[_key_in(title)].append(text)
        return cls(campaigns, post_backs, texts)

    def unknown(self) -> set[str]:
        """Return the accepted requests that belong to no counted launch."""
        return set(self.campaigns) - self.counted


def _key_in(title: str) -> str:
    match = _KEY.search(title)
    return match[1] if match else title


def count(record: Record, result: Result) -> Count:
    """Reconcile the launches of a row, and compare the ledger with the record."""
    totals = Count(killed=result.killed, faults=result.faults, unfinished=result.unfinished)
    ledger = result.backend.ledger
    reached: dict[str, Counter[int]] = defaultdict(Counter)  # period -> device -> messages
    for key in result.launches:
        if ledger.launches.find(key) is None:  # the worker was killed before it froze the launch
            totals.unfinished += 1
            continue
        reconcile_launch(ledger, key)
        _add_launch(totals, record, ledger, key, reached[ledger.launches.get(key).period.key], result.erased)
        totals.above_limit += _above_limit(ledger, key)
        _add_opt_outs(totals, record, result, key)
        totals.wrong_hours += _wrong_hours(ledger, key)
        totals.other_variants += _other_variants(record, ledger, key)
        opened = result.opens.get(key, {})
        totals.sent_after_open += _sent_after(record, result, key, opened, _OPENS_AFTER)
        totals.kept += _kept(ledger, key, result.erased)
    totals.duplicates = sum(times - 1 for devices in reached.values() for times in devices.values())
    totals.kept += len(result.erased & _named_in_post_backs(ledger)) if result.erased else 0
    totals.resolved = _resolved(ledger, result.launches)
    return totals


def _kept(ledger: Ledger, key: str, erased: Collection[int]) -> int:
    """Count the erased people that some set of a launch still contains."""
    totals = ledger.aggregates.totals(key).values()
    sets = [ledger.launches.audience(key), *ledger.verdicts.sets(key).values()]
    sets += [each for part in totals for each in (part.delivered, part.engaged, part.suspects)]
    return sum(any(device in each for each in sets) for device in erased)


def _named_in_post_backs(ledger: Ledger) -> set[int]:
    """Return the devices that the stored post-backs name."""
    devices: set[int] = set()
    with ledger.post_backs.read(stored_runs(ledger._database), named_by=["device_id"]) as batches:
        for batch in batches:
            devices.update(batch["device_id"].drop_null().to_pylist())
    return devices


def _add_launch(
    found: Count, record: Record, ledger: Ledger, key: str, reached: Counter[int], erased: Collection[int]
) -> None:
    returned = ledger.aggregates.totals(key)
    found.launches += 1
    for dispatch in ledger.dispatch_queries.of_launch(key):
        # The title of a request of your own has the launch key, because its dispatch key depends on the title.
        names = (dispatch.dispatch_key, key)
        record.counted.update(names)
        campaigns = [devices for name in names for devices in record.campaigns.get(name, ())]
        for devices in campaigns:
            reached.update(devices)
        found.dispatches += 1
        found.in_doubt += dispatch.state == DispatchState.IN_DOUBT
        found.unfinished += not DispatchState(dispatch.state).is_final
        known = _KNOWN_IF_ACCEPTED if campaigns else _KNOWN_OTHERWISE
        found.lost_dispatches += dispatch.state not in known
        sent = [each for name in names for each in record.post_backs.get(name, ())]
        found.post_backs += len(sent)
        of_others = [each for each in sent if each.device not in erased]
        found.lost_post_backs += _lost(of_others, returned.get(dispatch.dispatch_key))


def _other_variants(record: Record, ledger: Ledger, key: str) -> int:
    """Count the requests to the rest of a launch, after its test share, with another text than the first of them."""
    if Campaign.frozen(ledger.launches.get(key).definition).decide is None:
        return 0
    tested = ledger.dispatch_queries.variants(key)
    rest = [each for each in ledger.dispatch_queries.of_launch(key) if each.segment not in tested]
    texts = [text for each in rest for text in record.texts.get(each.dispatch_key, ())]
    return sum(text != texts[0] for text in texts)


def _wrong_hours(ledger: Ledger, key: str) -> int:
    """Count the recipients who got a launch outside of their own hour in UTC, or are in the wrong arm."""
    settings = Campaign.frozen(ledger.launches.get(key).definition).own_hours
    if settings is None:
        return 0
    control, _ = split(
        ledger.launches.audience(key), f"control {key}", [settings.control, 100 - settings.control]
    )
    queries, found = ledger.dispatch_queries, 0
    arms, claimed = queries.arms(key), _claimed(ledger, key)
    hours = {each.segment: each.hour for each in queries.requests(key, limit=_ALL)}
    for dispatch, people in queries.segments(key):
        arm, hour = arms.get(dispatch.segment), hours[dispatch.segment]
        claimed_at = claimed.get(dispatch.dispatch_key)
        if hour is not None and claimed_at and claimed_at.astimezone(UTC).hour != hour:
            found += len(people)
        if arm == Arm.CONTROL:
            found += len(people - control)
        elif arm == Arm.OWN_HOUR:
            found += len(people & control)
    return found


def _add_opt_outs(found: Count, record: Record, result: Result, key: str) -> None:
    opted_out = result.opt_outs.get(key, {})
    suppressions = result.backend.ledger.suppressions
    for device in opted_out:
        entries = suppressions.of_person("device_id", device)
        kept = {
            each.scope: each.launch_key
            for each in entries
            if each.source == "opt-out" and not each.removed_at
        }
        of_topic = any(scope != ACCOUNT and launch == key for scope, launch in kept.items())
        found.lost_opt_outs += not of_topic or (device % 2 == 1 and ACCOUNT not in kept)
    found.sent_after_opt_out += _sent_after(record, result, key, opted_out, _AT_MOST_AFTER)


def _sent_after(
    record: Record, result: Result, key: str, left: Mapping[int, datetime], after: timedelta
) -> int:
    """Count the devices in an accepted request that was claimed later than ``after`` their own time."""
    return sum(
        device in devices and claimed_at > at + after
        for dispatch, claimed_at in _claimed(result.backend.ledger, key).items()
        for devices in record.campaigns.get(dispatch, ())
        for device, at in left.items()
    )


def _claimed(ledger: Ledger, key: str) -> dict[str, datetime]:
    """Return when the newest attempt of each dispatch of a launch was claimed."""
    query = (
        sa.select(
            attempts.c.dispatch_key,
            sa.func.max(attempts.c.started_at, type_=attempts.c.started_at.type).label("claimed_at"),
        )
        .join(dispatches, dispatches.c.dispatch_key == attempts.c.dispatch_key)
        .where(dispatches.c.launch_key == key)
        .group_by(attempts.c.dispatch_key)
    )
    with ledger._database.read() as db:
        return {row.dispatch_key: row.claimed_at for row in db.execute(query)}


def _above_limit(ledger: Ledger, key: str) -> int:
    """Return the recipients above the daily limit, if the launch has one. Its connection has no other launch."""
    launch = ledger.launches.get(key)
    limit = Campaign.frozen(launch.definition).warm_up
    if limit is None:
        return 0
    query = (
        sa.select(attempts.c.started_at, segments.c.size)
        .join(dispatches, dispatches.c.dispatch_key == attempts.c.dispatch_key)
        .join(
            segments,
            sa.and_(
                segments.c.launch_key == dispatches.c.launch_key, segments.c.number == dispatches.c.segment
            ),
        )
        .where(dispatches.c.launch_key == key, sa.not_(_WAS_NOT_PROCESSED))
    )
    claimed: Counter[date] = Counter()
    with ledger._database.read() as db:
        for row in db.execute(query):
            claimed[row.started_at.date()] += row.size
    return sum(max(0, recipients - limit.limit_on(day)) for day, recipients in claimed.items())


_WAS_NOT_PROCESSED = sa.exists().where(
    outcomes.c.dispatch_key == attempts.c.dispatch_key,
    outcomes.c.attempt == attempts.c.number,
    outcomes.c.kind == OutcomeKind.NOT_PROCESSED,
)


def _lost(sent: Iterable[Sent], returned: DispatchTotals | None) -> int:
    """Count the post-backs that are missing in the totals. Of unreadable ones, the totals have only the number."""
    damaged = 0
    missing: set[tuple[str, int]] = set()
    for each in sent:
        if each.is_damaged:
            damaged += 1
            continue
        who = returned and (returned.delivered if each.kind == "delivery" else returned.engaged)
        if not who or each.device not in who:
            missing.add((each.kind, each.device))
    unreadable = returned.anomalies.get("unreadable", 0) if returned else 0
    return len(missing) + max(0, damaged - unreadable)


def _resolved(ledger: Ledger, launches: Iterable[str]) -> int:
    query = (
        sa.select(sa.func.count())
        .select_from(outcomes)
        .join(dispatches, dispatches.c.dispatch_key == outcomes.c.dispatch_key)
        .where(outcomes.c.kind == "evidence", dispatches.c.launch_key.in_(list(launches)))
    )
    with ledger._database.read() as db:
        return int(db.execute(query).scalar_one())
