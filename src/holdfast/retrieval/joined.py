"""Vectors of MiniLM and of wordllama side by side: their similarity is the weighted mean of both."""

import math
from collections.abc import Sequence

import numpy as np

from holdfast.retrieval import minilm, wordllama
from holdfast.retrieval.vectors import Encoder, Sums, VectorStage, directions

FIRST_SHARE = 0.7
"""The best of four that were tried on all sets of queries; they differed by a hundredth."""


class JoinedEncoder:
    def __init__(self, first: Encoder, second: Encoder, first_share: float = FIRST_SHARE) -> None:
        self._first = first
        self._second = second
        self._lengths = (math.sqrt(first_share), math.sqrt(1 - first_share))
        self.dimensions = first.dimensions + second.dimensions
        self.model_version = f"{first.model_version}+{second.model_version}"

    def encode(self, texts: Sequence[str]) -> Sums:
        both = zip((self._first, self._second), self._lengths, strict=True)
        return np.hstack([length * directions(encoder.encode(texts)) for encoder, length in both])


def stage() -> VectorStage:
    return VectorStage(JoinedEncoder(minilm.encoder(), wordllama.encoder()))
