"""The Python library against the real service: the same calls as in a notebook or a script."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from rich.console import Console

import sendoff
from sendoff import App, GateError, Launch, NotYetError, RefusedError, SettingsError
from sendoff.campaign import launch_key
from sendoff.dispatch import pause, resume
from sendoff.errors import UsageError
from sendoff.ledger import Ledger

from ..local_receiver import local_receiver
from ..local_service import LocalService
from .sending import fault, sent_to, service

__all__ = ["service"]

pytestmark = pytest.mark.usefixtures("no_settings")

SECRET = "s" * 32
PERIOD = "2026-03-01/2026-03-02"
FIELDS: dict[str, Any] = {
    "title": "Lapsed buyers",
    "message": {"title": "We miss you", "text": "Ten per cent off."},
    "channels": {"android_push": {}},
}
LAPSED = sendoff.Campaign(**FIELDS)
FRAME = pd.DataFrame({"device_id": [7, 14, 21, 28, 28], "platform": "android", "loyalty": "gold"})


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def app(service: LocalService, ledger_url: str, ledger: Ledger) -> Iterator[App]:
    with connected(service, ledger_url, "https://events.example.com") as app:
        yield app


def connected(service: LocalService, ledger_url: str, public_url: str, **more: Any) -> App:
    return sendoff.connect(
        ledger=ledger_url,
        service=service.base_url,
        client_id=service.client_id,
        client_secret=service.client_secret,
        public_url=public_url,
        post_back_secret=SECRET,
        **{"app_token": service.app_token, **more},
    )


def prepared(app: App, campaign: Any = LAPSED, **options: Any) -> Launch:
    return app.prepare(campaign, **{"name": "lapsed", "audience": FRAME, "period": PERIOD, **options})


def test_a_data_frame_is_sent_once_and_reported(service: LocalService, ledger_url: str) -> None:
    with sendoff.connect(ledger=ledger_url) as nothing_else:
        nothing_else.migrate()
    with local_receiver(ledger_url, SECRET) as address, connected(service, ledger_url, address) as app:
        launch = prepared(app)
        assert launch.send() == {"accepted": 1}
        service.wait_until_quiet()
        report = launch.report()
        assert report.figures.audience == 4
        assert report.figures.dropped["duplicate"] == 1
        assert sum(report.to_pandas()["people"]) == 4
        assert report.to_json()["adds_up"]
        assert report.to_json()["stage"] == report.stage == "waiting_for_responses"
        assert "waiting for responses" in str(report)
        assert prepared(app).send() == {"accepted": 1}
    assert service.admin("campaigns")["total"] == 1
    assert sorted(sent_to(service)) == [7, 14, 21, 28]


def test_the_key_is_that_of_a_dag_and_the_launch_stays_as_it_was_frozen(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    launch = prepared(app)
    assert launch.key == launch_key("sendoff_default", "lapsed", sendoff.Period.of(date(2026, 3, 1)))
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    changed = {"title": "Other", "message": FIELDS["message"], "channels": {"android_push": {}}}
    again = prepared(app, changed, audience=FRAME.head(1), period=date(2026, 3, 1))
    assert (again.key, again.created_at) == (launch.key, launch.created_at)
    assert again.preview().figures.people == 4
    assert "was frozen at" in caplog.text
    assert app.launch(launch.key).period == launch.period
    assert app.launch("lapsed", PERIOD).key == launch.key
    nothing = r"holds no launch of lapsed for the period 2026-03-01T00:00:00Z/2026-03-02T00:00:00Z, resend 1"
    with pytest.raises(sendoff.SendoffError, match=nothing):
        app.launch("lapsed", PERIOD, resend=1)


def test_a_resend_needs_a_reason_and_is_another_launch(app: App) -> None:
    first = prepared(app)
    with pytest.raises(sendoff.SendoffError, match="Add a reason"):
        prepared(app, resend=1)
    assert prepared(app, resend=1, reason="the picture was missing").key != first.key


def test_a_preview_stores_nothing(app: App) -> None:
    preview = app.preview(LAPSED, name="lapsed", audience=FRAME, period=PERIOD, size_limit=3)
    assert preview.would_send
    assert preview.to_json()["people"] == 3
    assert "We miss you" in str(preview)
    assert "We miss you" not in repr(preview)
    launch = prepared(app)
    assert launch.requests == {"planned": 1}
    assert launch.why(28) == "not sent yet: its turn comes later (segment 1, wave 1, request planned)"


def test_a_held_launch_says_how_to_release_it(app: App, service: LocalService) -> None:
    launch = prepared(app, {**FIELDS, "approval": {"needed": "always"}})
    assert launch.state == "held"
    with pytest.raises(GateError, match=r"launch\.release\(why=\.\.\.\)"):
        launch.send()
    for decide in (launch.release, launch.reject, launch.pause, launch.resume, launch.stop):
        for blank in (" ", None):
            with pytest.raises(UsageError, match="the reason is blank"):
                decide(blank)  # type: ignore[arg-type]
    launch.release("looks good")
    assert launch.state == "released"
    assert launch.send() == {"accepted": 1}


def test_a_rejected_launch_sends_nothing(app: App, service: LocalService) -> None:
    launch = prepared(app, {**FIELDS, "approval": {"needed": "always"}})
    launch.reject("the wrong picture")
    with pytest.raises(GateError, match=r"it was rejected by .*: the wrong picture"):
        launch.send()
    assert service.admin("campaigns")["total"] == 0


def test_it_is_too_early_until_a_time_that_the_error_holds(
    app: App, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = prepared(app)
    pause(ledger, launch.key, "ann", "wait for the shop")
    with pytest.raises(NotYetError, match="wait for the shop") as early:
        launch.send()
    assert early.value.until > datetime.now(UTC)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        resume(ledger, launch.key, "ann", "the shop is ready")

    monkeypatch.setattr(time, "sleep", sleep)
    assert launch.send(wait=True) == {"accepted": 1}
    assert len(slept) == 1
    assert slept[0] > 0


def test_a_launch_is_paused_resumed_and_stopped(app: App, service: LocalService) -> None:
    launch = prepared(app)
    launch.pause("the link is broken")
    assert launch.state == "paused"
    with pytest.raises(NotYetError, match="the link is broken"):
        launch.send()
    with pytest.raises(GateError, match="is paused, so it cannot be paused"):
        launch.pause("again")
    launch.resume("the link works")
    assert launch.state == "released"
    launch.stop("the picture is wrong")
    assert pa.table(launch.verdicts()).num_rows == 4  # the newest entry of the audit log
    with pytest.raises(
        GateError, match=r"it was stopped by .*: the picture is wrong. 1 request will never be made"
    ):
        launch.send()
    assert service.admin("campaigns")["total"] == 0


def test_the_newest_launches_are_listed(app: App) -> None:
    assert app.launches() == []
    first = prepared(app)
    other = prepared(app, name="other")
    again = prepared(app, period="2026-03-02/2026-03-03")
    assert [each.key for each in app.launches()] == [again.key, other.key, first.key]
    assert [each.key for each in app.launches("lapsed")] == [again.key, first.key]
    assert [(each.name, each.state, each.people) for each in app.launches(limit=1)] == [
        ("lapsed", "released", 4)
    ]


def test_refusals_are_an_error_after_the_other_requests(app: App, service: LocalService) -> None:
    fault(service, "403", 1)
    launch = prepared(app, {**FIELDS, "segment_size": 2})
    with pytest.raises(RefusedError, match="refused 1 request"):
        launch.send()
    assert launch.requests == {"accepted": 1, "refused": 1}


def test_verdicts_are_an_arrow_stream(app: App, tmp_path: Path) -> None:
    launch = prepared(app)
    launch.send()
    verdicts = launch.verdicts()
    table = pa.table(verdicts)
    assert table["device_id"].to_pylist() == [7, 14, 21, 28] == list(verdicts.to_pandas()["device_id"])
    assert len(verdicts) == 4
    assert len(launch.verdicts("missing")) == pa.table(launch.verdicts("missing")).num_rows
    assert verdicts.to_parquet(tmp_path / "verdicts.parquet") == 4
    assert parquet.read_table(tmp_path / "verdicts.parquet").num_rows == 4
    with pytest.raises(SettingsError, match="replace=True"):
        verdicts.to_parquet(tmp_path / "verdicts.parquet")
    assert verdicts.to_parquet(tmp_path / "verdicts.parquet", replace=True) == 4
    with pytest.raises(SettingsError, match=r"verdicts\.csv: the file name must end in \.parquet\."):
        verdicts.to_parquet(tmp_path / "verdicts.csv")
    with pytest.raises(SettingsError, match="is not a verdict"):
        launch.verdicts("lost")


def test_nothing_that_is_shown_identifies_a_person(app: App) -> None:
    frame = FRAME.assign(device_id=FRAME["device_id"] + 73_400_000)
    launch = prepared(app, audience=frame)
    launch.send()
    report, preview, verdicts = launch.report(), launch.preview(), launch.verdicts()
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(report, preview)
    shown = [
        console.export_text(),
        *map(str, (report, preview)),
        *map(repr, (launch, report, preview, verdicts)),
    ]
    shown += [report._repr_html_(), preview._repr_html_(), str(report.to_json()), str(preview.to_json())]
    assert [text for text in shown if "734000" in text] == []
    assert all("lapsed" in text for text in shown)


def test_secrets_are_not_shown(app: App, service: LocalService) -> None:
    assert service.client_secret not in repr(vars(app))
    assert SECRET not in repr(vars(app))


def test_a_campaign_of_another_connection_needs_another_app(
    app: App, service: LocalService, ledger_url: str
) -> None:
    campaign = {**FIELDS, "connection": "sendoff_eu"}
    with pytest.raises(SettingsError, match=r"connection='sendoff_eu'.*set SENDOFF_CONNECTION=sendoff_eu"):
        prepared(app, campaign)
    with connected(service, ledger_url, "https://events.example.com", connection="sendoff_eu") as other:
        launch = prepared(other, campaign)
    with pytest.raises(SettingsError, match="connection='sendoff_eu'"):
        app.launch(launch.key).send()


@pytest.mark.parametrize("campaign", [FIELDS, LAPSED], ids=["mapping", "object"])
def test_a_campaign_from_python_without_a_connection_uses_that_of_its_app(
    service: LocalService, ledger_url: str, ledger: Ledger, campaign: Any
) -> None:
    with connected(service, ledger_url, "https://events.example.com", connection="sendoff_eu") as app:
        launch = prepared(app, campaign)
        assert launch.key == launch_key("sendoff_eu", "lapsed", sendoff.Period.of(PERIOD))
        assert launch.send() == {"accepted": 1}
        [test] = app.prepare_tests(campaign, FRAME.head(1), name="lapsed")
        assert test.send() == {"accepted": 1}
