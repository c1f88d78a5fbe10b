"""Recipients that the channels of a campaign cannot reach."""

from __future__ import annotations

import pytest

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign
from sendoff.launch import reached_recipients
from sendoff.ledger import Ledger

from ...factories import make_audience, make_launch

PUSH = Campaign.model_validate(
    {"title": "Spring", "message": {"title": "Hello", "text": "It is spring"}, "channels": {"ios_push": {}}}
)


@pytest.mark.parametrize(
    ("on_android", "in_segments", "reached"),
    [
        ({3, 4}, {1, 2, 3, 4, 5}, 3),
        ({3, 4}, {1, 2, 4, 5}, 3),
        ({3, 4}, {1, 2, 5}, None),  # the two are in the holdout
        (set(), {1, 2, 3, 4, 5}, None),
    ],
)
def test_the_recipients_without_a_channel_are_not_counted(
    ledger: Ledger, on_android: set[int], in_segments: set[int], reached: int | None
) -> None:
    everybody = {1, 2, 3, 4, 5}
    groups = {"ios": integers(everybody - on_android), "android": integers(on_android)}
    audience = make_audience(integers(everybody), groups={"platform": groups})
    launch = make_launch(ledger, sorted(in_segments), audience=audience, campaign=PUSH, size=2)
    assert reached_recipients(ledger, launch) == reached
