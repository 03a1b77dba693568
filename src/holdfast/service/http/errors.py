"""HTTP errors of the service: a status, a code for programs, and one line for people."""

from collections.abc import Mapping

import msgspec

from holdfast.redaction import redact_secrets

MESSAGE_CHARS_MAX = 400


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    details: dict[str, object] | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    """The format of every error response."""

    error: ErrorBody


class ApiError(Exception):
    """Raised anywhere in a route and answered by the app; the message is one line with credentials redacted."""

    def __init__(self, status: int, code: str, message: str, *, details: Mapping[str, object] | None = None) -> None:
        # The message may quote the request, which may contain anything.
        safe_message = " ".join(redact_secrets(message).split())[:MESSAGE_CHARS_MAX]
        super().__init__(safe_message)
        self.status = status
        self.response = ErrorResponse(ErrorBody(code, safe_message, dict(details) if details else None))


def make_not_found_error(what: str, name: str) -> ApiError:
    return ApiError(404, f"{what}_not_found", f"no {what} {name[:80]!a}")
