"""How far back a lookup goes: from a mark towards the start, a bounded number of positions."""

from collections.abc import Iterator, Sequence

from holdfast.cachemodel.values import Prefix
from holdfast.catalog.rows import CacheRules


def positions_checked(rules: CacheRules, prefixes: Sequence[Prefix], mark: int) -> Iterator[int]:
    """The blocks whose prefix is looked up for the mark on block `mark`: its own first, then back."""
    collapses = rules.lookback_counting == "positions"
    position = 0
    for index in range(mark, -1, -1):
        in_run = (
            collapses
            and index < mark
            and prefixes[index].kind != "plain"
            and prefixes[index].kind == prefixes[index + 1].kind
        )
        position += not in_run
        if position > rules.lookback_positions:
            return
        yield index
