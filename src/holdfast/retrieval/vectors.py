"""Passage vectors, and the similarity of a query's vector to those of each unit.

Vectors are rounded to integers, stored as float32. They are scaled so that every sum of products stays below 2**24,
where float32 is exact: neither the order of summation nor the number of threads can change a similarity.
"""

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.retrieval.bm25 import extract_words
from holdfast.retrieval.encoders.registry import EncodingStore
from holdfast.retrieval.units import SearchUnit, describe_without_name, list_passages, split_content, split_name

VECTOR_LENGTH = 4000  # 4000**2 = 16,000,000 is below 2**24 = 16,777,216.
NAME_SHARE = 0.3
"""The weight of a name relative to the description, for sentence encoders."""
TEXTS_CACHED_MAX = 512
QUERY_WORDS_MAX = 64
"""How many different words of a query are compared one by one."""
UNITS_A_BATCH = 200
"""An index that is interrupted while it is built has kept the encodings of all but this many of its units."""
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
        """One row per text; only its direction matters, and a text without words may be all zeros."""


class CachingEncoder:
    """Caches the vectors of recent texts, because agents often repeat their queries."""

    def __init__(self, encoder: Encoder) -> None:
        self.model_version = encoder.model_version
        self.dimensions = encoder.dimensions
        self._row = lru_cache(TEXTS_CACHED_MAX)(lambda text: encoder.encode([text])[0])

    def encode(self, texts: Sequence[str]) -> Sums:
        return np.stack([self._row(text) for text in texts]) if texts else np.zeros((0, self.dimensions))


UnitReading = Callable[[Encoder, SearchUnit], Sums]
"""Computes the vectors of a unit, at least one."""


class UnitEncoder:
    """The vectors of units, from the store where they are kept, else encoded and kept.

    A value is kept under a digest of the unit's text and of what turns it into vectors, and begins with a digest of the
    vectors: what another program wrote, or something has damaged, is encoded again.
    """

    def __init__(self, encoder: Encoder, reading: UnitReading, store: EncodingStore | None) -> None:
        self._encoder = encoder
        self._reading = reading
        program = digest_program() if store is not None else None
        self._store = store if program is not None else None
        self._revision = (encoder.model_version, encoder.dimensions, reading.__name__, program)

    def encode_units(self, units: Sequence[SearchUnit]) -> Iterator[Vectors]:
        """In order; each has at least one row."""
        left = iter(units)
        while batch := tuple(islice(left, UNITS_A_BATCH)):
            yield from self._encode_batch(batch)

    def _encode_batch(self, units: Sequence[SearchUnit]) -> Iterator[Vectors]:
        if self._store is None:
            yield from map(self._encode, units)
            return
        keys = [self._make_key(unit) for unit in units]
        kept = self._store.read(keys)
        encoded: dict[bytes, bytes] = {}
        for key, unit in zip(keys, units, strict=True):
            vectors = self._unpack(key, kept.get(key, b""))
            if vectors is None:
                vectors = self._encode(unit)
                encoded[key] = _seal(key, vectors.astype(_KEPT_TYPE).tobytes())
            yield vectors
        if encoded:
            self._store.keep(encoded)

    def _encode(self, unit: SearchUnit) -> Vectors:
        return quantize(self._reading(self._encoder, unit))

    def _make_key(self, unit: SearchUnit) -> bytes:
        texts = (unit.name, unit.description, unit.content, *unit.triggers)
        encoded = msgspec.msgpack.encode((self._revision, [text.encode(errors="surrogatepass") for text in texts]))
        return blake2b(encoded, digest_size=16).digest()

    def _unpack(self, key: bytes, sealed: bytes) -> Vectors | None:
        packed = sealed[_SEAL_BYTES:]
        if not packed or _seal(key, packed) != sealed:
            return None
        return np.frombuffer(packed, _KEPT_TYPE).reshape(-1, self._encoder.dimensions).astype(np.float32)


# A rounded number is at most VECTOR_LENGTH + 1, so two bytes hold it.
_KEPT_TYPE = np.dtype("<i2")
_SEAL_BYTES = 8


def _seal(key: bytes, packed: bytes) -> bytes:
    return blake2b(packed, digest_size=_SEAL_BYTES, key=key).digest() + packed


