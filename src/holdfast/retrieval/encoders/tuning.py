"""Sentence encoders tuned to match requests with the texts that serve them.

Sentence encoders are trained to find texts with the same meaning, but a request and the text that serves it seldom
have that. For each encoder two matrices, one for requests and one for documents, were fitted to the self-descriptions
of tool packages: example requests and purposes (`scripts/fit_tuning.py`). They are stored as the difference that they
add to a vector, one byte per number.
"""

import hashlib
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from holdfast.errors import UserError
from holdfast.retrieval.vectors import Encoder, Sums, Vectors, VectorStage, encode_by_sentences

QUANTIZATION_STEP = 1 / 4096
"""The value of one step of a stored byte."""
_FOLDER = Path(__file__).parents[1] / "tunings"


class Tuning(msgspec.Struct, frozen=True):
    """The matrices for requests and for documents; their product with a vector is added to it."""

    query_matrix: Vectors
    document_matrix: Vectors
    version: str


class TunedEncoder:
    """An encoder whose vectors are shifted by a tuning matrix."""

    def __init__(self, encoder: Encoder, added: Vectors, version: str) -> None:
        self.model_version = f"{encoder.model_version}/tuned-{version}"
        self.dimensions = encoder.dimensions
        self._encoder = encoder
        self._added = added

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = self._encoder.encode(texts).copy()
        for row in sums:
            # Row by row, because a batched product may round differently depending on the other rows.
            row += row.astype(np.float32) @ self._added
        return sums


def create_tuned_stage(encoder: Encoder, name: str) -> VectorStage:
    """A stage for a sentence encoder with the matrices that were fitted for it."""
    tuning = load_tuning(name)
    query_encoder, document_encoder = (
        TunedEncoder(encoder, added, tuning.version) for added in (tuning.query_matrix, tuning.document_matrix)
    )
    return VectorStage(document_encoder, encode_by_sentences, query_encoder=query_encoder)


def write_tuning(path: Path, query_matrix: Vectors, document_matrix: Vectors) -> Path:
    """Write the matrices in the format of `read_tuning`."""
    steps = np.rint(np.stack([query_matrix, document_matrix]) / QUANTIZATION_STEP)
    np.save(path, np.clip(steps, -127, 127).astype(np.int8))
    return path


def read_tuning(path: Path) -> Tuning:
    try:
        stored = path.read_bytes()
        query_matrix, document_matrix = np.load(io.BytesIO(stored)).astype(np.float32) * np.float32(QUANTIZATION_STEP)
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path.name} of this package cannot be read; reinstall holdfast") from error
    return Tuning(query_matrix, document_matrix, hashlib.sha256(stored).hexdigest()[:8])


@cache
def load_tuning(name: str) -> Tuning:
    """Cached, because every agent builds its own stages."""
    return read_tuning(_FOLDER / f"{name}.npy")
