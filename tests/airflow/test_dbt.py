"""The artifacts of dbt in Airflow, and the assets that Cosmos updates."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import Asset

from sendoff.campaign import Campaign
from sendoff.errors import SettingsError
from sendoff_airflow.dags.campaign import schedule_of
from sendoff_airflow.hooks.dbt import read_artifact


def test_artifacts_are_read_from_disk_from_an_object_store_and_where_a_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifest.json").write_bytes(b"{}")
    monkeypatch.setenv("AIRFLOW_VAR_DBT_ARTIFACTS", f"file://{tmp_path}/")
    monkeypatch.setenv("AIRFLOW_VAR_DBT_ON_DISK", str(tmp_path))
    for folder in (str(tmp_path), f"file://{tmp_path}", "variable://dbt_artifacts", "variable://dbt_on_disk"):
        assert read_artifact(f"{folder}/manifest.json") == b"{}"
        with pytest.raises(FileNotFoundError):
            read_artifact(f"{folder}/sources.json")


def test_a_variable_that_does_not_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(SettingsError, match="there is no variable dbt_nowhere"):
        read_artifact("variable://dbt_nowhere/manifest.json")


def test_a_campaign_can_start_after_the_asset_that_cosmos_names_by_its_uri() -> None:
    uri = "postgres://warehouse:5432/shop/analytics/lapsed_buyers"
    campaign = Campaign.model_validate({"title": "Come back", "after": [uri]})
    assert [each.name for each in schedule_of(campaign)] == [Asset(uri).name] == [uri]
