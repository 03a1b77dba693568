"""The Route value, from which decoding, access control, errors and the OpenAPI document are derived.

An error is a status, a code for programs, and one line for people.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from inspect import getdoc, iscoroutinefunction
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from holdfast.events.records import KeyRow
from holdfast.redaction import redact_secrets
from holdfast.service.context import AppContext

MESSAGE_CHARS_MAX = 400


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    details: dict[str, object] | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    """The format of every error response."""

    error: ErrorBody


class ApiError(Exception):
    """Raised anywhere in a route and answered by the app; the message is one line with credentials redacted."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Mapping[str, object] | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        # The message may quote the request, which may contain anything.
        safe_message = " ".join(redact_secrets(message).split())[:MESSAGE_CHARS_MAX]
        super().__init__(safe_message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.response = ErrorResponse(ErrorBody(code, safe_message, dict(details) if details else None))


def make_not_found_error(what: str, name: str) -> ApiError:
    return ApiError(404, f"{what}_not_found", f"no {what} {name[:80]!a}")


Method = Literal["GET", "POST", "PUT", "DELETE"]

AccessRule = Literal["open", "read", "admin", "caller"]
"""Who may call a route: anyone; keys with read access; admins; or callers that the route itself allows."""

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"
Request = TypeVar("Request", bound=msgspec.Struct)
Reply = TypeVar("Reply", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


class NonJsonResponse(msgspec.Struct, frozen=True):
    """The response is not JSON."""


class RouteResponse(msgspec.Struct, frozen=True):
    """A response; an iterator body is streamed."""

    body: bytes | AsyncIterator[bytes]
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = {}


class RouteRequest(msgspec.Struct, frozen=True):
    """A decoded request: its fields, from path and query (all text) or from path and body, and its caller.

    `key` is None if none was sent because none is required; `secret` is the key as sent.
    """

    fields: Mapping[str, object]
    is_text: bool
    last_event_id: str | None = None
    scope: str | None = None
    key: KeyRow | None = None
    secret: str | None = None


class Route(msgspec.Struct, frozen=True):
    """One HTTP route.

    keyless: until a key exists, a request without a key acts as admin.
    error_statuses: those of this route, in addition to those of every route. denied_code: if the key lacks access.
    invalid_body_status: status for a body that does not match the schema.
    body_optional: the route itself reports what is missing. retry_code: error code if the store failed.
    check_holder: refuses a key without access to what the path names, before any error in the rest of the request
    is reported. check_enabled: refuses every request if the service was started without this feature.
    """

    method: Method
    path: str
    rule: AccessRule
    summary: str
    request: type[msgspec.Struct]
    response: type[msgspec.Struct]
    respond: Callable[[AppContext, RouteRequest], Awaitable[RouteResponse]]
    keyless: bool = True
    content_type: str = JSON
    error_statuses: tuple[int, ...] = ()
    success_statuses: tuple[int, ...] = (200,)
    denied_code: str = "not_allowed"
    body_optional: bool = False
    invalid_body_status: int = 422
    retry_code: str | None = None
    check_holder: Callable[[AppContext, KeyRow, Mapping[str, str]], Awaitable[None]] | None = None
    check_enabled: Callable[[AppContext], object] | None = None

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def other_names(self) -> tuple[str, ...]:
        """Fields that come from the query or the body."""
        names = (field.encode_name for field in msgspec.structs.fields(self.request))
        return tuple(name for name in names if name not in self.path_names)

    @property
    def needs_body(self) -> bool:
        """Whether a body is required: for every PUT with fields, and for a POST with a field without default."""
        if self.body_optional:
            return False
        fields = (field for field in msgspec.structs.fields(self.request) if field.encode_name in self.other_names)
        return any(self.method == "PUT" or field.required for field in fields)


class SessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session_id: str


class EmptyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request without fields."""


def json_route(
    method: Method,
    path: str,
    run: Callable[[AppContext, Request], Reply | Awaitable[Reply]],
    *,
    rule: AccessRule,
    error_statuses: tuple[int, ...] = (),
) -> Route:
    """A route with a JSON response; types and summary are those of `run`, which runs in a thread unless it is async."""
    request, reply = get_handler_types(run)

    async def respond(context: AppContext, incoming: RouteRequest) -> RouteResponse:
        fields = decode_request_fields(incoming, request)
        result = run(context, fields) if iscoroutinefunction(run) else asyncio.to_thread(run, context, fields)
        return RouteResponse(_encode(await result))

    return Route(method, path, rule, get_summary(run), request, reply, respond, error_statuses=error_statuses)


def raw_route(
    path: str,
    run: Callable[[AppContext, Request, RouteRequest], Awaitable[RouteResponse]],
    *,
    rule: AccessRule,
    content_type: str,
) -> Route:
    """A GET route with a non-JSON response; `run` also gets the request with its caller."""
    request, _ = get_handler_types(run)

    async def respond(context: AppContext, incoming: RouteRequest) -> RouteResponse:
        return await run(context, decode_request_fields(incoming, request), incoming)

    summary = get_summary(run)
    return Route("GET", path, rule, summary, request, NonJsonResponse, respond, content_type=content_type)


def copy_fields(target: type[Reply], source: object, /, **others: object) -> Reply:
    """A response with the other fields given, and each remaining field copied from the source's attribute."""
    names = (name for name in target.__struct_fields__ if name not in others)
    return target(**{name: getattr(source, name) for name in names}, **others)


def get_handler_types(run: Callable[..., object]) -> tuple[type[Any], type[Any]]:
    """The annotated types of a handler's `request` and of its result."""
    hints = get_type_hints(run)
    return hints["request"], hints["return"]


def get_summary(run: Callable[..., object]) -> str:
    """The first paragraph of a handler's docstring, which describes its route in the OpenAPI document."""
    return " ".join((getdoc(run) or "").partition("\n\n")[0].split())


def decode_request_fields(incoming: RouteRequest, request: type[Request]) -> Request:
    """Raises msgspec.ValidationError, which names the field."""
    # Query fields are text, so "3" must convert to int; in a JSON body it must not.
    decoded = msgspec.convert(incoming.fields, request, strict=not incoming.is_text)
    # msgspec also takes the text "null" as no value, so that a filter with a typing error would select everything.
    if incoming.is_text and any(str(value).lower() == "null" for value in incoming.fields.values()):
        for field in msgspec.structs.fields(request):
            if field.encode_name in incoming.fields and getattr(decoded, field.name) is None:
                raise msgspec.ValidationError(f"Expected a value, got `null` - at `$.{field.encode_name}`")
    return decoded
