"""``sendoff init``: the files of a new project."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sendoff.campaign import campaign_schema, defaults_schema, journey_schema
from sendoff.warehouse.drivers import DRIVERS

Command = Callable[..., "subprocess.CompletedProcess[str]"]

CAMPAIGN = "dags/campaigns/welcome"
FILES = {
    ".github/workflows/campaigns.yml",
    "dags/.airflowignore",
    "dags/campaign_errors.py",
    "dags/campaigns.py",
    "dags/campaigns/campaign.schema.json",
    "dags/campaigns/defaults.schema.json",
    "dags/campaigns/journey.schema.json",
    "dags/campaigns/welcome/audience.sql",
    "dags/campaigns/welcome/campaign.yaml",
    "dags/housekeeping.py",
}

SCHEMAS = {"campaign": campaign_schema, "defaults": defaults_schema, "journey": journey_schema}


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def test_a_new_project_has_all_files_and_no_mistake(tmp_path: Path, sendoff: Command) -> None:
    done = sendoff("init", str(tmp_path / "new/project"))
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path / "new/project") == FILES
    assert done.stdout.count("wrote ") == len(FILES)
    assert sendoff("check", str(tmp_path)).stdout == "1 folder checked: 0 mistakes, 0 warnings\n"
    for name, schema in SCHEMAS.items():
        file = tmp_path / f"new/project/dags/campaigns/{name}.schema.json"
        assert json.loads(file.read_text()) == schema()


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


def steps(project: Path) -> dict[str, str]:
    """Return the commands of the workflow, by the names of its steps."""
    workflow = yaml.safe_load((project / ".github/workflows/campaigns.yml").read_text())
    return {step["name"]: step["run"] for step in workflow["jobs"]["check"]["steps"] if "run" in step}


def test_the_workflow_names_no_host_and_may_only_comment(tmp_path: Path, sendoff: Command) -> None:
    sendoff("init", str(tmp_path))
    text = (tmp_path / ".github/workflows/campaigns.yml").read_text()
    assert not re.search(r"https?://|--index|/(?:home|root|tmp|work)/", text)
    assert yaml.safe_load(text)["permissions"] == {"contents": "read", "pull-requests": "write"}
    for command in steps(tmp_path).values():
        assert "${{" not in command  # a title of a pull request could otherwise become a command


def test_only_the_steps_of_the_workflow_that_need_a_secret_have_it(tmp_path: Path, sendoff: Command) -> None:
    sendoff("init", str(tmp_path))
    text = (tmp_path / ".github/workflows/campaigns.yml").read_text()
    job = yaml.safe_load(text)["jobs"]["check"]
    secret = {step["name"] for step in job["steps"] if re.search(r"secrets\.|github\.token", str(step))}
    assert (secret, job.get("env")) == ({"Compare", "Comment"}, None)
    [checkout, *_] = job["steps"]
    assert checkout["with"]["persist-credentials"] is False
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]) for step in job["steps"] if "uses" in step)


PIP = """#!/bin/sh
printf '%s\\n' "$@"
"""

GH = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in *--paginate*) cat "$EARLIER" ;; esac
"""


