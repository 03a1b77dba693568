"""Which failure an answer of Anthropic's means, and how Anthropic would report one."""

from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import mend_surrogates
from holdfast.canonical.encoding import plain_json
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.failures import STATUS_OF_KIND, kind_of, one_line, retry_after

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


class _Fault(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Fault


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    fault = _read_fault(body)
    message = fault.message if fault else ""
    return ProviderError(
        kind_of(status, message),
        one_line(message) or f"the provider answered with HTTP status {status} and no reason",
        status=status,
        retry_after_seconds=retry_after(headers),
    )


def read_stream_error(body: bytes) -> ProviderError:
    """The same for an error that comes in the middle of a stream, where the HTTP status was a good one."""
    fault = _read_fault(body)
    return read_error(_STATUSES.get(fault.type, 500) if fault else 500, {}, body)


def write_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    code = STATUS_OF_KIND[kind] if status is None else status
    name = _TYPES.get(code, "invalid_request_error" if 400 <= code < 500 else "api_error")
    fault = {"type": name, "message": mend_surrogates(message)}
    return code, plain_json({"type": "error", "error": fault})


def _read_fault(body: bytes) -> _Fault | None:
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
