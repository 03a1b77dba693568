"""What of a conversation goes along to another model: everything that the other could be told."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.canonical.blocks import Block, Opaque, Text, ToolResult, ToolUse, is_thinking
from holdfast.canonical.prompt import Passage
from holdfast.canonical.transcript import call_id, result_id

UNTOLD_RESULT = "The result was in a form that only another provider knows."


class Carried(msgspec.Struct, frozen=True):
    """The passages that go along; `dropped` counts the blocks that stay behind, by their kind."""

    passages: tuple[Passage, ...]
    dropped: tuple[tuple[str, int], ...] = ()


def carry(entries: Sequence[Passage], *, same_provider: bool) -> Carried:
    """Thinking is bound to the model that thought it and stays behind as a whole.

    What we keep as a provider's own bytes goes along only where the provider stays; calls are understood well
    enough to be told to anyone.
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
            # Its call goes along, and no provider takes a call without a result.
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
    """How the providers write a call: what it gets is `input`, `arguments` in a string, or nested `args`."""

    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    arguments: str | None = None
    function_call: _Function | None = msgspec.field(name="functionCall", default=None)


def call_in(block: Block) -> ToolUse | None:
    """The call that a block is, also where it has fields that we do not know."""
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
