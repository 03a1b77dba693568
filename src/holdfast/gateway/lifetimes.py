"""Marks in the order that the provider wants: none for an hour behind one for five minutes."""

from collections.abc import Iterator

from holdfast.canonical.blocks import Json
from holdfast.providers.anthropic.blocks import MARK

HOUR = "1h"


def in_order(body: dict[str, Json]) -> bool:
    """Mends the order in place of copies; whether there was something to mend.

    What stands in front of a mark for an hour is written for an hour in any case, so that this costs nothing.
    """
    marks = [block[MARK] for block in _blocks(body)]
    lifetimes = [mark.get("ttl") == HOUR for mark in marks if isinstance(mark, dict)]
    if len(lifetimes) != len(marks) or (HOUR not in (body_mark_ttl(body),) and True not in lifetimes):
        return False
    last = len(marks) if body_mark_ttl(body) == HOUR else max(place for place, hour in enumerate(lifetimes) if hour)
    mended = False
    for block in list(_blocks(body))[:last]:
        mark = block[MARK]
        assert isinstance(mark, dict)
        if mark.get("ttl") != HOUR:
            block[MARK] = {**mark, "ttl": HOUR}
            mended = True
    return mended


def body_mark_ttl(body: dict[str, Json]) -> Json | None:
    """The lifetime of the provider's automatic mark, which stands behind all others."""
    automatic = body.get(MARK)
    return automatic.get("ttl") if isinstance(automatic, dict) else None


def _blocks(body: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """All blocks that carry a mark, in the order in which they are hashed."""
    messages = body.get("messages")
    contents = [one.get("content") for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
    for blocks in (body.get("tools"), body.get("system"), *contents):
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict) and block.get(MARK) is not None:
                yield block
