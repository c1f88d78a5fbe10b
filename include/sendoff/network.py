"""How long a database may be silent before it counts as gone."""

from __future__ import annotations

POSTGRESQL_LIMITS = {
    "connect_timeout": "10",  # seconds, for each address of the server's name
    "tcp_user_timeout": "30000",  # milliseconds without a sign of what was sent having arrived
    "keepalives_idle": "15",  # seconds of silence, then a question
    "keepalives_interval": "5",  # every so often, and this often:
    "keepalives_count": "3",
}
"""Options of libpq: after half a minute, a server that vanished without a word is known to be gone.

The system's own limits are hours.
"""
