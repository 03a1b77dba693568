"""How far back a lookup goes: from a breakpoint towards the start, over a bounded number of positions."""

from collections.abc import Iterator, Sequence

from holdfast.cachemodel.values import Prefix
from holdfast.catalog.rows import CacheRules


def positions_checked(rules: CacheRules, prefixes: Sequence[Prefix], breakpoint: int) -> Iterator[int]:
    """The blocks whose prefixes are looked up for the breakpoint on block `breakpoint`: its own first, then backwards.

    Anthropic checks at most 20 positions, the breakpoint's own included ("Prompt caching"). That a run of consecutive
    tool_use (or tool_result) blocks counts as one position is reported but not documented, so the rules have a field.
    """
    collapses = rules.lookback_counting == "positions"
    position = 0
    for index in range(breakpoint, -1, -1):
        in_run = (
            collapses
            and index < breakpoint
            and prefixes[index].kind != "plain"
            and prefixes[index].kind == prefixes[index + 1].kind
        )
        position += not in_run
        if position > rules.lookback_positions:
            return
        yield index
