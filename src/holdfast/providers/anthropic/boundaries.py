"""Splits one long text into blocks with cache breakpoints (seed 004)."""

from collections.abc import Sequence

PREFIX_BLOCKS_MAX = 3
"""A request may have 4 breakpoints (Anthropic, "Prompt caching"); one stays free for the caller."""


def cache_prefix_blocks(message: str, cache_boundaries: Sequence[int]) -> str | list[dict[str, object]]:
    """The message as content blocks split at the character offsets; all but the last have a breakpoint.

    The plain string if no boundary lies inside the message. Only the first three boundaries are used.
    """
    points = sorted({point for point in cache_boundaries if 0 < point < len(message)})[:PREFIX_BLOCKS_MAX]
    if not points:
        return message
    blocks: list[dict[str, object]] = [
        {"type": "text", "text": message[start:end], "cache_control": {"type": "ephemeral"}}
        for start, end in zip([0, *points], points, strict=False)
    ]
    return [*blocks, {"type": "text", "text": message[points[-1] :]}]
