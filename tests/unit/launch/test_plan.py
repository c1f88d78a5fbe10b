"""Planning a launch: read and frozen once, and cut into segments by language if needed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import DEFAULT_VARIATION, Segment, segments_of
from sendoff.campaign import Campaign, CampaignFolder, Period, campaign_from
from sendoff.dispatch import stop
from sendoff.errors import AudienceError, CampaignError, GateError, LateError, PermanentError, QueryError
from sendoff.launch import plan, prepare_tests, preview_campaign, preview_launch
from sendoff.launch.plan import LaunchOptions, Plan, plan_launch, prepare_launch
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.postbacks import maintain
from sendoff.report import as_text, describe_preview
from sendoff.states import Accepted

from ...factories import PERIOD, make_warehouse, send

SQL = "SELECT device_id, platform FROM devices WHERE seen < :period_end"
PUSH = Campaign.model_validate(
    {
        "title": "Spring",
        "message": {"title": "Hello", "text": "It is spring"},
        "channels": {"android_push": {}},
        "segment_size": 2,
    }
)
EMAIL = Campaign.model_validate(
    {
        "title": "Spring",
        "language": "en",
        "segment_size": 2,
        "channels": {
            "email": {
                "from_address": 1,
                "subject": "Hello",
                "text": "It is spring",
                "translations": {"fr": {"subject": "Bonjour", "text": "C'est le printemps"}},
            }
        },
    }
)


def folder(campaign: Campaign = PUSH, sql: str | None = SQL) -> CampaignFolder:
    return CampaignFolder("spring", campaign, sql, Path("spring"))


def changed(**fields: Any) -> Campaign:
    return Campaign.model_validate(PUSH.model_dump(exclude_unset=True) | fields)


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    rows = [(n, "android", "2026-02-01 00:00:00") for n in range(1, 6)]
    rows += [(None, "ios", "2026-02-01 00:00:00"), (9, "ios", "2026-03-05 00:00:00")]
    return make_warehouse(
        tmp_path / "warehouse.db", "devices (device_id INTEGER, platform TEXT, seen TEXT)", rows
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"schedule_time_zone": "Europe/Dublin"},
            "schedule_time_zone: found schedule_time_zone without schedule",
        ),
        ({"schedule": "0 25 * * *"}, "schedule: found hour 25. Use 0 to 23"),
        (
            {"message": {"text": "Hello {{name"}},
            "message.text: found {{name at character 7, which no }} closes",
        ),
    ],
)
def test_a_campaign_that_was_made_in_python_breaks_no_rules_either(
    ledger: Ledger, warehouse: str, fields: dict[str, Any], problem: str
) -> None:
    campaign = Campaign.model_validate(PUSH.model_dump(exclude_unset=True) | fields)
    with pytest.raises(CampaignError, match=re.escape(problem)):
        prepare_launch(ledger, folder(campaign), period=PERIOD, warehouses=lambda _: warehouse)
    assert ledger.launches.count(campaign.connection) == 0


def test_a_launch_freezes_what_the_query_gave_for_its_period(ledger: Ledger, warehouse: str) -> None:
    launch = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse)
    assert (launch.rows, launch.audience, launch.segments) == (6, 5, 3)
    assert launch.dropped["null"] == 1
    assert ledger.launches.audience(launch.launch_key) == integers([1, 2, 3, 4, 5])


@pytest.mark.parametrize(("campaign", "is_kept"), [(PUSH, False), (EMAIL, True)], ids=["push", "email"])
def test_languages_are_stored_only_if_they_are_sent_apart(
    ledger: Ledger, warehouse: str, campaign: Campaign, is_kept: bool
) -> None:
    sql = "SELECT device_id, platform, 'fr' AS language FROM devices WHERE device_id IS NOT NULL"
    launch = prepare_launch(ledger, folder(campaign, sql), period=PERIOD, warehouses=lambda _: warehouse)
    assert bool(ledger.launches.groups(launch.launch_key, "language")) is is_kept
    assert ledger.launches.groups(launch.launch_key, "platform")
    plan = plan_launch(
        ledger, folder(campaign, sql), period=PERIOD, warehouses=lambda _: warehouse, now=PERIOD.end
    )
    assert plan.audience is not None
    assert "language" in plan.audience.groups  # a preview shows them


@pytest.mark.promise("twice/frozen")
def test_the_same_period_again_is_the_same_launch_and_asks_no_warehouse(
    ledger: Ledger, warehouse: str
) -> None:
    first = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse)
    assert (
        prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: "sqlite:////nowhere/at/all.db")
        == first
    )


def test_an_unfinished_launch_for_more_people_than_the_size_limit_is_not_continued(
    ledger: Ledger, warehouse: str
) -> None:
    def prepare(size_limit: int | None) -> LaunchRecord:
        options = LaunchOptions(size_limit=size_limit)
        return prepare_launch(
            ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse, options=options
        )

    first = prepare(4)
    assert prepare(4) == prepare(None) == first
    too_many = r"made before, for more people than the size limit of 3\. Leave out the limit, or stop"
    with pytest.raises(PermanentError, match=too_many):
        prepare(3)
    with pytest.raises(PermanentError, match=too_many):
        preview_campaign(
            folder(),
            ledger=ledger,
            period=PERIOD,
            warehouses=lambda _: warehouse,
            options=LaunchOptions(size_limit=3),
        )
    send(ledger, first.launch_key, Accepted(200, 17), Accepted(200, 18))
    assert prepare(3) == first


def test_a_launch_that_was_stopped_is_returned_for_every_size_limit(ledger: Ledger, warehouse: str) -> None:
    first = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse)
    stop(ledger, first.launch_key, "ann", "too many", now=PERIOD.end)
    options = LaunchOptions(size_limit=1)
    again = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse, options=options)
    assert (again.launch_key, again.state) == (first.launch_key, "stopped")


def test_a_resend_is_another_launch(ledger: Ledger, warehouse: str) -> None:
    first = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse)
    again = LaunchOptions(resend=1, reason="the link was broken")
    assert (
        prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse, options=again)
        != first
    )


def test_an_audience_of_nobody_is_an_error_that_says_why(ledger: Ledger, warehouse: str) -> None:
    early = Period(PERIOD.start - timedelta(days=99), PERIOD.start - timedelta(days=98))
    with pytest.raises(AudienceError, match="spring: the audience query returned no rows"):
        prepare_launch(ledger, folder(), period=early, warehouses=lambda _: warehouse)
    nulls = folder(sql="SELECT device_id FROM devices WHERE device_id IS NULL")
    with pytest.raises(AudienceError, match=r"none of the 1 rows is left .*1 null"):
        prepare_launch(ledger, nulls, period=PERIOD, warehouses=lambda _: warehouse)
    assert ledger.launches.search() == []


def test_the_ledger_keeps_why_a_launch_was_not_made_until_it_is_made(ledger: Ledger, warehouse: str) -> None:
    picky = folder(changed(gates={"least": 1_000}))

    def attempt(given: CampaignFolder, **options: Any) -> None:
        with pytest.raises((GateError, LateError)):
            prepare_launch(
                ledger, given, period=PERIOD, warehouses=lambda _: warehouse, options=LaunchOptions(**options)
            )

    attempt(picky)
    [entry] = ledger.not_launched.newest()
    assert (entry.campaign, entry.title, entry.period, entry.resend) == ("spring", "Spring", PERIOD, 0)
    assert entry.why == "5 devices, at least 1,000 wanted"
    attempt(folder(changed(gates={"most": 2, "change": 10})))  # a retry, after a change
    [entry] = ledger.not_launched.newest(["spring"])
    assert entry.why == "5 devices, at most 2 allowed"
    assert ledger.not_launched.newest(["another"]) == []
    late = {"schedule": "@daily", "gates": {"lateness": {"length": 1, "unit": "days"}}}
    attempt(folder(changed(**late)), due_at=PERIOD.end)
    assert re.fullmatch(
        r"\d+ days .* after it was due, at most 1 day allowed", ledger.not_launched.newest()[0].why
    )
    prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse)
    assert ledger.not_launched.newest() == []


def test_an_empty_audience_is_kept_as_the_reason_too(ledger: Ledger, warehouse: str) -> None:
    for sql, why in (
        (SQL + " AND device_id < 0", "the audience is empty"),
        (f"{SQL} AND device_id IS NULL", "none of 1 row of the query is left: 1 null"),
    ):
        with pytest.raises(AudienceError):
            prepare_launch(ledger, folder(sql=sql), period=PERIOD, warehouses=lambda _: warehouse)
        assert [entry.why for entry in ledger.not_launched.newest()] == [why]


def test_other_errors_are_no_launches_that_were_not_made(ledger: Ledger, warehouse: str) -> None:
    for sql in ("SELECT nothing FROM nowhere", "SELECT 'x' AS device_id"):
        with pytest.raises((QueryError, AudienceError)):
            prepare_launch(ledger, folder(sql=sql), period=PERIOD, warehouses=lambda _: warehouse)
    assert ledger.not_launched.newest() == []


def test_old_reasons_are_deleted(ledger: Ledger, warehouse: str) -> None:
    with pytest.raises(GateError):
        prepare_launch(
            ledger,
            folder(changed(gates={"least": 9})),
            period=PERIOD,
            warehouses=lambda _: warehouse,
            now=PERIOD.end,
        )
    maintain(ledger, timedelta(days=90), now=PERIOD.end + timedelta(days=89))
    assert len(ledger.not_launched.newest()) == 1
    maintain(ledger, timedelta(days=90), now=PERIOD.end + timedelta(days=91))
    assert ledger.not_launched.newest() == []


def test_a_broken_query_leaves_nothing_behind(ledger: Ledger, warehouse: str) -> None:
    with pytest.raises(QueryError, match=r"^campaign spring: audience\.sql: the warehouse said: "):
        prepare_launch(
            ledger, folder(sql="SELECT nothing FROM nowhere"), period=PERIOD, warehouses=lambda _: warehouse
        )
    assert ledger.launches.search() == []


def test_people_whom_no_request_can_name_are_refused_before_anything_is_frozen(
    ledger: Ledger, warehouse: str
) -> None:
    by_user = folder(sql="SELECT 'ann' AS user_id")
    with pytest.raises(CampaignError, match="user_id"):
        prepare_launch(ledger, by_user, period=PERIOD, warehouses=lambda _: warehouse)
    assert ledger.launches.search() == []


def test_languages_are_cut_apart_without_overlap() -> None:
    members = integers(range(1, 8))
    groups = {"language": {"en": integers([1, 2]), "fr": integers([2, 3, 4, 5]), "de": integers([6])}}
    audience = Audience("device_id", members, 7, {}, groups)
    cut = [(each.variation.language, list(each.identifiers)) for each in segments_of(EMAIL, audience)]
    # 2 reads both and gets the campaign's own language, as do 6 (German) and 7 (unknown).
    assert cut == [("en", [1, 2]), ("en", [6, 7]), ("fr", [3, 4]), ("fr", [5])]


def test_a_language_with_a_region_is_that_language() -> None:
    members = integers([1, 2, 3])
    groups = {"language": {"fr-CA": integers([1]), "FR_fr": integers([2]), "en-GB": integers([3])}}
    audience = Audience("device_id", members, 3, {}, groups)
    cut = [(each.variation.language, list(each.identifiers)) for each in segments_of(EMAIL, audience)]
    assert cut == [("en", [3]), ("fr", [1, 2])]


def test_languages_that_the_query_does_not_give_cannot_be_cut_apart() -> None:
    members = integers([1, 2, 3])
    audience = Audience("device_id", members, 3, {}, {})
    with pytest.raises(AudienceError, match="has no column language"):
        list(segments_of(EMAIL, audience))


def test_a_campaign_in_one_language_is_not_cut_apart() -> None:
    members = integers([1, 2, 3])
    audience = Audience("device_id", members, 3, {}, {"language": {"fr": members}})
    assert [each.variation for each in segments_of(PUSH, audience)] == [DEFAULT_VARIATION] * 2


def test_what_is_over_is_refused_before_the_warehouse_is_asked_or_anything_frozen(ledger: Ledger) -> None:
    send = {
        "kind": "recurring",
        "time": "08:00",
        "time_zone": "UTC",
        "start": "2026-03-01",
        "end": "2026-03-31",
    }
    made = Campaign.model_validate(
        {"title": "A", "message": {"text": "W"}, "channels": {"android_push": {}}, "send": send}
    )
    folder = CampaignFolder("spring", made, "SELECT 1 AS device_id", Path("spring"))
    assert made.fixed_period is not None
    with pytest.raises(CampaignError, match=r"send\.end: nothing is sent after 2026-03-31 08:00 UTC"):
        prepare_launch(
            ledger,
            folder,
            period=made.fixed_period,
            warehouses=lambda _: "sqlite:////nowhere/at/all.db",
            now=datetime(2026, 4, 1, 0, 1, tzinfo=UTC),
        )
    assert ledger.launches.search() == []


@pytest.mark.parametrize("day", ["2026-03-06", None])
def test_a_message_that_ends_before_it_is_sent_is_refused(warehouse: str, day: str | None) -> None:
    until = {"time": "12:00", "time_zone": "UTC", "date": day}
    late = {"kind": "once", "time": "12:01", "time_zone": "UTC", "date": "2026-03-06"}
    made = folder(changed(send=late, push_expiry={"until": until}))
    with pytest.raises(CampaignError) as error:
        plan_launch(None, made, period=PERIOD, warehouses=lambda _: warehouse, now=PERIOD.end)
    assert str(error.value) == (
        f"campaign spring: push_expiry.until: the end at {day or '2026-03-02'} 12:00 UTC is before messages are sent, "
        "at 2026-03-06 12:01 UTC. Use a later end"
    )
    in_time = folder(
        changed(send={**late, "time": "12:00"}, push_expiry={"until": {**until, "date": "2026-03-06"}})
    )
    assert plan_launch(None, in_time, period=PERIOD, warehouses=lambda _: warehouse, now=PERIOD.end).segments


def test_a_message_that_ends_before_its_window_opens_is_refused_or_too_late(warehouse: str) -> None:
    window = {"earliest": "09:00", "latest": "20:00", "time_zone": "UTC"}
    until = {"time": "23:30", "time_zone": "UTC"}
    made = folder(changed(gates={"window": window}, push_expiry={"until": until}))

    def look(ends_at: datetime, now: datetime) -> Plan:
        period = Period(PERIOD.start, ends_at)
        return plan_launch(None, made, period=period, warehouses=lambda _: warehouse, now=now)

    early, evening = (PERIOD.end.replace(hour=hour) for hour in (8, 21))
    assert look(early, early).segments
    assert look(early, evening - timedelta(hours=2)).segments
    text = "push_expiry.until: the end at 2026-03-02 23:30 UTC is before messages are sent, at 2026-03-03 09:00 UTC"
    with pytest.raises(CampaignError, match=f"^campaign spring: {text}. Use a later end$"):
        look(evening, evening)
    with pytest.raises(LateError, match=f"^campaign spring: nothing was sent, because it is late: {text}$"):
        look(early, evening)


def test_what_is_repeated_is_one_launch_for_its_life(ledger: Ledger, tmp_path: Path) -> None:
    send = {"kind": "recurring", "time": "08:00", "time_zone": "UTC", "start": "2026-03-01", "end": "never"}
    made = Campaign.model_validate(
        {"title": "A", "message": {"text": "W"}, "channels": {"android_push": {}}, "send": send}
    )
    folder = CampaignFolder("spring", made, "SELECT 1 AS device_id", Path("spring"))
    assert made.fixed_period is not None
    (tmp_path / "warehouse.db").touch()
    launches = [
        prepare_launch(
            ledger,
            folder,
            period=made.fixed_period,
            warehouses=lambda _: f"sqlite:///{tmp_path / 'warehouse.db'}",
            now=now,
        )
        for now in (datetime(2026, 3, 1, 6, tzinfo=UTC), datetime(2026, 9, 1, 6, tzinfo=UTC))
    ]
    assert launches[0] == launches[1]
    assert ledger.launches.search() == launches[:1]


def rows_of(frame: Any, campaign: Campaign = PUSH) -> CampaignFolder:
    return campaign_from(campaign, "spring", frame)


def no_warehouse(name: str) -> str:
    raise AssertionError(f"the warehouse {name} was asked")


def test_rows_are_planned_like_those_of_a_query(ledger: Ledger) -> None:
    frame = pd.DataFrame({"device_id": [1, 2, 3, 3], "platform": "android"})
    launch = prepare_launch(ledger, rows_of(frame), period=PERIOD, warehouses=no_warehouse)
    assert (launch.audience, launch.rows, launch.dropped["duplicate"], launch.segments) == (3, 4, 1, 2)
    again = prepare_launch(ledger, rows_of("gone.parquet"), period=PERIOD, warehouses=no_warehouse)
    assert again == launch


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (pd.DataFrame({"device_id": pd.array([], dtype="Int64")}), "spring: the DataFrame has no rows"),
        (
            pd.DataFrame({"device_id": [1.0, None]}),
            r'spring: the DataFrame: column device_id .*astype\("Int64"\)',
        ),
        (pd.DataFrame({"device": [1]}), "spring: the DataFrame: it has no identifier column: found device"),
        (pd.DataFrame({"device_id": [None, None]}), "none of the 2 rows is left"),
        ("gone.parquet", r"spring: gone.parquet: the file cannot be read \(No such file or directory\)"),
    ],
)
def test_rows_that_are_no_audience_freeze_nothing(ledger: Ledger, frame: Any, problem: str) -> None:
    with pytest.raises(AudienceError, match=problem) as caught:
        prepare_launch(ledger, rows_of(frame), period=PERIOD, warehouses=no_warehouse)
    assert "query" not in str(caught.value)
    assert ledger.launches.search(limit=1) == []


def test_an_identifier_without_room_in_an_address_to_opt_out_stops_the_launch(ledger: Ledger) -> None:
    frame = pd.DataFrame({"user_id": ["ann", "b" * 901]})
    template = {"id": 4, "channels": ["email"]}
    shown = {"title": "Spring", "template": {**template, "unsubscribe_url": "stop"}, "segment_size": 1}
    for campaign in (
        shown,
        {
            **shown,
            "template": template,
            "variants": {"a": {"percent": 50}, "b": {"percent": 50, "template": shown["template"]}},
        },
    ):
        given = campaign_from(Campaign.model_validate(campaign), "spring", frame)
        with pytest.raises(AudienceError, match="an identifier of 901 bytes is too long") as caught:
            prepare_launch(ledger, given, period=PERIOD, warehouses=no_warehouse)
        assert "bbb" not in str(caught.value)
    assert ledger.launches.search(limit=1) == []
    without = campaign_from(Campaign.model_validate({**shown, "template": template}), "spring", frame)
    assert prepare_launch(ledger, without, period=PERIOD, warehouses=no_warehouse).audience == 2


def test_a_preview_of_rows_does_not_speak_of_a_query(ledger: Ledger) -> None:
    frame = pd.DataFrame({"device_id": [1, 2], "score": 7})
    preview = preview_campaign(rows_of(frame), period=PERIOD, warehouses=no_warehouse, ledger=ledger)
    assert "These columns of the audience are not used: score." in preview.warnings
    prepare_launch(ledger, rows_of(frame), period=PERIOD, warehouses=no_warehouse)
    launched = preview_campaign(rows_of(frame), period=PERIOD, warehouses=no_warehouse, ledger=ledger)
    for each in preview, launched:
        shown = as_text(describe_preview(each))
        assert "2 rows read" in " ".join(shown.split())
        assert "query" not in shown


def test_a_preview_counts_people_in_time_zones_that_do_not_exist(ledger: Ledger) -> None:
    frame = pd.DataFrame({"device_id": [1, 2, 3, 4], "time_zone": ["Eastern Time", "asia/tokyo", " ", None]})
    zones = {"time_zone": "query", "default_time_zone": "Europe/Dublin"}
    fields = {"gates": {"window": {"earliest": "08:00", "latest": "20:00", **zones}}}
    campaign = Campaign.model_validate({**PUSH.model_dump(exclude_unset=True), **fields})
    preview = preview_campaign(
        rows_of(frame, campaign), period=PERIOD, warehouses=no_warehouse, ledger=ledger
    )
    [said] = [each for each in preview.warnings if "time_zone" in each]
    assert (
        said == "Europe/Dublin is used for 1 person whose time_zone does not exist, such as 'Eastern Time'."
    )


DECIDE = {"share": 50, "after": {"length": 2, "unit": "hours"}, "otherwise": "a"}
HALVES = {"a": {"percent": 50}, "b": {"percent": 50}}


def test_the_rest_is_frozen_without_a_variant_and_previewed_with_all_of_them(ledger: Ledger) -> None:
    made = changed(
        variants={**HALVES, "b": {"percent": 50, "message": {"text": "Warm"}}}, decide=DECIDE, segment_size=40
    )
    frame = pd.DataFrame({"device_id": range(1, 81)})
    launch = prepare_launch(ledger, rows_of(frame, made), period=PERIOD, warehouses=no_warehouse)
    parts = {
        (part.variation.variant, part.wave)
        for part in ledger.dispatch_queries.segment_sizes(launch.launch_key)
    }
    assert parts == {("a", 1), ("b", 1), (None, 2)}
    preview = preview_launch(ledger, launch.launch_key)
    assert {each.variant: each.channels["android_push"]["text"] for each in preview.renderings} == {
        "a": "It is spring",
        "b": "Warm",
    }
    assert sum(preview.variants.values()) < 80
    assert preview.decide.endswith("the rest gets the one that is clearly ahead, or else a.")
    shown = as_text(describe_preview(preview))
    assert "The winner is not decided yet." in shown


def test_a_request_of_the_rest_can_be_written_for_every_variant(ledger: Ledger) -> None:
    """No one is in the test share here, so only the rest shows that the template of b lacks its values."""
    template = {"id": 4, "channels": ["android_push"], "columns": ["first_name"]}
    variants = {"a": {"percent": 50}, "b": {"percent": 50, "template": template}}
    made = Campaign.model_validate(
        {
            "title": "Spring",
            "template": {"id": 3, "channels": ["android_push"]},
            "variants": variants,
            "decide": {**DECIDE, "share": 0.001},
        }
    )
    folder = rows_of(pd.DataFrame({"device_id": [1, 2], "first_name": ["Ann", "Bo"]}), made)
    asked = []
    real = plan.sample_request

    def sample(campaign: Campaign, segment: Segment, **how: Any) -> dict[str, Any]:
        asked.append((segment.wave, segment.variation.variant))
        return real(campaign, segment, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "sample_request", sample)
        prepare_launch(ledger, folder, period=PERIOD, warehouses=no_warehouse)
    assert asked == [(2, "a"), (2, "b")]


def test_a_winner_is_not_promised_for_people_whose_opens_are_not_reported(ledger: Ledger) -> None:
    made = changed(variants=HALVES, decide=DECIDE)
    folder = rows_of(pd.DataFrame({"external_id": ["a", "b"]}), made)
    with pytest.raises(
        CampaignError, match=r"decide: post-backs do not carry external_id.* Use device_id or user_id"
    ):
        prepare_launch(ledger, folder, period=PERIOD, warehouses=no_warehouse)
    assert ledger.launches.count(made.connection) == 0


def test_a_test_that_another_run_asks_for_in_the_same_second_gets_the_next(ledger: Ledger) -> None:
    people = pd.DataFrame({"device_id": [1, 2]})

    def test_of(origin: str) -> LaunchRecord:
        options = LaunchOptions(origin=origin)
        made = prepare_tests(
            ledger, folder(), people, moment=PERIOD.end, warehouses=lambda _: "", options=options
        )
        (launch,) = made
        return launch

    first, second = test_of("one"), test_of("other")
    assert (first.period.end, second.period.end) == (PERIOD.end, PERIOD.end + timedelta(seconds=1))
    assert (test_of("one").launch_key, test_of("other").launch_key) == (first.launch_key, second.launch_key)
