"""The transport protocol: how the engine sends a request without knowing about HTTP."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from holdfast.errors import OrderError, ProviderError, UserError
from holdfast.providers.adapter import Adapter, Endpoint, WireRequest
from holdfast.types.blocks import Text
from holdfast.types.prompt import (
    Breakpoint,
    HistoryEntry,
    Parameters,
    Plan,
    Prompt,
    PromptSection,
    Segment,
    Stability,
    Ttl,
)
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer
from holdfast.types.tool_spec import ToolSpec

CONCURRENT_REQUESTS_MAX = 16


"""Default limit of concurrent requests to one provider."""


OnRetry = Callable[[int, ProviderError], None]


"""Called before the delay with the number of failed attempts and the last error."""


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


_ORDER: tuple[PromptSection, ...] = ("tools", "system", "messages")


def check_section_order(before: EncodedBlock | None, block: EncodedBlock) -> None:
    if before is not None and _ORDER.index(before.section) > _ORDER.index(block.section):
        raise OrderError(
            f"layer {block.layer!r} ({block.section}) comes after layer {before.layer!r} ({before.section}); "
            f"the order is {', '.join(_ORDER)}"
        )


BODY_BYTES_MAX = 32 * 1024 * 1024


BlockTtls = list[Ttl | None]


"""For each block the TTL of its breakpoint, or None if it has none."""


def reject_oversized(body: bytes, bytes_max: int = BODY_BYTES_MAX) -> None:
    if len(body) > bytes_max:
        raise ProviderError("invalid_request", f"the request has more than {bytes_max} bytes; send less", status=413)


def build_prompt(tools: tuple[ToolSpec, ...], system: tuple[Text, ...], entries: tuple[HistoryEntry, ...]) -> Prompt:
    segments = (
        Segment("tools", Stability.FROZEN, "tools", tools=tools),
        Segment("system", Stability.EPOCH, "system", system=system),
        Segment("history", Stability.GROWING, "messages", entries=entries),
    )
    return Prompt(tuple(segment for segment in segments if segment.tools or segment.system or segment.entries))


def build_wire_request(prompt: Prompt, ttls: Sequence[Ttl | None], parameters: Parameters) -> WireRequest:
    """`ttls` has one item per block of the prompt, in their order."""
    breakpoints = (Breakpoint(index, ttl) for index, ttl in enumerate(ttls) if ttl is not None)
    return WireRequest(prompt, Plan(tuple(breakpoints)), parameters)


def encode_whole_request(adapter: Adapter, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
    buffer = RequestBuffer(adapter, count=len)
    for segment in prompt.segments:
        buffer.extend(adapter.encode_segment(segment))
    indexes = [point.block_index for point in plan.breakpoints]
    if len(set(indexes)) < len(indexes):
        raise UserError("two cache breakpoints on one block; keep one of them")
    for index in indexes:
        if not 0 <= index < len(buffer.blocks):
            raise UserError(f"a cache breakpoint on block {index}, but the prompt has {len(buffer.blocks)} blocks")
    return buffer.render(adapter.request_head(parameters), plan.breakpoints)
