"""Replaces the methods of an SDK client that send requests by ones that place breakpoints and record calls."""

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple, cast

from holdfast.engine.marking.dialect import Dialect
from holdfast.engine.marking.plain import Arguments
from holdfast.engine.recorder import Prepared
from holdfast.integrations.preparing import Desk
from holdfast.integrations.proxy import Look, Proxy, awaited
from holdfast.integrations.streams import WatchedOpening, WatchedStream
from holdfast.integrations.watching import Watch


class Method(NamedTuple):
    """`opens` is true for a method that returns a context manager around a stream."""

    dialect: Dialect
    opens: bool = False


Methods = dict[str, Method]
"""Methods by their path from the client, such as `chat.completions.create`."""

# Methods that return a new client, which has to be wrapped too.
_COPY_METHODS = frozenset({"copy", "with_options"})


def wrapped_client(client: object, desk: Desk, *, methods: Methods) -> Proxy:
    """Wrap a client so that the given methods are watched, also in copies that it makes of itself."""
    replace_attribute = _attributes_at("", methods, desk)

    def client_attributes(name: str, value: object) -> object:
        if name not in _COPY_METHODS or not callable(value):
            return replace_attribute(name, value)

        @functools.wraps(value)
        def copy_and_wrap(*args: object, **kwargs: object) -> Proxy:
            return wrapped_client(value(*args, **kwargs), desk, methods=methods)

        return copy_and_wrap

    return Client(client, client_attributes, desk)


class Client(Proxy):
    """The proxy of a whole client, which holds the state of the wrapper."""

    def __init__(self, target: object, look: Look, desk: Desk) -> None:
        super().__init__(target, look)
        object.__setattr__(self, "_holdfast_desk", desk)


def desk_of(client: Client) -> Desk:
    return cast("Desk", object.__getattribute__(client, "_holdfast_desk"))  # Set above.


def _attributes_at(path: str, methods: Methods, desk: Desk) -> Look:
    def look(name: str, value: object) -> object:
        full_path = path + name
        if full_path in methods and callable(value):
            return _watched_method(value, methods[full_path], desk)
        if any(method_path.startswith(full_path + ".") for method_path in methods):
            return Proxy(value, _attributes_at(full_path + ".", methods, desk))
        return value

    return look


def _watched_method(original: Callable[..., object], method: Method, desk: Desk) -> Callable[..., object]:
    dialect = method.dialect

    @functools.wraps(original)
    def call(*args: object, **caller_arguments: object) -> object:
        # The SDKs take keyword arguments only; a call with positional ones is left for the SDK to reject.
        if args:
            return original(*args, **caller_arguments)
        arguments, prepared = desk.prepare(dialect, caller_arguments)
        start = functools.partial(
            begin, dialect, desk, prepared, caller_arguments=caller_arguments, sent_arguments=arguments
        )
        if method.opens:
            return WatchedOpening(original(**arguments), start, desk.warnings)
        watch = start()
        try:
            response = original(**arguments)
        except BaseException as error:
            watch.failed(error)
            raise
        streams = bool(caller_arguments.get("stream"))
        return (
            _await_and_watch(response, watch, streams)
            if inspect.isawaitable(response)
            else _watch_result(response, watch, streams)
        )

    return call


def begin(
    dialect: Dialect,
    desk: Desk,
    prepared: Prepared | None,
    *,
    caller_arguments: Arguments | None = None,
    sent_arguments: Arguments | None = None,
) -> Watch:
    """Start watching a call that is sent now; it is not recorded if it could not be decoded."""
    call = desk.recorder.begin(prepared, *desk.news()) if prepared is not None else None
    return Watch(
        dialect, desk.recorder, call, warnings=desk.warnings, arguments=(caller_arguments or {}, sent_arguments or {})
    )


def _watch_result(response: object, watch: Watch, streams: bool) -> object:
    if streams:
        return WatchedStream(response, watch)
    watch.replied(response)
    return response


async def _await_and_watch(response: object, watch: Watch, streams: bool) -> object:
    try:
        result = await awaited(response)
    except BaseException as error:
        watch.failed(error)
        raise
    return _watch_result(result, watch, streams)
