"""The commands of the suppression list: add, remove, replace, show and list."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyarrow import csv, parquet

from sendoff.app import user_name
from sendoff.audience.identifiers import LONGEST_TEXT
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.ledger.storage.schema import decisions

Command = Callable[..., "subprocess.CompletedProcess[str]"]
WHY = ("--reason", "asked for it")
ACCOUNT = "every campaign, except transactional ones"
DEVICES = [40_000_017, 40_000_021]


@pytest.fixture
def url(migrated_url: str) -> str:
    return migrated_url


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with closing(Ledger(url)) as ledger:
        yield ledger


@pytest.fixture
def suppress(url: str, sendoff: Command) -> Command:
    return lambda *arguments: sendoff("suppress", *arguments, "--ledger", url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "people.csv"


def members(ledger: Ledger, scope: str = "account", column: str = "device_id") -> list[int | str]:
    kind = "integer" if column == "device_id" else "string"
    return list(ledger.suppressions.active(column, kind, [scope], datetime.now(UTC)))  # type: ignore[arg-type]


def opt_out(ledger: Ledger, *people: int | str, scope: str = "account", column: str = "device_id") -> None:
    """Add entries as the receiver does."""
    ledger.suppressions.add(
        SuppressionChange(scope, column, "opt-out", "recipient"), people, datetime.now(UTC)
    )


def write(file: Path, devices: list[int]) -> str:
    file.write_text("device_id\n" + "".join(f"{device}\n" for device in devices))
    return str(file)


def test_recipients_are_added_shown_and_removed(ledger: Ledger, suppress: Command) -> None:
    named = [str(device) for device in DEVICES]
    done = suppress("add", *named, *WHY)
    assert (done.stdout, done.stderr) == (f"suppressed for {ACCOUNT}: 2 devices\n", "")
    assert members(ledger) == DEVICES
    again = suppress("add", named[0], *WHY).stdout
    assert again.splitlines()[1:] == ["no new entry, as they have one or were erased: 1 device"]

    shown = suppress("show", named[0]).stdout
    assert shown.startswith(f"suppressed for {ACCOUNT}: source command, by ")
    assert "reason: asked for it" in shown
    (entry,) = json.loads(suppress("show", named[0], "--json").stdout)
    assert (entry["scope"], entry["source"], entry["identifier"]) == ("account", "command", named[0])
    assert suppress("list").stdout == (f"{ACCOUNT}: 2 devices by device_id, source command\n")
    assert json.loads(suppress("list", "--json").stdout) == [
        {"scope": "account", "identified_by": "device_id", "source": "command", "entries": 2}
    ]

    done = suppress("remove", named[0], "1", *WHY)
    assert done.stdout == f"not suppressed any more for {ACCOUNT}: 1 device\nwere not suppressed: 1 device\n"
    assert members(ledger) == DEVICES[1:]
    assert suppress("show", named[0]).stdout.startswith(f"not suppressed any more for {ACCOUNT}")
    assert "no entry" in suppress("show", "5").stdout


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ((), "account"),
        (("--topic", "news"), "topic:news"),
        (("--channel", "email"), "channel:email"),
        (("--everything",), "everything"),
    ],
)
def test_the_options_choose_the_scope(
    ledger: Ledger, suppress: Command, options: tuple[str, ...], scope: str
) -> None:
    done = suppress("add", "ann", "--identified-by", "user_id", *options, *WHY)
    assert done.returncode == 0, done.stderr
    assert members(ledger, scope, "user_id") == ["ann"]
    assert sum(each.entries for each in ledger.suppressions.sizes(datetime.now(UTC))) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "7", "--topic", "news", "--channel", "sms", *WHY), "more than one of topic, channel"),
        (("add", "7", "--channel", "fax", *WHY), "found the channel 'fax'. Use android_push"),
        (("add", "7", "--topic", "Big News", *WHY), "found the topic 'Big News'"),
        (("add", "7", "--until", "2020-01-31", *WHY), "the end 2020-01-31 is in the past"),
        (("add", "7", "--until", "9999-12-31T23:59:59-14:00", *WHY), "the end is after the year 9999 in UTC"),
        (("add", "7", "--until", "soon", *WHY), "Use a date such as 2027-01-31"),
        (
            ("add", "7", "ann4711", *WHY),
            "identifier 2 of 2 is not a whole number from 1 to 9,223,372,036,854,775,807",
        ),
        (("add", "7", "ann4711", *WHY), "identified_by (--identified-by in a shell)"),
        (
            ("add", "ann", "4711" * 251, "--identified-by", "user_id", *WHY),
            "identifier 2 of 2 is longer than 1,000 bytes, or has a character that cannot be stored. Remove it",
        ),
        (("add", "7", "--identified-by", "email", *WHY), "found column email. Use device_id"),
        (("add", "7", "--source", "", *WHY), "the source is blank"),
        (("remove", "7", "--source", "", *WHY), "the source is blank"),
        (("export", "--out", "absent/list.csv", "--source", " "), "the source is blank"),
        (("add", "7", "--source", "opt-out", *WHY), "entries of the source opt-out. Use another name"),
    ],
)
def test_a_wrong_argument_changes_nothing_and_says_what_is_right(
    ledger: Ledger, suppress: Command, arguments: tuple[str, ...], said: str
) -> None:
    done = suppress(*arguments)
    is_usage = not said.startswith("ident")
    assert (done.returncode, done.stderr.count("\n")) == (2 if is_usage else 1, 1)
    assert said in done.stderr
    assert "4711" not in done.stderr
    assert ledger.suppressions.sizes(datetime.now(UTC)) == []
    assert ledger.audit_log.of_suppression(limit=9) == []


def test_an_entry_ends_on_its_day(ledger: Ledger, suppress: Command) -> None:
    suppress("add", "7", "--until", "2099-01-31", *WHY)
    [entry] = ledger.suppressions.of_person("device_id", 7)
    assert entry.until == datetime(2099, 1, 31, tzinfo=UTC)
    assert not entry.is_in_force(entry.until)


def test_a_file_is_added_and_its_rows_without_an_identifier_are_counted(
    ledger: Ledger, suppress: Command, file: Path
) -> None:
    file.write_text("since,device_id\n2026,7\n2026,\n2026,9\n")
    done = suppress("add", "--file", str(file), "--source", "crm", *WHY)
    assert done.stdout == f"suppressed for {ACCOUNT}: 2 devices\n"
    assert done.stderr == "skipped: 1 row without an identifier\n"
    assert members(ledger) == [7, 9]
    assert ledger.suppressions.of_person("device_id", 7)[0].source == "crm"


def test_rows_that_the_ledger_cannot_store_are_skipped_and_counted(
    ledger: Ledger, suppress: Command, file: Path
) -> None:
    """The length is that of texts without repetitions, which PostgreSQL cannot make shorter."""
    odd = ["x\0y", secrets.token_hex(LONGEST_TEXT), secrets.token_hex(LONGEST_TEXT // 2)]
    file.write_text("user_id\n" + "\n".join(["ann", *odd]))
    by_user = ("--identified-by", "user_id", "--source", "crm", *WHY)
    done = suppress("replace", "--file", str(file), *by_user, "--yes")
    assert done.returncode == 0, done.stderr
    assert "skipped: 2 rows without an identifier" in done.stderr
    assert members(ledger, column="user_id") == sorted(["ann", odd[2]])


def test_a_wrong_line_of_a_file_is_named_and_nothing_is_changed(
    ledger: Ledger, suppress: Command, file: Path
) -> None:
    file.write_text("device_id\n7\nann4711\n")
    for command in ("add", "remove", "replace"):
        more = ("--yes",) if command == "replace" else ()
        done = suppress(command, "--file", str(file), "--source", "x", *WHY, *more)
        assert done.returncode == 1
        assert f"{file}, line 3: the value in the column device_id is not a whole number" in done.stderr
        assert "4711" not in done.stdout + done.stderr
    assert members(ledger) == []


@pytest.mark.parametrize(
    ("source", "why"), [("opt-out", "only Sendoff adds entries of the source opt-out"), ("", "is blank")]
)
def test_a_replacement_ends_no_opt_outs(
    ledger: Ledger, suppress: Command, file: Path, source: str, why: str
) -> None:
    opt_out(ledger, *range(1, 11))
    done = suppress("replace", "--source", source, *WHY, "--yes", "--file", write(file, list(range(2, 12))))
    assert done.returncode == 2
    assert why in done.stderr
    assert members(ledger) == [*range(1, 11)]


def test_a_replacement_shows_its_counts_and_needs_yes_where_no_one_can_answer(
    ledger: Ledger, suppress: Command, file: Path
) -> None:
    suppress("add", "5", *WHY)  # another source
    replace = ("replace", "--source", "crm", *WHY, "--file")
    assert suppress(*replace, write(file, list(range(101, 111))), "--yes").returncode == 0
    refused = suppress(*replace, write(file, list(range(102, 112))))
    assert refused.stdout == "crm has 10 entries, and the file 10 devices: 1 would be added, 1 removed\n"
    assert "no one can confirm it here. Run the command with --yes" in refused.stderr
    assert members(ledger) == [5, *range(101, 111)]
    done = suppress(*replace, str(file), "--yes")
    assert done.stdout.endswith("replaced: 1 added, 1 removed\n")
    assert members(ledger) == [5, *range(102, 112)]


def test_a_replacement_shows_how_many_entries_get_another_end(
    ledger: Ledger, suppress: Command, file: Path
) -> None:
    replace = ("replace", "--source", "crm", *WHY, "--yes", "--file", write(file, DEVICES))
    suppress(*replace)
    earlier = suppress(*replace, "--until", "2099-01-31").stdout
    assert earlier.endswith("replaced: 0 added, 0 removed, 2 end earlier than before\n")
    assert "0 would be added, 0 removed, 2 end earlier than before\n" in earlier
    assert suppress(*replace).stdout.endswith("replaced: 0 added, 0 removed, 2 end later than before\n")
    assert suppress(*replace).stdout.endswith("replaced: 0 added, 0 removed\n")


def test_an_empty_file_does_not_empty_the_list_by_mistake(
    ledger: Ledger, suppress: Command, file: Path
) -> None:
    replace = ("replace", "--source", "crm", *WHY, "--file")
    suppress(*replace, write(file, DEVICES), "--yes")
    refused = suppress(*replace, write(file, []))
    assert "more than 20 % of the entries would be removed" in refused.stderr
    assert members(ledger) == DEVICES
    assert suppress(*replace, str(file), "--yes").stdout.endswith("replaced: 0 added, 2 removed\n")
    assert members(ledger) == []


def test_each_change_is_in_the_audit_log_without_identifiers(
    ledger: Ledger, suppress: Command, file: Path
) -> None:
    suppress("add", "40000017", "40000021", "--topic", "news", *WHY)
    suppress("remove", "40000017", "--topic", "news", "--reason", "came back")
    suppress("replace", "--file", write(file, [40_000_030]), "--source", "crm", "--yes", *WHY)
    newest_first = ledger.audit_log.of_suppression(limit=9)
    facts = [(each.kind, each.why, each.detail) for each in reversed(newest_first)]
    shared = {"scope": "topic:news", "identified_by": "device_id"}
    assert facts == [
        ("suppressed", "asked for it", {**shared, "source": "command", "added": 2, "removed": 0}),
        ("unsuppressed", "came back", {**shared, "source": None, "added": 0, "removed": 1}),
        (
            "suppressed",
            "asked for it",
            {**shared, "scope": "account", "source": "crm", "added": 1, "removed": 0},
        ),
    ]
    assert all(each.launch_key is None and each.who for each in newest_first)
    assert "4000" not in str(facts)


def test_a_file_ends_only_entries_of_the_source_that_is_named(
    ledger: Ledger, suppress: Command, file: Path
) -> None:
    file.write_text("device_id\n7\n8\n")
    opt_out(ledger, 7)
    suppress("add", "--file", str(file), *WHY)
    refused = suppress("remove", "--file", str(file), *WHY)
    assert refused.returncode == 2
    assert "Name the source whose entries end: --source" in refused.stderr
    done = suppress("remove", "--file", str(file), "--source", "command", *WHY)
    assert done.stdout == f"not suppressed any more for {ACCOUNT}: 2 devices\n"
    assert suppress("list").stdout == f"{ACCOUNT}: 1 device by device_id, source opt-out\n"
    assert suppress("remove", "7", *WHY).returncode == 0
    assert suppress("list").stdout == "no one is suppressed\n"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_entries_in_force_are_exported_to_a_private_file(
    ledger: Ledger, suppress: Command, tmp_path: Path, suffix: str
) -> None:
    suppress("add", "40000021", "40000017", *WHY, "--until", "2099-01-31")
    opt_out(ledger, "ann, née Müller", scope="topic:news", column="user_id")
    suppress("add", "40000022", *WHY)
    suppress("remove", "40000022", *WHY)
    file = tmp_path / f"list.{suffix}"
    done = suppress("export", "--out", str(file))
    assert (done.stdout, done.stderr) == (f"{file}: 3 entries\n", "")
    assert file.stat().st_mode & 0o777 == 0o600
    found = (csv.read_csv if suffix == "csv" else parquet.read_table)(file).to_pylist()
    assert [(row["identified_by"], str(row["identifier"]), row["scope"], row["source"]) for row in found] == [
        ("device_id", "40000017", "account", "command"),
        ("device_id", "40000021", "account", "command"),
        ("user_id", "ann, née Müller", "topic:news", "opt-out"),
    ]
    assert [bool(row["until"]) for row in found] == [True, True, False]
    assert suppress("export", "--out", str(file)).returncode == 1
    only = suppress("export", "--out", str(file), "--source", "opt-out", "--force")
    assert only.stdout == f"{file}: 1 entry\n"
    assert (
        suppress("export", "--out", str(file), "--source", "crm", "--force").stdout == f"{file}: 0 entries\n"
    )
    exports = sa.select(decisions.c.who, decisions.c.detail).where(decisions.c.kind == "exported")
    assert [tuple(row) for row in ledger._database.rows(exports)] == [
        (user_name(), {"of": "suppression list", "source": source}) for source in (None, "opt-out", "crm")
    ]
