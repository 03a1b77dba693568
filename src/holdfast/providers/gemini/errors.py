"""Decodes and encodes Gemini's error responses."""

import re
from collections.abc import Mapping

import msgspec

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.errors import STATUS_BY_FAILURE, make_refusal
from holdfast.providers.json_splice import decode_or_none
from holdfast.types.blocks import replace_surrogates
from holdfast.types.json_encoding import encode_json

_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_STATUSES = {name: status for status, name in _NAMES.items()}
_DELAY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?s")
_BAD_KEY = "API_KEY_INVALID"


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    retry_delay: str | None = None
    reason: str | None = None


class _WireError(msgspec.Struct, frozen=True):
    message: str = ""
    status: str = ""
    code: int = 0
    details: tuple[msgspec.Raw, ...] | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _WireError


_decode_body = msgspec.json.Decoder(_ErrorBody | tuple[_ErrorBody, ...]).decode
_decode_detail = msgspec.json.Decoder(_Detail).decode


def decode_gemini_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    error = _decode_error(body)
    delay, bad_key = _decode_details(error)
    # Gemini reports an unknown API key as INVALID_ARGUMENT, not as UNAUTHENTICATED.
    return make_refusal(status, headers, error.message, kind="auth" if bad_key else None, retry_after=delay)


def decode_gemini_stream_error(body: bytes) -> ProviderError:
    """The error in the middle of a stream, after HTTP status 200."""
    error = _decode_error(body)
    status = error.code if 400 <= error.code < 600 else _STATUSES.get(error.status, 500)
    return decode_gemini_error(status, {}, body)


def encode_gemini_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    code = STATUS_BY_FAILURE[kind] if status is None else status
    name = _NAMES.get(code, "INVALID_ARGUMENT" if 400 <= code < 500 else "INTERNAL")
    return code, encode_json({"error": {"code": code, "message": replace_surrogates(message), "status": name}})


def _decode_error(body: bytes) -> _WireError:
    """A stream without `alt=sse` reports its errors in a list."""
    decoded = decode_or_none(_decode_body, body)
    if isinstance(decoded, _ErrorBody):
        return decoded.error
    return decoded[0].error if decoded else _WireError()


def _decode_details(error: _WireError) -> tuple[float | None, bool]:
    """The retry delay, if there is one, and whether the API key was refused."""
    delay: float | None = None
    bad_key = False
    for raw in error.details or ():
        detail = decode_or_none(_decode_detail, bytes(raw)) or _Detail()
        bad_key = bad_key or detail.reason == _BAD_KEY
        if detail.retry_delay and _DELAY.fullmatch(detail.retry_delay):
            delay = float(detail.retry_delay[:-1])
    return delay, bad_key
