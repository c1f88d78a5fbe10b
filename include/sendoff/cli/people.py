"""The commands about one person's data: erase people, and export everything that is held about one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sendoff.app import user_name
from sendoff.cli.shared import LedgerUrl, app, opened, refuse_blank
from sendoff.errors import SettingsError, UnusableLedgerError, UsageError
from sendoff.figures import counted
from sendoff.telemetry import logs

if TYPE_CHECKING:
    from sendoff.ledger import Ledger
    from sendoff.postbacks import Erased

_BYTES_LEFT = "The database files may still contain old bytes. To remove them, run: sendoff forget --reclaim"
_MAY_BE_LOST = (
    "Receivers answer 503 while --reclaim rewrites the database files, and post-backs that arrive meanwhile may be "
    "lost. Run it when nothing was sent for days."
)
_ON_POSTGRESQL = "Archives of the WAL, and backups, keep old bytes until they expire."

_IdentifiedBy = Annotated[
    str,
    typer.Option(
        "--identified-by", help="The column of these identifiers in audience queries, such as device_id"
    ),
]
_Who = Annotated[
    str | None, typer.Option("--who", help="Who decided it, for the audit log; default: your user name")
]


@app.command()
def forget(
    identifiers: Annotated[
        list[str] | None, typer.Argument(metavar="IDENTIFIER...", help="Identifiers of the people to erase")
    ] = None,
    identified_by: _IdentifiedBy = "device_id",
    file: Annotated[
        Path | None,
        typer.Option(help="A text file with one identifier per line", exists=True, dir_okay=False),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="The reason, for the audit log")] = None,
    who: _Who = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="Instead of identifiers: the erasure log, after a backup was restored",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--continue", help="Instead of identifiers: finish what was interrupted")
    ] = False,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="Rewrite the database files, so that no old bytes stay in them")
    ] = False,
    ledger_url: LedgerUrl = None,
) -> None:
    """Erase people from the ledger. Give all identifiers that it may know them by, one column at a time.

    It prints how many of the identifiers the ledger did not have. Their hashes are stored too.

    Needs SENDOFF_ERASURE_SECRET. It can be interrupted at any moment, and continues with --continue.
    """
    from sendoff.postbacks import continue_erasures, replay_erasures

    people = [*(identifiers or []), *_lines(file)]
    acts = sum((bool(people), replay is not None, resume))
    if acts > 1 or (acts == 0 and not reclaim):
        raise UsageError("Give identifiers or --file FILE, or --replay LOG, --continue or --reclaim.")
    if people and not (reason and reason.strip()):
        raise UsageError("Give a reason: --reason TEXT. It must not name the people.")
    with opened(ledger_url) as ledger:
        if people:
            named = ledger.erasures.named(identified_by, people)
            unknown = len(named.identifiers) - ledger.erasures.count_known(named)
            done = _erased(ledger, people, identified_by, who or user_name(), str(reason))
            _show(ledger, done, reclaim=reclaim)
            if unknown:
                _show_unknown(unknown, identified_by)
        elif replay:
            _show(ledger, replay_erasures(ledger, replay, who=who or user_name()), reclaim=reclaim)
        elif resume:
            _show(ledger, continue_erasures(ledger), reclaim=reclaim)
        if reclaim:
            logs.note(_MAY_BE_LOST)
            for statement in ledger.erasures.reclaim():
                typer.echo(f"done: {statement}")


def _erased(ledger: Ledger, people: Sequence[str], identified_by: str, who: str, reason: str) -> Erased:
    """Erase people, and say if the request is stored although this user of the database may not carry it out."""
    from sendoff.postbacks import forget as erase

    try:
        return erase(ledger, people, identified_by=identified_by, who=who, reason=reason)
    except UnusableLedgerError as error:
        if not ledger.erasures.pending():
            raise
        raise UnusableLedgerError(
            f"{error}. The request is stored. Finish it as the owner of the ledger's tables: sendoff forget --continue"
        ) from None


def _lines(file: Path | None) -> Sequence[str]:
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: the text is not UTF-8. Save it as UTF-8") from None
    # An identifier may contain what splitlines() takes for the end of a line, such as U+2028.
    return [line.strip() for line in text.split("\n") if line.strip()]


def _show(ledger: Ledger, done: Erased, *, reclaim: bool) -> None:
    typer.echo(
        f"erased: {counted(done.people, 'identifier')}; {counted(done.reports, 'report')} made again, with a line "
        "for the erased"
    )
    if not reclaim:
        typer.echo(f"{_BYTES_LEFT}\n{_MAY_BE_LOST}")
        if not ledger.name.startswith("sqlite"):
            typer.echo(_ON_POSTGRESQL)


def _show_unknown(unknown: int, identified_by: str) -> None:
    is_one = unknown == 1
    hashes = "Its hash is" if is_one else "Their hashes are"
    people = "this person" if is_one else "these people"
    typer.echo(
        f"The ledger did not have {unknown:,} of them, or {'it was' if is_one else 'they were'} erased before. "
        f"{hashes} stored, so that later imports cannot bring {people} back. Check that "
        f"{identified_by} is the right column, and that nothing is misspelled."
    )


@app.command("export-person")
def export_person(
    identifier: Annotated[str, typer.Argument(help="The person's identifier")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The JSON file to write; it is private")
    ],
    identified_by: _IdentifiedBy = "device_id",
    reason: Annotated[
        str, typer.Option("--reason", callback=refuse_blank, help="The reason, for the audit log")
    ] = "asked for",
    who: _Who = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Write everything that the ledger holds about one person to a JSON file."""
    if out.exists():
        raise SettingsError(f"{out} already exists. Give another file.")
    try:
        target = os.open(out, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(target, "w", encoding="utf-8") as text:
                with opened(ledger_url) as ledger:  # only now, because the audit log gets an entry
                    found = ledger.persons.export(
                        identified_by, identifier, who=who or user_name(), why=reason, now=datetime.now(UTC)
                    )
                json.dump(found, text, indent=2, ensure_ascii=False)
                text.write("\n")
        except BaseException:
            out.unlink()
            raise
    except OSError as error:
        raise SettingsError(f"{out} cannot be written: {error.strerror}.") from None
    names = {
        "launches": "launch",
        "post_backs": "post-back",
        "lists": "list",
        "suppressions": "suppression",
        "erasures": "erasure",
    }
    counts = (counted(len(found[name]), one, name.replace("_", "-")) for name, one in names.items())
    typer.echo(f"{out}: {', '.join(counts)}")
