"""Releases: the workflow, the hashes and the bill of materials of the images, the notes and the documentation.

The workflow itself cannot run here. These tests check its structure, and that each of its commands exists.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from tools.release.notes import notes
from tools.release.sbom import locked
from tools.release.site import add_site

from .test_distribution import PROJECT, ROOT, brought

WORKFLOW = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOW)["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
SCRIPTS = [step["run"] for _, step in STEPS if "run" in step]
LOCK = (ROOT / "docker/requirements.txt").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EXTRAS = ("airflow", "celery", "postgres", "service")  # of the images
RUNNER = {
    "cp",
    "docker",
    "echo",
    "gh",
    "git",
    "helm",
    "jq",
    "make",
    "mkdir",
    "python",
    "sed",
}  # programs of a runner


def targets() -> set[str]:
    """Return the targets of the Makefile."""
    return {
        name for line in re.findall(r"^([a-z][a-z -]*):", MAKEFILE, re.MULTILINE) for name in line.split()
    }


def commands(script: str) -> list[list[str]]:
    """Return the commands of a script as words, without variables that are set before them."""
    inner = re.findall(r"\$\(([^()]+)\)", script)
    outer = re.split(r"\n|&&|\|\|?", re.sub(r"\$\([^()]+\)", "X", script))
    words = [re.sub(r"^(?:\w+=\S*\s*)+", "", part.strip()).split() for part in [*outer, *inner]]
    return [each for each in words if each]


def test_only_a_tag_starts_the_workflow_and_each_job_has_the_rights_that_it_needs() -> None:
    trigger = yaml.load(WORKFLOW, yaml.BaseLoader)  # otherwise "on" would be True
    assert trigger["on"] == {"push": {"tags": ["v*"]}}
    assert trigger["permissions"] == {}
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "build": {"contents": "read", "id-token": "write", "attestations": "write"},
        "images": {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"},
        "package-index": {"id-token": "write"},
        "publish": {"contents": "write"},
    }
    assert {name: job.get("needs") for name, job in JOBS.items()} == {
        "build": None,
        "images": "build",
        "package-index": "build",
        "publish": ["images", "package-index"],
    }
    assert all(job["timeout-minutes"] <= 60 for job in JOBS.values())


def test_the_package_index_gets_no_token() -> None:
    assert "secrets." not in WORKFLOW
    assert JOBS["package-index"]["environment"] == "release"
    [_, upload] = JOBS["package-index"]["steps"]
    assert upload["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "with" not in upload


def test_every_action_is_pinned_to_a_commit() -> None:
    used = re.findall(r"uses: (.*)", WORKFLOW)
    assert len(used) > 10
    assert [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    assert len({line.partition("@")[0] for line in used}) == len(set(used)), "one action in two versions"


def test_only_the_job_that_publishes_keeps_the_right_to_push() -> None:
    for name, step in STEPS:
        if step.get("uses", "").startswith("actions/checkout@"):
            keeps = step["with"].get("persist-credentials", True)
            assert keeps == (name == "publish"), name


def test_wheel_images_and_bill_of_materials_are_attested() -> None:
    attested = [
        (name, step["with"]) for name, step in STEPS if step.get("uses", "").startswith("actions/attest@")
    ]
    assert [name for name, _ in attested] == ["build", "images", "images"]
    assert attested[0][1]["subject-path"].split() == ["dist/*", "build/release/*"]
    assert attested[2][1]["sbom-path"] == "build/release/sbom.cdx.json"


def test_a_job_downloads_only_what_another_one_uploaded() -> None:
    files = {
        kind: {(step["with"]["name"]) for _, step in STEPS if f"{kind}-artifact@" in step.get("uses", "")}
        for kind in ("upload", "download")
    }
    assert files["download"] == files["upload"] == {"dist", "release"}


def test_every_command_of_the_workflow_exists() -> None:
    found = [words for script in SCRIPTS for words in commands(script)]
    assert len(found) > 20
    for first, *rest in found:
        if first.startswith(".venv/bin/"):
            assert (Path(sys.executable).parent / Path(first).name).is_file(), first
        else:
            assert first in RUNNER, first
        if first == "make":
            assert set(rest) <= targets(), rest
        if Path(first).name == "python":
            assert rest[0] == "-m"
            subprocess.run(
                [sys.executable, "-c", f"import importlib.util as i; assert i.find_spec({rest[1]!r})"],
                cwd=ROOT,
                check=True,
            )


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_the_shell_accepts_every_script_of_the_workflow(script: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=script, check=False, capture_output=True, text=True)
    assert checked.stderr == ""


def test_commands_are_found_in_a_script() -> None:
    script = (
        'A=$(git log -1) .venv/bin/python -m x > y\nbase=$(sed -n p "$F")\necho a | docker login && make b c'
    )
    firsts = [words[0] for words in commands(script)]
    assert firsts == [".venv/bin/python", "echo", "docker", "make", "git", "sed"]


def test_the_images_install_all_packages_that_they_need_in_the_pinned_versions() -> None:
    pins = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pinned = {canonicalize_name(name): version for name, version in pins}
    versions = locked()
    stale = {name for name, version in versions.items() if pinned.get(name) != version}
    assert stale == set(), "run make lock"
    wanted = [*PROJECT["dependencies"], "hatchling"]
    for extra in EXTRAS:
        wanted += PROJECT["optional-dependencies"][extra]
    python = {"python_version": "3.12", "python_full_version": "3.12.0"}  # of the images
    assert brought(wanted, python) - versions.keys() == set(), "run make lock"


def test_every_package_of_the_images_has_hashes_and_no_address() -> None:
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE).strip())
    assert len(entries) == len(locked()) > 150
    for entry in entries:
        assert re.fullmatch(r"[\w.\[\],-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry[:80]


@pytest.mark.parametrize("name", ["docker/Dockerfile", "docker/kubernetes/Dockerfile"])
def test_an_image_installs_only_files_with_these_hashes_on_a_base_that_the_release_chooses(name: str) -> None:
    text = (ROOT / name).read_text()
    [base] = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"[\w/]+:[\w.-]+", base), "a digest is the business of the release"
    assert re.findall(r"^FROM (.*)$", text, re.MULTILINE) == ["${BASE}"]
    first, second = re.findall(r"^RUN pip install (.*)$", text, re.MULTILINE)
    assert first.endswith("--require-hashes -r docker/requirements.txt")
    assert second.endswith("--no-deps --no-build-isolation .")
    matrix = JOBS["images"]["strategy"]["matrix"]["include"]
    assert name in {each["file"] for each in matrix}


def test_the_bill_of_materials_is_valid_and_names_the_packages_of_the_images(tmp_path: Path) -> None:
    file = tmp_path / "sbom.cdx.json"
    subprocess.run([sys.executable, "-m", "tools.release.sbom", file], cwd=ROOT, check=True)
    text = file.read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert {part["name"]: part["version"] for part in bill["components"]} == locked()
    assert [part["name"] for part in bill["components"] if not part.get("licenses")] == []
    needed = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert any(name.startswith("sqlalchemy==") for name in needed[bill["metadata"]["component"]["bom-ref"]])
    assert "-m tools.release.sbom" in MAKEFILE


CHANGELOG = """# Changelog

