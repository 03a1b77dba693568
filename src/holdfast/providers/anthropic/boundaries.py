"""How one long text is cut into blocks whose prefixes are kept."""

from collections.abc import Sequence

PREFIX_BLOCKS_MAX = 3
"""One of the four marks that a request may have stays free for the caller."""


def cache_prefix_blocks(message: str, cache_boundaries: Sequence[int]) -> str | list[dict[str, object]]:
    """The message as content blocks, cut at the given character offsets, every one but the last marked.

    The plain string where no boundary lies inside the message; at most three marked blocks, the first ones.
    """
    points = sorted({point for point in cache_boundaries if 0 < point < len(message)})[:PREFIX_BLOCKS_MAX]
    if not points:
        return message
    blocks: list[dict[str, object]] = [
        {"type": "text", "text": message[start:end], "cache_control": {"type": "ephemeral"}}
        for start, end in zip([0, *points], points, strict=False)
    ]
    return [*blocks, {"type": "text", "text": message[points[-1] :]}]
