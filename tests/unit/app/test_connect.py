from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

import sendoff
from sendoff import CampaignError, NotYetError, SettingsError
from sendoff.app.app import MoreSettings
from sendoff.app.connections import Connections
from sendoff.app.service import credentials_of, service_connection
from sendoff.errors import CredentialsError, UsageError
from sendoff.settings import Settings, load_settings

pytestmark = pytest.mark.usefixtures("no_settings")

SECRET = "s" * 32
FIELDS: dict[str, Any] = {
    "title": "Spring",
    "message": {"title": "Hello", "text": "It is spring"},
    "channels": {"android_push": {}},
}
NEEDED = {
    "service_url": "https://api.example.com",
    "client_id": "abc",
    "client_secret": "not a secret",
    "public_url": "https://events.example.com",
    "post_back_secrets": SECRET,
}
HEAVY = {
    "airflow",
    "alembic",
    "jinja2",
    "numpy",
    "pandas",
    "polars",
    "pyarrow",
    "pydantic",
    "requests",
    "rich",
    "sqlalchemy",
}


def loaded_by(code: str) -> set[str]:
    """Return the modules that a new process has imported after running some code."""
    show = f"{code}; import sys; print(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", show], capture_output=True, text=True, check=True, env=os.environ
        ).stdout.split()
    )


def test_importing_the_library_imports_nothing_that_is_slow() -> None:
    loaded = loaded_by("import sendoff")
    assert {name for name in loaded if name.startswith("sendoff")} == {"sendoff"}
    assert loaded & HEAVY == set()
    assert (
        loaded_by("import sendoff; sendoff.Campaign") & {"airflow", "alembic", "pandas", "sqlalchemy"}
        == set()
    )


def test_a_command_or_a_task_imports_nothing_that_only_migrations_need() -> None:
    loaded = loaded_by("import sendoff.cli.commands")
    assert "sendoff.ledger.ledger" in loaded
    assert loaded & {"airflow", "alembic", "mako", "pandas"} == set()


def test_every_public_name_is_there() -> None:
    assert [name for name in sendoff.__all__ if getattr(sendoff, name, None) is None] == []
    assert set(sendoff.__all__) <= set(dir(sendoff))
    assert isinstance(sendoff.__version__, str)
    with pytest.raises(AttributeError):
        _ = sendoff.nothing  # type: ignore[attr-defined]


def test_each_setting_is_an_argument() -> None:
    by_another_name = {"ledger_url", "service_url", "public_url", "post_back_secrets", "warehouse_url"}
    own = {"client_id", "client_secret"}
    of_every_process = {"machine_open_seconds"}  # whichever process reads post-backs, its variable decides
    of_receiver = {"opt_out_texts"}
    others = by_another_name | own | of_every_process | of_receiver
    assert MoreSettings.__annotations__.keys() == Settings.model_fields.keys() - others
    with pytest.raises(TypeError, match="no argument servis"):
        sendoff.connect(servis="https://api.example.com")  # type: ignore[call-arg]


def test_connecting_opens_nothing(tmp_path: Path) -> None:
    app = sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", service="https://api.example.com")
    app.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("service_url", "SENDOFF_SERVICE_URL"),
        ("client_id", "SENDOFF_CLIENT_ID"),
        ("client_secret", "SENDOFF_CLIENT_SECRET"),
        ("public_url", "SENDOFF_PUBLIC_URL"),
        ("post_back_secrets", "SENDOFF_POST_BACK_SECRETS"),
    ],
)
def test_a_missing_setting_is_named(missing: str, advice: str) -> None:
    settings = {name: value for name, value in NEEDED.items() if name != missing}
    with pytest.raises(SettingsError, match=advice):
        service_connection(load_settings(**settings))


