"""Filters headers for forwarding: hop-by-hop headers and those addressed to the gateway are dropped."""

import re
from collections.abc import Iterable

from holdfast.events.records import KEY_COOKIE

Headers = list[tuple[bytes, bytes]]

KEY_HEADER = b"x-holdfast-key"
OWN_HEADER_PREFIX = b"x-holdfast-"
SIGN_IN_COOKIE = KEY_COOKIE.encode()

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
CLIENT_CHARACTERS_MAX = 60
_CLIENT_NAMES = {
    "claude-cli": "Claude Code",
    "codex_cli_rs": "Codex",
    "codex_exec": "Codex",
    "GeminiCLI": "Gemini CLI",
}
"""Products in user agents -> the programs' own names, by which `audit` lists their transcripts."""
CREDENTIAL_HEADERS = (b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key")


def filter_request_headers(headers: Iterable[tuple[bytes, bytes]], authority: bytes) -> Headers:
    """Keeps the order; sets the upstream's host; a chunked body stays chunked."""
    received = list(headers)
    # Request smuggling: if `Connection: content-length` could remove the length, the upstream would read the body as
    # the next request.
    dropped = _NOT_SENT | (_connection_options(received) - {b"content-length"})
    sent: Headers = []
    for name, value in received:
        if name == b"host":
            sent.append((name, authority))
        elif name == b"cookie":
            sent += [(name, remaining)] if (remaining := _without_our_cookie(value)) else []
        elif name not in dropped and not _is_ours(name):
            sent.append((name, value))
    if any(name == b"transfer-encoding" for name, _ in received):
        # Transfer-Encoding overrides Content-Length, and a proxy must not forward both (RFC 9112, section 6.3).
        sent = [header for header in sent if header[0] != b"content-length"]
        sent.append((b"transfer-encoding", b"chunked"))
    return sent


def filter_response_headers(headers: Headers) -> Headers:
    """Keeps the order."""
    dropped = _HOP_BY_HOP | _connection_options((name.lower(), value) for name, value in headers)
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    if chunked:
        dropped |= {b"content-length"}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def get_header_value(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    """The first value of that name; names must be lower case."""
    return next((value for name, value in headers if name == wanted), None)


def name_client(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The program that sent a request: the first product of its user agent, without the version, or its own name."""
    product = (get_header_value(headers, b"user-agent") or b"").decode("latin-1").partition(" ")[0]
    name = re.split(r"/v?[0-9]", product)[0].replace("/", " ")
    name = re.sub(r"[^\w. @+-]", "", name)[:CLIENT_CHARACTERS_MAX]
    return _CLIENT_NAMES.get(name, name)


def _is_ours(name: bytes) -> bool:
    # x-holdfast-fault is meant for the simulator, which may be the upstream.
    return name.startswith(OWN_HEADER_PREFIX) and name != b"x-holdfast-fault"


def _without_our_cookie(value: bytes) -> bytes:
    if SIGN_IN_COOKIE not in value:
        return value
    cookies = (cookie.strip() for cookie in value.split(b";"))
    return b"; ".join(cookie for cookie in cookies if cookie.partition(b"=")[0].strip() != SIGN_IN_COOKIE)


def _connection_options(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The header names listed in Connection headers; they are hop-by-hop too (RFC 9110, section 7.6.1)."""
    values = (value for name, value in headers if name == b"connection")
    return frozenset(option.strip().lower() for value in values for option in value.split(b","))
