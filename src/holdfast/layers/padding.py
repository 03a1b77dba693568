"""Which text makes a prefix long enough to be cached, and how much of it is needed."""

import re
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.view import LayerText
from holdfast.layers.operating_guide import GUIDE_PARTS

Padding = Literal["auto", "always", "never"]
"""`auto`: where it pays. `always`: up to `MIN_CACHEABLE_PREFIX_TOKENS`, whatever it costs."""

MIN_CACHEABLE_PREFIX_TOKENS = 4500
MAX_CACHEABLE_PREFIX_TOKENS = 5500
"""Heuristic tokens, four characters each; all other counts of tokens are those of a tokenizer."""

LAYER = "padding"

_SKILL = re.compile(r"^# Skill: (\S+)$", re.MULTILINE)


class Bounds(msgspec.Struct, frozen=True):
    """How long the prefix must become, and how long it may."""

    tokens_min: int
    tokens_max: int


HEURISTIC_BOUNDS = Bounds(MIN_CACHEABLE_PREFIX_TOKENS, MAX_CACHEABLE_PREFIX_TOKENS - 1)
"""One below the maximum: what is left over of four characters, here and in the prefix, may be a token together."""


class Filling(msgspec.Struct, frozen=True):
    """Text to stand at the end of the stable prefix, the bodies in it by name, and the tokens of the whole prefix."""

    text: str
    names: tuple[str, ...]
    prefix_tokens: int


def heuristic_tokens(text: str) -> int:
    return len(text) // 4


def heuristic_prefix_tokens(tools: Sequence[ToolSpec], system: Sequence[LayerText]) -> int:
    """What tools and stable system prompt take, at four characters a token."""
    told = (tool.wire_json or f"{tool.name}{tool.description}{tool.input_schema_json}" for tool in tools)
    return (sum(map(len, told)) + sum(len(one.text) for one in system)) // 4


def fill(
    prefix_tokens: int,
    bounds: Bounds,
    bodies: Sequence[tuple[str, str]] = (),
    *,
    count: Callable[[str], int] = heuristic_tokens,
    mark: str = "",
) -> Filling:
    """Whole bodies in the order of their names, then the operating guide rule by rule, until the minimum is reached.

    A body that would pass the maximum is left out, and nothing else ever passes it. The same inputs give the same text.
    For every body, the prefix takes `mark` more elsewhere.
    """
    filling = Filling("", (), prefix_tokens)
    mark_tokens = count(mark) if mark else 0
    for name, body in sorted(bodies):
        if filling.prefix_tokens >= bounds.tokens_min:
            break
        text = _joined(filling.text, f"# Skill: {name}\n\n{body}")
        tokens = prefix_tokens + mark_tokens * (len(filling.names) + 1) + count(text)
        if tokens <= bounds.tokens_max:
            filling = Filling(text, (*filling.names, name), tokens)
    if filling.prefix_tokens >= bounds.tokens_min:
        return filling
    return _with_guide(filling, prefix_tokens + mark_tokens * len(filling.names), bounds, count)


def _with_guide(filling: Filling, prefix_tokens: int, bounds: Bounds, count: Callable[[str], int]) -> Filling:
    """The least of the guide that reaches the minimum, else all of it that stays within the maximum."""

    def with_parts(parts: int) -> Filling:
        text = _joined(filling.text, "".join(GUIDE_PARTS[:parts]))
        return Filling(text, filling.names, prefix_tokens + count(text))

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


class Padded(msgspec.Struct, frozen=True):
    """A text in which padding was found: what stands before it, and what it consists of."""

    before: str
    names: tuple[str, ...]
    has_guide: bool

    @property
    def told(self) -> str:
        parts = [f"the skill {name}" for name in self.names] + ["the operating guide"] * self.has_guide
        return " and ".join(parts)


def padding_in(text: str) -> Padded | None:
    """The padding at the end of a stable system prompt, if `fill` has made it longer."""
    guide = text.find(GUIDE_PARTS[0])
    skills = [found for found in _SKILL.finditer(text) if guide < 0 or found.start() < guide]
    starts = [found.start() for found in skills] + ([guide] if guide >= 0 else [])
    if not starts:
        return None
    return Padded(text[: min(starts)].rstrip(), tuple(found[1] for found in skills), guide >= 0)


def _joined(before: str, text: str) -> str:
    return f"{before}\n\n{text}" if before else text
