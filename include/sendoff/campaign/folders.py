"""Find campaign folders, and check all of them together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sendoff.campaign.audience_rules import CampaignExclusion, VerdictExclusion, VerdictSource
from sendoff.campaign.campaign_folder import AUDIENCE, BEFORE, OUTCOME, TEST, CampaignFolder
from sendoff.campaign.defaults import DEFAULTS, RULES
from sendoff.campaign.field_types import did_you_mean
from sendoff.campaign.journey import JOURNEY, is_journey_folder, load_journey
from sendoff.campaign.lint import advice
from sendoff.campaign.loader import load_folder, quoted_parameters, refused_queries
from sendoff.campaign.model import CREATED_FOR, EXECUTED_FOR
from sendoff.campaign.yaml_document import YamlPath, dotted
from sendoff.errors import CampaignError, Finding
from sendoff.warehouse import repeated_columns, returned_columns

HOUSEKEEPING_DAGS = (
    "sendoff_doubts",
    "sendoff_maintenance",
    "sendoff_reconcile",
    "sendoff_suppression",
    "sendoff_test",
)
"""The default names of the DAGs for all campaigns."""

ASSETS = ("audience", "launch", "report")
"""What follows a campaign's name in the names of its Airflow assets."""

_IDENTIFIERS = tuple(dict.fromkeys((*CREATED_FOR, *EXECUTED_FOR)))


@dataclass(frozen=True, slots=True)
class CheckedFolder:
    """The result of checking a campaign folder. ``campaign`` is None if it cannot be loaded.

    ``notes``: the values from ``defaults.yaml``, and the rules for all campaigns, or why they do not apply.
    """

    path: Path
    campaign: CampaignFolder | None
    mistakes: tuple[Finding, ...]
    warnings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """The name of the campaign, or of the folder if it cannot be loaded."""
        return self.campaign.name if self.campaign else self.path.name


def load_campaign(folder: Path, *, has_audience: bool = True, defaults: Path | None = None) -> CampaignFolder:
    """Read a campaign's folder, or a step of a journey: ``<folder of the journey>/<step>``, which is no real folder.

    The arguments are those of :func:`~sendoff.campaign.loader.load_folder`. Raise the same CampaignError.
    """
    parent = folder.absolute().parent
    if folder.is_file():
        raise CampaignError(f"{folder}: this is a file. Name the folder: {folder.parent}")
    if not is_journey_folder(parent):
        if is_journey_folder(folder):
            first = load_journey(folder, defaults=defaults).journey.steps[0].name
            raise CampaignError(
                f"{folder}: this is a journey. Name one of its steps, such as {folder / first}"
            )
        if inner := _campaign_inside(folder):
            raise CampaignError(
                f"{folder}: this folder is no campaign, but contains some. Name one, such as {inner}"
            )
        return load_folder(folder, has_audience=has_audience, defaults=defaults)
    journey = load_journey(parent, defaults=defaults)
    names = [step.name for step in journey.journey.steps]
    if folder.name not in names:
        hint = did_you_mean(folder.name, names)
        raise CampaignError(
            f"{parent / JOURNEY}: it has no step {folder.name!r}{hint}. Use {', '.join(names)}"
        )
    return journey.campaigns[names.index(folder.name)]


def _campaign_inside(folder: Path) -> Path | None:
    """Return the first campaign folder in a folder that is no campaign itself; None if there is none."""
    if is_campaign_folder(folder) or not folder.is_dir():
        return None
    return next(filter(is_campaign_folder, sorted(folder.iterdir())), None)


def is_campaign_folder(path: Path) -> bool:
    """Check whether a path is the folder of a campaign or journey. One that cannot be read counts too."""
    try:
        return not {"campaign.yaml", JOURNEY, "audience.sql"}.isdisjoint(
            entry.name for entry in path.iterdir()
        )
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
    """Check each campaign folder in some places, and whether two campaigns have the same name, such as a step's.

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
                found |= {each.path: each for each in _checked(path, names)}
    return list(found.values())


def load_campaigns(places: Iterable[Path]) -> list[CampaignFolder]:
    """Load the campaigns in some places. Raise one CampaignError that lists the mistakes of all of them."""
    checked = check_folders(places)
    if mistakes := [mistake for each in checked for mistake in each.mistakes]:
        raise CampaignError.of(mistakes)
    return [each.campaign for each in checked if each.campaign]


def _checked(path: Path, names: dict[str, Path]) -> Iterator[CheckedFolder]:
    """Check one folder, and add its name to ``names``, which holds those of the folders and steps checked before.

    A journey has a result for each step.
    """
    clashes = list(_clashes(path, names.setdefault(path.name, path)))
    try:
        is_journey = is_journey_folder(path)
        campaigns = load_journey(path).campaigns if is_journey else (load_folder(path),)
    except CampaignError as error:
        yield CheckedFolder(path, None, (*error.mistakes, *clashes))
        return
    for each in campaigns:
        place = path / each.name.removeprefix(f"{path.name}.") if is_journey else path
        mistakes = [*(clashes or _clashes(place, names.setdefault(each.name, place))), *_refused(each)]
        yield CheckedFolder(place, each, tuple(mistakes), tuple(_warnings(each)), tuple(_notes(each)))


def _clashes(path: Path, first: Path) -> Iterator[Finding]:
    if first != path:
        yield Finding(path, f"the campaign {first} has the same name. Rename one of the two")
    if path.name in HOUSEKEEPING_DAGS:
        yield Finding(path, "a housekeeping DAG has this name. Rename the campaign's folder")
    if tested := tested_by(path):
        yield Finding(path, f"tests of the campaign {tested} have this name. Rename one of the two")


def tested_by(path: Path) -> Path | None:
    """Return the folder of the campaign whose tests have the name of this one, or None."""
    name = path.name.removesuffix(TEST)
    tested = path.with_name(name) if name else path
    is_other = tested != path and is_campaign_folder(tested)
    return tested if is_other and not is_journey_folder(tested) else None


def _queries(folder: CampaignFolder) -> dict[str, str]:
    queries = {
        AUDIENCE: folder.audience_sql,
        **folder.exclusion_sql,
        OUTCOME: folder.outcome_sql,
        BEFORE: folder.before_sql,
    }
    return {file: sql for file, sql in queries.items() if sql}


def _refused(folder: CampaignFolder) -> Iterator[Finding]:
    queries = _queries(folder)
    yield from refused_queries(folder.path, queries)
    yield from _unreachable(folder, {file: returned_columns(sql) for file, sql in queries.items()})
    yield from _repeated(folder, queries)


def _repeated(folder: CampaignFolder, queries: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a mistake for each column that a query names more than once, if a launch or a report uses it."""
    promised = {name.lower() for name in folder.campaign.audience.columns}
    for file, sql in queries.items():
        used = {*_IDENTIFIERS, *(promised if file == AUDIENCE else ())}
        for name, line in repeated_columns(sql).items():
            if name in used:
                text = f"the query has the column {name} more than once. Name it once"
                yield Finding(folder.path / file, text, line)