@cache
def digest_program(folder: Path = Path(__file__).parent) -> bytes | None:
    """A digest of the code that reads units and of the libraries that compute vectors.

    None if the code is not in files, so that nobody can tell whether it changed.
    """
    digest = blake2b(digest_size=16)
    for name in ("numpy", "onnxruntime", "tokenizers"):
        distribution = next(iter(importlib.metadata.distributions(name=name)), None)
        digest.update(f"{name} {distribution.version if distribution is not None else None}\n".encode())
    try:
        files = sorted(folder.rglob("*.py"))
        for path in files:
            digest.update(f"{path.name}\n".encode() + path.read_bytes())
    except OSError:
        return None
    return digest.digest() if files else None


class VectorStage:
    """The vectors of all units from one encoder, in one matrix; a unit's similarity is that of its most similar row.

    `query_encoder` encodes queries if they need another encoder than units. Some encoders give unrelated texts a
    similarity far from 0; that value is their `zero`.
    """

    def __init__(
        self,
        encoder: Encoder,
        reading: UnitReading,
        *,
        floor: float,
        words_share: float = 1.0,
        query_encoder: Encoder | None = None,
        zero: float = 0.0,
        encodings: EncodingStore | None = None,
    ) -> None:
        self.floor = floor
        self.words_share = words_share
        self._encoder = encoder
        self._query_encoder = query_encoder or encoder
        self._unit_encoder = UnitEncoder(encoder, reading, encodings)
        self._zero = zero
        self._rows: Vectors = np.zeros((_ROWS_AT_FIRST, encoder.dimensions), np.float32)
        self._owners: NDArray[np.intp] = np.zeros(_ROWS_AT_FIRST, np.intp)
        self._rows_of: dict[int, list[int]] = {}
        self._free: list[int] = list(range(_ROWS_AT_FIRST))

    @property
    def model_version(self) -> str:
        return self._encoder.model_version

    def add(self, units: Mapping[int, SearchUnit]) -> None:
        slots = iter(units)
        for vectors in self._unit_encoder.encode_units(tuple(units.values())):
            self._add_rows(next(slots), vectors)

    def _add_rows(self, slot: int, vectors: Vectors) -> None:
        while len(self._free) < len(vectors):
            self._grow()
        rows = [self._free.pop() for _ in vectors]
        self._rows[rows] = vectors
        # Index 0 of the tally in `match` collects the free rows.
        self._owners[rows] = slot + 1
        self._rows_of[slot] = rows

    def remove(self, slot: int) -> None:
        freed = self._rows_of.pop(slot)
        self._owners[freed] = _NO_SLOT
        self._free += freed

    def match(self, query: str, *, slots: int) -> list[float]:
        products = self._match_rows(query)
        best_by_slot = np.zeros(slots + 1)
        np.maximum.at(best_by_slot, self._owners, products)
        similarities: Sums = best_by_slot[1:] / VECTOR_LENGTH**2
        # Rescale linearly, so that `zero` becomes 0 and 1 stays 1.
        rescaled: list[float] = (np.maximum(similarities - self._zero, 0) / (1 - self._zero)).tolist()
        return rescaled

    def _match_rows(self, query: str) -> Sums:
        """The products of the query's vector with every row."""
        products: Sums = (self._rows @ quantize(self._query_encoder.encode([query]))[0]).astype(np.float64)
        return products

    def _grow(self) -> None:
        count = len(self._rows)
        self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._owners = np.concatenate([self._owners, np.zeros_like(self._owners)])
        self._free += range(count, 2 * count)


