"""How some agents change what was said before they send it: the same conversation, other prompts."""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.canonical.blocks import Block, Text, ToolResult
from holdfast.canonical.prompt import Passage
from holdfast.replay.recording import RecordedCall, Recording

CLEARED = "[cleared]"
CLEARING_CHARACTERS_MIN = 400_000
"""Where clearing sets in: 100,000 tokens, taken as four characters each."""

RESULTS_KEPT = 3

Layout = Callable[[Recording], Recording]


def with_volatile_system(recording: Recording) -> Recording:
    """A line of the system prompt that is another one whenever a person has spoken: the date, the state of the tree."""
    calls = []
    turns = 0
    for call in recording.calls:
        turns += call.waited_for != "tool"
        tail = (
            f"Now it is turn {turns} of this session, on branch main; {turns} files have been changed since it began."
        )
        calls.append(msgspec.structs.replace(call, system_tail=tail))
    return msgspec.structs.replace(recording, calls=tuple(calls))


def with_cleared_results(recording: Recording) -> Recording:
    """From 100,000 tokens on, every request leaves out all results of tools but the last three."""
    said: list[Passage] = []
    sent: list[Passage] = []
    cleared: dict[Passage, Passage] = {}
    calls: list[RecordedCall] = []
    for call in recording.calls:
        if call.kept is not None:
            del said[call.kept :]
        said += call.added
        now = list(said)
        if sum(map(_characters, said)) > CLEARING_CHARACTERS_MIN:
            now = _cleared(said, cleared)
        kept = next((at for at, (old, new) in enumerate(zip(sent, now, strict=False)) if old is not new), len(sent))
        whole = kept == len(sent) and len(now) >= kept
        calls.append(msgspec.structs.replace(call, added=tuple(now[kept:]), kept=None if whole else kept))
        reply = [call.reply] if call.reply is not None else []
        sent = now + reply
        said += reply
    return msgspec.structs.replace(recording, calls=tuple(calls))


LAYOUTS: Mapping[str, Layout] = {"metis": with_volatile_system, "langchain-clearing": with_cleared_results}
"""By the name of the policy that lays its prompts out like that."""


def _cleared(said: list[Passage], known: dict[Passage, Passage]) -> list[Passage]:
    results = sum(isinstance(block, ToolResult) for passage in said for block in passage.content)
    left = results - RESULTS_KEPT
    now = []
    for passage in said:
        count = sum(isinstance(block, ToolResult) for block in passage.content)
        if count and count <= left:
            if passage not in known:
                known[passage] = msgspec.structs.replace(passage, content=tuple(map(_empty, passage.content)))
            now.append(known[passage])
        else:
            now.append(passage)
        left -= count
    return now


def _empty(block: Block) -> Block:
    return ToolResult(block.tool_use_id, (Text(CLEARED),), block.is_error) if isinstance(block, ToolResult) else block


def _characters(passage: Passage) -> int:
    total = 0
    for block in passage.content:
        if isinstance(block, Text):
            total += len(block.text)
        elif isinstance(block, ToolResult):
            total += sum(len(part.text) for part in block.content if isinstance(part, Text))
    return total
