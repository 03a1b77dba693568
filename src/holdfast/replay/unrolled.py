"""A recording as the bytes of a provider's requests; each block is encoded, hashed and counted once for all."""

import math
from collections.abc import Iterator, Sequence

from holdfast.cachemodel.values import BlockKind, Prefix
from holdfast.canonical.blocks import Text, ToolResult, ToolUse
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Mark, Passage, Segment, Stability
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.view import LayerText, View
from holdfast.catalog.tokens import count_block
from holdfast.layers.assemble import head_of
from holdfast.planning.closing import closing_behind
from holdfast.providers.adapter import Adapter
from holdfast.replay.recording import RecordedCall, Recording


class Unrolled:
    """The prompt of the newest call as one growing request buffer, with the prefixes that a cache sees.

    `shared_tokens` is how much of it the previous call had sent too, `reply_tokens` how much the previous reply adds.
    """

    def __init__(self, recording: Recording, adapter: Adapter, tokens_factor: float) -> None:
        self._adapter = adapter
        self._counts: dict[bytes, int] = {}
        self._factor = tokens_factor
        self._encoded: dict[Passage, tuple[Piece, ...]] = {}
        self.scroll = Scroll(adapter, self._count)
        self.prefixes: list[Prefix] = []
        self.passages: list[Passage] = []
        self._starts: list[int] = []
        self._system_tail = ""
        self._reply: Passage | None = None
        self._sent_blocks = 0
        self.shared_tokens = 0
        self.replied_tokens = 0
        self._add_head(recording)
        self._head_blocks = len(self.scroll.pieces)

    def _add_head(self, recording: Recording) -> None:
        first_entries = recording.calls[0].added if recording.calls else ()
        head = head_of(View(tools=recording.tools, pinned=(LayerText("preset", recording.system),)))
        blocks = [block for segment in head for block in self._adapter.spell(segment)]
        encoded = [*blocks, *(block for entry in first_entries for block in self._encode_entry(entry))]
        estimated = sum(self._count(block.opens + block.data) for block in encoded)
        missing = (recording.first_prompt_tokens or estimated) - estimated
        # The reported size is exact: if the estimate is too high, scale it down; if it is too low, the recording lacks
        # part of the system prompt, and a placeholder takes its tokens.
        if missing < 0:
            self._factor *= (estimated + missing) / estimated
            self._counts.clear()
        elif missing > 0:
            text = f"[{missing} tokens of the system prompt were not recorded]"
            placeholder = self._adapter.spell(Segment("role", Stability.FROZEN, "system", system=(Text(text),)))
            self._counts[placeholder[0].data] = missing
            tools = sum(block.place == "tools" for block in blocks)
            blocks[tools:tools] = placeholder
        self._extend(blocks)

    def calls(self, recording: Recording) -> Iterator[RecordedCall]:
        """Each call, with the buffer in the state in which its request was sent."""
        for call in recording.calls:
            self._enter(call)
            yield call

    def _enter(self, call: RecordedCall) -> None:
        shared = self._sent_blocks
        self.enter_reply()
        self.replied_tokens = self._tokens_at(len(self.prefixes)) - self._tokens_at(shared)
        if call.system_tail != self._system_tail:
            shared = min(shared, self._head_blocks)
            self._change_tail(call.system_tail)
        if call.kept is not None and call.kept < len(self.passages):
            shared = min(shared, self._starts[call.kept])
            self._cut(call.kept)
        if shared < self._sent_blocks:
            self.replied_tokens = 0
        self.shared_tokens = self._tokens_at(shared) if self._sent_blocks else 0
        for entry in call.added:
            self._add(entry)
        self._reply = call.reply
        self._sent_blocks = len(self.prefixes)

    @property
    def starts(self) -> tuple[int, ...]:
        """The index of the block at which each history entry starts."""
        return tuple(self._starts)

    def _tokens_at(self, block_count: int) -> int:
        return self.prefixes[block_count - 1].tokens if block_count else 0

    def enter_reply(self) -> None:
        """Append the reply to the last call, unless that was already done."""
        if self._reply is not None:
            self._add(self._reply)
            self._reply = None

    def _change_tail(self, text: str) -> None:
        entries = list(self.passages)
        self._system_tail = text
        self._cut(0)
        self._cut_blocks(self._head_blocks)
        if text:
            self._extend(self._adapter.spell(Segment("volatile", Stability.VOLATILE, "system", system=(Text(text),))))
        for entry in entries:
            self._add(entry)

    def _cut(self, entry_count: int) -> None:
        if entry_count < len(self._starts):
            self._cut_blocks(self._starts[entry_count])
        del self.passages[entry_count:], self._starts[entry_count:]

    def _cut_blocks(self, block_count: int) -> None:
        self.scroll.cut(block_count)
        del self.prefixes[block_count:]

    def _add(self, entry: Passage) -> None:
        self.passages.append(entry)
        self._starts.append(len(self.scroll.pieces))
        self._extend(self._encode_entry(entry), tuple(_kind_of(block) for block in entry.content))

    def _extend(self, blocks: Sequence[Piece], kinds: tuple[BlockKind, ...] = ()) -> None:
        before = len(self.scroll.pieces)
        self.scroll.extend(blocks)
        tokens = self.prefixes[-1].tokens if self.prefixes else 0
        for index, block in enumerate(blocks):
            tokens += self.scroll.tokens[before + index]
            kind: BlockKind = kinds[index] if index < len(kinds) else "plain"
            self.prefixes.append(Prefix(block.place, self.scroll.links[before + index].digest, tokens, kind))

    def _encode_entry(self, entry: Passage) -> tuple[Piece, ...]:
        if entry not in self._encoded:
            segment = Segment("history", Stability.GROWING, "messages", passages=(entry,))
            self._encoded[entry] = self._adapter.spell(segment)
        return self._encoded[entry]

    def _count(self, data: bytes) -> int:
        if data not in self._counts:
            self._counts[data] = math.ceil(count_block(data) * self._factor)
        return self._counts[data]

    def closing(self) -> Passage:
        """The message that must follow the reply in a request: a short text, or a result for every open tool call."""
        return closing_behind(self.passages[-1] if self.passages else None)

    def closed(self, breakpoints: Sequence[Mark]) -> bytes:
        """The body of a ping request after its head: the prompt with the closing message at its end."""
        keep = len(self.scroll.pieces)
        self.scroll.extend(self._encode_entry(self.closing()))
        body = self.scroll.render(b"", breakpoints)
        self.scroll.cut(keep)
        return body

    def closing_tokens(self) -> int:
        return sum(self._count(block.opens + block.data) for block in self._encode_entry(self.closing()))


def _kind_of(block: object) -> BlockKind:
    match block:
        case ToolUse():
            return "tool_use"
        case ToolResult():
            return "tool_result"
        case _:
            return "plain"
