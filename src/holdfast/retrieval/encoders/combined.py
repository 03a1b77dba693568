"""Combines encoder stages: a unit's similarity is the weighted mean of the similarities of its stages."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from holdfast.errors import UserError
from holdfast.retrieval.units import SearchUnit
from holdfast.retrieval.vectors import Sums


class SimilarityStage(Protocol):
    @property
    def model_version(self) -> str: ...
    def add(self, slot: int, unit: SearchUnit) -> None: ...
    def remove(self, slot: int) -> None: ...
    def compute_similarities(self, query: str, *, slots: int) -> Sums:
        """Similarities by slot, 0 to 1."""


class CombinedStage:
    """One or more stages with their weights, which sum to 1."""

    def __init__(
        self, parts: Sequence[tuple[float, SimilarityStage]], *, floor: float, words_share: float = 1.0
    ) -> None:
        self.floor = floor
        self.words_share = words_share
        self._parts = tuple(parts)

    @property
    def model_version(self) -> str:
        return "+".join(stage.model_version for _, stage in self._parts)

    def add(self, slot: int, unit: SearchUnit) -> None:
        for _, stage in self._parts:
            stage.add(slot, unit)

    def remove(self, slot: int) -> None:
        for _, stage in self._parts:
            stage.remove(slot)

    def compute_similarities(self, query: str, *, slots: int) -> Sums:
        return np.asarray(sum(share * stage.compute_similarities(query, slots=slots) for share, stage in self._parts))

    def match(self, query: str, *, slots: int) -> list[float]:
        similarities: list[float] = self.compute_similarities(query, slots=slots).tolist()
        return similarities


def find_package_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(folder, name)).is_file():
            return path
    raise UserError(f"the installed package {package!r} does not contain {name!r}; install the pinned version")
