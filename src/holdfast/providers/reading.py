"""What reading a request means for every provider alike: its size, its segments, and the marks in it."""

from collections.abc import Sequence

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Mark, Parameters, Passage, Plan, Prompt, Segment, Stability, Ttl
from holdfast.canonical.tools import ToolSpec
from holdfast.errors import ProviderError
from holdfast.providers.adapter import WireRequest

BODY_BYTES_MAX = 32 * 1024 * 1024

Lifetimes = list[Ttl | None]
"""For each piece the lifetime of its mark, or None where it has none."""


def refuse_oversized(body: bytes, bytes_max: int = BODY_BYTES_MAX) -> None:
    if len(body) > bytes_max:
        raise ProviderError("invalid_request", f"the request has more than {bytes_max} bytes; send less", status=413)


def prompt_of(tools: tuple[ToolSpec, ...], system: tuple[Text, ...], passages: tuple[Passage, ...]) -> Prompt:
    segments = (
        Segment("tools", Stability.FROZEN, "tools", tools=tools),
        Segment("system", Stability.EPOCH, "system", system=system),
        Segment("history", Stability.GROWING, "messages", passages=passages),
    )
    return Prompt(tuple(part for part in segments if part.tools or part.system or part.passages))


def request_of(prompt: Prompt, lifetimes: Sequence[Ttl | None], parameters: Parameters) -> WireRequest:
    """The lifetimes are those of all pieces of the prompt, in their order."""
    marks = (Mark(index, ttl) for index, ttl in enumerate(lifetimes) if ttl is not None)
    return WireRequest(prompt, Plan(tuple(marks)), parameters)
