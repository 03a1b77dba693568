"""Answers an MCP client's `initialize` on stdio before the SDK is loaded, which takes most of the start.

The SDK still processes the request when it is loaded, so that its session is in the same state; its own answer, which
is the same, is not sent. Whatever else the client sends first waits for the SDK.
"""

import os
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from holdfast import __version__

SERVER_NAME = "holdfast"
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions of the protocol that begin with `initialize`, oldest first; the newest answers an unknown one."""


class _ClientInfo(msgspec.Struct, frozen=True):
    name: str
    version: str


class _Parameters(msgspec.Struct, frozen=True, rename="camel"):
    protocol_version: str
    capabilities: dict[str, dict[str, Any]]
    client_info: _ClientInfo
    # Newer revisions name theirs in `_meta`; the SDK decides what that means.
    meta: msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="_meta")


class _Initialize(msgspec.Struct, frozen=True):
    jsonrpc: Literal["2.0"]
    id: int | str
    method: Literal["initialize"]
    params: _Parameters


class Opening(msgspec.Struct, frozen=True):
    """What a client sent first (empty: it sent nothing), and the answer if that is an `initialize` to answer now."""

    line: bytes
    request_id: int | str | None = None
    answer: bytes = b""


def read_opening(descriptor: int, instructions: Callable[[], str | None] = lambda: None) -> Opening:
    """Read the first line and prepare its answer. Byte by byte, because the SDK reads what follows."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    try:
        request = msgspec.json.decode(bytes(line), type=_Initialize)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # The SDK refuses it, or it is a request that needs no handshake.
        return Opening(bytes(line))
    return Opening(bytes(line), request.id, _encode_answer(request, instructions()))


def _encode_answer(request: _Initialize, instructions: str | None) -> bytes:
    requested = request.params.protocol_version
    result = {
        "protocolVersion": requested if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": SERVER_NAME, "version": __version__},
    }
    result |= {"instructions": instructions} if instructions is not None else {}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request.id, "result": result}) + b"\n"
