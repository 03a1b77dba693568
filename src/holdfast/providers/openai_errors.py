"""Which failure an answer in OpenAI's shape means, and how OpenAI and those who speak like it report one."""

from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import mend_surrogates
from holdfast.canonical.encoding import plain_json
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.failures import STATUS_OF_KIND, kind_of, one_line, retry_after

_OVERFLOW = "context_length_exceeded"
_QUOTA = "insufficient_quota"

# In a stream only a word says what would have been the status.
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


class _Fault(msgspec.Struct, frozen=True):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None


class _ErrorBody(_Fault, frozen=True):
    """The fault stands under `error`, or its members stand at the top."""

    error: _Fault | str | None = None


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    return _failure(status, headers, _read_fault(body))


def read_stream_error(body: bytes) -> ProviderError:
    """The same for an error that comes in the middle of a stream, where the HTTP status was a good one."""
    fault = _read_fault(body)
    return _failure(_status_of(fault), {}, fault)


def write_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    """As OpenAI reports it; `other` with status 429 is a quota that is used up."""
    told = (400 if kind == "context_overflow" else STATUS_OF_KIND[kind]) if status is None else status
    name, code = _TYPES_AND_CODES.get(told, ("invalid_request_error" if 400 <= told < 500 else "server_error", None))
    if kind == "context_overflow":
        code = _OVERFLOW
    if kind == "other" and told == 429:
        name = code = _QUOTA
    return told, plain_json({"error": {"message": mend_surrogates(message), "type": name, "param": None, "code": code}})


def write_numbered_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    """As OpenRouter reports it: its code is the status."""
    told = STATUS_OF_KIND[kind] if status is None else status
    return told, plain_json({"error": {"code": told, "message": mend_surrogates(message)}})


def _failure(status: int, headers: Mapping[str, str], fault: _Fault) -> ProviderError:
    return ProviderError(
        _kind(status, fault),
        one_line(fault.message or "") or f"the provider answered with HTTP status {status} and no reason",
        status=status,
        retry_after_seconds=retry_after(headers),
    )


def _kind(status: int, fault: _Fault) -> FailureKind:
    if _QUOTA in (fault.code, fault.type):
        # Whoever has used up a quota is told so with the status of a limit, but no pause helps.
        return "other"
    if fault.code == _OVERFLOW:
        return "context_overflow"
    return kind_of(status, fault.message or "")


def _status_of(fault: _Fault) -> int:
    if isinstance(fault.code, int):
        return fault.code if 400 <= fault.code < 600 else 500
    return _STATUSES.get(fault.code or "") or _STATUSES.get(fault.type or "", 500)


def _read_fault(body: bytes) -> _Fault:
    try:
        told = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _Fault()
    if isinstance(told.error, str):
        return _Fault(message=told.error)
    return told.error or told
