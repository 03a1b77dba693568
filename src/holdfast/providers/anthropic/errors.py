"""Decodes and encodes Anthropic's error responses."""

from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import mend_surrogates
from holdfast.canonical.encoding import plain_json
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.failures import STATUS_OF_KIND, kind_of, one_line, retry_after

# HTTP status and error type (Anthropic, "Errors").
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STATUSES = {name: status for status, name in _TYPES.items()}


class _WireError(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _WireError


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    error = _decode_error(body)
    message = error.message if error else ""
    return ProviderError(
        kind_of(status, message),
        one_line(message) or f"the provider answered with HTTP status {status} and no reason",
        status=status,
        retry_after_seconds=retry_after(headers),
    )


def read_stream_error(body: bytes) -> ProviderError:
    """The error in the middle of a stream, after HTTP status 200."""
    error = _decode_error(body)
    return read_error(_STATUSES.get(error.type, 500) if error else 500, {}, body)


def write_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    code = STATUS_OF_KIND[kind] if status is None else status
    name = _TYPES.get(code, "invalid_request_error" if 400 <= code < 500 else "api_error")
    error = {"type": name, "message": mend_surrogates(message)}
    return code, plain_json({"type": "error", "error": error})


def _decode_error(body: bytes) -> _WireError | None:
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
