import io
import json
import re
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from PIL import Image
from rich.console import Console

from sendoff import report
from sendoff.app import Report
from sendoff.errors import SettingsError
from sendoff.figures import LaunchStats, duration, share
from sendoff.report import as_json, as_picture, as_terminal, describe_launch
from sendoff.report.timeline import points_of
from sendoff.states import Verdict

from ...sample_report import START, WHOLE


def as_text(whole: LaunchStats, width: int = 80) -> str:
    return report.as_text(describe_launch(whole), width)


def figures(**changes: Any) -> LaunchStats:
    return replace(WHOLE, **changes)


def test_figures_survive_json() -> None:
    whole = figures()
    assert LaunchStats.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_figures_of_before_are_still_read() -> None:
    new = (
        "state",
        "is_chosen_by_service",
        "is_recurring",
        "not_sent_because",
        "unknowable_because",
        "by_variant",
        "unmeasured",
        "identified_by",
        "doubted",
    )
    stored = {name: value for name, value in figures().to_json().items() if name not in new}
    assert LaunchStats.from_json(stored) == figures(unknowable_because={})
    del stored["audience"]
    with pytest.raises(KeyError, match="audience"):
        LaunchStats.from_json(stored)


def test_the_points_of_a_timeline_are_whole_hours_and_days_of_its_time_zone() -> None:
    kolkata = ZoneInfo("Asia/Kolkata")
    timeline = [(START, 1, 0), (START + timedelta(days=5, minutes=29), 0, 1)]
    step, points = points_of(timeline, kolkata)
    assert step == 60
    assert {at.minute for at, _, _ in points} == {0}
    assert points[0][0] == datetime(2026, 3, 1, 14, tzinfo=kolkata)
    assert (sum(each for _, each, _ in points), sum(each for _, _, each in points)) == (1, 1)
    pages = report.as_html(describe_launch(figures(), zone=kolkata))
    assert "in Asia/Kolkata." in pages
    assert "UTC" not in pages.partition('id="timeline-heading"')[2].partition("</section>")[0]


@pytest.mark.parametrize(("days", "step"), [(7, 60), (20, 180), (40, 360), (100, 1_440), (300, 10_080)])
@pytest.mark.parametrize(("month", "day"), [(3, 29), (10, 25)], ids=["spring", "autumn"])
def test_points_begin_at_midnight_also_after_the_clock_was_changed(
    month: int, day: int, days: int, step: int
) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    change = datetime(2026, month, day, tzinfo=berlin)
    moments = [change, change + timedelta(days=2, minutes=30), change + timedelta(days=days, minutes=-1)]
    found, points = points_of([(each.astimezone(ZoneInfo("UTC")), 1, 0) for each in moments], berlin)
    assert found == step
    second = next(at for at, count, _ in points[1:] if count)
    assert f"{second:%H:%M}" == "00:00"
    assert second <= moments[1] < second + timedelta(minutes=step)
    assert sum(count for _, count, _ in points) == 3
    if step == 10_080:
        assert {at.strftime("%A") for at, _, _ in points} == {"Monday"}


@pytest.mark.parametrize(
    ("control_group", "why"),
    [
        (0, "those who were erased are in none"),
        (20, "people in the control group get no variant; those who were erased are in none"),
    ],
)
def test_a_report_after_an_erasure_gives_no_other_reason_for_what_is_missing(
    control_group: int, why: str
) -> None:
    verdicts = {"engaged": 300, "missing": 650 - control_group, "not_sent": control_group}
    whole = figures(
        verdicts=verdicts,
        erased=50,
        by_variant={"a": {"engaged": 300}, "b": {"missing": 650 - control_group}},
        not_sent_because={"held out": control_group},
        by_platform={},
    )
    text = " ".join(as_text(whole, 200).split())
    assert "50 5.0 % erased" in text
    assert "The shares are rounded" not in text
    assert f"The variants sum to {950 - control_group:,}, not to 1,000: {why}." in text
    assert report.as_html(describe_launch(whole)).count(">not erased<") == 1
    assert Report(whole).to_pandas()["share"].sum() == pytest.approx(0.95)


