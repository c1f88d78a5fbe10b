"""What our own script sends with an action: read after it is known who asks, and whence."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Depends, HTTPException, Request, status
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sendoff_airflow.views.permissions import MOST_BYTES, check_own_request

MOST_REQUESTS = 200
"""Requests that are settled by one action."""

# What no page shows, what turns the direction of writing and so hides what a text says, and halves of characters.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def _shown(text: str) -> str:
    """Give a text back; ValueError for one that would be kept and not be seen as it is."""
    if _HIDDEN.search(text):
        raise ValueError("characters that are not shown")
    return text


_IsShown = AfterValidator(_shown)
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000), _IsShown]
_Seen = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}:[0-9]{1,6}$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class Deciding(_Body):
    """A decision about a launch; ``since``: the newest decision that the page showed."""

    reason: Reason
    since: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class Settling(_Body):
    """What becomes of requests in doubt: each as its dispatch key, a colon, and how many of its attempts were in doubt
    where the page showed it.
    """

    reason: Reason
    requests: Annotated[list[_Seen], Field(min_length=1, max_length=MOST_REQUESTS)]


class Braking(_Body):
    """A brake; ``connection`` empty: of every launch."""

    reason: Reason
    connection: Annotated[str, StringConstraints(max_length=250), _IsShown] = ""


class Asking(_Body):
    """A question for what became of one person; ``offset``: how many launches were looked at before."""

    identifier: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500), _IsShown
    ]
    campaign: Annotated[str, StringConstraints(max_length=250), _IsShown] = ""
    offset: Annotated[int, Field(ge=0, le=1_000_000)] = 0


_Kind = TypeVar("_Kind", bound=_Body)


def said(kind: type[_Kind]) -> Callable[[Request], Awaitable[_Kind]]:
    """Give what reads a body of one kind; a sentence on what is wrong with it, and 422, where it is not of it."""

    async def read(request: Request, _: Annotated[None, Depends(check_own_request)]) -> _Kind:
        body = await request.body()
        if len(body) > MOST_BYTES:
            raise HTTPException(status.HTTP_413_CONTENT_TOO_LARGE, "This request is too large.")
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            places = {str(each["loc"][0]) for each in error.errors() if each["loc"]}
            raise HTTPException(
                status.HTTP_422_UNPROCESSABLE_CONTENT, _wrong(places) or "This request cannot be read."
            ) from None

    return read  # type: ignore[return-value]  # FastAPI gives the second argument


def _wrong(places: set[str]) -> str | None:
    sentences = {
        "reason": "Say why, in 1 to 1,000 characters, all of which are seen: the ledger keeps it.",
        "requests": f"Choose the requests, {MOST_REQUESTS} at most.",
        "identifier": "Give an identifier, of 500 characters at most, all of which are seen.",
    }
    return next((sentence for place, sentence in sentences.items() if place in places), None)
