"""What a prompt says of the skills there are: a line for each, within a budget, none of which a skill can forge."""

import re
from collections.abc import Callable, Collection, Iterable

import msgspec

from holdfast.sources.skills.skill import DESCRIPTION_CHARS_MAX, Skill

HEADING = "## Available skills\nUse `skill_search(query)` to filter and `skill_load(name)` to read a body."
INDEX_TOKENS_MAX = 8_000
PRELOADED = " [preloaded]"

_BLANKS = re.compile(r"[^\S ]\s*|[\x00-\x1f\x7f-\x9f]+")
# What is not seen, or turns the direction of what is: it would hide words from a person who reads the line.
_UNSEEN = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TAG = re.compile(r"<(?=[A-Za-z/!?|])")
_FENCE = re.compile(r"`{3,}|~{3,}")


class SkillIndex(msgspec.Struct, frozen=True):
    """The text for the prompt, empty where there is no skill, and how many skills it names and leaves unnamed."""

    text: str
    listed: int = 0
    more: int = 0
    tokens: int = 0


def estimated_tokens(text: str) -> int:
    """A token for every four bytes: near enough for a budget, and never asks for a tokenizer."""
    return (len(text.encode("utf-8", "surrogatepass")) + 3) // 4


def skill_index(
    skills: Iterable[Skill],
    *,
    preloaded: Collection[str] = (),
    tokens_max: int = INDEX_TOKENS_MAX,
    count: Callable[[str], int] = estimated_tokens,
) -> SkillIndex:
    """The lines that fit, by name: those of preloaded skills come first to the budget, then a workspace's own.

    Heading and the line on how many more there are stand there whatever the budget is.
    """
    ordered = sorted(skills, key=lambda skill: skill.name)
    if not ordered:
        return SkillIndex("")
    lines = [index_line(skill, preloaded=skill.name in preloaded) for skill in ordered]
    sizes = [count(f"\n{line}") for line in lines]
    room = tokens_max - count(HEADING)
    taken = list(range(len(lines)))
    if sum(sizes) > room:
        room -= count(f"\n{_more(len(lines))}")
        taken = _fitting(ordered, sizes, room, preloaded)
    more = len(lines) - len(taken)
    text = "\n".join((HEADING, *(lines[at] for at in sorted(taken)), *((_more(more),) if more else ())))
    return SkillIndex(text, len(taken), more, count(text))


def index_line(skill: Skill, *, preloaded: bool = False) -> str:
    mark = PRELOADED if preloaded else ""
    return f"- {neutral(skill.name)}{mark}: {neutral(skill.description)}"


def neutral(text: str, chars_max: int = DESCRIPTION_CHARS_MAX) -> str:
    """On one line, without markup that could end or open a section; plain text on one line stays what it is."""
    if not (text.isascii() and text.isprintable()):
        text = _SURROGATE.sub("\ufffd", _UNSEEN.sub("", text))
        text = _BLANKS.sub(" ", text)
    text = _FENCE.sub("'''", _TAG.sub("&lt;", text.strip()))
    return text if len(text) <= chars_max else text[: chars_max - 1].rstrip() + "…"


def _fitting(skills: list[Skill], sizes: list[int], room: int, preloaded: Collection[str]) -> list[int]:
    def rank(at: int) -> tuple[bool, bool, int]:
        return skills[at].name not in preloaded, skills[at].source != "workspace", at

    taken: list[int] = []
    for at in sorted(range(len(skills)), key=rank):
        if sizes[at] <= room:
            room -= sizes[at]
            taken.append(at)
    return taken


def _more(count: int) -> str:
    if count == 1:
        return "(1 more skill is not listed: find it with `skill_search`.)"
    return f"({count} more skills are not listed: find them with `skill_search`.)"