def test_a_frame_has_no_number_that_was_not_measured_and_no_share_of_unknown_people() -> None:
    deliveries = figures(verdicts={"delivered": 250}, unmeasured=("open",))
    frame = Report(deliveries).to_pandas().set_index("verdict")
    assert frame.loc["engaged"].isna().all()
    assert frame.loc["delivered"].tolist() == [250, 250 / deliveries.audience]
    chosen = Report(replace(WHOLE, is_chosen_by_service=True)).to_pandas()
    assert chosen["people"].notna().all()
    assert chosen["share"].isna().all()


@pytest.mark.parametrize("is_chosen", [False, True])
def test_a_report_of_devices_never_calls_them_people(is_chosen: bool) -> None:
    verdicts = WHOLE.verdicts if not is_chosen else {"engaged": 600, "delivered": 400}
    whole = figures(
        identified_by="device_id",
        not_sent_because={"held out": 100},
        is_recurring=True,
        by_variant={"short": {"engaged": 200}},
        verdicts=verdicts,
    )
    document = describe_launch(replace(whole, is_chosen_by_service=is_chosen))
    for text in (report.as_text(document), report.as_html(document), report.as_markdown(document)):
        assert "devices" in text
        known = text.replace("The service chose the people", "").replace("written off by a person", "")
        assert not re.search(r"\b(people|person)\b", known, re.IGNORECASE)


@pytest.mark.promise("honest/sums")
def test_figures_say_what_is_unaccounted_for() -> None:
    assert (figures().unaccounted_rows, figures().unaccounted_identifiers) == (0, 0)
    assert figures(rows=1_033).unaccounted_rows == 3
    assert figures(audience=990, rows=1_020).unaccounted_identifiers == -10


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        figures(as_of=datetime(2026, 3, 1))  # noqa: DTZ001


def numbers(line: str) -> list[int]:
    return [int(word.replace(",", "")) for word in line.split() if word.replace(",", "").isdecimal()]


def section(text: str, heading: str) -> list[str]:
    return text.partition(f"\n{heading}\n")[2].partition("\n\n")[0].splitlines()


def test_the_text_shows_a_sum_from_rows_to_audience() -> None:
    lines = section(as_text(figures()), "From rows to audience")
    rows, *dropped, audience = (numbers(line)[0] for line in lines)
    assert rows - sum(dropped) == audience == 1_000
    assert [line.split()[0] for line in lines[1:]] == ["-", "-", "="]


def test_the_text_shows_every_reason_of_dropping_in_the_order_of_the_audience() -> None:
    reasons = {
        "null": (3, "without an identifier"),
        "gave it back": (5, "gave it back"),
        "cap": (7, "over the cap on messages"),
        "priority": (11, "priority"),
        "size_limit": (4, "size limit"),
    }
    stored = {reason: count for reason, (count, _) in reasons.items()}
    lines = section(as_text(figures(dropped=stored)), "From rows to audience")
    assert [line.split(maxsplit=2)[1:] for line in lines[1:-1]] == [
        [str(count), said] for count, said in reasons.values()
    ]


def test_the_text_shows_why_people_were_not_sent_to() -> None:
    verdicts = {"engaged": 900, "not_sent": 100}
    reasons = {"held out": 60, "refused": 30, "launch stopped": 10}
    lines = section(
        as_text(figures(verdicts=verdicts, not_sent_because=reasons)), "What became of the audience"
    )
    under = next(number for number, line in enumerate(lines, start=1) if "not sent" in line)
    assert [line.split() for line in lines[under : under + 3]] == [
        ["control", "group", "60"],
        ["refused", "30"],
        ["launch", "stopped", "10"],
    ]
    assert lines[under + 3].split()[:2] == ["=", "1,000"]


def test_every_report_says_who_got_nothing_why_and_how_they_are_reached() -> None:
    reasons = {"held out": 60, "refused": 30, "launch stopped": 10}
    whole = figures(verdicts={"engaged": 900, "not_sent": 100}, not_sent_because=reasons)
    lines = section(as_text(whole, width=120), "Who got nothing, and why")
    assert [line.strip() for line in lines] == [
        "30 people got nothing, because the service refused their requests.",
        "10 people got nothing, because the launch was stopped before their turn.",
        "Nothing more of this launch is sent to them.",
        "To reach them, send the period again only to those who got nothing.",
    ]
    assert "30 people got nothing" in report.as_html(describe_launch(whole))
    assert "send the period again" not in as_text(replace(whole, is_recurring=True), width=120)
    assert "got nothing" not in as_text(figures(not_sent_because={"held out": 60}))


