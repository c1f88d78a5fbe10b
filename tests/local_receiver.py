"""A receiver in threads of this process, which starts at once; tests/acceptance tests the real `sendoff receiver`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import uvicorn

from sendoff.ledger import Ledger
from sendoff.postbacks.receiver import create_app
from sendoff.service import PostBackSigner

from .waiting import PATIENCE, answers, until


@contextmanager
def local_receiver(ledger_url: str, secret: str) -> Iterator[str]:
    """Run a receiver on a free port, and yield its public address."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=512) as listener,
        closing(Ledger(ledger_url)) as ledger,
    ):
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = create_app(ledger, PostBackSigner(address, [secret]))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            until(lambda: not thread.is_alive() or answers(f"{address}/readyz"))
            assert thread.is_alive(), "the receiver ended"
            yield address
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()
