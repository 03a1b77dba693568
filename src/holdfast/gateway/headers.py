"""Which headers go on: all but those of one connection, and those that are ours."""

from collections.abc import Iterable

from holdfast.events.access import COOKIE
from holdfast.gateway.reply import Headers

OUR_KEY = b"x-holdfast-key"
OUR_PREFIX = b"x-holdfast-"
OUR_COOKIE = COOKIE.encode()

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_SENT = _HOP_BY_HOP | {b"expect"}
CREDENTIALS = (b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key")


def request_headers(given: Iterable[tuple[bytes, bytes]], authority: bytes) -> Headers:
    """In the order in which they came; the host is the upstream's, and a body of unknown length stays one."""
    kept = list(given)
    # A client may call the length one of its connection's own; without it, its body would be read as the next request.
    dropped = _NOT_SENT | (_named_hops(kept) - {b"content-length"})
    sent: Headers = []
    for name, value in kept:
        if name == b"host":
            sent.append((name, authority))
        elif name == b"cookie":
            sent += [(name, left)] if (left := _without_our_cookie(value)) else []
        elif name not in dropped and not _is_ours(name):
            sent.append((name, value))
    if any(name == b"transfer-encoding" for name, _ in kept):
        # A length beside it is no length, and a proxy must not pass it on.
        sent = [header for header in sent if header[0] != b"content-length"]
        sent.append((b"transfer-encoding", b"chunked"))
    return sent


def reply_headers(given: Headers) -> Headers:
    """In the order in which they came."""
    dropped = _HOP_BY_HOP | _named_hops((name.lower(), value) for name, value in given)
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in given)
    if chunked:
        dropped |= {b"content-length"}
    return [(name, value) for name, value in given if name.lower() not in dropped]


def header(given: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    """The first of that name; names are in small letters."""
    return next((value for name, value in given if name == wanted), None)


def _is_ours(name: bytes) -> bool:
    # The simulator is told of faults by a header that looks like ours and is meant for it.
    return name.startswith(OUR_PREFIX) and name != b"x-holdfast-fault"


def _without_our_cookie(value: bytes) -> bytes:
    if OUR_COOKIE not in value:
        return value
    cookies = (one.strip() for one in value.split(b";"))
    return b"; ".join(one for one in cookies if one.partition(b"=")[0].strip() != OUR_COOKIE)


def _named_hops(given: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The headers that a Connection header names."""
    values = (value for name, value in given if name == b"connection")
    return frozenset(one.strip().lower() for value in values for one in value.split(b","))