@pytest.mark.promise("honest/sums")
def test_the_text_shows_a_sum_of_verdicts() -> None:
    lines = section(as_text(figures()), "What became of the audience")
    *verdicts, audience = (numbers(line)[0] for line in lines[:7])
    assert verdicts == [200, 300, 50, 200, 250, 0]
    assert sum(verdicts) == audience == 1_000


def test_the_text_bounds_how_many_were_reached() -> None:
    assert "Reached of the audience: at least 500 (50.0 %), at most 950 (95.0 %)." in as_text(figures())


def test_the_text_says_how_many_were_reached_of_those_who_are_not_held_out() -> None:
    verdicts = {"engaged": 200, "delivered": 300, "unknowable": 250, "not_sent": 250}
    text = " ".join(
        as_text(figures(verdicts=verdicts, not_sent_because={"held out": 200, "refused": 50})).split()
    )
    assert "Reached of the audience: at least 500 (50.0 %), at most 750 (75.0 %)." in text
    others = "Of the 800 people outside the control group: at least 62.5 %, at most 93.8 %; 25.0 % opened or clicked."
    assert others in text
    assert "control group" not in as_text(figures())


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        ({"engaged": 1, "delivered": 1, "missing": 1}, ["33.3 %"] * 3),
        ({"engaged": 2, "delivered": 2, "missing": 3}, ["28.6 %", "28.6 %", "42.9 %"]),
    ],
)
def test_shares_that_rounding_keeps_from_adding_up_say_so(verdicts: dict[str, int], shown: list[str]) -> None:
    text = as_text(figures(verdicts=verdicts, audience=sum(verdicts.values())))
    lines = section(text, "What became of the audience")
    assert re.findall(r"\d+\.\d %", " ".join(lines[:3])) == shown
    found = re.search(r"so they sum to (\d+\.\d) %", " ".join(text.split()))
    assert found is not None
    assert float(found[1]) == pytest.approx(sum(float(each.removesuffix(" %")) for each in shown))
    assert "are rounded" not in as_text(figures())


def test_who_is_in_doubt_since_a_request_is_under_way_is_told_so() -> None:
    under_way = figures(dispatches={"accepted": 3, "in_flight": 1})
    assert "no clear answer, or is still under way, and" in " ".join(as_text(under_way).split())
    assert "under way" not in as_text(figures())
    refused = figures(dispatches={"in_doubt": 1, "refused": 2}, doubted={"refused": 2})
    assert (
        "no clear answer, and no post-back has shown since that it was processed. Exception: the service refused 2 "
        "requests, although a post-back came or an earlier attempt got no clear answer. Sending again might"
        in " ".join(as_text(refused).split())
    )


def test_the_text_says_what_cannot_be_known_and_why() -> None:
    why = " ".join(section(as_text(figures()), "What cannot be known, and why"))
    assert "200 unknowable" in why
    assert "(android 200)" in " ".join(why.split())
    assert "250 in doubt" in why


def test_a_report_of_before_says_why_only_where_that_is_certain() -> None:
    def why(**changes: Any) -> str:
        found = figures(unknowable_because={}, **changes)
        return " ".join(" ".join(section(as_text(found), "What cannot be known, and why")).split())

    assert "there are no post-backs of deliveries, one could not be understood, or post-backs do not" in why()
    assert "(android 200). Deliveries by Android push" in why(anomalies={})
    chrome = {"chrome": {"unknowable": 200, "engaged": 800}}
    assert "Deliveries by Android push" not in why(anomalies={}, by_platform=chrome)


def test_a_verdict_that_nothing_could_tell_is_not_left_a_plain_zero() -> None:
    verdicts = {"delivered": 600, "unknowable": 400}
    why = " ".join(as_text(figures(verdicts=verdicts, unmeasured=("open",))).split())
    assert "Not measured: engaged. The launch did not request post-backs of opens" in why
    assert "The 0 is not a count." in why
    assert "Not measured: delivered" not in why
    assert "Not measured" not in as_text(figures())


