"""The client: it makes one request for one dispatch and reports an outcome that is never a guess.

.. code-block:: text

    2xx that says success ........................................ Accepted
    2xx that says no, 400 403 404 405 410 413 422, 301 307 308 .... Refused
    401 twice, 429, no token, no connection ....................... NotProcessed
    everything else ............................................... InDoubt
"""

from __future__ import annotations

from dataclasses import replace
from http.cookiejar import DefaultCookiePolicy
from time import monotonic

import requests

from sendoff.errors import (
    PermanentError,
    RateLimitedError,
    RefusedError,
    RetryableError,
    SendoffError,
    ServiceUnavailableError,
    SettingsError,
)
from sendoff.service.tokens import TokenSource
from sendoff.service.transport import (
    Answer,
    Bearer,
    Clock,
    Exchange,
    NotSent,
    Timeout,
    Transport,
    redacted,
    shortened,
    unescaped,
)
from sendoff.service.wire import (
    CREATE_PATH,
    EXECUTE_PATH,
    LIST_PATH,
    Reply,
    Unreadable,
    read_campaigns,
    read_reply,
)
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused
from sendoff.telemetry import metrics
from sendoff.times import utc_now

REQUEST_TIMEOUT = Timeout()
"""After its deadline, a request is in doubt. Two requests and two tokens together take less than a lease."""

_REFUSALS = frozenset({400, 403, 404, 405, 410, 413, 422, 301, 307, 308})
_JSON = {"Content-Type": "application/json"}


class Client:
    """Sends requests to the External API with the tokens of one connection. Threads may share it.

    The client makes the session ignore cookies, so that no request depends on the one before. ``allow_http`` allows an
    ``http://`` base URL on another machine. ``place``: where a person corrects the login, such as ``connection
    sendoff_default``. Raise SettingsError if the base URL is not allowed, or if the session retries requests by itself.
    """

    def __init__(  # noqa: PLR0913 - most have a real default
        self,
        base_url: str,
        session: requests.Session,
        tokens: TokenSource,
        *,
        timeout: Timeout = REQUEST_TIMEOUT,
        clock: Clock = utc_now,
        allow_http: bool = False,
        place: str = "",
    ) -> None:
        self._tokens = tokens
        self._place = place
        self._transport = Transport(base_url, session, timeout, clock, allow_http)
        # Reading a cookie jar while another thread writes to it can fail, and such a request would be in doubt.
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        retries = getattr(session.get_adapter(self._transport.base_url), "max_retries", None)
        if retries is not None and retries.total != 0:
            raise SettingsError(
                "the HTTP session retries requests by itself; mount an adapter with max_retries=0"
            )

    def create_campaign(self, body: bytes) -> Outcome:
        """Create a campaign (section 4.2) from the body of :func:`sendoff.service.wire.create_body`."""
        return self._outcome(CREATE_PATH, body)

    def execute_campaign(self, body: bytes) -> Outcome:
        """Execute a template (section 4.3) with the body of :func:`sendoff.service.wire.execute_body`.

        The outcome has no campaign ID. The document does not show the reply, so its ID may be that of this sending,
        which post-backs do not name as their campaign.
        """
        outcome = self._outcome(EXECUTE_PATH, body)
        return replace(outcome, campaign_id=None) if isinstance(outcome, Accepted) else outcome

    def list_campaigns(self, body: bytes) -> list[tuple[int, str]]:
        """Return a page of the service's campaigns as IDs and titles (:func:`sendoff.service.wire.list_body`).

        Reading is safe to repeat. Raise RetryableError without a clear answer, and RefusedError if the service refuses.
        """
        exchange = self._post(LIST_PATH, body)
        if not isinstance(exchange, Answer):
            raise RetryableError(exchange.reason)
        if exchange.status in _REFUSALS or exchange.status == requests.codes.unauthorized:
            raise RefusedError(f"the service does not list its campaigns (HTTP {exchange.status})")
        try:
            if exchange.status == requests.codes.ok:
                return read_campaigns(exchange.content or b"")
        except Unreadable as error:
            raise RefusedError(f"the list of campaigns cannot be read: {error}") from None
        raise RetryableError(f"the campaigns were not listed (HTTP {exchange.status})")

    def _outcome(self, path: str, body: bytes) -> Outcome:
        """Return the outcome of a request. If a person must correct the login, it names the place."""
        outcome = self._outcome_of(path, body)
        if self._place and isinstance(outcome, NotProcessed) and outcome.is_permanent:
            return replace(outcome, reason=f"{self._place}: {outcome.reason}")
        return outcome

    def log_in(self) -> tuple[str, ...]:
        """Request a token, unless there is one, and return a warning for each part of the login that expires soon.

        Raise the errors of :class:`TokenSource`.
        """
        self._tokens.token()
        return self._tokens.warnings()

    def _outcome_of(self, path: str, body: bytes) -> Outcome:
        try:
            return outcome_of(self._post(path, body))
        except RateLimitedError as error:
            return NotProcessed(str(error), retry_after=error.retry_after, is_rate_limited=True)
        except ServiceUnavailableError as error:
            return NotProcessed(str(error), retry_after=error.retry_after, is_unavailable=True)
        except SendoffError as error:
            return NotProcessed(str(error), is_permanent=isinstance(error, PermanentError))

    def _post(self, path: str, body: bytes) -> Exchange:
        """Post with a token. After a 401, which comes before any processing, post once more with a new one (5.3)."""
        token = self._tokens.token()
        exchange = self._post_with(token, path, body)
        if _refuses_token(exchange):
            return self._post_with(self._tokens.renew(token), path, body)
        return exchange

    def _post_with(self, token: str, path: str, body: bytes) -> Exchange:
        start = monotonic()
        exchange = self._transport.post(path, body, Bearer(token), _JSON)
        status = exchange.status if isinstance(exchange, Answer) else None
        metrics.request_seconds(path, monotonic() - start, status)
        return exchange


