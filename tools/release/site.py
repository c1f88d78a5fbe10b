"""Add a built site to the documentation of all versions: ``python -m tools.release.site BUILT PAGES v0.1.0``.

PAGES then has the folders v0.1.0 and latest, and a list of all versions. It needs no package.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Sendoff: documentation of all versions</title>
<h1>Sendoff: documentation of all versions</h1>
<ul>
{rows}
</ul>
</html>
"""


def add_site(built: Path, pages: Path, tag: str) -> None:
    """Copy the site into the folder of its version and over the latest one, and list all versions, newest first."""
    for name in (tag, "latest"):
        shutil.rmtree(pages / name, ignore_errors=True)
        shutil.copytree(built, pages / name)
    versions = sorted((each.name for each in pages.glob("v*")), key=_numbers, reverse=True)
    rows = "\n".join(f'<li><a href="{name}/index.html">{name}</a>' for name in ("latest", *versions))
    (pages / "index.html").write_text(INDEX.format(rows=rows), encoding="utf-8")


def _numbers(tag: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", tag)]


if __name__ == "__main__":
    add_site(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
