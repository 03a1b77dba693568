"""A forwarded prompt as digests: what the next request of its conversation is compared with, and continues.

A request repeats its whole history. What was known of an earlier request is reused for the part that both share, so
that recording a call costs what is new in it; the text itself is kept compressed, to describe a change of the prefix.
"""

import zlib
from collections.abc import Sequence

import msgspec

from holdfast.catalog.token_count import count_block_tokens
from holdfast.engine.cache.message_tree import CONTAINER_START_BYTES_MAX, intern_block
from holdfast.engine.request_draft import ThinkingCounts
from holdfast.ledger.cache.change_cause import find_prefix_change
from holdfast.providers.adapter import Adapter
from holdfast.providers.cache_inputs import has_image
from holdfast.types.prompt import HistoryEntry, PrefixChange, Prompt, Segment, Stability
from holdfast.types.request_buffer import (
    EncodedBlock,
    PrefixDigest,
    count_shared_blocks,
    extend_digest_chain,
)

# Enough to tell text, calls of tools and their results apart, and too little for what they say.
DATA_START_BYTES = 24

# Measured with blocks of a kilobyte: digest, token count, places in lists, and the digest that matches conversations.
BLOCK_BYTES = 480
PROMPT_BYTES = 6_000
COMPRESSED_BYTES_MIN = 8_192
"""What is shorter waits for more: half of the time that zlib takes for 2 KB is the same for any length."""

_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


class _Run(msgspec.Struct, frozen=True, gc=False):
    """The text of blocks that follow one another, each with the start of its container."""

    data: bytes
    is_compressed: bool

    def read(self) -> list[tuple[bytes, bytes]]:
        return _decode(zlib.decompress(self.data) if self.is_compressed else self.data)


