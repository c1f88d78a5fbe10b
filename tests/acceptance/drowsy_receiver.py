"""Run ``sendoff receiver`` on a simulated machine that delays the parent's thread that waits for a worker.

The command line is that of ``sendoff receiver``. Python reaps an ended process in the thread that asks first. Here that
is never the main thread, and the thread that reaped learns of it half a second later.
"""

from __future__ import annotations

import os
import threading
import time

from sendoff import cli

real_waitpid = os.waitpid


def waitpid(process: int, options: int) -> tuple[int, int]:
    if threading.current_thread() is threading.main_thread():
        time.sleep(0.1)
        return real_waitpid(process, options)
    found = real_waitpid(process, options)
    time.sleep(0.5)
    return found


if __name__ == "__main__":
    os.waitpid = waitpid
    cli.main()
