"""One request through the gateway and what came back, as far as it is kept for whoever looks on."""

from typing import Literal, Protocol

import msgspec

from holdfast.events.payloads_gateway import Change
from holdfast.gateway.headers import CREDENTIALS, OUR_PREFIX, header
from holdfast.gateway.reply import Headers
from holdfast.gateway.routing import Target

KEPT_BYTES_MAX = 32 * 1024 * 1024

End = Literal["whole", "cut", "cancelled", "unreachable"]


class Caller(msgspec.Struct, frozen=True):
    """Whose request it is, by nothing that would open a door.

    `account` is the same for requests that share a provider's caches; `key_id` is that of a key of our own, and
    `label` what its holder is called; user and team are those that the key was made for.
    """

    account: str
    key_id: str | None = None
    label: str | None = None
    user_id: str | None = None
    team_id: str | None = None


class Exchange:
    """Bodies are kept as they came, up to a size; headers without those that carry a credential.

    `record` is the watcher's own, `waiting` how many notes were in front of it elsewhere; `original` is the request as
    it came, where another one was sent.
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
        """None where it was too large to be kept."""
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
        """It need not be kept any longer."""
        self._request = Kept()
        self.original = None

    def reply_was_read(self) -> None:
        self._reply = Kept()


class Kept:
    """Bytes that came in parts, up to a size; all or none of them."""

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
    """Whether a message says of itself that it is too large to be kept."""
    length = header(headers, b"content-length") or b""
    return length.isdigit() and int(length[:20]) > KEPT_BYTES_MAX


def without_credentials(headers: Headers) -> Headers:
    """Also without cookies, and without what was said to us alone."""
    hidden = (*CREDENTIALS, b"cookie", b"set-cookie")
    return [(name, value) for name, value in headers if name not in hidden and not name.startswith(OUR_PREFIX)]


class Watcher(Protocol):
    """Looks on. What it raises changes nothing, and it takes no time: it only notes."""

    def asked(self, exchange: Exchange) -> None:
        """The request is whole."""

    def ended(self, exchange: Exchange) -> None:
        """Nothing more will come of the reply."""
