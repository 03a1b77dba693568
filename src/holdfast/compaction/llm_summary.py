"""The model's part of a summary: reasons in fixed sections, each line checked against the original messages."""

import re
from collections.abc import Callable

import msgspec

from holdfast.extraction.entities import collapse_whitespace, find_entities

REASON_SECTIONS = ("Rationale", "Rejected", "Next")
LLM_SUMMARY_TOKENS_MAX = 1_200
LLM_SUMMARY_PROMPT = (
    "The conversation above is about to be made shorter. A record of the asks, files, commands, errors and names in it "
    "is kept already; what is missing are the reasons. Write, without calling a tool, at most 40 short lines under "
    "these headings and no others:\n## Rationale\n## Rejected\n## Next\nEach line begins with a dash. Say why things "
    "were decided, what was tried and given up, and what would be done next. Name files, ids and numbers exactly as "
    "they stood. Do not tell what the user said: that is kept word for word."
)
LLM_SUMMARY_RETRY_PROMPT = (
    "Answer in words, without calling a tool, and under the three headings alone: the last answer could not be used."
)
_HEADING = re.compile(r"^#{1,3}\s*(\w+)\s*$")
_QUOTED = re.compile(r"[\"\u201c]([^\"\u201c\u201d]{12,})[\"\u201d]")
_ATTRIBUTED = re.compile(r"\b(the )?user (said|asked|wants|wanted|tol[d]|requested|instructed)\b", re.IGNORECASE)


class CheckedSummary(msgspec.Struct, frozen=True):
    """The lines that passed the check; `dropped` counts the others."""

    text: str = ""
    dropped: int = 0


def check_llm_summary(text: str, conversation_text: str, *, count: Callable[[str], int]) -> CheckedSummary:
    """Keep lines of known sections whose names and quotations occur in the conversation, up to LLM_SUMMARY_TOKENS_MAX.

    Lines that attribute statements to the user are dropped, because the user's words are kept verbatim elsewhere.
    """
    folded_text = collapse_whitespace(conversation_text)
    lines_by_section: dict[str, list[str]] = {}
    dropped, section, room = 0, "", LLM_SUMMARY_TOKENS_MAX
    for line in text.splitlines():
        heading = _HEADING.match(line.strip())
        if heading is not None:
            section = heading.group(1).capitalize()
            continue
        statement = collapse_whitespace(line).lstrip("-* ").strip()
        if not statement:
            continue
        cost = count(statement) + 2
        # A model invents; a line is kept only if every name and quotation in it occurs in the original messages.
        if section in REASON_SECTIONS and cost <= room and _is_supported(statement, conversation_text, folded_text):
            lines_by_section.setdefault(section, []).append(f"- {statement}")
            room -= cost
        else:
            dropped += 1
    parts = [f"## {name}\n" + "\n".join(lines_by_section[name]) for name in REASON_SECTIONS if name in lines_by_section]
    return CheckedSummary("\n\n".join(parts), dropped)


def _is_supported(line: str, conversation_text: str, folded_text: str) -> bool:
    if _ATTRIBUTED.search(line):
        return False
    if any(collapse_whitespace(quotation) not in folded_text for quotation in _QUOTED.findall(line)):
        return False
    return all(entity.kind == "error" or entity.text in conversation_text for entity in find_entities(line))
