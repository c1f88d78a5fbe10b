"""Tests of a campaign to a few people of your own, against the real service."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from sendoff import App, AudienceError, Campaign, CampaignError, GateError, NotYetError
from sendoff.campaign import WEEKDAYS
from sendoff.dispatch import pause_all, resume_all
from sendoff.ledger import Ledger

from ..local_service import LocalService
from . import test_app
from .sending import fault, sent_to, service
from .test_app import FRAME, app, connected, ledger_url, prepared
from .test_send import Send, environment, journey, send

__all__ = ["app", "environment", "journey", "ledger_url", "send", "service"]
pytestmark = pytest.mark.usefixtures("no_settings")

FIELDS = {**test_app.FIELDS, "post_backs": {"kinds": []}}
LAPSED = Campaign(**FIELDS)
GUARDED = {
    **FIELDS,
    "audience": {"holdout": {"percent": 100}, "cap": {"messages": 1, "days": 3_650}},
    "gates": {"least": 1_000},
    "approval": {"needed": "always"},
    "send": {"kind": "once", "date": "2027-01-31", "time": "09:00", "time_zone": "UTC"},
    "schedule": "0 9 * * 1",
    "start": "2027-01-01",
    "on_doubt": "resend",
    "report": {"tables": "analytics"},
}
VARIANTS = {"long": {"percent": 50, "message": {"text": "Ten per cent off."}}, "short": {"percent": 50}}
DECIDE = {"share": 10, "after": {"length": 1, "unit": "hours"}, "otherwise": "short"}
COLLEAGUES = [{"device_id": 7}, {"device_id": 14}]


def test_a_test_sends_the_message_at_once_and_asks_no_gate(app: App, service: LocalService) -> None:
    [test] = app.prepare_tests(GUARDED, COLLEAGUES, name="spring")
    assert (test.name, test.state, test.people) == ("spring-test", "released", 2)
    assert test.send() == {"accepted": 1}
    assert sent_to(service) == [7, 14]
    assert test.report().to_json()["adds_up"]
    assert not app.launches("spring")


def test_a_test_changes_nothing_about_the_launch_that_follows(app: App, service: LocalService) -> None:
    [test] = app.prepare_tests(LAPSED, COLLEAGUES, name="lapsed")
    test.send()
    assert prepared(app, LAPSED).send() == {"accepted": 1}
    assert sent_to(service) == [7, 7, 14, 14, 21, 28]


def test_a_test_is_not_sent_to_who_is_on_the_suppression_list(app: App, service: LocalService) -> None:
    app.suppress([14], reason="said no", identified_by="device_id")
    [test] = app.prepare_tests(LAPSED, COLLEAGUES, name="lapsed")
    app.suppress([7], reason="says no before the request", identified_by="device_id")
    assert test.send() == {"suppressed": 1}
    with pytest.raises(AudienceError, match="2 suppressed"):
        app.prepare_tests(LAPSED, COLLEAGUES, name="lapsed")
    assert sent_to(service) == []


def test_each_variant_is_sent_or_the_one_that_is_named(app: App, service: LocalService) -> None:
    campaign = {
        **FIELDS,
        "variants": VARIANTS,
        "decide": DECIDE,
        "post_backs": {"kinds": ["open"]},
    }
    tests = app.prepare_tests(campaign, FRAME, name="lapsed")
    assert [test.period.partition for test in tests] == ["long", "short"]
    assert [test.send() for test in tests] == [{"accepted": 1}] * 2
    assert sent_to(service) == sorted([7, 14, 21, 28] * 2)
    with pytest.raises(CampaignError, match=r"found the variant 'shrt'\. Use long, short"):
        app.prepare_tests(campaign, FRAME, name="lapsed", variant="shrt")
    with pytest.raises(CampaignError, match="It has no variants"):
        app.prepare_tests(LAPSED, FRAME, name="lapsed", variant="long")


def test_a_stream_of_arrow_is_read_for_every_variant(app: App, service: LocalService) -> None:
    stream = pa.table({"device_id": [7, 14]}).to_reader()
    tests = app.prepare_tests({**FIELDS, "variants": VARIANTS}, stream, name="lapsed")
    assert [test.people for test in tests] == [2, 2]


def test_a_campaign_whose_recipients_the_service_chooses_can_be_tested(
    app: App, service: LocalService
) -> None:
    campaign = {**FIELDS, "targeting": {"kind": "broadcast"}}
    [test] = app.prepare_tests(campaign, COLLEAGUES, name="everyone")
    test.send()
    assert sent_to(service) == [7, 14]


def test_a_test_to_more_than_a_hundred_is_refused(app: App, service: LocalService) -> None:
    many = pd.DataFrame({"device_id": range(1, 102)})
    with pytest.raises(GateError, match="101"):
        app.prepare_tests(LAPSED, many, name="lapsed")
    assert not app.launches()
    assert sent_to(service) == []


def test_the_daily_limit_of_a_connection_holds_for_tests(
    service: LocalService, ledger_url: str, ledger: Ledger, tmp_path: Path
) -> None:
    today = datetime.now(UTC).date()
    elsewhere = WEEKDAYS[today.weekday() - 1]
    limit = f"{{connection: sendoff_default, start: {today}, first_day: 1, growth: 1, most: 1}}"
    (tmp_path / "defaults.yaml").write_text(
        f"rules: {{warm_up: [{limit}], default_time_zone: UTC, days: [{elsewhere}]}}\n"
    )
    with connected(
        service, ledger_url, "https://events.example.com", defaults=tmp_path / "defaults.yaml"
    ) as app:
        [test] = app.prepare_tests(LAPSED, COLLEAGUES, name="lapsed")
        with pytest.raises(NotYetError):
            test.send()
    assert test.requests == {"accepted": 1, "planned": 1}
    assert sent_to(service) == [7]


def test_the_command_sends_a_step_to_identifiers_and_each_variant_to_a_file(
    send: Send, journey: Path, tmp_path: Path, service: LocalService
) -> None:
    done = send(str(journey / "a"), "7", "14", command="send-test")
    assert done.returncode == 0, done.stderr
    head, how = done.stdout.splitlines()
    assert re.fullmatch(r"launch [0-9a-f]{12} of journey\.a-test: 2 people, 1 accepted", head)
    assert send(how.rpartition(" ")[2], command="report").returncode == 0
    folder, colleagues = tmp_path / "spring", tmp_path / "colleagues.csv"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(json.dumps({**FIELDS, "variants": VARIANTS}))
    colleagues.write_text("device_id,platform\n7,android\n14,ios\n21,android\n")
    done = send(str(folder), "--file", str(colleagues), command="send-test")
    assert done.returncode == 0, done.stderr
    assert [line.partition(", ")[2] for line in done.stdout.splitlines()[::2]] == [
        "variant long: 3 people, 1 accepted",
        "variant short: 3 people, 1 accepted",
    ]
    fault(service, "403", 1)
    refused = send(str(folder), "--file", str(colleagues), command="send-test")
    assert (refused.returncode, refused.stdout.count("1 refused"), refused.stdout.count("1 accepted")) == (
        1,
        1,
        1,
    )
    assert "the service refused" in refused.stderr
    assert sent_to(service) == sorted([7, 14, *[7, 14, 21] * 3])
    for wrong in ([], ["7", "--file", str(colleagues)]):
        assert (
            "give identifiers, or --file FILE, and not both"
            in send(str(folder), *wrong, command="send-test").stderr
        )


def test_the_command_says_why_a_test_waits(
    send: Send, journey: Path, service: LocalService, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_all(ledger, "ann", "an outage")
    real = time.sleep

    def sleep(seconds: float) -> None:
        with suppress(GateError):  # it is open already
            resume_all(ledger, "ann", "it is over")
        real(min(seconds, 1))

    monkeypatch.setattr(time, "sleep", sleep)
    done = send(str(journey / "a"), "7", command="send-test")
    assert done.returncode == 0, done.stderr
    first, waiting, *_ = done.stderr.splitlines()
    assert first == "sending journey.a-test"
    assert re.fullmatch(r"waiting until .* UTC: launches are paused \(all\) by ann: an outage", waiting)
    assert sent_to(service) == [7]
