"""The HTTP application, made from the route table: who asks, what they say, what goes back, in one shape."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from typing import Literal, get_args, get_origin

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import StoreError
from holdfast.events.access import KeyRow
from holdfast.service.access import check_allowed, holder_of
from holdfast.service.dashboard.sending import page_routes
from holdfast.service.failures import RefusedError
from holdfast.service.hosts import check_origin
from holdfast.service.openapi import openapi
from holdfast.service.reading import fields_of
from holdfast.service.routes import JSON, Answer, Asked, Route
from holdfast.service.service import Service
from holdfast.service.signing_in import carried

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

REQUESTS_MAX = 1_000
"""So many requests may be under way, live feeds included."""

HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def make_app(
    service: Service,
    routes: Sequence[Route],
    *,
    allowed_hosts: Collection[str] = (),
    requests_max: int = REQUESTS_MAX,
    fronted: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> ASGIApp:
    """An ASGI application; every answer that is no stream is JSON, or text where the route says so.

    What `fronted` puts in front of it is behind the same door: it sees only requests that were meant for this service.
    """
    document = _encode(openapi(routes))

    async def describe(request: Request) -> Response:
        return _response(200, document)

    by_path: dict[str, dict[str, Route]] = {}
    for one in routes:
        by_path.setdefault(one.path, {})[one.method] = one
    app = Starlette(
        routes=[
            HttpRoute("/openapi.json", describe, methods=["GET"]),
            *page_routes(),
            *(HttpRoute(path, _endpoint(service, some), methods=list(some)) for path, some in by_path.items()),
        ],
        exception_handlers={HTTPException: _no_such_route},
    )
    app.router.redirect_slashes = False
    return _Door(fronted(app), allowed_hosts, requests_max)


class _Door:
    """Nobody gets further whose request was not meant for this service."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str], requests_max: int) -> None:
        self._app = app
        self._requests_max = requests_max
        self._under_way = 0
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            if len(headers.getlist("host")) > 1:
                raise RefusedError(400, "invalid_host", "a request names one host")
            check_origin(
                headers.get("host"),
                headers.get("origin"),
                None if _opens_page(scope, headers) else headers.get("sec-fetch-site"),
                allowed_hosts=self._allowed_hosts,
            )
        except RefusedError as refused:
            await _refusal(refused)(scope, receive, send)
            return
        if self._under_way >= self._requests_max:
            await _refusal(RefusedError(503, "too_busy", "too many requests are under way"))(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1


def _opens_page(scope: Scope, headers: Headers) -> bool:
    """Whether somebody follows a link to the page from elsewhere: it holds nothing, and no frame may show it."""
    return bool(scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate")


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
        if one.check_served is not None:
            one.check_served(service)
        # Who asks comes first: whoever may not learns nothing of what there is.
        admitted = await _admitted(service, one, request)
        try:
            fields = await fields_of(one, request)
        except RefusedError:
            if one.check_holder is not None and admitted.key is not None:
                await one.check_holder(service, admitted.key, request.path_params)
            raise
        asked = Asked(
            fields,
            one.method == "GET",
            request.headers.get("last-event-id"),
            scope=admitted.scope,
            key=admitted.key,
            secret=admitted.secret,
        )
        return _told(await _responded(service, one, asked))
    except RefusedError as refused:
        return _refusal(refused)
    except StoreError:
        details = {"retryable": True} if one.retry_code else None
        code = one.retry_code or "store_unavailable"
        return _refusal(RefusedError(503, code, "the store cannot be used now", details=details))
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
        raise unfit(error, one.request, is_text=asked.is_text) from error


class _Admitted(msgspec.Struct, frozen=True):
    """Who asks: the scope a request acts with, and the key it carries, as it is kept and as it was given."""

    scope: str | None = None
    key: KeyRow | None = None
    secret: str | None = None


async def _admitted(service: Service, one: Route, request: Request) -> _Admitted:
    if one.rule == "open":
        return _Admitted()
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise RefusedError(400, "invalid_key", "a request carries one key")
    # A key that is not good is refused even where none is needed: whoever sends one means it.
    said = carried(given[0] if given else None, request.cookies)
    key = await asyncio.to_thread(holder_of, said, service.records.key, service.clock())
    scope = key.scope if key else None
    if scope is None and one.keyless and not await service.needs_keys():
        scope = "admin"
    check_allowed(one.rule, scope, request.path_params, denied=one.denied)
    return _Admitted(scope, key, None if said is None else said.partition(" ")[2].strip())


def unfit(error: msgspec.ValidationError, kind: type[msgspec.Struct], *, is_text: bool) -> RefusedError:
    """What msgspec says names the field and the types; where a value is one of few, we name those."""
    reason, _, place = str(error).partition(" - at `$.")
    field = place.partition("`")[0].partition(".")[0].partition("[")[0]
    if reason.startswith("Invalid enum value") and (choices := _choices(kind, field)):
        reason = f"{field} is one of {', '.join(choices)}"
    if not field and "unknown field" in reason:
        return RefusedError(400 if is_text else 422, "unknown_field", reason)
    if not is_text:
        return RefusedError(422, "invalid_body", reason, details={"field": field} if field else None)
    code = f"invalid_{field}" if field.isidentifier() else "invalid_request"
    return RefusedError(400, code, reason, details={"field": field} if field else None)


def _choices(kind: type[msgspec.Struct], field: str) -> tuple[str, ...]:
    """What a field of this name may be, where it is one of a few texts."""
    types = (one.type for one in msgspec.structs.fields(kind) if one.encode_name == field)
    inner = next(types, None)
    return tuple(str(choice) for choice in get_args(inner)) if get_origin(inner) is Literal else ()


def _told(answer: Answer) -> Response:
    if isinstance(answer.body, bytes):
        return _response(answer.status, answer.body, content_type=answer.content_type, more=answer.headers)
    headers = {**_headers(), "content-type": answer.content_type, "x-accel-buffering": "no"}
    return StreamingResponse(answer.body, status_code=answer.status, headers=headers)


def _response(status: int, body: bytes, *, content_type: str = JSON, more: Mapping[str, str] | None = None) -> Response:
    return Response(body, status_code=status, headers={**_headers(), "content-type": content_type, **(more or {})})


def _headers() -> dict[str, str]:
    """The date is told here and not by the server: what is forwarded has one already."""
    return {"date": _date(int(time.time())), **HEADERS}


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def _refusal(refused: RefusedError, more: Mapping[str, str] | None = None) -> Response:
    headers = {"www-authenticate": "Bearer"} if refused.status == 401 else {}
    return _response(refused.status, _encode(refused.reply), more={**headers, **(more or {})})


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return _refusal(RefusedError(405, "method_not_allowed", "this path takes other methods"), error.headers)
    return _refusal(RefusedError(error.status_code, "not_found", "there is nothing at this path"))
