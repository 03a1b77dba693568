"""A request that is read whole before it goes on, so that it can be improved; one that cannot goes as it came."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping

import msgspec

from holdfast.events.payloads_gateway import Change
from holdfast.gateway.exchange import KEPT_BYTES_MAX
from holdfast.gateway.headers import header
from holdfast.gateway.improving import Improved, Improver
from holdfast.gateway.reply import Headers
from holdfast.gateway.routing import Target

logger = logging.getLogger(__name__)

Message = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]


class Ready(msgspec.Struct, frozen=True):
    """What takes the place of a request: its headers, where its body comes from, and what was changed."""

    headers: Headers
    receive: Receive
    changes: tuple[Change, ...] = ()


async def made_ready(improver: Improver, target: Target, headers: Headers, receive: Receive) -> Ready:
    """Nothing in here raises: whatever goes wrong, the request goes as it came."""
    messages, body = await _collected(receive)
    if body is None or target.speaks is None or header(headers, b"content-encoding") not in (None, b"identity"):
        return Ready(headers, _again(messages, receive))
    improved = Improved(None)
    try:
        improved = await asyncio.to_thread(improver.improved, target.speaks, body)
    except Exception as error:  # noqa: BLE001 - the client's call must not break, whatever this was
        # The message could quote a prompt; its type cannot.
        logger.info("a request is forwarded as it came: %s", type(error).__name__)
    if improved.body is None:
        return Ready(headers, _again(messages, receive))
    whole: Message = {"type": "http.request", "body": improved.body, "more_body": False}
    return Ready(_resized(headers, len(improved.body)), _again([whole], receive), improved.changes)


async def _collected(receive: Receive) -> tuple[list[Message], bytes | None]:
    """What has come of a request, and its body where that is whole and not too large."""
    messages: list[Message] = []
    parts: list[bytes] = []
    while True:
        message = await receive()
        messages.append(message)
        part = message.get("body", b"")
        if message["type"] != "http.request" or not isinstance(part, bytes):
            return messages, None
        parts.append(part)
        if sum(map(len, parts)) > KEPT_BYTES_MAX:
            return messages, None
        if not message.get("more_body", False):
            return messages, b"".join(parts)


def _again(messages: list[Message], receive: Receive) -> Receive:
    """First what was taken already, then the rest."""
    taken = iter(messages)

    async def replayed() -> Message:
        message = next(taken, None)
        return await receive() if message is None else message

    return replayed


def _resized(headers: Headers, size_bytes: int) -> Headers:
    """A body in chunks stays one."""
    return [(name, b"%d" % size_bytes if name == b"content-length" else value) for name, value in headers]