class ObservedPrompt:
    """The blocks of one prompt without their bytes. Grows by `extend`, and is not changed once it was compared."""

    __slots__ = (
        "_images",
        "_texts",
        "_thinking",
        "adapter",
        "blocks",
        "digests",
        "entry_ends",
        "factor",
        "head_count",
        "tokens",
        "tokens_total",
    )

    def __init__(self, adapter: Adapter, factor: float) -> None:
        self.adapter, self.factor = adapter, factor
        self.blocks: list[EncodedBlock] = []
        self.digests: list[PrefixDigest] = []
        self.tokens: list[int] = []
        self.tokens_total = 0
        self.head_count = 0
        """How many blocks are tools and system text."""
        self.entry_ends: list[int] = []
        """The number of blocks up to each history entry, that entry included."""
        self._images: list[bool] = []
        self._thinking: list[ThinkingCounts] = []
        # Runs of blocks by the number of their first; a later run takes the place of an earlier one's end.
        self._texts: list[tuple[int, _Run]] = []

    @property
    def size_bytes(self) -> int:
        """An estimate of the memory that it takes."""
        return PROMPT_BYTES + BLOCK_BYTES * len(self.blocks) + sum([len(run.data) for _, run in self._texts])

    @property
    def has_images(self) -> bool:
        return bool(self._images) and self._images[-1]

    @property
    def ended_thinking(self) -> int:
        """Thinking blocks of earlier turns that a request of their own turn contained."""
        return self._thinking[-1].ended if self._thinking else 0

    def cut(self, entries: int) -> "ObservedPrompt":
        """A prompt of the head and the first entries, to be extended by others."""
        keep = self.entry_ends[entries - 1] if entries else self.head_count
        prefix = ObservedPrompt(self.adapter, self.factor)
        prefix.blocks, prefix.digests, prefix.tokens = self.blocks[:keep], self.digests[:keep], self.tokens[:keep]
        prefix.tokens_total = self.tokens_total - sum(self.tokens[keep:])
        prefix.head_count, prefix.entry_ends = self.head_count, self.entry_ends[:entries]
        prefix._images, prefix._thinking = self._images[:entries], self._thinking[:entries]
        prefix._texts = [(start, run) for start, run in self._texts if start < keep]
        return prefix

    def extend(self, prompt: Prompt, *, before: "ObservedPrompt | None" = None) -> None:
        """Adds the segments of a prompt; tokens of blocks that are also in `before` are not counted again."""
        start, added = len(self.blocks), list[EncodedBlock]()
        is_same = before is not None and before.factor == self.factor
        for encoded, entry in _encode_parts(self.adapter, prompt):
            for block in encoded:
                index = len(self.blocks)
                data = self.adapter.separator(self.blocks[-1] if self.blocks else None, block) + block.data
                digest = extend_digest_chain(self.digests[-1] if self.digests else None, block.layer, data)
                if is_same and before is not None and index < len(before.digests) and before.digests[index] == digest:
                    # One object for both, because a conversation repeats its digests with every call.
                    digest, tokens = before.digests[index], before.tokens[index]
                else:
                    is_same, tokens = False, count_block_tokens(block.container_start + block.data, self.factor)
                self.digests.append(digest)
                self.tokens.append(tokens)
                self.tokens_total += tokens
                self.blocks.append(_without_text(block))
                added.append(block)
            if entry is None:
                self.head_count = len(self.blocks)
            else:
                self._add_entry(entry)
        if added:
            self._add_texts(start, [(block.data, block.container_start) for block in added])

    def _add_texts(self, start: int, parts: list[tuple[bytes, bytes]]) -> None:
        if self._texts and not self._texts[-1][1].is_compressed:
            first, run = self._texts.pop()
            start, parts = first, run.read()[: start - first] + parts
        data = _encode(parts)
        is_long = len(data) >= COMPRESSED_BYTES_MIN
        self._texts.append((start, _Run(zlib.compress(data, 1) if is_long else data, is_long)))

    def _add_entry(self, entry: HistoryEntry) -> None:
        self.entry_ends.append(len(self.blocks))
        self._images.append(self.has_images or any(map(has_image, entry.content)))
        last = self._thinking[-1] if self._thinking else ThinkingCounts()
        counts = last.count_entry(entry)
        self._thinking.append(last if counts == last else counts)

    def describe_change(self, before: "ObservedPrompt") -> PrefixChange | None:
        """How the prefix changed from an earlier prompt; None if this one begins with all of it."""
        shared = count_shared_blocks(before.digests, self.digests)
        if shared >= len(before.digests):
            return None
        digests = self.digests
        position = digests[shared] if shared < len(digests) else digests[-1] if digests else PrefixDigest("", 0, 0, "")
        return find_prefix_change(before._read_blocks(shared), self._read_blocks(shared), position)

    def measure_body(self, request_head: bytes, breakpoint_bytes: int) -> int:
        """The length of the body in our encoding."""
        suffix = self.adapter.suffix(self.blocks[-1] if self.blocks else None)
        prompt_bytes = self.digests[-1].end if self.digests else 0
        return len(request_head) + prompt_bytes + breakpoint_bytes + len(suffix)

    def _read_blocks(self, first: int) -> list[EncodedBlock]:
        """The blocks from the given one on, with their text."""
        read: list[EncodedBlock] = []
        ends = [start for start, _ in self._texts[1:]] + [len(self.blocks)]
        for (start, run), end in zip(self._texts, ends, strict=True):
            if end > first:
                parts = run.read()
                for index in range(max(start, first), end):
                    data, container_start = parts[index - start]
                    read.append(msgspec.structs.replace(self.blocks[index], data=data, container_start=container_start))
        return read


def _encode_parts(adapter: Adapter, prompt: Prompt) -> Sequence[tuple[Sequence[EncodedBlock], HistoryEntry | None]]:
    """The head's segments, then the history entries, each encoded."""
    parts: list[tuple[Sequence[EncodedBlock], HistoryEntry | None]] = [
        (adapter.encode_segment(segment), None) for segment in prompt.segments if segment.section != "messages"
    ]
    for entry in prompt.entries:
        segment = Segment("history", Stability.GROWING, "messages", entries=(entry,))
        parts.append((adapter.encode_segment(segment), entry))
    return parts


def _without_text(block: EncodedBlock) -> EncodedBlock:
    return intern_block(
        block.layer,
        block.section,
        block.stability,
        # What separators, shapes and cache models look at: how the data and its container begin.
        block.data[:DATA_START_BYTES],
        block.accepts_breakpoint,
        block.role,
        block.ephemeral,
        block.container_start[:CONTAINER_START_BYTES_MAX],
    )