def test_a_share_of_opens_that_nothing_could_tell_is_not_said_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sendoff.report import picture

    written: list[str] = []
    monkeypatch.setattr(picture, "_write", lambda *given, **_: written.append(given[3]))
    verdicts = {"delivered": 600, "unknowable": 300, "not_sent": 100}
    whole = figures(verdicts=verdicts, not_sent_because={"held out": 100})
    for unmeasured, is_shown in (((), True), (("open",), False)):
        found = replace(whole, unmeasured=unmeasured)
        written.clear()
        as_picture(found, tmp_path / "report.png")
        text, page = " ".join(as_text(found).split()), report.as_html(describe_launch(found))
        assert ("outside the control group: at least 66.7 %, at most 100.0 %." in text) is not is_shown
        assert ("0.0 % opened or clicked." in text) is is_shown
        assert ("not measured, so this is not a count" in page) is not is_shown
        assert written.count("?") == written.count("not measured") == int(not is_shown)


def test_the_text_is_silent_about_doubts_where_there_are_none() -> None:
    sure = figures(verdicts={"delivered": 1_000})
    assert "cannot be known" not in as_text(sure)


def test_platforms_sum_up_under_each_other() -> None:
    header, *lines, total = section(as_text(figures()), "By platform")
    assert header.split() == ["engaged", "delivered", "missing", "unknowable", "in", "doubt", "total"]
    assert [sum(column) for column in zip(*map(numbers, lines), strict=True)] == numbers(total)


def test_platforms_that_do_not_sum_to_the_audience_are_explained() -> None:
    assert "two" not in as_text(figures())
    overlapping = figures(by_platform={"android": {"engaged": 900}, "chrome": {"engaged": 200}})
    assert "The platforms sum to 1,100, not to 1,000" in as_text(overlapping)


def test_variants_sum_up_under_each_other() -> None:
    variants = {"[red]": {"engaged": 150, "missing": 350}, "sum": {"engaged": 50, "missing": 450}}
    text = as_text(figures(by_variant=variants))
    assert [line.split() for line in section(text, "By variant")] == [
        ["engaged", "missing", "total"],
        ["[red]", "150", "350", "500"],
        ["sum", "50", "450", "500"],
        ["sum", "200", "800", "1,000"],
    ]
    assert "By variant" not in as_text(figures())


def test_who_is_held_out_of_all_variants_is_explained() -> None:
    variants = {"a": {"engaged": 500}, "b": {"engaged": 400}}
    text = as_text(figures(by_variant=variants))
    assert "The variants sum to 900, not to 1,000: people in the control group get no variant." in " ".join(
        text.split()
    )


def chosen_by_service(**changes: Any) -> LaunchStats:
    """Return the figures of a broadcast: 60 people engaged, and 240 more had a delivery."""
    known: dict[str, Any] = {
        "rows": 0,
        "dropped": {},
        "audience": 300,
        "segments": 1,
        "dispatches": {"accepted": 1},
        "verdicts": dict.fromkeys(Verdict, 0) | {"engaged": 60, "delivered": 240},
        "by_platform": {},
        "is_chosen_by_service": True,
    }
    return figures(**known | changes)


def test_of_people_whom_the_service_chose_only_those_heard_of_are_counted() -> None:
    text = as_text(chosen_by_service())
    assert (
        "The service chose the people, so their number is not known. Post-backs name 300 people."
        in " ".join(text.split())
    )
    assert "Reached: at least 300; at most is not known." in text
    heard = section(text, "People in the post-backs")[:3]
    assert [line.split(maxsplit=2) for line in (f". {heard[0].strip()}", *heard[1:])] == [
        [".", "60", "engaged"],
        ["+", "240", "delivered"],
        ["=", "300", "people in the post-backs"],
    ]