class WordStage(VectorStage):
    """For an encoder of words: the similarity of a passage is the mean of that of its vector and of its words.

    A vector blurs the words of its passage. So each word of the query is also compared with the most similar word of
    the passage, and these similarities are averaged. Short units, those without content, are compared by vector only.
    """

    def __init__(self, encoder: Encoder, *, floor: float, encodings: EncodingStore | None = None) -> None:
        super().__init__(encoder, encode_by_words, floor=floor, encodings=encodings)
        self._word_rows: Vectors = np.zeros((_ROWS_AT_FIRST, encoder.dimensions), np.float32)
        self._word_numbers: dict[str, int] = {}
        self._words_of: dict[int, NDArray[np.intp]] = {}
        self._layout: _WordLayout | None = None

    def add(self, units: Mapping[int, SearchUnit]) -> None:
        super().add(units)
        for slot, unit in units.items():
            if unit.content:
                words_by_passage = map(extract_words, list_passages(unit))
                for row, words in zip(self._rows_of[slot], words_by_passage, strict=True):
                    self._words_of[row] = self._number_words(words)
        self._layout = None

    def remove(self, slot: int) -> None:
        # The rows of its words stay: most of them are in other units too.
        for row in self._rows_of[slot]:
            self._words_of.pop(row, None)
        self._layout = None
        super().remove(slot)

    def _match_rows(self, query: str) -> Sums:
        products = super()._match_rows(query)
        words = extract_words(query)[:QUERY_WORDS_MAX]
        layout = self._layout = self._layout or _lay_out(self._words_of)
        if words and len(layout.rows):
            # Sums of integers, so that they are exact in any order.
            by_words = np.zeros(len(layout.rows))
            # One word of the query at a time: numpy reduces one dimension many times faster than the first of two.
            for word_products in quantize(self._encoder.encode(words)) @ self._word_rows[: len(self._word_numbers)].T:
                best = np.maximum.reduceat(word_products.take(layout.words), layout.starts)
                by_words += np.maximum(best, 0)
            products[layout.rows] = (products[layout.rows] + by_words / len(words)) / 2
        return products

    def _number_words(self, words: Sequence[str]) -> NDArray[np.intp]:
        """The rows of the different words."""
        first = len(self._word_numbers)
        new = [word for word in words if word not in self._word_numbers]
        while len(self._word_rows) < first + len(new):
            self._word_rows = np.concatenate([self._word_rows, np.zeros_like(self._word_rows)])
        self._word_rows[first : first + len(new)] = quantize(self._encoder.encode(new))
        self._word_numbers.update((word, first + number) for number, word in enumerate(new))
        return np.array(sorted({self._word_numbers[word] for word in words}), np.intp)


class _WordLayout(NamedTuple):
    """The words of all passages one after another, and where those of each start; made when a search needs it."""

    rows: NDArray[np.intp]
    words: NDArray[np.intp]
    starts: NDArray[np.intp]


def _lay_out(words_of: Mapping[int, NDArray[np.intp]]) -> _WordLayout:
    kept = {row: words for row, words in words_of.items() if len(words)}
    lengths = [len(words) for words in kept.values()]
    words = np.concatenate([*kept.values(), np.zeros(0, np.intp)])
    return _WordLayout(np.array(list(kept), np.intp), words, np.cumsum([0, *lengths[:-1]], dtype=np.intp))


class CombinedStage:
    """Two stages side by side: the similarity of a unit is the mean of theirs, and so is the floor."""

    def __init__(self, first: VectorStage, second: VectorStage) -> None:
        self.floor = (first.floor + second.floor) / 2
        self.words_share = min(first.words_share, second.words_share)
        self.model_version = f"{first.model_version}+{second.model_version}"
        self._stages = (first, second)

    def add(self, units: Mapping[int, SearchUnit]) -> None:
        for stage in self._stages:
            stage.add(units)

    def remove(self, slot: int) -> None:
        for stage in self._stages:
            stage.remove(slot)

    def match(self, query: str, *, slots: int) -> list[float]:
        first, second = (stage.match(query, slots=slots) for stage in self._stages)
        return [(one + other) / 2 for one, other in zip(first, second, strict=True)]


def encode_by_words(encoder: Encoder, unit: SearchUnit) -> Sums:
    """For encoders that sum word vectors: each passage is one vector."""
    return encoder.encode(list_passages(unit))


def encode_by_sentences(encoder: Encoder, unit: SearchUnit) -> Sums:
    """For sentence encoders: a name is no sentence, so it is encoded separately and added with a fixed weight."""
    name, description = split_name(unit.name), describe_without_name(unit)
    texts = [text for text in (description, name) if text] or [""]
    rows = normalize_rows(encoder.encode(texts))
    shares = (1.0, NAME_SHARE)[: len(texts)]
    head_vector = sum(share * row for share, row in zip(shares, rows, strict=True))
    content_pieces = split_content(unit)
    return np.vstack([[head_vector], encoder.encode(content_pieces)]) if content_pieces else np.asarray([head_vector])


def quantize(sums: Sums) -> Vectors:
    """The directions, scaled to about `VECTOR_LENGTH` and rounded to integers."""
    whole: Vectors = np.rint(normalize_rows(sums) * VECTOR_LENGTH).astype(np.float32)
    return whole


def normalize_rows(sums: Sums) -> Sums:
    """Rows scaled to length 1; a row of zeros stays zero."""
    lengths = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    rows: Sums = sums / np.maximum(lengths, 1e-12)
    return rows
