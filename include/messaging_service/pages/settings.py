"""The page Settings > Integrations > API Integration: client IDs (section 2.2) and apps with their tokens."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from messaging_service.api.access import only_own_forms
from messaging_service.api.external import ServiceDep
from messaging_service.auth.client_ids import (
    ClientId,
    ClientType,
    RegistrationError,
    add_app,
    add_key_client,
    add_secret_client,
    end_of_day,
)
from messaging_service.auth.public_keys import KeyRefusedError, read_public_key
from messaging_service.auth.scopes import ALL_SCOPES, SCOPES, UnknownScopeError, read_scopes
from messaging_service.auth.tokens import machine_time
from messaging_service.pages.layout import PageRoute, page
from messaging_service.store import Store
from messaging_service.tables import apps, client_ids, spent_forms

router = APIRouter(route_class=PageRoute)

_ADDRESS = "/settings/integrations/api"
_SOON = timedelta(days=30)
_Text = Annotated[str, Form(max_length=100, pattern=r"^[^\x00]*$")]
_Pem = Annotated[str, Form(max_length=20_000)]
_OWN_FORM = [Depends(only_own_forms)]


@router.get(_ADDRESS)
def show(request: Request, service: ServiceDep) -> Response:
    """Show the client IDs and the apps."""
    return _overview(request, service.store)


@router.get(f"{_ADDRESS}/add-client-id")
def ask(request: Request) -> Response:
    """Show the form of a new client ID."""
    return _form(request, {"type": ClientType.PUBLIC_KEY, "scopes": ALL_SCOPES})


@router.post(f"{_ADDRESS}/add-client-id", dependencies=_OWN_FORM)
def add_client_id(  # noqa: PLR0913 - the fields of a form
    request: Request,
    service: ServiceDep,
    form: _Text,
    name: _Text = "",
    type: Annotated[ClientType, Form()] = ClientType.PUBLIC_KEY,  # noqa: A002  # the field's name
    expires_at: _Text = "",
    key: _Pem = "",
    scopes: Annotated[tuple[str, ...], Form()] = (),
) -> Response:
    """Add a client ID, and show it with its secret."""
    given = {"name": name, "type": type, "expires_at": expires_at, "key": key, "scopes": scopes}
    _spend(service.store, form)
    try:
        client, secret = _add_client(service.store, given)
    except (RegistrationError, UnknownScopeError) as error:
        return _form(request, given, str(error))
    # Answer the form directly, without a redirect: the secret must not have a URL, and is shown only once.
    return page(request, "client_added.html", client=client, secret=secret, key=_key(client.key_text))


@router.post(f"{_ADDRESS}/add-app", dependencies=_OWN_FORM)
def add_app_of_form(
    request: Request, service: ServiceDep, name: _Text = "", time_zone: _Text = "UTC"
) -> Response:
    """Add an app."""
    try:
        if not name.strip():
            raise RegistrationError("the app needs a name")
        add_app(service.store, name.strip(), time_zone.strip() or "UTC", machine_time())
    except RegistrationError as error:
        return _overview(request, service.store, {"name": name, "time_zone": time_zone, "error": str(error)})
    return RedirectResponse(f"{_ADDRESS}#apps", 303)


def _overview(request: Request, store: Store, app: dict[str, str] | None = None) -> Response:
    with store.read() as connection:
        clients = connection.execute(select(client_ids).order_by(client_ids.c.created_at.desc())).all()
        its_apps = connection.execute(select(apps).order_by(apps.c.id)).all()
    return page(
        request,
        "settings.html",
        status=400 if app else 200,
        clients=[(row, _key(row.key), _ending(row.expires_at)) for row in clients],
        apps=its_apps,
        scopes=SCOPES,
        app=app or {"name": "", "time_zone": "UTC", "error": ""},
    )


def _form(request: Request, given: dict[str, Any], error: str = "") -> Response:
    values = {"name": "", "expires_at": "", "key": "", **given}
    return page(
        request,
        "add_client.html",
        status=400 if error else 200,
        form=secrets.token_urlsafe(16),
        given=values,
        error=error,
        scopes=SCOPES,
        today=machine_time().date().isoformat(),
    )


def _spend(store: Store, form: str) -> None:
    """Accept each form only once, so that a reload neither adds another client ID nor shows a secret."""
    try:
        with store.write() as connection:
            connection.execute(insert(spent_forms).values(form=form, spent_at=machine_time().timestamp()))
    except IntegrityError:
        raise HTTPException(
            409, "This form was already sent. Its client ID is in the list; its secret is not shown again."
        ) from None


def _add_client(store: Store, given: dict[str, Any]) -> tuple[ClientId, str | None]:
    name, expires_at = given["name"].strip(), _end_of(given["expires_at"])
    if not name:
        raise RegistrationError("the client ID needs a name")
    scopes = read_scopes(given["scopes"])
    if not scopes:
        raise RegistrationError("select at least one scope: without any, the client ID cannot do anything")
    if given["type"] is ClientType.SECRET:
        return add_secret_client(store, name, machine_time(), expires_at, scopes)
    if not given["key"].strip():
        raise RegistrationError("paste an X.509 certificate or an SPKI public key, or choose the type Secret")
    return add_key_client(store, name, given["key"], machine_time(), expires_at, scopes), None


def _end_of(day: str) -> datetime | None:
    if not day.strip():
        return None
    try:
        return end_of_day(day.strip())
    except ValueError:
        raise RegistrationError("the expiry must be a date, such as 2030-12-31") from None


def _key(pem: str | None) -> dict[str, str] | None:
    if pem is None:
        return None
    try:
        key = read_public_key(pem)
    except KeyRefusedError as error:
        return {"kind": "", "algorithms": str(error)}
    kind = "X.509 certificate" if key.expires_at else "SPKI public key"
    return {"kind": kind, "algorithms": ", ".join(key.algorithms)}


def _ending(expires_at: float | None) -> str:
    if expires_at is None:
        return ""
    left = datetime.fromtimestamp(expires_at, UTC) - machine_time()
    if left <= timedelta(0):
        return "expired"
    return f"expires in {left.days} days" if left < _SOON else ""
