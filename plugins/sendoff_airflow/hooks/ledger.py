"""The connection of the ledger."""

from __future__ import annotations

from airflow.sdk import BaseHook, Connection

from sendoff.errors import SendoffError, SettingsError
from sendoff.ledger import Ledger
from sendoff.settings import Found, combined_settings, environment_settings
from sendoff_airflow import LEDGER
from sendoff_airflow.hooks.connections import DIALECTS, database_url, extras, find_connection

ERASURE_FIELDS = ("erasure_secret", "erasure_log")
"""The extras that erasures need. If a variable ``SENDOFF_*`` of the same name is set too, both must be equal."""


class LedgerHook(BaseHook):
    """Open the ledger of this deployment.

    The connection ``sendoff_ledger`` holds a database URL in the password, or is any ``postgres`` or ``sqlite``
    connection. Without such a connection, the hook uses SENDOFF_LEDGER_URL. There is no default, because Airflow does
    not distinguish a missing connection from a failed look-up. A new, empty ledger would not know which requests were
    made. The extras ``erasure_secret`` and ``erasure_log`` are for erasures.
    """

    conn_name_attr = "ledger_conn_id"
    default_conn_name = LEDGER
    conn_type = "sendoff_ledger"
    hook_name = "Sendoff ledger"

    def __init__(self, ledger_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.ledger_conn_id = ledger_conn_id

    def get_conn(self) -> Ledger:
        """Return the ledger, which is opened at its first use. Raise SettingsError if none is configured."""
        if connection := find_connection(self.ledger_conn_id):
            place = f"connection {self.ledger_conn_id}"
            values = extras(connection)
            found = {name: Found(str(values[name]), place) for name in ERASURE_FIELDS if values.get(name)}
            return Ledger.from_settings(combined_settings(found, ledger_url=ledger_url(connection)))
        return Ledger(self.url())

    def url(self) -> str:
        """Return the SQLAlchemy URL of the ledger, password included."""
        if connection := find_connection(self.ledger_conn_id):
            return ledger_url(connection)
        settings = environment_settings()
        if settings.ledger_url is None:
            raise SettingsError(
                f"there is no ledger: add the connection {self.ledger_conn_id}, or set SENDOFF_LEDGER_URL"
            )
        return settings.ledger_url

    def test_connection(self) -> tuple[bool, str]:
        """Check whether launches can use the ledger, without storing anything."""
        try:
            ledger = self.get_conn()
            try:
                ledger.check()
            finally:
                ledger.close()
        except SendoffError as error:
            return False, str(error)
        return True, "The ledger can be read and written."


def open_ledger(conn_id: str = LEDGER) -> Ledger:
    """Return the ledger of this deployment."""
    return LedgerHook(conn_id).get_conn()


def ledger_url(connection: Connection) -> str:
    """Return the SQLAlchemy URL of the ledger that a connection holds, password included."""
    if connection.conn_type in DIALECTS:
        return database_url(connection)
    if connection.conn_type != LedgerHook.conn_type:
        known = ", ".join(sorted({*DIALECTS, LedgerHook.conn_type}))
        raise SettingsError(
            f"connection {connection.conn_id}: the type {connection.conn_type} is none of {known}. Set its type to "
            f"{LedgerHook.hook_name} ({LedgerHook.conn_type}) and put the database URL into the password field."
        )
    if connection.password:
        return connection.password
    raise SettingsError(f"connection {connection.conn_id}: the database URL (password field) is empty")
