"""Shared by all providers' error decoding: failure kinds by HTTP status, the delay asked for, safe messages."""

import math
import re
from collections.abc import Mapping

import msgspec

from holdfast.errors import FailureKind, ProviderError
from holdfast.redaction import redact_secrets

MESSAGE_CHARS_MAX = 300

_KIND_OF_STATUS: dict[int, FailureKind] = {
    401: "auth",
    403: "auth",
    408: "network",
    413: "context_overflow",  # A body that is too large is handled like a prompt that is too long.
    429: "rate_limit",
    529: "rate_limit",  # Anthropic's "overloaded".
}

STATUS_BY_FAILURE: dict[FailureKind, int] = {
    "rate_limit": 429,
    "auth": 401,
    "server_error": 500,
    "network": 408,
    "context_overflow": 413,
    "invalid_request": 400,
    "cancelled": 500,
    "unreadable": 500,
    "other": 500,
}
"""The HTTP status with which a provider reports such a failure."""

# The wordings of Anthropic, OpenAI and Gemini; only OpenAI also sends a code.
_OVERFLOW = re.compile(
    r"prompt is too long|exceeds? (the )?context (limit|window)|maximum context length|context_length_exceeded"
    r"|input token count .{0,40}exceeds",
    re.IGNORECASE,
)


def classify_status(status: int, message: str) -> FailureKind:
    if status in _KIND_OF_STATUS:
        return _KIND_OF_STATUS[status]
    if 400 <= status < 500:
        return "context_overflow" if _OVERFLOW.search(message) else "invalid_request"
    return "server_error" if 500 <= status < 600 else "other"


def make_refusal(
    status: int,
    headers: Mapping[str, str],
    message: str,
    *,
    kind: FailureKind | None = None,
    retry_after: float | None = None,
) -> ProviderError:
    """The error for a response other than 200. Status and headers give the kind and the delay that are not passed."""
    return ProviderError(
        kind or classify_status(status, message),
        sanitize_message(message) or f"the provider answered with HTTP status {status} and no reason",
        status=status,
        retry_after_seconds=retry_after_seconds(headers) if retry_after is None else retry_after,
    )


def sanitize_message(message: str) -> str:
    """The message as one short line, without anything that looks like a key and without control characters."""
    if not message.isprintable():
        message = "".join(character if character.isprintable() else " " for character in message)
    line = redact_secrets(" ".join(message.split()))
    return line if len(line) <= MESSAGE_CHARS_MAX else line[: MESSAGE_CHARS_MAX - 1] + "…"


def get_header(headers: Mapping[str, str], name: str) -> str | None:
    """A header by its lower-case name; the sender's capitalisation does not matter."""
    return next((value for key, value in headers.items() if key.lower() == name), None)


class decoding_errors:
    """Turn every decoding error of foreign bytes into a one-line `ProviderError` that quotes none of them.

    A class, because each call that is recorded enters several, and a generator takes five times as long.
    """

    __slots__ = ("_kind", "_status", "_subject")

    def __init__(self, kind: FailureKind, subject: str, *, status: int | None = None) -> None:
        self._kind: FailureKind = kind
        self._subject, self._status = subject, status

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        match error:
            case msgspec.MsgspecError():
                # Sanitized because a field name can have any length; msgspec reports half a surrogate pair so.
                reason = sanitize_message(str(error))
                reason = reason.replace("was truncated", "was truncated, or holds half a surrogate pair")
            case UnicodeError():
                reason = "it is not UTF-8"
            case RecursionError():
                reason = "it is nested too deeply"
            case _:
                return
        message = f"{self._subject} cannot be read: {reason}"
        raise ProviderError(self._kind, message, status=self._status, field=self._subject) from None


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """The delay in seconds. A `retry-after` with a date is ignored, because it would need a clock."""
    # `retry-after-ms` first, in the order of Anthropic's and OpenAI's SDKs.
    in_milliseconds = _seconds(get_header(headers, "retry-after-ms"))
    return _seconds(get_header(headers, "retry-after")) if in_milliseconds is None else in_milliseconds / 1000


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
