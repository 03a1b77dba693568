"""Encoders of sentences, turned towards what serves a request.

They were made to find texts that say the same; a request and the text that serves it seldom do. Two matrices for each
encoder, one for requests and one for what is found, were fitted to what packages of tools tell of themselves: what one
may ask of them, and what they are for (`scripts/fit_tuning.py`). They are kept as what they add to a vector, a byte a
number.
"""

import hashlib
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from holdfast.errors import UserError
from holdfast.retrieval.vectors import Encoder, Sums, Vectors, VectorStage, by_sentences

UNIT = 1 / 4096
"""What one of a byte stands for."""
_FOLDER = Path(__file__).with_name("tunings")


class Tuning(msgspec.Struct, frozen=True):
    """What is added to the vector of a request, and to that of what is found, per dimension of it."""

    asked: Vectors
    found: Vectors
    version: str


class Turned:
    """What an encoder says, and what a matrix adds to that."""

    def __init__(self, encoder: Encoder, added: Vectors, version: str) -> None:
        self.model_version = f"{encoder.model_version}/tuned-{version}"
        self.dimensions = encoder.dimensions
        self._encoder = encoder
        self._added = added

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = self._encoder.encode(texts).copy()
        for row in sums:
            # One by one, so that neighbours in a batch change nothing.
            row += row.astype(np.float32) @ self._added
        return sums


def tuned_stage(encoder: Encoder, name: str) -> VectorStage:
    """A stage that reads sentences by an encoder, with the matrices that were fitted for it."""
    tuning = tuning_named(name)
    asked, found = (Turned(encoder, added, tuning.version) for added in (tuning.asked, tuning.found))
    return VectorStage(found, by_sentences, asked=asked)


def written(path: Path, asked: Vectors, found: Vectors) -> Path:
    """Matrices by what they add, as stages read them."""
    np.save(path, np.clip(np.rint(np.stack([asked, found]) / UNIT), -127, 127).astype(np.int8))
    return path


def read_tuning(path: Path) -> Tuning:
    try:
        stored = path.read_bytes()
        asked, found = np.load(io.BytesIO(stored)).astype(np.float32) * np.float32(UNIT)
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path.name} of this package cannot be read; reinstall holdfast") from error
    return Tuning(asked, found, hashlib.sha256(stored).hexdigest()[:8])


@cache
def tuning_named(name: str) -> Tuning:
    """Read once: each agent has stages of its own."""
    return read_tuning(_FOLDER / f"{name}.npy")
