"""Rules for all campaigns: when they are open, what contradicts them, and how much a new sender sends a day."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from sendoff.campaign import (
    WEEKDAYS,
    Campaign,
    CampaignFolder,
    DeploymentRules,
    SendWindow,
    WarmUp,
    campaign_of,
    campaign_schema,
    check_folders,
    defaults_schema,
    folder_of,
    forbidden_time,
    load_campaign,
    next_open,
)
from sendoff.errors import CampaignError
from sendoff.launch import closed_until

from .campaigns import PUSH, load

RULES = """\
rules:
  quiet_hours: {earliest: "08:00", latest: "20:00"}
  days: [monday, tuesday, wednesday, thursday, friday]
  holidays: [DE-BY]
  default_time_zone: Europe/Berlin
  cap: {messages: 3, days: 7}
  exclude:
  - {kind: list, name: complaints}
"""
ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Africa/Cairo", "Asia/Kolkata", "Pacific/Chatham",
    "Australia/Lord_Howe", "America/Havana", "Pacific/Kiritimati", "Atlantic/Azores",
)  # fmt: skip
MESSAGE: dict[str, Any] = {
    "title": "Spring",
    "message": {"title": "Hello", "text": "It is spring"},
    "channels": {"android_push": {}},
}


def rules(**fields: Any) -> DeploymentRules:
    return DeploymentRules.model_validate({"default_time_zone": "Europe/Berlin", **fields})


@pytest.mark.parametrize(
    ("fields", "depend"),
    [
        ({"cap": {"messages": 3, "days": 7}}, True),
        ({"exclude": [{"kind": "campaign", "name": "winter", "days": 7}]}, True),
        ({"exclude": [{"kind": "list", "name": "complaints"}]}, False),
    ],
)
def test_a_cap_and_excluded_campaigns_depend_on_other_launches(fields: dict[str, Any], depend: bool) -> None:
    assert DeploymentRules.model_validate(fields).depend_on_launches is depend


def test_the_rules_are_told_with_all_their_times() -> None:
    told = rules(
        quiet_hours={"earliest": "08:00", "latest": "20:00"}, days=["monday", "friday"], holidays=["IE"]
    )
    assert told.words() == (
        "08:00 to 20:00, on monday, friday, not on holidays in IE, in each person's time zone"
    )


def hours(earliest: str, latest: str) -> dict[str, str]:
    return {"earliest": earliest, "latest": latest}


def at(text: str, zone: str = "Europe/Berlin") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def load_with(folder: Path, defaults: str, own: str = "") -> CampaignFolder:
    (folder / "defaults.yaml").write_text(defaults)
    return load(folder, PUSH + own)


def mistake(folder: Path, defaults: str, own: str = "") -> str:
    with pytest.raises(CampaignError) as error:
        load_with(folder, defaults, own)
    return str(error.value).replace(f"{folder}/", "")


minutes = st.integers(0, 1439).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
some_hours = st.lists(minutes, min_size=2, max_size=2, unique=True).map(sorted)
some_rules = st.builds(
    lambda quiet, days, codes: {
        **({"quiet_hours": hours(*quiet)} if quiet else {}),
        **({"days": sorted(days, key=WEEKDAYS.index)} if days else {}),
        "holidays": codes or ([] if quiet or days else ["GB"]),
    },
    st.none() | some_hours,
    st.none() | st.sets(st.sampled_from(WEEKDAYS), min_size=1, max_size=7),
    st.lists(st.sampled_from(["DE", "DE-BY", "GB-SCT", "US", "BR-SP", "JP"]), max_size=3, unique=True),
)
moments = st.integers(0, 7 * 366 * 24 * 60 * 60).map(
    lambda seconds: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
)


def is_allowed(given: DeploymentRules, window: SendWindow | None, zone: str, moment: datetime) -> bool:
    """Check a moment by the calendar and the clock of a place, independently of the search."""
    from holidays import country_holidays

    local = moment.astimezone(ZoneInfo(zone))
    time, weekday = f"{local:%H:%M}", WEEKDAYS[local.weekday()]
    if given.quiet_hours and not given.quiet_hours.earliest <= time <= given.quiet_hours.latest:
        return False
    for name in given.holidays:
        country, _, part = name.partition("-")
        if local.date() in country_holidays(country, subdiv=part or None):
            return False
    if window:
        there = f"{moment.astimezone(ZoneInfo(window.zone_for(zone))):%H:%M}"
        if not window.earliest <= there <= window.latest:
            return False
    return given.days is None or weekday in given.days


@given(
    some_rules,
    st.none() | st.tuples(some_hours, st.sampled_from(ZONES)),
    st.sampled_from(ZONES),
    moments,
    st.floats(0, 1),
)
def test_recipients_get_messages_from_the_stated_moment_on_and_never_before(
    fields: dict[str, Any], own: Any, zone: str, now: datetime, share: float
) -> None:
    given_rules = rules(**fields)
    window = SendWindow(**hours(*own[0]), time_zone=own[1]) if own else None
    opens = next_open(given_rules, window, zone, now)
    if opens is None:
        assert window, "rules alone always open"
        return
    assert opens >= now
    assert is_allowed(given_rules, window, zone, opens)
    assert (opens == now) == is_allowed(given_rules, window, zone, now)
    before = now + (opens - now) * share * 0.999
    if before < opens and (opens - before) > timedelta(
        hours=1
    ):  # a skipped hour may open earlier than stated
        assert not is_allowed(given_rules, window, zone, before)


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-12-23 21:00", "2026-12-24 08:00"),
        ("2026-12-24 20:01", "2026-12-28 08:00"),  # two holidays, then a weekend
        ("2026-12-31 20:30", "2027-01-04 08:00"),  # New Year and a weekend
        ("2026-03-28 12:00", "2026-03-30 08:00"),  # the clocks go forward on Sunday
        ("2026-01-05 20:01", "2026-01-07 08:00"),  # Epiphany is a holiday in Bavaria
    ],
)
def test_a_closed_time_ends_when_the_next_allowed_day_begins_to_be_loud(now: str, opens: str) -> None:
    week = list(WEEKDAYS[:5])
    found = next_open(
        rules(quiet_hours=hours("08:00", "20:00"), days=week, holidays=["DE-BY"]), None, None, at(now)
    )
    assert found == at(opens)


def test_each_zone_has_its_own_night() -> None:
    campaign = Campaign.model_validate({**MESSAGE, "rules": rules(quiet_hours=hours("08:00", "20:00"))})
    now = at("2026-12-21 09:00")
    shut = closed_until(campaign, [None, "Europe/Berlin", "America/New_York", "Asia/Tokyo"], now, now)
    assert shut == {"America/New_York": at("2026-12-21 08:00", "America/New_York")}
    transactional = campaign.replace(transactional="a receipt")
    assert closed_until(transactional, ["America/New_York"], now, now) == {}


def test_a_day_off_ends_at_midnight_where_midnight_exists() -> None:
    """In Cairo, the clocks skip the first hour of Friday, 24 April 2026."""
    opens = next_open(rules(days=["friday"]), None, "Africa/Cairo", at("2026-04-23 12:00", "Africa/Cairo"))
    assert opens == at("2026-04-24 01:00", "Africa/Cairo")


def test_a_window_can_only_narrow_the_rules(tmp_path: Path) -> None:
    own = 'gates: {window: {earliest: "06:00", latest: "22:00", time_zone: Europe/Berlin}}\n'
    campaign = load_with(tmp_path, RULES, own).campaign
    now = at("2026-12-21 06:30")
    assert closed_until(campaign, [None], now, now) == {None: at("2026-12-21 08:00")}
    narrower = 'gates: {window: {earliest: "10:00", latest: "11:00", time_zone: Europe/Berlin}}\n'
    campaign = load_with(tmp_path, RULES, narrower).campaign
    assert closed_until(campaign, [None], now, now) == {None: at("2026-12-21 10:00")}


IN_TOKYO = (
    'gates: {window: {earliest: "09:00", latest: "10:00", time_zone: query, default_time_zone: Asia/Tokyo}}\n'
)


@pytest.mark.parametrize(
    ("own", "part"),
    [
        (
            "rules: {cap: {messages: 99, days: 1}}\n",
            "found rules, which hold for all campaigns. Move them to",
        ),
        ("rules:\n", "found rules, which hold for all campaigns"),
        (
            'gates: {window: {earliest: "21:00", latest: "23:00", time_zone: Europe/Berlin}}\n',
            "rules that never allow a message with gates.window",
        ),
        (
            IN_TOKYO,
            "found Asia/Tokyo with rules.default_time_zone: Europe/Berlin",
        ),
        (
            'send: {kind: once, time: "09:00", time_zone: query, default_time_zone: Asia/Tokyo}\n',
            "send.default_time_zone: found Asia/Tokyo with rules.default_time_zone: Europe/Berlin",
        ),
        (
            f"send: {{kind: once, time: '09:00', time_zone: UTC, date: 2026-12-28}}\n{IN_TOKYO}",
            "gates.window.default_time_zone: found Asia/Tokyo with rules.default_time_zone: Europe/Berlin",
        ),
        ('send: {kind: once, time: "21:30", time_zone: user}\n', "21:30 is in the quiet hours"),
        (
            'send: {kind: once, time: "09:00", time_zone: user, date: 2026-12-25}\n',
            "is a public holiday in DE-BY",
        ),
        ('send: {kind: once, time: "09:00", time_zone: user, date: 2026-12-27}\n', "2026-12-27 is a Sunday"),
        (
            'send: {kind: recurring, time: "09:00", time_zone: user, start: 2026-12-01, end: 2026-12-31}\n',
            "2026-12-05 is a Saturday",
        ),
    ],
)
def test_a_campaign_cannot_weaken_the_rules(tmp_path: Path, own: str, part: str) -> None:
    assert part in mistake(tmp_path, RULES, own)
    if not own.startswith("rules"):
        assert load_with(tmp_path, RULES, own + "transactional: a receipt\n").campaign.transactional


def test_rules_need_the_recipients(tmp_path: Path) -> None:
    (tmp_path / "defaults.yaml").write_text(RULES)
    folder = tmp_path / "news"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(PUSH + "targeting: {kind: broadcast}\n")
    with pytest.raises(CampaignError, match=r"kind: broadcast with rules.cap in defaults.yaml"):
        load_campaign(folder)


def test_rules_for_other_channels_do_not_need_the_recipients(tmp_path: Path) -> None:
    (tmp_path / "defaults.yaml").write_text("rules: {cap: [{messages: 1, days: 7, scope: channel:sms}]}")
    folder = tmp_path / "news"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(PUSH + "targeting: {kind: broadcast}\n")
    assert load_campaign(folder).campaign.rules.cap


def test_defaults_of_a_campaign_do_not_replace_rules(tmp_path: Path) -> None:
    campaign = load_with(tmp_path, RULES, "audience: {cap: {messages: 9, days: 1}, exclude: []}\n").campaign
    assert [each.messages for each in campaign.rules.cap] == [3]
    assert [each.messages for each in campaign.audience.cap] == [9]
    assert [each.name for each in campaign.rules.exclude] == ["complaints"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("rules: {holidays: [XX], default_time_zone: UTC}\n", "found 'XX'. Use an ISO code of a country"),
        ("rules: {holidays: [DEU], default_time_zone: UTC}\n", "found 'DEU'. Use an ISO code of a country"),
        ("rules: {holidays: [DE-], default_time_zone: UTC}\n", "found 'DE-'. Use an ISO code of a country"),
        ("rules: {days: [sunday]}\n", "found no default_time_zone. Use default_time_zone with quiet_hours"),
        ("rules: {default_time_zone: UTC}\n", "found default_time_zone alone"),
        ("rules: {quiethours: 1}\n", "'quiethours' is not a field (did you mean 'quiet_hours'?)"),
        ("rules: {exclude: [{kind: file, file: a.csv}]}\n", "'file' is not a kind. Use 'list', 'campaign'"),
        ("rules: 5\n", "found 5. Use a mapping"),
    ],
)
def test_mistakes_in_rules_name_their_place(tmp_path: Path, text: str, part: str) -> None:
    found = mistake(tmp_path, text)
    assert part in found
    assert found.startswith("defaults.yaml:1:")


def test_a_launch_keeps_the_rules_under_which_it_was_made(tmp_path: Path) -> None:
    campaign = load_with(tmp_path, RULES).campaign
    assert Campaign.frozen(campaign.model_dump_json()).rules == campaign.rules


def test_a_campaign_from_python_has_the_rules_of_the_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "defaults.yaml"
    file.write_text("owner: crm\n" + RULES)
    lax = Campaign.model_validate({**MESSAGE, "rules": DeploymentRules()})
    assert folder_of(lax, "a", defaults=file).campaign.rules.cap
    monkeypatch.setenv("SENDOFF_DEFAULTS", str(tmp_path))
    assert campaign_of(lax, "a").rules.days == WEEKDAYS[:5]
    with pytest.raises(CampaignError, match="found rules, which hold for all campaigns"):
        campaign_of({**MESSAGE, "rules": {}}, "a")
    (tmp_path / "elsewhere").mkdir()
    folder = load(tmp_path / "elsewhere", PUSH)
    assert folder.campaign.rules.cap
    assert ("rules.cap", str(file), 7) in [(each.path, each.origin, each.line) for each in folder.settings()]
    file.unlink()
    with pytest.raises(CampaignError, match=r"there is no such file. Correct SENDOFF_DEFAULTS"):
        campaign_of(MESSAGE, "a")


def test_settings_name_the_file_and_line_of_each_rule(tmp_path: Path) -> None:
    settings = {each.path: each for each in load_with(tmp_path, RULES).settings()}
    found = settings["rules.quiet_hours"]
    assert (found.value, found.origin, found.line) == (hours("08:00", "20:00"), "defaults.yaml", 2)
    assert "rules.warm_up" not in settings


def test_a_check_says_which_rules_apply_and_which_do_not(tmp_path: Path) -> None:
    load_with(tmp_path, RULES, "transactional: a receipt\n")
    (checked,) = check_folders([tmp_path])
    (note,) = checked.notes
    assert note.file.name == "campaign.yaml"
    assert note.text == "rules: not applied, because the campaign is transactional (a receipt)"
    load_with(tmp_path, "", "transactional: a receipt\n")
    (checked,) = check_folders([tmp_path])
    assert not checked.notes
    load_with(tmp_path, RULES)
    (checked,) = check_folders([tmp_path])
    assert [(note.file.name, note.line) for note in checked.notes] == [
        ("defaults.yaml", line) for line in range(2, 8)
    ]


def test_the_schema_of_defaults_has_rules_and_that_of_campaigns_has_none() -> None:
    validator = Draft202012Validator(defaults_schema())
    validator.validate({"rules": {"holidays": ["DE-BY"], "default_time_zone": "UTC"}})
    assert list(validator.iter_errors({"rules": {"holidays": ["Bavaria"]}}))
    assert "rules" not in campaign_schema()["properties"]
    assert "WarmUp" not in campaign_schema()["$defs"]


def test_holidays_are_imported_only_if_the_rule_is_used() -> None:
    code = (
        "import sys; from sendoff.campaign import Campaign, campaign_of; "
        f"c = campaign_of({MESSAGE!r}, 'a'); Campaign.frozen(c.model_dump_json()); print('holidays' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize(
    ("send", "zone", "why"),
    [
        (
            {"kind": "once", "time": "13:00", "time_zone": "America/New_York", "date": "2026-12-21"},
            None,
            None,
        ),
        (
            {"kind": "once", "time": "15:00", "time_zone": "America/New_York", "date": "2026-12-21"},
            None,
            "21:00 is in the quiet hours",
        ),
        (
            {"kind": "once", "time": "18:00", "time_zone": "America/New_York", "date": "2026-12-27"},
            "Asia/Tokyo",
            None,
        ),
        (
            {
                "kind": "triggered",
                "trigger": {"kind": "api"},
                "window": {"earliest": "07:59", "latest": "19:00"},
                "time_zone": "user",
                "start": "2026-12-21",
                "end": "2026-12-21",
            },
            None,
            "07:59 is in the quiet hours",
        ),
    ],
)
def test_fixed_times_count_in_the_recipients_time_zone(
    send: dict[str, str], zone: str | None, why: str | None
) -> None:
    campaign = Campaign.model_validate({**MESSAGE, "send": send})
    found = forbidden_time(
        rules(quiet_hours=hours("08:00", "20:00"), days=list(WEEKDAYS[:5])), campaign.send, zone
    )
    assert (why in found) if found and why else found == why


def warm_up(**fields: Any) -> WarmUp:
    usual = {
        "connection": "news",
        "start": date(2026, 12, 1),
        "first_day": 500,
        "growth": 1.5,
        "most": 200_000,
    }
    return WarmUp.model_validate({**usual, **fields})


def test_a_daily_limit_grows_until_its_most() -> None:
    days = [date(2026, 12, 1) + timedelta(days=n) for n in (-5, 0, 1, 2, 14, 15, 10_000)]
    assert [warm_up().limit_on(day) for day in days] == [500, 500, 750, 1_125, 145_964, 200_000, 200_000]
    assert warm_up(growth=1).limit_on(date(2030, 1, 1)) == 500
    assert warm_up().days_for(9_497, date(2026, 12, 1), 0) == (500, 5)
    assert warm_up(growth=1).days_for(1_001, date(2026, 12, 1), 400) == (100, 2)


@pytest.mark.parametrize(("limit", "size"), [(1, 1), (19, 1), (20, 2), (500, 50)])
def test_a_request_takes_a_tenth_of_a_daily_limit_but_at_least_one_recipient(limit: int, size: int) -> None:
    assert warm_up(first_day=limit).request_size(date(2026, 12, 1)) == size


@pytest.mark.parametrize(
    ("growth", "people", "used", "expected"),
    [
        (1.5, 500, 0, (500, 0)),
        (1.5, 501, 0, (500, 1)),
        (1.5, 1_250, 0, (500, 1)),  # 750 on the second day
        (1.5, 1_251, 0, (500, 2)),
        (1.5, 10, 501, (0, 1)),  # the limit was higher before
        (1, 1_000, 0, (500, 1)),
    ],
)
def test_a_launch_takes_as_few_days_as_its_limits_allow(
    growth: float, people: int, used: int, expected: tuple[int, int]
) -> None:
    assert warm_up(growth=growth).days_for(people, date(2026, 12, 1), used) == expected


@given(st.integers(1, 10**6), st.floats(1, 3), st.integers(0, 400), st.integers(0, 10**6))
def test_the_days_of_a_launch_are_those_of_its_limits(
    first: int, growth: float, later: int, people: int
) -> None:
    limit = warm_up(first_day=first, growth=growth, most=max(first, 10**6))
    day = date(2026, 12, 1) + timedelta(days=later)
    today, days = limit.days_for(people, day, 0)
    limits = [limit.limit_on(day + timedelta(days=n)) for n in range(min(days, 3_000) + 1)]
    assert limits == sorted(limits)
    if days < 3_000:
        assert today + sum(limits[1:]) >= people
        assert days == 0 or today + sum(limits[1:-1]) < people


def test_a_connection_has_one_daily_limit() -> None:
    with pytest.raises(ValidationError, match="two entries for the connection news"):
        DeploymentRules(warm_up=(warm_up(), warm_up()))
    with pytest.raises(ValidationError, match="at least first_day"):
        warm_up(most=499)


@pytest.mark.parametrize(
    "send",
    [
        'send: {kind: once, time: "09:00", time_zone: UTC}\n',
        'send: {kind: recurring, time: "09:00", time_zone: UTC, start: 2026-12-01, end: never}\n',
        "send: {kind: triggered, trigger: {kind: api}, time_zone: UTC, start: 2026-12-01, end: never}\n",
    ],
)
def test_a_daily_limit_needs_campaigns_that_send_at_once(tmp_path: Path, send: str) -> None:
    """The limit counts the day of the request, and only at once is that the day of the messages."""
    limit = "{{connection: {}, start: 2026-12-01, first_day: 500, growth: 1, most: 500}}"
    defaults = f"rules: {{warm_up: [{limit.format('news')}]}}\n"
    found = mistake(tmp_path, defaults, f"connection: news\n{send}")
    assert "send: found kind: " in found
    assert "with rules.warm_up for news in defaults.yaml. Use kind: now, because the daily limit" in found
    assert "send: found kind: " in mistake(
        tmp_path, defaults, f"connection: news\ntransactional: a receipt\n{send}"
    )
    assert load_with(tmp_path, defaults, f"connection: crm\n{send}").campaign.warm_up is None
    assert load_with(tmp_path, defaults, "connection: news\n").campaign.warm_up == warm_up(growth=1, most=500)
