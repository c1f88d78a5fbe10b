"""The commands of the messaging service; each prints JSON on standard output."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from messaging_service.auth.client_ids import (
    ClientId,
    ClientType,
    RegistrationError,
    add_app,
    add_key_client,
    add_secret_client,
    end_of_day,
    list_clients,
    set_scopes,
)
from messaging_service.auth.scopes import ALL_SCOPES
from messaging_service.auth.tokens import machine_time
from messaging_service.campaigns.spellings import refuse_same_spellings
from messaging_service.cli import commands
from messaging_service.cli.fault_commands import faults
from messaging_service.cli.output import DATABASE, Database, failing_clearly, opened, put_out
from messaging_service.delivery.behaviour import Behaviour
from messaging_service.devices import import_devices
from messaging_service.names import parse_overrides

main = typer.Typer(
    help="The messaging service on your own machine: send anything, reach nobody.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
apps = typer.Typer(no_args_is_help=True, help="Applications and their tokens.")
client_ids = typer.Typer(no_args_is_help=True, help="Client IDs and their secret or public key.")
devices = typer.Typer(no_args_is_help=True, help="The devices that messages can reach.")
main.add_typer(apps, name="apps")
main.add_typer(client_ids, name="client-ids")
main.add_typer(devices, name="devices")
commands.add_to(main)
main.add_typer(faults, name="faults")


@main.command("serve")
def serve_command(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")
    ] = 8025,
    database: Database = DATABASE,
    seed: Annotated[int, typer.Option(help="The same seed draws the same fates.")] = 1,
    delivered: Annotated[float, typer.Option(min=0, max=1, help="Share of messages that arrive.")] = 0.9,
    opened: Annotated[float, typer.Option(min=0, max=1, help="Share of those that are opened then.")] = 0.3,
    delay_from: Annotated[
        float, typer.Option(min=0, help="Shortest delay of a delivery or opening, seconds.")
    ] = 0.5,
    delay_to: Annotated[float, typer.Option(min=0, help="Longest delay of each, seconds.")] = 5.0,
    speed: Annotated[float, typer.Option(help="Divides both delays: 10 is ten times as fast.")] = 1.0,
    attempts: Annotated[int, typer.Option(min=1, help="How often a post-back is tried.")] = 8,
    first_pause: Annotated[
        float, typer.Option(min=0, help="Seconds until the second try, doubled each time.")
    ] = 1.0,
    longest_pause: Annotated[float, typer.Option(min=0, help="Longest pause between tries, seconds.")] = 60.0,
    connections: Annotated[int, typer.Option(min=1, max=1_000, help="Post-backs under way at once.")] = 48,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Spelling of a name that the document does not show, e.g. device_ids=deviceIds."),
    ] = None,
    webhooks_anywhere: Annotated[
        bool,
        typer.Option("--webhooks-anywhere", help="Call webhook messages on other machines than this one."),
    ] = False,
    post_backs_anywhere: Annotated[
        bool,
        typer.Option("--post-backs-anywhere", help="Send post-backs to other machines than this one."),
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that answer, and as many that deliver.")
    ] = 1,
    admin_for_all: Annotated[
        bool, typer.Option("--admin-for-all", help="Answer /admin to other machines than this one.")
    ] = False,
) -> None:
    """Serve the API, and send deliveries and openings back, until it is told to stop."""
    # The other commands start without the server's libraries.
    from messaging_service.delivery.postbacks import Retry
    from messaging_service.delivery.worker import WorkerSettings
    from messaging_service.server import ServeSettings, serve
    from messaging_service.store import shown

    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    with failing_clearly():
        names = parse_overrides(name or ())
        refuse_same_spellings(names)
        behaviour = Behaviour(seed, delivered, opened, delay_from, delay_to, speed)
        retry = Retry(attempts, first_pause, longest_pause)
        settings = ServeSettings(
            host=host,
            port=port,
            worker=WorkerSettings(
                database, behaviour, retry, connections, webhooks_anywhere, post_backs_anywhere
            ),
            names=names,
            admin_for_all=admin_for_all,
            workers=workers,
        )
        status = serve(
            settings,
            lambda at: put_out({"listening": at, "database": shown(database), "behaviour": behaviour}),
        )
    raise typer.Exit(status)


@apps.command("add")
def add_app_command(
    name: Annotated[str, typer.Option(help="Name of the app.")],
    time_zone: Annotated[str, typer.Option(help="Holds where a schedule names no time zone.")] = "UTC",
    database: Database = DATABASE,
) -> None:
    """Add an app, and print its token."""
    with failing_clearly(), opened(database) as store:
        app = add_app(store, name, time_zone, machine_time())
        put_out({"id": app.id, "name": app.name, "apptoken": app.token, "time_zone": app.time_zone})


@client_ids.command("add")
def add_client_id_command(
    name: Annotated[str, typer.Option(help="Name of the client ID.")],
    kind: Annotated[ClientType, typer.Option("--type", help="How the client proves itself.")],
    key: Annotated[
        Path | None,
        typer.Option(help="PEM file with an X.509 certificate or SPKI key; - reads standard input."),
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(
            help="Last day, such as 2030-12-31: it works to its end in UTC. Or an ISO date and time."
        ),
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope that it has, repeatable; all by default.")
    ] = None,
    database: Database = DATABASE,
) -> None:
    """Add a client ID, and print it; a secret is printed here once and never again."""
    with failing_clearly(), opened(database) as store:
        expiry, scopes = _moment(expires_at), scope or ALL_SCOPES
        if (key is not None) != (kind is ClientType.PUBLIC_KEY):
            raise RegistrationError("--key is for the type public-key, which needs it")
        if key is None:
            client, secret = add_secret_client(store, name, machine_time(), expiry, scopes)
            put_out({**_described(client), "client_secret": secret})
        else:
            put_out(_described(add_key_client(store, name, _pem(key), machine_time(), expiry, scopes)))


@client_ids.command("list")
def list_client_ids_command(database: Database = DATABASE) -> None:
    """Print the client IDs, without secrets and keys."""
    with failing_clearly(), opened(database) as store:
        put_out({"client_ids": [_described(client) for client in list_clients(store)]})


@client_ids.command("set-scopes")
def set_scopes_command(
    client_id: Annotated[str, typer.Argument(help="The client ID.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope that it keeps, repeatable; none removes all.")
    ] = None,
    database: Database = DATABASE,
) -> None:
    """Restrict a client ID to some scopes, also the tokens it holds."""
    with failing_clearly(), opened(database) as store:
        put_out(_described(set_scopes(store, client_id, scope or ())))


@devices.command("import")
def import_devices_command(
    file: Annotated[Path, typer.Argument(help="CSV file with a header.")], database: Database = DATABASE
) -> None:
    """Import devices from a CSV file, replacing those with the same device_id; all of the file, or nothing."""
    with failing_clearly(), opened(database) as store:
        imported = import_devices(store, file)
        put_out({"devices": imported.devices, "attributes": list(imported.attributes)})


def _described(client: ClientId) -> dict[str, Any]:
    return {
        "client_id": client.client_id,
        "name": client.name,
        "type": client.type.value,
        "algorithms": list(client.key.algorithms) if client.key else [],
        "expires_at": client.expires_at.isoformat() if client.expires_at else None,
        "scopes": list(client.scopes),
    }


def _pem(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RegistrationError(f"{path} cannot be read: {error}") from None


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if len(text) <= len("2030-01-31"):
            return end_of_day(text)
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise RegistrationError(
            f"{text!r} is no date, such as 2030-01-31, and no date and time, such as 2030-01-31T12:00:00Z"
        ) from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
