"""What is known of one method of a client: how its arguments are read and rewritten, and how its replies read."""

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
    """A request as the caller wrote it, read and spelled by us.

    `tail` is the last piece that the call before had marked, where this one says the same up to it.
    """

    body: Mapping[str, Json]
    wire: WireRequest
    scroll: Scroll
    model: Model
    session: str
    tail: int | None = None


class Rewritten(NamedTuple):
    """The arguments that are sent, and what they say: the same prompt, with all marks."""

    arguments: Arguments
    wire: WireRequest


def as_bare_event(item: Mapping[str, Json]) -> bytes:
    """A streamed item as a server-sent event without a name."""
    return written_event(plain_json(item))


def as_named_event(item: Mapping[str, Json]) -> bytes:
    """A streamed item as a server-sent event that is named by its type."""
    return written_event(plain_json(item), str(item.get("type", "")))


class Dialect(NamedTuple):
    """`left_out` are arguments that are not sent in the body; `closing` is what ends a stream on the wire."""

    adapter: Adapter
    rewrite: Callable[[Arguments, Request], Rewritten]
    as_event: Callable[[Mapping[str, Json]], bytes]
    left_out: frozenset[str] = frozenset()
    closing: bytes = b""
    is_ours: Callable[[Arguments, Arguments, Mapping[str, Json]], bool] = lambda given, sent, item: False
    """Whether a streamed item is there only because we asked for it, by the arguments given and those sent."""
