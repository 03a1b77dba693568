"""`handler = wrap(handler)` for LiteLLM's HTTP handlers, which `litellm.completion(..., client=handler)` sends with.

A callback of LiteLLM gets neither the bytes of a request, which would have to be changed, nor those of the response.
For OpenAI's models LiteLLM takes OpenAI's own client: use `holdfast.wrap` for that.
"""

import copy
from typing import Any, TypeVar, Unpack

from holdfast.errors import UserError
from holdfast.integrations.http_client import observe_http_client
from holdfast.integrations.wrap import WrapArguments, make_observer

AnyHandler = TypeVar("AnyHandler")


def wrap(handler: AnyHandler, **options: Unpack[WrapArguments]) -> AnyHandler:
    """A copy of an `HTTPHandler` or `AsyncHTTPHandler` whose calls are planned and recorded.

    `options` are those of `holdfast.wrap`. The given handler is not changed.
    """
    copied: Any = copy.copy(handler)  # LiteLLM's classes, which no type here knows.
    if not hasattr(copied, "client"):
        raise UserError(f"a {type(handler).__name__} cannot be wrapped; wrap an HTTPHandler or AsyncHTTPHandler")
    copied.client = observe_http_client(copied.client, make_observer("", options))
    return copied  # type: ignore[no-any-return]
