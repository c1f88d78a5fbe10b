"""The restriction of calls to this machine, for IP addresses; ``resolver`` restricts host names."""

from __future__ import annotations

import ipaddress

from yarl import URL

# All calls carry this user agent. The service's own pages and /admin refuse it.
USER_AGENT = "messaging-service"


class NotOnThisMachineError(OSError):
    """The service does not call an address, because it is on another machine."""


def refuse_number_elsewhere(url: URL) -> None:
    """Raise NotOnThisMachineError if the host is the IP address of another machine. The resolver never sees these.

    ``raw_host`` is the host that is really called: the URL has normalised digits of other scripts and widths.
    """
    host = url.raw_host or ""
    if not (":" in host or host.replace(".", "").isdigit()):
        return
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:  # sockets also accept forms such as 1.1 and 134744072
        here = False
    if not here:
        raise NotOnThisMachineError


def is_number_elsewhere(address: str) -> bool:
    """Check whether the host of a URL is the IP address of another machine."""
    try:
        refuse_number_elsewhere(URL(address))
    except NotOnThisMachineError:
        return True
    except ValueError:  # not a URL that can be called
        return False
    return False
