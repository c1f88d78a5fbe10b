"""The ``conditions`` of a request or a segment (section 2.9): their check, and their evaluation for a device.

The document shows the shape and one kind, ``tags_attribute``, whose nested array may name any field. Public pages
of the same interface name the kinds ``segment``, ``tags_flag``, ``tags`` and ``location``. All other kinds are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson
from sqlalchemy import Connection, func, select

from messaging_service.envelope import FieldProblem
from messaging_service.store import find
from messaging_service.tables import hits, segments

# Anything with the attributes of a row of ``devices``.
Device = Any
Predicate = Callable[[Device], bool]

LONGEST = 262_144  # characters of JSON, by a public page
_DEEPEST = 20
_OPERATORS = ("AND", "OR")
_COMPARATORS = ("=", "!=", ">", "<", ">=", "<=", "IN", "NOT IN")
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": lambda found, wanted: found > wanted,
    "<": lambda found, wanted: found < wanted,
    ">=": lambda found, wanted: found >= wanted,
    "<=": lambda found, wanted: found <= wanted,
}
_WHOLE = "value"  # the field that means the attribute itself
_ON = frozenset({"1", "true", "on", "yes"})
# Columns that conditions may use like attributes.
_COLUMNS = ("platform", "user_id", "language", "time_zone", "external_id", "email", "mobile_number")


def check_conditions(conditions: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """Yield the problems with conditions: a wrong shape, or kinds and operators that the service does not know."""
    if len(orjson.dumps(conditions)) > LONGEST:
        yield FieldProblem("conditions", f"must not be longer than {LONGEST:,} characters")
    else:
        yield from _check_group(conditions, "conditions", 1)


def wanted_segments(conditions: Mapping[str, Any]) -> Iterator[int]:
    """Yield the ids of the saved segments that checked conditions refer to."""
    for member in _members(conditions):
        if isinstance(member, dict):
            yield from wanted_segments(member)
        elif member[0] == "segment":
            yield from _ids(member[2])


@dataclass(frozen=True, slots=True)
class ConditionEvaluator:
    """Turns checked conditions into predicates on devices. Reads segments and hits from the store."""

    connection: Connection

    def predicate(self, conditions: Mapping[str, Any]) -> Predicate:
        """Return a predicate that checks whether a device meets the conditions."""
        questions = [
            self.predicate(member) if isinstance(member, dict) else self._condition(member)
            for member in _members(conditions)
        ]
        together = all if conditions["operator"] == "AND" else any
        return lambda device: together(question(device) for question in questions)

    def segment(self, segment_id: int) -> Predicate:
        """Return a predicate that checks whether a device is in a saved segment; an unknown segment is empty."""
        stored = find(self.connection, segments, segment_id)
        return self.predicate(stored.conditions) if stored else lambda _: False

    def _condition(self, condition: list[Any]) -> Predicate:
        kind, operator, name, *option = condition
        question = self._of_kind(kind, name, option[0] if option else None)
        return question if operator == "=" else lambda device: not question(device)

    def _of_kind(self, kind: str, name: Any, option: list[Any] | None) -> Predicate:
        if kind == "segment":
            inside = [self.segment(segment_id) for segment_id in _ids(name)]
            return lambda device: any(question(device) for question in inside)
        if kind in ("tags", "location"):
            return self._hits(kind, str(name), option or ["hits", ">", 0])
        if kind == "tags_flag":
            wanted_on = option is None or option[2] == "on"
            return lambda device: (str(value_of(device, name)).lower() in _ON) is wanted_on
        assert option is not None
        field, comparator, wanted = option
        return lambda device: compare(field_of(device, name, field), comparator, wanted)

    def _hits(self, kind: str, name: str, option: list[Any]) -> Predicate:
        happened = hits.c.kind == ("event" if kind == "tags" else "enter")
        query = select(hits.c.person, func.count().label("times")).where(happened, hits.c.name == name)
        rows = self.connection.execute(query.group_by(hits.c.person))
        counts: dict[str, int] = {row.person: row.times for row in rows}
        _, comparator, wanted = option
        return lambda device: compare(counts.get(person_of(device), 0), comparator, wanted)


def person_of(device: Device) -> str:
    """Return a key for the owner of a device: its user, or else its profile, or else the device itself."""
    if device.user_id is not None:
        return f"user {device.user_id}"
    return f"device {device.device_id}" if device.profile_id is None else f"profile {device.profile_id}"


def value_of(device: Device, name: str) -> Any:
    """Return an attribute of a device, or else the column with that name, or else None."""
    value = device.attributes.get(name)
    return getattr(device, name) if value is None and name in _COLUMNS else value


def field_of(device: Device, name: str, field: str) -> Any:
    """Return a field of an attribute: the attribute ``name.field`` of the device, or else the attribute itself.

    The document shows only the field ``value``, and does not say whether there are others.
    """
    found = None if field == _WHOLE else value_of(device, f"{name}.{field}")
    return value_of(device, name) if found is None else found


def compare(found: Any, comparator: str, wanted: Any) -> bool:
    """Compare numbers as numbers, and everything else as text. If ``wanted`` is true or false, compare flags.

    Two texts are equal only if they are the same, so that ``007`` is not ``7``. A missing value matches only ``!=`` and
    ``NOT IN``.
    """
    if comparator in ("IN", "NOT IN"):
        options = wanted if isinstance(wanted, list) else [wanted]
        return any(compare(found, "=", option) for option in options) is (comparator == "IN")
    if found is None:
        return comparator == "!="
    if comparator in ("=", "!="):
        texts = isinstance(found, str) and isinstance(wanted, str)
        left, right = (found, wanted) if texts else _comparable(found, wanted)
        return bool(left == right) is (comparator == "=")
    return _ORDER[comparator](*_comparable(found, wanted))


def _comparable(found: Any, wanted: Any) -> tuple[Any, Any]:
    if isinstance(wanted, bool):
        return str(found).lower() in _ON, wanted
    try:
        left, right = Decimal(str(found)), Decimal(str(wanted))
    except InvalidOperation:
        return str(found), str(wanted)
    return (str(found), str(wanted)) if left.is_nan() or right.is_nan() else (left, right)


def _members(group: Mapping[str, Any]) -> list[Any]:
    return [group[key] for key in sorted((key for key in group if key != "operator"), key=int)]


def _ids(value: Any) -> list[int]:
    return value if isinstance(value, list) else [value]


def _check_group(group: Mapping[str, Any], at: str, depth: int) -> Iterator[FieldProblem]:
    if group.get("operator") not in _OPERATORS:
        yield FieldProblem(f"{at}.operator", "must be AND or OR")
    members = {key: member for key, member in group.items() if key != "operator"}
    if depth > _DEEPEST:
        yield FieldProblem("conditions", f"must not be nested deeper than {_DEEPEST} groups")
    elif not members:
        yield FieldProblem(at, "must have a member 0: a group or a condition")
    elif set(members) != {str(number) for number in range(len(members))}:
        yield FieldProblem(at, f"the members must be operator and 0 to {len(members) - 1}")
    else:
        for key, member in members.items():
            yield from _check_member(member, f"{at}.{key}", depth)


def _check_member(member: Any, at: str, depth: int) -> Iterator[FieldProblem]:
    if isinstance(member, dict):
        yield from _check_group(member, at, depth + 1)
    elif not isinstance(member, list):
        yield FieldProblem(at, "must be a group or a condition")
    elif wrong := _wrong_condition(member):
        yield FieldProblem(at, wrong)


def _wrong_condition(condition: list[Any]) -> str | None:
    if not 3 <= len(condition) <= 4:
        return "a condition must be an array of kind, operator, name and, for most kinds, a nested array"
    kind, operator, name, *rest = condition
    if not isinstance(kind, str) or kind not in _KINDS:
        return f"the kind must be one of {', '.join(_KINDS)}; this service knows no others"
    if operator not in ("=", "!="):
        return "the operator before the name must be = or !="
    return _KINDS[kind](name, rest[0] if rest else None)


def _wrong_attribute(name: Any, option: Any) -> str | None:
    if not isinstance(name, str) or not name:
        return "the name must be a string"
    if not _is_option(option, None, _COMPARATORS):
        return f"the nested array must be [field, comparator, value], with one of {', '.join(_COMPARATORS)}"
    values = option[2] if isinstance(option[2], list) else [option[2]]
    if isinstance(option[2], list) and option[1] not in ("IN", "NOT IN"):
        return "an array of values needs the comparator IN or NOT IN"
    return (
        None
        if all(isinstance(item, str | int | float) for item in values)
        else "the value must be a string or a number"
    )


def _wrong_segment(segment: Any, option: Any) -> str | None:
    if option is not None:
        return "a segment has no nested array"
    good = isinstance(segment, int | list) and all(type(item) is int for item in _ids(segment))
    return None if good else "must be the id of a segment"


def _wrong_flag(name: Any, option: Any) -> str | None:
    if not isinstance(name, str | int) or isinstance(name, bool):
        return "the name must be a string or an id"
    good = option is None or (_is_option(option, "status", ("=",)) and option[2] in ("on", "off"))
    return None if good else "the nested array must be [status, =, on or off]"


def _wrong_hits(name: Any, option: Any) -> str | None:
    if not isinstance(name, str | int) or isinstance(name, bool):
        return "the name must be a string or an id"
    good = option is None or (_is_option(option, "hits", ("=", ">", "<")) and type(option[2]) is int)
    return None if good else "the nested array must be [hits, =, > or <, number]"


def _is_option(option: Any, name: str | None, comparators: tuple[str, ...]) -> bool:
    if not isinstance(option, list) or len(option) != 3 or option[1] not in comparators:
        return False
    return option[0] == name if name else isinstance(option[0], str) and bool(option[0])


_KINDS: Mapping[str, Callable[[Any, Any], str | None]] = {
    "tags_attribute": _wrong_attribute,
    "tags_flag": _wrong_flag,
    "tags": _wrong_hits,
    "location": _wrong_hits,
    "segment": _wrong_segment,
}
