"""Reads safetensors files: eight bytes of header length, a JSON header, the tensor data."""

import math
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

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
