"""Vectors of passages, and how near a query's vector is to those of each unit.

A vector holds whole numbers, in float32. It is so short that every sum of products stays below 2**24, where float32 is
exact: neither the order of summation nor the number of threads can change a similarity.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.retrieval.units import Unit, described, passages, pieces, spelled_out

VECTOR_LENGTH = 4000
QUERY_CHARACTERS_MAX = 8_000
NAME_SHARE = 0.3
"""How much a name says beside a description, for an encoder that reads sentences."""
TEXTS_KNOWN_MAX = 512
_ROWS_AT_FIRST = 64
_NO_SLOT = 0

Vectors = NDArray[np.float32]
Sums = NDArray[np.float64]


class Encoder(Protocol):
    @property
    def model_version(self) -> str: ...
    @property
    def dimensions(self) -> int: ...
    def encode(self, texts: Sequence[str]) -> Sums:
        """One row per text; only its direction counts, and a text without words may be all zeros."""


class Remembering:
    """What was read lately is not read again: agents often ask in the same words."""

    def __init__(self, encoder: Encoder) -> None:
        self.model_version = encoder.model_version
        self.dimensions = encoder.dimensions
        self._row = lru_cache(TEXTS_KNOWN_MAX)(lambda text: encoder.encode([text])[0])

    def encode(self, texts: Sequence[str]) -> Sums:
        return np.stack([self._row(text) for text in texts]) if texts else np.zeros((0, self.dimensions))


Reading = Callable[[Encoder, Unit], Sums]
"""The rows that stand for a unit; never none."""


class VectorStage:
    """What one encoder says: the rows of all units in one matrix; a unit's similarity is that of its nearest row.

    Queries are read by `asked`, where they are read otherwise than units. To texts that have nothing in common some
    encoders say a similarity far from 0: that is their `zero`.
    """

    def __init__(self, encoder: Encoder, reading: Reading, *, asked: Encoder | None = None, zero: float = 0.0) -> None:
        self._encoder = encoder
        self._asked = asked or encoder
        self._reading = reading
        self._zero = zero
        self._rows: Vectors = np.zeros((_ROWS_AT_FIRST, encoder.dimensions), np.float32)
        self._owners: NDArray[np.intp] = np.zeros(_ROWS_AT_FIRST, np.intp)
        self._rows_of: dict[int, list[int]] = {}
        self._free: list[int] = list(range(_ROWS_AT_FIRST))

    @property
    def model_version(self) -> str:
        return self._encoder.model_version

    def add(self, slot: int, unit: Unit) -> None:
        vectors = whole_numbers(self._reading(self._encoder, unit))
        while len(self._free) < len(vectors):
            self._grow()
        taken = [self._free.pop() for _ in vectors]
        self._rows[taken] = vectors
        # Row 0 of the tally belongs to rows that are free.
        self._owners[taken] = slot + 1
        self._rows_of[slot] = taken

    def remove(self, slot: int) -> None:
        freed = self._rows_of.pop(slot)
        self._owners[freed] = _NO_SLOT
        self._free += freed

    def near(self, query: str, *, slots: int) -> Sums:
        wanted = whole_numbers(self._asked.encode([query[:QUERY_CHARACTERS_MAX]]))[0]
        near = self._rows @ wanted
        nearest = np.zeros(slots + 1, np.float32)
        np.maximum.at(nearest, self._owners, near)
        similarities: Sums = nearest[1:].astype(np.float64) / VECTOR_LENGTH**2
        return np.maximum(similarities - self._zero, 0) / (1 - self._zero) if self._zero else similarities

    def _grow(self) -> None:
        count = len(self._rows)
        self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._owners = np.concatenate([self._owners, np.zeros_like(self._owners)])
        self._free += range(count, 2 * count)


def by_words(encoder: Encoder, unit: Unit) -> Sums:
    """For sums of words, each of which counts as much beside few others as beside many."""
    return encoder.encode(passages(unit))


def by_sentences(encoder: Encoder, unit: Unit) -> Sums:
    """For encoders of sentences: a name is none, and so has a share of its own beside what describes the unit."""
    name, description = spelled_out(unit.name), described(unit)
    texts = [text for text in (description, name) if text] or [""]
    first = directions(encoder.encode(texts))
    shares = (1.0, NAME_SHARE)[: len(texts)]
    own = sum(share * row for share, row in zip(shares, first, strict=True))
    rest = pieces(unit)
    return np.vstack([[own], encoder.encode(rest)]) if rest else np.asarray([own])


def whole_numbers(sums: Sums) -> Vectors:
    """The directions, as whole numbers in rows of about `VECTOR_LENGTH`."""
    whole: Vectors = np.rint(directions(sums) * VECTOR_LENGTH).astype(np.float32)
    return whole


def directions(sums: Sums) -> Sums:
    """Rows of length 1; a row of zeros stays one."""
    lengths = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    rows: Sums = sums / np.maximum(lengths, 1e-12)
    return rows
