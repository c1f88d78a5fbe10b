"""``sendoff init``: the files of a new project."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sendoff.campaign import campaign_schema

Command = Callable[..., "subprocess.CompletedProcess[str]"]

FILES = {
    ".github/workflows/campaigns.yml",
    "dags/.airflowignore",
    "dags/campaign_errors.py",
    "dags/campaigns.py",
    "dags/campaigns/campaign.schema.json",
    "dags/campaigns/welcome/audience.sql",
    "dags/campaigns/welcome/campaign.yaml",
    "dags/housekeeping.py",
}


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def test_a_new_project_has_all_files_and_no_mistake(tmp_path: Path, sendoff: Command) -> None:
    done = sendoff("init", str(tmp_path / "new/project"))
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path / "new/project") == FILES
    assert done.stdout.count("wrote ") == len(FILES)
    assert sendoff("check", str(tmp_path)).stdout == "1 folder checked: 0 mistakes, 0 warnings\n"
    schema = tmp_path / "new/project/dags/campaigns/campaign.schema.json"
    assert json.loads(schema.read_text()) == campaign_schema()


def test_a_file_that_exists_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sendoff: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags/campaigns.py").write_text("mine = True\n")
    (tmp_path / "dags/housekeeping.py").symlink_to("nowhere.py")
    done = sendoff("init")
    assert done.returncode == 0
    assert (tmp_path / "dags/campaigns.py").read_text() == "mine = True\n"
    assert not (tmp_path / "dags/nowhere.py").exists()
    assert re.findall(r"exists  (.+)", done.stdout) == ["dags/campaigns.py", "dags/housekeeping.py"]
    again = sendoff("init")
    assert again.stdout.count("exists") == len(FILES)
    assert "wrote" not in again.stdout


def test_a_place_that_cannot_be_written_is_an_error_that_names_the_file(
    tmp_path: Path, sendoff: Command
) -> None:
    (tmp_path / "dags").write_text("a file")
    done = sendoff("init", str(tmp_path))
    assert done.returncode == 1
    assert "dags/.airflowignore cannot be written" in done.stderr
    assert sendoff("init", str(tmp_path / "dags")).returncode == 2


def test_the_workflow_checks_and_compares_and_names_no_host(tmp_path: Path, sendoff: Command) -> None:
    sendoff("init", str(tmp_path))
    text = (tmp_path / ".github/workflows/campaigns.yml").read_text()
    steps = yaml.safe_load(text)["jobs"]["check"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert any(command.startswith("sendoff check dags/campaigns") for command in commands)
    assert any("sendoff diff base/dags/campaigns dags/campaigns" in command for command in commands)
    assert not re.search(r"https?://|--index|/(?:home|root|tmp|work)/", text)
