"""What a transformer of the BERT family says of each token of a text, computed by numpy, text by text."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.retrieval.vectors import Vectors

_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_SCALE = 0.3275911
_DISTANCE_MAX = 128
_BUCKETS_MIN = 4


class Affine(msgspec.Struct, frozen=True):
    """The weights have a row for each number that comes out."""

    weights: Vectors
    bias: Vectors


class Layer(msgspec.Struct, frozen=True):
    """What is asked, offered and said by each token, and what becomes of it; both ends are made normal."""

    asked: Affine
    offered: Affine
    said: Affine
    seen: Affine
    seen_normal: Affine
    inner: Affine
    outer: Affine
    outer_normal: Affine


class Transformer(msgspec.Struct, frozen=True):
    """`places` begin with that of the first token; `distances`, where there are any, have a row for each bucket."""

    tokens: Vectors
    places: Vectors
    base: Vectors
    normal: Affine
    layers: tuple[Layer, ...]
    heads: int
    epsilon: float
    distances: Vectors | None = None

    def rows(self, ids: Sequence[int]) -> Vectors:
        """One for each token, of the last layer."""
        rows = self._normal(self.tokens[ids] + self.places[: len(ids)] + self.base, self.normal)
        bias = self._bias(len(ids))
        for layer in self.layers:
            seen = _affine(self._attended(rows, layer, bias), layer.seen)
            rows = self._normal(rows + seen, layer.seen_normal)
            outer = _affine(gelu(_affine(rows, layer.inner)), layer.outer)
            rows = self._normal(rows + outer, layer.outer_normal)
        return rows

    def _attended(self, rows: Vectors, layer: Layer, bias: Vectors | np.float32) -> Vectors:
        count = len(rows)
        asked, offered, said = (
            _affine(rows, one).reshape(count, self.heads, -1).transpose(1, 0, 2)
            for one in (layer.asked, layer.offered, layer.said)
        )
        logits = asked @ offered.transpose(0, 2, 1) / np.float32(np.sqrt(asked.shape[-1])) + bias
        heed = np.exp(logits - logits.max(axis=-1, keepdims=True))
        heed /= heed.sum(axis=-1, keepdims=True)
        seen: Vectors = (heed @ said).transpose(1, 0, 2).reshape(count, -1)
        return seen

    def _bias(self, count: int) -> Vectors | np.float32:
        """How much each head heeds a token for its distance alone."""
        if self.distances is None:
            return np.float32(0)
        return self.distances[_buckets(count, len(self.distances))].transpose(2, 0, 1)

    def _normal(self, rows: Vectors, by: Affine) -> Vectors:
        rest = rows - rows.mean(axis=-1, keepdims=True)
        spread = np.sqrt((rest * rest).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        normal: Vectors = rest / spread * by.weights + by.bias
        return normal


def check_fits(model: Transformer) -> None:
    """Raises ValueError where the sizes of its parts do not fit together."""
    hidden = model.tokens.shape[1:]
    square, flat = hidden * 2, hidden
    fits = len(hidden) == 1 and hidden[0] > 0 and hidden[0] % model.heads == 0 and model.base.shape == flat
    fits = fits and model.places.shape[1:] == hidden and _has(model.normal, flat)
    for layer in model.layers:
        inner = layer.inner.bias.shape
        sizes = (square, square, square, square, flat, (*inner, *hidden), (*hidden, *inner), flat)
        fits = fits and all(map(_has, msgspec.structs.astuple(layer), sizes))
    if model.distances is not None:
        buckets = model.distances.shape[:1]
        fits = fits and model.distances.shape == (*buckets, model.heads) and buckets >= (_BUCKETS_MIN,)
    if not fits:
        raise ValueError("the sizes of its layers do not fit together")


def _has(one: Affine, size: tuple[int, ...]) -> bool:
    return one.weights.shape == size and one.bias.shape == size[:1]


def gelu(rows: Vectors) -> Vectors:
    """Half the rows and half of them by the error function, which is told to seven digits by a polynomial."""
    size = np.abs(rows) / np.float32(np.sqrt(2))
    short = 1 / (1 + np.float32(_ERF_SCALE) * size)
    polynomial = np.zeros_like(short)
    for coefficient in reversed(_ERF):
        polynomial = (polynomial + np.float32(coefficient)) * short
    error = np.sign(rows) * (1 - polynomial * np.exp(-size * size))
    bent: Vectors = (rows * (1 + error) / 2).astype(np.float32, copy=False)
    return bent


def _affine(rows: Vectors, by: Affine) -> Vectors:
    made: Vectors = rows @ by.weights.T + by.bias
    return made


def _buckets(count: int, buckets: int) -> NDArray[np.intp]:
    """Half of them for each side: near distances have one each, and farther ones share more and more."""
    half, exact = buckets // 2, buckets // 4
    distance = np.arange(count) - np.arange(count)[:, None]
    size = np.abs(distance)
    share = np.log(np.maximum(size, 1) / exact) / np.log(_DISTANCE_MAX / exact)
    far = np.minimum(exact + (share * (half - exact)).astype(np.intp), half - 1)
    numbers: NDArray[np.intp] = np.where(distance > 0, half, 0) + np.where(size < exact, size, far)
    return numbers
