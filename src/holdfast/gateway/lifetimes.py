"""Orders breakpoint TTLs as Anthropic requires: a 1-hour breakpoint must not come after a 5-minute one."""

from collections.abc import Iterator

from holdfast.canonical.blocks import Json
from holdfast.providers.anthropic.blocks import MARK

# Anthropic answers 400 if a 1h breakpoint comes after a 5m one ("Mixed TTL" in its prompt caching page).
HOUR = "1h"


def in_order(body: dict[str, Json]) -> bool:
    """Raises every breakpoint before the last 1-hour one to 1 hour, in place; returns whether anything changed.

    This costs nothing extra: a 1-hour breakpoint writes everything before it for one hour anyway.
    """
    breakpoints = [block[MARK] for block in _blocks(body)]
    is_hour = [breakpoint_.get("ttl") == HOUR for breakpoint_ in breakpoints if isinstance(breakpoint_, dict)]
    if len(is_hour) != len(breakpoints) or (HOUR not in (body_mark_ttl(body),) and True not in is_hour):
        return False
    automatic_is_hour = body_mark_ttl(body) == HOUR
    last = len(breakpoints) if automatic_is_hour else max(index for index, hour in enumerate(is_hour) if hour)
    changed = False
    for block in list(_blocks(body))[:last]:
        breakpoint_ = block[MARK]
        assert isinstance(breakpoint_, dict)
        if breakpoint_.get("ttl") != HOUR:
            block[MARK] = {**breakpoint_, "ttl": HOUR}
            changed = True
    return changed


def body_mark_ttl(body: dict[str, Json]) -> Json | None:
    """TTL of the request's automatic breakpoint (top-level `cache_control`), which comes after all others."""
    automatic = body.get(MARK)
    return automatic.get("ttl") if isinstance(automatic, dict) else None


def _blocks(body: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """All blocks with a breakpoint, in prompt order: tools, system, messages."""
    messages = body.get("messages")
    contents = (
        [message.get("content") for message in messages if isinstance(message, dict)]
        if isinstance(messages, list)
        else []
    )
    for blocks in (body.get("tools"), body.get("system"), *contents):
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict) and block.get(MARK) is not None:
                yield block
