"""The recipients of a launch with some verdicts as the audience of another launch."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sendoff.audience import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import CampaignFolder, VerdictsOf, campaign_from, load_campaign
from sendoff.errors import AudienceError, CampaignError, NotFoundError
from sendoff.launch import plan_launch, prepare_launch
from sendoff.launch.plan import Plan
from sendoff.launch.verdict_audience import read_verdicts
from sendoff.ledger import Ledger
from sendoff.period import Period, launch_key
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.states import Accepted, Refused

from ...factories import KEY, NOW, PERIOD, make_campaign, make_launch, post_back, send, store

FIELDS: dict[str, Any] = {
    "title": "Come back",
    "connection": "service",
    "message": {"title": "Still there", "text": "The sale ends tomorrow"},
    "channels": {"android_push": {}},
}


def read(ledger: Ledger, *verdicts: str) -> Audience:
    audience = read_verdicts(ledger, reminder(VerdictsOf(KEY, verdicts)), PERIOD)
    assert audience
    return audience


def reminder(audience: Any = None, **source: Any) -> CampaignFolder:
    """Return a campaign with an audience, or to recipients of the campaign ``spring``."""
    fields = FIELDS | ({"audience": {"source": {"kind": "verdicts"} | source}} if source else {})
    return campaign_from(fields, "reminder", audience)


def plan(ledger: Ledger | None, folder: CampaignFolder, period: Period = PERIOD) -> Plan:
    return plan_launch(ledger, folder, period=period, warehouses=_no_warehouse, now=NOW)


def _no_warehouse(name: str) -> str:
    raise AssertionError(f"the warehouse {name} is not asked")


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


def test_an_unknown_verdict_is_an_error_at_once() -> None:
    with pytest.raises(AudienceError, match=r"'mising' is not a verdict \(did you mean 'missing'\?\)"):
        VerdictsOf(KEY, ("missing", "mising"))


def reconciled(ledger: Ledger, *delivered: int, people: range = range(1, 11), period: Period = PERIOD) -> str:
    """Send a push campaign to people on unknown platforms, some of them with a delivery, and report it."""
    key = make_launch(ledger, people, campaign=make_campaign(), period=period).launch_key
    (dispatch,) = send(ledger, key, Accepted(200, 17))
    store(ledger, *(post_back(dispatch, "delivery", who) for who in delivered))
    reconcile_launch(ledger, key, now=NOW)
    return key


def test_a_campaign_can_go_to_those_with_a_verdict_and_counts_those_who_cannot_be_known(
    ledger: Ledger,
) -> None:
    reconciled(ledger, 2, 3, 5)
    reached = plan(ledger, reminder(of="spring", are=["delivered"]))
    assert reached.audience is not None
    assert list(reached.audience.identifiers) == [2, 3, 5]
    assert reached.audience.dropped == {"unknowable": 7}
    assert reached.audience.rows == 10
    everyone = plan(ledger, reminder(of="spring", are=["delivered"], unknowable="include"))
    assert everyone.audience is not None
    assert list(everyone.audience.identifiers) == list(range(1, 11))
    assert everyone.audience.dropped == {}
    with pytest.raises(AudienceError, match=r"none of the 7 rows is left \(7 unknowable\); nothing was sent"):
        plan(ledger, reminder(of="spring", are=["engaged"], unknowable="leave_out"))


def test_the_newest_launch_up_to_the_end_of_the_period_counts(ledger: Ledger) -> None:
    before, after = (Period(PERIOD.start + days, PERIOD.end + days) for days in (-DAY, DAY))
    for period, who in ((before, 1), (PERIOD, 2), (after, 3)):
        reconciled(ledger, who, period=period)
    folder = reminder(of="spring", are=["delivered"])
    for period, who in ((before, 1), (PERIOD, 2), (after, 3)):
        launch = prepare_launch(ledger, folder, period=period, warehouses=_no_warehouse, now=NOW)
        assert launch.launch_key == launch_key("service", "reminder", period)
        assert list(ledger.launches.sent(launch.launch_key)) == [who]


def test_errors_say_what_is_missing(ledger: Ledger) -> None:
    folder = reminder(of="spring", are=["missing"])
    start = "campaign reminder: audience.source: "
    with pytest.raises(NotFoundError, match=f"{start}campaign spring has no launch up to 2026-03-02 00:00"):
        plan(ledger, folder)
    make_launch(ledger, [1])
    with pytest.raises(NotFoundError, match=f"{start}launch {KEY} has not been reconciled yet"):
        plan(ledger, folder)
    with pytest.raises(
        AudienceError, match=f"{start}the verdicts are in the ledger, but no ledger was given"
    ):
        plan(None, folder)


def test_a_folder_with_such_a_source_has_no_query(tmp_path: Path) -> None:
    folder = tmp_path / "reminder"
    folder.mkdir()
    source = "audience: {source: {kind: verdicts, of: spring, are: [missing]}}\n"
    (folder / "campaign.yaml").write_text(f"title: Come back\nmessage: {{title: A, text: B}}\n{PUSH}{source}")
    loaded = load_campaign(folder)
    assert loaded.audience_sql is None
    assert loaded.campaign.audience.source
    (folder / "audience.sql").write_text("SELECT 1 AS device_id")
    with pytest.raises(CampaignError, match=r"found a query with audience.source.kind: verdicts. Remove one"):
        load_campaign(folder)
    with pytest.raises(CampaignError, match=r"found an audience with audience.source.kind: verdicts"):
        reminder("SELECT 1 AS device_id", of="spring", are=["missing"])
    with pytest.raises(CampaignError, match=r"audience\.source\.are"):
        reminder(of="spring", are=["mising"])


DAY = timedelta(days=1)
PUSH = "channels: {android_push: {}}\n"
