"""Converting a conversation's history for another model: everything that the other model can accept."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.canonical.blocks import Block, Opaque, Text, ToolResult, ToolUse, is_thinking
from holdfast.canonical.prompt import Passage
from holdfast.canonical.transcript import call_id, result_id

UNTOLD_RESULT = "The result was in a form that only another provider knows."


class Carried(msgspec.Struct, frozen=True):
    """The entries that are kept; `dropped` counts the removed blocks by kind."""

    passages: tuple[Passage, ...]
    dropped: tuple[tuple[str, int], ...] = ()


def carry(entries: Sequence[Passage], *, same_provider: bool) -> Carried:
    """Thinking is bound to the model that produced it and is always dropped (docs/decisions/0014).

    Opaque provider-specific blocks are kept only within the same provider, except tool calls, which are converted.
    """
    dropped: Counter[str] = Counter()
    carried = []
    for entry in entries:
        content = tuple(
            converted
            for block in entry.content
            if (converted := _portable_block(block, same_provider, dropped)) is not None
        )
        if len(content) == len(entry.content) and all(a is b for a, b in zip(content, entry.content, strict=True)):
            carried.append(entry)
        elif content:
            carried.append(msgspec.structs.replace(entry, content=content))
    return Carried(tuple(carried), tuple(sorted(dropped.items())))


def _portable_block(block: Block, same_provider: bool, dropped: Counter[str]) -> Block | None:
    if is_thinking(block):
        dropped["thinking"] += 1
        return None
    if same_provider:
        return block
    if isinstance(block, Opaque):
        answered_id = result_id(block)
        if answered_id is not None:
            # Its call is kept, and no provider accepts a call without a result.
            dropped[block.kind] += 1
            return ToolResult(answered_id, (Text(UNTOLD_RESULT),))
        call = call_in(block)
        if call is None:
            dropped[block.kind] += 1
        return call
    if isinstance(block, ToolResult) and any(isinstance(part, Opaque) for part in block.content):
        foreign = [part.kind for part in block.content if isinstance(part, Opaque)]
        dropped.update(foreign)
        portable = tuple(part for part in block.content if not isinstance(part, Opaque))
        return msgspec.structs.replace(block, content=portable)
    return block


class _Function(msgspec.Struct):
    name: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _WireCall(msgspec.Struct):
    """A provider's tool call: its arguments are `input`, a string `arguments`, or nested `args`."""

    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    arguments: str | None = None
    function_call: _Function | None = msgspec.field(name="functionCall", default=None)


def call_in(block: Block) -> ToolUse | None:
    """The tool call in a block, even if the block has fields that we do not know; None if it is no call."""
    if isinstance(block, ToolUse):
        return block
    id = call_id(block)
    if id is None or not isinstance(block, Opaque):
        return None
    try:
        call = msgspec.json.decode(block.raw, type=_WireCall)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        call = _WireCall()
    if call.function_call is not None:
        return ToolUse(id, call.function_call.name, bytes(call.function_call.args).decode("utf-8", "replace"))
    arguments = call.arguments if call.arguments is not None else bytes(call.input).decode("utf-8", "replace")
    return ToolUse(id, call.name, arguments)


def provider_of(model: str) -> str:
    return model.partition(":")[0]
