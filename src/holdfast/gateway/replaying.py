"""A request that is read whole before it goes on, so that it can be improved; one that cannot goes as it came."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, MutableMapping

import msgspec

from holdfast.events.payloads_gateway import Change
from holdfast.gateway.exchange import KEPT_BYTES_MAX, Exchange, is_too_large
from holdfast.gateway.headers import header
from holdfast.gateway.improving import Improver
from holdfast.gateway.letters import Reading, read_once
from holdfast.gateway.reply import Headers

logger = logging.getLogger(__name__)

Message = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]


class Ready(msgspec.Struct, frozen=True):
    """What takes the place of a request: its headers, where its body comes from, and what was made of it."""

    headers: Headers
    receive: Receive
    reading: Reading | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        return self.reading.improved.changes if self.reading else ()


async def made_ready(improver: Improver, exchange: Exchange, headers: Headers, receive: Receive) -> Ready:
    """Nothing in here raises: whatever goes wrong, the request goes as it came."""
    target = exchange.target
    if is_too_large(headers) or target.speaks is None:
        return Ready(headers, receive)
    messages, body = await _collected(receive)
    if body is None or header(headers, b"content-encoding") not in (None, b"identity"):
        return Ready(headers, _again(messages, receive))
    reading: Reading | None = None
    read = functools.partial(read_once, improver, target.speaks, body, path=target.path)
    try:
        reading = await asyncio.to_thread(read, account=exchange.caller.account, at=exchange.asked_at)
    except Exception as error:  # noqa: BLE001 - the client's call must not break, whatever this was
        # The message could quote a prompt; its type cannot.
        logger.info("a request is forwarded as it came: %s", type(error).__name__)
    if reading is None or reading.improved.body is None:
        return Ready(headers, _again(messages, receive), reading)
    spelled = reading.improved.body
    exchange.original = body
    whole: Message = {"type": "http.request", "body": spelled, "more_body": False}
    return Ready(_resized(headers, len(spelled)), _again([whole], receive), reading)


async def _collected(receive: Receive) -> tuple[list[Message], bytes | None]:
    """What has come of a request, and its body where that is whole and not too large."""
    messages: list[Message] = []
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        messages.append(message)
        part = message.get("body", b"")
        if message["type"] != "http.request" or not isinstance(part, bytes):
            return messages, None
        parts.append(part)
        size_bytes += len(part)
        if size_bytes > KEPT_BYTES_MAX:
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
