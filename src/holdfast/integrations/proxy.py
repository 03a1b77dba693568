"""Transparent proxies: everything that is not overridden here is forwarded to the target."""

from collections.abc import Awaitable, Callable
from typing import cast

ReplaceAttribute = Callable[[str, object], object]
"""Returns the replacement of an attribute, from its name and value."""


class Proxy:
    """Behaves like its target, also for `isinstance`; `replace` decides what its attributes are."""

    def __init__(self, target: object, replace: ReplaceAttribute) -> None:
        object.__setattr__(self, "_holdfast_target", target)
        object.__setattr__(self, "_holdfast_replace", replace)

    def __getattr__(self, name: str) -> object:
        # Through `object`: the proxy's own attribute access is forwarded to the target.
        replace = cast("ReplaceAttribute", object.__getattribute__(self, "_holdfast_replace"))
        return replace(name, getattr(proxy_target(self), name))

    def __setattr__(self, name: str, value: object) -> None:
        setattr(proxy_target(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(proxy_target(self), name)

    def __repr__(self) -> str:
        return repr(proxy_target(self))

    def __dir__(self) -> list[str]:
        return dir(proxy_target(self))

    @property  # type: ignore[misc] # Read only: `isinstance` reads the target's class here.
    def __class__(self) -> type:
        return type(proxy_target(self))

    def __enter__(self) -> object:
        return self._entered(special_method(self, "__enter__")())

    def __exit__(self, *failure: object) -> object:
        return special_method(self, "__exit__")(*failure)

    async def __aenter__(self) -> object:
        return self._entered(await await_value(special_method(self, "__aenter__")()))

    async def __aexit__(self, *failure: object) -> object:
        return await await_value(special_method(self, "__aexit__")(*failure))

    def _entered(self, value: object) -> object:
        return self if value is proxy_target(self) else value


def proxy_target(proxy: Proxy) -> object:
    target: object = object.__getattribute__(proxy, "_holdfast_target")
    return target


def special_method(proxy: Proxy, name: str) -> Callable[..., object]:
    """A special method of the target, which Python would look up on the proxy's class."""
    return cast("Callable[..., object]", getattr(proxy_target(proxy), name))  # Called as Python itself would call it.


async def await_value(value: object) -> object:
    return await cast("Awaitable[object]", value)  # Called only for asynchronous clients.
