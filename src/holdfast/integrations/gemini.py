"""Wraps the google-genai client and records its requests. Nothing is rewritten: Gemini caches prefixes implicitly.

One call of the client can send several requests, for example by automatic function calling; each one is recorded.
"""

import copy
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import cast

from holdfast.engine.inject.client_method import (
    ClientMethod,
    RewrittenRequest,
    describe_value,
    encode_bare_event,
    to_json,
)
from holdfast.integrations.client_methods import CallPreparer, WrappedClient, begin_call
from holdfast.integrations.proxy import Proxy, ReplaceAttribute
from holdfast.integrations.response_capture import CallWatcher
from holdfast.providers.gemini import gemini
from holdfast.providers.sse import encode_event
from holdfast.types.json_encoding import encode_json

GENERATE_METHOD = ClientMethod(
    gemini, lambda arguments, request: RewrittenRequest(arguments, request.wire_request), encode_bare_event
)

# Private attributes of the client, which no type here knows.
_CHAT_MODELS, _CONNECTION = "_modules", "_api_client"
_GENERATE_PATH = re.compile(r".*(models/[^/:]+:(?:generateContent|streamGenerateContent))(?:\?.*)?")


def wrap_gemini(client: object, preparer: CallPreparer) -> Proxy:
    """A client whose `models`, `chats` and `aio` record the requests they send."""
    return WrappedClient(client, _client_attributes(preparer), preparer)


def _client_attributes(preparer: CallPreparer) -> ReplaceAttribute:
    def replace(name: str, value: object) -> object:
        # `client.aio` is the asynchronous client, with `models` and `chats` of its own.
        if name == "aio":
            return Proxy(value, replace)
        with preparer.warnings.suppress_errors("what this client sends is not recorded"):
            if name == "models":
                return _watched_models(value, preparer)
            # A chat sends through the models object that `chats` holds.
            if name == "chats":
                watched = copy.copy(value)
                setattr(watched, _CHAT_MODELS, _watched_models(getattr(value, _CHAT_MODELS), preparer))
                return watched
        return value

    return replace


def _watched_models(models: object, preparer: CallPreparer) -> object:
    """A copy of the client's models object that sends through a recording connection."""
    watched = copy.copy(models)
    setattr(watched, _CONNECTION, Proxy(getattr(models, _CONNECTION), _connection_attributes(preparer)))
    return watched


def _connection_attributes(preparer: CallPreparer) -> ReplaceAttribute:
    senders = {
        "request": _send,
        "request_streamed": _stream,
        "async_request": _send_async,
        "async_request_streamed": _stream_async,
    }

    def replace(name: str, value: object) -> object:
        if name not in senders or not callable(value):
            return value

        def send(method: str, path: str, body: object, *rest: object) -> object:
            # Other requests, such as for files or token counts, have no prompt cache.
            request = _GENERATE_PATH.fullmatch(path)
            if request is None:
                return value(method, path, body, *rest)
            return senders[name](lambda: value(method, path, body, *rest), _watch(preparer, request[1], body))

        return send

    return replace


def _watch(preparer: CallPreparer, path: str, body: object) -> Callable[[], CallWatcher]:
    def start() -> CallWatcher:
        prepared = preparer.observe_request(
            gemini,
            lambda: encode_json(to_json(body, describe_value)),
            model=path.partition("/")[2].partition(":")[0],
            path=f"/v1/{path}",
        )
        return begin_call(GENERATE_METHOD, preparer, prepared)

    return start


def _send(send: Callable[[], object], start: Callable[[], CallWatcher]) -> object:
    watch = start()
    with watch.recording_failure():
        response = send()
    watch.record_body(_body_of(response))
    return response


def _stream(send: Callable[[], object], start: Callable[[], CallWatcher]) -> Iterator[object]:
    watch = start()
    with watch.recording_stream():
        for chunk in cast("Iterator[object]", send()):  # The client iterates over it too.
            watch.feed(encode_event(_body_of(chunk)))
            yield chunk


async def _send_async(send: Callable[[], object], start: Callable[[], CallWatcher]) -> object:
    watch = start()
    with watch.recording_failure():
        response = await cast("Awaitable[object]", send())  # The client awaits it too.
    watch.record_body(_body_of(response))
    return response


async def _stream_async(send: Callable[[], object], start: Callable[[], CallWatcher]) -> AsyncIterator[object]:
    watch = start()
    with watch.recording_failure():
        chunks = await cast("Awaitable[AsyncIterator[object]]", send())  # As above.
    return _forward_chunks(chunks, watch)


async def _forward_chunks(chunks: AsyncIterator[object], watch: CallWatcher) -> AsyncIterator[object]:
    with watch.recording_stream():
        async for chunk in chunks:
            watch.feed(encode_event(_body_of(chunk)))
            yield chunk


def _body_of(response: object) -> bytes:
    body = getattr(response, "body", None)
    return body.encode(errors="replace") if isinstance(body, str) else b""
