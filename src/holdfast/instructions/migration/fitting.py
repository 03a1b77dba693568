"""Group neighbouring sections into fewer units when a manifest has no room for all: related and small ones first."""

import heapq
from collections.abc import Sequence

from holdfast.instructions.migration.sections import LARGE_TOKENS, Section


def grouped(sections: Sequence[Section], count: int) -> tuple[tuple[Section, ...], ...]:
    """At most `count` groups of neighbours, in the original order.

    Greedy agglomeration with a heap: heap entries whose cost is out of date are skipped when popped.
    """
    groups: list[list[Section] | None] = [[section] for section in sections]
    tokens = [section.tokens for section in sections]
    after = list(range(1, len(sections) + 1))
    before = list(range(-1, len(sections) - 1))
    heap = [
        (_cost(sections[i], sections[i + 1], tokens[i] + tokens[i + 1]), i, i + 1) for i in range(len(sections) - 1)
    ]
    heapq.heapify(heap)
    group_count = len(sections)
    while group_count > count and heap:
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
        group_count -= 1
        for a, b in ((before[i], i), (i, after[i])):
            left_group, right_group = (groups[a] if a >= 0 else None), (groups[b] if b < len(groups) else None)
            if left_group is not None and right_group is not None:
                heapq.heappush(heap, (_cost(left_group[-1], right_group[0], tokens[a] + tokens[b]), a, b))
    return tuple(tuple(group) for group in groups if group is not None)


def _cost(first: Section, second: Section, tokens: int) -> tuple[bool, int, int]:
    """The cost of joining two groups; lowest for the same file, a deep heading and a small result."""
    is_other_file = first.spans[-1].path != second.spans[0].path
    rank = 0 if is_other_file else second.level
    # One multiple of the preferred unit size weighs as much as two heading levels.
    oversize = tokens // LARGE_TOKENS
    return is_other_file, oversize * 2 - rank, tokens
