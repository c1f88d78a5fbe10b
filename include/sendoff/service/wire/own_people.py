"""The people that the JSON of a request which someone else wrote may name, and the JSON without some of them.

A person has an identifier of one column, such as ``user_id``. The members of the JSON are of five kinds:

- Lists of identifiers of this column name a person by an entry, or by a key of an object. People are only ever taken
  out of these, because any other change could give the message to other recipients. A target is such a list only if all
  recipients are known.
- Lists of identifiers of another column never name the person: device 17 is not user 17.
- Texts of the message name a person in their words, and not by a number of JSON, which is a setting.
- Numbers, dates, flags and lists of segments, days or locations name no one, unless they have another shape.
- All others may name a person anywhere: conditions, variables, payloads, webhooks, and members that the service's
  document does not have.

Names are those of the document. The list of recipients is also known under another name, as it contains all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sendoff.audience.identifiers import Identifiers, as_member
from sendoff.service.wire.names import FieldNames
from sendoff.service.wire.requests import ARRAYS

NOTHING = b"{}"
"""What replaces a request that can never be made, because it names people or would have other recipients."""

_NAMES = FieldNames()
_ARRAYS = {_NAMES[key]: column for column, key in ARRAYS.items()}
_TARGETS = (_NAMES["target"], _NAMES["target_with_params"])
_TEXTS = frozenset(
    """title push_title push_title_languages push_text push_text_languages push_picture url url_languages
    email_subject email_html email_text webhook_delivery webhook_open""".split()  # noqa: SIM905
) | {_NAMES["push_icon"], _NAMES["page"], _NAMES["event"]}
_ANYWHERE = {"conditions", "messages", "payload_add", _NAMES["params"], *_TARGETS}
_SEPARATORS = frozenset(",;|")
_NO_ONE = _NAMES.members() - _TEXTS - _ANYWHERE - _ARRAYS.keys()


@dataclass(frozen=True, slots=True)
class OwnPeople:
    """Where the members of a request may name people of one column.

    ``lists``: the column of each member that is a list of identifiers.
    """

    column: str
    members: Mapping[str, Any] = field(repr=False)
    lists: Mapping[str, str]

    @classmethod
    def of(
        cls,
        members: Mapping[str, Any],
        column: str,
        identified_by: str | None = None,
        recipients: Identifiers | None = None,
    ) -> OwnPeople:
        """Read the members. ``recipients``: those that are known, of the column ``identified_by``."""
        lists = {name: each for name, each in _ARRAYS.items() if isinstance(members.get(name), list)}
        if identified_by and recipients is not None and (name := _list_of(members, recipients)):
            lists[name] = identified_by
        return cls(column, members, lists)

    def identifiers(self) -> Iterator[str]:
        """Yield the identifiers of the column in the lists, as text."""
        for name in self._own_lists():
            yield from map(str, self.members[name])

    def elsewhere(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield the name of each member that may name people outside of lists, and the parts of it to search."""
        for name, value in self.members.items():
            if name not in self.lists:
                parts = list(_searched(name, value))
            elif isinstance(value, dict):
                parts = list(value.values())
            else:
                parts = [each for each in value if _may_be_several(each)]
            if parts:
                yield name, parts

    def without(self, is_gone: Callable[[str], bool]) -> OwnPeople | None:
        """Return the same without some people of the column in the lists; None if a list has no one left."""
        members = _without(self.members, self._own_lists(), is_gone)
        return None if members is None else OwnPeople(self.column, members, self.lists)

    def _own_lists(self) -> list[str]:
        return [name for name, column in self.lists.items() if column == self.column]


def without_recipients(body: bytes, recipients: Identifiers, gone: Identifiers) -> bytes:
    """Return the JSON of a request without some of its recipients; NOTHING if it does not show where they are."""
    members, people = json.loads(body), set(gone)
    if (name := _list_of(members, recipients)) is None:
        return NOTHING
    remaining = _without(members, [name], lambda text: as_member(gone.kind, text) in people)
    return NOTHING if remaining is None else written(remaining)


def written(members: Mapping[str, Any]) -> bytes:
    """Return members as JSON."""
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")  # half of a pair becomes the escape that it was


def _list_of(members: Mapping[str, Any], recipients: Identifiers) -> str | None:
    """Return the name of the member that lists the recipients; None if none or several may be this list."""
    people, found = set(recipients), []
    for name, value in members.items():
        if isinstance(value, list | dict) and value:
            listed = {as_member(recipients.kind, str(each)) for each in value}
            if name in (*_ARRAYS, *_TARGETS) and listed <= people:
                return name
            if listed == people:
                found.append(name)
    usual = [name for name in found if name not in _NO_ONE] or found
    return usual[0] if len(usual) == 1 else None


def _may_be_several(entry: Any) -> bool:
    """Check whether an entry of a list may be more than one identifier."""
    return isinstance(entry, list | dict) or (isinstance(entry, str) and not _SEPARATORS.isdisjoint(entry))


def _searched(name: str, value: Any) -> Iterator[Any]:
    """Yield the parts of a member that may name a person."""
    if name in _TEXTS:
        yield from _texts(value)
    elif name == "messages" and isinstance(value, dict):
        for message in value.values():  # its keys are numbers of channels
            if isinstance(message, dict):
                for part, each in message.items():
                    yield from _searched(part, each)
            else:
                yield message
    elif name == "conditions":
        yield from _in_conditions(value)
    elif name not in _NO_ONE:
        yield value if name in _ANYWHERE or name in _ARRAYS else {name: value}
    elif _is_another_shape(value):  # such as the webhook in a message
        yield value


def _is_another_shape(value: Any) -> bool:
    """Check whether a value is more than a number, a flag, a date, or a list of those."""
    if isinstance(value, list):
        return any(isinstance(each, list | dict) for each in value)
    return isinstance(value, dict) or (isinstance(value, str) and any(map(str.isalpha, value)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _in_conditions(value: Any) -> Iterator[Any]:
    """Yield the values in conditions, and the keys unless they are numbers of conditions."""
    if isinstance(value, dict):
        yield from (key for key in value if not key.isdigit())
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _in_conditions(each)
    else:
        yield value


def _without(
    members: Mapping[str, Any], names: Iterable[str], is_gone: Callable[[str], bool]
) -> dict[str, Any] | None:
    remaining = dict(members)
    for name in names:
        value = members[name]
        kept = [each for each in value if not is_gone(str(each))]
        if len(kept) < len(value):
            if not kept:
                return None
            remaining[name] = {key: value[key] for key in kept} if isinstance(value, dict) else kept
    return remaining
