"""Fuses the scores of the stages by weights."""

import math
from collections.abc import Sequence

import msgspec

from holdfast.errors import UserError

DECIMALS = 6  # Scores are rounded before sorting, so that rounding noise cannot change the order.
SUM_TOLERANCE = 0.001


class Weights(msgspec.Struct, frozen=True):
    """The weight of each stage; they sum to 1."""

    # The defaults of seed 003.
    lexical: float = 0.35
    semantic: float = 0.50
    graph: float = 0.15

    def __post_init__(self) -> None:
        values = (self.lexical, self.semantic, self.graph)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise UserError("weights must be numbers from 0 to 1")
        if abs(sum(values) - 1) > SUM_TOLERANCE:
            raise UserError(f"the weights lexical, semantic and graph must sum to 1, not to {sum(values):.3f}")

    def with_words_at(self, share: float) -> "Weights":
        """The lexical stage keeps a share of its weight, the semantic one gets the rest; no change if either is 0."""
        if not (self.lexical and self.semantic):
            return self
        return Weights(self.lexical * share, self.semantic + self.lexical * (1 - share), self.graph)

    def without_semantic(self) -> "Weights":
        """The other two in the same proportion; lexical alone if both are 0."""
        rest = self.lexical + self.graph
        return Weights(self.lexical / rest, 0.0, self.graph / rest) if rest > 0 else Weights(1.0, 0.0, 0.0)


def spread(scores: Sequence[float], *, lowest: float | None = None) -> list[float]:
    """Scale scores to 0 for the worst (or `lowest` and below) and 1 for the best, if that is above 0."""
    best = max(scores, default=0.0)
    worst = min(scores, default=0.0) if lowest is None else lowest
    if best <= worst:
        return [1.0 if score >= best > 0 else 0.0 for score in scores]
    width = best - worst
    return [max(0.0, score - worst) / width for score in scores]
