"""Lists a page at a time: what an address may ask for, and where a page of a list stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query

MOST_PAGES = 10_000

Number = Annotated[int, Query(ge=1, le=MOST_PAGES)]
Name = Annotated[str, Query(max_length=250, pattern=r"^[^\x00-\x1f]*$")]


@dataclass(frozen=True, slots=True)
class Paged:
    """Where one page of a list stands, and the addresses of those before and behind it."""

    number: int
    size: int
    total: int
    choices: Mapping[str, str]  # of the filter

    @property
    def pages(self) -> int:
        """How many pages there are; 1 where there is nothing."""
        return max(1, -(-self.total // self.size))

    @property
    def offset(self) -> int:
        """How many are on the pages before."""
        return (self.number - 1) * self.size

    @property
    def first(self) -> int:
        """The number of the first that is shown."""
        return self.offset + 1

    @property
    def last(self) -> int:
        """The number of the last that is shown."""
        return min(self.number * self.size, self.total)

    @property
    def newer(self) -> str | None:
        """The query of the page before."""
        return self._address(self.number - 1) if self.number > 1 else None

    @property
    def older(self) -> str | None:
        """The query of the page behind."""
        return self._address(self.number + 1) if self.number < self.pages else None

    def _address(self, number: int) -> str:
        return f"?{urlencode({**{name: value for name, value in self.choices.items() if value}, 'page': number})}"
