"""Compare two versions of a campaign: which messages, recipients, times and shares change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import Any

from sendoff.campaign.audience_rules import FileExclusion
from sendoff.campaign.campaign_folder import AUDIENCE, BEFORE, OUTCOME, CampaignFolder
from sendoff.campaign.content import PUSH_LIKE, Channel
from sendoff.campaign.defaults import DEFAULTS
from sendoff.campaign.model import Campaign

OTHER_LANGUAGES = "other"
"""The language of a place for the recipients without a text in their own language."""

_NOT_SHOWN = "(not shown)"
_SECRET = ("address", "headers.", "query.")  # parts of a webhook that may hold a token


class Part(StrEnum):
    """The part of a campaign that a change is about, in the order of a description."""

    MESSAGES = "messages"
    AUDIENCE = "audience"
    TIMES = "times"
    SHARES = "shares"
    NO_EFFECT = "no_effect"


_FIELDS = {
    Part.MESSAGES: "channels encryption language message template",
    Part.AUDIENCE: "audience dbt.artifacts rules.cap rules.exclude targeting topic transactional warehouse",
    Part.TIMES: "after approval connection dbt gates on_doubt push_expiry rules schedule schedule_time_zone send start "
    "wait",
    Part.SHARES: "audience.holdout decide formerly variants",
    Part.NO_EFFECT: "alert_after audience.partitions owner parallelism pool post_backs report retries segment_size "
    "tags title",
}
_PARTS = {name: part for part, names in _FIELDS.items() for name in names.split()}
"""The part of each field, and the wait of a step. The longest prefix counts. Any other field counts as audience."""

_OF_COMPARISONS = (OUTCOME, BEFORE)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The recipients of a changed text. None: the same for every variant, or in every language.

    ``language``: ``other`` for those without a text in their own language, who get the original.
    """

    variant: str | None
    channel: str
    language: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """One change: the name of a field or file with its value before and after it, as text; None if there is no value.

    ``places``: for a message, the recipients who see the change. ``is_file``: the values are the contents of a file.
    """

    part: Part
    name: str
    before: str | None = field(repr=False)
    after: str | None = field(repr=False)
    places: tuple[Place, ...] = ()
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class CampaignDifference:
    """All changes of a campaign. ``files``: the names of the files that differ, also in comments only.

    ``old`` and ``new``: the names of the campaign; None if it does not exist on that side. ``forgotten``:
    names of the old version that the new one does not have. ``may_send_again``: whether Sendoff takes the new version
    for another campaign, or forgets a name of it, and so sends a period again.
    """

    old: str | None
    new: str | None
    changes: tuple[Change, ...]
    files: tuple[str, ...]
    forgotten: tuple[str, ...]
    may_send_again: bool

    @property
    def affects_recipients(self) -> bool:
        """Whether some recipients get something else, at another time, or not at all."""
        is_renamed = self.old != self.new
        return is_renamed or any(change.part is not Part.NO_EFFECT for change in self.changes)


def compare_campaigns(old: CampaignFolder | None, new: CampaignFolder | None) -> CampaignDifference:
    """Return the difference between two versions of a campaign. None: the campaign is new, or it is removed."""
    folders = [each for each in (old, new) if each]
    texts = _messages(*(each.campaign if each else None for each in (old, new)))
    changes = [*texts, *_fields(old, new), *_files(old, new)]
    files = sorted(name for name in _names(folders) if _content(old, name) != _content(new, name))
    names = [each.name if each else None for each in (old, new)]
    forgotten = tuple(sorted({*old.names} - {*new.names})) if old and new else ()
    may_send_again = bool(forgotten or (old and any(change.name == "connection" for change in changes)))
    return CampaignDifference(names[0], names[1], tuple(changes), tuple(files), forgotten, may_send_again)


def _messages(old: Campaign | None, new: Campaign | None) -> Iterator[Change]:
    """Yield each change of a text or a setting of a channel, once for all places with the same change."""
    found: dict[tuple[str, str | None, str | None], list[Place]] = {}
    codes = {code for each in (old, new) if each for code in each.languages()}
    names = next((each.variants for each in (new, old) if each and each.variants), ())
    languages: Sequence[str | None] = [*sorted(codes), OTHER_LANGUAGES] if codes else [None]
    for variant, channel, language in product(tuple(names) or (None,), Channel, languages):
        before, after = (_texts(each, variant, channel, language) for each in (old, new))
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                was, becomes = (_shown(channel, name, texts.get(name)) for texts in (before, after))
                place = Place(variant, channel.value, language)
                found.setdefault((name, was, becomes), []).append(place)
    for (name, was, becomes), places in found.items():
        yield Change(Part.MESSAGES, name, was, becomes, tuple(places))


