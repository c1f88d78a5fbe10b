"""Run the commands of pages in forks of one process, because importing them takes longer than most of them.

``python forks.py NUMBER`` imports the commands and serves on an open socket with this file number. As a client,
``python -I -S forks.py ADDRESS NAME ARGUMENTS...`` passes on its arguments, its folder, its environment and its open
files, and exits like the command.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from contextlib import suppress

_LENGTH = 4  # bytes


def ask(address: str, command: list[str]) -> int:
    """Send a command to the server, and return its exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        folder = os.getcwd()  # noqa: PTH109 (importing pathlib takes as long as everything else here)
        asked = json.dumps([command, folder, dict(os.environ)]).encode()
        socket.send_fds(server, [len(asked).to_bytes(_LENGTH, "big")], [0, 1, 2])
        server.sendall(asked)
        return int(server.recv(_LENGTH))


def serve(listener: socket.socket) -> int:
    """Run commands until standard input ends. In a fork, return the exit code of its command."""
    from messaging_service.cli.main import main as service
    from sendoff.cli import commands  # noqa: F401 - forks have the commands then
    from sendoff.cli import main as sendoff

    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # forks that have ended
                pass
        if listener not in ready:
            return 0
        client, _ = listener.accept()
        if not os.fork():
            break
        client.close()
    head, files, _, _ = socket.recv_fds(client, _LENGTH, 3)
    with client.makefile("rb") as stream:
        (name, *arguments), folder, environment = json.loads(stream.read(int.from_bytes(head, "big")))
    if command := os.fork():
        _, status = os.waitpid(command, 0)
        client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    for place in (client, listener):
        place.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [name, *arguments]
    (sendoff if name == "sendoff" else service)()
    return 0


if __name__ == "__main__":
    place, *command = sys.argv[1:]
    sys.exit(ask(place, command) if command else serve(socket.socket(fileno=int(place))))
