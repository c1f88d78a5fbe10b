"""The recipients of a launch with some verdicts as the audience of another launch."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.audience import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import CampaignFolder, Period, VerdictsOf, campaign_from, launch_key, load_campaign
from sendoff.errors import AudienceError, CampaignError, NotFoundError
from sendoff.launch import LaunchOptions, prepare_launch, preview_campaign, preview_launch
from sendoff.launch.plan import Plan, plan_launch
from sendoff.launch.verdict_audience import read_verdict_exclusions, read_verdicts
from sendoff.ledger import LaunchSource, Ledger
from sendoff.ledger.storage.schema import launches
from sendoff.report import as_text, describe_preview
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, Refused

from ...factories import KEY, NOW, PERIOD, make_audience, make_campaign, make_launch, post_back, send, store

FIELDS: dict[str, Any] = {
    "title": "Come back",
    "connection": "service",
    "message": {"title": "Still there", "text": "The sale ends tomorrow"},
    "channels": {"android_push": {}},
}


def read(ledger: Ledger, *verdicts: str) -> Audience:
    found = read_verdicts(ledger, reminder(VerdictsOf(KEY, verdicts)), PERIOD, now=NOW)
    assert found
    assert [each.launch_key for each in found.sources] == [KEY]
    return found.audience


def reminder(audience: Any = None, **source: Any) -> CampaignFolder:
    """Return a campaign with an audience, or to recipients of the campaign ``spring``."""
    fields = FIELDS | ({"audience": {"source": {"kind": "verdicts"} | source}} if source else {})
    return campaign_from(fields, "reminder", audience)


def plan(ledger: Ledger | None, folder: CampaignFolder, period: Period = PERIOD, **how: Any) -> Plan:
    return plan_launch(ledger, folder, period=period, warehouses=_no_warehouse, now=NOW, **how)


def _no_warehouse(name: str) -> str:
    raise AssertionError(f"the warehouse {name} is not asked")


def test_they_are_those_with_one_of_the_verdicts_but_not_the_holdout(ledger: Ledger) -> None:
    segments = [Segment(integers(range(1, 41))), Segment(integers(range(41, 81)))]
    held_out = integers(range(81, 91))
    make_launch(ledger, integers(range(1, 91)), segments=segments, suppressed={"holdout": held_out})
    first, _ = send(ledger, KEY, Accepted(200, 17), Refused(400, "no"))
    store(ledger, *(post_back(first, "open", who) for who in (1, 2, 3)))
    assert list(read(ledger, "engaged").identifiers) == [1, 2, 3]
    assert list(read(ledger, "engaged", "not_sent", "engaged").identifiers) == [1, 2, 3, *range(41, 81)]
    assert read(ledger, "in_doubt").rows == 0
    assert read(ledger, "engaged").identified_by == "device_id"


def test_the_launch_is_reconciled_first(ledger: Ledger) -> None:
    make_launch(ledger, integers([1, 2, 3]))
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, post_back(key, "delivery", 1))
    assert list(read(ledger, "missing").identifiers) == [2, 3]
    store(ledger, post_back(key, "delivery", 2))
    assert list(read(ledger, "missing").identifiers) == [3]


def test_who_responded_since_the_last_report_is_left_out(ledger: Ledger) -> None:
    make_launch(ledger, integers([1, 2, 3]))
    (key,) = send(ledger, KEY, Accepted(200, 17))
    engaged = {"exclude": [{"kind": "verdicts", "of": "spring", "are": ["engaged"]}]}
    folder = campaign_from(FIELDS | {"audience": engaged}, "reminder", "SELECT 1 AS device_id")
    for who in (1, 2):
        store(ledger, post_back(key, "open", who))
        audience = make_audience(integers([1, 2, 3]))
        excluded, _ = read_verdict_exclusions(ledger, folder, audience, PERIOD, now=NOW)
        assert [list(people) for people in excluded.values()] == [[*range(1, who + 1)]]


def test_an_unknown_verdict_and_none_at_all_are_errors_at_once() -> None:
    with pytest.raises(AudienceError, match=r"there is no verdict\. Use engaged, delivered"):
        VerdictsOf(KEY, ())
    with pytest.raises(AudienceError, match=r"'mising' is not a verdict \(did you mean 'missing'\?\)"):
        VerdictsOf(KEY, ("missing", "mising"))
    assert VerdictsOf(KEY, "missing") == VerdictsOf(KEY, ["missing"]) == VerdictsOf(KEY, ("missing",))
    with pytest.raises(AudienceError, match=r"found a object as the launch\. Use its key"):
        VerdictsOf(object(), ("missing",))  # type: ignore[arg-type]


def sent(ledger: Ledger, *delivered: int, people: range = range(1, 11), period: Period = PERIOD) -> str:
    """Send a push campaign to people on unknown platforms, some of them with a delivery."""
    key = make_launch(ledger, people, campaign=make_campaign(), period=period).launch_key
    (dispatch,) = send(ledger, key, Accepted(200, 17))
    store(ledger, *(post_back(dispatch, "delivery", who) for who in delivered))
    return key


def test_a_campaign_can_go_to_those_with_a_verdict_and_counts_those_who_cannot_be_known(
    ledger: Ledger,
) -> None:
    sent(ledger, 2, 3, 5)
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


def test_an_error_names_the_verdicts_that_no_one_has(ledger: Ledger) -> None:
    key = sent(ledger, *range(1, 11))
    with pytest.raises(
        AudienceError, match=rf"reminder: launch {key} has no one with the verdict in_doubt; nothing was sent"
    ):
        plan(ledger, reminder(VerdictsOf(key, ["in_doubt"])))
    with pytest.raises(
        AudienceError, match=r"reminder: campaign spring has no one with the verdict in_doubt or not_sent;"
    ):
        plan(ledger, reminder(of="spring", are=["in_doubt", "not_sent"]))


def test_the_newest_launch_whose_period_ends_within_the_period_counts(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sendoff.launch")
    before, after = (Period(PERIOD.start + days, PERIOD.end + days) for days in (-DAY, DAY))
    keys = {
        period: sent(ledger, who, period=period)
        for period, who in zip((before, PERIOD, after), (1, 2, 3), strict=True)
    }
    folder = reminder(of="spring", are=["delivered"])
    for period, key in keys.items():
        launch = prepare_launch(ledger, folder, period=period, warehouses=_no_warehouse, now=NOW)
        assert launch.launch_key == launch_key("service", "reminder", period)
        assert ledger.launches.sources(launch.launch_key) == [LaunchSource(key, ("delivered",), ("engaged",))]
        assert f"come from launch {key} of campaign spring, period {period.key}" in caplog.text


def test_recipients_keep_their_platform_so_that_silence_still_means_something(ledger: Ledger) -> None:
    people = integers(range(1, 5))
    platforms = {"chrome": integers([1, 2]), "android": integers([2, 3, 4])}  # 2 has both
    web = make_campaign(channels={"android_push": {}, "web_push": {"browsers": ["chrome"]}})
    make_launch(ledger, people, campaign=web, audience=make_audience(people, groups={"platform": platforms}))
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, *(post_back(key, "delivery", who) for who in (1, 3)))
    found = read(ledger, "delivered")
    assert found.groups == {"platform": {"chrome": integers([1]), "android": integers([3])}}
    folder = reminder(of="spring", are=["delivered", "missing"], unknowable="include")
    launch = prepare_launch(ledger, folder, period=PERIOD, warehouses=_no_warehouse, now=NOW)
    assert ledger.launches.groups(launch.launch_key, "platform") == platforms


def test_a_campaign_that_needs_languages_must_find_them_in_the_launch(ledger: Ledger) -> None:
    make_launch(ledger, integers([1, 2]))
    send(ledger, KEY, Accepted(200, 17))
    sms = {"sender": "Shop", "text": "Hello", "translations": {"de": {"text": "Guten Tag"}}}
    fields = {"title": "Come back", "connection": "service", "language": "en", "channels": {"sms": sms}}
    campaign = campaign_from(fields, "reminder", VerdictsOf(KEY, ("unknowable", "missing")))
    with pytest.raises(AudienceError, match="kept no languages"):
        read_verdicts(ledger, campaign, PERIOD, now=NOW)


def test_the_preview_names_the_launch_that_the_recipients_come_from(ledger: Ledger) -> None:
    key = sent(ledger, 1)
    folder = reminder(of="spring", are=["delivered"], unknowable="include")
    preview = preview_campaign(folder, period=PERIOD, warehouses=_no_warehouse, ledger=ledger, now=NOW)
    sentence = f"They come from the launch of spring for {PERIOD.key}: delivered, unknowable."
    assert sentence in " ".join(as_text(describe_preview(preview)).split())
    assert preview.to_json()["source"]["launch_keys"] == [key]
    launch = prepare_launch(ledger, folder, period=PERIOD, warehouses=_no_warehouse, now=NOW)
    assert preview_launch(ledger, launch.launch_key).source == preview.source


def test_an_older_launch_counts_only_if_the_campaign_allows_it_or_its_report_started_the_run(
    ledger: Ledger,
) -> None:
    key = sent(ledger, 1)
    later = Period(PERIOD.start + 3 * DAY, PERIOD.end + 3 * DAY)
    strict = reminder(of="spring", are=["delivered"])
    expected = (
        f"campaign spring has no launch on service for a period that ends within {later.key}, only an older one "
        f"for {PERIOD.key}. Launch it first, or allow an older one with days"
    )
    with pytest.raises(NotFoundError, match=re.escape(expected)):
        plan(ledger, strict, later)
    for days, period in (
        (1, later),
        (3, Period(later.end + DAY, later.end + DAY)),
    ):  # the latter has no length
        with pytest.raises(NotFoundError):
            plan(ledger, reminder(of="spring", are=["delivered"], days=days), period)
        older = reminder(of="spring", are=["delivered"], days=days + 1)
        assert plan(ledger, older, period).sources[0].launch_key == key
    of_report = LaunchOptions(reported=key)
    assert plan(ledger, strict, later, options=of_report).sources[0].launch_key == key
    with pytest.raises(NotFoundError):  # the report of another campaign
        plan(ledger, reminder(of="summer", are=["delivered"]), later, options=of_report)


def test_without_measured_opens_nobody_counts_as_delivered_and_not_opened(ledger: Ledger) -> None:
    unmeasured = make_campaign(post_backs={"kinds": ["delivery"]})
    make_launch(ledger, [1, 2], campaign=unmeasured)
    (key,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, post_back(key, "delivery", 1))
    for verdicts in (["delivered"], ["engaged", "missing"]):
        with pytest.raises(AudienceError, match=r"did not measure opens.*Add open to post_backs.kinds"):
            plan(ledger, reminder(of="spring", are=verdicts))
    assert list(read(ledger, "delivered", "engaged").identifiers) == [1]


@pytest.mark.parametrize("body", [b"{", b'{"campaign": {"id": 18}, "device": {"id": 1}}'])
def test_recipients_of_a_request_with_an_unread_open_are_unknown(ledger: Ledger, body: bytes) -> None:
    make_launch(ledger, range(1, 21), size=10, campaign=make_campaign())
    first, second = send(ledger, KEY, Accepted(200, 17), Accepted(200, 17))
    store(
        ledger,
        *(post_back(first, "delivery", who) for who in (1, 2)),
        *(post_back(second, "delivery", who) for who in (11, 12)),
        post_back(first, "open", 2),
        PostBack.received("open", first, NOW, body),
    )
    audience = plan(ledger, reminder(of="spring", are=["delivered"])).audience
    assert audience is not None
    assert (list(audience.identifiers), audience.dropped) == ([11, 12], {"unknowable": 17})
    everyone = plan(ledger, reminder(of="spring", are=["delivered"], unknowable="include")).audience
    assert everyone is not None
    assert list(everyone.identifiers) == [1, *range(3, 21)]
    opened = plan(ledger, reminder(of="spring", are=["engaged"])).audience
    assert opened is not None
    assert (list(opened.identifiers), opened.dropped) == ([2], {"unknowable": 17})
    assert list(read(ledger, "delivered", "engaged").identifiers) == [1, 2, 11, 12]


def test_errors_say_what_is_missing(ledger: Ledger) -> None:
    folder = reminder(of="spring", are=["missing"])
    start = "campaign reminder: audience.source: "
    within = f"on service for a period that ends within {PERIOD.key}"
    with pytest.raises(
        NotFoundError, match=f"{start}campaign spring has no launch {within}. Launch it first"
    ):
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
    with pytest.raises(CampaignError, match=r"audience\.source\.verdicts\.are"):
        reminder(of="spring", are=["mising"])


DAY = timedelta(days=1)
PUSH = "channels: {android_push: {}}\n"


def test_a_launch_whose_rest_was_rejected_counts_because_its_test_share_was_sent(ledger: Ledger) -> None:
    make_launch(ledger, [1, 2, 3, 4], size=2)
    send(ledger, KEY, Accepted(200, 17))
    source = {"of": "spring", "are": ["delivered"]}
    with ledger._database.write() as db:
        db.execute(sa.update(launches).values(state="rejected"))
    found = read_verdicts(ledger, reminder(**source), PERIOD, now=NOW)
    assert found
    assert [each.launch_key for each in found.sources] == [KEY]
