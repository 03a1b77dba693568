"""What the requests to all providers share: the transport that sends them, and parts of encoding and decoding."""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar

import msgspec

from holdfast.errors import OrderError, ProviderError
from holdfast.providers.adapter import Adapter, Endpoint, WireRequest
from holdfast.providers.errors import decoding_errors
from holdfast.providers.json_splice import decode_or_none, encode_json_text, encode_string, join_object, split_object
from holdfast.types.blocks import Block, Opaque, Text
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability, Ttl
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.tool_spec import ToolSpec

Item = TypeVar("Item")

CONCURRENT_REQUESTS_MAX = 16
"""Default limit of concurrent requests to one provider."""

OnRetry = Callable[[int, ProviderError], None]
"""Called before the delay with the number of failed attempts and the last error."""

BODY_BYTES_MAX = 32 * 1024 * 1024


class Transport(Protocol):
    """The network, or a simulator in its place."""

    def send(self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None) -> AsyncGenerator[bytes, None]:
        """Send one request; yields the chunks of the response as they arrive, at least one.

        Raises `ProviderError`. Nothing is retried after the first chunk. A caller that stops early must close the
        generator, which closes the connection.
        """

    async def aclose(self) -> None:
        """Release all connections; nothing can be sent afterwards."""


async def read_whole_response(response: AsyncGenerator[bytes, None], *, bytes_max: int) -> bytes:
    """All bytes of a response that is not streamed; `ProviderError` if there are too many."""
    body = bytearray()
    async with aclosing(response) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > bytes_max:
                raise ProviderError("server_error", f"the provider sent a response of over {bytes_max} bytes")
    return bytes(body)


def encode_tool_spec(tool: ToolSpec, template: bytes) -> bytes:
    """A tool that is carried as its bytes, or the template filled with name, description and schema."""
    if tool.wire_json is not None:
        # A breakpoint is spliced in before the last byte, which must therefore be the closing brace.
        return encode_json_text(tool.wire_json.strip())
    schema = encode_json_text(tool.input_schema_json)
    return template % (encode_string(tool.name), encode_string(tool.description), schema)


def check_section_order(before: EncodedBlock | None, block: EncodedBlock) -> None:
    # The order in which every provider hashes a prompt.
    order = ("tools", "system", "messages")
    if before is not None and order.index(before.section) > order.index(block.section):
        raise OrderError(
            f"layer {block.layer!r} ({block.section}) comes after layer {before.layer!r} ({before.section}); "
            f"the order is {', '.join(order)}"
        )


def reject_oversized(body: bytes, bytes_max: int = BODY_BYTES_MAX) -> None:
    if len(body) > bytes_max:
        raise ProviderError("invalid_request", f"the request has more than {bytes_max} bytes; send less", status=413)


def decoding_request(subject: str = "the request") -> decoding_errors:
    """Refuse a request, or the part of it that `subject` names, if it cannot be decoded."""
    return decoding_errors("invalid_request", subject, status=400)


def decode_each(raws: Iterable[msgspec.Raw], path: str, decode: Callable[[bytes], Item]) -> Iterator[Item]:
    """The decoded elements of a request's list; the error for an element names it, such as `tools.3`."""
    for index, raw in enumerate(raws):
        try:
            item = decode(bytes(raw))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            # Entering a context for each of a thousand messages takes longer than decoding them.
            with decoding_request(f"{path}.{index}"):
                raise
        yield item


def build_prompt(tools: tuple[ToolSpec, ...], system: tuple[Text, ...], entries: tuple[HistoryEntry, ...]) -> Prompt:
    segments = (
        Segment("tools", Stability.FROZEN, "tools", tools=tools),
        Segment("system", Stability.EPOCH, "system", system=system),
        Segment("history", Stability.GROWING, "messages", entries=entries),
    )
    return Prompt(tuple(segment for segment in segments if segment.tools or segment.system or segment.entries))


def drop_deferred_tools(adapter: Adapter, wire: WireRequest) -> WireRequest:
    """The request as the provider's cache sees it: without the tools that are sent with `defer_loading`.

    Anthropic leaves them out of the prefix and appends each to the conversation once a tool search has found it
    ("Tool use with prompt caching"), so that adding one changes no cached byte. Blocks are counted without them.
    """
    deferred = [index for index, tool in enumerate(wire.prompt.tools) if tool.is_deferred]
    if adapter.name != "anthropic" or not deferred:
        return wire
    segments = (
        msgspec.structs.replace(segment, tools=tuple(tool for tool in segment.tools if not tool.is_deferred))
        for segment in wire.prompt.segments
    )
    # Each tool is one block, and tools come first: a later block moves forward by the deferred tools before it.
    breakpoints = tuple(
        msgspec.structs.replace(point, block_index=point.block_index - bisect_left(deferred, point.block_index))
        for point in wire.plan.breakpoints
        if point.block_index not in deferred
    )
    return msgspec.structs.replace(
        wire,
        prompt=Prompt(tuple(segment for segment in segments if segment.tools or segment.system or segment.entries)),
        plan=msgspec.structs.replace(wire.plan, breakpoints=breakpoints),
    )


def build_wire_request(prompt: Prompt, ttls: Sequence[Ttl | None], parameters: Parameters) -> WireRequest:
    """`ttls` has one item per block of the prompt, in their order."""
    breakpoints = (Breakpoint(index, ttl) for index, ttl in enumerate(ttls) if ttl is not None)
    return WireRequest(prompt, Plan(tuple(breakpoints)), parameters)


def order_opaque_members(wire: WireRequest) -> WireRequest:
    """The request as the provider caches it: members of blocks that we do not know are in the order of their names.

    Clients send an item of a reply back with its members in an order of their own: to OpenAI it is the same item.
    """
    segments = tuple(
        msgspec.structs.replace(segment, entries=tuple(map(_order_entry, segment.entries)))
        if segment.entries
        else segment
        for segment in wire.prompt.segments
    )
    return msgspec.structs.replace(wire, prompt=Prompt(segments))


def _order_entry(entry: HistoryEntry) -> HistoryEntry:
    if not any(isinstance(block, Opaque) for block in entry.content):
        return entry
    return msgspec.structs.replace(entry, content=tuple(map(_order_block, entry.content)))


def _order_block(block: Block) -> Block:
    members = decode_or_none(split_object, block.raw) if isinstance(block, Opaque) else None
    if members is None or not isinstance(block, Opaque):
        return block
    return Opaque(block.kind, join_object(dict(sorted(members.items()))))
