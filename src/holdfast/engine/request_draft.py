"""The next request under construction: blocks encoded for the last call are reused, only new ones are encoded."""

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from holdfast.engine.state import SessionState
from holdfast.events.payloads.session import ContextInjected
from holdfast.layers.assemble import SYSTEM_SUFFIX, changed_volatile_texts, system_suffix_text
from holdfast.ledger.cache.change_cause import find_prefix_change
from holdfast.providers.adapter import Adapter
from holdfast.providers.cache_inputs import has_image
from holdfast.types.blocks import ToolResult, is_thinking
from holdfast.types.prompt import HistoryEntry, LayerText, PrefixChange, Prompt, Segment, Stability, View
from holdfast.types.request_buffer import EncodedBlock, PackedBuffer, PrefixDigest, RequestBuffer


class ThinkingCounts(NamedTuple):
    """Thinking blocks up to a history entry: not sent yet, sent in this turn, and of turns that a new message ended."""

    new: int = 0
    sent: int = 0
    ended: int = 0

    def count_entry(self, entry: HistoryEntry) -> "ThinkingCounts":
        if entry.role == "assistant":
            thoughts = sum(map(is_thinking, entry.content))
            return self._replace(new=self.new + thoughts)
        if all(isinstance(block, ToolResult) for block in entry.content):
            return ThinkingCounts(0, self.sent + self.new, self.ended)
        return ThinkingCounts(0, 0, self.ended + self.sent)


class PackedDraft(msgspec.Struct, frozen=True):
    """The part of a draft that was sent, as it is stored; its entries and digests are those of the session's state."""

    stable_prefix: tuple[Segment, ...]
    starts: tuple[int, ...]
    images: tuple[bool, ...]
    thinking: tuple[ThinkingCounts, ...]
    buffer: PackedBuffer