@pytest.mark.proof
@pytest.mark.parametrize("words", ["%", "missing", "unknowable", "not sent", "rows", "audience", "ADD UP"])
def test_nothing_is_said_of_people_whom_nobody_knows(words: str, tmp_path: Path) -> None:
    assert words in as_text(figures(rows=5))
    assert words not in as_text(chosen_by_service())
    assert words not in shown(chosen_by_service(), tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dispatches": {"in_doubt": 1}}, "1 request in doubt: the service gave no clear answer"),
        ({"dispatches": {"refused": 1}}, "1 request refused by the service: it reached no one."),
        (
            {"dispatches": {"refused": 1}, "doubted": {"refused": 1}},
            "1 request refused by the service, although a post-back came or an",
        ),
        (
            {"dispatches": {"planned": 1}, "doubted": {"planned": 1}},
            "1 request in doubt: the service gave no",
        ),
        ({"dispatches": {"planned": 1}}, "1 request not made."),
        ({"dispatches": {"planned": 1}, "state": "held"}, "1 request not made: the launch is held."),
        ({"dispatches": {"planned": 1}, "state": "rejected"}, "1 request not made: the launch was rejected."),
        ({"dispatches": {"planned": 1}, "state": "stopped"}, "1 request not made: the launch was stopped."),
    ],
)
def test_requests_stand_for_people_whom_nobody_knows(changes: dict[str, Any], words: str) -> None:
    nobody = {"audience": 0, "verdicts": dict.fromkeys(Verdict, 0)}
    text = as_text(chosen_by_service(**nobody, **changes))
    assert words in text
    assert text.count("1 request ") == 1
    assert "Post-backs name 0 people." in " ".join(text.split())


def test_json_says_that_the_most_reached_are_not_known() -> None:
    values = json.loads(json.dumps(as_json(chosen_by_service())))
    assert values["reached"] == {"at_least": 300, "at_most": None}
    assert values["is_chosen_by_service"]
    assert values["adds_up"]
    assert not as_json(chosen_by_service(rows=1))["adds_up"]


def test_what_is_sent_again_and_again_is_said_and_so_is_what_its_silence_means() -> None:
    text = as_text(figures(is_recurring=True, unknowable_because={"sent again": 200}))
    assert "Sent again and again. A person may get many messages" in " ".join(text.split())
    assert "silence proves nothing: the service sends this campaign repeatedly" in " ".join(text.split())
    assert "again and again" not in as_text(figures())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 1_033}, "DOES NOT ADD UP: 3 rows neither kept nor dropped"),
        ({"verdicts": {"engaged": 999}}, "DOES NOT ADD UP: 1 identifier without a verdict"),
    ],
)
@pytest.mark.promise("honest/sums")
def test_sums_that_do_not_add_up_are_said_aloud(changes: dict[str, Any], words: str) -> None:
    assert words in as_text(figures(**changes))
    assert not as_json(figures(**changes))["adds_up"]
    assert "ADD UP" not in as_text(figures())
    assert as_json(figures())["adds_up"]


def test_anomalies_are_shown_where_there_are_some() -> None:
    text = as_text(figures())
    assert "1 unexpected, 7 duplicate, 2 unreadable" in text
    assert "another campaign" not in text
    twice = figures(anomalies={"forged": 7_779})
    shown = " ".join(as_text(twice).split())
    assert (
        "anomalies 7,779 of another campaign 7,779 post-backs name another campaign than the service created"
        in shown
    )
    assert (
        "Either it was sent twice, for example after an older ledger was restored, or someone forged a post-back."
        in shown
    )
    assert "it was sent twice, or they are forged." in str(describe_launch(twice))
    assert as_json(twice)["anomalies"] == {"forged": 7_779}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("paused", "21 planned, 30 accepted"),
        ("stopped", "30 accepted, 21 not made, and never will be (launch stopped)"),
        ("rejected", "30 accepted, 21 not made, and never will be (launch rejected)"),
    ],
)
def test_requests_that_a_launch_will_never_make_are_not_called_planned(state: str, words: str) -> None:
    text = as_text(figures(state=state, dispatches={"planned": 21, "accepted": 30}))
    assert words in " ".join(text.split())
    assert "never will be" not in as_text(figures(state=state, dispatches={"accepted": 51}))


def everything_large() -> LaunchStats:
    verdicts = dict.fromkeys(Verdict, 9_999_999)
    return figures(
        verdicts=verdicts, by_platform=dict.fromkeys(("android", "ios", "chrome", "firefox"), verdicts)
    )


