"""Gemini's client, watched where it sends: nothing is rewritten, because its cache goes by the prefix alone.

One call of the client can be several requests, such as those of its automatic function calling: each is recorded.
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

_GENERATING = re.compile(r".*(models/[^/:]+:(?:generateContent|streamGenerateContent))(?:\?.*)?")

Send = Callable[..., object]


def wrapped_gemini(client: object, desk: Desk) -> Proxy:
    """A client whose models, chats and asynchronous side record what they send."""
    return Client(client, _look_at_client(desk), desk)


def _look_at_client(desk: Desk) -> Look:
    def look(name: str, value: object) -> object:
        if name == "aio":
            return Proxy(value, look)
        with desk.warnings.harmless("what this client sends is not recorded"):
            if name == "models":
                return _watched_models(value, desk)
            if name == "chats":
                watched = copy.copy(value)
                _put(watched, "_modules", _watched_models(_get(value, "_modules"), desk))
                return watched
        return value

    return look


def _watched_models(models: object, desk: Desk) -> object:
    """The same methods, sending through a watched connection."""
    watched = copy.copy(models)
    _put(watched, "_api_client", Proxy(_get(models, "_api_client"), _look_at_connection(desk)))
    return watched


def _look_at_connection(desk: Desk) -> Look:
    watchers = {
        "request": _answering,
        "request_streamed": _streaming,
        "async_request": _answering_later,
        "async_request_streamed": _streaming_later,
    }

    def look(name: str, value: object) -> object:
        if name not in watchers or not callable(value):
            return value

        def send(method: str, path: str, body: object, *rest: object) -> object:
            request = _GENERATING.fullmatch(path)
            if request is None:
                return value(method, path, body, *rest)
            return watchers[name](lambda: value(method, path, body, *rest), _watch(desk, request[1], body))

        return send

    return look


def _watch(desk: Desk, path: str, body: object) -> Callable[[], Watch]:
    def start() -> Watch:
        prepared = None
        with desk.warnings.harmless("a call is not recorded"):
            prepared = desk.read(gemini, plain_json(plain(body)), f"/v1/{path}")
        return begin(GENERATE, desk, prepared)

    return start


def _answering(send: Callable[[], object], start: Callable[[], Watch]) -> object:
    watch = start()
    try:
        answer = send()
    except BaseException as error:
        watch.failed(error)
        raise
    watch.received(_body_of(answer))
    return answer


def _streaming(send: Callable[[], object], start: Callable[[], Watch]) -> Iterator[object]:
    watch = start()
    try:
        for chunk in cast("Iterator[object]", send()):  # What the client iterates over itself.
            watch.feed(written_event(_body_of(chunk)))
            yield chunk
    except GeneratorExit:
        watch.dropped()
        raise
    except BaseException as error:
        watch.failed(error)
        raise
    watch.ended()


async def _answering_later(send: Callable[[], object], start: Callable[[], Watch]) -> object:
    watch = start()
    try:
        answer = await cast("Awaitable[object]", send())  # What the client awaits itself.
    except BaseException as error:
        watch.failed(error)
        raise
    watch.received(_body_of(answer))
    return answer


async def _streaming_later(send: Callable[[], object], start: Callable[[], Watch]) -> AsyncIterator[object]:
    watch = start()
    try:
        chunks = await cast("Awaitable[AsyncIterator[object]]", send())  # As above.
    except BaseException as error:
        watch.failed(error)
        raise
    return _passed_on(chunks, watch)


async def _passed_on(chunks: AsyncIterator[object], watch: Watch) -> AsyncIterator[object]:
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


def _body_of(answer: object) -> bytes:
    body = getattr(answer, "body", None)
    return body.encode(errors="replace") if isinstance(body, str) else b""


def _get(target: object, name: str) -> object:
    found: object = getattr(target, name)
    return found


def _put(target: object, name: str, value: object) -> None:
    setattr(target, name, value)
