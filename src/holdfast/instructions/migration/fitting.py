"""Which neighbours become one unit where a manifest has no room for all: what belongs together, small before large."""

import heapq
from collections.abc import Sequence

from holdfast.instructions.migration.sections import LARGE_TOKENS, Section


def grouped(sections: Sequence[Section], count: int) -> tuple[tuple[Section, ...], ...]:
    """So many groups of neighbours at most; order and sections stay as they are."""
    groups: list[list[Section] | None] = [[one] for one in sections]
    tokens = [one.tokens for one in sections]
    after = list(range(1, len(sections) + 1))
    before = list(range(-1, len(sections) - 1))
    heap = [
        (_cost(sections[i], sections[i + 1], tokens[i] + tokens[i + 1]), i, i + 1) for i in range(len(sections) - 1)
    ]
    heapq.heapify(heap)
    left = len(sections)
    while left > count and heap:
        cost, i, j = heapq.heappop(heap)
        first, second = groups[i], groups[j]
        if (
            first is None
            or second is None
            or after[i] != j
            or cost != _cost(first[-1], second[0], tokens[i] + tokens[j])
        ):
            continue
        first += second
        groups[j] = None
        tokens[i] += tokens[j]
        after[i] = after[j]
        if after[j] < len(groups):
            before[after[j]] = i
        left -= 1
        for a, b in ((before[i], i), (i, after[i])):
            one, other = (groups[a] if a >= 0 else None), (groups[b] if b < len(groups) else None)
            if one is not None and other is not None:
                heapq.heappush(heap, (_cost(one[-1], other[0], tokens[a] + tokens[b]), a, b))
    return tuple(tuple(group) for group in groups if group is not None)


def _cost(first: Section, second: Section, tokens: int) -> tuple[bool, int, int]:
    """What is cheap is joined: of one file, below one heading, not too large together."""
    crosses = first.spans[-1].path != second.spans[0].path
    rank = 0 if crosses else second.level
    # Twice the size that units should have is worse than leaving a chapter.
    oversize = tokens // LARGE_TOKENS
    return crosses, oversize * 2 - rank, tokens
