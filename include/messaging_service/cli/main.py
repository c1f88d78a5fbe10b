"""The commands of the messaging service. Each prints JSON on standard output."""

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
from messaging_service.cli import commands, options
from messaging_service.cli.fault_commands import faults
from messaging_service.cli.output import DATABASE, DatabaseOption, exit_on_error, open_store, print_json
from messaging_service.delivery.behaviour import Behaviour
from messaging_service.devices import import_devices
from messaging_service.undocumented_names import parse_overrides

main = typer.Typer(
    help="A messaging service on your own machine that reaches no real people.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # which joins the lines of a paragraph
)
apps = typer.Typer(no_args_is_help=True, help="Applications and their tokens.")
client_ids = typer.Typer(no_args_is_help=True, help="Client IDs and their secrets or public keys.")
devices = typer.Typer(no_args_is_help=True, help="The devices that messages can reach.")
main.add_typer(apps, name="apps")
main.add_typer(client_ids, name="client-ids")
main.add_typer(devices, name="devices")
commands.add_to(main)
main.add_typer(faults, name="faults")


@main.command("serve")
def serve_command(
    host: options.HostOption = "127.0.0.1",
    port: options.PortOption = 8025,
    database: DatabaseOption = DATABASE,
    seed: options.SeedOption = 1,
    delivered: options.DeliveredOption = 0.9,
    opened: options.OpenedOption = 0.3,
    delay_from: options.DelayFromOption = 0.5,
    delay_to: options.DelayToOption = 5.0,
    speed: options.SpeedOption = 1.0,
    attempts: options.AttemptsOption = 8,
    first_pause: options.FirstPauseOption = 1.0,
    longest_pause: options.LongestPauseOption = 60.0,
    connections: options.ConnectionsOption = 48,
    name: options.NameOption = None,
    webhooks_anywhere: options.WebhooksAnywhereOption = False,
    post_backs_anywhere: options.PostBacksAnywhereOption = False,
    workers: options.WorkersOption = 1,
    admin_for_all: options.AdminForAllOption = False,
) -> None:
    """Serve the API and send post-backs of deliveries and openings, until stopped."""
    # Imported here so that the other commands start without the server's libraries.
    from messaging_service.delivery.postbacks import Retry
    from messaging_service.delivery.worker import WorkerSettings
    from messaging_service.server import ServeSettings, serve
    from messaging_service.store import without_password

    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    with exit_on_error():
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
            lambda at: print_json(
                {"listening": at, "database": without_password(database), "behaviour": behaviour}
            ),
        )
    raise typer.Exit(status)


@apps.command("add")
def add_app_command(
    name: Annotated[str, typer.Option(help="Name of the app.")],
    time_zone: Annotated[str, typer.Option(help="Time zone of schedules that name none.")] = "UTC",
    database: DatabaseOption = DATABASE,
) -> None:
    """Add an app and print its token."""
    with exit_on_error(), open_store(database) as store:
        app = add_app(store, name, time_zone, machine_time())
        print_json({"id": app.id, "name": app.name, "apptoken": app.token, "time_zone": app.time_zone})


@client_ids.command("add")
def add_client_id_command(
    name: Annotated[str, typer.Option(help="Name of the client ID.")],
    kind: Annotated[ClientType, typer.Option("--type", help="How the client authenticates.")],
    key: Annotated[
        Path | None,
        typer.Option(help="PEM file with an X.509 certificate or SPKI key; - reads standard input."),
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(
            help="Expiry: a last day, such as 2030-12-31, which ends at midnight UTC, or an ISO date and time."
        ),
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope of the client ID. Repeatable; all by default.")
    ] = None,
    database: DatabaseOption = DATABASE,
) -> None:
    """Add a client ID and print it; a client secret is printed only once."""
    with exit_on_error(), open_store(database) as store:
        expiry, scopes = _moment(expires_at), scope or ALL_SCOPES
        if (key is not None) != (kind is ClientType.PUBLIC_KEY):
            raise RegistrationError("--key is required for the type public-key, and not allowed for others")
        if key is None:
            client, secret = add_secret_client(store, name, machine_time(), expiry, scopes)
            print_json({**_described(client), "client_secret": secret})
        else:
            print_json(_described(add_key_client(store, name, _pem(key), machine_time(), expiry, scopes)))


@client_ids.command("list")
def list_client_ids_command(database: DatabaseOption = DATABASE) -> None:
    """Print the client IDs, without secrets and keys."""
    with exit_on_error(), open_store(database) as store:
        print_json({"client_ids": [_described(client) for client in list_clients(store)]})


@client_ids.command("set-scopes")
def set_scopes_command(
    client_id: Annotated[str, typer.Argument(help="The client ID.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope to keep. Repeatable; without it, all are removed.")
    ] = None,
    database: DatabaseOption = DATABASE,
) -> None:
    """Restrict a client ID and its existing tokens to some scopes."""
    with exit_on_error(), open_store(database) as store:
        print_json(_described(set_scopes(store, client_id, scope or ())))


@devices.command("import")
def import_devices_command(
    file: Annotated[Path, typer.Argument(help="CSV file with a header.")], database: DatabaseOption = DATABASE
) -> None:
    """Import all devices of a CSV file, or none if a line is wrong; replace those with the same device_id."""
    with exit_on_error(), open_store(database) as store:
        imported = import_devices(store, file)
        print_json({"devices": imported.devices, "attributes": list(imported.attributes)})


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
            f"{text!r} is neither a date, such as 2030-01-31, nor a date and time, such as 2030-01-31T12:00:00Z"
        ) from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
