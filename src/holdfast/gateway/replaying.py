"""Buffers a whole request so that it can be rewritten; one that cannot be rewritten is forwarded unchanged."""

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
    """The request to forward: its headers, the source of its body, and the rewrite, if any."""

    headers: Headers
    receive: Receive
    reading: Reading | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        return self.reading.improved.changes if self.reading else ()


async def made_ready(improver: Improver, exchange: Exchange, headers: Headers, receive: Receive) -> Ready:
    """Never raises: if anything goes wrong, the request is forwarded unchanged."""
    target = exchange.target
    if is_too_large(headers) or target.speaks is None:
        return Ready(headers, receive)
    messages, body = await _collect(receive)
    if body is None or header(headers, b"content-encoding") not in (None, b"identity"):
        return Ready(headers, _replay(messages, receive))
    reading: Reading | None = None
    analyze = functools.partial(read_once, improver, target.speaks, body, path=target.path)
    try:
        reading = await asyncio.to_thread(analyze, account=exchange.caller.account, at=exchange.asked_at)
    except Exception as error:  # noqa: BLE001 - a failing rewrite must not break the client's call
        # Log the type only: the message could quote the prompt.
        logger.info("a request is forwarded unchanged: %s", type(error).__name__)
    if reading is None or reading.improved.body is None:
        return Ready(headers, _replay(messages, receive), reading)
    rewritten = reading.improved.body
    exchange.original = body
    whole: Message = {"type": "http.request", "body": rewritten, "more_body": False}
    return Ready(_with_content_length(headers, len(rewritten)), _replay([whole], receive), reading)


async def _collect(receive: Receive) -> tuple[list[Message], bytes | None]:
    """The messages received, and the body if it is complete and not too large."""
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


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """A receive function that returns the collected messages first."""
    collected = iter(messages)

    async def replayed() -> Message:
        message = next(collected, None)
        return await receive() if message is None else message

    return replayed


def _with_content_length(headers: Headers, size_bytes: int) -> Headers:
    """Corrects an existing content-length; a chunked body stays chunked."""
    return [(name, b"%d" % size_bytes if name == b"content-length" else value) for name, value in headers]
