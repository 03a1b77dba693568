"""How some agents change what was said before they send it: the same conversation, other prompts."""

from collections.abc import Callable, Mapping
from itertools import zip_longest

import msgspec

from holdfast.canonical.blocks import Block, Text, ToolResult
from holdfast.canonical.prompt import Passage
from holdfast.replay.recording import RecordedCall, Recording

CLEARED = "[cleared]"
CLEARING_CHARACTERS_MIN = 400_000
"""Where clearing sets in: 100,000 tokens, taken as four characters each."""

RESULTS_KEPT = 3

Layout = Callable[[Recording], Recording]


Volatile = Callable[[int], tuple[str, ...]]
"""What changes from turn to turn, as it stands in turn 1, 2, ...: one text a layer, the same layers in every turn."""


def turn_line(turn: int) -> tuple[str, ...]:
    return (f"Now it is turn {turn} of this session, on branch main; {turn} files have been changed since it began.",)


def with_volatile_system(recording: Recording, said: Volatile = turn_line) -> Recording:
    """What changes stands at the end of the system prompt, so that it is another one whenever a person has spoken."""
    calls = []
    turns = 0
    for call in recording.calls:
        turns += call.waited_for != "tool"
        calls.append(msgspec.structs.replace(call, system_tail="\n".join(said(turns))))
    return msgspec.structs.replace(recording, calls=tuple(calls))


def with_volatile_messages(recording: Recording, said: Volatile, tokens: Callable[[str], int]) -> Recording:
    """What changes stands in front of the person's words, is said only when it has changed, and stays where it is.

    Nothing is said inside a tool loop; behind a compaction all of it is said anew. What the first prompt says of it is
    counted with `tokens`, on top of how long the recorded one was.
    """
    calls: list[RecordedCall] = []
    last: tuple[str | None, ...] = ()
    turns = first_tokens = 0
    for call in recording.calls:
        last = () if call.kept is not None else last
        if call.waited_for != "tool":
            turns += 1
            now = said(turns)
            new = tuple(text for text, before in zip_longest(now, last) if text is not None and text != before)
            call = msgspec.structs.replace(call, added=_in_front(call.added, new))
            first_tokens += sum(map(tokens, new)) if not calls else 0
            last = now
        calls.append(call)
    known = recording.first_prompt_tokens
    first_prompt = None if known is None else known + first_tokens
    return msgspec.structs.replace(recording, calls=tuple(calls), first_prompt_tokens=first_prompt)


def _in_front(added: tuple[Passage, ...], texts: tuple[str, ...]) -> tuple[Passage, ...]:
    """The texts in the newest passage: behind its results of tools, which have to come first, in front of the rest."""
    if not added or not texts:
        return added
    *earlier, newest = added
    results = tuple(block for block in newest.content if isinstance(block, ToolResult))
    rest = tuple(block for block in newest.content if not isinstance(block, ToolResult))
    content = (*results, *map(Text, texts), *rest)
    return (*earlier, msgspec.structs.replace(newest, content=content))


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
