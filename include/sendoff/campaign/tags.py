"""Personalisation tags in a campaign's texts, such as ``{{first_name}}`` (sections 2.6 and 2.8).

The service's document shows tags in double curly braces, but does not define their content. Sendoff accepts only a
name; ``docs/reference/unknowns.md`` lists that guess. Template code of other systems is refused, because recipients
would see the code itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_NAME = r"[^\W\d][\w.-]*"
_TAG = re.compile(r"\{\{\s*(" + _NAME + r")\s*\}\}")
_SUSPECT = re.compile(
    r"(?P<three>\{\{\{)"
    r"|(?P<closed>\{\{(?P<content>[^{}]*)\}\})"
    r"|(?P<open>\{\{\s*(?:" + _NAME + r")?)"
    r"|(?P<code>\{%[-+]?\s*\w*)"
)
_ONE_BRACE = re.compile(r"(?<!\{)\{\s*" + _NAME + r"\s*\}")
_BROWSERS_OWN = re.compile(r"<(script|style)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_LONGEST_SHOWN = 40  # characters of a tag in an error; anything longer may be message text


def names_in(value: Any) -> Iterator[str]:
    """Yield the name in each tag of every text in a JSON value."""
    for _, text in _texts(value, ()):
        yield from (tag[1] for tag in _TAG.finditer(text))


def broken_tags(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the path of each text with a wrong tag in a JSON value, and the problem with the first such tag.

    A name in single braces counts as a wrong tag, except in a payload and in the body of a webhook, which hold code.
    """
    for place, text in _texts(value, path):
        is_code = "payload" in place or place[-2:] == ("body", "content")
        if found := _broken_tag(text) or (None if is_code else _single_braces(text)):
            yield place, f"found {found[0]}. Use {found[1]}"


def _texts(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield from _texts(inner, (*path, step))


def _broken_tag(text: str) -> tuple[str, str] | None:
    """Return the first tag that is malformed or contains more than a name, and what to write instead."""
    tag = next((tag for tag in _SUSPECT.finditer(text) if not _TAG.fullmatch(tag[0])), None)
    if tag is None:
        return None
    place = _place(text, tag.start())
    if tag["three"]:
        return f"three braces {place}", "a tag with two braces on each side, such as {{first_name}}"
    if tag["open"]:
        name = tag["open"].strip("{ \n") or "first_name"
        return (
            f"{_excerpt(tag['open'])} {place}, which no }}}} closes",
            f"{{{{{name}}}}}, closed with two braces",
        )
    if tag["code"]:
        allowed = "text and tags, such as {{first_name}}; the service runs no template code"
        return f"{_excerpt(tag['code'])} {place}", allowed
    if not tag["content"].strip():
        return f"a tag without a name {place}", "a name between the braces, such as {{first_name}}"
    allowed = "only a name between the braces, such as {{first_name}}: no filter, condition, quote or space"
    return f"{_excerpt(tag['closed'])} {place}", allowed


def _single_braces(text: str) -> tuple[str, str] | None:
    plain = _BROWSERS_OWN.sub(lambda code: " " * len(code[0]), text)
    plain = _TAG.sub(lambda tag: " " * len(tag[0]), plain)
    tag = _ONE_BRACE.search(plain)
    comment = plain.find("{#", 0, tag.start() if tag else None)
    if comment >= 0 and plain.find("#}", comment + 2) >= 0:
        return f"a comment {_place(text, comment)}", "text and tags, but no template code"
    if tag is None:
        return None
    place = _place(text, tag.start())
    name = tag[0].strip("{} \n")
    return f"{_excerpt(tag[0])} {place}", f"{{{{{name}}}}}, with two braces on each side"


def _excerpt(tag: str) -> str:
    is_short = len(tag) <= _LONGEST_SHOWN and tag.isprintable()
    return tag if is_short else f"a tag of {len(tag)} characters"


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return f"at character {column}" + (f" of line {line} of the text" if "\n" in text.strip() else "")
