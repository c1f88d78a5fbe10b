"""The routes of the service, and its error answers."""

from __future__ import annotations

from functools import cache, partial

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Match

from messaging_service.api import admin, admin_actions, fault_routes
from messaging_service.api.access import no_other_site, only_this_machine
from messaging_service.api.external import (
    Operation,
    Service,
    answer,
    create,
    execute,
    list_campaigns,
    save_segment,
)
from messaging_service.api.fault_responses import FAILED, respond, to_response
from messaging_service.api.openapi import describe
from messaging_service.api.request_log import Received
from messaging_service.api.token_endpoint import TOKEN_PATH, answer_token, refused
from messaging_service.auth.tokens import GrantRefusedError
from messaging_service.envelope import ApiResponse, FieldProblem, RejectedError, rejected
from messaging_service.pages import error_page, page_routes, wants_page

EXTERNAL_PATH = "/api/external"
_PLAIN = {
    "Not Found": "There is no such page.",
    "Method Not Allowed": "This address is for programs. It has no page.",
}


def create_app(service: Service, *, admin_for_all: bool = False) -> FastAPI:
    """Create the application; admin routes answer loopback addresses only, unless ``admin_for_all``."""
    app = FastAPI(title="Messaging service", docs_url=None, redoc_url=None)
    app.state.service = service
    app.include_router(_api(service))
    # These routes are the same in each application of a process, and building them takes a tenth of a second.
    app.router.routes += [*_admin(admin_for_all).routes, *page_routes(for_all=admin_for_all).routes]
    app.add_exception_handler(StarletteHTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_failure)
    describe(app, service.names)
    return app


def _api(service: Service) -> APIRouter:
    router = APIRouter()

    async def external(request: Request, operation: Operation, place: str) -> Response:
        content = await request.body()
        received = Received("POST", request.url.path, service.clock.time())
        work = partial(answer, service, operation, place, received, request.headers, content)
        token = request.headers.get("authorization", "").partition(" ")[2].strip()
        return await run_in_threadpool(respond, service, place, received, token, work)

    @router.post(TOKEN_PATH)
    async def token(request: Request) -> Response:
        content_type = request.headers.get("content-type", "")
        content = await request.body()
        received = Received("POST", TOKEN_PATH, service.clock.time())
        work = partial(answer_token, service, received, content_type, content)
        return await run_in_threadpool(respond, service, "token", received, None, work)

    @router.post(f"{EXTERNAL_PATH}/create/campaign")
    async def create_campaign(request: Request) -> Response:
        return await external(request, create, "create")

    @router.post(f"{EXTERNAL_PATH}/create/segment")
    async def create_segment(request: Request) -> Response:
        return await external(request, save_segment, "create")

    @router.post(f"{EXTERNAL_PATH}/execute/campaign")
    async def execute_campaign(request: Request) -> Response:
        return await external(request, execute, "execute")

    @router.post(f"{EXTERNAL_PATH}/list/campaign")
    async def list_campaign(request: Request) -> Response:
        return await external(request, list_campaigns, "list")

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return router


@cache
def _admin(for_all: bool) -> APIRouter:
    guards = [Depends(only_this_machine(for_all)), Depends(no_other_site)]
    router = APIRouter(prefix="/admin", dependencies=guards)
    for subject in (admin_actions, fault_routes, admin):
        router.include_router(subject.router)
    return router


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    allowed = {"Allow": _allowed(request)} if error.status_code == 405 else {}
    headers = {**(error.headers or {}), **allowed}
    if wants_page(request):
        text = str(error.detail)
        return error_page(request, error.status_code, _PLAIN.get(text, text), headers)
    if request.url.path == TOKEN_PATH:
        reply = refused(GrantRefusedError("invalid_request", "only POST is accepted", error.status_code))
    else:
        reply = rejected(RejectedError(error.status_code, str(error.detail)))
    return to_response(ApiResponse(reply.code, reply.body, {**reply.headers, **headers}))


def _allowed(request: Request) -> str:
    """Return the methods of all routes with this path."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in routes for method in getattr(route, "methods", None) or ()}))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if wants_page(request):
        return error_page(request, 400, "The address is not valid.")
    problems = [FieldProblem(str(item["loc"][-1]), item["msg"]) for item in error.errors()]
    return to_response(rejected(RejectedError(400, "The request is not valid.", problems)))


async def _on_failure(request: Request, _error: Exception) -> Response:
    if wants_page(request):
        return error_page(request, 500, FAILED.body["message"])
    return to_response(FAILED)
