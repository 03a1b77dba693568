"""The HTTP application, made from the route table: who asks, what they say, what goes back, in one shape."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import StoreError
from holdfast.events.access import KeyRow
from holdfast.service.access import check_allowed, key_of
from holdfast.service.failures import RefusedError
from holdfast.service.hosts import check_origin
from holdfast.service.openapi import openapi
from holdfast.service.reading import fields_of
from holdfast.service.routes import JSON, Answer, Asked, Route
from holdfast.service.service import Service

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def make_app(service: Service, routes: Sequence[Route], *, allowed_hosts: Collection[str] = ()) -> ASGIApp:
    """An ASGI application; every answer that is no stream is JSON, or text where the route says so."""
    document = _encode(openapi(routes))

    async def describe(request: Request) -> Response:
        return _response(200, document)

    by_path: dict[str, dict[str, Route]] = {}
    for one in routes:
        by_path.setdefault(one.path, {})[one.method] = one
    app = Starlette(
        routes=[
            HttpRoute("/openapi.json", describe, methods=["GET"]),
            *(HttpRoute(path, _endpoint(service, some), methods=list(some)) for path, some in by_path.items()),
        ],
        exception_handlers={HTTPException: _no_such_route},
    )
    app.router.redirect_slashes = False
    return _Door(app, allowed_hosts)


class _Door:
    """Nobody gets further whose request was not meant for this service."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str]) -> None:
        self._app = app
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Request(scope).headers
        try:
            if len(headers.getlist("host")) > 1:
                raise RefusedError(400, "invalid_host", "a request names one host")
            check_origin(
                headers.get("host"),
                headers.get("origin"),
                headers.get("sec-fetch-site"),
                allowed_hosts=self._allowed_hosts,
            )
        except RefusedError as refused:
            await _refusal(refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _endpoint(service: Service, routes: Mapping[str, Route]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        one = routes["GET" if request.method == "HEAD" else request.method]
        started = time.monotonic()
        response = await _answered(service, one, request)
        seconds = time.monotonic() - started
        service.counted.request(one.method, one.path, status=response.status_code, seconds=seconds)
        return response

    return endpoint


async def _answered(service: Service, one: Route, request: Request) -> Response:
    try:
        # Who asks comes first: whoever may not learns nothing of what there is.
        key = await _admitted(service, one, request)
        fields = await fields_of(one, request)
        asked = Asked(fields, one.method == "GET", request.headers.get("last-event-id"), key)
        return _told(await _responded(service, one, asked))
    except RefusedError as refused:
        return _refusal(refused)
    except StoreError:
        return _refusal(RefusedError(503, "store_unavailable", "the store cannot be used now"))
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:  # noqa: BLE001 - whatever it was, whoever asked gets an answer in our shape
        # The message of the error could quote a prompt; its type cannot.
        logger.error("%s %s failed: %s", one.method, one.path, type(error).__name__)
        return _refusal(RefusedError(500, "internal_error", "the service failed; its log says where"))


async def _responded(service: Service, one: Route, asked: Asked) -> Answer:
    try:
        return await one.respond(service, asked)
    except msgspec.ValidationError as error:
        raise unfit(error, is_text=asked.is_text) from error


async def _admitted(service: Service, one: Route, request: Request) -> KeyRow | None:
    """The key of a request that may go on; None where it needs none."""
    if one.rule == "open":
        return None
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise RefusedError(400, "invalid_key", "a request carries one key")
    # A key that is not good is refused even where none is needed: whoever sends one means it.
    key = await asyncio.to_thread(key_of, given[0] if given else None, service.records.key, service.clock())
    scope = key.scope if key else None
    if scope is None and one.keyless and not await service.needs_keys():
        scope = "admin"
    check_allowed(one.rule, scope, request.path_params, denied=one.denied)
    return key


def unfit(error: msgspec.ValidationError, *, is_text: bool) -> RefusedError:
    """What msgspec says names the field and the types, and quotes no value."""
    reason, _, place = str(error).partition(" - at `$.")
    field = place.partition("`")[0].partition(".")[0].partition("[")[0]
    if not field and "unknown field" in reason:
        return RefusedError(400 if is_text else 422, "unknown_field", reason)
    if not is_text:
        return RefusedError(422, "invalid_body", reason, details={"field": field} if field else None)
    code = f"invalid_{field}" if field.isidentifier() else "invalid_request"
    return RefusedError(400, code, reason, details={"field": field} if field else None)


def _told(answer: Answer) -> Response:
    if isinstance(answer.body, bytes):
        return _response(answer.status, answer.body, content_type=answer.content_type, more=answer.headers)
    headers = {**HEADERS, "content-type": answer.content_type, "x-accel-buffering": "no"}
    return StreamingResponse(answer.body, status_code=answer.status, headers=headers)


def _response(status: int, body: bytes, *, content_type: str = JSON, more: Mapping[str, str] | None = None) -> Response:
    return Response(body, status_code=status, headers={**HEADERS, "content-type": content_type, **(more or {})})


def _refusal(refused: RefusedError, more: Mapping[str, str] | None = None) -> Response:
    headers = {"www-authenticate": "Bearer"} if refused.status == 401 else {}
    return _response(refused.status, _encode(refused.reply), more={**headers, **(more or {})})


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return _refusal(RefusedError(405, "method_not_allowed", "this path takes other methods"), error.headers)
    return _refusal(RefusedError(error.status_code, "not_found", "there is nothing at this path"))
