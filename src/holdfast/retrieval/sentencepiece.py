"""The pieces of a SentencePiece model, read from its file; only what a unigram tokenizer needs of it."""

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import UserError

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FLOAT = struct.Struct("<f")
_TEXT, _SCORE = 0x0A, b"\x15"


class Pieces(msgspec.Struct, frozen=True):
    """Pieces by id with their scores, and how characters are made normal: a compiled map, as tokenizers take it."""

    scored: tuple[tuple[str, float], ...]
    normal_forms: bytes


def read_pieces(path: Path) -> Pieces:
    try:
        scored, normal_forms = _read(path.read_bytes())
    except (LookupError, ValueError, struct.error) as error:
        raise UserError(f"{path.name} is no SentencePiece model; reinstall holdfast[semantic]") from error
    return Pieces(tuple(scored), normal_forms)


def _read(model: bytes) -> tuple[list[tuple[str, float]], bytes]:
    scored: list[tuple[str, float]] = []
    normal_forms = b""
    for field, value in _fields(model):
        if field == 1:
            scored.append(_scored(value))
        elif field == 3:
            normal_forms = dict(_fields(value)).get(2, b"")
    if not scored or not normal_forms:
        raise ValueError("no pieces or no normal forms")
    return scored, normal_forms


def _scored(piece: bytes) -> tuple[str, float]:
    end = 2 + piece[1]
    if piece[0] == _TEXT and piece[1] < 0x80 and piece[end : end + 1] == _SCORE and len(piece) >= end + 5:
        # As nearly all of the hundred thousand are written.
        return piece[2:end].decode(), _FLOAT.unpack_from(piece, end + 1)[0]
    parts = dict(_fields(piece))
    return parts[1].decode(), _FLOAT.unpack(parts.get(2, b"\0\0\0\0"))[0]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Fields of a protocol buffer with their bytes; whole numbers are passed over."""
    at, end = 0, len(message)
    while at < end:
        key, at = _number(message, at)
        kind = key & 7
        if kind == _BYTES:
            size, at = _number(message, at)
        elif kind == _VARINT:
            _, at = _number(message, at)
            continue
        else:
            size = {_FIXED_32: 4, _FIXED_64: 8}[kind]
        if at + size > end:
            raise ValueError("a field reaches beyond the end")
        yield key >> 3, message[at : at + size]
        at += size


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
