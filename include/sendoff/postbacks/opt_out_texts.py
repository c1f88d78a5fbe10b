"""The texts of the page where recipients opt out, in the language that a browser asks for."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, TypeAdapter, ValidationInfo, field_validator

from sendoff.campaign import FrozenModel, Text, describe, problem, read_setting
from sendoff.settings import Settings

_ENGLISH = "en"
_TOPIC = "{topic}"
_VARIABLE = "SENDOFF_OPT_OUT_TEXTS"
_TAG = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", re.ASCII)
_RANGE = re.compile(
    r"([a-z]{1,8}(?:-[a-z0-9]{1,8}){0,8})\s*(?:;\s*q\s*=\s*(0(?:\.\d*)?|1(?:\.0*)?))?", re.ASCII
)
_MOST_RANGES = 20  # of a header
_RIGHT_TO_LEFT = "ar arc ckb dv fa he ks lrc mzn nqo pnb ps sd syr ug ur yi"


class PageTexts(FrozenModel):
    """The texts of the page in one language. One that is missing is in English."""

    question: Text = "Stop these messages?"
    topic: Text = "You will get no more messages about {topic} from this sender."
    account: Text = (
        "You will get no more messages from this sender, except ones that you need, such as receipts."
    )
    button: Text = "Stop these messages"
    account_offer: Text = (
        "You can also stop all messages from this sender, except ones that you need, such as receipts."
    )
    account_button: Text = "Stop all messages"
    done: Text = "Done."
    on_its_way: Text = "A message that is already on its way may still arrive."
    failed: Text = "That did not work."
    open_again: Text = "Open the link from your message again, and press the button."
    try_later: Text = "Something on our side does not work at the moment. Try again in a minute."
    wrong_link: Text = "This link does not work."
    copy_link: Text = "Copy the whole link from your message, and try again."
    topics: Mapping[str, Text] = {}

    @field_validator("*")
    @classmethod
    def _has_no_other_placeholder(cls, value: object, info: ValidationInfo) -> object:
        allowed = _TOPIC if info.field_name == "topic" else ""
        if isinstance(value, str) and "{" in value.replace(allowed, ""):
            raise problem("{ in a text", f"it only for {_TOPIC}, and that only in the text topic")
        return value

    def effect(self, scope: str) -> str:
        """Return the sentence on what an opt-out of a scope stops."""
        topic = scope.partition(":")[2]
        name = self.topics.get(topic, topic.replace("_", " ").replace("-", " "))
        return self.topic.replace(_TOPIC, name) if topic else self.account


def _mapping(tree: object) -> object:
    if not isinstance(tree, dict):
        raise problem(describe(tree), f"texts by language. {_VARIABLE}_FILE names a file with them")
    return tree


def _language(tag: str) -> str:
    if not _TAG.fullmatch(tag):
        raise problem(describe(tag), "a language as browsers name it, such as de or pt-BR")
    return tag


def _by_lower_case(texts: dict[str, PageTexts]) -> dict[str, PageTexts]:
    found = {tag.lower(): each for tag, each in texts.items()}
    if len(found) < len(texts):
        raise problem("a language twice, in upper and in lower case", "it once")
    return found


Texts = Mapping[str, PageTexts]
"""The texts by language, in lower case. English is one of them."""

ENGLISH: Texts = {_ENGLISH: PageTexts()}
_EXPECTED = TypeAdapter(
    Annotated[
        dict[Annotated[str, AfterValidator(_language)], PageTexts],
        BeforeValidator(_mapping),
        AfterValidator(_by_lower_case),
    ]
)


def page_texts(settings: Settings) -> Texts:
    """Return the texts of a deployment. Raise one SettingsError with a line for each mistake."""
    if settings.opt_out_texts is None:
        return ENGLISH
    place = os.environ.get(f"{_VARIABLE}_FILE") or _VARIABLE
    given: dict[str, PageTexts] = read_setting(settings.opt_out_texts, _EXPECTED, place)
    return {**ENGLISH, **given}


def choose_language(accepted: str, offered: Collection[str]) -> str:
    """Return the offered language that fits a header Accept-Language best; English if none fits.

    A language falls back to the one without its region, and then to another region of it (RFC 4647, section 3.4).
    """
    found = [_RANGE.fullmatch(part.strip()) for part in accepted.lower().split(",")[:_MOST_RANGES]]
    wanted = {each[1]: float(each[2] or 1) for each in found if each}
    for wish in sorted(filter(wanted.get, wanted), key=wanted.__getitem__, reverse=True):
        parts = wish.split("-")
        for size in range(len(parts), 0, -1):
            start = "-".join([*parts[:size], ""])
            fitting = [each for each in offered if f"{each}-".startswith(start) and wanted.get(each, 1)]
            if fitting:
                return min(fitting, key=len)
    return _ENGLISH


def direction(language: str) -> str:
    """Return the direction of a language's script, as HTML names it."""
    first, *others = language.split("-")
    return "rtl" if first in _RIGHT_TO_LEFT.split() or "arab" in others else "ltr"
