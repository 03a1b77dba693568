"""One request through the gateway and its response, buffered for the recorder."""

from typing import Literal, Protocol

import msgspec

from holdfast.events.payloads_gateway import Change
from holdfast.gateway.headers import CREDENTIALS, OUR_PREFIX, header
from holdfast.gateway.reply import Headers
from holdfast.gateway.routing import Target

# Larger bodies are forwarded but not recorded.
KEPT_BYTES_MAX = 32 * 1024 * 1024

End = Literal["whole", "cut", "cancelled", "unreachable"]


class Caller(msgspec.Struct, frozen=True):
    """Who sent the request, without any credential.

    `account` is equal for requests that share a provider's caches. `key_id`, `label`, `user_id` and `team_id`
    describe the gateway key, if one was used.
    """

    account: str
    key_id: str | None = None
    label: str | None = None
    user_id: str | None = None
    team_id: str | None = None


class Exchange:
    """Bodies are buffered as received, up to KEPT_BYTES_MAX; headers are stored without credentials.

    `record` belongs to the watcher. `waiting` is the length of the recorder process's queue when this was enqueued.
    `original` is the request body as received, if a rewritten one was sent.
    """

    def __init__(self, target: Target, headers: Headers, caller: Caller, at: float) -> None:
        self.target = target
        self.caller = caller
        self.headers = without_credentials(headers)
        self.asked_at = at
        self.ended_at = at
        self.status = 0
        self.reply_headers: Headers = []
        self.end: End = "cancelled"
        self.changes: tuple[Change, ...] = ()
        self.record: object = None
        self.waiting = 0
        self.original: bytes | None = None
        self._request = Kept(is_too_large=is_too_large(headers))
        self._reply = Kept()

    @property
    def request_body(self) -> bytes | None:
        """None if it was too large to buffer."""
        return self._request.whole()

    @property
    def reply_body(self) -> bytes | None:
        return self._reply.whole()

    @property
    def kept_bytes(self) -> int:
        return self._request.size_bytes + self._reply.size_bytes + len(self.original or b"")

    def asked(self, body: bytes) -> None:
        self._request.add(body)

    def answered(self, body: bytes) -> None:
        self._reply.add(body)

    def request_was_read(self) -> None:
        """Frees the buffered request."""
        self._request = Kept()
        self.original = None

    def reply_was_read(self) -> None:
        self._reply = Kept()


class Kept:
    """Collects chunks up to KEPT_BYTES_MAX; drops all of them when the limit is exceeded."""

    def __init__(self, *, is_too_large: bool = False) -> None:
        self._parts: list[bytes] | None = None if is_too_large else []
        self.size_bytes = 0

    def add(self, part: bytes) -> None:
        if self._parts is None:
            return
        if self.size_bytes + len(part) > KEPT_BYTES_MAX:
            self._parts, self.size_bytes = None, 0
            return
        self._parts.append(part)
        self.size_bytes += len(part)

    def whole(self) -> bytes | None:
        return None if self._parts is None else b"".join(self._parts)


def is_too_large(headers: Headers) -> bool:
    """Whether the declared content length exceeds the buffer limit."""
    length = header(headers, b"content-length") or b""
    return length.isdigit() and int(length[:20]) > KEPT_BYTES_MAX


def without_credentials(headers: Headers) -> Headers:
    """Drops credentials, cookies and the headers addressed to the gateway itself."""
    hidden = (*CREDENTIALS, b"cookie", b"set-cookie")
    return [(name, value) for name, value in headers if name not in hidden and not name.startswith(OUR_PREFIX)]


class Watcher(Protocol):
    """Observes exchanges. Must return at once (it only enqueues); whatever it raises is ignored."""

    def asked(self, exchange: Exchange) -> None:
        """The request body is complete."""

    def ended(self, exchange: Exchange) -> None:
        """The response ended, complete or not."""
