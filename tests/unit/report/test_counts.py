"""The counts of a report as CSV: the same numbers, no identifiers, and no formulas."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from sendoff.figures import LaunchStats
from sendoff.report import as_csv, csv_of

from ...sample_report import WHOLE


def rows(figures: LaunchStats) -> list[list[str]]:
    header, *found = csv.reader(io.StringIO(as_csv(figures)))
    assert header == ["of", "group", "what", "count"]
    return found


def test_the_counts_are_those_of_the_report() -> None:
    not_sent = {"held out": 3, "suppressed": 4}
    requests = {"accepted": 3, "suppressed": 2}
    found = rows(
        replace(WHOLE, not_sent_because=not_sent, by_variant={"red": {"in_doubt": 7}}, dispatches=requests)
    )
    for row in (
        ["rows", "", "rows read", "1030"],
        ["rows", "dropped", "duplicate", "20"],
        ["people", "", "audience", "1000"],
        ["people", "by verdict", "in doubt", "250"],
        ["people", "not sent because", "control group", "3"],
        ["people", "not sent because", "on the suppression list", "4"],
        ["people", "unknowable because", "unreliable platform", "200"],
        ["platform", "chrome", "engaged", "100"],
        ["variant", "red", "in doubt", "7"],
        ["requests", "by state", "accepted", "3"],
        ["requests", "by state", "suppressed", "2"],
        ["post-backs", "by kind", "delivery", "400"],
    ):
        assert row in found


def test_reasons_with_the_same_words_have_a_row_each() -> None:
    same = {"suppressed": 10, "on the suppression list": 30}
    found = rows(replace(WHOLE, dropped=same, not_sent_because=same))
    for of, group in (("rows", "dropped"), ("people", "not sent because")):
        counts = [row[2:] for row in found if row[:2] == [of, group]]
        assert counts == [["on the suppression list", "10"], ["on the suppression list", "30"]]


def test_people_whom_the_service_chose_have_no_rows_of_a_query() -> None:
    chosen = replace(WHOLE, is_chosen_by_service=True)
    assert {row[0] for row in rows(chosen)} == {"people", "platform", "requests", "post-backs"}


def test_a_verdict_that_no_post_back_can_show_has_no_count() -> None:
    found = rows(replace(WHOLE, unmeasured=("open",), by_variant={"red": {"engaged": 0, "in_doubt": 7}}))
    assert ["people", "by verdict", "engaged", ""] in found
    assert ["people", "by verdict", "in doubt", "250"] in found
    assert ["variant", "red", "engaged", ""] in found
    assert ["variant", "red", "in doubt", "7"] in found


@pytest.mark.parametrize("title", ["x\r\ny", "x\n\ny", "x;y", "a-b=c"])
def test_other_texts_stay_as_they_are(title: str) -> None:
    written = f'"{title}"' if "\n" in title else title
    assert csv_of(("title",), [[title]]) == f"title\r\n{written}\r\n"


def test_no_cell_is_a_formula() -> None:
    found = rows(replace(WHOLE, by_variant={"=cmd()": {"engaged": 1}, "a;@x": {"engaged": 2}}))
    assert [row[1] for row in found if row[0] == "variant"] == ["'=cmd()", "a;'@x"]


@pytest.mark.parametrize(
    "title",
    [
        "=1",
        "x;=1",
        'x;"=1;y',
        'x;""=1',
        '"=1',
        "x\n=1",
        "x\r\n=1",
        "x\r=1",
        "x\t=1",
        "\uff1d1",
        'x";\n"=1',
        "-1",
    ],
)
def test_no_text_is_a_formula_however_a_spreadsheet_splits_it(title: str) -> None:
    text = csv_of(("campaign", "title", "number"), [("spring", title, -5)])
    for delimiter in ",;\t":
        cells = [
            cell for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) for cell in row
        ]
        assert [cell for cell in cells if cell != "-5" and cell[:1] in set("-=+@\uff1d")] == []
    assert text.endswith(",-5\r\n")
