"""Classify a section: always in the prompt, preloaded for a task type, or loaded on demand."""

import re
from typing import Literal

from holdfast.instructions.migration.sections import Section
from holdfast.instructions.situations import plain_title

Kind = Literal["always", "task_type", "lazy"]

ALWAYS_TOKENS_MAX = 150
PRELOAD_TOKENS_MAX = 400
ORDERS_SHARE_MIN = 0.75

_ALWAYS_TITLE = re.compile(
    r"(?:things? )?(?:you )?(?:must )?(?:never|always|do not|don'?ts?|must|must not|not allowed|forbidden|prohibited)"
    r"(?: (?:do|does|use|touch|allowed|actions?|things|do every (?:single )?time))?"
    r"|(?:the )?(?:golden|hard|cardinal|critical|safety|ground|mandatory|absolute|non.?negotiable) rules?"
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


def task_types_of(section: Section) -> tuple[str, ...]:
    """The wake reason for which the section should be preloaded: the first that matches, or none."""
    if section.tokens > PRELOAD_TOKENS_MAX:
        return ()
    return tuple(reason for pattern, reason in _TASK_TITLES if re.search(pattern, section.title, re.I))[:1]


def is_always(section: Section) -> bool:
    """Whether a section is short and applies to every task; only a proposal that people review."""
    if section.tokens > ALWAYS_TOKENS_MAX or _FENCE_LINE.search(section.text) or len(section.spans) != 1:
        return False
    if section.fields:
        return str(section.fields.get("alwaysApply", "")).lower() == "true"
    has_body = "\n" in section.text.strip()
    if has_body and _ALWAYS_TITLE.fullmatch(plain_title(section.title)):
        return True
    items = [line for line in section.text.split("\n") if _LIST_LINE.match(line)]
    orders = sum(_ALWAYS_LINE.match(line) is not None for line in items)
    return len(items) >= 2 and orders / len(items) >= ORDERS_SHARE_MIN
