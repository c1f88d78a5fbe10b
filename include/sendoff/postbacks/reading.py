"""Reading the body of a request within limits."""

from __future__ import annotations

from starlette.types import Receive, Scope

_MOST_PIECES = (
    64  # each costs as much CPU time as a third of a request; a proxy passes a body on in one or two
)


class BodyError(Exception):
    """A body that was not read to its end. ``status``: the HTTP status that says so."""

    status = 400


class TooLargeError(BodyError):
    """The body is larger than the limit."""

    status = 413


class BrokenOffError(BodyError):
    """The client went away."""


class InPiecesError(BodyError):
    """The body came in too many pieces."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the body of a request. Raise BodyError if it is larger than ``limit`` bytes or does not end."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise TooLargeError
    body = b""
    for _ in range(_MOST_PIECES + 1):  # the last one may only mark the end of the body
        message = await receive()
        if message["type"] != "http.request":
            raise BrokenOffError
        piece: bytes = message.get("body", b"")
        body += piece
        if len(body) > limit:
            raise TooLargeError
        if not message.get("more_body", False):
            return body
    raise InPiecesError
