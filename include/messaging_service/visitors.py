"""Who may look into the service, and whose forms it takes.

What happened here is for the person at this machine. Three strangers could come by: another machine, a web site
in the same browser that reaches loopback under a name of its own, and a web site that sends a form here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from fastapi import HTTPException, Request


def only_this_machine(for_all: bool) -> Callable[[Request], None]:
    """Make a dependency that answers 403 to other machines and to foreign host names, unless ``for_all``."""

    def check(request: Request) -> None:
        if for_all:
            return
        if request.client is None or not _is_loopback(request.client.host):
            raise HTTPException(403, "This page answers this machine only; see serve --admin-for-all.")
        # A foreign name that resolves to loopback would make this page the site's own, and readable for it.
        if not _is_loopback(_host_name(request.headers.get("host", ""))):
            raise HTTPException(403, "This page answers under 127.0.0.1 and localhost only.")

    return check


def only_own_forms(request: Request) -> None:
    """Answer 403 to a form that none of the service's own pages sent."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        own = site == "same-origin"
    else:
        origin = request.headers.get("origin", "")
        own = urlsplit(origin).netloc == request.headers.get("host", "") != ""
    if not own:
        raise HTTPException(403, "The form came from elsewhere. Nothing was changed.")


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