def test_all_missing_settings_are_one_error_before_anything_is_opened(tmp_path: Path) -> None:
    app = sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", client_id="a", private_key="b")
    with pytest.raises(SettingsError) as error:
        app.check_settings(reads_warehouse=True)
    head, *lines = str(error.value).splitlines()
    assert head == "4 settings are not set. Set all of them:"
    assert [line.partition(": ")[0] for line in lines] == [
        "- SENDOFF_WAREHOUSE_URL",
        "- SENDOFF_SERVICE_URL",
        "- SENDOFF_PUBLIC_URL",
        "- SENDOFF_POST_BACK_SECRETS",
    ]
    assert lines[1].endswith(": Base URL of the messaging service, such as https://api.example.com")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"service_url": "http://api.example.com"}, "allow_http"),
        ({"requests_at_once": 17}, "requests_at_once is not a whole number from 1 to 16"),
        ({"requests_per_second": -1}, "requests_per_second is wrong"),
        ({"private_key": "x"}, "a client secret and a private key"),
        ({"field_names": {"nonsense": "x"}}, "nonsense"),
        ({"token_lifetime": 0}, "token lifetime"),
    ],
)
def test_a_wrong_setting_is_an_error(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises((SettingsError, CredentialsError), match=problem):
        service_connection(load_settings(**{**NEEDED, **wrong}))


def test_a_private_key_stands_for_a_secret() -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    given = {**NEEDED, "private_key": pem.decode(), "token_audience": "x"}
    del given["client_secret"]
    credentials = credentials_of(load_settings(**given))
    assert "assertion" in credentials.grant(sendoff.Period.of("2026-03-01").start)


@pytest.mark.parametrize("wrong", [sa.make_url("sqlite://"), Path("shop.db"), object()])
def test_a_warehouse_is_a_text_or_an_engine(tmp_path: Path, wrong: Any) -> None:
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", warehouse=wrong) as app:
        app.migrate()
        with pytest.raises(
            SettingsError, match=rf"found {type(wrong).__name__} as a warehouse\. Use the text"
        ):
            app.preview(FIELDS, name="spring", audience="SELECT 7 AS device_id", period="2026-03-01")


def test_a_warehouse_is_one_for_all_or_has_a_name() -> None:
    engine = sa.create_engine("sqlite://")
    assert Connections(load_settings(), engine, "ann").source("any") is engine
    several = Connections(load_settings(), {"shop": engine}, "ann")
    assert several.source("shop") is engine
    with pytest.raises(SettingsError, match=r"for the connection wherehouse\. Add warehouse="):
        several.source("wherehouse")


def test_a_variable_that_an_argument_replaces_is_not_read_for_a_warehouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENDOFF_CLIENT_SECRET_FILE", str(tmp_path / "missing"))
    monkeypatch.setenv("SENDOFF_WAREHOUSE_URL", "sqlite://")
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", client_secret="s") as app:
        app.migrate()
        found = app.preview(FIELDS, name="spring", audience="SELECT 7 AS device_id", period="2026-03-01")
    assert found.figures.people == 1


def test_a_campaign_needs_a_name_and_a_period(tmp_path: Path) -> None:
    app = sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db")
    campaign = sendoff.Campaign(**FIELDS)
    with pytest.raises(CampaignError, match="has no name"):
        app.prepare(campaign, audience="SELECT 1 AS device_id", period="2026-03-01")
    with pytest.raises(CampaignError, match="has no period"):
        app.prepare(campaign, name="spring", audience="SELECT 1 AS device_id")


def test_a_period_has_ended_and_does_not_begin_before_the_campaign(tmp_path: Path) -> None:
    how: dict[str, Any] = {"name": "spring", "audience": "SELECT 7 AS device_id"}
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", warehouse="sqlite://") as app:
        app.migrate()
        with pytest.raises(NotYetError, match=r"spring: the period .* has not ended") as early:
            app.prepare(FIELDS, period=(tomorrow - timedelta(days=2), tomorrow), **how)
        assert early.value.until == tomorrow
        with pytest.raises(NotYetError, match=r"spring: the period .* has not ended"):
            app.preview(FIELDS, period=(tomorrow - timedelta(days=2), tomorrow), **how)
        starting = {
            **FIELDS,
            "start": "2026-03-02",
            "schedule": "@daily",
            "schedule_time_zone": "Europe/Dublin",
        }
        with pytest.raises(CampaignError, match="begins before start, 2026-03-02"):
            app.preview(starting, period="2026-03-01", **how)
        assert app.prepare(starting, period="2026-03-02", send_late=True, **how).name == "spring"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        *(
            ({"resend": each}, r"found resend .*\. Use a whole number from 0")
            for each in (True, 1.0, "1", -1, 2**31)
        ),
        *(
            ({"size_limit": each}, r"size_limit: found .*\. Use a whole number from 1")
            for each in (True, 2.5, "5", 0)
        ),
        *(
            ({"send_late": each}, r"send_late: .* is not a boolean\. Use True or False")
            for each in ("false", 0, None)
        ),
        *(({"only_unsent": each}, r"only_unsent: .* is not a boolean") for each in ("false", 1, None)),
        ({"reason": 5}, r"reason: found int\. Use a text"),
    ],
)
def test_an_option_of_a_launch_has_its_type(tmp_path: Path, wrong: dict[str, Any], problem: str) -> None:
    how = {
        "name": "spring",
        "audience": "SELECT 7 AS device_id",
        "period": "2026-03-01",
        "resend": 1,
        **wrong,
    }
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", warehouse="sqlite://") as app:
        app.migrate()
        with pytest.raises(UsageError, match=problem):
            app.prepare(FIELDS, **{"reason": "the picture was wrong", **how})
        if "reason" not in wrong:
            with pytest.raises(UsageError, match=problem):
                app.preview(FIELDS, **how)
        assert app.launches() == []


