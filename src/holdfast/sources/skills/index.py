"""Renders the skill index of the prompt: one line per skill within a token budget, safe against injected markup."""

import re
from collections.abc import Callable, Collection, Iterable

import msgspec

from holdfast.sources.skills.skill import BODY_TOKENS_MAX, DESCRIPTION_CHARS_MAX, Skill

SKILL_INDEX_HEADING = "## Available skills\nUse `skill_search(query)` to filter and `skill_load(name)` to read a body."
INDEX_TOKENS_MAX = 8_000
PRELOADED_SUFFIX = " [preloaded]"
NOT_LOADABLE_SUFFIX = " [not loadable]"
_BLANKS = re.compile(r"[^\S ]\s*|[\x00-\x1f\x7f-\x9f]+")
# Invisible and direction-changing characters, which could hide words from a person who reads the line.
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TAG = re.compile(r"<(?=[A-Za-z/!?|])")
_FENCE = re.compile(r"`{3,}|~{3,}")


class SkillIndex(msgspec.Struct, frozen=True):
    """The text for the prompt (empty without skills), and how many skills it lists and leaves out."""

    text: str
    listed_count: int = 0
    unlisted_count: int = 0
    tokens: int = 0


def estimate_tokens(text: str) -> int:
    """One token per four bytes: close enough for a budget, without a tokenizer."""
    return (len(text.encode("utf-8", "surrogatepass")) + 3) // 4


def render_skill_index(
    skills: Iterable[Skill],
    *,
    preloaded: Collection[str] = (),
    tokens_max: int | None = INDEX_TOKENS_MAX,
    body_tokens_max: int = BODY_TOKENS_MAX,
    count: Callable[[str], int] = estimate_tokens,
) -> SkillIndex:
    """The lines that fit, sorted by name. Preloaded skills take the budget first, then those of the workspace.

    The heading and the line with the number of unlisted skills are included whatever the budget is. If `tokens_max` is
    None, all are listed. A body of `body_tokens_max` or more is marked, so that the model does not try to load it.
    """
    ordered = sorted(skills, key=lambda skill: skill.name)
    if not ordered:
        return SkillIndex("")
    lines = [
        render_skill_line(
            skill, preloaded=skill.name in preloaded, loadable=skill.estimated_body_tokens < body_tokens_max
        )
        for skill in ordered
    ]
    sizes = [count(f"\n{line}") for line in lines]
    selected = list(range(len(lines)))
    if tokens_max is not None and sum(sizes) > (room := tokens_max - count(SKILL_INDEX_HEADING)):
        room -= count(f"\n{_more_line(len(lines))}")
        selected = _select_fitting(ordered, sizes, room, preloaded)
    more = len(lines) - len(selected)
    shown = [SKILL_INDEX_HEADING, *(lines[index] for index in sorted(selected))]
    text = "\n".join([*shown, _more_line(more)] if more else shown)
    return SkillIndex(text, len(selected), more, count(text))


def render_skill_line(skill: Skill, *, preloaded: bool = False, loadable: bool = True) -> str:
    suffix = PRELOADED_SUFFIX if preloaded else "" if loadable else NOT_LOADABLE_SUFFIX
    return f"- {neutralize(skill.name)}{suffix}: {neutralize(skill.description)}"


def neutralize(text: str, chars_max: int = DESCRIPTION_CHARS_MAX) -> str:
    """One line without markup that could close or open a section; plain one-line text stays unchanged."""
    if not (text.isascii() and text.isprintable()):
        text = _SURROGATE.sub("\ufffd", _INVISIBLE.sub("", text))
        text = _BLANKS.sub(" ", text)
    text = _FENCE.sub("'''", _TAG.sub("&lt;", text.strip()))
    return text if len(text) <= chars_max else text[: chars_max - 1].rstrip() + "…"


def _select_fitting(skills: list[Skill], sizes: list[int], room: int, preloaded: Collection[str]) -> list[int]:
    def rank(index: int) -> tuple[bool, bool, int]:
        return skills[index].name not in preloaded, skills[index].source != "workspace", index

    selected: list[int] = []
    for index in sorted(range(len(skills)), key=rank):
        if sizes[index] <= room:
            room -= sizes[index]
            selected.append(index)
    return selected


def _more_line(count: int) -> str:
    if count == 1:
        return "(1 more skill is not listed: find it with `skill_search`.)"
    return f"({count} more skills are not listed: find them with `skill_search`.)"
