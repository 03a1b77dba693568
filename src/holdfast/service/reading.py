"""What a request says: fields by name from its path and its query or body, within limits."""

import re

import msgspec
from starlette.requests import Request

from holdfast.service.failures import RefusedError
from holdfast.service.routes import JSON, Route

BODY_BYTES_MAX = 1_000_000
QUERY_BYTES_MAX = 8_000

_LENGTH = re.compile(r"[0-9]{1,15}")


async def fields_of(one: Route, request: Request) -> dict[str, object]:
    """Raises RefusedError for what cannot be read, is too large, or is said twice."""
    fields = _queried(request) if one.method == "GET" else await _told(one, request)
    twice = fields.keys() & request.path_params.keys()
    if twice:
        raise RefusedError(400, "said_twice", f"{min(twice)} stands in the path already")
    return {**fields, **request.path_params}


def _queried(request: Request) -> dict[str, object]:
    if len(request.url.query) > QUERY_BYTES_MAX:
        raise RefusedError(400, "invalid_request", "the query is too long")
    fields: dict[str, object] = {}
    for name, value in request.query_params.multi_items():
        if name in fields:
            raise RefusedError(400, "said_twice", "a field is said twice in the query")
        fields[name] = value
    return fields


async def _told(one: Route, request: Request) -> dict[str, object]:
    if request.url.query:
        raise RefusedError(400, "unknown_field", "this request takes no query; put its fields into the body")
    body = await _body(request)
    if not body and one.needs_body:
        raise RefusedError(one.unfit_status, "body_required", "this request has a JSON object as its body")
    if not body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise RefusedError(415, "unsupported_media_type", f"a body is {JSON}")
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(400, "malformed_json", "the body is not valid JSON") from error
    if not isinstance(found, dict):
        raise RefusedError(one.unfit_status, "invalid_body", "the body is a JSON object")
    return found


async def _body(request: Request) -> bytes:
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
    return RefusedError(413, "body_too_large", f"a body has {BODY_BYTES_MAX} bytes at most")
