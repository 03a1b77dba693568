"""What a model may add to a record: reasons, in fixed sections, checked line by line against what was really said."""

import re
from collections.abc import Callable

import msgspec

from holdfast.extraction.entities import entities_in
from holdfast.extraction.texts import folded

SECTIONS = ("Rationale", "Rejected", "Next")
PROSE_TOKENS_MAX = 1_200
INSTRUCTION = (
    "The conversation above is about to be made shorter. A record of the asks, files, commands, errors and names in it "
    "is kept already; what is missing are the reasons. Write, without calling a tool, at most 40 short lines under "
    "these headings and no others:\n## Rationale\n## Rejected\n## Next\nEach line begins with a dash. Say why things "
    "were decided, what was tried and given up, and what would be done next. Name files, ids and numbers exactly as "
    "they stood. Do not tell what the user said: that is kept word for word."
)
_HEADING = re.compile(r"^#{1,3}\s*(\w+)\s*$")
_QUOTED = re.compile(r"[\"\u201c]([^\"\u201c\u201d]{12,})[\"\u201d]")
_ATTRIBUTED = re.compile(r"\b(the )?user (said|asked|wants|wanted|told|requested|instructed)\b", re.IGNORECASE)


class CheckedProse(msgspec.Struct, frozen=True):
    """The lines that hold; empty where nothing does. `dropped` counts the others."""

    text: str = ""
    dropped: int = 0


def checked_prose(text: str, said: str, *, count: Callable[[str], int]) -> CheckedProse:
    """Only known sections, only lines whose names and quotations stand in what was said, and no words put into the
    user's mouth; what is too long is left out from the end on."""
    folded_said = folded(said)
    kept: dict[str, list[str]] = {}
    dropped, section, room = 0, "", PROSE_TOKENS_MAX
    for line in text.splitlines():
        heading = _HEADING.match(line.strip())
        if heading is not None:
            section = heading.group(1).capitalize()
            continue
        bare = folded(line).lstrip("-* ").strip()
        if not bare:
            continue
        cost = count(bare) + 2
        if section in SECTIONS and cost <= room and _holds(bare, said, folded_said):
            kept.setdefault(section, []).append(f"- {bare}")
            room -= cost
        else:
            dropped += 1
    parts = [f"## {name}\n" + "\n".join(kept[name]) for name in SECTIONS if name in kept]
    return CheckedProse("\n\n".join(parts), dropped)


def _holds(line: str, said: str, folded_said: str) -> bool:
    if _ATTRIBUTED.search(line):
        return False
    if any(folded(quotation) not in folded_said for quotation in _QUOTED.findall(line)):
        return False
    return all(entity.kind == "error" or entity.text in said for entity in entities_in(line))
