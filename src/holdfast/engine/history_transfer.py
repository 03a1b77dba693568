"""Converting a conversation's history for another model: everything that the other model can accept."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.types.blocks import Block, Opaque, Text, ToolResult, get_result_call_id, is_thinking, parse_tool_call
from holdfast.types.prompt import HistoryEntry

UNPORTABLE_RESULT = "The result was in a form that only another provider knows."


class TransferredHistory(msgspec.Struct, frozen=True):
    """The entries that are kept; `dropped` counts the removed blocks by kind."""

    entries: tuple[HistoryEntry, ...]
    dropped: tuple[tuple[str, int], ...] = ()


def transfer_history(entries: Sequence[HistoryEntry], *, same_provider: bool) -> TransferredHistory:
    """Thinking is bound to the model that produced it and is always dropped (docs/decisions/0014).

    Opaque provider-specific blocks are kept only within the same provider, except tool calls, which are converted.
    """
    dropped: Counter[str] = Counter()
    kept = []
    for entry in entries:
        converted = (_portable_block(block, same_provider, dropped) for block in entry.content)
        content = tuple(block for block in converted if block is not None)
        if len(content) == len(entry.content) and all(a is b for a, b in zip(content, entry.content, strict=True)):
            kept.append(entry)
        elif content:
            kept.append(replace(entry, content=content))
    return TransferredHistory(tuple(kept), tuple(sorted(dropped.items())))


def _portable_block(block: Block, same_provider: bool, dropped: Counter[str]) -> Block | None:
    if is_thinking(block):
        dropped["thinking"] += 1
        return None
    if same_provider:
        return block
    if isinstance(block, Opaque):
        answered_id = get_result_call_id(block)
        if answered_id is not None:
            # Its call is kept, and no provider accepts a call without a result.
            dropped[block.kind] += 1
            return ToolResult(answered_id, (Text(UNPORTABLE_RESULT),))
        call = parse_tool_call(block)
        if call is None:
            dropped[block.kind] += 1
        return call
    if isinstance(block, ToolResult) and (foreign := [part.kind for part in block.content if isinstance(part, Opaque)]):
        dropped.update(foreign)
        return replace(block, content=tuple(part for part in block.content if not isinstance(part, Opaque)))
    return block


def model_provider(model: str) -> str:
    return model.partition(":")[0]