@pytest.mark.proof
@pytest.mark.parametrize("whole", [figures(), everything_large()])
def test_eighty_columns_are_enough(whole: LaunchStats) -> None:
    lines = as_text(whole, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("android" in line.split() for line in lines) == 1  # no row is broken
    assert [line.split()[-1] for line in lines if line.startswith("ios")] != ["0"]


def test_the_text_has_no_colour_codes() -> None:
    assert "\x1b" not in as_text(figures())


def test_a_terminal_without_blocks_gets_signs_that_it_has() -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=terminal, width=80).print(as_terminal(describe_launch(figures())))
    terminal.flush()
    assert b"#####" in terminal.buffer.getvalue()


@pytest.mark.parametrize(
    ("count", "whole", "text"),
    [
        (0, 0, "-"),
        (0, 10, "0.0 %"),
        (1, 10_000_000, "<0.1 %"),  # not no one
        (9_999_999, 10_000_000, ">99.9 %"),  # not everyone
        (10, 10, "100.0 %"),
        (1, 3, "33.3 %"),
    ],
)
def test_a_share_says_nobody_or_everybody_only_where_it_is_meant(count: int, whole: int, text: str) -> None:
    assert share(count, whole) == text


def test_json_carries_the_figures_and_the_bounds() -> None:
    whole = figures()
    values = json.loads(json.dumps(as_json(whole)))
    assert LaunchStats.from_json(values) == whole
    assert values["reached"] == {"at_least": 500, "at_most": 950}


def pictures() -> dict[str, LaunchStats]:
    nothing: dict[str, Any] = {"rows": 0, "dropped": {}, "audience": 0, "segments": 0, "verdicts": {}}
    return {
        "two platforms": figures(),
        "one platform": figures(by_platform={"chrome": {"engaged": 1_000}}),
        "ten platforms": figures(by_platform={f"platform {n}": {"missing": n} for n in range(10)}),
        "thirty platforms": figures(by_platform={f"platform {n}": {"missing": n} for n in range(30)}),
        "no platform": figures(by_platform={}),
        "a platform without anybody": figures(by_platform={"chrome": {}}),
        "no post-back": figures(timeline=()),
        "one minute": figures(timeline=[(START, 0, 0)]),
        "ten years": figures(timeline=[(START, 1, 1), (START + timedelta(days=3_650), 1, 1)]),
        "nobody": figures(**nothing, by_platform={}, timeline=()),
        "words that look like formulas": figures(campaign="$\\frac{", by_platform={"$_{": {"missing": 1}}),
        "sums that do not add up": figures(rows=5),
        "people whom the service chose": chosen_by_service(),
        "nobody heard of": chosen_by_service(audience=0, verdicts={}, timeline=()),
    }


@pytest.mark.proof
@pytest.mark.parametrize("case", pictures())
def test_a_picture_is_drawn_of(case: str, tmp_path: Path) -> None:
    path = as_picture(pictures()[case], tmp_path / "new folder" / "picture.png")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width == 1_920
        assert len(image.convert("L").getcolors()) > 20  # type: ignore[arg-type]


def test_a_suffix_of_a_picture_may_be_in_capitals(tmp_path: Path) -> None:
    assert as_picture(figures(), tmp_path / "picture.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("picture.txt", "must end in .png or .svg"),
        ("picture.gif", "must end in .png or .svg"),
        ("picture", "must end in"),
        ("file/x.png", "cannot be written"),
    ],
)
def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=problem):
        as_picture(figures(), tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def shown(whole: LaunchStats, folder: Path) -> str:
    """Return the words of the picture. Matplotlib keeps them as comments when it draws letters as curves."""
    return " ".join(re.findall(r"<!-- (.*?) -->", as_picture(whole, folder / "picture.svg").read_text()))


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        (0, "No post-backs yet."),
        (1, "5 deliveries and 1 open or click, all within one minute from"),
        (2, "10 deliveries and 2 opens or clicks, all within 2 minutes from 2026-03-01 09:00 UTC."),
        (3, ""),
    ],
)
def test_a_timeline_of_fewer_than_three_points_is_a_sentence(minutes: int, said: str, tmp_path: Path) -> None:
    whole = figures(timeline=[(START + timedelta(minutes=number), 5, 1) for number in range(minutes)])
    page, words = report.as_html(describe_launch(whole)), shown(whole, tmp_path)
    assert said in page
    assert said in words
    assert ('class="histogram"' not in page) is bool(said)
    assert ("too short for a chart" in words) is (minutes in (1, 2))


