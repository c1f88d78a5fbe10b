"""What a worker process of the receiver does before it serves."""

import subprocess
import sys

import pytest

WORKER = """
import gc
from sendoff.postbacks import server
from sendoff.settings import Settings

server._worker_main(lambda _: print(gc.get_freeze_count()), Settings())
print(gc.get_freeze_count())
"""


@pytest.mark.proof
def test_garbage_collections_leave_out_what_was_there_before_the_first_request() -> None:
    """They would otherwise take a quarter of the processor time of the event loop."""
    ended = subprocess.run([sys.executable, "-c", WORKER], check=True, capture_output=True, text=True)
    before, after = map(int, ended.stdout.split())
    assert before == 0
    assert after > 10_000
