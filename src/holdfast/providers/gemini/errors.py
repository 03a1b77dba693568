"""Which failure an answer of Gemini's means, and how Gemini would report one."""

import re
from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import mend_surrogates
from holdfast.canonical.encoding import plain_json
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.failures import STATUS_OF_KIND, kind_of, one_line, retry_after

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


class _Fault(msgspec.Struct, frozen=True):
    message: str = ""
    status: str = ""
    code: int = 0
    details: tuple[msgspec.Raw, ...] | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Fault


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    fault = _read_fault(body) or _Fault()
    delay, bad_key = _read_details(fault)
    return ProviderError(
        # The provider calls a key that it does not know an invalid argument.
        "auth" if bad_key else kind_of(status, fault.message),
        one_line(fault.message) or f"the provider answered with HTTP status {status} and no reason",
        status=status,
        retry_after_seconds=retry_after(headers) if delay is None else delay,
    )


def read_stream_error(body: bytes) -> ProviderError:
    """The same for an error that comes in the middle of a stream, where the HTTP status was a good one."""
    fault = _read_fault(body) or _Fault()
    status = fault.code if 400 <= fault.code < 600 else _STATUSES.get(fault.status, 500)
    return read_error(status, {}, body)


def write_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    code = STATUS_OF_KIND[kind] if status is None else status
    name = _NAMES.get(code, "INVALID_ARGUMENT" if 400 <= code < 500 else "INTERNAL")
    return code, plain_json({"error": {"code": code, "message": mend_surrogates(message), "status": name}})


def _read_fault(body: bytes) -> _Fault | None:
    """A stream that is not one of events reports its errors in a list."""
    try:
        read = msgspec.json.decode(body, type=_ErrorBody | tuple[_ErrorBody, ...])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if isinstance(read, _ErrorBody):
        return read.error
    return read[0].error if read else None


def _read_details(fault: _Fault) -> tuple[float | None, bool]:
    """How long to wait, if that is said, and whether the key was refused."""
    delay: float | None = None
    bad_key = False
    for raw in fault.details or ():
        try:
            detail = msgspec.json.decode(raw, type=_Detail)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        bad_key = bad_key or detail.reason == _BAD_KEY
        if detail.retry_delay and _DELAY.fullmatch(detail.retry_delay):
            delay = float(detail.retry_delay[:-1])
    return delay, bad_key
