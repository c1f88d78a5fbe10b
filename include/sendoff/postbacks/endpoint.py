"""The endpoint that the service sends post-backs to: the checks of a request, and the responses.

The document does not say how often a post-back is sent again (service.md, section 6). So the endpoint never answers 2xx
for a post-back that is not stored, and never refuses one with an address that we signed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from starlette.types import Receive, Scope, Send

from sendoff.postbacks.group_commit import GroupCommit, Limits, utc_now
from sendoff.postbacks.reading import BrokenOffError, InPiecesError, TooLargeError, read_body
from sendoff.service import PostBack, PostBackSigner
from sendoff.telemetry import metrics


@dataclass(slots=True)
class ReceiverCounts:
    """Counts since the process started: requests that ended without a commit, and unreadable post-backs."""

    unreadable: int = 0
    wrong_method: int = 0
    wrong_address: int = 0
    too_large: int = 0
    too_slow: int = 0
    broken_off: int = 0
    in_pieces: int = 0
    unavailable: int = 0


class PostBackEndpoint:
    """Serves post-backs: 200 once one is stored, whatever its body; 404 if we did not sign the address.

    A wrong method gets 405. A body that breaks off or comes in too many pieces gets 400, a slow one 408, and a large
    one 413. A 503 with Retry-After means that the post-back was not stored and may be sent again.
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
                body = await read_body(scope, receive, self._limits.max_body)
        except TimeoutError:
            self._counts.too_slow += 1
            return 408
        except TooLargeError:
            self._counts.too_large += 1
            return 413
        except BrokenOffError:
            self._counts.broken_off += 1
            return 400
        except InPiecesError:
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


def _start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, object]:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-length", b"0"), *headers],
    }


_END = {"type": "http.response.body", "body": b""}
_CLOSE = (b"connection", b"close")  # the rest of a body is not read
_STARTS = {
    200: _start(200),  # not 204, because a sender that knows only 200 would repeat forever
    400: _start(400, _CLOSE),
    404: _start(404, _CLOSE),
    405: _start(405, (b"allow", b"POST"), _CLOSE),
    408: _start(408, _CLOSE),
    413: _start(413, _CLOSE),
    503: _start(503, (b"retry-after", b"5")),
}
