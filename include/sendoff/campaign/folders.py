"""Find campaign folders, and check all of them together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sendoff.campaign.lint import advice
from sendoff.campaign.loader import CampaignFolder, load_campaign
from sendoff.errors import CampaignError, Finding

HOUSEKEEPING_DAGS = ("sendoff_doubts", "sendoff_maintenance", "sendoff_reconcile")
"""The default names of the DAGs for all campaigns."""


@dataclass(frozen=True, slots=True)
class CheckedFolder:
    """The result of checking a campaign folder. ``campaign`` is None if it cannot be loaded.

    ``notes``: the rules for all campaigns, or why they do not apply.
    """

    path: Path
    campaign: CampaignFolder | None
    mistakes: tuple[Finding, ...]
    warnings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


def is_campaign_folder(path: Path) -> bool:
    """Check whether a path is a campaign folder: one with either of its two files, or one that cannot be read."""
    try:
        return not {"campaign.yaml", "audience.sql"}.isdisjoint(entry.name for entry in path.iterdir())
    except (NotADirectoryError, FileNotFoundError):
        return False  # not a folder, or a broken link
    except OSError:
        return True  # loading it reports the error


def campaign_folders(place: Path) -> Iterator[Path]:
    """Yield ``place`` if it is a campaign folder; otherwise yield the campaign folders in it, at any depth.

    Hidden folders are not searched, and links are followed only to a campaign folder.
    """
    if is_campaign_folder(place):
        yield place
        return
    for entry in sorted(place.iterdir()):
        if entry.is_symlink():
            yield from [entry] if is_campaign_folder(entry) else []
        elif entry.is_dir() and not entry.name.startswith("."):
            yield from campaign_folders(entry)


def check_folders(places: Iterable[Path]) -> list[CheckedFolder]:
    """Check each campaign folder in some places, and whether two of them have the same name.

    A place without any campaign is a mistake too.
    """
    found: dict[Path, CheckedFolder] = {}
    names: dict[str, Path] = {}
    for place in places:
        paths = [path.absolute() for path in campaign_folders(place)]
        if not paths:
            missing = Finding(
                place.absolute(), "there is no campaign in this folder. Name the folder of the campaigns"
            )
            found[place.absolute()] = CheckedFolder(place.absolute(), None, (missing,))
        for path in paths:
            if path not in found:
                found[path] = _checked(path, names)
    return list(found.values())


def _checked(path: Path, names: dict[str, Path]) -> CheckedFolder:
    """Check one folder, and add its name to ``names``, which holds those of the folders checked before."""
    clashes = list(_clashes(path, names.setdefault(path.name, path)))
    try:
        campaign = load_campaign(path)
    except CampaignError as error:
        return CheckedFolder(path, None, (*error.mistakes, *clashes))
    return CheckedFolder(path, campaign, tuple(clashes), tuple(_warnings(campaign)), tuple(_notes(campaign)))


def _clashes(path: Path, first: Path) -> Iterator[Finding]:
    if first != path:
        yield Finding(path, f"the campaign {first} has the same name. Rename one of the two folders")
    if path.name in HOUSEKEEPING_DAGS:
        yield Finding(path, "a housekeeping DAG has this name. Rename the campaign's folder")


def _notes(folder: CampaignFolder) -> Iterator[Finding]:
    """Yield each rule for all campaigns with its place, or why the rules do not apply."""
    why = folder.campaign.transactional
    if why and folder.rules:
        text = f"rules: not applied, because the campaign is transactional ({why})"
        yield folder.finding(("transactional",), text)
    for setting in folder.settings() if folder.rules else ():
        _, _, name = setting.path.partition("rules.")
        if name and folder.rules and (name == "warm_up" or not why):
            text = f"{setting.path} holds for all campaigns: {json.dumps(setting.value)}"
            yield Finding(folder.rules.file, text, setting.line)


def _warnings(folder: CampaignFolder) -> Iterator[Finding]:
    for line in advice(folder.campaign):
        place, _, _ = line.partition(": ")
        yield folder.finding(tuple(place.split(".")), line)
