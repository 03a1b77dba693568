"""Describes one method of an SDK client: how its arguments are rewritten and how its streamed items are encoded."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.scroll import Scroll
from holdfast.catalog.rows import Model
from holdfast.engine.marking.plain import Arguments
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.providers.streaming import written_event


class Request(NamedTuple):
    """A caller's request, decoded and encoded by us.

    `tail` is the last breakpoint's block in the previous request, if this request is unchanged up to it.
    """

    body: Mapping[str, Json]
    wire: WireRequest
    scroll: Scroll
    model: Model
    session: str
    tail: int | None = None


class Rewritten(NamedTuple):
    """The arguments to send, and the request that they encode: the same prompt with all breakpoints."""

    arguments: Arguments
    wire: WireRequest


def as_bare_event(item: Mapping[str, Json]) -> bytes:
    """A streamed item as a server-sent event without a name."""
    return written_event(plain_json(item))


def as_named_event(item: Mapping[str, Json]) -> bytes:
    """A streamed item as a server-sent event named by its type."""
    return written_event(plain_json(item), str(item.get("type", "")))


class Dialect(NamedTuple):
    """`left_out` are arguments that are not sent in the body; `closing` are the bytes that end a stream."""

    adapter: Adapter
    rewrite: Callable[[Arguments, Request], Rewritten]
    as_event: Callable[[Mapping[str, Json]], bytes]
    left_out: frozenset[str] = frozenset()
    closing: bytes = b""
    is_ours: Callable[[Arguments, Arguments, Mapping[str, Json]], bool] = lambda arguments, sent, item: False
    """Whether a streamed item exists only because of an argument that we added."""