## 1.10.0 (2027-01-02)

### Sending

- A change, see [a page](docs/a.md) and [a site](https://example.com).

## 1.1.0

- Before it.
"""


def test_the_notes_are_the_section_of_the_tag_with_links_into_the_repository() -> None:
    assert notes("v1.10.0", "https://host/", CHANGELOG, "1.10.0") == (
        "### Sending\n\n- A change, see [a page](https://host/docs/a.md) and [a site](https://example.com).\n"
    )
    assert notes("v1.1.0", "", CHANGELOG, "1.1.0") == "- Before it.\n"
    with pytest.raises(SystemExit, match=r"the tag v1\.1\.0 is not v1\.10\.0"):
        notes("v1.1.0", "", CHANGELOG, "1.10.0")
    with pytest.raises(SystemExit, match=r'no section "## 2\.0\.0"\. Rename'):
        notes("v2.0.0", "", CHANGELOG, "2.0.0")


def test_each_version_keeps_its_documentation(tmp_path: Path) -> None:
    built, pages = tmp_path / "built", tmp_path / "pages"
    built.mkdir()
    for tag in ("v0.9.0", "v0.10.0", "v0.10.0"):
        (built / "index.html").write_text(tag)
        add_site(built, pages, tag)
    assert (pages / "v0.9.0/index.html").read_text() == "v0.9.0"
    assert (pages / "latest/index.html").read_text() == "v0.10.0"
    rows = re.findall(r'href="(\S+)/index.html"', (pages / "index.html").read_text())
    assert rows == ["latest", "v0.10.0", "v0.9.0"]