class RequestDraft:
    """The encoded bytes of the newest prompt; encoded again only from the block where it differs from the last one."""

    def __init__(self, adapter: Adapter, count: Callable[[bytes], int]) -> None:
        self._adapter = adapter
        self._count = count
        self._stable_prefix: tuple[Segment, ...] = ()
        self._entries: tuple[HistoryEntry, ...] = ()
        self._starts: list[int] = []  # The block at which each history entry starts.
        self._images: list[bool] = []  # Whether there is an image up to each history entry.
        self._thinking: list[ThinkingCounts] = []
        self.buffer = RequestBuffer(adapter, count)
        self._dropped: tuple[EncodedBlock, ...] = ()
        self._unchanged_blocks = 0

    def update(self, prompt: Prompt) -> None:
        stable_prefix = tuple(segment for segment in prompt.segments if segment.section != "messages")
        if stable_prefix != self._stable_prefix:
            self._cut(0)
            self._entries, self._starts, self._images, self._thinking = (), [], [], []
            for segment in stable_prefix:
                self.buffer.extend(self._adapter.encode_segment(segment))
            self._stable_prefix = stable_prefix
        entries = prompt.entries
        unchanged = self._unchanged_count(entries)
        encoded: dict[int, tuple[list[EncodedBlock], list[int]]] = {}
        if unchanged < len(self._entries):
            encoded = self._encoded_from(unchanged)
            self._cut(self._starts[unchanged])
            del self._starts[unchanged:], self._images[unchanged:], self._thinking[unchanged:]
        for entry in entries[unchanged:]:
            self._starts.append(len(self.buffer.blocks))
            self._images.append(self.has_images or any(map(has_image, entry.content)))
            self._thinking.append((self._thinking[-1] if self._thinking else ThinkingCounts()).count_entry(entry))
            if id(entry) in encoded:
                self.buffer.extend(*encoded[id(entry)])
            else:
                self.buffer.extend(self.encode_entry(entry))
        self._entries = entries

    def _encoded_from(self, first: int) -> dict[int, tuple[list[EncodedBlock], list[int]]]:
        """The blocks of each entry from index `first` on and their tokens, by the identity of the entry: after a
        compaction the kept entries are the same objects, further to the front."""
        spans = pairwise([*self._starts[first:], len(self.buffer.blocks)])
        return {
            id(entry): (self.buffer.blocks[start:stop], self.buffer.tokens[start:stop])
            for entry, (start, stop) in zip(self._entries[first:], spans, strict=True)
        }

    def copy(self) -> "RequestDraft":
        """A draft with the same blocks, to measure another view with: what both have in common is not encoded again."""
        other = RequestDraft(self._adapter, self._count)
        other._stable_prefix, other._entries = self._stable_prefix, self._entries
        other._starts, other._images, other._thinking = self._starts[:], self._images[:], self._thinking[:]
        other.buffer.extend(self.buffer.blocks, self.buffer.tokens)
        return other

    def pack(self, state: SessionState) -> PackedDraft | None:
        """What the draft and the last request of this state have in common; None if that is not the whole request."""
        count = len(state.digests)
        entries = len(self._starts) if count == len(self.buffer.blocks) else bisect_left(self._starts, count)
        is_sent = (
            self.buffer.digests[:count] == list(state.digests) and self._entries[:entries] == state.entries[:entries]
        )
        if not entries or not is_sent or (entries < len(self._starts) and self._starts[entries] != count):
            return None
        return PackedDraft(
            self._stable_prefix,
            tuple(self._starts[:entries]),
            tuple(self._images[:entries]),
            tuple(self._thinking[:entries]),
            self.buffer.pack(count),
        )

    def unpack(self, packed: PackedDraft, state: SessionState) -> None:
        """Continue from a stored draft of this state, unless the provider's encoding is not the same as then."""
        fresh = RequestBuffer(self._adapter, lambda data: 0)
        for segment in packed.stable_prefix:
            fresh.extend(self._adapter.encode_segment(segment))
        if fresh.digests != list(state.digests[: len(fresh.digests)]):
            return
        self.buffer.unpack(packed.buffer, state.digests)
        self._stable_prefix, self._entries = packed.stable_prefix, state.entries[: len(packed.starts)]
        self._starts, self._images, self._thinking = list(packed.starts), list(packed.images), list(packed.thinking)

    @property
    def has_images(self) -> bool:
        return bool(self._images) and self._images[-1]

    @property
    def ended_thinking(self) -> int:
        """Thinking blocks of earlier turns that a request of their own turn contained."""
        return self._thinking[-1].ended if self._thinking else 0

    @property
    def prefix_tokens(self) -> int:
        """Tokens of tools and system prompt, before the messages."""
        return sum(self.buffer.tokens[: self._starts[0]]) if self._starts else self.buffer.tokens_total

    def entry_tokens(self, first: int = 0) -> list[int]:
        """Tokens of each history entry from index `first` on."""
        starts = [*self._starts[first:], len(self.buffer.tokens)]
        return [sum(self.buffer.tokens[start:end]) for start, end in pairwise(starts)]

    def _cut(self, keep: int) -> None:
        if keep < self._unchanged_blocks:
            self._dropped = (*self.buffer.blocks[keep : self._unchanged_blocks], *self._dropped)
            self._unchanged_blocks = keep
        self.buffer.truncate(keep)

    def mark_sent(self) -> None:
        """Mark the newest prompt as sent: later changes are compared with it."""
        self._dropped, self._unchanged_blocks = (), len(self.buffer.blocks)

    def describe_change(self, shared: int) -> PrefixChange:
        """How the newest prompt differs from the last sent one, after the `shared` blocks that both have."""
        previous_blocks = self._dropped[max(0, shared - self._unchanged_blocks) :]
        digests = self.buffer.digests
        position = digests[shared] if shared < len(digests) else digests[-1] if digests else PrefixDigest("", 0, 0, "")
        return find_prefix_change(previous_blocks, self.buffer.blocks[shared:], position)

    def encode_entry(self, entry: HistoryEntry) -> tuple[EncodedBlock, ...]:
        """A history entry encoded for the provider; it is not added to the draft."""
        return self._adapter.encode_segment(Segment("history", Stability.GROWING, "messages", entries=(entry,)))

    def _unchanged_count(self, entries: tuple[HistoryEntry, ...]) -> int:
        """How many leading entries are the same as in the previous prompt."""
        previous = self._entries
        # Views share their entries, so that this comparison is mostly by identity.
        if entries[: len(previous)] == previous:
            return len(previous)
        pairs = enumerate(zip(previous, entries, strict=False))
        return next((index for index, (old, new) in pairs if old != new), min(len(previous), len(entries)))


def build_view(state: SessionState, current: tuple[LayerText, ...] = ()) -> View:
    """The conversation as the layers see it."""
    return View(
        tools=state.tools,
        pinned=state.pinned,
        history=state.entries[: state.sent_count],
        newest=state.entries[state.sent_count :],
        current=current,
        emitted=state.emitted,
        layout=state.layout,
        head=state.stable_prefix,
    )


def build_sent_view(state: SessionState) -> View:
    """The view to send next. The seed layout uses the recorded volatile text: a request depends on the log alone."""
    tail = state.system_tail
    return build_view(state, (tail,) if state.layout == "seed" and tail else ())


def plan_injections(
    state: SessionState, current: tuple[LayerText, ...]
) -> tuple[tuple[ContextInjected, ...], tuple[ContextInjected, ...]]:
    """Changed volatile text as events: what goes before the user's message, and what goes after it."""
    if state.layout == "seed":
        text, tail = system_suffix_text(current), state.system_tail
        if not current or text == (tail.text if tail else ""):
            return (), ()
        return (ContextInjected(SYSTEM_SUFFIX, text, section="system"),), ()
    changed = changed_volatile_texts(build_view(state, current))
    events = [ContextInjected(layer.layer, layer.text, layer.ephemeral) for layer in changed]
    return tuple(event for event in events if not event.ephemeral), tuple(event for event in events if event.ephemeral)
