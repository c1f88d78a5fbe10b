"""The commands that erase and export one person."""

from __future__ import annotations

import json
import os
import resource
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from sendoff.audience.identifiers import integers
from sendoff.cli.commands import app
from sendoff.errors import AudienceError, SettingsError
from sendoff.ledger import Ledger
from sendoff.ledger.storage.schema import decisions
from sendoff.postbacks import reconcile_launch

from ...factories import KEY, NOW, make_launch

SECRET = {"SENDOFF_ERASURE_SECRET": "a secret of the tests that is long enough"}


@pytest.fixture
def url(migrated_url: str) -> str:
    with closing(Ledger(migrated_url)) as ledger:
        make_launch(ledger, [1, 2, 3, 4])
        reconcile_launch(ledger, KEY, now=NOW)
    return migrated_url


def run(*words: str) -> str:
    found = CliRunner().invoke(app, list(words), env={**os.environ, **SECRET}, catch_exceptions=True)
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.output


def test_people_are_erased_by_arguments_and_by_a_file(url: str, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("3\n\n 4 \n")
    more = ("--file", str(tmp_path / "more.txt"))
    out = run("forget", "2", *more, "--reason", "a letter", "--who", "anna", "--reclaim", "--ledger", url)
    assert "erased: 3 identifiers; 1 report made again" in out
    warning = "post-backs that arrive meanwhile may be lost. Run it when nothing was sent for days."
    assert out.index(warning) < out.index("done: VACUUM")
    with closing(Ledger(url)) as ledger:
        assert list(ledger.launches.audience(KEY)) == [1]
        assert ledger.verdicts.figures(KEY).erased == 3
    out = run("forget", "--continue", "--ledger", url)
    assert "sendoff forget --reclaim" in out
    assert warning in out


def test_a_line_of_the_file_ends_only_at_a_line_break(url: str, tmp_path: Path) -> None:
    odd = ["a\u2028b", "c\x85d", "e\x0cf"]
    (tmp_path / "people.txt").write_text("\r\n".join(odd), encoding="utf-8", newline="")
    words = ("--file", str(tmp_path / "people.txt"), "--identified-by", "user_id", "--reason", "letters")
    assert "erased: 3 identifiers" in run("forget", *words, "--ledger", url)
    with closing(Ledger(url, erasure_secret=SECRET["SENDOFF_ERASURE_SECRET"])) as ledger:
        assert ledger.erasures.among("user_id", odd) == set(odd)


def test_identifiers_that_no_one_knows_are_counted_and_remembered(url: str, tmp_path: Path) -> None:
    (tmp_path / "people.txt").write_text("2\n4711\n4712\n")
    words = ("--file", str(tmp_path / "people.txt"), "--reason", "letters", "--ledger", url)
    out = run("forget", *words)
    assert "erased: 3 identifiers; 1 report made again" in out
    assert "The ledger did not have 2 of them, or they were erased before. Their hashes are stored" in out
    assert "471" not in out
    with closing(Ledger(url, erasure_secret=SECRET["SENDOFF_ERASURE_SECRET"])) as ledger:
        assert list(ledger.erasures.in_set("device_id", integers([2, 3, 4711, 4712]))) == [2, 4711, 4712]
    assert "did not have 3 of them" in run("forget", *words)
    assert "did not have" not in run("forget", "3", "--reason", "a letter", "--ledger", url)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "Give identifiers"),
        (("2", "--continue"), "Give identifiers"),
        (("2",), "Give a reason"),
        (("2", "--reason", " "), "Give a reason"),
    ],
)
def test_a_wrong_call_erases_no_one(url: str, words: tuple[str, ...], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        run("forget", *words, "--ledger", url)
    with closing(Ledger(url)) as ledger:
        assert len(ledger.launches.audience(KEY)) == 4


def test_a_file_that_is_not_utf_8_erases_no_one(url: str, tmp_path: Path) -> None:
    file = tmp_path / "people.txt"
    file.write_bytes("2\nmüller\n".encode("latin-1"))
    with pytest.raises(SettingsError, match="not UTF-8"):
        run("forget", "--file", str(file), "--reason", "a letter", "--ledger", url)
    with closing(Ledger(url)) as ledger:
        assert len(ledger.launches.audience(KEY)) == 4


def test_leading_zeros_of_a_device_id_do_not_matter(url: str, tmp_path: Path) -> None:
    file = tmp_path / "person.json"
    assert "1 launch, " in run("export-person", "002", "-o", str(file), "--ledger", url)
    assert json.loads(file.read_text())["identifier"] == "2"
    assert "erased: 1 identifier;" in run("forget", "002", "--reason", "a letter", "--ledger", url)
    with closing(Ledger(url)) as ledger:
        assert list(ledger.launches.audience(KEY)) == [1, 3, 4]


def test_a_text_that_is_no_device_id_is_an_error_that_does_not_quote_it(url: str, tmp_path: Path) -> None:
    file = tmp_path / "person.json"
    for words in (("export-person", "abc", "-o", str(file)), ("forget", "abc", "--reason", "a letter")):
        with pytest.raises(
            AudienceError, match="identifier 1 is not a whole number from 1 to 9,223,372,036,854,775,807"
        ) as error:
            run(*words, "--ledger", url)
        assert "abc" not in str(error.value)
    assert not file.exists()


def test_an_export_that_the_disk_has_no_room_for_leaves_no_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "person.json"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    close = Ledger.close

    def fill_disk(ledger: Ledger) -> None:
        close(ledger)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))

    monkeypatch.setattr(Ledger, "close", fill_disk)
    try:
        with pytest.raises(SettingsError, match=f"{file} cannot be written: File too large"):
            run("export-person", "2", "-o", str(file), "--ledger", url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.glob("*person.json*")) == []


def test_an_export_into_a_folder_that_does_not_exist_is_not_in_the_audit_log(
    url: str, tmp_path: Path
) -> None:
    file = tmp_path / "missing" / "person.json"
    with pytest.raises(SettingsError, match=r"person\.json cannot be written: No such file or directory"):
        run("export-person", "2", "-o", str(file), "--ledger", url)
    with closing(Ledger(url)) as ledger, ledger._database.read() as db:
        assert "exported" not in db.scalars(sa.select(decisions.c.kind)).all()


def test_the_export_is_a_private_file_that_is_not_replaced(url: str, tmp_path: Path) -> None:
    file = tmp_path / "person.json"
    assert "1 launch, " in run("export-person", "2", "-o", str(file), "--ledger", url)
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())["launches"][0]["launch_key"] == KEY
    with pytest.raises(SettingsError, match="already exists"):
        run("export-person", "2", "-o", str(file), "--ledger", url)
