"""Defaults for all campaigns of a folder: which values win, and how mistakes are reported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from sendoff.campaign import Campaign, CampaignFolder, Duration, SendWindow, campaign_from, defaults_schema
from sendoff.campaign.defaults import FIELDS
from sendoff.errors import CampaignError

from .campaigns import PUSH, load, write

ALL = """\
owner: crm
tags: [crm]
gates:
  most: 100000
  window: {earliest: "09:00", latest: "20:00", time_zone: Europe/Dublin}
approval: {needed: above, above: 20000, role: crm}
audience:
  cap: {messages: 3, days: 7}
"""


@pytest.fixture
def with_defaults(tmp_path: Path) -> Any:
    def read(defaults: str, own: str = "") -> CampaignFolder:
        (tmp_path / "defaults.yaml").write_text(defaults)
        return load(tmp_path, PUSH + own)

    return read


def mistakes(tmp_path: Path, defaults: str, own: str = "") -> list[str]:
    (tmp_path / "defaults.yaml").write_text(defaults)
    with pytest.raises(CampaignError) as error:
        load(tmp_path, PUSH + own)
    return str(error.value).replace(f"{tmp_path}/", "").splitlines()


def test_a_campaign_has_the_defaults_of_its_folder(with_defaults: Any) -> None:
    campaign = with_defaults(ALL).campaign
    assert (campaign.owner, campaign.tags, campaign.gates.most) == ("crm", ("crm",), 100_000)
    assert campaign.gates.window == SendWindow(earliest="09:00", latest="20:00", time_zone="Europe/Dublin")
    assert (campaign.approval.above, campaign.approval.role) == (20_000, "crm")


def test_a_campaign_without_the_file_has_the_built_in_values(tmp_path: Path) -> None:
    folder = load(tmp_path, PUSH)
    assert folder.campaign.owner == "sendoff"
    assert {setting.origin for setting in folder.settings()} == {"built in"}


def test_a_campaign_s_own_value_wins(with_defaults: Any) -> None:
    own = "owner: shop\ntags: [shop]\ngates: {most: 5, least: 2}\nsegment_size: 7\n"
    campaign = with_defaults(ALL + "segment_size: 9\n", own).campaign
    assert (campaign.owner, campaign.tags, campaign.segment_size) == ("shop", ("shop",), 7)
    assert (campaign.gates.most, campaign.gates.least) == (5, 2)
    assert campaign.gates.window.latest == "20:00", "the fields of a section are merged"


def test_a_field_of_a_section_is_replaced_as_a_whole(with_defaults: Any) -> None:
    own = 'gates: {window: {earliest: "10:00", latest: "12:00", time_zone: UTC}, rollout: {refused: 2}}\n'
    gates = with_defaults(
        "gates:\n  rollout: {shares: [5], wait: {length: 2, unit: hours}}\n", own
    ).campaign.gates
    assert gates.window.time_zone == "UTC"
    assert (gates.rollout.shares, gates.rollout.wait) == ((1, 10), Duration(length=30, unit="minutes"))


def test_null_in_a_campaign_is_its_own_value(with_defaults: Any) -> None:
    campaign = with_defaults(ALL, "gates: {window: null, most: null}\naudience: {cap: null}\n").campaign
    assert (campaign.gates.window, campaign.gates.most, campaign.audience.cap) == (None, None, ())


def test_the_number_of_an_approval_stays_with_the_default_it_belongs_to(with_defaults: Any) -> None:
    approval = with_defaults(ALL, "approval: {needed: always}\n").campaign.approval
    assert (approval.needed, approval.above, approval.role) == ("always", None, "crm")


def test_the_time_zone_of_the_schedule_is_for_campaigns_with_a_schedule(with_defaults: Any) -> None:
    defaults = "schedule_time_zone: Europe/Dublin\n"
    assert with_defaults(defaults).campaign.schedule_time_zone == "UTC"
    assert with_defaults(defaults, 'schedule: "@daily"\n').campaign.schedule_time_zone == "Europe/Dublin"


@pytest.mark.parametrize(
    ("own", "sql", "columns", "partitions"),
    [
        ("", "SELECT device_id FROM devices WHERE device_id % :parts = :part", {"device_id"}, 2),
        (
            "dbt: {artifacts: target}\naudience: {source: {kind: dbt_model, name: lapsed}}\n",
            None,
            {"device_id"},
            None,
        ),
        ("audience: {source: {kind: verdicts, of: spring, are: [missing]}}\n", None, set(), None),
        ("targeting: {kind: broadcast}\n", None, set(), None),
    ],
)
def test_what_a_query_returns_has_no_default_without_a_query(
    tmp_path: Path, own: str, sql: str | None, columns: set[str], partitions: int | None
) -> None:
    defaults = "audience: {columns: {device_id: {type: integer}}, partitions: 2}\n"
    (tmp_path / "defaults.yaml").write_text(defaults)
    audience = load(tmp_path, PUSH + own, sql).campaign.audience
    assert (set(audience.columns), audience.partitions) == (columns, partitions)


def test_a_lateness_from_the_defaults_counts_as_the_campaign_s_own(with_defaults: Any) -> None:
    assert with_defaults("gates: {lateness: {length: 6, unit: hours}}").campaign.gates.names_lateness


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "~\n"])
def test_a_file_without_values_changes_nothing(with_defaults: Any, text: str) -> None:
    assert with_defaults(text).campaign.owner == "sendoff"


def test_each_setting_is_listed_with_its_value_and_its_origin(with_defaults: Any) -> None:
    folder = with_defaults(ALL, "retries: 3\ngates: {least: 2}\n")
    settings = {setting.path: setting for setting in folder.settings()}
    found = {path: (setting.value, setting.origin, setting.line) for path, setting in settings.items()}
    assert found["owner"] == ("crm", "defaults.yaml", 1)
    assert found["audience.cap"] == (
        [{"messages": 3, "days": 7, "scope": "account"}],
        "defaults.yaml",
        8,
    )
    assert found["gates.most"] == (100_000, "defaults.yaml", 4)
    assert found["gates.least"] == (2, "campaign.yaml", None)
    assert found["gates.unusable"] == (None, "built in", None)
    assert found["retries"] == (3, "campaign.yaml", None)
    assert found["warehouse"] == ("sendoff_warehouse", "built in", None)


def test_a_campaign_from_python_has_no_defaults_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_defaults: Any
) -> None:
    with_defaults(ALL)
    monkeypatch.chdir(tmp_path)
    fields = {"title": "T", "message": {"text": "W"}, "channels": {"ios_push": {}}, "retries": 2}
    folder = campaign_from(fields, "spring", "SELECT 1 AS device_id")
    assert folder.campaign.owner == "sendoff"
    assert {setting.path: setting.origin for setting in folder.settings()}["retries"] == "Python"


def test_the_place_of_a_default_is_in_its_file(with_defaults: Any, tmp_path: Path) -> None:
    folder = with_defaults(ALL, "retries: 3\n")
    assert folder.place_of("approval", "role") == f"{tmp_path}/defaults.yaml:6: approval.role"
    assert folder.place_of("audience", "cap", "days") == f"{tmp_path}/defaults.yaml:8: audience.cap.days"
    assert folder.place_of("retries").endswith("back_in_stock/campaign.yaml:6: retries")


@pytest.mark.parametrize(
    ("defaults", "problem"),
    [
        ("title: Spring", "defaults.yaml:1: title: 'title' cannot have a default. Move it to each campaign.yaml"),
        ("owner: a\nmessage: {text: x}", "defaults.yaml:2: message: 'message' cannot have a default. Move it to"),
        ("schedule: '@daily'", "defaults.yaml:1: schedule: 'schedule' cannot have a default. Move it to each"),
        ("ownr: crm", "defaults.yaml:1: ownr: 'ownr' is not a field (did you mean 'owner'?). Use alert_after, "),
        (
            "quiet_hours: {}",
            "defaults.yaml:1: quiet_hours: 'quiet_hours' is not a field (did you mean 'rules.quiet_hours'?). Use ",
        ),
        ("gates:\n  mots: 5", "defaults.yaml:2: gates.mots: 'mots' is not a field (did you mean 'most'?). Use "),
        ("gates:\n  most: many", "defaults.yaml:2: gates.most: found 'many'. Use a whole number"),
        ("gates:", "defaults.yaml:1: gates: found nothing. Use a mapping"),
        ("- owner", "defaults.yaml:1: found a list. Use a mapping"),
        ("owner: [", "defaults.yaml:1: not YAML: "),
        ("owner: a\nowner: b", "defaults.yaml:2: owner: found 'owner' twice, first on line 1. Use it once"),
        ("approval: {needed: above}", "defaults.yaml:1: approval: found no above. Use above with needed: above"),
        (
            "audience:\n  exclude:\n    - {kind: list, name: staff}\n    - {kind: file, file: a.csv}",
            "defaults.yaml:4: audience.exclude[1]: found kind: file, which reads a file of a campaign's folder. Use ",
        ),
        ("connection: " + "x" * 251, "defaults.yaml:1: connection: found a text of 251 characters. Use a text of"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_defaults_is_told_with_its_file_and_line(
    tmp_path: Path, defaults: str, problem: str
) -> None:
    assert mistakes(tmp_path, defaults)[0].startswith(problem)


def test_all_mistakes_in_the_defaults_are_told_in_the_order_of_their_lines(tmp_path: Path) -> None:
    found = mistakes(tmp_path, "gates: {most: x}\ntitle: T\nretries: -1\n", "ownr: b\n")
    assert [each.split(": ")[:2] for each in found] == [
        ["defaults.yaml:1", "gates.most"],
        ["defaults.yaml:2", "title"],
        ["defaults.yaml:3", "retries"],
    ]


def test_a_default_that_does_not_fit_a_campaign_is_told_with_both_files(tmp_path: Path) -> None:
    own = "send: {kind: once, time: '18:30', time_zone: UTC}\n"
    (found,) = mistakes(tmp_path, "gates:\n  rollout: {shares: [5]}\n", own)
    assert found.startswith(
        "back_in_stock/campaign.yaml:2: gates.rollout: found rollout with send.kind: once. Use "
    )
    assert found.endswith(" (from line 2 of defaults.yaml; a value in campaign.yaml replaces it)")


def test_a_changed_file_counts_at_once(with_defaults: Any) -> None:
    assert with_defaults("owner: first").campaign.owner == "first"
    assert with_defaults("owner: other").campaign.owner == "other"


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    campaigns = tmp_path / "campaigns"
    write(tmp_path / "spring", PUSH)
    campaigns.mkdir()
    (tmp_path / "secret.yaml").write_text("owner: crm")
    (campaigns / "defaults.yaml").symlink_to(tmp_path / "secret.yaml")
    with pytest.raises(CampaignError, match=r"defaults.yaml: found a link that leads out of the folder"):
        load(campaigns, PUSH)


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "defaults.yaml").symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(CampaignError, match=r"defaults.yaml: found a link to a file that does not exist"):
        load(tmp_path, PUSH)


def test_a_file_with_another_suffix_is_refused_because_its_values_would_not_count(tmp_path: Path) -> None:
    (tmp_path / "defaults.yml").write_text("owner: crm")
    with pytest.raises(CampaignError, match=r"defaults.yml: .*Rename it to defaults.yaml"):
        load(tmp_path, PUSH)


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "defaults.yaml").write_text("owner: crm")
    (tmp_path / "defaults.yaml").symlink_to(Path("..data", "defaults.yaml"))
    assert load(tmp_path, PUSH).campaign.owner == "crm"


def test_a_folder_with_the_name_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "defaults.yaml").mkdir()
    with pytest.raises(CampaignError, match=r"defaults.yaml: found a file that cannot be read"):
        load(tmp_path, PUSH)


def test_each_field_of_a_campaign_may_have_a_default_or_belongs_to_the_campaign() -> None:
    assert set(Campaign.model_fields) - set(FIELDS) == {
        "title", "language", "message", "channels", "template", "targeting", "send", "push_expiry", "encryption",
        "topic", "transactional", "variants", "decide", "formerly", "schedule", "after", "rules",
    }  # fmt: skip


def test_the_schema_of_the_defaults_allows_what_the_file_may_hold() -> None:
    check = Draft202012Validator(defaults_schema())
    check.check_schema(defaults_schema())
    check.validate(yaml.safe_load(ALL))
    for mistake in ({"title": "T"}, {"gates": {"mots": 1}}, {"retries": -1}):
        assert not check.is_valid(mistake)


def test_the_check_of_the_page_names_a_campaign_without_a_cap(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/set-defaults.md").read_text()
    code = re.search(r"```python\n(from pathlib .*?broken_rules.*?)\nassert", page, re.DOTALL)
    assert code
    names: dict[str, Any] = {}
    exec(code[1], names)
    write(tmp_path / "spring", PUSH + "gates: {most: 5}\n")
    assert names["broken_rules"](tmp_path) == ["spring: audience.cap is missing"]
    write(tmp_path / "spring", PUSH + "gates: {most: 5}\naudience: {cap: {messages: 3, days: 7}}\n")
    assert names["broken_rules"](tmp_path) == []
