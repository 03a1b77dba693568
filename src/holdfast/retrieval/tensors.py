"""The tensors of a safetensors file: eight bytes of length, a head of JSON, the numbers."""

import math
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.retrieval.vectors import Vectors

HEAD_BYTES_MAX = 1 << 24
_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}


class _Place(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_tensors(path: Path) -> dict[str, Vectors]:
    """As float32, all in memory: the file may be written anew meanwhile. Numbers of other kinds are left out.

    Raises ValueError for another kind of file, OSError for none.
    """
    with path.open("rb") as file:
        head_bytes = int.from_bytes(file.read(8), "little")
        if head_bytes > HEAD_BYTES_MAX:
            raise ValueError("another kind of file")
        # An error in it is a ValueError too.
        head = msgspec.json.decode(file.read(head_bytes), type=dict[str, msgspec.Raw])
    head.pop("__metadata__", None)
    places = {name: msgspec.json.decode(place, type=_Place) for name, place in head.items()}
    stored = np.fromfile(path, np.uint8, offset=8 + head_bytes)
    # One that lies upon another would take more memory than the file.
    if sum(max(0, end - start) for start, end in (place.data_offsets for place in places.values())) > len(stored):
        raise ValueError("tensors lie upon each other")
    return {name: _numbers(stored, place) for name, place in places.items() if place.dtype in _WIDTHS}


def _numbers(stored: NDArray[np.uint8], place: _Place) -> Vectors:
    start, end = place.data_offsets
    wanted = math.prod(place.shape) * _WIDTHS[place.dtype]
    if min(place.shape, default=1) < 0 or not 0 <= start <= end <= len(stored) or end - start != wanted:
        raise ValueError("a tensor lies where there is none")
    part = stored[start:end]
    if place.dtype == "F32":
        numbers = part.view(np.float32)
        # Where it does not begin at a round number, it could not be multiplied as it lies there.
        return (numbers if numbers.flags.aligned else numbers.copy()).reshape(place.shape)
    if place.dtype == "F16":
        return part.view(np.float16).astype(np.float32).reshape(place.shape)
    return (part.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(place.shape)
