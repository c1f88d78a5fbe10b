"""Other users of the machine cannot read files that identify people: ledger, warehouse, local service, demo."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path

import pytest
import sqlalchemy as sa

from messaging_service.store import Store, without_password
from sendoff.demo.warehouse import export_directory, make_warehouse
from sendoff.demo.workspace import Workspace
from sendoff.ledger import Ledger
from sendoff.ledger.storage.private_files import make_private


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in sorted(folder.iterdir())}


def test_a_folder_in_place_of_a_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_private(Path())
    assert list(tmp_path.iterdir()) == []


def test_a_new_ledger_is_for_its_user_alone_with_all_that_sqlite_keeps_beside_it(tmp_path: Path) -> None:
    with closing(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")) as ledger:
        ledger.migrate()
        with ledger._database.read() as db:
            db.execute(sa.text("SELECT 1 FROM launches"))
            assert modes(tmp_path) == dict.fromkeys(("ledger.db", "ledger.db-shm", "ledger.db-wal"), "0o600")


@pytest.mark.parametrize(("before", "after"), [(0o644, "0o640"), (0o666, "0o660"), (0o660, "0o660")])
def test_migrating_takes_a_ledger_of_before_from_everybody_and_leaves_it_to_its_group(
    tmp_path: Path, before: int, after: str
) -> None:
    file = tmp_path / "ledger.db"
    url = f"sqlite:///{file}"
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
        file.chmod(before)
        for beside in ("ledger.db-wal", "ledger.db-shm"):
            (tmp_path / beside).chmod(before)
        with closing(Ledger(url)) as again:
            again.migrate()
        assert modes(tmp_path) == dict.fromkeys(("ledger.db", "ledger.db-shm", "ledger.db-wal"), after)


def test_the_database_of_the_local_service_is_for_its_user_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'service.db'}"
    with closing(Store(url)) as store, store.read():
        assert set(modes(tmp_path).values()) == {"0o600"}
    (tmp_path / "service.db").chmod(0o644)
    with closing(Store(url)):
        assert modes(tmp_path)["service.db"] == "0o640"


def test_the_local_service_shows_its_database_without_a_password() -> None:
    assert (
        without_password("postgresql://ann:planted@db/service?password=planted")
        == "postgresql://ann:***@db/service"
    )
    assert without_password("sqlite:///service.db") == "sqlite:///service.db"


def test_the_demos_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    with Workspace(tmp_path / "demo") as workspace:
        assert workspace.folder.stat().st_mode & 0o777 == 0o700
        workspace.folder.chmod(0o755)  # as an older demo made it
    with Workspace(tmp_path / "demo") as workspace:
        assert workspace.folder.stat().st_mode & 0o777 == 0o700


def test_the_demos_warehouse_and_directory_are_for_their_user_alone(tmp_path: Path) -> None:
    make_warehouse(tmp_path / "warehouse.db", customers=100, seed=1, today=date(2026, 11, 20))
    export_directory(tmp_path / "warehouse.db", tmp_path / "devices.csv")
    assert modes(tmp_path) == {"devices.csv": "0o600", "warehouse.db": "0o600"}
    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as warehouse:
        assert warehouse.execute("SELECT count(*) > 0 FROM devices").fetchone() == (1,)
