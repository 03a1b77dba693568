"""Copies the HTTP client inside an SDK client so that each request and response passes a `ClientObserver`.

Every method of an SDK ends in `send` of its HTTP client, so this covers all of them. The copy shares connections,
proxies, credentials, hooks and time limits with the original. SDKs use `httpx` or `httpx2`, which have the same API.
"""

import asyncio
import copy
import importlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

from holdfast.errors import UserError
from holdfast.gateway.rewrite.ping_schedule import PING_SECONDS_MAX
from holdfast.integrations.client_observer import ClientObserver, ObservedCall
from holdfast.integrations.keep_alive import SendRequest

logger = logging.getLogger(__name__)
_LIBRARIES = ("httpx2", "httpx")
_OBSERVER = "holdfast_observer"


def observe_http_client(client: Any, observer: ClientObserver) -> Any:
    """A copy of an `httpx` client whose requests pass the observer. Raises UserError for any other client."""
    for ancestor in type(client).__mro__:
        name = ancestor.__module__.partition(".")[0]
        if name in _LIBRARIES and ancestor.__name__ in ("Client", "AsyncClient"):
            library = importlib.import_module(name)
            make_class = _make_async_class if ancestor.__name__ == "AsyncClient" else _make_class
            observed = copy.copy(client)
            observed.__class__ = make_class(type(client), library)
            setattr(observed, _OBSERVER, observer)
            # The SDKs' clients close their connections when they are collected: the original has to live as long.
            observed.holdfast_original = client
            return observed
    raise UserError(f"a client that sends with {type(client).__module__}.{type(client).__name__} cannot be wrapped")


def find_observer(http_client: object) -> ClientObserver | None:
    observer = getattr(http_client, _OBSERVER, None)
    return observer if isinstance(observer, ClientObserver) else None


# `Any`: the base classes are known only at run time, because the HTTP libraries come with the SDKs.
def _make_class(base: Any, library: Any) -> Any:
    class ObservedStream(library.SyncByteStream):  # type: ignore[misc]
        def __init__(self, stream: Any, call: ObservedCall) -> None:
            self._stream = stream
            self._call = call

        def __iter__(self) -> Iterator[bytes]:
            with self._call.reading():
                for chunk in self._stream:
                    yield from self._call.pass_chunk(chunk)
                yield from self._call.pass_rest()

        def close(self) -> None:
            self._stream.close()
            self._call.end("cancelled")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def __del__(self) -> None:
            self._call.drop()

    class ObservedClient(base):  # type: ignore[misc]
        def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
            call: ObservedCall | None = self.holdfast_observer.begin_call(request)
            if call is None:
                return super().send(request, stream=stream, **options)
            call.send_again = self.holdfast_original.send
            if call.cache_use is not None:
                self._prepare_cache(call)
            with call.sending():
                call.enter_flight()
                response = super().send(call.request, stream=True, **options)
                if call.is_withheld(response):
                    response.read()
                    call.lose_cache(response)
                    response = super().send(call.request, stream=True, **options)
            if call.begin_response(response):
                response.stream = ObservedStream(response.stream, call)
            if not stream:
                try:
                    response.read()
                except BaseException:
                    response.close()
                    raise
            return response

        def _prepare_cache(self, call: ObservedCall) -> None:
            status, answer = 0, b""
            try:
                if (request := call.make_cache_request()) is not None:
                    response = self.holdfast_original.send(request)
                    status, answer = response.status_code, response.content
            except Exception as error:  # noqa: BLE001 - without the cache the call is sent as it is
                logger.info("a request about an explicit cache failed: %s", type(error).__name__)
            finally:
                call.finish_cache_use(status, answer)

        def __del__(self) -> None:
            # The original closes the connections that both share, or its owner still uses them.
            pass

    return _rename(ObservedClient, base)


def _make_async_class(base: Any, library: Any) -> Any:
    class ObservedStream(library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, stream: Any, call: ObservedCall) -> None:
            self._stream = stream
            self._call = call

        async def __aiter__(self) -> AsyncIterator[bytes]:
            chunks = aiter(self._stream)
            try:
                with self._call.reading():
                    async for chunk in chunks:
                        for passed in self._call.pass_chunk(chunk):
                            yield passed
                    for passed in self._call.pass_rest():
                        yield passed
            finally:
                if isinstance(chunks, AsyncGenerator):
                    await chunks.aclose()

        async def aclose(self) -> None:
            await self._stream.aclose()
            self._call.end("cancelled")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def __del__(self) -> None:
            self._call.drop()

    class ObservedClient(base):  # type: ignore[misc]
        async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
            call: ObservedCall | None = self.holdfast_observer.begin_call(request)
            if call is None:
                return await super().send(request, stream=stream, **options)
            call.send_again = _make_blocking(self.holdfast_original)
            if call.cache_use is not None:
                await self._prepare_cache(call)
            with call.sending():
                await call.enter_flight_async()
                response = await super().send(call.request, stream=True, **options)
                if call.is_withheld(response):
                    await response.aread()
                    call.lose_cache(response)
                    response = await super().send(call.request, stream=True, **options)
            if call.begin_response(response):
                response.stream = ObservedStream(response.stream, call)
            if not stream:
                try:
                    await response.aread()
                except BaseException:
                    await response.aclose()
                    raise
            return response

        async def _prepare_cache(self, call: ObservedCall) -> None:
            status, answer = 0, b""
            try:
                if (request := call.make_cache_request()) is not None:
                    response = await self.holdfast_original.send(request)
                    status, answer = response.status_code, response.content
            except Exception as error:  # noqa: BLE001 - as above
                logger.info("a request about an explicit cache failed: %s", type(error).__name__)
            finally:
                call.finish_cache_use(status, answer)

        def __del__(self) -> None:
            # As for the blocking client.
            pass

    return _rename(ObservedClient, base)


def _make_blocking(client: Any) -> SendRequest | None:
    """Sends from another thread through the event loop that is running now; None without one of asyncio."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None

    def send(request: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(client.send(request), loop).result(PING_SECONDS_MAX)

    return send


def _rename(observed: Any, base: Any) -> Any:
    observed.__name__, observed.__qualname__, observed.__module__ = base.__name__, base.__qualname__, base.__module__
    return observed
