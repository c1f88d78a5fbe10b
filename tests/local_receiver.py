"""A receiver in threads of this process, which starts at once; tests/acceptance tests the real `sendoff receiver`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from granian.constants import HTTPModes
from granian.server.embed import Server

from sendoff.ledger import Ledger
from sendoff.postbacks.opt_out_texts import ENGLISH, Texts
from sendoff.postbacks.receiver import ReceiverApp, create_app
from sendoff.service import PostBackSigner

from .ports import reserved_port
from .waiting import PATIENCE, answers, until


@contextmanager
def local_receiver(ledger_url: str, secret: str, texts: Texts = ENGLISH) -> Iterator[str]:
    """Run a receiver on a free port, and yield its public address."""
    with reserved_port() as port, closing(Ledger(ledger_url)) as ledger:
        address = f"http://127.0.0.1:{port}"
        app = create_app(ledger, PostBackSigner(address, [secret]), texts=texts)
        told_to_stop = threading.Event()
        thread = threading.Thread(target=asyncio.run, args=[_serve(app, port, told_to_stop)], daemon=True)
        thread.start()
        try:
            until(lambda: not thread.is_alive() or answers(f"{address}/readyz"))
            assert thread.is_alive(), "the receiver ended"
            yield address
        finally:
            told_to_stop.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()


async def _serve(app: ReceiverApp, port: int, told_to_stop: threading.Event) -> None:
    """Serve in a loop that runs already, which Granian's own start and end of an application cannot use.

    The server's configuration of logs would replace that of the tests, so it is empty.
    """
    server = Server(
        app.__call__,
        port=port,
        http=HTTPModes.http1,
        websockets=False,
        log_enabled=False,
        log_dictconfig={"incremental": True, "handlers": {}, "loggers": {}, "root": {}},
    )
    await app.start()
    serving = asyncio.create_task(server.serve())
    await asyncio.to_thread(told_to_stop.wait)
    server.stop()
    await serving
    await app.stop()