def test_a_size_limit_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", warehouse="sqlite://") as app:
        app.migrate()
        people = "VALUES (7), (14), (21)"
        how = {"audience": f"SELECT column1 AS device_id FROM ({people})", "size_limit": np.int64(2)}
        assert app.prepare(FIELDS, name="spring", period="2026-03-01", **how).people == 2


def test_a_key_has_no_resend_number(tmp_path: Path) -> None:
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", warehouse="sqlite://") as app:
        app.migrate()
        launch = app.prepare(FIELDS, name="spring", audience="SELECT 7 AS device_id", period="2026-03-01")
        assert app.launch(launch.key).key == launch.key
        with pytest.raises(UsageError, match="resend: a key names one launch already"):
            app.launch(launch.key, resend=1)


def test_a_flag_is_a_boolean(tmp_path: Path) -> None:
    """A text such as "false" would do what it says not to do."""
    needs_role = {**FIELDS, "approval": {"needed": "always", "role": "Lead"}}
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", warehouse="sqlite://") as app:
        app.migrate()
        launch = app.prepare(needs_role, name="spring", audience="SELECT 7 AS device_id", period="2026-03-01")
        wrong: Any = "false"
        with pytest.raises(UsageError, match="without_approval: 'false' is not a boolean"):
            launch.release("looks good", without_approval=wrong)
        assert launch.state == "held"
        file = tmp_path / "verdicts.parquet"
        file.write_text("an older file")
        with pytest.raises(UsageError, match="replace: 'false' is not a boolean"):
            launch.verdicts().to_parquet(file, replace=wrong)
        assert file.read_text() == "an older file"
        with pytest.raises(UsageError, match="wait: 'false' is not a boolean"):
            launch.send(wait=wrong)
        with pytest.raises(UsageError, match="is_without_unknowable: 'false' is not a boolean"):
            sendoff.VerdictsOf(launch.key, "missing", is_without_unknowable=wrong)
        with pytest.raises(UsageError, match="reads_warehouse: 'false' is not a boolean"):
            app.check_settings(reads_warehouse=wrong)