class PullRequest:
    """A repository with a project on its main branch, and a checked-out branch with a change."""

    def __init__(self, folder: Path, sendoff: Command) -> None:
        self.folder = folder / "project"
        sendoff("init", str(self.folder))
        (self.folder / CAMPAIGN / "audience.sql").write_text(
            "SELECT device_id FROM people WHERE device_id < 8"
        )
        self.git("init", "--quiet", "--initial-branch=main")
        self.base = self.commit()
        self.git("checkout", "--quiet", "-b", "change")
        tools = folder / "tools"
        tools.mkdir()
        for name, script in {"gh": GH, "pip": PIP}.items():
            (tools / name).write_text(script)
            (tools / name).chmod(0o755)
        (folder / "earlier").touch()
        with sqlite3.connect(folder / "warehouse.db") as db:
            db.execute("CREATE TABLE people (device_id INTEGER)")
            db.executemany("INSERT INTO people VALUES (?)", [(n,) for n in range(1, 11)])
        db.close()
        self.calls, self.earlier = folder / "calls", folder / "earlier"
        self.environment = {
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "BASE": self.base,
            "PULL_REQUEST": "7",
            "GITHUB_REPOSITORY": "shop/campaigns",
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "SENDOFF_WAREHOUSE_URL": f"sqlite:///{folder / 'warehouse.db'}",
            "CALLS": str(self.calls),
            "EARLIER": str(self.earlier),
        }

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
        line = ["git", *who, *arguments]
        return subprocess.run(
            line, cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A change")
        return self.git("rev-parse", "HEAD")

    def run(self, step: str) -> subprocess.CompletedProcess[str]:
        """Run a step as GitHub does."""
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps(self.folder)[step]]
        return subprocess.run(
            line, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    @property
    def comment(self) -> str:
        return (self.folder / "comment.md").read_text()


@pytest.fixture
def pull_request(tmp_path: Path, sendoff: Command) -> PullRequest:
    return PullRequest(tmp_path, sendoff)


@pytest.mark.proof
def test_the_workflow_comments_who_is_added_and_removed_and_what_they_read(pull_request: PullRequest) -> None:
    folder = pull_request.folder / CAMPAIGN
    (folder / "audience.sql").write_text("SELECT device_id FROM people WHERE device_id > 2")
    text = (folder / "campaign.yaml").read_text()
    title = re.search(r"title: (.+)", text.split("message:")[1])
    assert title
    (folder / "campaign.yaml").write_text(text.replace(title[1], "Words after"))
    pull_request.commit()
    for step in ("Check", "Compare", "Comment"):
        done = pull_request.run(step)
        assert done.returncode == 0, (step, done.stdout, done.stderr)
    comment = pull_request.comment
    assert comment.startswith("<!-- sendoff diff -->\n")
    assert re.search(r"Before \| +After \| +Added \| +Removed", comment)
    assert re.search(r"7 \| +8 \| +3 \| +2 ", comment)
    assert "| `least` | open | 8 devices, at least 1 wanted |" in comment
    assert "+Words after" in comment
    assert "-SELECT device_id FROM people WHERE device_id < 8" in comment
    assert (pull_request.folder.parent / "summary.md").read_text() == comment
    asked, posted = pull_request.calls.read_text().splitlines()
    assert asked.startswith("api --paginate repos/shop/campaigns/issues/7/comments --jq ")
    assert (
        posted == "api --silent --method POST repos/shop/campaigns/issues/7/comments --field body=@comment.md"
    )
    pull_request.earlier.write_text("comments/12\n")
    pull_request.run("Comment")
    changed = pull_request.calls.read_text().splitlines()[-1]
    assert changed == "api --silent --method PATCH comments/12 --field body=@comment.md"


def test_the_workflow_installs_the_driver_of_a_warehouse_and_names_those_of_others(
    pull_request: PullRequest,
) -> None:
    """Without the driver, Compare fails as soon as the secret is set."""
    wheel = "airflow_provider_sendoff-0.1.0-py3-none-any.whl"
    (pull_request.folder / wheel).touch()
    given = pull_request.run("Install").stdout.splitlines()
    assert given == ["install", "-c", "constraints.txt", f"{wheel}[postgres]"]
    text = (pull_request.folder / ".github/workflows/campaigns.yml").read_text()
    [named] = re.findall(r"# The extra is the driver of the warehouse: (.+\n.+)\.\n", text)
    assert set(re.findall(r"\w+", named)) - {"or"} == {each.extra for each in DRIVERS if each.extra}


def test_the_workflow_needs_no_warehouse(pull_request: PullRequest) -> None:
    pull_request.environment["SENDOFF_WAREHOUSE_URL"] = ""
    (pull_request.folder / CAMPAIGN / "audience.sql").write_text("SELECT device_id FROM nowhere")
    pull_request.commit()
    assert pull_request.run("Compare").returncode == 0
    assert "Recipients" not in pull_request.comment


@pytest.mark.proof
def test_the_workflow_fails_but_comments_if_the_new_query_does(pull_request: PullRequest) -> None:
    (pull_request.folder / CAMPAIGN / "audience.sql").write_text("SELECT device_id FROM nowhere")
    pull_request.commit()
    assert pull_request.run("Compare").returncode == 1
    assert "The new version cannot be launched" in pull_request.comment
    assert "nowhere" in pull_request.comment


@pytest.mark.proof
def test_the_workflow_fails_on_a_mistake(pull_request: PullRequest) -> None:
    (pull_request.folder / CAMPAIGN / "campaign.yaml").write_text("title: Nothing")
    pull_request.commit()
    assert pull_request.run("Check").returncode == 1


@pytest.mark.proof
def test_the_first_campaigns_of_a_repository_are_compared_with_none(pull_request: PullRequest) -> None:
    pull_request.git("checkout", "--quiet", "--orphan", "empty")
    pull_request.git("rm", "-r", "--quiet", "--cached", "dags")
    pull_request.git("commit", "--quiet", "--message", "Nothing yet")
    pull_request.environment["BASE"] = pull_request.git("rev-parse", "HEAD")
    pull_request.commit()
    done = pull_request.run("Compare")
    assert done.returncode == 0, done.stderr
    assert "This campaign is new" in pull_request.comment
