"""The connection of the ledger."""

from __future__ import annotations

from airflow.sdk import BaseHook, Connection

from sendoff.errors import SendoffError, SettingsError
from sendoff.ledger import Ledger
from sendoff.settings import load_settings
from sendoff_airflow import LEDGER
from sendoff_airflow.hooks.connections import DIALECTS, database_url, find_connection


class LedgerHook(BaseHook):
    """Open the ledger of this deployment.

    It is named by the connection ``sendoff_ledger`` (a database URL in the password, or any ``postgres`` or ``sqlite``
    connection), or by SENDOFF_LEDGER_URL where there is no such connection. Never by a default: to Airflow a connection
    that is missing and one that it could not look up are the same, and a second, empty ledger would not know what was
    sent.
    """

    conn_name_attr = "ledger_conn_id"
    default_conn_name = LEDGER
    conn_type = "sendoff_ledger"
    hook_name = "Sendoff ledger"

    def __init__(self, ledger_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.ledger_conn_id = ledger_conn_id

    def get_conn(self) -> Ledger:
        """Return the ledger; nothing is opened before its first use. Raise SettingsError."""
        return Ledger(self.url())

    def url(self) -> str:
        """Return the SQLAlchemy URL of the ledger, password included."""
        if connection := find_connection(self.ledger_conn_id):
            return self._url_of(connection)
        settings = load_settings()
        if settings.ledger_url is None:
            raise SettingsError(
                f"there is no ledger: add the connection {self.ledger_conn_id}, or set SENDOFF_LEDGER_URL"
            )
        return settings.ledger_url

    def _url_of(self, connection: Connection) -> str:
        if connection.conn_type in DIALECTS:
            return database_url(connection)
        if connection.conn_type != self.conn_type:
            known = ", ".join(sorted({*DIALECTS, self.conn_type}))
            raise SettingsError(
                f"connection {connection.conn_id}: type {connection.conn_type} is none of {known}. Set its type to "
                f"{self.hook_name} ({self.conn_type}), with the database URL in the password field"
            )
        if connection.password:
            return connection.password
        raise SettingsError(f"connection {self.ledger_conn_id}: the database URL (password field) is empty")

    def test_connection(self) -> tuple[bool, str]:
        """Check whether the ledger can be written; nothing is stored."""
        try:
            ledger = self.get_conn()
            try:
                ledger.ping()
            finally:
                ledger.close()
        except SendoffError as error:
            return False, str(error)
        return True, "The ledger can be read and written."


def open_ledger(conn_id: str = LEDGER) -> Ledger:
    """Return the ledger of this deployment."""
    return LedgerHook(conn_id).get_conn()
