"""Which old outputs of tools give way to a line each: oldest first, in one batch, down to a low mark."""

from collections.abc import Sequence

import msgspec

from holdfast.canonical.blocks import Text, ToolResult, ToolUse
from holdfast.canonical.encoding import digest
from holdfast.canonical.prompt import Passage
from holdfast.compaction.values import CompactionConfig
from holdfast.events.payloads_compaction import ClearedResult
from holdfast.extraction.calls import action_of, failed, result_text
from holdfast.extraction.texts import shown

RESULT_TOKENS_MIN = 200
TURNS_KEPT = 2
LOW_SHARE = 0.5
"""Down to which share of the messages a batch clears; what clears less breaks the cache again too soon."""


class Batch(msgspec.Struct, frozen=True):
    """Outputs that are cleared together: the first and last message they stand in, and how many tokens they have.

    `behind_tokens` stand behind the first of them and stay; they have to be written again.
    """

    results: tuple[ClearedResult, ...]
    first: int
    last: int
    cleared_tokens: int
    behind_tokens: int


def batch_of(
    passages: Sequence[Passage], tokens: Sequence[int], config: CompactionConfig, *, unsent: int
) -> Batch | None:
    """The oldest outputs, as many as it takes to come down to the low mark; None where all of them do not suffice.

    Errors stay, and what protected tools have told; so do the last two turns and what was not sent yet.
    """
    calls = {block.id: block for one in passages for block in one.content if isinstance(block, ToolUse)}
    wanted = sum(tokens) * (1 - LOW_SHARE)
    chosen: list[ClearedResult] = []
    freed, first, last = 0, 0, 0
    for at in range(_before_last_turns(passages, unsent)):
        for block in passages[at].content:
            if freed >= wanted or not isinstance(block, ToolResult):
                continue
            size = _tokens_of(block, passages[at], tokens[at])
            call = calls.get(block.tool_use_id)
            if size < RESULT_TOKENS_MIN or failed(block) or (call and call.name in config.protected_tools):
                continue
            chosen.append(ClearedResult(block.tool_use_id, _line(block, call, passages[at].number)))
            freed, first, last = freed + size, first or at + 1, at
    if freed < wanted or not chosen:
        return None
    behind = sum(tokens[first - 1 :]) - freed
    return Batch(tuple(chosen), passages[first - 1].number, passages[last].number, freed, behind)


def _before_last_turns(passages: Sequence[Passage], unsent: int) -> int:
    """Where the last two turns begin, or what was not sent yet."""
    asks = [
        at
        for at, one in enumerate(passages)
        if one.role == "user" and not one.injected and any(isinstance(block, Text) for block in one.content)
    ]
    return min(unsent, asks[-TURNS_KEPT] if len(asks) >= TURNS_KEPT else 0)


def _tokens_of(result: ToolResult, passage: Passage, tokens: int) -> int:
    """The share of a passage's tokens that is one result's, by the length of the texts."""
    lengths = [len(result_text(block)) for block in passage.content if isinstance(block, ToolResult)]
    return round(tokens * len(result_text(result)) / max(1, sum(lengths)))


def _line(result: ToolResult, call: ToolUse | None, number: int) -> str:
    text = result_text(result)
    action = action_of(call) if call else None
    what = shown(f"{action.tool} {action.path or action.command or action.pattern}", 160) if action else "a tool"
    sha = digest(text.encode("utf-8", "surrogatepass"))[:8]
    return f"[The output of {what} was cleared: {len(text)} characters, sha:{sha}, message m{number}.]"
