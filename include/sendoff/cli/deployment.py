"""The commands of a deployment: the ledger's tables and rights, the receiver, the demo."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from sendoff.cli.shared import (
    LedgerUrl,
    app,
    opened,
)
from sendoff.errors import SettingsError
from sendoff.settings import load_settings


@app.command()
def migrate(ledger_url: LedgerUrl = None) -> None:
    """Bring the ledger's tables to the newest form; safe to repeat."""
    with opened(ledger_url) as ledger:
        ledger.migrate()
        typer.echo(f"the ledger is up to date: {ledger.name}")


@app.command()
def maintain(
    keep_days: Annotated[int, typer.Option(min=1, help="For how many days post-backs are kept")] = 90,
    ledger_url: LedgerUrl = None,
) -> None:
    """Forget old post-backs that every report has counted, and make the partitions of the next days."""
    from sendoff.postbacks import maintain as keep_small

    with opened(ledger_url) as ledger:
        forgotten = keep_small(ledger, timedelta(days=keep_days))
    typer.echo(f"{len(forgotten.days)} days and {forgotten.post_backs:,} single post-backs were forgotten")
    for days, why in ((forgotten.needed, "is not aggregated or waits"), (forgotten.in_use, "was in use")):
        for day in days:
            typer.echo(f"{day} stays: what came then {why}")


@app.command()
def grants(
    user: Annotated[str, typer.Argument(help="The database user that gets the rights")],
    role: Annotated[
        str, typer.Option(help="receiver, worker (Airflow, the command line) or reader (figures)")
    ],
    schema: Annotated[str, typer.Option(help="Where the ledger's tables are")] = "public",
) -> None:
    """Print the SQL that gives a PostgreSQL user the least rights on the ledger; to be run by the tables' owner."""
    from sendoff.ledger import ROLES
    from sendoff.ledger import grant_statements as statements

    if role not in ROLES:
        raise SettingsError(f"--role: found {role}; allowed: {', '.join(ROLES)}")
    typer.echo("\n".join(statements(role, user, schema)))


@app.command()
def receiver(
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on")] = 8090,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes")] = 1,
) -> None:
    """Take the service's post-backs; needs SENDOFF_PUBLIC_URL, SENDOFF_POST_BACK_SECRETS and SENDOFF_LEDGER_URL."""
    from sendoff.postbacks import serve

    serve(host, port, load_settings(), workers=workers)


@app.command()
def demo(
    leave: Annotated[
        bool, typer.Option("--exit", help="Stop at the end instead of leaving Airflow's UI up")
    ] = False,
    customers: Annotated[int, typer.Option(min=100, help="People in the warehouse")] = 60_000,
    airflow_port: Annotated[int, typer.Option(help="Port of Airflow's API and UI")] = 8080,
    receiver_port: Annotated[int, typer.Option(help="Port of the receiver")] = 8090,
    service_port: Annotated[int, typer.Option(help="Port of the messaging service")] = 8025,
    workspace: Annotated[Path, typer.Option(help="Where everything is written")] = Path(".demo"),
) -> None:
    """Run a whole campaign on this machine with a real Airflow, and check every verdict."""
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
