"""The provider-independent part of decoding a request: the size limit, the segments, and the breakpoints."""

from collections.abc import Sequence

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Mark, Parameters, Passage, Plan, Prompt, Segment, Stability, Ttl
from holdfast.canonical.tools import ToolSpec
from holdfast.errors import ProviderError
from holdfast.providers.adapter import WireRequest

BODY_BYTES_MAX = 32 * 1024 * 1024

Lifetimes = list[Ttl | None]
"""For each block the TTL of its breakpoint, or None if it has none."""


def refuse_oversized(body: bytes, bytes_max: int = BODY_BYTES_MAX) -> None:
    if len(body) > bytes_max:
        raise ProviderError("invalid_request", f"the request has more than {bytes_max} bytes; send less", status=413)


def prompt_of(tools: tuple[ToolSpec, ...], system: tuple[Text, ...], entries: tuple[Passage, ...]) -> Prompt:
    segments = (
        Segment("tools", Stability.FROZEN, "tools", tools=tools),
        Segment("system", Stability.EPOCH, "system", system=system),
        Segment("history", Stability.GROWING, "messages", passages=entries),
    )
    return Prompt(tuple(segment for segment in segments if segment.tools or segment.system or segment.passages))


def request_of(prompt: Prompt, ttls: Sequence[Ttl | None], parameters: Parameters) -> WireRequest:
    """`ttls` has one item per block of the prompt, in their order."""
    breakpoints = (Mark(index, ttl) for index, ttl in enumerate(ttls) if ttl is not None)
    return WireRequest(prompt, Plan(tuple(breakpoints)), parameters)
