"""Who may look into the service, and whose forms it takes.

What happened here is for the person at this machine. Four strangers could come by: another machine, a web site
in the same browser that reaches loopback under a name of its own, a web site that sends a form here, and a webhook
message or post-back that the service itself calls on this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from fastapi import HTTPException, Request

from messaging_service.delivery.loopback import USER_AGENT

_SAFE = ("GET", "HEAD", "OPTIONS")


def only_this_machine(for_all: bool) -> Callable[[Request], None]:
    """Make a dependency that answers 403 to other machines and to foreign host names, unless ``for_all``.

    What the service itself calls is never let in.
    """

    def check(request: Request) -> None:
        if request.headers.get("user-agent") == USER_AGENT:
            raise HTTPException(403, "The service does not answer what it calls itself.")
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
    own = site == "same-origin" if site is not None else _is_own_origin(request)
    if not own:
        raise HTTPException(403, "The form came from elsewhere. Nothing was changed.")


def no_other_site(request: Request) -> None:
    """Answer 403 where a browser says that another site asks for a change; curl and the like say nothing of sites."""
    if request.method in _SAFE:
        return
    headers = request.headers
    foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    if foreign or ("origin" in headers and not _is_own_origin(request)):
        raise HTTPException(403, "The request came from another site. Nothing was changed.")


def _is_own_origin(request: Request) -> bool:
    try:
        origin = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:
        return False
    return origin == request.headers.get("host", "") != ""


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
