"""The demo's comparison of verdicts with the service's own record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.demo.verification import DeviceRecord, VerificationResult, device_records, verify
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.states import Accepted, InDoubt, Outcome, Refused

from ..factories import KEY, NOW, make_audience, make_campaign, make_launch, post_back, send, store

# Devices 1 to 6 were requested, 7 and 8 refused, and 9 and 10 are in doubt. Nothing was delivered.
OUTCOMES: tuple[Outcome, ...] = (
    Accepted(200, 1),
    Accepted(200, 2),
    Accepted(200, 3),
    Refused(400, "no"),
    InDoubt("reset"),
)
PLATFORMS = ("ios", "chrome")  # for even and odd device IDs
CAMPAIGN = make_campaign(channels={"ios_push": {}, "web_push": {"browsers": ["chrome"]}})


@pytest.fixture
def ledger(migrated_url: str) -> Iterator[Ledger]:
    ledger = Ledger(migrated_url)
    everybody = integers(range(1, 11))
    platforms = {PLATFORMS[odd]: integers(d for d in everybody if d % 2 == odd) for odd in (0, 1)}
    audience = make_audience(everybody, groups={"platform": platforms})
    make_launch(ledger, everybody, size=2, audience=audience, campaign=CAMPAIGN)
    send(ledger, KEY, *OUTCOMES)
    reconcile_launch(ledger, KEY, now=NOW)
    yield ledger
    ledger.close()


def truth(*devices: int, delivered: tuple[int, ...] = (), opened: tuple[int, ...] = ()) -> Mapping[str, Any]:
    """Return the service's record of a campaign to ``devices``, as its admin route returns it."""
    platforms = {PLATFORMS[odd]: [device for device in devices if device % 2 == odd] for odd in (0, 1)}
    return {"targeted": list(devices), "delivered": delivered, "opened": opened, "platforms": platforms}


def test_silence_is_the_truth_where_nothing_was_delivered(ledger: Ledger) -> None:
    found = verify(ledger, KEY, device_records([truth(1, 2), truth(3, 4), truth(5, 6)]))
    assert found == VerificationResult(equal=10, differences={})
    assert found.holds


@pytest.mark.parametrize(
    ("first", "more", "differences"),
    [
        # a delivery without a post-back, to a browser that reports deliveries
        (truth(1, 2, delivered=(1,)), (), {("delivered", "missing"): 1}),
        # a delivery to a phone, which reports none, so nothing differs
        (truth(1, 2, delivered=(2,)), (), {}),
        # an open that never arrived
        (truth(1, 2, delivered=(2,), opened=(2,)), (), {("engaged", "unknowable"): 1}),
        # a second campaign for the same device
        (truth(1, 2), (truth(1),), {("sent to twice", "missing"): 1}),
        # a campaign that is refused according to the ledger
        (truth(1, 2), (truth(7, 8),), {("sent to without a dispatch", "not_sent"): 2}),
        # a campaign for a person outside the audience
        (truth(1, 2, 11), (), {("sent to without a dispatch", "without a verdict"): 1}),
    ],
)
def test_what_differs_is_counted_by_kind(
    ledger: Ledger,
    first: Mapping[str, Any],
    more: tuple[Mapping[str, Any], ...],
    differences: Mapping[tuple[str, str], int],
) -> None:
    records = device_records([first, truth(3, 4), truth(5, 6), *more])
    assert verify(ledger, KEY, records).differences == differences


def test_a_device_with_two_verdicts_is_a_difference(ledger: Ledger) -> None:
    sets = ledger.verdicts.sets(KEY)
    ledger.verdicts.store(ledger.verdicts.figures(KEY), sets | {"engaged": integers([1])})
    found = verify(ledger, KEY, device_records([truth(1, 2), truth(3, 4), truth(5, 6)]))
    assert sum(found.differences.values()) == 1
    assert not found.holds


@pytest.mark.parametrize(
    ("records", "differences"),
    [
        ({}, {}),
        (
            {1: DeviceRecord("ios", delivered=False, opened=False)},
            {("sent to without a dispatch", "not_sent"): 1},
        ),
    ],
)
def test_who_is_held_out_is_not_sent(
    ledger: Ledger, records: dict[int, DeviceRecord], differences: Mapping[tuple[str, str], int]
) -> None:
    held_out = {"holdout": integers([1, 2])}
    launch = make_launch(
        ledger,
        [1, 2, 3],
        segments=[Segment(integers([3]))],
        suppressed=held_out,
        name="another",
        campaign=CAMPAIGN,
    )
    reconcile_launch(ledger, launch.launch_key, now=NOW)
    assert verify(ledger, launch.launch_key, records).differences == differences


# According to the service, 1 and 2 opened, and 3 and 4 got a delivery (4 is an iPhone). There is no report on 5.
CHOSEN_BY_SERVICE = device_records([truth(1, 2, 3, 4, 5, delivered=(1, 2, 3, 4), opened=(1, 2))])


@pytest.mark.parametrize(
    ("outcome", "engaged", "delivered", "differences"),
    [
        (Accepted(200, 1), (1, 2), (3,), {}),
        (InDoubt("reset"), (1, 2), (3,), {}),
        # an open and a delivery that never arrived
        (
            Accepted(200, 1),
            (1,),
            (),
            {("engaged", "without a verdict"): 1, ("delivered", "without a verdict"): 1},
        ),
        # a person without any report from the service, and a stranger
        (
            Accepted(200, 1),
            (1, 2, 5),
            (3, 6),
            {("not in the audience", "engaged"): 1, ("not in the audience", "delivered"): 1},
        ),
        # a campaign that is refused according to the ledger
        (Refused(400, "no"), (), (), {("sent to without a dispatch", "without a verdict"): 5}),
    ],
)
def test_of_people_whom_the_service_chose_those_reported_are_compared(
    ledger: Ledger,
    outcome: Outcome,
    engaged: tuple[int, ...],
    delivered: tuple[int, ...],
    differences: Mapping[tuple[str, str], int],
) -> None:
    key = make_launch(ledger, name="another", campaign=CAMPAIGN).launch_key
    (dispatch,) = send(ledger, key, outcome)
    events = [("open", device) for device in engaged] + [("delivery", device) for device in delivered]
    store(ledger, *(post_back(dispatch, kind, device, campaign=1) for kind, device in events))
    reconcile_launch(ledger, key, now=NOW)
    assert verify(ledger, key, CHOSEN_BY_SERVICE).differences == differences


def test_a_comparison_of_nothing_does_not_hold() -> None:
    assert not VerificationResult(equal=0, differences={}).holds


def test_differences_are_said_in_words() -> None:
    found = VerificationResult(equal=8, differences={("delivered", "missing"): 2})
    assert str(found) == "2 devices should be 'delivered' and are 'missing'; 8 are equal"
