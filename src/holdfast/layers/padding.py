"""Selects the padding text that makes a prefix long enough to be cached: skill bodies, then the operating guide.

The guide is useful text. It adds to the guidance of `system_prompt` and does not repeat it.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.types.prompt import LayerText
from holdfast.types.tool_spec import ToolSpec

Padding = Literal["auto", "always", "never"]
"""`auto`: where it saves money. `always`: up to `MIN_CACHEABLE_PREFIX_TOKENS`, whatever it costs."""

MIN_CACHEABLE_PREFIX_TOKENS = 4500
MAX_CACHEABLE_PREFIX_TOKENS = 5500
"""Bounds of seed 000, in heuristic tokens of four characters; all other token counts come from a tokenizer."""

# Byte for byte the same within a release, because it becomes part of cached prefixes.
_GUIDE_FILE = Path(__file__).with_name("operating_guide.md")
OPERATING_CONTEXT_PADDING = _GUIDE_FILE.read_text(encoding="utf-8").removesuffix("\n")

# The title, then each rule. A heading and its first rule are one part, so that the guide never ends with a heading.
GUIDE_PARTS = tuple(re.findall(r"\A# .*\n\n.*|(?:\n\n## .*)?\n - .*", OPERATING_CONTEXT_PADDING))
"""The guide in parts between which it may be cut."""

# Words in the names of tools, and names of their parameters, by which tools that work on files or run commands are
# known: ours, the providers' own, and those of other agents (Read and Bash of Claude Code).
_FILE_TOOL_WORDS = frozenset(
    ["bash", "command", "commands", "dir", "directory", "editor", "file", "files", "glob", "grep", "shell", "terminal"]
)
_FILE_TOOL_PARAMETERS = ('"file_path"', '"filename"', '"command"')

PADDING_LAYER = "padding"
SKILL_FOLDER_NOTE = "The files of this skill are in "
"""Begins the last line of a preloaded body: without the folder, the model could not read the files it refers to."""

_SKILL_HEADING = re.compile(r"^# Skill: (\S+)$", re.MULTILINE)


class PaddingBounds(msgspec.Struct, frozen=True):
    """The minimum and maximum length of the padded prefix."""

    tokens_min: int
    tokens_max: int


# One below the maximum: prefix and padding are each rounded down to whole tokens of four characters, and the two
# remainders can add up to one more token.
HEURISTIC_BOUNDS = PaddingBounds(MIN_CACHEABLE_PREFIX_TOKENS, MAX_CACHEABLE_PREFIX_TOKENS - 1)


class PaddingText(msgspec.Struct, frozen=True):
    """Padding for the end of the stable prefix, the names of the skills in it, and the tokens of the whole prefix."""

    text: str
    skill_names: tuple[str, ...]
    prefix_tokens: int


def heuristic_tokens(text: str) -> int:
    return len(text) // 4


def heuristic_prefix_tokens(tools: Sequence[ToolSpec], system: Sequence[LayerText]) -> int:
    """The tokens of tools and stable system prompt, at four characters per token."""
    definitions = (tool.wire_json or f"{tool.name}{tool.description}{tool.input_schema_json}" for tool in tools)
    return (sum(map(len, definitions)) + sum(len(layer.text) for layer in system)) // 4


def has_file_tools(tools: Sequence[ToolSpec]) -> bool:
    """Whether a tool works on files or runs commands, which is what the operating guide is about."""
    return any(
        not _FILE_TOOL_WORDS.isdisjoint(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tool.name).lower()))
        or any(parameter in tool.input_schema_json for parameter in _FILE_TOOL_PARAMETERS)
        for tool in tools
    )


def select_padding(
    prefix_tokens: int,
    bounds: PaddingBounds,
    bodies: Sequence[tuple[str, str]] = (),
    *,
    count: Callable[[str], int] = heuristic_tokens,
    index_note: str = "",
    with_guide: bool = True,
) -> PaddingText:
    """Add whole skill bodies in the order of their names, then rules of the operating guide, up to the minimum.

    A body that would exceed the maximum is left out, so the result never exceeds it. The same inputs give the same
    text. `index_note` is the note that the skill index adds for every preloaded body, and counts towards the prefix.
    """
    filling = PaddingText("", (), prefix_tokens)
    note_tokens = count(index_note) if index_note else 0
    for name, body in sorted(bodies):
        if filling.prefix_tokens >= bounds.tokens_min:
            break
        text = _append(filling.text, f"# Skill: {name}\n\n{body}")
        tokens = prefix_tokens + note_tokens * (len(filling.skill_names) + 1) + count(text)
        if tokens <= bounds.tokens_max:
            filling = PaddingText(text, (*filling.skill_names, name), tokens)
    if filling.prefix_tokens >= bounds.tokens_min or not with_guide:
        return filling
    return _with_guide(filling, prefix_tokens + note_tokens * len(filling.skill_names), bounds, count)


def _with_guide(
    filling: PaddingText, prefix_tokens: int, bounds: PaddingBounds, count: Callable[[str], int]
) -> PaddingText:
    """Add as few rules of the guide as reach the minimum; if none do, as many as stay within the maximum."""

    def with_parts(parts: int) -> PaddingText:
        text = _append(filling.text, "".join(GUIDE_PARTS[:parts]))
        return PaddingText(text, filling.skill_names, prefix_tokens + count(text))

    # Binary search for the smallest number of parts: the token count grows with every part.
    low, high = 1, len(GUIDE_PARTS)
    while low < high:
        middle = (low + high) // 2
        if with_parts(middle).prefix_tokens >= bounds.tokens_min:
            high = middle
        else:
            low = middle + 1
    while low and with_parts(low).prefix_tokens > bounds.tokens_max:
        low -= 1
    return with_parts(low) if low else filling


class DetectedPadding(msgspec.Struct, frozen=True):
    """The padding of a text: the text before it, the skills in it, and whether it has the operating guide."""

    before: str
    skill_names: tuple[str, ...]
    has_guide: bool

    @property
    def description(self) -> str:
        parts = [f"the skill {name}" for name in self.skill_names] + ["the operating guide"] * self.has_guide
        return " and ".join(parts)


class SkillSection(msgspec.Struct, frozen=True):
    """A preloaded body, and the folder that its last line names; empty in sessions that did not name it yet."""

    name: str
    body: str
    folder: str = ""


class SplitPadding(msgspec.Struct, frozen=True):
    """The preloaded bodies of a padding text, and the rest of it."""

    sections: tuple[SkillSection, ...]
    rest: str


def split_skill_sections(text: str, names: Sequence[str]) -> SplitPadding:
    """Split a text of `select_padding` at the headings of these skills, which are in the order of their names."""
    starts: list[tuple[str, int]] = []
    position = 0
    for name in sorted(names):
        start = text.find(f"# Skill: {name}\n\n", position)
        if start >= 0:
            starts.append((name, start))
            position = start + 1
    guide = text.find(GUIDE_PARTS[0], position)
    end = guide if guide >= 0 else len(text)
    ends = [start for _, start in starts[1:]] + [end]
    sections = tuple(_read_section(name, text[start:end]) for (name, start), end in zip(starts, ends, strict=True))
    return SplitPadding(sections, text[end:])


def _read_section(name: str, text: str) -> SkillSection:
    body, _, last_line = text.removeprefix(f"# Skill: {name}").rstrip().rpartition("\n")
    if last_line.startswith(SKILL_FOLDER_NOTE):
        return SkillSection(name, body, last_line.removeprefix(SKILL_FOLDER_NOTE))
    return SkillSection(name, f"{body}\n{last_line}")


def detect_padding(text: str) -> DetectedPadding | None:
    """The padding at the end of a stable system prompt, if `select_padding` added any."""
    guide = text.find(GUIDE_PARTS[0])
    headings = [heading for heading in _SKILL_HEADING.finditer(text) if guide < 0 or heading.start() < guide]
    starts = [heading.start() for heading in headings] + ([guide] if guide >= 0 else [])
    if not starts:
        return None
    return DetectedPadding(text[: min(starts)].rstrip(), tuple(heading[1] for heading in headings), guide >= 0)


class SessionPadding(msgspec.Struct, frozen=True):
    """The padding of a session's prefix: its text, what it consists of, and why it is there or not."""

    reason: str
    text: str = ""
    skill_names: tuple[str, ...] = ()
    has_guide: bool = False


def read_session_padding(pinned: Sequence[LayerText], reason: str | None) -> SessionPadding:
    """The padding among the layers that a session has pinned."""
    text = "".join(layer.text for layer in pinned if layer.layer == PADDING_LAYER)
    detected = detect_padding(text)
    if detected is None:
        return SessionPadding(reason or "not padded: no decision is recorded", text)
    return SessionPadding(reason or "", text, detected.skill_names, detected.has_guide)


def _append(before: str, text: str) -> str:
    return f"{before}\n\n{text}" if before else text
