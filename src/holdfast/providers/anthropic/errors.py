"""Which failure an answer of Anthropic's means, and how Anthropic would report one."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from holdfast.canonical.blocks import mend_surrogates
from holdfast.canonical.encoding import plain_json
from holdfast.errors import FailureKind, ProviderError

MESSAGE_CHARS_MAX = 300

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

_KIND_OF_STATUS: dict[int, FailureKind] = {
    401: "auth",
    403: "auth",
    408: "network",
    413: "context_overflow",
    429: "rate_limit",
    529: "rate_limit",
}
_STATUS_OF_KIND: dict[FailureKind, int] = {
    "rate_limit": 429,
    "auth": 401,
    "server_error": 500,
    "network": 408,
    "context_overflow": 413,
    "invalid_request": 400,
    "cancelled": 500,
    "other": 500,
}

_OVERFLOW = re.compile(r"prompt is too long|exceeds? (the )?context (limit|window)", re.IGNORECASE)

_SECRET = re.compile(
    r"""
      \b (?:sk|pk|rk|ak|gh[opsu]|xox[a-z]) [-_] [\w-]{8,}
    | \b bearer \s+ [^\s,;"']+
    | \b (?:AIza|AKIA) [\w-]{12,}
    | \b eyJ [\w-]+ \. [\w.-]+
    | \b (?:x-)? (?:api[-_\ ]?key|authorization|password|secret) \s* [:=] \s* \S+
    """,
    re.IGNORECASE | re.VERBOSE,
)


class _Fault(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Fault


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    fault = _read_fault(body)
    message = fault.message if fault else ""
    return ProviderError(
        _kind_of(status, message),
        one_line(message) or f"the provider answered with HTTP status {status} and no reason",
        status=status,
        retry_after_seconds=_retry_after(headers),
    )


def read_stream_error(body: bytes) -> ProviderError:
    """The same for an error that comes in the middle of a stream, where the HTTP status was a good one."""
    fault = _read_fault(body)
    return read_error(_STATUSES.get(fault.type, 500) if fault else 500, {}, body)


def write_error(kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
    code = _STATUS_OF_KIND[kind] if status is None else status
    name = _TYPES.get(code, "invalid_request_error" if 400 <= code < 500 else "api_error")
    fault = {"type": name, "message": mend_surrogates(message)}
    return code, plain_json({"type": "error", "error": fault})


def one_line(message: str) -> str:
    """The message on one line, short, and without what looks like a key."""
    line = _SECRET.sub("[removed]", " ".join(message.split()))
    return line if len(line) <= MESSAGE_CHARS_MAX else line[: MESSAGE_CHARS_MAX - 1] + "…"


def header(headers: Mapping[str, str], name: str) -> str | None:
    """A header by its name in lower case, however the sender wrote it."""
    return next((value for key, value in headers.items() if key.lower() == name), None)


@contextmanager
def readable(kind: FailureKind, what: str, *, status: int | None = None) -> Iterator[None]:
    """Turn every way in which foreign bytes can be unreadable into one line that quotes none of them."""
    try:
        yield
    except msgspec.MsgspecError as fault:
        # A field's name can be as long as its sender likes, and half a surrogate pair is reported as an end.
        reason = one_line(str(fault)).replace("was truncated", "was truncated, or holds half a surrogate pair")
    except UnicodeError:
        reason = "it is not UTF-8"
    except RecursionError:
        reason = "it is nested too deeply"
    else:
        return
    raise ProviderError(kind, f"{what} cannot be read: {reason}", status=status) from None


def _kind_of(status: int, message: str) -> FailureKind:
    if status in _KIND_OF_STATUS:
        return _KIND_OF_STATUS[status]
    if 400 <= status < 500:
        return "context_overflow" if _OVERFLOW.search(message) else "invalid_request"
    return "server_error" if 500 <= status < 600 else "other"


def _read_fault(body: bytes) -> _Fault | None:
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Only seconds: a date could not be turned into a pause without a clock."""
    in_milliseconds = _seconds(header(headers, "retry-after-ms"))
    return _seconds(header(headers, "retry-after")) if in_milliseconds is None else in_milliseconds / 1000


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
