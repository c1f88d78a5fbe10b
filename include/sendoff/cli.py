"""The ``sendoff`` command: everything that needs no Airflow."""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sendoff.errors import NotFoundError, SendoffError, SettingsError
from sendoff.ledger import Ledger
from sendoff.report import counted
from sendoff.settings import load_settings

if TYPE_CHECKING:
    from sendoff.campaign import Campaign
    from sendoff.period import Period

_NEWEST = 20  # launches
_CONNECTION = re.compile(r"[\w.-]+")

app = typer.Typer(
    name="sendoff",
    help="Messaging campaigns: sent once, reconciled honestly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

lists = typer.Typer(help="People to leave out, uploaded for campaigns to name.", no_args_is_help=True)
app.add_typer(lists, name="lists")

LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="SQLAlchemy URL of the ledger; default: SENDOFF_LEDGER_URL",
        show_default=False,
    ),
]
LaunchKey = Annotated[str, typer.Argument(help="A launch key, or enough of its beginning")]
Why = Annotated[str, typer.Option(help="The reason, for the ledger")]
MaybeLaunch = Annotated[str | None, typer.Argument(help="A launch key, or enough of its beginning")]
Everything = Annotated[bool, typer.Option("--all", help="Every launch, instead of one")]
OfConnection = Annotated[
    str | None, typer.Option("--connection", help="Every launch of this connection, instead of one")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines")]


class Resolution(StrEnum):
    """What a person may do with a request in doubt."""

    RESEND = "resend"
    WRITE_OFF = "write-off"


def main() -> None:
    """Run the command; an error of Sendoff's own is one line on standard error and exit code 1."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except SendoffError as error:
        Console(stderr=True, highlight=False).print(f"sendoff: {error}", markup=False, soft_wrap=True)
        sys.exit(1)


@contextmanager
def _ledger(url: str | None) -> Iterator[Ledger]:
    ledger = Ledger(url or load_settings().ledger())
    try:
        yield ledger
    finally:
        ledger.close()


@app.command()
def migrate(ledger_url: LedgerUrl = None) -> None:
    """Bring the ledger's tables to the newest form; safe to repeat."""
    with _ledger(ledger_url) as ledger:
        ledger.migrate()
        typer.echo(f"the ledger is up to date: {ledger.name}")


@app.command()
def grants(
    user: Annotated[str, typer.Argument(help="The database user that gets the rights")],
    role: Annotated[
        str, typer.Option(help="receiver, worker (Airflow, the command line) or reader (figures)")
    ],
    schema: Annotated[str, typer.Option(help="Where the ledger's tables are")] = "public",
) -> None:
    """Print the SQL that gives a PostgreSQL user the least rights on the ledger; to be run by the tables' owner."""
    from sendoff.ledger.grants import ROLES
    from sendoff.ledger.grants import grants as statements

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
    from sendoff.receiver import serve

    serve(host, port, load_settings(), workers=workers)


@app.command()
def preview(
    folder: Annotated[Path, typer.Argument(help="A campaign's folder", exists=True, file_okay=False)],
    warehouse: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="SQLAlchemy URL of the warehouse; default: SENDOFF_WAREHOUSE_URL. Again as NAME=URL where the "
            "campaign names the connection of another",
            show_default=False,
        ),
    ] = None,
    ledger_url: LedgerUrl = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests a second that the connection allows")
    ] = None,
    period_end: Annotated[
        datetime | None,
        typer.Option(
            help="End of the period, in UTC; default: the last midnight, or the next for what is sent "
            "at a time of day",
            show_default=False,
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=0, help="Length of the period")] = 1,
    size_limit: Annotated[int | None, typer.Option(min=1, help="Most people that are sent to")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a launch would send, to how many and whether its gates let it, sending and storing nothing.

    With a ledger it is compared with the last launch, and what needs the ledger leaves people out.

    With --json the request is whole, with the identifiers of its first three people.
    """
    from sendoff.campaign import load_campaign
    from sendoff.preview import preview as make_preview
    from sendoff.preview_text import as_table

    loaded = load_campaign(folder)
    period, remarks = _previewed_period(loaded.campaign, period_end, days)
    warehouses = _warehouses(warehouse or [os.environ.get("SENDOFF_WAREHOUSE_URL", "")])
    url = ledger_url or load_settings().ledger_url
    with _ledger(url) if url else nullcontext() as ledger:
        found = make_preview(
            loaded, period=period, warehouses=warehouses, ledger=ledger, size_limit=size_limit, rate=rate
        )
    result = replace(found, warnings=[*remarks, *found.warnings])
    if as_json:
        typer.echo(json.dumps(result.to_json(whole_request=True), indent=2))
    else:
        Console().print(as_table(result))


def _previewed_period(campaign: Campaign, end: datetime | None, days: int) -> tuple[Period, list[str]]:
    """Give the period that is asked for, else one like that of the next run; and what must be said of the choice."""
    from sendoff.campaign.schedule import Once
    from sendoff.period import Period

    if end is not None:
        end = end if end.tzinfo else end.replace(tzinfo=UTC)
        return Period(end - timedelta(days=days), end), []
    if campaign.life:
        return campaign.life, []
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if not campaign.schedule:
        return Period(end - timedelta(days=days), end), []
    if isinstance(campaign.send, Once) and campaign.send.date is None:
        end += timedelta(days=1)  # the next run sends at a time of day that is not over
    when = f"{campaign.schedule} ({campaign.schedule_time_zone})"
    remark = (
        f"The period was chosen here, up to {end:%Y-%m-%d} 00:00 UTC. The DAG's may differ: it is the time between two "
        f"runs, by its schedule {when}. Give --period-end and --days to see that one."
    )
    return Period(end - timedelta(days=days), end), [remark]


def _warehouses(given: list[str]) -> Callable[[str], str]:
    """Give the URL of a warehouse by the name of its connection: its own, else the one without a name."""
    named, plain = {}, None
    for each in given:
        name, separator, url = each.partition("=")
        if separator and _CONNECTION.fullmatch(name):
            named[name] = url
        elif each:
            plain = each

    def url_of(name: str) -> str:
        if found := named.get(name) or plain:
            return found
        raise SettingsError(f"no warehouse is given for the connection {name}: give --warehouse {name}=URL")

    return url_of


@app.command()
def schema() -> None:
    """Print the JSON Schema of campaign.yaml, by which an editor completes and checks it."""
    from sendoff.campaign import campaign_schema

    typer.echo(json.dumps(campaign_schema(), indent=2))


@app.command()
def report(
    launch: MaybeLaunch = None,
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also write the picture to this file (.png or .svg)")
    ] = None,
) -> None:
    """Reconcile a launch with everything that came back so far, and show the report.

    Without a launch it lists the newest twenty.
    """
    if launch is None:
        if picture:
            raise SettingsError("--picture needs a launch: give its key, or enough of its beginning")
        _list_launches(ledger_url, as_json=as_json)
        return
    from sendoff.reconcile import reconcile
    from sendoff.report import as_picture, as_table

    with _ledger(ledger_url) as ledger:
        figures = reconcile(ledger, _only_launch(ledger, launch))
    if as_json:
        typer.echo(json.dumps(figures.to_json(), indent=2))
    else:
        Console().print(as_table(figures))
    if picture:
        typer.echo(f"picture: {as_picture(figures, picture)}", err=as_json)


def _list_launches(ledger_url: str | None, *, as_json: bool) -> None:
    with _ledger(ledger_url) as ledger:
        found = ledger.launches.search(limit=_NEWEST)
    if as_json:
        told = [
            {
                "launch": each.launch_key,
                "campaign": each.campaign,
                "period": each.period.key,
                "state": each.state,
            }
            for each in found
        ]
        typer.echo(json.dumps(told, indent=2))
        return
    for each in found:
        typer.echo(f"{each.launch_key[:12]}  {each.campaign}, period {each.period.key}, {each.state}")
    if not found:
        typer.echo("the ledger holds no launch")


@app.command()
def silence(ledger_url: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Say which post-backs came as they should have, which did not, and of which nobody can tell; alarms nobody."""
    from rich.table import Table

    from sendoff.silence import look

    with _ledger(ledger_url) as ledger:
        found = look(ledger)
        strays = ledger.post_backs.strays()
    if as_json:
        told = {"sources": [asdict(each) for each in found], "strays": asdict(strays)}
        typer.echo(json.dumps(told, indent=2, default=datetime.isoformat))
        return
    table = Table("post-backs", "now", "why", "last certain", box=None)
    for each in found:
        last = f"{each.last.state} since {each.last.since:%Y-%m-%d %H:%M} UTC" if each.last else ""
        table.add_row(str(each.source), each.state, each.why, last)
    Console().print(table)
    if strays.post_backs:
        of = counted(strays.dispatches, "dispatch", "dispatches")
        typer.echo(
            f"set aside: {counted(strays.post_backs, 'post-back')}, of {of} that the ledger does not hold; "
            f"the newest is of {strays.newest_at:%Y-%m-%d %H:%M} UTC"
        )


@app.command()
def pause(
    why: Why,
    launch: MaybeLaunch = None,
    everything: Everything = False,
    connection: OfConnection = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Make no further request until somebody resumes: of a launch, of all, or of those of a connection."""
    from sendoff import control

    with _ledger(ledger_url) as ledger:
        if key := _chosen(ledger, launch, everything, connection):
            control.pause(ledger, key, _who(), why)
        else:
            control.pause_all(ledger, _who(), why, connection=connection)
    typer.echo(f"{_subject(key, connection)} paused; workers wait, and go on once it is resumed")


@app.command()
def resume(
    why: Why,
    launch: MaybeLaunch = None,
    everything: Everything = False,
    connection: OfConnection = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Undo a pause: of a launch, of all, or of those of a connection, each as it was paused."""
    from sendoff import control

    with _ledger(ledger_url) as ledger:
        if key := _chosen(ledger, launch, everything, connection):
            control.resume(ledger, key, _who(), why)
        else:
            control.resume_all(ledger, _who(), why, connection=connection)
        brakes = ledger.brakes.on(ledger.launches.get(key).connection) if key else []
    typer.echo(f"{_subject(key, connection)} resumed; its workers go on within half a minute")
    for brake in brakes:
        typer.echo(f"but launches are still paused ({brake.scope}) by {brake.who}: {brake.why}")


@app.command()
def release(
    why: Why,
    launch: MaybeLaunch = None,
    everything: Everything = False,
    connection: OfConnection = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Let a launch that is held be sent, or every one that was held because something went wrong."""
    from sendoff import control

    with _ledger(ledger_url) as ledger:
        if key := _chosen(ledger, launch, everything, connection):
            control.release(ledger, key, _who(), why)
            typer.echo(f"launch {key} is released; clear its tasks that failed, so that they go on")
            return
        keys = control.release_all(ledger, _who(), why, connection=connection)
    for key in keys:
        typer.echo(f"launch {key} is released")
    if keys:
        released = counted(len(keys), "launch", "launches")
        typer.echo(f"released: {released}; clear the tasks that failed, so that they go on")
    else:
        typer.echo("no launch is held because something went wrong, so there is nothing to release")


@app.command()
def stop(
    why: Why,
    launch: MaybeLaunch = None,
    everything: Everything = False,
    connection: OfConnection = None,
    ledger_url: LedgerUrl = None,
) -> None:
    """Make no further request of a launch, or of every launch of which something is left, and never again."""
    from sendoff import control

    with _ledger(ledger_url) as ledger:
        if key := _chosen(ledger, launch, everything, connection):
            control.stop(ledger, key, _who(), why)
            keys = [key]
        else:
            keys = control.stop_all(ledger, _who(), why, connection=connection)
        planned = {each: ledger.dispatches.states(each).get("planned", 0) for each in keys}
    for each, count in planned.items():
        typer.echo(f"launch {each} is stopped{_never_made(count)}")
    if not key:
        typer.echo(f"stopped: {counted(len(keys), 'launch', 'launches')}")


def _never_made(planned: int) -> str:
    if not planned:
        return "; everything of it had been requested already"
    return f": {counted(planned, 'request')} {'is' if planned == 1 else 'are'} not made, and never will be"


@app.command()
def doubts(launch: MaybeLaunch = None, ledger_url: LedgerUrl = None, as_json: AsJson = False) -> None:
    """List the requests in doubt, of one launch or of all, after what post-backs prove is settled."""
    from sendoff import control

    with _ledger(ledger_url) as ledger:
        found = control.doubts(ledger, _only_launch(ledger, launch) if launch else None)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2, default=datetime.isoformat))
        return
    if not found:
        typer.echo("nothing is in doubt")
        return
    for each in found:
        people = f" ({counted(each.people, 'person', 'people')})" if each.people else ""
        prove = "proves" if each.post_backs == 1 else "prove"
        proofs = f"{counted(each.post_backs, 'post-back')} that {prove} nothing"
        segment = f"segment {each.segment:,}{people}"
        typer.echo(
            f"{each.dispatch_key[:12]}  {each.campaign}, launch {each.launch_key[:12]}, {segment}, "
            f"since {each.since:%Y-%m-%d %H:%M} UTC, {proofs}: {each.reason}"
        )
    typer.echo("settle each with: sendoff resolve DISPATCH resend|write-off --why TEXT")


@app.command()
def resolve(
    dispatch: Annotated[
        str, typer.Argument(help="The key of a dispatch in doubt, or enough of its beginning")
    ],
    how: Annotated[
        Resolution,
        typer.Argument(help="Send it again (perhaps twice), or look for it no more (perhaps never)"),
    ],
    why: Why,
    ledger_url: LedgerUrl = None,
) -> None:
    """Settle a request in doubt: send it again, or write it off; the ledger keeps who did it, and why."""
    from sendoff import control

    with _ledger(ledger_url) as ledger:
        key = _only_doubt(ledger, dispatch)
        control.resolve(ledger, key, "resend" if how is Resolution.RESEND else "write_off", _who(), why)
    if how is Resolution.RESEND:
        typer.echo(f"dispatch {key} is planned again; clear the launch's dispatch tasks if none is running")
    else:
        typer.echo(f"dispatch {key} is written off: its people stay in doubt")


@app.command()
def why(
    launch: LaunchKey,
    identifier: Annotated[
        str, typer.Argument(help="As the launch's query names people, such as a device ID")
    ],
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say what became of one person in a launch: why not sent to, or in which segment and with which verdict."""
    with _ledger(ledger_url) as ledger:
        found = ledger.launches.why(_only_launch(ledger, launch), identifier)
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else found.sentence)


@lists.command()
def upload(
    name: Annotated[str, typer.Argument(help="Name of the list, by which campaigns exclude its people")],
    file: Annotated[Path, typer.Argument(help="A CSV file with a header", exists=True, dir_okay=False)],
    column: Annotated[
        str, typer.Option(help="Column that names the people, as the campaigns' queries name theirs")
    ] = "device_id",
    numbers: Annotated[
        bool, typer.Option("--numbers", help="Tokens or UUIDs that the warehouse holds as whole numbers")
    ] = False,
    ledger_url: LedgerUrl = None,
) -> None:
    """Keep the people of a CSV file under a name, in place of those who were kept under it before."""
    from sendoff.people_file import kind_of, read_people

    people = read_people(file, column, kind_of(column, numbers=numbers))
    with _ledger(ledger_url) as ledger:
        ledger.lists.store(name, column, people, _who(), datetime.now(UTC))
    typer.echo(f"list {name}: {counted(len(people), 'person', 'people')} by {column}")


@lists.command()
def show(ledger_url: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Show the uploaded lists, without their people."""
    with _ledger(ledger_url) as ledger:
        found = ledger.lists.all()
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2, default=datetime.isoformat))
        return
    for each in found:
        typer.echo(
            f"{each.name}: {counted(each.size, 'person', 'people')} by {each.identified_by}, "
            f"uploaded by {each.uploaded_by} on {each.uploaded_at:%Y-%m-%d %H:%M} UTC"
        )
    if not found:
        typer.echo("no list was uploaded")


@lists.command()
def delete(
    name: Annotated[str, typer.Argument(help="Name of the list")], ledger_url: LedgerUrl = None
) -> None:
    """Forget a list; campaigns that name it fail until it is uploaded again."""
    with _ledger(ledger_url) as ledger:
        ledger.lists.delete(name)
    typer.echo(f"list {name} is deleted")


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


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return f"user {os.getuid()}"


def _chosen(ledger: Ledger, launch: str | None, everything: bool, connection: str | None) -> str | None:
    """Give the one launch that is meant, or None for all of them, or all of a connection."""
    if sum((launch is not None, everything, connection is not None)) != 1:
        raise SettingsError("give one of the three: a launch key, --all, or --connection NAME")
    return None if launch is None else _only_launch(ledger, launch)


def _subject(launch_key: str | None, connection: str | None) -> str:
    if launch_key:
        return f"launch {launch_key} is"
    return "every launch is" if connection is None else f"every launch of connection {connection} is"


def _only_doubt(ledger: Ledger, prefix: str) -> str:
    found = [each.dispatch_key for each in ledger.dispatches.doubts() if each.dispatch_key.startswith(prefix)]
    if not found:
        raise NotFoundError(f"nothing in doubt starts with {prefix!r}; see: sendoff doubts")
    if len(found) > 1:
        raise SettingsError(f"more than one dispatch in doubt starts with {prefix!r}; give more of the key")
    return found[0]


def _only_launch(ledger: Ledger, prefix: str) -> str:
    found = ledger.launches.search(prefix, limit=2)
    if not found:
        raise NotFoundError(f"the ledger holds no launch that starts with {prefix!r}; see: sendoff report")
    if len(found) > 1:
        raise SettingsError(f"more than one launch starts with {prefix!r}; give more of the key")
    return found[0].launch_key
