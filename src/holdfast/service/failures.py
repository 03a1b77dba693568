"""How a request is refused: a status, a code that programs can read, one line for people."""

from collections.abc import Mapping

import msgspec

from holdfast.canonical.redaction import redacted

MESSAGE_CHARS_MAX = 400


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    details: dict[str, object] | None = None


class ErrorReply(msgspec.Struct, frozen=True):
    """The one shape of every error."""

    error: Refusal


class RefusedError(Exception):
    """Raised anywhere behind a route, answered at the rim; the message is one line without credentials."""

    def __init__(self, status: int, code: str, message: str, *, details: Mapping[str, object] | None = None) -> None:
        # It may quote what was sent, and that may be anything.
        shown = " ".join(redacted(message).split())[:MESSAGE_CHARS_MAX]
        super().__init__(shown)
        self.status = status
        self.reply = ErrorReply(Refusal(code, shown, dict(details) if details else None))


def not_found(what: str, name: str) -> RefusedError:
    return RefusedError(404, f"{what}_not_found", f"there is no {what} {name[:80]!a}")