def test_a_sentence_takes_less_of_the_picture_than_a_chart(tmp_path: Path) -> None:
    def height(minutes: int) -> float:
        timeline = [(START + timedelta(minutes=number), 5, 1) for number in range(minutes)]
        drawn = as_picture(figures(timeline=timeline), tmp_path / "picture.svg").read_text()
        return float(re.findall(r'height="([\d.]+)pt"', drawn)[0])

    assert height(2) < height(3) - 72  # an inch


def test_the_picture_carries_title_totals_and_time(tmp_path: Path) -> None:
    words = shown(figures(), tmp_path)
    for part in ("lapsed_buyers", "1,000", "1,030 rows less 30 dropped", "as of 2026-03-01 10:00 UTC"):
        assert part in words


def test_the_picture_shows_every_verdict_with_its_share_and_count(tmp_path: Path) -> None:
    words = shown(figures(), tmp_path)
    for verdict in Verdict:
        assert verdict.replace("_", " ") in words
    for share_and_count in ("20.0 % 200", "30.0 % 300", "5.0 % 50", "20.0 % 200", "25.0 % 250", "0.0 % 0"):
        assert share_and_count in words


def test_the_picture_counts_those_heard_of_where_the_service_chose_the_people(tmp_path: Path) -> None:
    words = shown(chosen_by_service(), tmp_path)
    assert "300 in the post-backs; the service chose the people engaged 60 delivered 240" in words
    assert "their number is not known. Reached: at least 300; at most is not known." in words


@pytest.mark.proof
@pytest.mark.parametrize("whole", [figures(is_recurring=True), chosen_by_service(is_recurring=True)])
def test_the_picture_says_what_is_sent_again_and_again(whole: LaunchStats, tmp_path: Path) -> None:
    assert "Sent again and again" in shown(whole, tmp_path)
    assert "Sent again and again" not in shown(replace(whole, is_recurring=False), tmp_path)


def test_the_smallest_of_many_platforms_are_one_bar(tmp_path: Path) -> None:
    words = shown(pictures()["thirty platforms"], tmp_path)
    assert "20 others" in words
    assert "platform 20" in words
    assert "platform 19" not in words


def test_a_long_timeline_is_drawn_in_longer_steps_and_loses_nothing() -> None:
    timeline = [(START + timedelta(minutes=7 * n), n, 1) for n in range(2_000)]
    step, points = points_of(timeline)
    assert step == 180
    assert len(points) <= 181
    assert sum(deliveries for _, deliveries, _ in points) == sum(range(2_000))
    assert sum(opens for _, _, opens in points) == 2_000


def test_minutes_without_a_post_back_are_zero() -> None:
    _, points = points_of([(START, 5, 0), (START + timedelta(minutes=3), 0, 2)])
    assert [counts for _, *counts in points] == [[5, 0], [0, 0], [0, 0], [0, 2]]


def test_a_picture_counts_the_post_backs_that_its_timeline_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sendoff.report import picture

    written: list[str] = []
    area = picture.TextArea
    monkeypatch.setattr(picture, "TextArea", lambda text, **more: written.append(text) or area(text, **more))
    found = figures(post_backs={"delivery": 9_000, "open": 900})  # some of them name no recipient
    as_picture(found, tmp_path / "report.png")
    deliveries, opens = (sum(counts) for counts in list(zip(*found.timeline, strict=True))[1:])
    assert written[1:] == [f"deliveries {deliveries:,}", f"opens and clicks {opens:,}"]


@pytest.mark.proof
def test_drawing_leaves_no_trace_in_the_process(tmp_path: Path) -> None:
    as_picture(figures(), tmp_path / "picture.png")
    assert "matplotlib.pyplot" not in sys.modules


def test_a_picture_without_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.startswith(("matplotlib.", "sendoff.report.picture"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SettingsError, match=r"airflow-provider-sendoff\[picture\]"):
        as_picture(figures(), tmp_path / "picture.png")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.01, "0.1 s"), (1 / 3, "0.33 s"), (9, "9 s"), (90, "1 min 30 s"), (90_000, "1 day 1 h")],
)
def test_a_duration_has_two_digits_or_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words
