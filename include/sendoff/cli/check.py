"""The command that checks campaign folders in CI, without a warehouse, Airflow or a ledger."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree as ET

import typer
from rich.console import Console
from rich.text import Text

from sendoff.cli.shared import AsJson, Folders, app, print_json
from sendoff.errors import Finding, SettingsError
from sendoff.figures import counted

if TYPE_CHECKING:
    from sendoff.campaign import CheckedFolder

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@app.command()
def check(
    folders: Folders,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the result to this file as JUnit XML")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check campaign folders: all mistakes with file and line, warnings, and names that clash.

    Notes show the values that campaigns have from defaults.yaml, and the rules for all campaigns. For a transactional
    campaign, they show why the rules do not apply.

    With --json, the output also has each setting and its origin: campaign.yaml, defaults.yaml beside the folder, or
    built in.

    It needs no warehouse, no Airflow and no ledger, so it runs in CI. It does not run the queries, but finds what a
    launch refuses before it runs them: a statement that is no query, several statements, or an unknown parameter. It
    also finds several identifier columns, one that is there twice, or one that the service does not take, if
    ``audience.columns`` or a plain SELECT names it.

    The exit code is 0 if there is no mistake, and 1 if there is one. Warnings do not change it.
    """
    from sendoff.campaign import check_folders

    checked = check_folders(folders)
    if junit:
        _write(junit, _as_junit(checked))
    if as_json:
        print_json({"campaigns": [_as_json(each) for each in checked]})
    else:
        _print(checked)
    if any(each.mistakes for each in checked):
        raise typer.Exit(1)


def _print(checked: Sequence[CheckedFolder]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    styles = {"mistake": "bold red", "warning": "yellow", "note": "cyan"}
    # Several campaigns may have the same mistake: the one in their defaults.yaml.
    shown = dict.fromkeys(
        (kind, found)
        for each in checked
        for kind, findings in (("mistake", each.mistakes), ("warning", each.warnings), ("note", each.notes))
        for found in findings
    )
    for kind, found in shown:
        console.print(Text.assemble(f"{_place(found)}: ", (kind, styles[kind]), f": {found.text}"))
    numbers = Counter(kind for kind, _ in shown)
    counts = ", ".join(counted(numbers[kind], kind) for kind in ("mistake", "warning"))
    # The steps of a journey share a folder.
    folders = {each.campaign.path if each.campaign else each.path for each in checked}
    console.print(f"{counted(len(folders), 'folder')} checked: {counts}")


def _place(found: Finding) -> str:
    from sendoff.campaign import printable

    file = printable(_shown(found.file))
    return f"{file}:{found.line}" if found.line else file


def _shown(path: Path) -> str:
    """Return a path as short as it can be: relative to the working directory if it is inside of it."""
    here = Path.cwd()
    return os.fspath(path.relative_to(here) if path.is_relative_to(here) else path)


def _as_json(checked: CheckedFolder) -> dict[str, Any]:
    def as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
        return [{"file": _shown(each.file), "line": each.line, "text": each.text} for each in findings]

    return {
        "name": checked.name,
        "folder": _shown(checked.path),
        "mistakes": as_json(checked.mistakes),
        "warnings": as_json(checked.warnings),
        "notes": as_json(checked.notes),
        "settings": [asdict(setting) for setting in checked.campaign.settings()] if checked.campaign else [],
    }


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror or type(error).__name__}.") from None


def _as_junit(checked: Sequence[CheckedFolder]) -> bytes:
    """Return the result as JUnit XML: one test case for each folder, which fails if the folder has a mistake."""
    failed = sum(bool(each.mistakes) for each in checked)
    counts = {"tests": str(len(checked)), "failures": str(failed), "errors": "0"}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": "sendoff check", **counts})
    for each in checked:
        names = {"classname": _xml(_shown(each.path.parent)), "name": _xml(each.name)}
        case = ET.SubElement(suite, "testcase", names)
        if each.mistakes:
            message = _xml(counted(len(each.mistakes), "mistake"))
            ET.SubElement(case, "failure", {"message": message}).text = _lines(each.mistakes)
        if each.warnings:
            ET.SubElement(case, "system-out").text = _lines(each.warnings)
    ET.indent(suites)
    return b'<?xml version="1.0" encoding="utf-8"?>\n%b\n' % ET.tostring(suites, encoding="utf-8")


def _lines(findings: Sequence[Finding]) -> str:
    return _xml("\n".join(f"{_place(each)}: {each.text}" for each in findings))


def _xml(text: str) -> str:
    """Replace the characters that XML does not allow."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
