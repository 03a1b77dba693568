"""The request as wire bytes: an append-only buffer into which breakpoints are spliced when a body is rendered."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Protocol

import msgspec

from holdfast.errors import OrderError
from holdfast.types.blocks import Role
from holdfast.types.json_encoding import extend_digest
from holdfast.types.prompt import Breakpoint, HistoryEntry, PromptSection, Stability, Ttl


class EncodedBlock(msgspec.Struct, frozen=True):
    """One block in a provider's encoding. `accepts_breakpoint`: a cache breakpoint is allowed on it.

    `container_start` are the bytes before `data` that start a new container, such as a message. A block without them
    continues the container of the previous block.
    """

    layer: str
    section: PromptSection
    stability: Stability
    data: bytes
    accepts_breakpoint: bool
    role: Role | None = None
    ephemeral: bool = False
    container_start: bytes = b""


class PackedBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An encoded block of a packed buffer, without its `data`: those are the last `size` bytes up to its end."""

    layer: str
    section: PromptSection
    stability: Stability
    size: int
    accepts_breakpoint: bool
    role: Role | None
    ephemeral: bool
    container_start: bytes
    tokens: int


class PackedBuffer(msgspec.Struct, frozen=True, array_like=True):
    """The leading blocks of a buffer as they are stored; their digests are stored elsewhere."""

    cacheable: bytes
    blocks: tuple[PackedBlock, ...]


class WireEncoder(Protocol):
    """What the buffer needs to know about a provider's JSON."""

    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        """The separator between two adjacent blocks, or the bytes before the first."""

    def suffix(self, last: EncodedBlock | None) -> bytes:
        """The suffix that closes the body after the last block."""

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        """A breakpoint as the last member of a block's JSON object, leading comma included."""


class RequestBuffer:
    """Append-only: a block that was added is never encoded, hashed or counted again."""

    def __init__(self, encoder: WireEncoder, count: Callable[[bytes], int]) -> None:
        self._encoder = encoder
        self._count = count
        self._bytes = bytearray()
        self.blocks: list[EncodedBlock] = []
        self.digests: list[PrefixDigest] = []
        self.tokens: list[int] = []
        self.tokens_total = 0
        self.first_ephemeral: int | None = None
        self.stable_count = 0
        """How many leading blocks belong to layers that do not change within an epoch."""

    def extend(self, blocks: Iterable[EncodedBlock], tokens: Iterable[int] = ()) -> None:
        """Add blocks; `tokens` are those of each block, where they were counted before."""
        counted = iter(tokens)
        for block in blocks:
            before = self.blocks[-1] if self.blocks else None
            data = self._encoder.separator(before, block) + block.data
            self.digests.append(extend_digest_chain(self.digests[-1] if self.digests else None, block.layer, data))
            self._bytes += data
            if block.ephemeral and self.first_ephemeral is None:
                self.first_ephemeral = len(self.blocks)
            if block.stability <= Stability.EPOCH and self.stable_count == len(self.blocks):
                self.stable_count += 1
            self.blocks.append(block)
            # Without the separator, whose brackets and commas are not part of the block.
            known = next(counted, None)
            self.tokens.append(self._count(block.container_start + block.data) if known is None else known)
            self.tokens_total += self.tokens[-1]

    def truncate(self, keep: int) -> None:
        """Drop every block after the first `keep`, because the prefix changed there or ephemeral text was removed."""
        self.tokens_total -= sum(self.tokens[keep:])
        del self.blocks[keep:], self.digests[keep:], self.tokens[keep:]
        del self._bytes[self.digests[-1].end if self.digests else 0 :]
        self.stable_count = min(self.stable_count, keep)
        if self.first_ephemeral is not None and self.first_ephemeral >= keep:
            self.first_ephemeral = None

    def pack(self, count: int) -> PackedBuffer:
        """The first `count` blocks."""
        packed = (
            PackedBlock(
                block.layer,
                block.section,
                block.stability,
                len(block.data),
                block.accepts_breakpoint,
                block.role,
                block.ephemeral,
                block.container_start,
                tokens,
            )
            for block, tokens in zip(self.blocks[:count], self.tokens, strict=False)
        )
        return PackedBuffer(bytes(self._bytes[: self.digests[count - 1].end if count else 0]), tuple(packed))

    def unpack(self, packed: PackedBuffer, digests: Sequence["PrefixDigest"]) -> None:
        """Fill an empty buffer with packed blocks and their digests, as if they had been added one by one."""
        cacheable = packed.cacheable
        for block, digest in zip(packed.blocks, digests, strict=True):
            self.blocks.append(
                EncodedBlock(
                    block.layer,
                    block.section,
                    block.stability,
                    cacheable[digest.end - block.size : digest.end],
                    block.accepts_breakpoint,
                    block.role,
                    block.ephemeral,
                    block.container_start,
                )
            )
        self._bytes += cacheable
        self.digests += digests
        self.tokens += [block.tokens for block in packed.blocks]
        self.tokens_total = sum(self.tokens)
        self.stable_count = count_stable_blocks(self.blocks)
        self.first_ephemeral = next((index for index, block in enumerate(self.blocks) if block.ephemeral), None)

    def cacheable_bytes(self) -> bytes:
        return bytes(self._bytes)

    @property
    def stable_prefix_length(self) -> int:
        """Length in cacheable bytes of the layers that do not change within an epoch."""
        return self.digests[self.stable_count - 1].end if self.stable_count else 0

    def render(self, request_head: bytes, breakpoints: Sequence[Breakpoint] = (), *, start: int = 0) -> bytes:
        """The whole body: `request_head` is the request's JSON object up to the prompt, without the closing brace.

        Blocks before `start` are left out: they are in an explicit cache that `request_head` refers to. Such a cache
        holds all tools and all system text, so only messages may follow.
        """
        if start and start < len(self.blocks) and self.blocks[start].section != "messages":
            raise OrderError(
                f"layer {self.blocks[start].layer!r} ({self.blocks[start].section}) comes after the prefix in the "
                "explicit cache; only messages may follow it"
            )
        # Everything that can raise comes before the memoryview: one that outlives an exception would lock the
        # bytearray, and the next `extend` would fail with BufferError.
        ordered = sorted(
            (point for point in breakpoints if point.block_index >= start), key=lambda point: point.block_index
        )
        # A block is a JSON object, so the breakpoint goes before its closing brace and becomes its last member.
        splices = [
            (self.digests[point.block_index].end - 1, self._encoder.encode_breakpoint(point.ttl)) for point in ordered
        ]
        last = self.blocks[-1] if len(self.blocks) > start else None
        suffix = self._encoder.suffix(last)
        separator = self._encoder.separator(None, self.blocks[start]) if start and last else b""
        done = self._start_of(start) if start else 0
        parts: list[bytes | memoryview] = [request_head, separator]
        with memoryview(self._bytes) as buffer:
            for position, encoded_breakpoint in splices:
                parts += [buffer[done:position], encoded_breakpoint]
                done = position
            parts += [buffer[done:], suffix]
            body = b"".join(parts)
            for part in parts:
                if isinstance(part, memoryview):
                    part.release()
        return body

    def _start_of(self, index: int) -> int:
        """Where a block's own bytes start, after the separator between it and the previous block."""
        return self.digests[index].end - len(self.blocks[index].data) if index < len(self.blocks) else len(self._bytes)


