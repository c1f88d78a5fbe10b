"""Read an audience from a warehouse, or the error instead."""

from __future__ import annotations

from typing import Any

import pytest

from sendoff.audience.build import Audience, build_audience
from sendoff.errors import AudienceError, QueryError
from sendoff.warehouse import read


def audience(url: str, sql: str, **options: Any) -> Audience:
    with read(url, sql, **options) as batches:
        return build_audience(batches)


def refusal(url: str, sql: str, **options: Any) -> str:
    with pytest.raises((QueryError, AudienceError)) as caught:
        audience(url, sql, **options)
    return str(caught.value)
