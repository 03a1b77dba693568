"""Builds the HTTP application from the route table: authentication, decoding, responses and errors for every route."""

import functools
import logging
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from typing import Literal, get_args, get_origin

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Router
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import StoreError
from holdfast.events.records import KeyRow
from holdfast.gateway.http.headers import CREDENTIAL_HEADERS, KEY_HEADER
from holdfast.gateway.routes import get_raw_path
from holdfast.service.auth.cookies import get_authorization
from holdfast.service.auth.keys import check_allowed, verify_key
from holdfast.service.auth.origins import check_origin
from holdfast.service.context import INCLUDES_SIMULATED, QUOTES_PROMPT, SIMULATED_HEADER, AppContext
from holdfast.service.dashboard.static_files import make_page_routes
from holdfast.service.http.openapi import make_openapi
from holdfast.service.http.request_parsing import decode_fields
from holdfast.service.http.routes import JSON, ApiError, Route, RouteRequest, RouteResponse
from holdfast.service.http.uvicorn_protocol import get_descriptors_max

logger = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

REQUESTS_MAX = 1_000
"""Maximum number of concurrent requests, live feeds included."""

RESERVED_REQUESTS = 100
"""Beyond REQUESTS_MAX, for requests with a key."""

UNRESERVED_SHARE = 0.75
"""Of the descriptors; the rest is for health checks, requests with a key, and our own files."""

HEALTH_PATHS = ("/healthz", "/readyz")
_KEY_HEADERS = (*CREDENTIAL_HEADERS, KEY_HEADER, b"cookie")
_KEY_START = b"hf_"

HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def make_app(
    context: AppContext,
    routes: Sequence[Route],
    *,
    allowed_hosts: Collection[str] = (),
    requests_max: int = REQUESTS_MAX,
    mounts: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """The ASGI application. Responses are JSON unless the route declares a stream or text.

    `mounts` are other applications, such as the gateway; they too get only requests that passed the host and origin
    checks, and their clients get the refusals of this one in their own format.
    """
    context.encode_refusal = functools.partial(
        _encode_refusal, tuple(mount for mount in mounts if isinstance(mount, ProviderMount))
    )

    # On demand: it takes as long as the rest of the application, and most services are never asked for it.
    @functools.cache
    def encode_openapi() -> bytes:
        return _encode(make_openapi(routes))

    async def describe(request: Request) -> Response:
        return _response(200, await run_in_threadpool(encode_openapi))

    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    api = Starlette(
        routes=[
            HttpRoute("/openapi.json", describe, methods=["GET"]),
            *make_page_routes(),
            *(
                HttpRoute(path, _endpoint(context, by_method), methods=list(by_method))
                for path, by_method in by_path.items()
            ),
        ],
        exception_handlers={HTTPException: _no_such_route},
    )
    api.router = _IndexedRouter(api.router.routes)

    async def serve_api(scope: Scope, receive: Receive, send: Send) -> None:
        no_websocket = _refusal(ApiError(404, "not_found", "no WebSocket at this path"))
        await (no_websocket if scope["type"] == "websocket" else api)(scope, receive, send)

    # Beside the API, not among its routes: Starlette's exception middleware would wrap each chunk that the gateway
    # forwards (0.2 us a chunk), and its router would try them in order.
    app = Router(mounts, redirect_slashes=False, default=serve_api)
    return _RequestGuard(app, context, allowed_hosts, requests_max)


class _IndexedRouter(Router):
    """Tries only the routes that a path can match by its number of steps and its last one, in their order.

    Starlette tries all of them in turn, which was a third of the processor time of a short request.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        super().__init__(routes, redirect_slashes=False)
        paths = [(route, route.path) for route in routes if isinstance(route, HttpRoute)]
        self._routers: dict[tuple[int, str], Router] = {}
        for steps, last in {_make_path_key(path) for _, path in paths}:
            fitting = [
                route
                for route, path in paths
                if ":path}" in path or _make_path_key(path) in ((steps, last), (steps, _ANY_STEP))
            ]
            self._routers[steps, last] = Router(fitting, redirect_slashes=False)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        steps, last = _make_path_key(scope["path"])
        router = self._routers.get((steps, last)) or self._routers.get((steps, _ANY_STEP))
        await (router.app if router is not None else super().app)(scope, receive, send)


_ANY_STEP = "{}"


def _make_path_key(path: str) -> tuple[int, str]:
    last = path.rpartition("/")[2]
    return path.count("/"), _ANY_STEP if last.startswith("{") else last


class ProviderMount(BaseRoute):
    """A mounted application whose clients expect errors in the format of a provider."""

    @abstractmethod
    def encode_refusal(self, path: str, status: int, message: str) -> tuple[int, bytes] | None:
        """Status and body of a refusal; None if the path is not below this mount."""


def _encode_refusal(mounts: tuple[ProviderMount, ...], path: str, refused: ApiError) -> tuple[int, bytes]:
    encoded = (mount.encode_refusal(path, refused.status, str(refused)) for mount in mounts)
    return next((answer for answer in encoded if answer is not None), (refused.status, _encode(refused.response)))


class _RequestGuard:
    """Refuses requests with a foreign host or origin, and requests beyond the limits of connections and requests.

    Beyond these limits health checks are still served, and requests with a key, if that turns out to be valid: a
    refused one does not hold its connection.
    """

    def __init__(self, app: ASGIApp, context: AppContext, allowed_hosts: Collection[str], requests_max: int) -> None:
        self._app = app
        self._context = context
        self._connections = context.connections
        self._requests_max = requests_max
        self._active_requests = 0
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        peer = scope["client"][0] if scope.get("client") else ""
        address = self._connections.proxies.find_address(peer, scope["headers"])
        if self._connections.proxies.is_trusted(peer):
            scope["client"] = (address, 0)
        try:
            self._check_origin(scope)
            limit = self._find_exceeded_limit(address)
            if limit is not None:
                self._check_reserved(scope, limit)
                send = _close_if_refused(send)
        except ApiError as refused:
            await self._refuse(scope, receive, send, refused)
            return
        self._active_requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._active_requests -= 1

    def _check_origin(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # Proxies may pick another one of several Host headers than we do, so the check would be void.
        if len(headers.getlist("host")) > 1:
            raise ApiError(400, "invalid_host", "a request must have exactly one Host header")
        check_origin(
            headers.get("host"),
            headers.get("origin"),
            None if _opens_page(scope, headers) else headers.get("sec-fetch-site"),
            allowed_hosts=self._allowed_hosts,
        )

    def _find_exceeded_limit(self, address: str) -> ApiError | None:
        connections = self._connections
        if connections.has_too_many(address):
            message = f"this address has more than {connections.per_address_max} connections; send a key, or use fewer"
            return ApiError(429, "too_many_connections", message, retry_after_seconds=1)
        # A request in progress may have a descriptor of its upstream beside its own.
        used = connections.open_count + self._active_requests
        if self._active_requests >= self._requests_max or used > get_descriptors_max() * UNRESERVED_SHARE:
            return ApiError(503, "too_busy", "too many concurrent requests", retry_after_seconds=1)
        return None

    def _check_reserved(self, scope: Scope, limit: ApiError) -> None:
        """Raises the limit's error unless the request may use what is reserved."""
        if scope["path"] in HEALTH_PATHS:
            return
        has_room = self._active_requests < self._requests_max + RESERVED_REQUESTS
        if not has_room or not any(name in _KEY_HEADERS and _KEY_START in value for name, value in scope["headers"]):
            self._connections.refused_count += 1
            raise limit

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, refused: ApiError) -> None:
        status, body = self._context.encode_refusal(get_raw_path(scope), refused)
        headers = {"connection": "close"} if refused.status in (429, 503) else {}
        await _refusal(refused, headers, encoded=(status, body))(scope, receive, send)