def _unreachable(folder: CampaignFolder, queries: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Yield a mistake if the files show no or several identifier columns, or one that the campaign cannot have.

    ``queries``: the columns that are known of each query, with their lines.
    """
    promised = {name.lower(): name for name in folder.campaign.audience.columns}
    of_audience = queries.get(AUDIENCE, {})
    found = [each for each in _IDENTIFIERS if each in promised or each in of_audience]
    for file, returned in queries.items():
        same = found if len(found) == 1 and file != AUDIENCE else _IDENTIFIERS
        if mistake := _wrong_columns(returned, same):
            yield Finding(folder.path / file, *mistake)
    if len(found) == 1 and (why := folder.campaign.refuses(column := found[0])):
        if column in of_audience:
            yield Finding(folder.path / AUDIENCE, why, of_audience[column])
        else:
            yield folder.finding(("audience", "columns", promised[column]), why)


def _wrong_columns(returned: Mapping[str, int], allowed: Sequence[str]) -> tuple[str, int] | None:
    """Return what is wrong with the columns of a query, and the line; None if they may be right.

    ``returned``: the columns that are known. ``allowed``: its identifier column must be one of these.
    """
    several = [each for each in _IDENTIFIERS if each in returned]
    use = f"Use {allowed[0]}, as in {AUDIENCE}"
    if len(allowed) > 1:
        use = f"Use exactly one of {', '.join(allowed)}"
    if len(several) > 1:
        return f"the query has {' and '.join(several)}. {use}", max(returned[each] for each in several)
    if several and several[0] not in allowed:
        return f"found the identifier column {several[0]}. {use}", returned[several[0]]
    if returned and "" not in returned and not several:
        text = f"the query has no identifier column: found {', '.join(returned)}. {use}"
        return text, min(returned.values())
    return None


def _notes(folder: CampaignFolder) -> Iterator[Finding]:
    """Yield each value from ``defaults.yaml`` and each rule with its place, or why the rules do not apply."""
    why = folder.campaign.transactional
    if why and folder.rules:
        text = f"rules: not applied, because the campaign is transactional ({why})"
        yield folder.finding(("transactional",), text)
    for setting in folder.settings():
        value = json.dumps(setting.value, ensure_ascii=False)
        _, _, rule = setting.path.partition(f"{RULES}.")
        if folder.rules and rule and (rule == "warm_up" or not why):
            text = f"{setting.path} holds for all campaigns: {value}"
            yield Finding(folder.rules.file, text, setting.line)
        elif not rule and setting.origin == DEFAULTS:
            text = f"{setting.path} is the default of all campaigns: {value}"
            yield Finding(folder.path.parent / DEFAULTS, text, setting.line)


def _warnings(folder: CampaignFolder) -> Iterator[Finding]:
    for line in advice(folder.campaign):
        place, _, _ = line.partition(": ")
        yield folder.finding(tuple(place.split(".")), line)
    for number, name in enumerate(folder.campaign.formerly):
        if is_campaign_folder(folder.path.with_name(name)):
            text = f"formerly: the campaign {name} still exists. Delete it, or its name here"
            yield folder.finding(("formerly", number), text)
    yield from quoted_parameters(folder.path, _queries(folder))
    yield from _misspelled(folder)


def _misspelled(folder: CampaignFolder) -> Iterator[Finding]:
    """Yield a warning for each other campaign that is not beside this one, if one with a similar name is.

    Others may be in another folder, or in Python.
    """
    audience = folder.campaign.audience
    named: dict[YamlPath, str] = {}
    for number, asset in enumerate(folder.campaign.after):
        name, _, what = asset.rpartition(".")
        if what in ASSETS:
            named["after", number] = name
    if isinstance(audience.source, VerdictSource):
        named["audience", "source", "of"] = audience.source.of
    for number, each in enumerate(audience.exclude):
        if isinstance(each, CampaignExclusion):
            named["audience", "exclude", number, "name"] = each.name
        elif isinstance(each, VerdictExclusion):
            named["audience", "exclude", number, "of"] = each.of
    beside = {path.name for path in folder.path.parent.iterdir() if path.is_dir()} if named else set()
    for place, name in named.items():
        journey, _, _ = name.partition(".")
        if beside.isdisjoint((name, journey)) and (hint := did_you_mean(name, sorted(beside))):
            yield folder.finding(
                place, f"{dotted(place)}: there is no campaign {name!r} beside this one{hint}"
            )
