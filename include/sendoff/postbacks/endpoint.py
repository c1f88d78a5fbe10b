"""The endpoint that the service sends post-backs to: the checks of a request, and the responses.

The document does not say how often a post-back is sent again (service.md, section 6). So the endpoint never answers 2xx
for a post-back that is not stored, and never refuses one with an address that we signed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from granian.rsgi import HTTPProtocol, Scope

from sendoff.postbacks.group_commit import GroupCommit
from sendoff.postbacks.reading import BodyError, BodyReader
from sendoff.service import PostBack, PostBackSigner
from sendoff.telemetry import metrics


@dataclass(frozen=True, slots=True)
class PostBackEndpoint:
    """Serves post-backs: 200 once one is stored, whatever its body; 404 if we did not sign the address.

    A wrong method gets 405. A body that breaks off or comes in too many pieces gets 400, a slow one 408, and a large
    one 413. A 503 with Retry-After means that the post-back was not stored and may be sent again.
    """

    commit: GroupCommit
    signer: PostBackSigner
    bodies: BodyReader
    max_body: int
    clock: Callable[[], datetime]

    async def __call__(self, scope: Scope, proto: HTTPProtocol) -> None:
        """Serve one HTTP request."""
        status = await self._status(scope, proto)
        if status != 200:
            metrics.refused_post_back(status)
        proto.response_empty(status, _HEADERS[status])

    async def _status(self, scope: Scope, proto: HTTPProtocol) -> int:
        counts = self.commit.counts
        if scope.method != "POST":
            counts.wrong_method += 1
            return 405
        address = self.signer.read(scope.path)
        if address is None:
            counts.wrong_address += 1
            return 404
        try:
            body = await self.bodies.read(scope, proto, self.max_body)
        except BodyError as error:
            setattr(counts, error.count, getattr(counts, error.count) + 1)
            return error.status
        return await self._store(PostBack.received(*address, self.clock(), body))

    async def _store(self, post_back: PostBack) -> int:
        waiting = self.commit.submit(post_back)
        if waiting is None or not await waiting:
            self.commit.counts.unavailable += 1
            return 503
        if post_back.fields is None:
            self.commit.counts.unreadable += 1
        return 200


_CLOSE = ("connection", "close")  # the rest of a body is not read
_HEADERS = {
    200: [],  # not 204, because a sender that knows only 200 would repeat forever
    400: [_CLOSE],
    404: [_CLOSE],
    405: [("allow", "POST"), _CLOSE],
    408: [_CLOSE],
    413: [_CLOSE],
    503: [("retry-after", "5")],
}