def _close_if_refused(send: Send) -> Send:
    async def send_closing(message: Message) -> None:
        if message["type"].endswith("http.response.start") and message["status"] in (401, 403, 429):
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return send_closing


def _opens_page(scope: Scope, headers: Headers) -> bool:
    """Whether a user follows a link to the dashboard from another site.

    That is safe: the page itself holds no data, and its headers forbid framing.
    """
    return bool(scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate")


def _endpoint(context: AppContext, routes: Mapping[str, Route]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        route = routes["GET" if request.method == "HEAD" else request.method]
        started = time.monotonic()
        INCLUDES_SIMULATED.set(request.headers.get(SIMULATED_HEADER) == "include")
        response = await _respond(context, route, request)
        seconds = time.monotonic() - started
        context.request_metrics.count_request(route.method, route.path, status=response.status_code, seconds=seconds)
        return response

    return endpoint


async def _respond(context: AppContext, route: Route, request: Request) -> Response:
    try:
        if route.check_enabled is not None:
            route.check_enabled(context)
        # Authenticate before decoding, so that a caller without access learns nothing about what exists.
        admitted = await _authenticate(context, route, request)
        QUOTES_PROMPT.set(admitted.scope == "admin")
        try:
            fields = await decode_fields(route, request)
        except ApiError:
            # A caller without access gets 403, not a hint at what is wrong with the request.
            if route.check_holder is not None and admitted.key is not None:
                await route.check_holder(context, admitted.key, request.path_params)
            raise
        call = RouteRequest(
            fields,
            route.method == "GET",
            request.headers.get("last-event-id"),
            scope=admitted.scope,
            key=admitted.key,
            secret=admitted.secret,
        )
        try:
            return _to_response(await route.respond(context, call))
        except msgspec.ValidationError as error:
            raise make_validation_error(error, route.request, is_text=call.is_text) from error
    except ApiError as refused:
        return _refusal(refused)
    except StoreError:
        details = {"retryable": True} if route.retry_code else None
        code = route.retry_code or "store_unavailable"
        return _refusal(ApiError(503, code, "the store is unavailable", details=details))
    except ClientDisconnect:
        # nginx's code for "client closed request"; it only appears in the metrics.
        return Response(status_code=499)
    except Exception as error:  # noqa: BLE001 - every failure must reach the client in our error format
        # Log the type only: the message could quote a prompt.
        logger.error("%s %s failed: %s", route.method, route.path, type(error).__name__)
        return _refusal(ApiError(500, "internal_error", "the service failed; see its log"))


class _Admitted(msgspec.Struct, frozen=True):
    """The authenticated caller: the scope the request acts with, the stored key, and the key as sent."""

    scope: str | None = None
    key: KeyRow | None = None
    secret: str | None = None


async def _authenticate(context: AppContext, route: Route, request: Request) -> _Admitted:
    if route.rule == "open":
        return _Admitted()
    authorization = request.headers.getlist("authorization")
    if len(authorization) > 1:
        raise ApiError(400, "invalid_key", "a request must have at most one Authorization header")
    # An invalid key is refused even if none is required: a client that sends one relies on it.
    credential = get_authorization(authorization[0] if authorization else None, request.cookies)
    key = await _verify_key(context, request, credential)
    scope = key.scope if key else None
    if scope is None and route.keyless and not await context.needs_keys():
        scope = "admin"
    check_allowed(route.rule, scope, denied=route.denied_code)
    return _Admitted(scope, key, None if credential is None else credential.partition(" ")[2].strip())


async def _verify_key(context: AppContext, request: Request, credential: str | None) -> KeyRow | None:
    if credential is None:
        return None
    address, sent, now = request.client.host if request.client else "", credential.encode(), context.clock()
    wait = context.failed_keys.find_wait_seconds(address, sent, now)
    if wait:
        message = "too many requests from this address with a wrong key"
        raise ApiError(429, "too_many_failed_keys", message, retry_after_seconds=wait)
    try:
        key = await context.find_batches(verify_key, functools.partial(_verify_keys, context)).run((credential, now))
    except ApiError:
        context.failed_keys.add(address, now)
        raise
    context.failed_keys.add_valid(sent)
    return key


def _verify_keys(context: AppContext, calls: Sequence[tuple[str, float]]) -> list[KeyRow | Exception | None]:
    """Reads each key once, after all of these requests came."""
    find = functools.cache(context.records.key)
    results: list[KeyRow | Exception | None] = []
    for credential, now in calls:
        try:
            results.append(verify_key(credential, find, now))
        except ApiError as refused:
            results.append(refused)
    return results


def make_validation_error(error: msgspec.ValidationError, kind: type[msgspec.Struct], *, is_text: bool) -> ApiError:
    """Turns msgspec's message, which names field and types, into a response; for an enum it lists the choices."""
    reason, _, location = str(error).partition(" - at `$.")
    field = location.partition("`")[0].partition(".")[0].partition("[")[0]
    if reason.startswith("Invalid enum value") and (choices := _choices(kind, field)):
        reason = f"{field} must be one of {', '.join(choices)}"
    if not field and "unknown field" in reason:
        return ApiError(400 if is_text else 422, "unknown_field", reason)
    if not is_text:
        return ApiError(422, "invalid_body", reason, details={"field": field} if field else None)
    code = f"invalid_{field}" if field.isidentifier() else "invalid_request"
    return ApiError(400, code, reason, details={"field": field} if field else None)


def _choices(kind: type[msgspec.Struct], field: str) -> tuple[str, ...]:
    """The values of a Literal field; empty for a field of another type."""
    types = (info.type for info in msgspec.structs.fields(kind) if info.encode_name == field)
    field_type = next(types, None)
    return tuple(str(choice) for choice in get_args(field_type)) if get_origin(field_type) is Literal else ()


def _to_response(answer: RouteResponse) -> Response:
    if isinstance(answer.body, bytes):
        return _response(answer.status, answer.body, content_type=answer.content_type, headers_extra=answer.headers)
    # x-accel-buffering: nginx would otherwise hold back server-sent events.
    headers = {**_headers(), "content-type": answer.content_type, "x-accel-buffering": "no"}
    return StreamingResponse(answer.body, status_code=answer.status, headers=headers)


def _response(
    status: int, body: bytes, *, content_type: str = JSON, headers_extra: Mapping[str, str] | None = None
) -> Response:
    return Response(
        body, status_code=status, headers={**_headers(), "content-type": content_type, **(headers_extra or {})}
    )


def _headers() -> dict[str, str]:
    """Sets the date here instead of in uvicorn, because forwarded responses already have the provider's."""
    return {"date": _date(int(time.time())), **HEADERS}


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def _refusal(
    refused: ApiError, headers_extra: Mapping[str, str] | None = None, *, encoded: tuple[int, bytes] | None = None
) -> Response:
    """`encoded` is the status and body in another format than ours."""
    headers = {"www-authenticate": "Bearer"} if refused.status == 401 else {}
    if refused.retry_after_seconds is not None:
        headers["retry-after"] = str(refused.retry_after_seconds)
    status, body = encoded or (refused.status, _encode(refused.response))
    return _response(status, body, headers_extra={**headers, **(headers_extra or {})})


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return _refusal(ApiError(405, "method_not_allowed", "this path does not support that method"), error.headers)
    return _refusal(ApiError(error.status_code, "not_found", "no route at this path"))
