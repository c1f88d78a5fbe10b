"""Print the section of CHANGELOG.md for a tag: ``python -m tools.release.notes v0.1.0 LINKS``.

Links to files of the repository then start with LINKS, because the notes are read elsewhere.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def notes(tag: str, links: str, changelog: str, version: str) -> str:
    """Return the section. Raise SystemExit if the tag is not the version, or the changelog has no section for it."""
    if tag != f"v{version}":
        raise SystemExit(f"the tag {tag} is not v{version}, the version in pyproject.toml")
    section = re.search(
        rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if section is None:
        raise SystemExit(f'CHANGELOG.md has no section "## {version}". Rename the section Unreleased.')
    return re.sub(r"\]\((?!\w+:)", f"]({links}", section[1]).strip() + "\n"


def main() -> None:
    """Print the notes of the tag that the command names."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sys.stdout.write(notes(sys.argv[1], sys.argv[2], changelog, project["version"]))


if __name__ == "__main__":
    main()
