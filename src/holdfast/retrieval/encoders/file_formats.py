"""Reads two file formats of models as data: safetensors, and the vocabulary of a SentencePiece model.

A safetensors file has eight bytes of header length, a JSON header, and the tensor data. A SentencePiece model is a
protocol buffer message; only what a unigram tokenizer needs is read.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.errors import UserError
from holdfast.retrieval.vectors import Vectors

HEAD_BYTES_MAX = 1 << 24
_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}


class _TensorInfo(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_tensors(path: Path) -> dict[str, Vectors]:
    """All tensors as float32, in memory, because the file may be replaced meanwhile; other types are skipped.

    Raises ValueError if it is not a safetensors file, OSError if it cannot be read.
    """
    with path.open("rb") as file:
        head_bytes = int.from_bytes(file.read(8), "little")
        if head_bytes > HEAD_BYTES_MAX:
            raise ValueError("not a safetensors file")
        # msgspec's decoding errors are ValueErrors too.
        head = msgspec.json.decode(file.read(head_bytes), type=dict[str, msgspec.Raw])
    head.pop("__metadata__", None)
    infos = {name: msgspec.json.decode(info, type=_TensorInfo) for name, info in head.items()}
    stored = np.fromfile(path, np.uint8, offset=8 + head_bytes)
    # Overlapping tensors could take much more memory than the file has.
    if sum(max(0, end - start) for start, end in (info.data_offsets for info in infos.values())) > len(stored):
        raise ValueError("tensors overlap")
    return {name: _read_tensor(stored, info) for name, info in infos.items() if info.dtype in _WIDTHS}


def _read_tensor(stored: NDArray[np.uint8], info: _TensorInfo) -> Vectors:
    start, end = info.data_offsets
    expected_bytes = math.prod(info.shape) * _WIDTHS[info.dtype]
    if min(info.shape, default=1) < 0 or not 0 <= start <= end <= len(stored) or end - start != expected_bytes:
        raise ValueError("a tensor lies outside of the data, or its size is wrong")
    raw = stored[start:end]
    if info.dtype == "F32":
        numbers = raw.view(np.float32)
        # Unaligned data cannot be passed to BLAS, so it is copied.
        return (numbers if numbers.flags.aligned else numbers.copy()).reshape(info.shape)
    if info.dtype == "F16":
        return raw.view(np.float16).astype(np.float32).reshape(info.shape)
    # bfloat16 is the upper half of a float32.
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(info.shape)


_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FLOAT = struct.Struct("<f")
_TEXT, _SCORE = 0x0A, b"\x15"


class SentencePieces(msgspec.Struct, frozen=True):
    """Pieces by id with their scores, and the compiled normalization map in the form that `tokenizers` takes."""

    scored_pieces: tuple[tuple[str, float], ...]
    normalization_map: bytes


def read_sentence_pieces(path: Path) -> SentencePieces:
    scored: list[tuple[str, float]] = []
    normalization_map = b""
    try:
        for field, value in _iter_fields(path.read_bytes()):
            if field == 1:
                scored.append(_parse_piece(value))
            elif field == 3:
                normalization_map = dict(_iter_fields(value)).get(2, b"")
        if not scored or not normalization_map:
            raise ValueError("no pieces or no normalization map")
    except (LookupError, ValueError, struct.error) as error:
        raise UserError(f"{path.name} is not a SentencePiece model; reinstall holdfast-context[semantic]") from error
    return SentencePieces(tuple(scored), normalization_map)


def _parse_piece(piece: bytes) -> tuple[str, float]:
    end = 2 + piece[1]
    if piece[0] == _TEXT and piece[1] < 0x80 and piece[end : end + 1] == _SCORE and len(piece) >= end + 5:
        # Fast path for the layout of nearly all of the hundred thousand pieces.
        return piece[2:end].decode(), _FLOAT.unpack_from(piece, end + 1)[0]
    fields = dict(_iter_fields(piece))
    return fields[1].decode(), _FLOAT.unpack(fields.get(2, b"\0\0\0\0"))[0]


def _iter_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protocol buffer message with their bytes; varint fields are skipped."""
    position, end = 0, len(message)
    while position < end:
        key, position = _read_varint(message, position)
        kind = key & 7
        if kind == _BYTES:
            size, position = _read_varint(message, position)
        elif kind == _VARINT:
            _, position = _read_varint(message, position)
            continue
        else:
            size = {_FIXED_32: 4, _FIXED_64: 8}[kind]
        if position + size > end:
            raise ValueError("a field extends beyond the end")
        yield key >> 3, message[position : position + size]
        position += size


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
