"""The request so far, in wire bytes: it grows at its end, and marks are spliced in on the way out."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from holdfast.canonical.pieces import Link, Piece, link_up
from holdfast.canonical.prompt import Mark, Stability, Ttl
from holdfast.errors import OrderError


class Spelling(Protocol):
    """What a scroll must know of a provider's JSON."""

    def lead(self, before: Piece | None, piece: Piece) -> bytes:
        """The bytes between two neighbouring pieces, or in front of the first."""

    def close(self, last: Piece | None) -> bytes:
        """The bytes that end the body behind the last piece."""

    def mark(self, ttl: Ttl) -> bytes:
        """A cache mark, as the last member of a block's JSON object, leading comma included."""


class Scroll:
    """Append-only: what was written is never encoded, hashed or counted again."""

    def __init__(self, spelling: Spelling, count: Callable[[bytes], int]) -> None:
        self._spelling = spelling
        self._count = count
        self._bytes = bytearray()
        self.pieces: list[Piece] = []
        self.links: list[Link] = []
        self.tokens: list[int] = []
        self.tokens_total = 0
        self.first_ephemeral: int | None = None
        self.stable_count = 0
        """How many leading pieces belong to layers that do not change within an epoch."""

    def extend(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            before = self.pieces[-1] if self.pieces else None
            data = self._spelling.lead(before, piece) + piece.data
            self.links.append(link_up(self.links[-1] if self.links else None, piece.layer, data))
            self._bytes += data
            if piece.ephemeral and self.first_ephemeral is None:
                self.first_ephemeral = len(self.pieces)
            if piece.stability <= Stability.EPOCH and self.stable_count == len(self.pieces):
                self.stable_count += 1
            self.pieces.append(piece)
            self.tokens.append(self._count(piece.opens + piece.data))
            self.tokens_total += self.tokens[-1]

    def cut(self, keep: int) -> None:
        """Forget every piece behind the first `keep`: the prefix moved there, or ephemeral text left."""
        self.tokens_total -= sum(self.tokens[keep:])
        del self.pieces[keep:], self.links[keep:], self.tokens[keep:]
        del self._bytes[self.links[-1].end if self.links else 0 :]
        self.stable_count = min(self.stable_count, keep)
        if self.first_ephemeral is not None and self.first_ephemeral >= keep:
            self.first_ephemeral = None

    def cacheable_bytes(self) -> bytes:
        return bytes(self._bytes)

    @property
    def stable_prefix_length(self) -> int:
        """Where, in cacheable bytes, the layers end that do not change within an epoch."""
        return self.links[self.stable_count - 1].end if self.stable_count else 0

    def render(self, opening: bytes, marks: Sequence[Mark] = (), *, start: int = 0) -> bytes:
        """The whole body: `opening` is the request's JSON object up to the prompt, without closing brace.

        The pieces in front of `start` are left out: the provider keeps them and is told so in the opening. What it
        keeps is a whole head, so that nothing but messages may stand behind.
        """
        if start and start < len(self.pieces) and self.pieces[start].place != "messages":
            raise OrderError(
                f"layer {self.pieces[start].layer!r} ({self.pieces[start].place}) stands behind the head that the "
                "provider keeps; only messages may"
            )
        # Whatever can fail comes before the views: one that outlives an error would forbid the bytes to grow.
        ordered = sorted((mark for mark in marks if mark.piece >= start), key=lambda mark: mark.piece)
        # A block is a JSON object: the mark becomes its last member.
        splices = [(self.links[mark.piece].end - 1, self._spelling.mark(mark.ttl)) for mark in ordered]
        last = self.pieces[-1] if len(self.pieces) > start else None
        closing = self._spelling.close(last)
        lead = self._spelling.lead(None, self.pieces[start]) if start and last else b""
        done = self._start_of(start) if start else 0
        parts: list[bytes | memoryview] = [opening, lead]
        with memoryview(self._bytes) as written:
            for inside, spelled_mark in splices:
                parts += [written[done:inside], spelled_mark]
                done = inside
            parts += [written[done:], closing]
            body = b"".join(parts)
            for part in parts:
                if isinstance(part, memoryview):
                    part.release()
        return body

    def _start_of(self, piece: int) -> int:
        """Where a piece's own bytes start, behind whatever stands between it and the piece before."""
        return self.links[piece].end - len(self.pieces[piece].data) if piece < len(self.pieces) else len(self._bytes)
