"""The settings of the commands and the receiver, from Airflow's connections (``SENDOFF_SETTINGS_FROM=airflow``).

A child process imports Airflow and looks the connections up. A receiver that imported Airflow itself would keep its
hundred megabytes, its logging and its database connections, and long pauses of the garbage collector.

Outside of tasks, Airflow's public functions never look into its database, and treat a failed look-up as a missing
connection. So the child process asks Airflow's backends itself, one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sendoff.errors import SendoffError, SettingsError
from sendoff.settings import WAREHOUSE, Found
from sendoff_airflow import LEDGER, RECEIVER, SERVICE

if TYPE_CHECKING:
    from airflow.sdk import Connection

SOURCES: Mapping[str, Mapping[str, str]] = {
    LEDGER: {
        "ledger_url": "password",
        "erasure_secret": "extra.erasure_secret",
        "erasure_log": "extra.erasure_log",
    },
    RECEIVER: {"public_url": "host", "post_back_secrets": "password"},
    WAREHOUSE: {"warehouse_url": "all fields"},
    SERVICE: {
        "service_url": "host",
        "client_id": "login",
        "client_secret": "password",
        "private_key": "extra.private_key",
        "private_key_passphrase": "extra.private_key_passphrase",
        "algorithm": "extra.algorithm",
        "token_audience": "extra.audience",
        "token_lifetime": "extra.token_lifetime",
        "app_token": "extra.app_token",
        "field_names": "extra.field_names",
        "timeout": "extra.timeout",
        "requests_per_second": "extra.requests_per_second",
        "requests_at_once": "extra.requests_at_once",
        "allow_http": "extra.allow_http",
        "ca_bundle": "extra.verify",
        "proxy": "extra.proxy",
    },
}
"""The settings that each connection holds, and their fields."""

_SECONDS = 120  # Airflow alone takes seconds to import, and a secrets backend may answer slowly


def read_settings(names: Collection[str], service: str, warehouse: str) -> Mapping[str, Found]:
    """Return the settings with these names that Airflow's connections hold.

    ``service`` and ``warehouse`` are the connections in place of ``sendoff_default`` and ``sendoff_warehouse``. Raise
    SettingsError if Airflow is not installed, if a look-up fails, or if a connection is wrong. ``airflow.cfg`` and the
    environment decide where Airflow looks: its secrets backend, AIRFLOW_CONN_* variables, then its database.
    """
    if find_spec("airflow") is None:
        raise SettingsError(
            "SENDOFF_SETTINGS_FROM is airflow, but Airflow is not installed here. Install "
            "airflow-provider-sendoff[airflow], or set the SENDOFF_* variables instead."
        )
    command = [sys.executable, "-P", "-m", __name__, service, warehouse, *names]
    try:
        child = subprocess.run(command, stdout=subprocess.PIPE, timeout=_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise SettingsError(f"Airflow did not look up its connections in {_SECONDS} seconds") from None
    try:
        answer = json.loads(child.stdout)
    except ValueError:
        raise SettingsError(
            f"Airflow could not look up its connections (exit code {child.returncode}). Its messages are above."
        ) from None
    if "error" in answer:
        raise SettingsError(answer["error"])
    return {name: Found(**each) for name, each in answer["found"].items()}


def _main(service: str, warehouse: str, *names: str) -> None:
    """Write the settings to standard output, as :func:`read_settings` reads them."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Airflow may print messages
    try:
        found = {
            name: {"value": each.value, "place": each.place}
            for name, each in _find({SERVICE: service, WAREHOUSE: warehouse}, names)
        }
        answer: dict[str, object] = {"found": found}
    except SendoffError as error:
        answer = {"error": str(error)}
    with answers:
        json.dump(answer, answers)


def _find(named: Mapping[str, str], names: Collection[str]) -> Iterator[tuple[str, Found]]:
    for default, fields in SOURCES.items():
        needed = {name: field for name, field in fields.items() if name in names}
        conn_id = named.get(default, default)
        if needed and (connection := _look_up(conn_id)):
            for name, field in needed.items():
                value = _value(connection, name, field)
                if value is not None and value != "":
                    text = value if isinstance(value, str) else json.dumps(value)
                    of_field = f" ({field})" if field.startswith("extra.") else ""
                    yield name, Found(text, f"Airflow connection {conn_id}{of_field}")


def _look_up(conn_id: str) -> Connection | None:
    from airflow.configuration import ensure_secrets_loaded

    for backend in ensure_secrets_loaded():
        try:
            connection: Connection | None = backend.get_connection(conn_id=conn_id)
        except Exception as error:  # any library of any backend; its text may hold a secret
            raise SettingsError(
                f"Airflow could not look up the connection {conn_id}: its {type(backend).__name__} failed "
                f"({type(error).__name__}). Check the configuration of Airflow in this process's environment."
            ) from None
        if connection:
            return connection
    return None


def _value(connection: Connection, name: str, field: str) -> object:
    from sendoff_airflow.hooks.connections import extras, web_address
    from sendoff_airflow.hooks.ledger import ledger_url
    from sendoff_airflow.hooks.service_fields import ServiceFields
    from sendoff_airflow.hooks.warehouse import warehouse_url

    if name in ("client_secret", "private_key"):
        has_key = extras(connection).get("grant") == "jwt_bearer"
        if has_key != (name == "private_key"):
            return None
    match name:
        case "ledger_url":  # the connection may also be a database of another type
            return ledger_url(connection)
        case "warehouse_url":
            return warehouse_url(connection)
        case "service_url":
            return ServiceFields(connection).base_url
        case "public_url":
            return web_address(connection) if connection.host else None
        case "private_key":
            return ServiceFields(connection).private_key()
    if field.startswith("extra."):
        return extras(connection).get(field.removeprefix("extra."))
    return getattr(connection, field)


if __name__ == "__main__":
    _main(*sys.argv[1:])
