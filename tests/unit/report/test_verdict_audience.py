"""The recipients of a launch with some verdicts as the audience of another launch."""

from __future__ import annotations

from typing import Any

import pytest

from sendoff.audience import build_audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.errors import AudienceError, NotFoundError
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import VerdictsOf
from sendoff.states import Accepted, Refused

from ...factories import KEY, NOW, make_launch, post_back, send, store


def read(ledger: Ledger, *verdicts: str) -> Any:
    with VerdictsOf(KEY, verdicts).rows(ledger).open() as batches:
        return build_audience(batches)


def test_they_are_those_with_one_of_the_verdicts_but_not_the_holdout(ledger: Ledger) -> None:
    segments = [Segment(integers(range(1, 41))), Segment(integers(range(41, 81)))]
    held_out = integers(range(81, 91))
    make_launch(ledger, integers(range(1, 91)), segments=segments, suppressed={"holdout": held_out})
    first, _ = send(ledger, KEY, Accepted(200, 17), Refused(400, "no"))
    store(ledger, *(post_back(first, "open", who) for who in (1, 2, 3)))
    reconcile_launch(ledger, KEY, now=NOW)
    assert list(read(ledger, "engaged").identifiers) == [1, 2, 3]
    assert list(read(ledger, "engaged", "not_sent", "engaged").identifiers) == [1, 2, 3, *range(41, 81)]
    assert read(ledger, "in_doubt").rows == 0
    assert read(ledger, "engaged").identified_by == "device_id"


def test_a_launch_without_a_report_has_no_verdicts(ledger: Ledger) -> None:
    make_launch(ledger, integers([1]))
    with pytest.raises(NotFoundError, match="has not been reconciled yet"):
        read(ledger, "missing")


def test_an_unknown_verdict_is_an_error_at_once(ledger: Ledger) -> None:
    with pytest.raises(AudienceError, match=r"'mising' is not a verdict \(did you mean 'missing'\?\)"):
        VerdictsOf(KEY, ("missing", "mising")).rows(ledger)
