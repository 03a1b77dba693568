"""Decodes and encodes errors in OpenAI's format, which OpenRouter shares with small differences."""

from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import mend_surrogates
from holdfast.canonical.encoding import plain_json
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.failures import STATUS_OF_KIND, kind_of, one_line, retry_after

_OVERFLOW = "context_length_exceeded"
_QUOTA = "insufficient_quota"

# Inside a stream there is no HTTP status; the error's type or code replaces it.
_STATUSES = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    _OVERFLOW: 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout": 408,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "requests": 429,
    "tokens": 429,
    _QUOTA: 429,
}

_TYPES_AND_CODES: dict[int, tuple[str, str | None]] = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("not_found_error", None),
    408: ("timeout", None),
    429: ("requests", "rate_limit_exceeded"),
}


class _WireError(msgspec.Struct, frozen=True):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None


class _ErrorBody(_WireError, frozen=True):
    """The error is either nested under `error` or spread over the top level."""

    error: _WireError | str | None = None


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    return _failure(status, headers, _decode_error(body))


def read_stream_error(body: bytes) -> ProviderError:
    """The error in the middle of a stream, after HTTP status 200."""
    error = _decode_error(body)
    return _failure(_status_of(error), {}, error)


def write_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    """In OpenAI's format; `other` with status 429 is an exhausted quota."""
    if status is None:
        status = 400 if kind == "context_overflow" else STATUS_OF_KIND[kind]
    fallback = "invalid_request_error" if 400 <= status < 500 else "server_error"
    name, code = _TYPES_AND_CODES.get(status, (fallback, None))
    if kind == "context_overflow":
        code = _OVERFLOW
    if kind == "other" and status == 429:
        name = code = _QUOTA
    error = {"message": mend_surrogates(message), "type": name, "param": None, "code": code}
    return status, plain_json({"error": error})


def write_numbered_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    """In OpenRouter's format: the code is the HTTP status."""
    code = STATUS_OF_KIND[kind] if status is None else status
    return code, plain_json({"error": {"code": code, "message": mend_surrogates(message)}})


def _failure(status: int, headers: Mapping[str, str], error: _WireError) -> ProviderError:
    return ProviderError(
        _kind(status, error),
        one_line(error.message or "") or f"the provider answered with HTTP status {status} and no reason",
        status=status,
        retry_after_seconds=retry_after(headers),
    )


def _kind(status: int, error: _WireError) -> FailureKind:
    if _QUOTA in (error.code, error.type):
        # An exhausted quota has the status of a rate limit (429), but waiting does not help.
        return "other"
    if error.code == _OVERFLOW:
        return "context_overflow"
    return kind_of(status, error.message or "")


def _status_of(error: _WireError) -> int:
    if isinstance(error.code, int):
        return error.code if 400 <= error.code < 600 else 500
    return _STATUSES.get(error.code or "") or _STATUSES.get(error.type or "", 500)


def _decode_error(body: bytes) -> _WireError:
    try:
        decoded = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _WireError()
    if isinstance(decoded.error, str):
        return _WireError(message=decoded.error)
    return decoded.error or decoded