def _shown(channel: Channel, name: str, value: str | None) -> str | None:
    is_secret = channel is Channel.WEBHOOK and name.startswith(_SECRET)
    return _NOT_SHOWN if value and is_secret else value


def _texts(
    campaign: Campaign | None, variant: str | None, channel: Channel, language: str | None
) -> dict[str, str]:
    """Return the content of a channel for one variant in one language, by the name of the field."""
    if campaign and variant and variant in campaign.variants:
        campaign = campaign.as_variant(variant)
    settings = getattr(campaign.channels, channel) if campaign else None
    if campaign is None or settings is None:
        return {}
    content = campaign.message_for(channel) if channel in PUSH_LIKE else settings
    translation = getattr(content, "translations", {}).get(language)
    values = settings.model_dump(mode="json", exclude_defaults=True)
    values |= content.model_dump(mode="json", exclude_defaults=True)
    values |= translation.model_dump(exclude_none=True) if translation else {}
    return {"channel": "on", **_flat({name: each for name, each in values.items() if name != "translations"})}


def _fields(old: CampaignFolder | None, new: CampaignFolder | None) -> Iterator[Change]:
    """Yield each changed field outside of the messages."""
    before, after = map(_values, (old, new))
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield Change(_part_of(name), name, before.get(name), after.get(name))


def _values(folder: CampaignFolder | None) -> dict[str, str]:
    """Return the fields outside of the messages as text, and the order of the variants, which decides who gets them."""
    campaign = folder.campaign if folder else Campaign.model_construct(title="")  # with defaults only
    tree = campaign.model_dump(mode="json", exclude={"message", "channels", "language"})
    tree["variants"] = {
        name: {"percent": each["percent"], "template": each["template"]}
        for name, each in tree["variants"].items()
    }
    tree["wait"] = folder.wait.words if folder and folder.wait else None
    values = _flat(tree)
    return {"variants": ", ".join(campaign.variants), **values} if campaign.variants else values


def _part_of(name: str) -> Part:
    steps = name.split(".")
    prefixes = (".".join(steps[:size]) for size in range(len(steps), 0, -1))
    return next((_PARTS[prefix] for prefix in prefixes if prefix in _PARTS), Part.AUDIENCE)


def _files(old: CampaignFolder | None, new: CampaignFolder | None) -> Iterator[Change]:
    """Yield each query that changes, and each list of people, whose content is never shown."""
    before, after = (_queries(each) if each else {} for each in (old, new))
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            part = Part.NO_EFFECT if name in _OF_COMPARISONS else Part.AUDIENCE
            yield Change(part, name, before.get(name), after.get(name), is_file=True)
    lists = [_lists(each) for each in (old, new) if each]
    for name in sorted(set().union(*lists)):
        sizes = [_size(_content(each, name)) for each in (old, new)]
        if _content(old, name) != _content(new, name):
            yield Change(Part.AUDIENCE, name, sizes[0], sizes[1])


def _queries(folder: CampaignFolder) -> dict[str, str]:
    queries = {AUDIENCE: folder.audience_sql, **folder.exclusion_sql}
    queries |= {OUTCOME: folder.outcome_sql, BEFORE: folder.before_sql}
    return {name: sql for name, sql in queries.items() if sql is not None}


def _lists(folder: CampaignFolder) -> set[str]:
    return {each.file for each in folder.campaign.audience.exclude if isinstance(each, FileExclusion)}


def _size(content: bytes | None) -> str | None:
    return None if content is None else f"{len(content.splitlines()):,} lines"


def _names(folders: Iterable[CampaignFolder]) -> set[str]:
    """Return the names of all files that belong to the campaign, and of the defaults that it uses."""
    defaults = {DEFAULTS for folder in folders if folder.inherited}
    return defaults.union(*((folder.file, *_queries(folder), *_lists(folder)) for folder in folders))


def _content(folder: CampaignFolder | None, name: str) -> bytes | None:
    path = (folder.path.parent if name == DEFAULTS else folder.path) / name if folder else None
    return path.read_bytes() if path and path.is_file() else None


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the values of a tree as text, by their dotted path. A list is one value; a missing value is none."""
    found: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif value is not None and value != []:
            found[prefix + name] = _words(value)
    return found


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_words(inner)}" for name, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return (", " if not any(isinstance(each, Mapping) for each in value) else "; ").join(
            map(_words, value)
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else f"{value}"
