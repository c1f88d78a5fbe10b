"""The parameters of requests: the paging of lists, and the bodies that our own script sends with an action.

A body is read only after the user and the origin are checked.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, HTTPException, Query, Request, status
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sendoff.campaign import Channel
from sendoff_airflow.views.web.permissions import MAX_BYTES, own_request

MAX_REQUESTS = 200
"""The most requests in doubt that one action settles."""

MAX_UPLOAD = 20_000_000
"""The largest body of a request with a file, in bytes."""

MAX_PAGES = 10_000

Number = Annotated[int, Query(ge=1, le=MAX_PAGES)]
Name = Annotated[str, Query(max_length=250, pattern=r"^[^\x00-\x1f]*$")]

# Invisible characters, which copied text may have, those that change the direction of writing and can hide text, and
# lone surrogates. Joiners are none of them, because emoji and some scripts need them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def _check_visible(text: str) -> str:
    """Return the text. Raise ValueError if it has characters that a page would not show as they are."""
    if _HIDDEN.search(text):
        raise ValueError("invisible characters")
    return text


_Visible = AfterValidator(_check_visible)
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000), _Visible]
Identifier = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500), _Visible]
_ShownRequest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}:[0-9]{1,6}$")]


@dataclass(frozen=True, slots=True)
class Paged:
    """The position of a page in a list, and the links to the pages before and after it."""

    number: int
    size: int
    total: int
    choices: Mapping[str, str | Sequence[str]]  # of the filter

    @property
    def pages(self) -> int:
        """The number of pages, at least 1."""
        return max(1, -(-self.total // self.size))

    @property
    def offset(self) -> int:
        """The number of items on the pages before."""
        return (self.number - 1) * self.size

    @property
    def first(self) -> int:
        """The number of the first item on this page."""
        return self.offset + 1

    @property
    def last(self) -> int:
        """The number of the last item on this page."""
        return min(self.number * self.size, self.total)

    @property
    def newer(self) -> str | None:
        """The query string of the page before."""
        return self._address(self.number - 1) if self.number > 1 else None

    @property
    def older(self) -> str | None:
        """The query string of the page after."""
        return self._address(self.number + 1) if self.number < self.pages else None

    def _address(self, number: int) -> str:
        return f"?{query_of({**self.choices, 'page': str(number)})}"


def query_of(choices: Mapping[str, str | Sequence[str]]) -> str:
    """Return choices as the query of an address, without the empty ones."""
    return urlencode({name: value for name, value in choices.items() if value}, doseq=True)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class DecisionIn(_Body):
    """A decision about a launch.

    ``since``: the newest decision that the page showed. ``variant``: the variant that the rest of it gets.
    """

    reason: Reason
    since: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    variant: Annotated[str, StringConstraints(max_length=1_000), _Visible] | None = None


class ResolutionIn(_Body):
    """The requests in doubt to settle, each as its dispatch key, a colon, and the number of doubts on the page."""

    reason: Reason
    requests: Annotated[list[_ShownRequest], Field(min_length=1, max_length=MAX_REQUESTS)]


class PauseIn(_Body):
    """A pause of every launch, or of the launches of one ``connection``."""

    reason: Reason
    connection: Annotated[str, StringConstraints(max_length=250), _Visible] = ""


class PersonQuery(_Body):
    """A question about one person. ``offset``: how many launches were already checked."""

    identifier: Identifier
    campaign: Annotated[str, StringConstraints(max_length=250), _Visible] = ""
    offset: Annotated[int, Field(ge=0, le=1_000_000)] = 0


IdentifiedBy = Literal["device_id", "device_token", "device_uuid", "external_id", "user_id"]
_SCOPES = frozenset({"account", "everything", "topic", *(f"channel:{channel}" for channel in Channel)})


def _check_scope(scope: str) -> str:
    if scope not in _SCOPES:
        raise ValueError("no such scope")
    return scope


class SuppressedPersonQuery(_Body):
    """A question about the entries of one recipient."""

    identifier: Identifier
    identified_by: IdentifiedBy


class SuppressionPart(_Body):
    """What the forms of the suppression list share. ``topic``: for the scope ``topic``. ``until``: a date, or empty."""

    identified_by: IdentifiedBy
    scope: Annotated[str, AfterValidator(_check_scope)]
    topic: Annotated[str, StringConstraints(strip_whitespace=True, max_length=64), _Visible] = ""
    until: Annotated[str, StringConstraints(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = ""
    reason: Reason


class SuppressionIn(SuppressionPart):
    """One recipient to suppress, or not any more."""

    identifier: Identifier


class PersonIn(SuppressedPersonQuery):
    """One person whose data is exported."""

    reason: Reason


class ErasureIn(PersonIn):
    """One person to erase. ``again``: the identifier once more, as the confirmation."""

    again: Identifier


class SuppressionFileIn(SuppressionPart):
    """A CSV file of recipients.

    ``checked``: the token of the counts that the page showed. ``confirmed``: whether the user confirmed that much is
    removed.
    """

    csv: str
    how: Literal["add", "remove", "replace"]
    source: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100), _Visible]
    checked: Annotated[str, StringConstraints(max_length=64)] = ""
    confirmed: bool = False


_Kind = TypeVar("_Kind", bound=_Body)


def body_of(kind: type[_Kind], most: int = MAX_BYTES) -> Callable[[Request], Awaitable[_Kind]]:
    """Return a dependency that reads a body of one kind, of at most so many bytes.

    It raises 422 with a sentence if the body is invalid.
    """

    async def read(request: Request, _: None = Depends(own_request(most))) -> _Kind:
        body = await request.body()
        if len(body) > most:
            raise HTTPException(status.HTTP_413_CONTENT_TOO_LARGE, "This request is too large.")
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            places = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
            raise HTTPException(
                status.HTTP_422_UNPROCESSABLE_CONTENT, _sentence_for(places) or "This request cannot be read."
            ) from None

    return read


def _sentence_for(places: set[str]) -> str | None:
    sentences = {
        "reason": "Enter a reason of 1 to 1,000 characters, without invisible characters.",
        "requests": f"Select the requests, {MAX_REQUESTS} at most.",
        "csv": "Choose a CSV file.",
        "source": "Enter a source of 1 to 100 characters, without invisible characters.",
        "until": "Enter the end as a date, such as 2027-01-31.",
        "again": "Enter the identifier again, to confirm that this person is erased.",
        "identifier": "Enter an identifier of at most 500 characters, without invisible characters.",
    }
    return next((sentence for place, sentence in sentences.items() if place in places), None)
