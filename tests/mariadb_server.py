"""A MariaDB server for tests, with a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .ports import reserved_port

PROGRAMS = ("mariadbd", "mariadb-install-db")
PASSWORD = "pa55word"


def is_installed() -> bool:
    """Check whether the server can run here."""
    return all(map(shutil.which, PROGRAMS))


@contextmanager
def mariadb_server() -> Iterator[str]:
    """Run a server with a database ``shop``, and yield its URL for the user ``ann``, who may do everything there."""
    import pymysql

    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        data, socket = Path(folder, "data"), Path(folder, "socket")
        common = ["--no-defaults", f"--datadir={data}", "--user=root"]
        install = [
            "mariadb-install-db",
            *common,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        subprocess.run(install, check=True, capture_output=True)
        (first := Path(folder, "first.sql")).write_text(
            "CREATE DATABASE shop;\n"
            f"CREATE USER ann@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
            "GRANT ALL ON shop.* TO ann@'127.0.0.1';\n"
            "GRANT PROCESS ON *.* TO ann@'127.0.0.1';\n"
        )
        command = [
            "mariadbd",
            *common,
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--socket={socket}",
            f"--init-file={first}",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=0",
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                while True:
                    try:
                        pymysql.connect(
                            host="127.0.0.1", port=port, user="ann", password=PASSWORD, database="shop"
                        ).close()
                        break
                    except pymysql.Error:
                        assert server.poll() is None, "MariaDB did not start"
                        time.sleep(0.1)
                yield f"mariadb://ann:{PASSWORD}@127.0.0.1:{port}/shop"
            finally:
                server.kill()
