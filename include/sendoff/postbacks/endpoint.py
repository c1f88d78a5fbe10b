"""The endpoint that the service sends post-backs to: what is checked of a request, and how it is answered.

The document does not say how often a post-back is sent again (service.md, section 6). So a 2xx is never
given for what is not stored, and never refused to what came to an address that we signed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from starlette.types import Receive, Scope, Send

from sendoff.postbacks.group_commit import GroupCommit, Limits, utc_now
from sendoff.service import PostBack, PostBackSigner
from sendoff.telemetry import metrics


@dataclass(slots=True)
class ReceiverCounts:
    """Count what did not end in a commit since the process started, and what was stored unread."""

    unreadable: int = 0
    wrong_method: int = 0
    wrong_address: int = 0
    too_large: int = 0
    too_slow: int = 0
    broken_off: int = 0
    in_pieces: int = 0
    unavailable: int = 0


class PostBackEndpoint:
    """Answer one post-back: 200 once it is stored, whatever its body; 404 for an address not signed by us.

    405, 400, 408 and 413 are for a wrong method, and a body that breaks off or comes in very many pieces, is slow or
    is large; 503 with Retry-After says that it was not stored and may be sent again.
    """

    def __init__(
        self,
        commit: GroupCommit,
        signer: PostBackSigner,
        counts: ReceiverCounts,
        limits: Limits,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._commit = commit
        self._signer = signer
        self._counts = counts
        self._limits = limits
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] != "http":
            return
        status = await self._status(scope, receive)
        if status != 200:
            metrics.refused_post_back(status)
        await send(_STARTS[status])
        await send(_END)

    async def _status(self, scope: Scope, receive: Receive) -> int:
        if scope["method"] != "POST":
            self._counts.wrong_method += 1
            return 405
        address = self._signer.read(scope["path"])
        if address is None:
            self._counts.wrong_address += 1
            return 404
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                body = await _body(scope, receive, self._limits.max_body)
        except TimeoutError:
            self._counts.too_slow += 1
            return 408
        except _TooLargeError:
            self._counts.too_large += 1
            return 413
        except _BrokenOffError:
            self._counts.broken_off += 1
            return 400
        except _InPiecesError:
            self._counts.in_pieces += 1
            return 400
        return await self._store(PostBack.received(*address, self._clock(), body))

    async def _store(self, post_back: PostBack) -> int:
        waiting = self._commit.submit(post_back)
        if waiting is None or not await waiting:
            self._counts.unavailable += 1
            return 503
        if post_back.fields is None:
            self._counts.unreadable += 1
        return 200


class _TooLargeError(Exception):
    pass


class _BrokenOffError(Exception):
    pass


class _InPiecesError(Exception):
    pass


async def _body(scope: Scope, receive: Receive, limit: int) -> bytes:
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise _TooLargeError
    body = b""
    for _ in range(_MOST_PIECES + 1):  # the last one may only say that the body is over
        message = await receive()
        if message["type"] != "http.request":
            raise _BrokenOffError
        piece: bytes = message.get("body", b"")
        body += piece
        if len(body) > limit:
            raise _TooLargeError
        if not message.get("more_body", False):
            return body
    raise _InPiecesError


def _start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, object]:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-length", b"0"), *headers],
    }


_MOST_PIECES = (
    64  # each costs as much of a processor as a third of a request; a proxy passes a body on in one or two
)
_END = {"type": "http.response.body", "body": b""}
_CLOSE = (b"connection", b"close")  # what is left of a body is not read
_STARTS = {
    200: _start(200),  # and not 204: a sender that knows only 200 would repeat for ever
    400: _start(400, _CLOSE),
    404: _start(404, _CLOSE),
    405: _start(405, (b"allow", b"POST"), _CLOSE),
    408: _start(408, _CLOSE),
    413: _start(413, _CLOSE),
    503: _start(503, (b"retry-after", b"5")),
}
