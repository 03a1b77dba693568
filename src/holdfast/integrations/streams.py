"""Wraps the streams of an SDK client: each item is recorded and passed on as it arrives."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

from holdfast.engine.guard import WarningLog
from holdfast.integrations.proxy import Proxy, await_value, proxy_target, special_method
from holdfast.integrations.response_capture import CallWatcher

_CLOSE_METHODS = frozenset({"close", "aclose"})


class WatchedStream(Proxy):
    """A stream of a blocking or an asynchronous client; only one of the two ways to iterate is used."""

    def __init__(self, target: object, watch: CallWatcher) -> None:
        def replace(name: str, value: object) -> object:
            if name not in _CLOSE_METHODS:
                return value
            close = cast("Callable[..., object]", value)  # A stream's `close` is a method, or a coroutine function.

            def close_and_record(*args: object, **kwargs: object) -> object:
                watch.record_close()
                return close(*args, **kwargs)

            return close_and_record

        super().__init__(target, replace)
        object.__setattr__(self, "_holdfast_watch", watch)

    def __iter__(self) -> "WatchedStream":
        return self

    def __next__(self) -> object:
        watch = _watch_of(self)
        while True:
            try:
                item = next(cast("Iterator[object]", proxy_target(self)))  # Called only for blocking streams.
            except StopIteration:
                watch.record_end()
                raise
            except BaseException as error:
                watch.record_failure(error)
                raise
            if watch.record_item(item):
                return item

    def __aiter__(self) -> "WatchedStream":
        return self

    async def __anext__(self) -> object:
        watch = _watch_of(self)
        while True:
            try:
                item = await anext(cast("AsyncIterator[object]", proxy_target(self)))  # As above, asynchronous.
            except StopAsyncIteration:
                watch.record_end()
                raise
            except BaseException as error:
                watch.record_failure(error)
                raise
            if watch.record_item(item):
                return item

    def __exit__(self, *failure: object) -> object:
        _watch_of(self).record_close()
        return super().__exit__(*failure)

    async def __aexit__(self, *failure: object) -> object:
        _watch_of(self).record_close()
        return await super().__aexit__(*failure)

    # A stream that is neither read to its end nor closed was still billed, and has to be recorded.
    def __del__(self) -> None:
        _watch_of(self).record_drop()


class WatchedStreamContext(Proxy):
    """The context manager of `client.messages.stream(...)`: the client's own stream object reads a watched stream."""

    def __init__(self, target: object, begin: Callable[[], CallWatcher], warnings: WarningLog) -> None:
        super().__init__(target, lambda name, value: value)
        object.__setattr__(self, "_holdfast_begin", begin)
        object.__setattr__(self, "_holdfast_warnings", warnings)

    def __enter__(self) -> object:
        watch = self._begin()
        with watch.recording_failure():
            stream = special_method(self, "__enter__")()
        self._attach(stream, watch)
        return stream

    def __exit__(self, *failure: object) -> object:
        _watch_of(self).record_close()
        return super().__exit__(*failure)

    async def __aenter__(self) -> object:
        watch = self._begin()
        with watch.recording_failure():
            stream = await await_value(special_method(self, "__aenter__")())
        self._attach(stream, watch)
        return stream

    async def __aexit__(self, *failure: object) -> object:
        _watch_of(self).record_close()
        return await super().__aexit__(*failure)

    def _begin(self) -> CallWatcher:
        begin = cast("Callable[[], CallWatcher]", object.__getattribute__(self, "_holdfast_begin"))  # Set above.
        watch = begin()
        object.__setattr__(self, "_holdfast_watch", watch)
        return watch

    def _attach(self, stream: object, watch: CallWatcher) -> None:
        warnings = cast("WarningLog", object.__getattribute__(self, "_holdfast_warnings"))  # Set above.
        # A private field of the SDK: if a new version renames it, the stream works and only the record is missing.
        with warnings.suppress_errors("a stream is not recorded"):
            raw = getattr(stream, "_raw_stream")  # noqa: B009 - the client's own field, which no type here knows
            setattr(stream, "_raw_stream", WatchedStream(raw, watch))  # noqa: B010 - as above


def _watch_of(proxy: Proxy) -> CallWatcher:
    # Set when the proxy was made or entered.
    return cast("CallWatcher", object.__getattribute__(proxy, "_holdfast_watch"))
