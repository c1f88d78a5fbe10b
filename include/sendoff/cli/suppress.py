"""The commands of the suppression list: recipients who must not get messages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sendoff.app import user_name
from sendoff.cli.shared import AsJson, LedgerUrl, app, opened, print_json, refuse_blank
from sendoff.errors import SettingsError, UsageError
from sendoff.figures import counted, noun_of
from sendoff.telemetry import logs

if TYPE_CHECKING:
    from sendoff.launch import NamedRecipients
    from sendoff.ledger import Replacement, Suppression, SuppressionChange

suppressions = typer.Typer(
    help="The suppression list: recipients who must not get messages. No campaign needs to name it.",
    no_args_is_help=True,
)
app.add_typer(suppressions, name="suppress")

_Named = Annotated[
    list[str] | None, typer.Argument(metavar="IDENTIFIER", help="Identifiers, such as device IDs")
]
_File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE.csv",
        help="A CSV file with a header, instead of identifiers",
        exists=True,
        dir_okay=False,
    ),
]
_IdentifiedBy = Annotated[
    str, typer.Option(metavar="COLUMN", help="What the identifiers are, as the column in campaigns' queries")
]
_Topic = Annotated[str | None, typer.Option(help="Only campaigns on this topic", show_default=False)]
_Channel = Annotated[
    str | None, typer.Option(help="Only campaigns that use this channel, such as email", show_default=False)
]
_Everything = Annotated[bool, typer.Option("--everything", help="Every campaign, also transactional ones")]
_Reason = Annotated[
    str, typer.Option(callback=refuse_blank, help="The reason, for the entries and the audit log")
]
_Until = Annotated[
    str | None,
    typer.Option(
        metavar="DATE",
        help="The end of the entries, as the start of a day in UTC; default: no end. Only replace makes an end earlier",
        show_default=False,
    ),
]


@suppressions.command()
def add(
    reason: _Reason,
    identifiers: _Named = None,
    file: _File = None,
    identified_by: _IdentifiedBy = "device_id",
    topic: _Topic = None,
    channel: _Channel = None,
    everything: _Everything = False,
    until: _Until = None,
    source: Annotated[str, typer.Option(help="Where the entries come from")] = "command",
    ledger_url: LedgerUrl = None,
) -> None:
    """Suppress recipients: no request that is made from now on contains them."""
    from sendoff.launch import describe_scope, suppress, suppression_scope

    scope = suppression_scope(topic, channel, everything=everything)
    named = _named(identifiers, file, identified_by)
    new = _new(scope, identified_by, source, reason, until)
    with opened(ledger_url) as ledger:
        added = suppress(ledger, new, named.identifiers)
    typer.echo(f"suppressed for {describe_scope(scope)}: {counted(added, *named.noun)}")
    if before := len(named) - added:
        typer.echo(f"no new entry, as they have one or were erased: {counted(before, *named.noun)}")
    _tell_skipped(named)


@suppressions.command()
def remove(
    reason: _Reason,
    identifiers: _Named = None,
    file: _File = None,
    identified_by: _IdentifiedBy = "device_id",
    topic: _Topic = None,
    channel: _Channel = None,
    everything: _Everything = False,
    source: Annotated[
        str | None,
        typer.Option(
            help="Only entries of this source; default: of every source. Required with --file",
            show_default=False,
        ),
    ] = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Remove recipients from one scope of the list, so that these campaigns may send to them again.

    A file ends only entries of the source that you name, so it cannot end people's own opt-outs by mistake.
    """
    from sendoff.launch import describe_scope, suppression_scope, unsuppress
    from sendoff.ledger import SuppressionChange

    if file is not None and source is None:
        raise UsageError(
            "Name the source whose entries end: --source, such as --source command. People's own opt-outs have the "
            "source opt-out."
        )
    scope = suppression_scope(topic, channel, everything=everything)
    named = _named(identifiers, file, identified_by)
    ended = SuppressionChange(scope, identified_by, source, user_name(), reason)
    with opened(ledger_url) as ledger:
        removed = unsuppress(ledger, ended, named.identifiers)
    typer.echo(f"not suppressed any more for {describe_scope(scope)}: {counted(removed, *named.noun)}")
    if others := len(named) - removed:
        typer.echo(f"were not suppressed: {counted(others, *named.noun)}")
    _tell_skipped(named)


@suppressions.command()
def replace(
    file: Annotated[
        Path,
        typer.Option(
            "--file", metavar="FILE.csv", help="A CSV file with a header", exists=True, dir_okay=False
        ),
    ],
    source: Annotated[str, typer.Option(help="The source whose entries the file replaces, such as crm")],
    reason: _Reason,
    identified_by: _IdentifiedBy = "device_id",
    topic: _Topic = None,
    channel: _Channel = None,
    everything: _Everything = False,
    until: _Until = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Replace without a question, even if more than 20 % of the entries are removed"
        ),
    ] = False,
    ledger_url: LedgerUrl = None,
) -> None:
    """Make the entries of one source and scope exactly those of a file. Entries of other sources stay.

    It shows how many recipients are added and removed, and asks. If no one can answer, or if more than 20 % of the
    entries of the source would be removed, it changes nothing without --yes.
    """
    from sendoff.launch import MOST_REMOVED, replace_suppressions, suppression_scope

    scope = suppression_scope(topic, channel, everything=everything)
    named = _named(None, file, identified_by)
    new = _new(scope, identified_by, source, reason, until)
    with opened(ledger_url) as ledger:
        planned = ledger.suppressions.planned(new, named.identifiers, datetime.now(UTC))
        typer.echo(_sizes(planned, new, named))
        _tell_skipped(named)
        if not yes:
            _confirm(planned, MOST_REMOVED)
        most_removed = 100 if yes else MOST_REMOVED
        done = replace_suppressions(
            ledger, new, named.identifiers, most_removed=most_removed, planned=planned
        )
    typer.echo(f"replaced: {done.added:,} added, {done.removed:,} removed{_other_ends(done)}")


