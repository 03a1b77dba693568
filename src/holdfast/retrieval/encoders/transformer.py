"""Forward pass of a BERT-style transformer in numpy, one text at a time."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.retrieval.vectors import Vectors

# Abramowitz and Stegun, formula 7.1.26: erf with an absolute error below 1.5e-7.
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_SCALE = 0.3275911
_DISTANCE_MAX = 128
_BUCKETS_MIN = 4


class Affine(msgspec.Struct, frozen=True):
    """A linear layer; the weights have one row per output."""

    weights: Vectors
    bias: Vectors


class TransformerLayer(msgspec.Struct, frozen=True):
    """One layer: attention (query, key, value, output) and the feed-forward part, each followed by a normalization."""

    query: Affine
    key: Affine
    value: Affine
    attention_output: Affine
    attention_norm: Affine
    intermediate: Affine
    output: Affine
    output_norm: Affine


class Transformer(msgspec.Struct, frozen=True):
    """Position embeddings start with the first token; the distance bias, if there is one, has a row per bucket."""

    token_embeddings: Vectors
    position_embeddings: Vectors
    token_type_embedding: Vectors
    embedding_norm: Affine
    layers: tuple[TransformerLayer, ...]
    heads: int
    epsilon: float
    distance_bias: Vectors | None = None

    def run(self, ids: Sequence[int]) -> Vectors:
        """The last layer, one row per token."""
        rows = self._normalize(
            self.token_embeddings[ids] + self.position_embeddings[: len(ids)] + self.token_type_embedding,
            self.embedding_norm,
        )
        bias = self._distance_bias(len(ids))
        for layer in self.layers:
            attended = _apply(self._attend(rows, layer, bias), layer.attention_output)
            rows = self._normalize(rows + attended, layer.attention_norm)
            output = _apply(gelu(_apply(rows, layer.intermediate)), layer.output)
            rows = self._normalize(rows + output, layer.output_norm)
        return rows

    def _attend(self, rows: Vectors, layer: TransformerLayer, bias: Vectors | np.float32) -> Vectors:
        count = len(rows)
        queries, keys, values = (
            _apply(rows, projection).reshape(count, self.heads, -1).transpose(1, 0, 2)
            for projection in (layer.query, layer.key, layer.value)
        )
        logits = queries @ keys.transpose(0, 2, 1) / np.float32(np.sqrt(queries.shape[-1])) + bias
        attention = np.exp(logits - logits.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        attended: Vectors = (attention @ values).transpose(1, 0, 2).reshape(count, -1)
        return attended

    def _distance_bias(self, count: int) -> Vectors | np.float32:
        """The attention bias of each head by token distance."""
        if self.distance_bias is None:
            return np.float32(0)
        return self.distance_bias[_distance_buckets(count, len(self.distance_bias))].transpose(2, 0, 1)

    def _normalize(self, rows: Vectors, scale_and_shift: Affine) -> Vectors:
        centred = rows - rows.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        normalized: Vectors = centred / deviation * scale_and_shift.weights + scale_and_shift.bias
        return normalized


def check_sizes(model: Transformer) -> None:
    """Raises ValueError if the sizes of its parts are inconsistent."""
    hidden = model.token_embeddings.shape[1:]
    square, flat = hidden * 2, hidden
    fits = (
        len(hidden) == 1 and hidden[0] > 0 and hidden[0] % model.heads == 0 and model.token_type_embedding.shape == flat
    )
    fits = fits and model.position_embeddings.shape[1:] == hidden and _has_shape(model.embedding_norm, flat)
    for layer in model.layers:
        inner = layer.intermediate.bias.shape
        sizes = (square, square, square, square, flat, (*inner, *hidden), (*hidden, *inner), flat)
        fits = fits and all(map(_has_shape, msgspec.structs.astuple(layer), sizes))
    if model.distance_bias is not None:
        buckets = model.distance_bias.shape[:1]
        fits = fits and model.distance_bias.shape == (*buckets, model.heads) and buckets >= (_BUCKETS_MIN,)
    if not fits:
        raise ValueError("the sizes of its layers are inconsistent")


def _has_shape(affine: Affine, size: tuple[int, ...]) -> bool:
    return affine.weights.shape == size and affine.bias.shape == size[:1]


def gelu(rows: Vectors) -> Vectors:
    """x * (1 + erf(x / sqrt 2)) / 2, with erf approximated by a polynomial to about seven digits."""
    scaled = np.abs(rows) / np.float32(np.sqrt(2))
    inverse = 1 / (1 + np.float32(_ERF_SCALE) * scaled)
    polynomial = np.zeros_like(inverse)
    for coefficient in reversed(_ERF):
        polynomial = (polynomial + np.float32(coefficient)) * inverse
    erf = np.sign(rows) * (1 - polynomial * np.exp(-scaled * scaled))
    activated: Vectors = (rows * (1 + erf) / 2).astype(np.float32, copy=False)
    return activated


def _apply(rows: Vectors, affine: Affine) -> Vectors:
    result: Vectors = rows @ affine.weights.T + affine.bias
    return result


def _distance_buckets(count: int, buckets: int) -> NDArray[np.intp]:
    """Bucket numbers as in T5 and MPNet: half for each direction; near distances have their own, farther ones share."""
    half, exact = buckets // 2, buckets // 4
    distance = np.arange(count) - np.arange(count)[:, None]
    magnitude = np.abs(distance)
    log_share = np.log(np.maximum(magnitude, 1) / exact) / np.log(_DISTANCE_MAX / exact)
    far = np.minimum(exact + (log_share * (half - exact)).astype(np.intp), half - 1)
    numbers: NDArray[np.intp] = np.where(distance > 0, half, 0) + np.where(magnitude < exact, magnitude, far)
    return numbers