class PrefixDigest(msgspec.Struct, frozen=True, array_like=True):
    """One step of the digest chain: the digest of all bytes up to `end`, of which [start, end) belong to `layer`."""

    layer: str
    start: int
    end: int
    digest: str


def extend_digest_chain(previous: PrefixDigest | None, layer: str, data: bytes) -> PrefixDigest:
    start = previous.end if previous else 0
    return PrefixDigest(layer, start, start + len(data), extend_digest(previous.digest if previous else "", data))


def count_shared_blocks(before: Sequence[PrefixDigest], after: Sequence[PrefixDigest]) -> int:
    """How many leading blocks two prompts have in common, byte for byte.

    A binary search, because each digest covers everything before it: once two chains differ they never agree again.
    """
    indexes = range(min(len(before), len(after)))
    return bisect_left(indexes, True, key=lambda index: before[index].digest != after[index].digest)


def common_prefix_length(old: bytes, new: bytes, start: int = 0) -> int:
    """Length of the common prefix of both; the caller knows that the first `start` bytes agree."""
    low, high = start, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        # Only the undecided part is compared, so that the total work is linear.
        low, high = (middle, high) if old[low:middle] == new[low:middle] else (low, middle - 1)
    return low


def count_stable_blocks(blocks: Iterable[EncodedBlock]) -> int:
    """How many leading blocks belong to layers that do not change within an epoch."""
    return sum(1 for _ in takewhile(lambda block: block.stability <= Stability.EPOCH, blocks))


def make_message_block(
    entry: HistoryEntry, data: bytes, *, accepts_breakpoint: bool, container_start: bytes = b""
) -> EncodedBlock:
    return EncodedBlock(
        entry.layer,
        "messages",
        entry.stability,
        data,
        accepts_breakpoint,
        entry.role,
        entry.ephemeral,
        container_start,
    )
