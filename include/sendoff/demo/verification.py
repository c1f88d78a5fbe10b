"""Compare the ledger's verdicts with the service's own record, device by device.

This is a second implementation of the rules, written from section 6 of the service's document and not from
:mod:`sendoff.postbacks.reconcile`. So a mistake there becomes visible here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sendoff.audience.identifiers import Identifiers
from sendoff.ledger import Ledger
from sendoff.states import DispatchState, Verdict

DELIVERY_NOT_REPORTED = frozenset({"android", "ios", "safari"})
_NEVER_REQUESTED = frozenset({DispatchState.PLANNED, DispatchState.REFUSED, DispatchState.SUPPRESSED})
_SILENT = frozenset({Verdict.MISSING, Verdict.UNKNOWABLE, Verdict.IN_DOUBT})


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """The service's record of one device: its platform, and whether a message was delivered and opened."""

    platform: str
    delivered: bool
    opened: bool
    campaigns: int = 1  # the number of campaigns that targeted it


def device_records(campaigns: Iterable[Mapping[str, Any]]) -> dict[int, DeviceRecord]:
    """Combine the service's records of its campaigns, as its admin route returns them, by device ID."""
    records: dict[int, DeviceRecord] = {}
    for campaign in campaigns:
        delivered, opened = set(campaign["delivered"]), set(campaign["opened"])
        for platform, devices in campaign["platforms"].items():
            for device in devices:
                before = records.get(
                    device, DeviceRecord(platform, delivered=False, opened=False, campaigns=0)
                )
                records[device] = DeviceRecord(
                    platform,
                    delivered=before.delivered or device in delivered,
                    opened=before.opened or device in opened,
                    campaigns=before.campaigns + 1,
                )
    return records


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The number of devices with the expected verdict, and the number for each kind of difference."""

    equal: int
    differences: Mapping[tuple[str, str], int]  # (expected verdict, verdict in the ledger) -> devices

    @property
    def holds(self) -> bool:
        """Whether something was compared and nothing differs."""
        return self.equal > 0 and not self.differences

    def __str__(self) -> str:
        """Return a sentence for each kind of difference."""
        if self.holds:
            return f"{self.equal:,} verdicts, each equal to the service's own record"
        sentences = [
            f"{count:,} devices should be {str(expected)!r} and are {str(verdict)!r}"
            for (expected, verdict), count in sorted(self.differences.items())
        ]
        return "; ".join([*sentences, f"{self.equal:,} are equal"])


def verify(ledger: Ledger, launch_key: str, records: Mapping[int, DeviceRecord]) -> VerificationResult:
    """Compare every verdict of a launch with ``records``, by device ID.

    A device is a difference if it has two verdicts or none, or was sent to twice or without a dispatch. If the service
    chose the people, only those in its reports have a verdict.
    """
    actual = _verdicts(ledger.verdicts.sets(launch_key))
    expected = _expected(ledger, launch_key, records)
    pairs = Counter(
        (expected.get(device, "not in the audience"), actual.get(device, "without a verdict"))
        for device in expected.keys() | actual.keys()
    )
    return VerificationResult(
        equal=sum(count for (expectation, verdict), count in pairs.items() if expectation == verdict),
        differences={pair: count for pair, count in pairs.items() if pair[0] != pair[1]},
    )


def _verdicts(sets: Mapping[str, Identifiers]) -> dict[int, str]:
    verdicts: dict[int, str] = {}
    for verdict, devices in sets.items():
        for device in devices:
            verdicts[int(device)] = (
                f"{verdicts[int(device)]} and {verdict}" if int(device) in verdicts else verdict
            )
    return verdicts


def _expected(ledger: Ledger, launch_key: str, records: Mapping[int, DeviceRecord]) -> dict[int, str]:
    platforms = {
        int(device): platform
        for platform, devices in ledger.launches.groups(launch_key, "platform").items()
        for device in devices
    }
    expected = dict.fromkeys(records, "sent to without a dispatch")
    for identifier in ledger.launches.suppressed(launch_key, "holdout").get("holdout", ()):
        expected.setdefault(int(identifier), Verdict.NOT_SENT)
    for dispatch in ledger.dispatch_queries.of_launch(launch_key):
        segment = ledger.dispatch_queries.segment(launch_key, dispatch.segment)
        if segment.identifiers is None:
            return _observed(dispatch.state, records)
        for identifier in segment.identifiers:
            device = int(identifier)
            expected[device] = _verdict(dispatch.state, records.get(device), platforms.get(device))
    return expected


def _observed(state: str, records: Mapping[int, DeviceRecord]) -> dict[int, str]:
    verdicts = {device: _verdict(state, record, None) for device, record in records.items()}
    return {device: verdict for device, verdict in verdicts.items() if verdict not in _SILENT}


def _verdict(state: str, record: DeviceRecord | None, platform: str | None) -> str:
    if state in _NEVER_REQUESTED:
        return "sent to without a dispatch" if record else Verdict.NOT_SENT
    if record and record.campaigns > 1:
        return "sent to twice"
    reported = (record.platform if record else platform) not in DELIVERY_NOT_REPORTED
    if record and record.opened:
        return Verdict.ENGAGED
    if record and record.delivered and reported:
        return Verdict.DELIVERED
    if state != DispatchState.ACCEPTED:
        return Verdict.IN_DOUBT
    return Verdict.MISSING if reported else Verdict.UNKNOWABLE
