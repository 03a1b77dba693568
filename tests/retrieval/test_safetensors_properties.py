"""Files of tensors: what was written is read, and what is none is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.retrieval.encoders.file_formats import HEAD_BYTES_MAX, read_tensors

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3) / 4 - 0.5


def written(path: Path, *tensors: tuple[str, str, NDArray[Any]]) -> Path:
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, dtype, numbers in tensors:
        stored = numbers.tobytes()
        head[name] = {
            "dtype": dtype,
            "shape": list(numbers.shape),
            "data_offsets": [len(body), len(body) + len(stored)],
        }
        body += stored
    return raw(path, head, body)


def raw(path: Path, head: object, body: bytes) -> Path:
    said = json.dumps(head).encode()
    said += b" " * (-len(said) % 8)
    path.write_bytes(len(said).to_bytes(8, "little") + said + body)
    return path


@pytest.mark.parametrize("odd", [False, True])
def test_each_kind_of_number_is_read_as_it_was_written(odd: bool, tmp_path: Path) -> None:
    as_brain = (MATRIX.view(np.uint32) >> 16).astype(np.uint16)
    path = written(
        tmp_path / "weights",
        # What stands behind an odd number of halves begins at no round number.
        ("first", "F16", np.ones(3 if odd else 4, np.float16)),
        ("whole", "F32", MATRIX),
        ("half", "F16", MATRIX.astype(np.float16)),
        ("brain", "BF16", as_brain),
        ("places", "I64", np.arange(3)),
        ("one", "F32", np.array(7, np.float32)),
    )
    read = read_tensors(path)
    assert set(read) == {"first", "whole", "half", "brain", "one"}
    for name in ("whole", "half", "brain"):
        assert read[name].dtype == np.float32
        assert read[name].flags.aligned
        assert (read[name] == MATRIX).all()
    assert read["one"] == 7


def _head(**changed: object) -> dict[str, object]:
    return {"t": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changed}


@pytest.mark.parametrize(
    "head",
    [
        _head(data_offsets=[0, 28]),
        _head(data_offsets=[4, 28]),
        _head(data_offsets=[-4, 20]),
        _head(data_offsets=[24, 0]),
        _head(data_offsets=[0]),
        _head(shape=[2, 2]),
        _head(shape=[-2, -3]),
        _head(shape=[1 << 40, 1 << 40]),
        _head(shape="2"),
        [],
        "",
    ],
)
def test_a_tensor_that_lies_outside_is_refused(head: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_tensors(raw(tmp_path / "weights", head, bytes(24)))


def test_tensors_that_lie_upon_each_other_are_refused(tmp_path: Path) -> None:
    place = {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}
    with pytest.raises(ValueError, match="tensors overlap"):
        read_tensors(raw(tmp_path / "weights", {"one": place, "other": place}, bytes(12)))


def test_a_head_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes((HEAD_BYTES_MAX + 1).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match="not a safetensors file"):
        read_tensors(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.integers(0, 30))
def test_a_file_that_was_damaged_is_read_or_refused(at: float, byte: int, cut: int, tmp_path: Path) -> None:
    path = written(tmp_path / "weights", ("whole", "F32", MATRIX), ("half", "F16", MATRIX.astype(np.float16)))
    stored = bytearray(path.read_bytes())
    stored[int(at * len(stored))] = byte
    path.write_bytes(stored[: len(stored) - cut])
    try:
        sizes = [tensor.nbytes for tensor in read_tensors(path).values()]
    except ValueError:
        return
    assert sum(sizes) <= 2 * len(stored)
