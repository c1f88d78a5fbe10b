"""Previews: a launch in counts and samples, with nothing sent, stored or disclosed."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from markdown_it import MarkdownIt
from rich.console import Console

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, CampaignFolder, Period, Variation
from sendoff.campaign.schedule import Once, Triggered
from sendoff.errors import AudienceError, NotFoundError
from sendoff.figures import counted as count_of
from sendoff.figures import noun_of
from sendoff.launch.build_preview import preview_campaign, preview_launch
from sendoff.launch.plan import LaunchOptions, prepare_launch
from sendoff.launch.preview import Preview
from sendoff.launch.reachability import platforms_pushed_to, unreachable
from sendoff.launch.rendering import plain_text, renderings
from sendoff.launch.send_times import describe_schedule, ends_before
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.ledger.storage.schema import metadata
from sendoff.report import as_html, as_markdown, as_terminal, describe_preview
from sendoff.states import Accepted

from ...factories import PERIOD, make_launch, make_warehouse

DAY = timedelta(days=1)
BEFORE = Period(PERIOD.start - DAY, PERIOD.start)
NOW = PERIOD.end + timedelta(hours=9)
KEY = "0" * 32
FIRST_ID = 7_000_001  # of eight devices; a number that appears nowhere else in a preview
SQL = f"SELECT device_id, platform FROM devices WHERE device_id IS NULL OR device_id < {FIRST_ID + 5}"
WORDS = {"title": "Hello", "text": "It is spring, {{first_name}}"}
SPRING: dict[str, Any] = {
    "title": "Spring",
    "message": WORDS,
    "channels": {"android_push": None, "web_push": {"browsers": ["chrome"]}},
    "segment_size": 2,
}


def folder(sql: str | None = SQL, **parts: Any) -> CampaignFolder:
    return CampaignFolder("spring", Campaign.model_validate(SPRING | parts), sql, Path("spring"))


def ids(*numbers: int) -> Identifiers:
    return integers([FIRST_ID + number for number in numbers])


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    platforms = ["android", "android", "chrome", "chrome", "ios", "ios", "ios", "ios"]
    rows = [*((FIRST_ID + number, platform) for number, platform in enumerate(platforms)), (None, "ios")]
    return make_warehouse(tmp_path / "warehouse.db", "devices (device_id INTEGER, platform TEXT)", rows)


def look(given: CampaignFolder, warehouse: str, ledger: Ledger | None = None, **options: Any) -> Preview:
    connection = {name: options.pop(name) for name in ("rate", "names") if name in options}
    return preview_campaign(
        given,
        period=PERIOD,
        warehouses=lambda _: warehouse,
        ledger=ledger,
        options=LaunchOptions(**options),
        now=NOW,
        **connection,
    )


def freeze(
    ledger: Ledger,
    segments: list[Segment],
    *,
    period: Period = PERIOD,
    groups: Mapping[str, Mapping[str, Identifiers]] | None = None,
    left_out: Mapping[str, Identifiers] | None = None,
    people: Identifiers | None = None,
    state: str = "released",
    key: str = KEY,
    sends_at: datetime | None = None,
    **parts: Any,
) -> Preview:
    members = people or ids(*range(sum(map(len, segments))))
    made = Campaign.model_validate(SPRING | parts).resolved(period.end)
    make_launch(
        ledger,
        segments=segments,
        audience=Audience("device_id", members, len(members), {}, groups or {}),
        campaign=made,
        connection="sendoff_default",
        period=period,
        launch_key=key,
        created_at=NOW,
        sends_at=sends_at,
        state=state,
        suppressed=left_out,
    )
    return preview_launch(ledger, key)


def printed(seen: Preview, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(as_terminal(describe_preview(seen)))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def counted(ledger: Ledger) -> dict[str, int]:
    with ledger._database.read() as db:
        return {
            table.name: db.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for table in metadata.sorted_tables
        }


def test_a_preview_counts_from_the_rows_of_the_query_to_its_requests(warehouse: str) -> None:
    seen = look(folder(), warehouse)
    assert (seen.rows, seen.dropped["null"], seen.audience, seen.people) == (6, 1, 5, 5)
    assert (seen.requests, seen.segment_size) == (3, 2)
    assert seen.groups == {"platform": {"android": 2, "chrome": 2, "ios": 1}}
    assert seen.would_send


@pytest.mark.parametrize("parts", [{}, {"approval": {"needed": "always"}, "gates": {"least": 100}}])
def test_a_preview_leaves_the_ledger_as_it_was(ledger: Ledger, warehouse: str, parts: dict[str, Any]) -> None:
    prepare_launch(ledger, folder(), period=BEFORE, warehouses=lambda _: warehouse)
    before = counted(ledger)
    look(folder(**parts), warehouse, ledger)
    assert counted(ledger) == before
    assert before["segments"] == 3


def test_a_preview_of_a_frozen_launch_leaves_the_ledger_as_it_was(ledger: Ledger, warehouse: str) -> None:
    key = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse).launch_key
    before = counted(ledger)
    preview_launch(ledger, key)
    assert counted(ledger) == before


def test_a_preview_of_nobody_is_the_error_that_a_launch_would_be(warehouse: str) -> None:
    with pytest.raises(AudienceError, match="none of the 1 rows is left"):
        look(folder("SELECT device_id FROM devices WHERE device_id IS NULL"), warehouse)


def test_an_audience_is_compared_with_that_of_the_last_launch(ledger: Ledger, warehouse: str) -> None:
    last = freeze(ledger, [Segment(ids(3, 4, 5, 6))], period=BEFORE, people=ids(3, 4, 5, 6))
    change = look(folder(), warehouse, ledger).change
    assert change is not None
    assert (change.launch_key, change.audience) == (last.launch_key, 4)
    assert (change.kept, change.new, change.gone) == (2, 3, 2)


def test_people_who_are_named_otherwise_than_last_time_are_not_compared(
    ledger: Ledger, warehouse: str
) -> None:
    freeze(ledger, [Segment(ids(0))], period=BEFORE)
    tokens = folder(SQL.replace("device_id, platform", "device_id AS device_token"))
    seen = look(tokens, warehouse, ledger)
    assert seen.change is None
    assert any("device_id, this one by device_token" in warning for warning in seen.warnings)


def test_without_a_ledger_a_preview_says_that_it_compared_nothing(warehouse: str) -> None:
    seen = look(folder(), warehouse)
    assert seen.change is None
    assert any("No ledger was given" in warning for warning in seen.warnings)


def test_a_frozen_launch_is_previewed_as_it_was_planned_without_its_warehouse(
    ledger: Ledger, warehouse: str
) -> None:
    planned = look(folder(), warehouse, ledger).to_json(whole_request=True)
    key = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse, now=NOW).launch_key
    Path(warehouse.removeprefix("sqlite:///")).unlink()
    frozen = preview_launch(ledger, key).to_json(whole_request=True)
    assert frozen == planned | {"launch_key": key, "state": "released"}


def test_a_frozen_launch_keeps_the_notes_of_its_plan(ledger: Ledger, warehouse: str) -> None:
    made = folder(
        "SELECT 'ann' AS user_id, 9 AS spent, 'x' AS city, 'bob@example.com' = '' UNION ALL SELECT 'ann', 10, 'y', 0",
        message=None,
        channels={},
        template={"id": 1, "channels": ["email"], "columns": ["spent"]},
        audience={"exclude": [{"kind": "campaign", "name": "srping", "days": 7}]},
        approval={"needed": "always"},
    )
    planned = look(made, warehouse, ledger)
    key = prepare_launch(ledger, made, period=PERIOD, warehouses=lambda _: warehouse, now=NOW).launch_key
    assert preview_launch(ledger, key).warnings == planned.warnings
    assert "bob@example.com" not in str(ledger.audit_log.of_launch(key))
    assert [line[:50] for line in planned.warnings] == [
        "campaign srping leaves out no one: the ledger has ",
        "These columns of the audience are not used: city, ",
        "The audience has several rows with different templ",
    ]


def test_a_launch_that_is_not_there_cannot_be_previewed(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError):
        preview_launch(ledger, KEY)


def test_a_closed_gate_is_told_and_stops_no_preview(warehouse: str) -> None:
    seen = look(folder(gates={"most": 3}), warehouse)
    assert not seen.would_send
    assert [gate.name for gate in seen.gates if not gate.is_open] == ["most"]
    assert "WOULD NOT BE SENT (closed gates: most)" in printed(seen)
    assert "WOULD NOT BE SENT" in as_markdown(describe_preview(seen)).replace("\\", "")


def send_all(ledger: Ledger, launch_key: str, most: int = 99) -> None:
    for _ in range(most):
        claim = ledger.dispatches.claim(launch_key, worker="w", now=NOW, lease=timedelta(minutes=5))
        if claim is None:
            return
        ledger.dispatches.record(claim, Accepted(200, 1), NOW)


def test_a_preview_of_a_period_that_was_sent_says_so_and_when(ledger: Ledger, warehouse: str) -> None:
    made = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse, now=NOW)
    send_all(ledger, made.launch_key)
    seen = look(folder(), warehouse, ledger)
    text = " ".join(printed(seen).split())
    assert not seen.would_send
    assert "ALREADY SENT to 5 devices, 2026-03-02 09:00 UTC." in text
    assert f"The ledger holds launch {made.launch_key} (released) for this period. A run for" in text
    assert "sends nothing more" in text
    assert "would be sent" not in text
    assert seen.to_json()["existing_launch"]["last_at"] == NOW.isoformat()


def test_a_preview_does_not_count_requests_as_made_whose_recipients_were_all_left_out(
    ledger: Ledger, warehouse: str
) -> None:
    made = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse, now=NOW)
    first = ledger.dispatch_queries.segment(made.launch_key, 1).identifiers
    assert first is not None
    ledger.suppressions.add(SuppressionChange("account", "device_id", "crm", "ann"), [*first], NOW)
    send_all(ledger, made.launch_key)
    seen = look(folder(), warehouse, ledger)
    text = " ".join(printed(seen).split())
    assert "2 of 3 requests made, 2 accepted." in text
    assert "sends nothing more" in text
    assert not preview_launch(ledger, made.launch_key).would_send


def test_a_preview_of_a_period_that_is_half_sent_says_that_a_run_continues_it(
    ledger: Ledger, warehouse: str
) -> None:
    made = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse, now=NOW)
    send_all(ledger, made.launch_key, most=1)
    text = " ".join(printed(look(folder(), warehouse, ledger)).split())
    assert "ALREADY LAUNCHED, 2026-03-02 09:00 UTC: 1 of 3 requests made, 1 accepted." in text
    assert "A run for the period continues it." in text
    assert preview_launch(ledger, made.launch_key).would_send


def test_a_preview_does_not_count_recipients_left_out_when_the_launch_was_sent(
    ledger: Ledger, warehouse: str
) -> None:
    made = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse, now=NOW)
    [*_, (_, people)] = [
        part for part in ledger.dispatch_queries.segments(made.launch_key) if len(part[1]) > 1
    ]
    gone = SuppressionChange("account", "device_id", "crm", "ann")
    ledger.suppressions.add(gone, [*people][:1], NOW)
    send_all(ledger, made.launch_key)
    assert "ALREADY SENT to 4 devices" in printed(look(folder(), warehouse, ledger))


def test_a_frozen_launch_that_was_sent_would_not_be_sent_again(ledger: Ledger, warehouse: str) -> None:
    made = prepare_launch(ledger, folder(), period=PERIOD, warehouses=lambda _: warehouse, now=NOW)
    assert preview_launch(ledger, made.launch_key).would_send
    send_all(ledger, made.launch_key)
    seen = preview_launch(ledger, made.launch_key)
    assert not seen.would_send
    assert "ALREADY SENT to 5 devices" in printed(seen)


@pytest.mark.parametrize(
    ("send", "words"),
    [
        ({"date": "2026-03-02"}, "Went out to 5 devices 2026-03-02 18:30 UTC."),
        ({"date": "2099-03-02"}, "Goes out to 5 devices 2099-03-02 18:30 UTC."),
        (
            {"date": "2099-03-02", "time_zone": "user"},
            "Goes out to 5 devices 2099-03-03 06:30 UTC at the latest.",
        ),
        (
            {"kind": "recurring", "start": "2026-03-02", "end": "never"},
            "Goes out to 5 devices repeatedly: every day at 18:30, from 2026-03-02 until someone stops it, in UTC.",
        ),
    ],
)
def test_a_launch_that_the_service_sends_later_is_not_called_sent(
    ledger: Ledger, warehouse: str, send: dict[str, str], words: str
) -> None:
    sends = folder(send={"kind": "once", "time": "18:30", "time_zone": "UTC"} | send)
    made = prepare_launch(ledger, sends, period=PERIOD, warehouses=lambda _: warehouse, now=NOW)
    send_all(ledger, made.launch_key)
    document = describe_preview(preview_launch(ledger, made.launch_key))
    text = " ".join(as_markdown(document).replace("\\", "").split())
    assert f"Handed to the service 2026-03-02 09:00 UTC. {words}" in text
    assert "ALREADY SENT" not in text
    assert '<time datetime="2026-03-02T09:00:00+00:00">2026-03-02 09:00 UTC</time>' in as_html(document)


def test_another_period_of_a_campaign_that_was_sent_would_be_sent(ledger: Ledger, warehouse: str) -> None:
    made = prepare_launch(ledger, folder(), period=BEFORE, warehouses=lambda _: warehouse, now=NOW)
    send_all(ledger, made.launch_key)
    seen = look(folder(), warehouse, ledger)
    assert seen.would_send
    assert seen.existing_launch is None
    assert "It would be sent to 5 devices." in printed(seen)


@pytest.mark.parametrize(("state", "would_send"), [("held", True), ("rejected", False), ("stopped", False)])
def test_a_launch_that_somebody_stopped_would_not_be_sent(
    ledger: Ledger, state: str, would_send: bool
) -> None:
    assert freeze(ledger, [Segment(ids(0))], state=state).would_send is would_send


def test_who_is_left_out_is_counted_by_reason_and_the_holdout_among_them(ledger: Ledger) -> None:
    seen = freeze(
        ledger,
        [Segment(ids(0, 1, 2))],
        people=ids(0, 1, 2, 3),
        left_out={"holdout": ids(3), "complained": ids(7)},
    )
    assert (seen.suppressed, seen.held_out) == ({"holdout": 1, "complained": 1}, 1)
    assert (seen.audience, seen.people) == (4, 3)
    assert "control group" in printed(seen)


def test_what_the_rules_take_out_is_in_both_previews_alike(ledger: Ledger, warehouse: str) -> None:
    rules = {"holdout": {"percent": 40, "salt": "e"}, "cap": {"messages": 1, "days": 7}}
    freeze(ledger, [Segment(ids(0))], period=BEFORE, sends_at=BEFORE.end)
    given = folder(audience=rules)
    planned = look(given, warehouse, ledger, size_limit=3)
    assert (planned.dropped["cap"], planned.dropped["size_limit"], planned.audience) == (1, 1, 3)
    assert 0 < planned.held_out == 3 - (planned.people or 0)
    made = prepare_launch(
        ledger,
        given,
        period=PERIOD,
        warehouses=lambda _: warehouse,
        options=LaunchOptions(size_limit=3),
        now=NOW,
    )
    frozen = preview_launch(ledger, made.launch_key)
    assert (frozen.suppressed, frozen.dropped) == (planned.suppressed, planned.dropped)
    assert (frozen.audience, frozen.people) == (planned.audience, planned.people)


def test_a_rule_that_needs_a_ledger_is_told_where_there_is_none(warehouse: str) -> None:
    seen = look(folder(audience={"cap": {"messages": 1, "days": 7}}), warehouse)
    assert any(warning.startswith("cap was not applied") for warning in seen.warnings)


def test_people_are_counted_by_variant_language_and_wave(ledger: Ledger) -> None:
    seen = freeze(
        ledger,
        [
            Segment(ids(0), Variation(variant="a")),
            Segment(ids(1, 2), Variation(variant="b"), wave=2),
            Segment(ids(3, 4, 5), Variation(variant="a"), wave=2),
        ],
        variants={"a": {"percent": 50}, "b": {"percent": 50, "message": {"text": "Now"}}},
        gates={"rollout": {"shares": [10]}},
    )
    assert seen.variants == {"a": 4, "b": 2}
    assert (seen.waves, seen.wave_wait_seconds) == ([1, 5], 1_800)
    assert seen.languages == {}
    assert [(each.variant, each.people) for each in seen.renderings] == [("a", 4), ("b", 2)]
    assert [each.channels["android_push"]["text"] for each in seen.renderings] == [WORDS["text"], "Now"]


def test_each_time_zone_has_its_moment_on_its_own_clocks(ledger: Ledger) -> None:
    zones = ["America/New_York", "Asia/Tokyo", "Europe/Dublin"]
    seen = freeze(
        ledger,
        [Segment(ids(number), Variation(time_zone=zone)) for number, zone in enumerate(zones)],
        send={"kind": "once", "time": "18:30", "time_zone": "query", "default_time_zone": "UTC"},
    )
    assert [(zone.time_zone, zone.people) for zone in seen.time_zones] == [
        ("Asia/Tokyo", 1),
        ("Europe/Dublin", 1),
        ("America/New_York", 1),
    ]
    assert {f"{zone.sends_at:%H:%M}" for zone in seen.time_zones if zone.sends_at} == {"18:30"}
    assert seen.send_times.first_at == datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    assert seen.send_times.last_at == datetime(2026, 3, 2, 23, 30, tzinfo=UTC) or seen.time_zones[
        -1
    ].sends_at == (seen.send_times.last_at)


def test_an_end_before_the_last_time_zone_is_told(ledger: Ledger) -> None:
    seen = freeze(
        ledger,
        [
            Segment(ids(0), Variation(time_zone="Asia/Tokyo")),
            Segment(ids(1), Variation(time_zone="America/Lima")),
        ],
        send={"kind": "once", "time": "18:30", "time_zone": "query", "default_time_zone": "UTC"},
        push_expiry={"until": {"time": "22:00", "time_zone": "UTC", "date": "2026-03-02"}},
    )
    assert (
        "push_expiry.until: the end at 2026-03-02 22:00 UTC is before messages are sent, at 2026-03-02 23:30 UTC in "
        "the last time zone. Recipients to whom it is sent after the end may not get it."
    ) in seen.warnings
    just = {"until": {"time": "23:30", "time_zone": "UTC", "date": "2026-03-02"}}
    made = Campaign.model_validate(SPRING | {"push_expiry": just})
    assert not list(ends_before(made, datetime(2026, 3, 2, 23, 30, tzinfo=UTC)))


def test_each_persons_own_time_zone_spans_all_of_the_earth(warehouse: str) -> None:
    seen = look(folder(send={"kind": "once", "time": "12:00", "time_zone": "user"}), warehouse)
    assert seen.send_times.first_at == datetime(2026, 3, 1, 22, tzinfo=UTC)
    assert seen.send_times.last_at == datetime(2026, 3, 3, 0, tzinfo=UTC)


def test_what_the_service_sends_again_and_again_has_no_moment(warehouse: str) -> None:
    send = {
        "kind": "recurring",
        "time": "12:00",
        "time_zone": "UTC",
        "days": ["monday"],
        "start": "2026-03-01",
        "end": "never",
    }
    seen = look(folder(send=send), warehouse)
    assert (seen.send_times.first_at, seen.send_times.last_at) == (None, None)
    assert "monday at 12:00" in seen.send_times.words
    assert "until someone stops it" in seen.send_times.words


@pytest.mark.parametrize(("rate", "seconds"), [(None, None), (0.5, 6.0)])
def test_the_time_of_the_requests_is_known_where_the_rate_is(
    warehouse: str, rate: float | None, seconds: float | None
) -> None:
    seen = look(folder(), warehouse, rate=rate)
    assert seen.seconds == seconds
    assert ("no rate limit was given" in " ".join(printed(seen).split())) is (rate is None)


@pytest.mark.parametrize("kind", ["broadcast", "conditions"])
def test_of_people_whom_the_service_chooses_a_preview_counts_nobody(kind: str, ledger: Ledger) -> None:
    where = {"where": {"all": [{"attribute": "a", "value": 1}]}} if kind == "conditions" else {}
    chosen = folder(None, targeting={"kind": kind} | where)
    seen = look(chosen, "sqlite:////nowhere/at/all.db")
    assert (seen.people, seen.audience, seen.requests) == (None, None, 1)
    assert "so their number is not known" in " ".join(printed(seen).split())
    assert "0 people" not in printed(seen)
    assert "0 devices" not in printed(seen)
    launch = prepare_launch(ledger, chosen, period=PERIOD, warehouses=lambda _: "sqlite://", now=NOW)
    assert preview_launch(ledger, launch.launch_key).people is None


def test_the_tags_that_the_service_fills_in_are_named(warehouse: str) -> None:
    seen = look(folder(), warehouse)
    assert seen.filled_in == ("first_name",)
    text = " ".join(printed(seen).split())
    assert "The service fills in {{first_name}} from its own data." in text
    assert "it does not send the message to a person if it has no value for them" in text
    plain = look(folder(message={"title": "Hello", "text": "It is spring"}), warehouse)
    assert "fills in" not in printed(plain)


@pytest.mark.parametrize("date", [None, f"{PERIOD.end + DAY:%Y-%m-%d}"])
def test_only_a_date_of_the_file_gets_advice_on_its_schedule(
    ledger: Ledger, warehouse: str, date: str | None
) -> None:
    once = {"kind": "once", "time": "18:30", "time_zone": "UTC"} | ({"date": date} if date else {})
    made = folder(schedule="0 6 * * *", send=once)
    planned = [line for line in look(made, warehouse, ledger).warnings if line.startswith("send.")]
    assert [line.partition(":")[0] for line in planned] == (["send.date"] if date else [])
    key = prepare_launch(ledger, made, period=PERIOD, warehouses=lambda _: warehouse, now=NOW).launch_key
    assert not [line for line in preview_launch(ledger, key).warnings if line.startswith("send.")]


def test_a_column_that_was_meant_for_a_tag_gets_a_hint(warehouse: str) -> None:
    sql = SQL.replace("platform", "'Ann' AS first_name, platform")
    hint = (
        "audience: the column first_name does not fill in {{first_name}}; the service does, from its own data. "
        "To use values from the audience, you need a template (template.columns)"
    )
    assert hint in look(folder(sql), warehouse).warnings
    assert hint not in look(folder(), warehouse).warnings


def test_who_must_agree_is_told(warehouse: str) -> None:
    asked = look(folder(approval={"needed": "above", "above": 4, "role": "crm_leads"}), warehouse)
    assert asked.approval.is_needed
    assert "crm_leads must approve within 4 h" in printed(asked)
    assert "to 5 devices after approval" in printed(asked)
    assert "No approval is needed" in printed(look(folder(), warehouse))


def test_a_question_shows_the_deadline_then_the_texts_then_who_is_left_out_and_its_request_last(
    ledger: Ledger,
) -> None:
    seen = freeze(
        ledger,
        [Segment(ids(0, 1, 2))],
        people=ids(0, 1, 2, 3),
        left_out={"holdout": ids(3)},
        approval={"needed": "always"},
        state="held",
    )
    by = datetime(2026, 3, 2, 13, 30, tzinfo=ZoneInfo("Europe/Dublin"))
    text = as_markdown(describe_preview(seen, answer_by=by))
    lead, *sections = text.split("\n### ")
    assert "**Answer by Monday 2026-03-02 13:30 Europe/Dublin. Without an answer, nothing is sent.**" in lead
    assert (
        lead.index("Answer by") < lead.index("It goes to 3 devices after approval.") < lead.index("At once")
    )
    assert KEY not in text
    assert "2026-03-01T00:00:00Z" not in text
    names = [section.partition("\n")[0] for section in sections]
    assert names[:2] == ["What people see", "Who gets it, and who is left out"]
    assert names[-1] == "The first request"
    assert "Everyone (3 devices), by Android push and web push:" in sections[0].replace("\\", "")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("device_id", "1 device"),
        ("device_token", "1 device"),
        ("user_id", "1 person"),
        ("external_id", "1 person"),
    ],
)
def test_recipients_are_counted_as_what_identifies_them(column: str, words: str) -> None:
    assert count_of(1, *noun_of(column)) == words


def test_the_json_of_a_preview_has_these_members(warehouse: str) -> None:
    values = look(folder(), warehouse).to_json()
    assert json.loads(json.dumps(values)) == values
    assert " ".join(sorted(values)) == (
        "approval audience campaign change decide dropped existing_launch filled_in gates groups held_out "
        "identified_by is_own_request languages launch_key own_hours people period rate renderings request requests "
        "rows seconds segment_size send_times source state suppressed targeting time_zones title variants "
        "warnings wave_wait_seconds waves winner would_send"
    )


def test_nobody_is_named_but_in_the_whole_request(ledger: Ledger, warehouse: str) -> None:
    seen = look(folder(segment_size=4), warehouse, ledger)
    quiet = [json.dumps(seen.to_json()), as_markdown(describe_preview(seen)), printed(seen), repr(seen)]
    assert WORDS["text"] not in repr(seen)
    assert [str(FIRST_ID)[:5] in text for text in quiet] == [False] * 4
    assert seen.to_json()["request"]["device_ids"] == "<4 people>"
    whole = seen.to_json(whole_request=True)["request"]
    assert whole["device_ids"] == [FIRST_ID, FIRST_ID + 1, FIRST_ID + 2]
    assert "webhook_delivery" not in whole


def test_an_execution_names_nobody_either(warehouse: str) -> None:
    template = CampaignFolder(
        "spring",
        Campaign.model_validate({"title": "Spring", "template": {"id": 7, "channels": ["sms"]}}),
        SQL,
        Path("spring"),
    )
    seen = look(template, warehouse)
    assert seen.request == {"id": 7, "target_by": "id", "target": "<5 people>"}
    assert "the service's campaign 7" in printed(seen)


def test_each_persons_own_values_are_shown_by_their_type(warehouse: str) -> None:
    template = {"id": 7, "channels": ["sms"], "columns": ["first_name"]}
    campaign = Campaign.model_validate({"title": "Spring", "template": template})
    sql = SQL.replace("platform", "'Ann' || device_id AS first_name")
    seen = look(CampaignFolder("spring", campaign, sql, Path("spring")), warehouse)
    assert seen.request is not None
    assert seen.request["target_with_params"] == {"<5 people>": {"first_name": "<text>"}}
    assert "Ann" not in json.dumps(seen.to_json(whole_request=True))


def test_what_may_be_a_secret_of_a_webhook_is_not_shown(warehouse: str) -> None:
    webhook = {
        "address": "https://hooks.example.com/services/s3cret",
        "query": {"key": "s3cret"},
        "headers": {"Authorization": "Bearer s3cret"},
        "body": {"kind": "json", "content": '{"text": "Hello"}'},
    }
    seen = look(folder(channels={"webhook": webhook}, message=None), warehouse)
    assert [
        "s3cret" in text
        for text in (
            json.dumps(seen.to_json()),
            as_markdown(describe_preview(seen)),
            printed(seen),
            repr(seen),
        )
    ] == [False] * 4
    assert "hooks.example.com" in as_markdown(describe_preview(seen))
    assert "s3cret" in json.dumps(seen.to_json(whole_request=True))


HOSTILE = [
    "<script>alert(1)</script>",
    "[click](https://evil.example.com)",
    "![x](https://evil.example.com/x.png)",
    "a | b | c",
    "``` \n# big\n```",
    "`code` <b>",
    "\\| \\` back",
    "&lt;b&gt; &amp;",
    "*bold* _under_ ~~gone~~",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_of_the_warehouse_or_the_file_becomes_markdown(ledger: Ledger, hostile: str) -> None:
    seen = freeze(
        ledger,
        [Segment(ids(0), Variation(variant=hostile))],
        groups={"platform": {hostile: ids(0)}},
        left_out={"holdout": ids(3)},
        variants={hostile: {"percent": 50}, "b": {"percent": 50}},
        message={"title": hostile, "text": hostile},
        approval={"needed": "always", "role": hostile},
    )
    markdown = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    tokens = [
        inner
        for token in markdown.parse(as_markdown(describe_preview(seen)))
        for inner in [token, *(token.children or [])]
    ]
    kinds = {token.type for token in tokens}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "em_open", "s_open"}
    assert sum(token.type == "strong_open" for token in tokens) == 0
    headings = [token for token in tokens if token.type == "heading_open" and token.tag == "h1"]
    assert headings == []
    cells = [token.content for token in tokens if token.type == "code_inline"]
    assert cells.count(" ".join(hostile.split("\n"))) >= 2  # the variant, and the platform
    assert {line.strip() for line in hostile.split("\n")} <= {cell.strip() for cell in cells}  # of the text


def test_a_bar_in_a_name_makes_no_cell_of_a_markdown_table(ledger: Ledger) -> None:
    seen = freeze(ledger, [Segment(ids(0, 1))], groups={"platform": {"a | b": ids(0), "ios": ids(1)}})
    _, _, table = as_markdown(describe_preview(seen)).partition("The audience by")
    tokens = MarkdownIt("commonmark").enable("table").parse(table)
    rows = [token.type for token in tokens if token.type in ("tr_open", "td_open", "th_open")]
    widths = "".join({"tr_open": "|", "td_open": "x", "th_open": "x"}[kind] for kind in rows).split("|")[1:]
    assert set(map(len, widths)) == {3}


def test_a_value_cannot_steer_the_terminal(ledger: Ledger) -> None:
    seen = freeze(ledger, [Segment(ids(0))], groups={"platform": {"a\x1b[2Jb\x9b\u202e": ids(0)}})
    assert not set(printed(seen)) & set("\x1b\x9b\u202e")
    assert not set(as_markdown(describe_preview(seen))) & set("\x1b\x9b\u202e")


@pytest.mark.parametrize("width", [80, 120])
def test_a_preview_fits_its_terminal(ledger: Ledger, warehouse: str, width: int) -> None:
    seen = look(folder(gates={"most": 3, "change": 10, "unusable": 50}), warehouse, ledger)
    assert max(map(len, printed(seen, width).splitlines())) <= width


PLATFORMS = {"android": ids(0, 1, 2), "ios": ids(2, 3), "chrome": ids(4), "kiosk": ids(5), "email": ids(6)}


@pytest.mark.parametrize(
    ("channels", "said"),
    [
        ({"android_push": None, "ios_push": None}, "2 people, 28.6 %: chrome (1), email (1)"),
        # a recipient who is also on ios is reached
        ({"ios_push": None}, "4 people, 57.1 %: android (2), chrome (1), email (1)"),
        ({"web_push": {"browsers": ["chrome"]}}, "5 people, 71.4 %: android (3), email (1), ios (2)"),
        ({"ios_push": None, "inbox": None}, None),  # an inbox may reach anyone
    ],
)
def test_only_who_certainly_is_not_reached_is_told(channels: dict[str, Any], said: str | None) -> None:
    found = list(unreachable(Campaign.model_validate(SPRING | {"channels": channels}), PLATFORMS))
    told = [
        line.replace("The campaign's channels cannot reach ", "")
        .replace(" of those with a platform", "")
        .rstrip(".")
        for line in found
    ]
    assert told == ([said] if said else [])


WEB = {"channels": {"web_push": {"browsers": ["chrome", "safari"]}}}
TEMPLATE = {"id": 7, "channels": ["web_push"]}


@pytest.mark.parametrize(
    ("fields", "platforms"),
    [
        (SPRING | WEB, {"chrome", "safari"}),
        (
            SPRING
            | WEB
            | {"variants": {"a": {"percent": 50}, "b": WEB | {"percent": 50}}}
            | {"channels": {"android_push": None, "web_push": {"browsers": ["opera"]}}},
            {"android", "chrome", "opera", "safari"},
        ),
        ({"title": "x", "template": TEMPLATE}, {"chrome", "firefox", "opera", "safari"}),
        (
            {
                "title": "x",
                "template": TEMPLATE | {"channels": ["ios_push"]},
                "variants": {"a": {"percent": 50}, "b": {"percent": 50, "template": TEMPLATE}},
            },
            {"ios", "chrome", "firefox", "opera", "safari"},
        ),
        ({"title": "x", "template": TEMPLATE | {"channels": ["ios_push", "email"]}}, None),
    ],
)
def test_a_campaign_pushes_to_the_platforms_of_all_its_parts(
    fields: dict[str, Any], platforms: set[str] | None
) -> None:
    assert platforms_pushed_to(Campaign.model_validate(fields)) == platforms


def test_what_one_variant_reaches_is_reached() -> None:
    both = Campaign.model_validate(
        SPRING
        | {
            "channels": {"android_push": None},
            "variants": {"a": {"percent": 50}, "b": {"percent": 50, "channels": {"android_push": None}}},
        }
    )
    assert len(list(unreachable(both, {"android": ids(1)}))) == 0
    assert len(list(unreachable(both, {"ios": ids(1)}))) == 1


def test_languages_that_the_service_chooses_are_shown_too() -> None:
    campaign = Campaign.model_validate(
        SPRING
        | {
            "language": "en",
            "message": WORDS | {"translations": {"de": {"title": "Hallo", "text": "Frühling"}}},
        }
    )
    found = renderings(campaign, {Variation(): 5}, period_end=PERIOD.end)
    assert [(each.language, each.people) for each in found] == [("en", 5), ("de", None)]
    assert found[1].channels["android_push"] == {"title": "Hallo", "text": "Frühling"}


def test_only_channels_that_show_a_picture_have_one() -> None:
    picture = "https://shop.example.com/a.png"
    channels = {"android_push": None, "ios_push": None, "web_push": {"browsers": ["chrome"]}, "inbox": None}
    message = WORDS | {"picture": picture}
    campaign = Campaign.model_validate(SPRING | {"message": message, "channels": channels})
    (found,) = renderings(campaign, {Variation(): 5}, period_end=PERIOD.end)
    assert {name for name, parts in found.channels.items() if parts.get("picture") == picture} == {
        "android_push",
        "ios_push",
    }


def test_two_time_zones_have_the_same_words_and_are_shown_once() -> None:
    campaign = Campaign.model_validate(
        SPRING | {"send": {"kind": "once", "time": "18:30", "time_zone": "query", "default_time_zone": "UTC"}}
    )
    variations = {Variation(time_zone="Asia/Tokyo"): 2, Variation(time_zone="UTC"): 3}
    assert [each.people for each in renderings(campaign, variations, period_end=PERIOD.end)] == [5]


def test_an_email_is_shown_without_its_html() -> None:
    page = (
        "<html><head><title>T</title><style>p {}</style></head><body><p>Hello <b>you</b>,</p>\n"
        "<p>ten&nbsp;%<br>off</p><img src=x alt='A basket'><script>x()</script></body></html>"
    )
    assert plain_text(page) == "Hello you,\nten %\noff\nA basket"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<img src=x>Off", "Off"),
        ("<head><b>x</b>y</head>Off", "Off"),
        ("<style>a</style>O<i>f</i>f", "Off"),
        ("<p>O</p><div>ff</div>", "O\nff"),
        ("", ""),
    ],
)
def test_only_what_people_see_of_a_page_is_text(page: str, text: str) -> None:
    assert plain_text(page) == text


def test_a_translation_without_a_url_shows_that_of_the_message() -> None:
    url = "https://shop.example.com/spring"
    message = WORDS | {"url": url, "translations": {"de": {"title": "Hallo", "text": "Frühling"}}}
    campaign = Campaign.model_validate(SPRING | {"language": "en", "message": message})
    _, german = renderings(campaign, {Variation(): 5}, period_end=PERIOD.end)
    assert german.channels["android_push"] == {"title": "Hallo", "text": "Frühling", "url": url}


def test_long_words_are_cut_where_people_stop_reading() -> None:
    campaign = Campaign.model_validate(
        {"title": "x", "channels": {"sms": {"sender": "Shop", "text": "word " * 1_600}}}
    )
    shown = renderings(campaign, {Variation(): 1}, period_end=PERIOD.end)[0].channels["sms"]["text"]
    assert len(shown) < 2_010
    assert shown.endswith("…")


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [("x" * 2_000, False), ("x" * 2_001, True), ("x\n" * 19 + "x", False), ("x\n" * 20 + "x", True)],
)
def test_words_are_cut_after_2000_characters_or_20_lines(text: str, is_cut: bool) -> None:
    campaign = Campaign.model_validate({"title": "x", "channels": {"sms": {"sender": "Shop", "text": text}}})
    shown = renderings(campaign, {Variation(): 1}, period_end=PERIOD.end)[0].channels["sms"]["text"]
    assert shown == (f"{text[:2_000].removesuffix(chr(10) + 'x')} …" if is_cut else text)


@pytest.mark.parametrize(
    ("send", "said"),
    [
        ({"time_zone": "UTC"}, "at 09:00 on the day of the run, in UTC"),
        ({"time_zone": "UTC", "date": "2026-11-20"}, "at 09:00 on 2026-11-20, in UTC"),
        ({"time_zone": "user"}, "at 09:00, in each person's own time zone, as the service knows it"),
        (
            {"time_zone": "query", "default_time_zone": "UTC"},
            "at 09:00, in each person's time zone, as the query returns it",
        ),
    ],
)
def test_a_campaign_that_sends_once_says_on_which_day(send: dict[str, Any], said: str) -> None:
    assert describe_schedule(Once.model_validate({"time": "09:00", **send})).startswith(said)


@pytest.mark.parametrize(
    ("trigger", "cause"),
    [
        ({"kind": "location", "locations": [4], "when": "enter"}, "locations"),
        ({"kind": "event", "name": "basket_left"}, "the event basket_left"),
        ({"kind": "api"}, "the API"),
    ],
)
def test_a_triggered_campaign_says_what_triggers_it(trigger: dict[str, Any], cause: str) -> None:
    days = {"time_zone": "UTC", "start": "2026-11-20", "end": "never"}
    send = Triggered.model_validate({**days, "trigger": trigger})
    assert describe_schedule(send).startswith(
        f"whenever it is triggered by {cause}: every day from 00:00 to 23:59"
    )
