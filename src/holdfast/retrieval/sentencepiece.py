"""Reads the vocabulary of a SentencePiece model file, as far as a unigram tokenizer needs it."""

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import UserError

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FLOAT = struct.Struct("<f")
_TEXT, _SCORE = 0x0A, b"\x15"


class Pieces(msgspec.Struct, frozen=True):
    """Pieces by id with their scores, and the compiled normalization map in the form that `tokenizers` takes."""

    scored: tuple[tuple[str, float], ...]
    normal_forms: bytes


def read_pieces(path: Path) -> Pieces:
    try:
        scored, normal_forms = _parse_model(path.read_bytes())
    except (LookupError, ValueError, struct.error) as error:
        raise UserError(f"{path.name} is not a SentencePiece model; reinstall holdfast[semantic]") from error
    return Pieces(tuple(scored), normal_forms)


def _parse_model(model: bytes) -> tuple[list[tuple[str, float]], bytes]:
    scored: list[tuple[str, float]] = []
    normal_forms = b""
    for field, value in _iter_fields(model):
        if field == 1:
            scored.append(_parse_piece(value))
        elif field == 3:
            normal_forms = dict(_iter_fields(value)).get(2, b"")
    if not scored or not normal_forms:
        raise ValueError("no pieces or no normal forms")
    return scored, normal_forms


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
