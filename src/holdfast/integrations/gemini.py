"""Wraps the google-genai client and records its requests. Nothing is rewritten: Gemini caches prefixes implicitly.

One call of the client can send several requests, for example by automatic function calling; each one is recorded.
"""

import copy
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import cast

from holdfast.canonical.encoding import plain_json
from holdfast.engine.marking.dialect import Dialect, Rewritten, as_bare_event
from holdfast.engine.marking.plain import plain
from holdfast.integrations.methods import Client, begin
from holdfast.integrations.preparing import Desk
from holdfast.integrations.proxy import Look, Proxy
from holdfast.integrations.watching import Watch
from holdfast.providers.gemini import gemini
from holdfast.providers.streaming import written_event

GENERATE = Dialect(gemini, lambda arguments, request: Rewritten(arguments, request.wire), as_bare_event)

_GENERATE_PATH = re.compile(r".*(models/[^/:]+:(?:generateContent|streamGenerateContent))(?:\?.*)?")

Send = Callable[..., object]


def wrapped_gemini(client: object, desk: Desk) -> Proxy:
    """A client whose `models`, `chats` and `aio` record the requests they send."""
    return Client(client, _client_attributes(desk), desk)


def _client_attributes(desk: Desk) -> Look:
    def look(name: str, value: object) -> object:
        # `client.aio` is the asynchronous client, with `models` and `chats` of its own.
        if name == "aio":
            return Proxy(value, look)
        with desk.warnings.harmless("what this client sends is not recorded"):
            if name == "models":
                return _watched_models(value, desk)
            # A chat sends through the models object that `chats` holds.
            if name == "chats":
                watched = copy.copy(value)
                _set(watched, "_modules", _watched_models(_get(value, "_modules"), desk))
                return watched
        return value

    return look


def _watched_models(models: object, desk: Desk) -> object:
    """A copy of the client's models object that sends through a recording connection."""
    watched = copy.copy(models)
    _set(watched, "_api_client", Proxy(_get(models, "_api_client"), _connection_attributes(desk)))
    return watched


def _connection_attributes(desk: Desk) -> Look:
    senders = {
        "request": _send,
        "request_streamed": _stream,
        "async_request": _send_async,
        "async_request_streamed": _stream_async,
    }

    def look(name: str, value: object) -> object:
        if name not in senders or not callable(value):
            return value

        def send(method: str, path: str, body: object, *rest: object) -> object:
            # Other requests, such as for files or token counts, have no prompt cache.
            request = _GENERATE_PATH.fullmatch(path)
            if request is None:
                return value(method, path, body, *rest)
            return senders[name](lambda: value(method, path, body, *rest), _watch(desk, request[1], body))

        return send

    return look


def _watch(desk: Desk, path: str, body: object) -> Callable[[], Watch]:
    def start() -> Watch:
        prepared = None
        with desk.warnings.harmless("a call is not recorded"):
            prepared = desk.read(gemini, plain_json(plain(body)), f"/v1/{path}")
        return begin(GENERATE, desk, prepared)

    return start


def _send(send: Callable[[], object], start: Callable[[], Watch]) -> object:
    watch = start()
    try:
        response = send()
    except BaseException as error:
        watch.failed(error)
        raise
    watch.received(_body_of(response))
    return response


def _stream(send: Callable[[], object], start: Callable[[], Watch]) -> Iterator[object]:
    watch = start()
    try:
        for chunk in cast("Iterator[object]", send()):  # The client iterates over it too.
            watch.feed(written_event(_body_of(chunk)))
            yield chunk
    except GeneratorExit:
        watch.dropped()
        raise
    except BaseException as error:
        watch.failed(error)
        raise
    watch.ended()


async def _send_async(send: Callable[[], object], start: Callable[[], Watch]) -> object:
    watch = start()
    try:
        response = await cast("Awaitable[object]", send())  # The client awaits it too.
    except BaseException as error:
        watch.failed(error)
        raise
    watch.received(_body_of(response))
    return response


async def _stream_async(send: Callable[[], object], start: Callable[[], Watch]) -> AsyncIterator[object]:
    watch = start()
    try:
        chunks = await cast("Awaitable[AsyncIterator[object]]", send())  # As above.
    except BaseException as error:
        watch.failed(error)
        raise
    return _forward_chunks(chunks, watch)


async def _forward_chunks(chunks: AsyncIterator[object], watch: Watch) -> AsyncIterator[object]:
    try:
        async for chunk in chunks:
            watch.feed(written_event(_body_of(chunk)))
            yield chunk
    except GeneratorExit:
        watch.dropped()
        raise
    except BaseException as error:
        watch.failed(error)
        raise
    watch.ended()


def _body_of(response: object) -> bytes:
    body = getattr(response, "body", None)
    return body.encode(errors="replace") if isinstance(body, str) else b""


# The client's private attributes are read and set by name, because no type here knows them.
def _get(target: object, name: str) -> object:
    value: object = getattr(target, name)
    return value


def _set(target: object, name: str, value: object) -> None:
    setattr(target, name, value)
