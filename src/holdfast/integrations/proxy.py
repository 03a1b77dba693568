"""Transparent proxies: everything that is not overridden here is forwarded to the target."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import cast

Look = Callable[[str, object], object]
"""Returns the replacement of an attribute, from its name and value."""


class Proxy:
    """Behaves like its target, also for `isinstance`; `look` may replace its attributes."""

    def __init__(self, target: object, look: Look) -> None:
        object.__setattr__(self, "_holdfast_target", target)
        object.__setattr__(self, "_holdfast_look", look)

    def __getattr__(self, name: str) -> object:
        # Through `object`: the proxy's own attribute access is forwarded to the target.
        look = cast("Look", object.__getattribute__(self, "_holdfast_look"))
        return look(name, getattr(target_of(self), name))

    def __setattr__(self, name: str, value: object) -> None:
        setattr(target_of(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(target_of(self), name)

    def __repr__(self) -> str:
        return repr(target_of(self))

    def __dir__(self) -> list[str]:
        return dir(target_of(self))

    @property  # type: ignore[misc] # Read only: `isinstance` reads the target's class here.
    def __class__(self) -> type:
        return type(target_of(self))

    def __enter__(self) -> object:
        return self._entered(special(self, "__enter__")())

    def __exit__(self, *failure: object) -> object:
        return special(self, "__exit__")(*failure)

    async def __aenter__(self) -> object:
        return self._entered(await awaited(special(self, "__aenter__")()))

    async def __aexit__(self, *failure: object) -> object:
        return await awaited(special(self, "__aexit__")(*failure))

    def _entered(self, value: object) -> object:
        return self if value is target_of(self) else value


def target_of(proxy: Proxy) -> object:
    target: object = object.__getattribute__(proxy, "_holdfast_target")
    return target


def special(proxy: Proxy, name: str) -> Callable[..., object]:
    """A special method of the target, which Python would look up on the proxy's class."""
    return cast("Callable[..., object]", getattr(target_of(proxy), name))  # Called as Python itself would call it.


async def awaited(value: object) -> object:
    return await cast("Awaitable[object]", value)  # Called only for asynchronous clients.


def next_of(proxy: Proxy) -> object:
    return next(cast("Iterator[object]", target_of(proxy)))  # Called only for streams.


async def next_of_async(proxy: Proxy) -> object:
    return await anext(cast("AsyncIterator[object]", target_of(proxy)))  # As above.
