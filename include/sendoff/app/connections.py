"""The ledger, the messaging service and the warehouses of an app, each opened when it is first needed."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sendoff.errors import SettingsError
from sendoff.settings import Settings, load_settings, no_warehouse

if TYPE_CHECKING:
    from sendoff.dispatch import ServiceConnection
    from sendoff.ledger import Ledger
    from sendoff.warehouse import Source


@dataclass(frozen=True)
class Connections:
    """What an app connects. Without ``warehouse``, the settings have that of each connection.

    ``who``: the name that the audit log keeps for decisions.
    """

    settings: Settings
    warehouse: Source | Mapping[str, Source] | None
    who: str
    given: Mapping[str, Any] = field(default_factory=dict, repr=False)  # settings that no source is asked for
    _found: dict[str, Source] = field(default_factory=dict, repr=False)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger. Raise SettingsError if no URL was given."""
        from sendoff.ledger import Ledger

        return Ledger.from_settings(self.settings)

    def close(self) -> None:
        """Close the connections to the ledger."""
        if "ledger" in self.__dict__:
            self.ledger.close()

    def service(self, connection: str) -> ServiceConnection:
        """Return what a worker needs for a connection. Raise SettingsError if this app has another connection."""
        self.check(connection)
        return self._service

    def check(self, connection: str) -> None:
        """Raise SettingsError if this app has another connection to a service than a campaign names."""
        if connection != self.settings.connection:
            raise SettingsError(
                f"the campaign uses the connection {connection}, but this app is the connection "
                f"{self.settings.connection}. Make one for it: sendoff.connect(connection={connection!r}, ...), or in "
                f"a shell, set SENDOFF_CONNECTION={connection} and the settings of its service"
            )

    def source(self, connection: str) -> Source:
        """Return the warehouse of a connection. Raise SettingsError if there is none."""
        given = self.warehouse
        if given is None:
            if connection not in self._found:  # a source may take seconds to answer
                url = load_settings(["warehouse_url"], connection, **self.given).warehouse_url
                self._found.update({connection: url} if url else {})
            given = self._found
        source = given.get(connection) if isinstance(given, Mapping) else given
        if source is None:
            remedy = "warehouse=... to sendoff.connect"
            raise no_warehouse(connection, remedy, is_looked_up=self.warehouse is None)
        return source

    def request_facts(self) -> dict[str, Any]:
        """Return the rate limit and the names of request fields, for previews."""
        from sendoff.app.service import rate_of
        from sendoff.service.wire import FieldNames

        return {"rate": rate_of(self.settings), "names": FieldNames(self.settings.field_names)}

    @cached_property
    def _service(self) -> ServiceConnection:
        from sendoff.app.service import service_connection

        return service_connection(self.settings)


def user_name() -> str:
    """Return the name of the user of this process, for the audit log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return f"user {os.getuid()}"
