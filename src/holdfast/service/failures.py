"""HTTP errors of the service: a status, a code for programs, and one line for people."""

from collections.abc import Mapping

import msgspec

from holdfast.canonical.redaction import redacted

MESSAGE_CHARS_MAX = 400


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    details: dict[str, object] | None = None


class ErrorReply(msgspec.Struct, frozen=True):
    """The format of every error response."""

    error: Refusal


class RefusedError(Exception):
    """Raised anywhere in a route and answered by the app; the message is one line with credentials redacted."""

    def __init__(self, status: int, code: str, message: str, *, details: Mapping[str, object] | None = None) -> None:
        # The message may quote the request, which may contain anything.
        safe_message = " ".join(redacted(message).split())[:MESSAGE_CHARS_MAX]
        super().__init__(safe_message)
        self.status = status
        self.reply = ErrorReply(Refusal(code, safe_message, dict(details) if details else None))


def not_found(what: str, name: str) -> RefusedError:
    return RefusedError(404, f"{what}_not_found", f"no {what} {name[:80]!a}")
