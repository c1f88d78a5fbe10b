"""The ledger's verdicts against the service's own record of what happened, device by device.

The rules stand here a second time, written from section 6 of the service's document and not from
:mod:`sendoff.postbacks.reconcile`, so that a mistake there shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sendoff.audience.identifiers import Identifiers
from sendoff.ledger import Ledger

DELIVERY_NOT_REPORTED = frozenset({"android", "ios", "safari"})
_NEVER_REQUESTED = frozenset({"planned", "refused"})
_SILENT = frozenset({"missing", "unknowable", "in_doubt"})


@dataclass(frozen=True, slots=True)
class Fact:
    """What the service recorded of one device: its platform, and what became of what was sent to it."""

    platform: str
    delivered: bool
    opened: bool
    campaigns: int = 1  # of how many it was a target


def facts_of(truths: Iterable[Mapping[str, Any]]) -> dict[int, Fact]:
    """Gather the service's records of its campaigns, each as its admin route gives it, by device id."""
    found: dict[int, Fact] = {}
    for truth in truths:
        delivered, opened = set(truth["delivered"]), set(truth["opened"])
        for platform, devices in truth["platforms"].items():
            for device in devices:
                before = found.get(device, Fact(platform, delivered=False, opened=False, campaigns=0))
                found[device] = Fact(
                    platform,
                    delivered=before.delivered or device in delivered,
                    opened=before.opened or device in opened,
                    campaigns=before.campaigns + 1,
                )
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many devices have the verdict that the truth asks for, and each kind of difference with its number."""

    equal: int
    differences: Mapping[tuple[str, str], int]  # (what the truth asks for, what the ledger says) -> devices

    @property
    def holds(self) -> bool:
        """Whether something was compared and nothing differs."""
        return self.equal > 0 and not self.differences

    def __str__(self) -> str:
        """Say it in a line for each kind of difference."""
        if self.holds:
            return f"{self.equal:,} verdicts, each equal to the service's own record"
        found = [
            f"{count:,} devices should be {expected!r} and are {verdict!r}"
            for (expected, verdict), count in sorted(self.differences.items())
        ]
        return "; ".join([*found, f"{self.equal:,} are equal"])


def compare(ledger: Ledger, launch_key: str, facts: Mapping[int, Fact]) -> Comparison:
    """Compare every verdict of a launch over device ids with ``facts``, by device id.

    A device that has two verdicts, or none, that was sent to twice, or without a dispatch, is a difference. Where the
    service chose the people, only those of whom it reported something have a verdict.
    """
    found = _verdicts(ledger.verdicts.sets(launch_key))
    expected = _expected(ledger, launch_key, facts)
    pairs = Counter(
        (expected.get(device, "not in the audience"), found.get(device, "without a verdict"))
        for device in expected.keys() | found.keys()
    )
    return Comparison(
        equal=sum(count for (wanted, verdict), count in pairs.items() if wanted == verdict),
        differences={pair: count for pair, count in pairs.items() if pair[0] != pair[1]},
    )


def _verdicts(sets: Mapping[str, Identifiers]) -> dict[int, str]:
    found: dict[int, str] = {}
    for verdict, devices in sets.items():
        for device in devices:
            found[int(device)] = f"{found[int(device)]} and {verdict}" if int(device) in found else verdict
    return found


def _expected(ledger: Ledger, launch_key: str, facts: Mapping[int, Fact]) -> dict[int, str]:
    platforms = {
        int(device): platform
        for platform, devices in ledger.launches.groups(launch_key, "platform").items()
        for device in devices
    }
    expected = dict.fromkeys(facts, "sent to without a dispatch")
    for each in ledger.launches.left_out(launch_key, "holdout").get("holdout", ()):
        expected.setdefault(int(each), "not_sent")
    for dispatch in ledger.dispatches.of_launch(launch_key):
        segment = ledger.dispatches.segment(launch_key, dispatch.segment)
        if segment.identifiers is None:
            return _heard_of(dispatch.state, facts)
        for each in segment.identifiers:
            device = int(each)
            expected[device] = _verdict(dispatch.state, facts.get(device), platforms.get(device))
    return expected


def _heard_of(state: str, facts: Mapping[int, Fact]) -> dict[int, str]:
    verdicts = {device: _verdict(state, fact, None) for device, fact in facts.items()}
    return {device: verdict for device, verdict in verdicts.items() if verdict not in _SILENT}


def _verdict(state: str, fact: Fact | None, platform: str | None) -> str:
    if state in _NEVER_REQUESTED:
        return "sent to without a dispatch" if fact else "not_sent"
    if fact and fact.campaigns > 1:
        return "sent to twice"
    reported = (fact.platform if fact else platform) not in DELIVERY_NOT_REPORTED
    if fact and fact.opened:
        return "engaged"
    if fact and fact.delivered and reported:
        return "delivered"
    if state != "accepted":
        return "in_doubt"
    return "missing" if reported else "unknowable"
