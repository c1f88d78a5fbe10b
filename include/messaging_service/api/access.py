"""Access to the admin routes and the pages.

They are for the person at this machine only. The checks keep out four callers:

- another machine
- a web site in the same browser whose own host name resolves to loopback
- a web site that sends a form here
- the service itself, when a webhook message or a post-back has a URL on this machine
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from fastapi import HTTPException, Request

from messaging_service.delivery.loopback import USER_AGENT

_SAFE = ("GET", "HEAD", "OPTIONS")


def only_this_machine(for_all: bool) -> Callable[[Request], None]:
    """Return a dependency that answers 403 to other machines and foreign host names, unless ``for_all``.

    Calls that the service itself makes always get 403.
    """

    def check(request: Request) -> None:
        if request.headers.get("user-agent") == USER_AGENT:
            raise HTTPException(403, "The service does not answer its own webhook and post-back calls.")
        if for_all:
            return
        if request.client is None or not _is_loopback(request.client.host):
            raise HTTPException(
                403,
                "Only this machine may open this page. To allow others, start serve with --admin-for-all.",
            )
        # If a site's own host name resolves to loopback, its scripts can read this page.
        if not _is_loopback(_host_name(request.headers.get("host", ""))):
            raise HTTPException(403, "Open this page as 127.0.0.1 or localhost.")

    return check


def only_own_forms(request: Request) -> None:
    """Answer 403 unless the form comes from one of the service's own pages."""
    site = request.headers.get("sec-fetch-site")
    own = site == "same-origin" if site is not None else _is_own_origin(request)
    if not own:
        raise HTTPException(403, "The form came from another site. Nothing was changed.")


def no_other_site(request: Request) -> None:
    """Answer 403 if a browser reports that another site asks for a change. Clients such as curl send no site."""
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
