"""Which methods of a client are understood, and what is called in their place."""

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
    """`opens` says that it gives something to be entered, which then streams."""

    dialect: Dialect
    opens: bool = False


Methods = dict[str, Method]
"""By their path from the client, such as `chat.completions.create`."""

_REMAKES = frozenset({"copy", "with_options"})


def wrapped_client(client: object, desk: Desk, *, methods: Methods) -> Proxy:
    """A client of which the given methods are watched; what it makes of itself is wrapped too."""
    look = _look_at("", methods, desk)

    def look_at_client(name: str, value: object) -> object:
        if name not in _REMAKES or not callable(value):
            return look(name, value)

        @functools.wraps(value)
        def remake(*args: object, **kwargs: object) -> Proxy:
            return wrapped_client(value(*args, **kwargs), desk, methods=methods)

        return remake

    return Client(client, look_at_client, desk)


class Client(Proxy):
    def __init__(self, target: object, look: Look, desk: Desk) -> None:
        super().__init__(target, look)
        object.__setattr__(self, "_holdfast_desk", desk)


def desk_of(client: Client) -> Desk:
    return cast("Desk", object.__getattribute__(client, "_holdfast_desk"))  # Set above.


def _look_at(path: str, methods: Methods, desk: Desk) -> Look:
    def look(name: str, value: object) -> object:
        here = path + name
        if here in methods and callable(value):
            return _watched(value, methods[here], desk)
        if any(known.startswith(here + ".") for known in methods):
            return Proxy(value, _look_at(here + ".", methods, desk))
        return value

    return look


def _watched(original: Callable[..., object], method: Method, desk: Desk) -> Callable[..., object]:
    dialect = method.dialect

    @functools.wraps(original)
    def call(*args: object, **given: object) -> object:
        if args:
            return original(*args, **given)
        arguments, prepared = desk.prepare(dialect, given)
        start = functools.partial(begin, dialect, desk, prepared, given=given, sent=arguments)
        if method.opens:
            return WatchedOpening(original(**arguments), start, desk.warnings)
        watch = start()
        try:
            answer = original(**arguments)
        except BaseException as error:
            watch.failed(error)
            raise
        streams = bool(given.get("stream"))
        return _later(answer, watch, streams) if inspect.isawaitable(answer) else _now(answer, watch, streams)

    return call


def begin(
    dialect: Dialect,
    desk: Desk,
    prepared: Prepared | None,
    *,
    given: Arguments | None = None,
    sent: Arguments | None = None,
) -> Watch:
    """A call that is sent now; it is only watched where it could be read."""
    call = desk.recorder.begin(prepared) if prepared is not None else None
    return Watch(dialect, desk.recorder, call, warnings=desk.warnings, arguments=(given or {}, sent or {}))


def _now(answer: object, watch: Watch, streams: bool) -> object:
    if streams:
        return WatchedStream(answer, watch)
    watch.replied(answer)
    return answer


async def _later(answer: object, watch: Watch, streams: bool) -> object:
    try:
        arrived = await awaited(answer)
    except BaseException as error:
        watch.failed(error)
        raise
    return _now(arrived, watch, streams)
