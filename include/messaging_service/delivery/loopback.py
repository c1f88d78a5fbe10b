"""Where the service calls: its own machine, unless it was told otherwise. Names are for ``resolving``."""

from __future__ import annotations

import ipaddress

from yarl import URL

# Whatever the service calls is told who calls, and its own pages and /admin refuse this caller.
USER_AGENT = "messaging-service"


class NotOnThisMachineError(OSError):
    """An address outside of this machine, which is not called."""


def refuse_number_elsewhere(url: URL) -> None:
    """Raise NotOnThisMachineError for a host that is a number of another machine; no resolver is asked about one.

    The host is the one that is called: the URL has turned digits of every script and width into plain ones.
    """
    host = url.raw_host or ""
    if not (":" in host or host.replace(".", "").isdigit()):
        return
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:  # 1.1 and 134744072 are numbers too, for who opens the connection
        here = False
    if not here:
        raise NotOnThisMachineError


def is_number_elsewhere(address: str) -> bool:
    """Check whether the host of an address is a number of another machine."""
    try:
        refuse_number_elsewhere(URL(address))
    except NotOnThisMachineError:
        return True
    except ValueError:  # cannot be called at all
        return False
    return False
