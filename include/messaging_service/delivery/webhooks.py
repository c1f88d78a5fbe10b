"""Webhook messages (section 2.7). They are really called, but on this machine only unless configured otherwise.

An answer of 200 to 299 means delivered. There is only one attempt: the document does not show whether there are more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import aiohttp
from sqlalchemy import Connection, Row, insert, select, update
from yarl import URL

from messaging_service.campaigns.rendering import RenderedMessage
from messaging_service.campaigns.spellings import FORM, JSON, RAW
from messaging_service.clock import ServiceClock
from messaging_service.delivery.leases import Leases
from messaging_service.delivery.loopback import USER_AGENT, NotOnThisMachineError, refuse_number_elsewhere
from messaging_service.delivery.outcomes import post_back_row
from messaging_service.delivery.resolver import resolver
from messaging_service.store import Store
from messaging_service.tables import devices, post_backs, runs, sends, webhook_calls

NOT_CALLED = (
    "not called: the address is on another machine; to allow that, start serve with --webhooks-anywhere"
)
_CONTENT_TYPES = {RAW: "text/plain", FORM: "application/x-www-form-urlencoded", JSON: "application/json"}
# A message that could set its own Content-Length could smuggle a second request behind the first.
_OWN_HEADERS = frozenset(
    {"user-agent", "host", "content-length", "transfer-encoding", "connection", "upgrade"}
)
_AT_ONCE = 32
_IDLE_PAUSE = 0.2
_TIMEOUT = 10.0

Call = Row[tuple[Any, ...]]


def call_row(run_id: int, send_id: int, message: RenderedMessage, at: float) -> dict[str, Any]:
    """Return the row of a webhook call that is due at ``at``."""
    request = request_of(message.webhook or {})
    return {"run_id": run_id, "send_id": send_id, "request": request, "state": "due", "due_at": at}


def request_of(webhook: Any) -> dict[str, Any]:
    """Return the method, URL, headers and body of a webhook: POST if it has a body, else GET.

    The webhook cannot set headers that identify the caller, its origin, or the end of the body.
    """
    kind = webhook.get("request_body_type")
    body = webhook.get("request_body_data", {}).get(kind) if kind else None
    headers = {"Content-Type": _CONTENT_TYPES[kind]} if kind else {}
    for line in (webhook.get("request_headers") or "").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name and not _is_kept_back(name.lower()):
            headers = {other: text for other, text in headers.items() if other.lower() != name.lower()}
            headers[name] = value
    headers["User-Agent"] = USER_AGENT
    query = urlencode([(pair["key"], pair["value"]) for pair in webhook.get("get_params", ())])
    url = webhook["url"].partition("#")[0]  # a fragment is not sent
    url += ("&" if "?" in url else "?") + query if query else ""
    return {"method": "GET" if kind is None else "POST", "url": url, "headers": headers, "body": body}


def _is_kept_back(header: str) -> bool:
    return header in _OWN_HEADERS or header.startswith("sec-")


class WebhookCaller:
    """Takes due calls from the store, makes them, and stores the answers."""

    def __init__(self, store: Store, leases: Leases, clock: ServiceClock, anywhere: bool = False) -> None:
        self._store = store
        self._leases = leases
        self._clock = clock
        self._anywhere = anywhere

    async def run(self, stop: asyncio.Event) -> None:
        """Make calls until ``stop`` is set; finish the calls in progress first."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=_AT_ONCE, resolver=resolver(self._anywhere), use_dns_cache=False
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT),
            skip_auto_headers=("Accept-Encoding",),
            auto_decompress=False,  # the body of an answer is not read: only its status matters
        ) as session:
            while not stop.is_set():
                calls = await asyncio.to_thread(self._take)
                answers = await asyncio.gather(*(self._call(session, call.request) for call in calls))
                if calls:
                    await asyncio.to_thread(self._note, calls, answers)
                else:
                    await asyncio.sleep(_IDLE_PAUSE)

    def _take(self) -> Sequence[Call]:
        now = self._clock.time()
        if not self._leases.is_due(webhook_calls, now):
            return ()
        with self._store.write() as connection:
            return self._leases.take_due(connection, webhook_calls, now, _AT_ONCE)[1]

    async def _call(self, session: aiohttp.ClientSession, request: dict[str, Any]) -> tuple[bool, str]:
        try:
            url = URL(request["url"])
            if not self._anywhere:
                refuse_number_elsewhere(url)
            async with session.request(
                request["method"],
                url,
                data=None if request["body"] is None else request["body"].encode(),
                headers=request["headers"],
                allow_redirects=False,
            ) as response:
                return 200 <= response.status < 300, f"HTTP {response.status}"
        except TimeoutError:
            return False, "no answer in time"
        except NotOnThisMachineError:
            return False, NOT_CALLED
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, NotOnThisMachineError)
            return False, NOT_CALLED if refused else type(error).__name__
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return False, type(error).__name__

    def _note(self, calls: Sequence[Call], answers: Sequence[tuple[bool, str]]) -> None:
        with self._store.write() as connection:
            for call, (accepted, answer) in zip(calls, answers, strict=True):
                mine = (webhook_calls.c.id == call.id, webhook_calls.c.claimed_by == self._leases.name)
                done = update(webhook_calls).where(*mine).values(state="done", answer=answer)
                if connection.execute(done).rowcount == 1:
                    _note_send(connection, call, accepted, answer, self._clock.moment_of(call.due_at))


def _note_send(connection: Connection, call: Call, accepted: bool, answer: str, now: float) -> None:
    this = update(sends).where(sends.c.id == call.send_id)
    connection.execute(this.values(delivered_at=now) if accepted else this.values(error=answer))
    run = connection.execute(select(runs).where(runs.c.id == call.run_id)).one()
    if not accepted or not run.webhook_delivery:
        return
    device_id = select(sends.c.device_id).where(sends.c.id == call.send_id).scalar_subquery()
    device = connection.execute(select(devices).where(devices.c.device_id == device_id)).one()
    connection.execute(insert(post_backs).values(post_back_row(run, device, call.send_id, "delivery", now)))
