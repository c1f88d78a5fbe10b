"""Reading the body of a request within limits."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from granian.rsgi import HTTPProtocol, ProtocolClosed, Scope

_MOST_PIECES = 64  # of a chunked body, each costs as much as a third of a request; a proxy sends one or two


class BodyError(Exception):
    """A body that was not read to its end. ``count``: the counter for it; ``status``: the HTTP status that says so."""

    def __init__(self, count: str, status: int = 400) -> None:
        super().__init__()
        self.count = count
        self.status = status


class BodyReader:
    """Reads the bodies of requests. Each may take ``patience`` seconds, if :meth:`give_up` is called every second.

    One check a second for all bodies costs less than a timer for each.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[asyncio.Task[Any], float] = {}  # the longest-waiting request first

    async def read(self, scope: Scope, proto: HTTPProtocol, limit: int) -> bytes:
        """Return the body of a request. Raise BodyError if it is larger than ``limit`` bytes or does not end."""
        headers: Any = scope.headers  # each access copies all headers
        is_chunked = "transfer-encoding" in headers  # which overrides a declared length
        if not is_chunked and int(headers.get("content-length", "0")) > limit:
            raise BodyError("too_large", 413)
        task = asyncio.current_task()
        assert task is not None
        self._since[task] = monotonic()
        try:
            return await (_read_chunks(proto, limit) if is_chunked else proto())
        except asyncio.CancelledError:
            raise BodyError("too_slow", 408) from None
        except ProtocolClosed:
            raise BodyError("broken_off") from None
        finally:
            del self._since[task]

    def give_up(self) -> None:
        """Stop reading bodies that take too long. Call this in the event loop of the requests."""
        latest = monotonic() - self._patience
        for task, since in list(self._since.items()):
            if since > latest:
                break
            task.cancel()


async def _read_chunks(proto: HTTPProtocol, limit: int) -> bytes:
    """Return a chunked body. The server marks its end by one empty piece, and a broken connection by two."""
    body, pieces, has_ended = b"", 0, False
    async for piece in proto:
        if has_ended:
            raise BodyError("broken_off")
        has_ended = not piece
        pieces += not has_ended
        body += piece
        if len(body) > limit:
            raise BodyError("too_large", 413)
        if pieces > _MOST_PIECES:
            raise BodyError("in_pieces")
    return body
