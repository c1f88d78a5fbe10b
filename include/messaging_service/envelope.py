"""The common form of all External API answers (code, success, message, errors, model), and a check of all bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DEEPEST = 100
"""Levels that a JSON body may be nested."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A problem with one field of a request."""

    field: str
    message: str


class RejectedError(Exception):
    """A request is answered with an error: an HTTP code, one sentence, and the fields at fault."""

    def __init__(self, code: int, message: str, problems: Sequence[FieldProblem] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """An answer: the HTTP status, which the body repeats as ``code``, and the body."""

    code: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


def accepted(model: Mapping[str, Any]) -> ApiResponse:
    """Return the answer to an accepted request, with the object it created."""
    return ApiResponse(200, {"success": True, "code": 200, "model": dict(model)})


def listed(data: Sequence[Mapping[str, Any]]) -> ApiResponse:
    """Return an answer with the requested objects."""
    return ApiResponse(200, {"success": True, "code": 200, "data": [dict(item) for item in data]})


def rejected(error: RejectedError) -> ApiResponse:
    """Return the answer to a rejected request, with the reason."""
    body: dict[str, Any] = {"success": False, "code": error.code, "message": error.message}
    if error.problems:
        body["errors"] = [{"field": item.field, "message": item.message} for item in error.problems]
    return ApiResponse(error.code, body)


def not_storable(body: Any) -> str | None:
    """Return why a JSON value cannot be stored, or None: it is nested too deep, or contains the character NUL."""
    level = [body]
    for _ in range(DEEPEST + 1):
        if any(isinstance(value, str) and "\0" in value for value in level):
            return "contains the character NUL, which cannot be stored"
        level = [
            member
            for value in level
            if isinstance(value, dict | list)
            for member in ((*value, *value.values()) if isinstance(value, dict) else value)
        ]
        if not level:
            return None
    return f"is nested deeper than {DEEPEST} levels"