def _refuses_token(exchange: Exchange) -> bool:
    """Return whether the status of an answer is 401, or within 2xx, the code of its reply."""
    if not isinstance(exchange, Answer):
        return False
    reply = _reply(exchange) if 200 <= exchange.status < 300 else None
    status = exchange.status if reply is None or reply.success else reply.code
    return bool(status == requests.codes.unauthorized)


def outcome_of(exchange: Exchange) -> Outcome:
    """Return the outcome of a request from its status and, within 2xx, its reply; never from a message's text."""
    if isinstance(exchange, NotSent):
        return NotProcessed(exchange.reason)
    if not isinstance(exchange, Answer):
        return InDoubt(exchange.reason)
    if 200 <= exchange.status < 300:
        return _judged_by_reply(exchange)
    return _judged_by_status(exchange.status, exchange)


def _judged_by_reply(answer: Answer) -> Outcome:
    reply = _reply(answer)
    if reply is None:
        what = "a web page" if answer.is_html else "an answer that cannot be read"
        return InDoubt(f"HTTP {answer.status} with {what}")
    if reply.success:
        return Accepted(answer.status, reply.campaign_id)
    if reply.code < 400:
        return Refused(answer.status, _redacted(reply) or f"HTTP {answer.status} without success")
    return _judged_by_status(reply.code, answer)


def _judged_by_status(status: int, answer: Answer) -> Outcome:
    if status == requests.codes.too_many_requests:
        return NotProcessed(
            "the service limits the rate of requests (429)",
            retry_after=answer.retry_after,
            is_rate_limited=True,
        )
    if status == requests.codes.unauthorized:
        why = message_of(answer) or "check the app token and the client ID"
        return NotProcessed(
            f"the service refused the token, and a new one too (401): {why}", is_permanent=True
        )
    if status not in _REFUSALS:
        return InDoubt(f"HTTP {status}")
    if answer.location:
        return Refused(status, f"the service has moved to {answer.location}; correct the base URL")
    what = " with a web page" if answer.is_html else ""
    reply = _reply(answer)
    return Refused(status, (_redacted(reply) if reply else "") or f"HTTP {status}{what}")


def message_of(answer: Answer) -> str:
    """Return the service's message in an answer, redacted; empty if the answer cannot be read."""
    reply = _reply(answer)
    return shortened(_redacted(reply)) if reply else ""


def _reply(answer: Answer) -> Reply | None:
    try:
        return read_reply(answer.status, answer.content or b"")
    except Unreadable:
        return None


def _redacted(reply: Reply) -> str:
    return redacted(unescaped("; ".join(filter(None, (reply.message, *reply.errors)))))
