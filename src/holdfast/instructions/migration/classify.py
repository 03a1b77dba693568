"""Classify sections (always in the prompt, preloaded for a task type, loaded on demand), and group them to fit.

Grouping joins neighbouring sections, related and small ones first, when a manifest has no room for all.
"""

import heapq
import re
from collections.abc import Sequence
from typing import Literal

from holdfast.instructions.migration.naming import strip_title
from holdfast.instructions.migration.sections import LARGE_TOKENS, Section

SectionKind = Literal["always", "task_type", "lazy"]
ALWAYS_TOKENS_MAX = 150
PRELOAD_TOKENS_MAX = 400
ORDERS_SHARE_MIN = 0.75

_ALWAYS_TITLE = re.compile(
    r"(?:things? )?(?:you )?(?:must )?(?:never|always|do not|don'?ts?|must|must not|not allowed|forbidden|prohibited)"
    r"(?: (?:do|does|use|touch|allowed|actions?|things|do every (?:single )?time))?"
    r"|(?:the )?(?:golden|hard|cardinal|critical|safety|ground|mandatory|absolute|non.?negotiable) rules?"
    r"|policies(?: (?:&|and) (?:mandatory )?rules?)?|mandatory (?:policies|requirements)|core rules?"
    r"|guard.?rails?|red lines?|(?:hard )?(?:prohibitions|boundaries|limits)",
    re.I,
)

_ALWAYS_LINE = re.compile(
    r"^\s*(?:(?:[-*+]|\d+[.)])\s+)?[*_`]*(?:never|always|do not|don'?t|must|under no circumstances)\b", re.I
)
_LIST_LINE = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_FENCE_LINE = re.compile(r"^\s*(?:```|~~~)", re.M)

_TASK_TITLES: tuple[tuple[str, str], ...] = (
    (r"heartbeat|routine|scheduled|recurring|\bcron\b", "routine_fired"),
    (
        r"(?:start(?:ing)?|begin(?:ning)?|pick(?:ing)? up|claim(?:ing)?|check(?:ing)? ?out) (?:work|an? |the |a new )?"
        r"(?:issue|ticket|task|work)|task workflow|issue workflow|checkout procedure|when assigned",
        "issue_assigned",
    ),
    (r"(?:respond|reply|answer)\w* to (?:\w+ )?(?:comments?|feedback|reviews?)|when mentioned", "issue_commented"),
    (r"(?:when|if) (?:you are )?(?:blocked|unblocked)|blockers?", "issue_blockers_resolved"),
    (r"approval|sign.?off", "approval_resolved"),
)


def find_task_types(section: Section) -> tuple[str, ...]:
    """The wake reason for which the section should be preloaded: the first that matches, or none."""
    if section.tokens > PRELOAD_TOKENS_MAX:
        return ()
    return tuple(reason for pattern, reason in _TASK_TITLES if re.search(pattern, section.title, re.I))[:1]


def applies_always(section: Section) -> bool:
    """Whether a section is short and applies to every task; only a proposal that people review."""
    if section.tokens > ALWAYS_TOKENS_MAX or _FENCE_LINE.search(section.text) or len(section.spans) != 1:
        return False
    if section.fields:
        return str(section.fields.get("alwaysApply", "")).lower() == "true"
    has_body = "\n" in section.text.strip()
    if has_body and _ALWAYS_TITLE.fullmatch(strip_title(section.title)):
        return True
    items = [line for line in section.text.split("\n") if _LIST_LINE.match(line)]
    orders = sum(_ALWAYS_LINE.match(line) is not None for line in items)
    return len(items) >= 2 and orders / len(items) >= ORDERS_SHARE_MIN


def find_always_title(section: Section) -> str | None:
    """The heading, its own or one above it, that says that the section applies to every task."""
    titles = (*section.parents, section.title)
    return next((title for title in titles if title and _ALWAYS_TITLE.fullmatch(strip_title(title))), None)


def group_sections(sections: Sequence[Section], count: int) -> tuple[tuple[Section, ...], ...]:
    """At most `count` groups of neighbours, in the original order.

    Greedy agglomeration with a heap: heap entries whose cost is out of date are skipped when popped.
    """
    groups: list[list[Section] | None] = [[section] for section in sections]
    tokens = [section.tokens for section in sections]
    after = list(range(1, len(sections) + 1))
    before = list(range(-1, len(sections) - 1))
    heap = [
        (_cost(sections[i : i + 1], sections[i + 1 : i + 2], tokens[i] + tokens[i + 1]), i, i + 1)
        for i in range(len(sections) - 1)
    ]
    heapq.heapify(heap)
    group_count = len(sections)
    while group_count > count and heap:
        cost, i, j = heapq.heappop(heap)
        first, second = groups[i], groups[j]
        if first is None or second is None or after[i] != j:
            continue
        if cost != _cost(first, second, tokens[i] + tokens[j]):
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
                heapq.heappush(heap, (_cost(left_group, right_group, tokens[a] + tokens[b]), a, b))
    return tuple(tuple(group) for group in groups if group is not None)


def _cost(first: Sequence[Section], second: Sequence[Section], tokens: int) -> tuple[bool, bool, int, int]:
    """The cost of joining two groups: a section and what is below its heading first, smaller results first.

    Sections beside one another are different topics. They are joined only if nothing else is left to join.
    """
    is_other_file = first[-1].spans[-1].path != second[0].spans[0].path
    is_beside = second[0].level <= first[0].level
    return is_other_file, is_beside, tokens // LARGE_TOKENS, tokens
