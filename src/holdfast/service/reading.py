"""Decodes a request into fields by name, from its path and its query or body, within size limits."""

import re

import msgspec
from starlette.requests import Request

from holdfast.service.failures import RefusedError
from holdfast.service.routes import JSON, Route

BODY_BYTES_MAX = 1_000_000
QUERY_BYTES_MAX = 8_000

_LENGTH = re.compile(r"[0-9]{1,15}")


async def fields_of(route: Route, request: Request) -> dict[str, object]:
    """Raises RefusedError if the request is malformed or too large, or if a field occurs twice."""
    fields = _query_fields(request) if route.method == "GET" else await _body_fields(route, request)
    repeated = fields.keys() & request.path_params.keys()
    if repeated:
        raise RefusedError(400, "said_twice", f"{min(repeated)} is already in the path")
    return {**fields, **request.path_params}


def _query_fields(request: Request) -> dict[str, object]:
    if len(request.url.query) > QUERY_BYTES_MAX:
        raise RefusedError(400, "invalid_request", "the query is too long")
    fields: dict[str, object] = {}
    for name, value in request.query_params.multi_items():
        if name in fields:
            raise RefusedError(400, "said_twice", "a field occurs twice in the query")
        fields[name] = value
    return fields


async def _body_fields(route: Route, request: Request) -> dict[str, object]:
    if request.url.query:
        raise RefusedError(400, "unknown_field", "this route takes no query; put the fields into the body")
    body = await _body(request)
    if not body and route.needs_body:
        raise RefusedError(route.unfit_status, "body_required", "this route requires a JSON object as its body")
    if not body:
        return {}
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON:
        raise RefusedError(415, "unsupported_media_type", f"the body must be {JSON}")
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(400, "malformed_json", "the body is not valid JSON") from error
    if not isinstance(fields, dict):
        raise RefusedError(route.unfit_status, "invalid_body", "the body must be a JSON object")
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


def _too_large() -> RefusedError:
    return RefusedError(413, "body_too_large", f"a body may have at most {BODY_BYTES_MAX} bytes")
