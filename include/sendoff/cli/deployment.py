"""The commands for a deployment: the ledger's tables and grants, the receiver, and the demo."""

from __future__ import annotations

import signal
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from sendoff.cli.progress import Steps
from sendoff.cli.shared import LedgerUrl, app, opened
from sendoff.errors import UsageError
from sendoff.figures import counted
from sendoff.ledger import Ledger
from sendoff.settings import load_settings
from sendoff.times import SHORTEST_FOR_RECIPIENTS


@app.command()
def migrate(ledger_url: LedgerUrl = None) -> None:
    """Create the ledger's tables or migrate them to the newest version. Safe to repeat."""
    with opened(ledger_url) as ledger:
        ledger.migrate()
        typer.echo(f"the ledger is up to date: {ledger.name}")


@app.command("copy-ledger")
def copy_ledger(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="SQLAlchemy URL of the ledger to copy")],
    ledger_url: LedgerUrl = None,
) -> None:
    """Copy a paused ledger into a new, empty one, for example from SQLite to PostgreSQL."""
    copying = Steps().step("copying the ledger", is_often_short=True)
    with opened(ledger_url) as ledger, closing(Ledger(source)) as old, copying:
        rows = ledger.copy_from(old)
    launches = counted(rows["launches"], "launch", "launches")
    typer.echo(f"copied {counted(sum(rows.values()), 'row')}, among them {launches}, to {ledger.name}")
    typer.echo(
        "The new ledger is paused, and the old one sends nothing more. Set SENDOFF_LEDGER_URL and all connections to "
        'the new one, and then run: sendoff resume --all --why "moved the ledger"'
    )


@app.command()
def maintain(
    keep_days: Annotated[int, typer.Option(min=1, max=36_500, help="How many days to keep post-backs")] = 90,
    keep_recipients_days: Annotated[
        int | None,
        typer.Option(
            min=SHORTEST_FOR_RECIPIENTS.days,
            max=36_500,
            help="How many days to keep who was sent to  [default: no limit]",
        ),
    ] = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Delete old post-backs that every report has counted, and create the partitions for the next days.

    With --keep-recipients-days, also delete who was sent to by older launches. Their counts and reports stay.
    """
    from sendoff.postbacks import delete_recipients
    from sendoff.postbacks import maintain as keep_small

    if keep_recipients_days is not None and keep_recipients_days < keep_days:
        raise UsageError(
            "--keep-recipients-days: use at least as many days as --keep-days, because post-backs name recipients too."
        )
    with opened(ledger_url) as ledger, Steps().step("deleting old post-backs", is_often_short=True):
        deleted = keep_small(ledger, timedelta(days=keep_days))
    typer.echo(f"deleted: {len(deleted.days)} days and {deleted.post_backs:,} single post-backs")
    for days, why in (
        (deleted.needed, "some of its post-backs are parked or not aggregated"),
        (deleted.in_use, "it was in use"),
    ):
        for day in days:
            typer.echo(f"{day} stays: {why}")
    if keep_recipients_days is None:
        return
    with opened(ledger_url) as ledger, Steps().step("deleting recipients", is_often_short=True):
        gone = delete_recipients(ledger, timedelta(days=keep_recipients_days))
    typer.echo(
        f"deleted: the {gone.recipients:,} recipients of {counted(gone.launches, 'launch', 'launches')}"
    )
    for reason, count in gone.stay.items():
        typer.echo(f"the recipients of {counted(count, 'older launch', 'older launches')} stay: {reason}")


@app.command()
def grants(
    user: Annotated[str, typer.Argument(help="The database user that gets the rights")],
    role: Annotated[
        str, typer.Option(help="receiver, worker (Airflow and the command line) or reader (dashboards)")
    ],
    schema: Annotated[str, typer.Option(help="Where the ledger's tables are")] = "public",
) -> None:
    """Print the SQL that grants a PostgreSQL user the fewest rights it needs. Run it as the owner of the tables."""
    from sendoff.ledger import ROLES
    from sendoff.ledger import grant_statements as statements

    if role not in ROLES:
        raise UsageError(f"--role: {role!r} is not a role. Use {', '.join(ROLES)}.")
    typer.echo("\n".join(statements(role, user, schema)))


@app.command()
def receiver(
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on")] = 8090,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes")] = 1,
) -> None:
    """Receive post-backs. Needs SENDOFF_PUBLIC_URL, SENDOFF_POST_BACK_SECRETS and SENDOFF_LEDGER_URL.

    With SENDOFF_SETTINGS_FROM=airflow, they come from the connections sendoff_receiver and sendoff_ledger.
    """
    from sendoff.postbacks import serve

    settings = load_settings(["ledger_url", "public_url", "post_back_secrets", "erasure_secret"])
    serve(host, port, settings, workers=workers)
    for number in (signal.SIGINT, signal.SIGTERM):  # Python's handlers end before the process does
        signal.signal(number, signal.SIG_IGN)


@app.command()
def demo(
    leave: Annotated[
        bool, typer.Option("--exit", help="Stop at the end instead of keeping Airflow's UI running")
    ] = False,
    customers: Annotated[int, typer.Option(min=100, help="Number of customers in the warehouse")] = 60_000,
    airflow_port: Annotated[int, typer.Option(help="Port of Airflow's API and UI")] = 8080,
    receiver_port: Annotated[int, typer.Option(help="Port of the receiver")] = 8090,
    service_port: Annotated[int, typer.Option(help="Port of the messaging service")] = 8025,
    workspace: Annotated[Path, typer.Option(help="Folder for the demo's files")] = Path(".demo"),
) -> None:
    """Run a complete campaign on this machine in a real Airflow, and check every verdict."""
    from sendoff.demo.options import Options
    from sendoff.demo.run import demo as play

    options = Options(
        exit=leave,
        customers=customers,
        airflow_port=airflow_port,
        receiver_port=receiver_port,
        service_port=service_port,
        workspace=workspace,
    )
    raise typer.Exit(play(options))