def _confirm(planned: Replacement, most_removed: int) -> None:
    """Ask whether to replace entries. Raise SettingsError if that needs --yes."""
    if planned.removes_more_than(most_removed):
        raise SettingsError(
            f"Nothing was changed: more than {most_removed} % of the entries would be removed. Check that the file is "
            "complete. If it is, run the command again with --yes."
        )
    if not sys.stdin.isatty():
        raise SettingsError("Nothing was changed: no one can confirm it here. Run the command with --yes.")
    typer.confirm("Replace them?", abort=True)


@suppressions.command()
def show(
    identifier: Annotated[str, typer.Argument(help="The recipient's identifier, such as a device ID")],
    identified_by: _IdentifiedBy = "device_id",
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show all entries of one recipient, newest first: scope, source, reason, author and times."""
    from sendoff.launch import describe_scope, recipients_of

    (wanted,) = recipients_of([identifier], identified_by).identifiers
    with opened(ledger_url) as ledger:
        found = ledger.suppressions.of_person(identified_by, wanted)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    now = datetime.now(UTC)
    for each in found:
        state = "suppressed" if each.is_in_force(now) else "not suppressed any more"
        typer.echo(f"{state} for {describe_scope(each.scope)}: {_history(each)}")
    if not found:
        typer.echo(f"the list has no entry for {identified_by} {identifier}")


@suppressions.command("list")
def list_(ledger_url: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Show how many recipients are suppressed, by scope and source. It shows no identifiers."""
    from sendoff.launch import describe_scope

    with opened(ledger_url) as ledger:
        found = ledger.suppressions.sizes(datetime.now(UTC))
    if as_json:
        print_json([asdict(each) for each in found])
        return
    for each in found:
        people = counted(each.entries, *noun_of(each.identified_by))
        typer.echo(f"{describe_scope(each.scope)}: {people} by {each.identified_by}, source {each.source}")
    if not found:
        typer.echo("no one is suppressed")


@suppressions.command()
def export(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The file to write (.csv or .parquet); it is private"
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(help="Only entries of this source, such as opt-out; default: all", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists")] = False,
    ledger_url: LedgerUrl = None,
) -> None:
    """Write the entries in force to a file, with their recipients, such as for the system that owns the opt-outs."""
    from sendoff.report import SuppressionRows, write_file

    with opened(ledger_url) as ledger:
        exported = SuppressionRows(ledger, datetime.now(UTC), user_name(), source)
        rows = write_file(exported, out, replace=force)
    typer.echo(f"{out}: {counted(rows, 'entry', 'entries')}")


def _named(identifiers: Sequence[str] | None, file: Path | None, identified_by: str) -> NamedRecipients:
    from sendoff.launch import recipients_in_csv, recipients_of

    if bool(identifiers) == bool(file):
        raise UsageError("Name the recipients: give identifiers, or --file FILE.csv, and not both.")
    if file is not None:
        return recipients_in_csv(file, identified_by)
    return recipients_of(identifiers, identified_by)


def _new(scope: str, identified_by: str, source: str, reason: str, until: str | None) -> SuppressionChange:
    from sendoff.launch import end_of
    from sendoff.ledger import SuppressionChange

    end = end_of(until, datetime.now(UTC))
    return SuppressionChange(scope, identified_by, source, user_name(), reason, end)


def _sizes(planned: Replacement, new: SuppressionChange, named: NamedRecipients) -> str:
    return (
        f"{new.source} has {counted(planned.before, 'entry', 'entries')}, and the file "
        f"{counted(len(named), *named.noun)}: {planned.added:,} would be added, {planned.removed:,} removed"
        f"{_other_ends(planned)}"
    )


def _other_ends(change: Replacement) -> str:
    parts = (change.prolonged, "later"), (change.shortened, "earlier")
    return "".join(f", {count:,} end {when} than before" for count, when in parts if count)


def _tell_skipped(named: NamedRecipients) -> None:
    if named.skipped:
        logs.note(f"skipped: {counted(named.skipped, 'row')} without an identifier")


def _history(entry: Suppression) -> str:
    told = [f"source {entry.source}", f"by {entry.author} on {entry.added_at:%Y-%m-%d %H:%M} UTC"]
    if entry.reason:
        told.append(f"reason: {entry.reason}")
    if entry.until:
        told.append(f"until {entry.until:%Y-%m-%d %H:%M} UTC")
    if entry.removed_at:
        told.append(f"removed by {entry.removed_by} on {entry.removed_at:%Y-%m-%d %H:%M} UTC")
    return ", ".join(told)
