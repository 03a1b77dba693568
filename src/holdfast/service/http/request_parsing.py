"""Decodes a request into fields by name, within size limits, and parses the times and time windows in them."""

import datetime
import re
from typing import Annotated

import msgspec
from starlette.requests import Request

from holdfast.service.http.routes import JSON, ApiError, Route

BODY_BYTES_MAX = 1_000_000
QUERY_BYTES_MAX = 8_000
_LENGTH = re.compile(r"[0-9]{1,15}")
DEFAULT_DAYS = 7

TimeText = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""A time with offset. Decoded as text first, because msgspec would accept a plain number as seconds."""

_Aware = Annotated[datetime.datetime, msgspec.Meta(tz=True)]


async def decode_fields(route: Route, request: Request) -> dict[str, object]:
    """Raises ApiError if the request is malformed or too large, or if a field occurs twice."""
    fields = _query_fields(request) if route.method == "GET" else await _body_fields(route, request)
    repeated = fields.keys() & request.path_params.keys()
    if repeated:
        raise ApiError(400, "duplicate_field", f"{min(repeated)} is already in the path")
    return {**fields, **request.path_params}


def _query_fields(request: Request) -> dict[str, object]:
    if len(request.url.query) > QUERY_BYTES_MAX:
        raise ApiError(400, "invalid_request", "the query is too long")
    fields: dict[str, object] = {}
    for name, value in request.query_params.multi_items():
        if name in fields:
            raise ApiError(400, "duplicate_field", "a field occurs twice in the query")
        fields[name] = value
    return fields


async def _body_fields(route: Route, request: Request) -> dict[str, object]:
    if request.url.query:
        raise ApiError(400, "unknown_field", "this route takes no query; put the fields into the body")
    body = await _body(request)
    if not body and route.needs_body:
        raise ApiError(route.invalid_body_status, "body_required", "this route requires a JSON object as its body")
    if not body:
        return {}
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON:
        raise ApiError(415, "unsupported_media_type", f"the body must be {JSON}")
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "malformed_json", "the body is not valid JSON") from error
    if not isinstance(fields, dict):
        raise ApiError(route.invalid_body_status, "invalid_body", "the body must be a JSON object")
    return fields


async def _body(request: Request) -> bytes:
    # Refuse by the declared length first, before anything is read; a chunked body is counted below.
    length = request.headers.get("content-length", "0")
    if not _LENGTH.fullmatch(length) or int(length) > BODY_BYTES_MAX:
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise _too_large()
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large() -> ApiError:
    return ApiError(413, "body_too_large", f"a body may have at most {BODY_BYTES_MAX} bytes")


class TimeWindow(msgspec.Struct, frozen=True):
    """`start` is inclusive, `end` exclusive; both are null for an unlimited window."""

    start: datetime.datetime | None
    end: datetime.datetime | None


def make_window(start: float, end: float) -> TimeWindow:
    return TimeWindow(to_datetime(start), to_datetime(end))


def parse_window(start: str | None, end: str | None, *, now: float) -> tuple[float, float]:
    """Start and end of a window; by default the last seven days."""
    until = now if end is None else parse_time(end)
    since = until - DEFAULT_DAYS * 86_400 if start is None else parse_time(start)
    if since >= until:
        raise ApiError(400, "invalid_time_window", "`from` must be earlier than `to`")
    return since, until


def parse_time(text: str) -> float:
    """Seconds since the epoch."""
    try:
        return msgspec.convert(text, _Aware, strict=True).astimezone(datetime.UTC).timestamp()
    except (msgspec.ValidationError, OverflowError, ValueError) as error:
        message = "`from` and `to` must be times with an offset, such as 2026-11-01T00:00:00Z"
        raise ApiError(400, "invalid_time_window", message) from error


def to_datetime(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.UTC)


def to_optional_datetime(at: float | None) -> datetime.datetime | None:
    return None if at is None else to_datetime(at)
