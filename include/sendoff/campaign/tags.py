"""Personalisation tags in a campaign's texts, such as ``{{first_name}}`` (sections 2.6 and 2.8).

The document shows tags in double curly braces and says no more of what stands between them. Sendoff takes a name alone;
``docs/reference/unknowns.md`` has that guess. Template code of other systems would reach people as it stands,
so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import AfterValidator, ValidationInfo

from sendoff.campaign.field_types import FROZEN, problem

_NAME = r"[^\W\d][\w.-]*"
_TAG = re.compile(r"\{\{\s*(" + _NAME + r")\s*\}\}")
_SUSPECT = re.compile(
    r"(?P<three>\{\{\{)"
    r"|(?P<closed>\{\{(?P<content>[^{}]*)\}\})"
    r"|(?P<open>\{\{\s*(?:" + _NAME + r")?)"
    r"|(?P<code>\{%[-+]?\s*\w*)"
)
_ONE_BRACE = re.compile(r"(?<!\{)\{\s*" + _NAME + r"\s*\}|\{#.*?#\}", re.DOTALL)
_BROWSERS_OWN = re.compile(r"<(script|style)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_LONGEST_SHOWN = 40  # characters of a tag in an error; a longer one may be the text of a message


def names_of_tags(text: str) -> Iterator[str]:
    """Yield the name in each tag of a text."""
    return (found[1] for found in _TAG.finditer(text))


def names_in(value: Any) -> Iterator[str]:
    """Yield the name in each tag of every text in a value of JSON's types."""
    if isinstance(value, str):
        yield from names_of_tags(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from names_in(inner)


def _checked(text: str, *, single: bool = True) -> str:
    """Return the text, or raise an error for its first tag that is malformed or holds more than a name.

    ``single``: also refuse a name in single braces, which is a tag that was meant.
    """
    for found in _SUSPECT.finditer(text):
        if not _TAG.fullmatch(found[0]):
            raise _problem(text, found)
    if single:
        plain = _BROWSERS_OWN.sub(lambda code: " " * len(code[0]), text)
        plain = _TAG.sub(lambda tag: " " * len(tag[0]), plain)
        if one := _ONE_BRACE.search(plain):
            name = one[0].strip("{} \n")
            is_code = one[0].startswith("{#")
            allowed = (
                "text and tags, but no template code"
                if is_code
                else f"{{{{{name}}}}}, with two braces on each side"
            )
            raise problem(
                f"{'a comment' if is_code else _shown(one[0])} {_place(text, one.start())}", allowed
            )
    return text


def _problem(text: str, found: re.Match[str]) -> Exception:
    place = _place(text, found.start())
    if found["three"]:
        return problem(f"three braces {place}", "a tag with two braces on each side, such as {{first_name}}")
    if found["open"]:
        name = found["open"].strip("{ \n") or "first_name"
        return problem(
            f"{_shown(found['open'])} {place}, which no }}}} closes",
            f"{{{{{name}}}}}, closed with two braces",
        )
    if found["code"]:
        allowed = "text and tags, such as {{first_name}}; the service runs no template code"
        return problem(f"{_shown(found['code'])} {place}", allowed)
    if not found["content"].strip():
        return problem(f"a tag without a name {place}", "a name between the braces, such as {{first_name}}")
    allowed = "a name alone between the braces, such as {{first_name}}: no filter, condition, quote or space"
    return problem(f"{_shown(found['closed'])} {place}", allowed)


def _shown(tag: str) -> str:
    is_short = len(tag) <= _LONGEST_SHOWN and tag.isprintable()
    return tag if is_short else f"a tag of {len(tag)} characters"


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return f"at character {column}" + (f" of line {line} of the text" if "\n" in text.strip() else "")


def _validator(check: Callable[[str], str]) -> AfterValidator:
    def checked(text: str, info: ValidationInfo) -> str:
        return text if info.context == FROZEN else check(text)  # a launch is read as it was frozen

    return AfterValidator(checked)


TAGGED = _validator(_checked)
"""Annotates a text with tags."""

TAGGED_CODE = _validator(lambda text: _checked(text, single=False))
"""Annotates a text with tags in which single braces are something else, such as the JSON of a webhook."""