def test_a_folder_has_a_name_and_an_audience_which_arguments_replace(tmp_path: Path) -> None:
    folder = tmp_path / "spring"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(
        "title: Spring\nmessage: {title: Hello, text: It is spring}\nchannels: {android_push: {}}\n"
    )
    (folder / "audience.sql").write_text("SELECT 7 AS device_id UNION SELECT 14")
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", warehouse="sqlite://") as app:
        app.migrate()
        launch = app.prepare(folder, period="2026-03-01")
        assert (launch.name, launch.preview().figures.people) == ("spring", 2)
        assert app.prepare(str(folder), period="2026-03-01").key == launch.key
        other = app.prepare(folder, name="summer", audience="SELECT 7 AS device_id", period="2026-03-01")
        assert (other.name, other.preview().figures.people) == ("summer", 1)
        for wrong in ("", 5):
            with pytest.raises(CampaignError, match=f"found a campaign {wrong!r}"):
                app.prepare(folder, name=wrong, period="2026-03-01")  # type: ignore[arg-type]
        (folder / "audience.sql").unlink()
        assert app.prepare(folder, audience="SELECT 21 AS device_id", period="2026-03-02").name == "spring"


def test_a_launch_that_was_frozen_before_is_a_warning_if_its_fields_or_audience_may_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    period = (now - timedelta(days=1), now)
    how: dict[str, Any] = {"name": "spring", "audience": "SELECT 7 AS device_id", "period": period}
    noon = f"Etc/GMT{now.hour - 12:+d}"  # where it is about noon now
    expiring = {**FIELDS, "push_expiry": {"until": {"time": "23:59", "time_zone": noon}}}
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", warehouse="sqlite://") as app:
        app.migrate()
        launch = app.prepare(expiring, **how)
        assert "was frozen at" not in caplog.text
        assert app.prepare(expiring, **how).key == launch.key
        assert ", and the audience of this call was not read. It stays as it is" in caplog.text
        with sqlite3.connect(tmp_path / "ledger.db") as db:  # as an earlier version writes the same campaign
            changed = db.execute(
                "UPDATE launches SET definition = replace(definition, '\"cap\":[]', '\"cap\":null')"
            )
        assert changed.rowcount == 1
        assert app.prepare(expiring, **how).key == launch.key
        assert "other fields" not in caplog.text
        before = {
            "kind": "once",
            "date": f"{now - timedelta(days=2):%F}",
            "time": "12:00",
            "time_zone": "UTC",
        }
        for other in (
            {**expiring, "title": "Summer"},
            {**FIELDS, "send": before},
        ):  # which cannot send any more
            caplog.clear()
            assert app.prepare(other, **how).key == launch.key
            assert "other fields" in caplog.text


def test_the_verdicts_of_a_launch_are_an_audience(tmp_path: Path) -> None:
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db", warehouse="sqlite://") as app:
        app.migrate()
        sql = "SELECT 7 AS device_id UNION SELECT 14"
        first = app.prepare(FIELDS, name="first", audience=sql, period="2026-03-01")
        first.report()
        unsent, missing = (sendoff.VerdictsOf(first.key, (verdict,)) for verdict in ("not_sent", "missing"))
        second = app.prepare(FIELDS, name="second", audience=unsent, period="2026-03-01")
        assert second.preview().figures.people == 2
        with pytest.raises(sendoff.AudienceError, match="nothing was sent"):
            app.prepare(FIELDS, name="third", audience=missing, period="2026-03-01")


def test_a_broadcast_needs_no_audience(tmp_path: Path) -> None:
    with sendoff.connect(ledger=f"sqlite:///{tmp_path}/ledger.db") as app:
        app.migrate()
        campaign = {**FIELDS, "targeting": {"kind": "broadcast"}}
        launch = app.prepare(campaign, name="everyone", period="2026-03-01")
        assert launch.preview().figures.people is None


def test_without_pandas_an_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sendoff.app.results import pandas

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingsError, match=r"airflow-provider-sendoff\[notebook\]"):
        pandas()
