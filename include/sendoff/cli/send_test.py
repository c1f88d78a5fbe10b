"""The command that sends a campaign to a few people of your own, to see its message before anyone else gets it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendoff.cli.progress import Steps
from sendoff.cli.send import once_due
from sendoff.cli.shared import LedgerUrl, app, connected
from sendoff.errors import RefusedError, UsageError
from sendoff.figures import counts_in_words, people_of

if TYPE_CHECKING:
    from sendoff import Launch


@app.command("send-test")
def send_test(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="The folder of a campaign, or a step of a journey as JOURNEY/STEP"
        ),
    ],
    identifiers: Annotated[
        list[str] | None, typer.Argument(metavar="IDENTIFIER", help="Identifiers, such as device IDs")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="A CSV, Parquet or Arrow file with the recipients and their values, instead of identifiers",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    identified_by: Annotated[
        str, typer.Option(metavar="COLUMN", help="What the identifiers are")
    ] = "device_id",
    variant: Annotated[str | None, typer.Option(help="The variant to test; default: each of them")] = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Send the message of a campaign at once to a few people of your own, at most 100.

    Each variant is sent once. The test skips the campaign's exclusions, holdout, gates and approval, but no one on the
    suppression list gets it. Its campaign is NAME-test, so the launches of the campaign itself stay as they are. If the
    message has values for each recipient, or texts in several languages, give these columns with --file.

    Needs the same settings as sendoff send, without a warehouse.
    """
    from sendoff.campaign import load_campaign
    from sendoff.telemetry import exporters

    exporters.start()
    steps, refused = Steps(), list[str]()
    campaign = load_campaign(folder, has_audience=False).campaign
    with connected(campaign.connection, ledger_url) as sender:
        sender.check_settings()
        for test in sender.prepare_tests(
            folder, _recipients(identifiers, file, identified_by), variant=variant
        ):
            of_variant = f", variant {test.period.partition}" if test.period.partition else ""
            try:
                once_due(partial(_send, test, steps, f"sending {test.name}{of_variant}"), steps, wait=True)
            except RefusedError as error:  # the other variants are sent all the same
                refused.append(str(error))
            counts = counts_in_words(test.requests)
            typer.echo(
                f"launch {test.key[:12]} of {test.name}{of_variant}: {people_of(test.people)}, {counts}"
            )
            typer.echo(f"For its report, run: sendoff report {test.key[:12]}")
    if refused:
        raise RefusedError("\n".join(refused))


def _send(test: Launch, steps: Steps, text: str) -> None:
    with steps.step(text):
        test.send()


def _recipients(identifiers: list[str] | None, file: Path | None, identified_by: str) -> Any:
    from sendoff.launch import recipients_of

    if bool(identifiers) == bool(file):
        raise UsageError("Name the recipients: give identifiers, or --file FILE, and not both.")
    if file:
        return file
    return [{identified_by: each} for each in recipients_of(identifiers, identified_by).identifiers]
