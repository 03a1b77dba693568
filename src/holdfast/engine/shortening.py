"""Truncates tool results that do not fit the context window: only those not yet sent successfully, largest first."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.blocks import Block, Text, ToolResult
from holdfast.canonical.prompt import Passage
from holdfast.events.payloads_recovery import Splice

RESULT_CHARS_KEPT_MIN = 2_000
"""The minimum that is left of a result; half from its beginning, half from its end."""

CountTokens = Callable[[str], int]

_Position = tuple[int, int]


def shortened(
    entries: Sequence[Passage], first: int, *, tokens_excess: int, count: CountTokens
) -> tuple[Splice, ...] | None:
    """Splices that truncate results from entry `first` on to save `tokens_excess`; None if they are too small."""
    sizes: dict[_Position, int] = {
        (at, index): count(_text_of(block))
        for at in range(first, len(entries))
        for index, block in enumerate(entries[at].content)
        if isinstance(block, ToolResult) and len(_text_of(block)) > RESULT_CHARS_KEPT_MIN
    }
    cuts: dict[_Position, ToolResult] = {}
    excess_left = tokens_excess
    for position in sorted(sizes, key=lambda position: -sizes[position]):
        if excess_left <= 0:
            break
        result = entries[position[0]].content[position[1]]
        assert isinstance(result, ToolResult)
        cuts[position], saved = _cut_by(result, excess_left, tokens=sizes[position], count=count)
        excess_left -= saved
    return _splices(entries, cuts) if excess_left <= 0 and cuts else None


def _cut_by(result: ToolResult, tokens_wanted: int, *, tokens: int, count: CountTokens) -> tuple[ToolResult, int]:
    """The result truncated by `tokens_wanted`, or to the minimum; and how many tokens that saved."""
    chars_kept = int(len(_text_of(result)) * max(0, tokens - tokens_wanted) / max(1, tokens))
    while True:
        chars_kept = max(RESULT_CHARS_KEPT_MIN, chars_kept)
        cut = _cut(result, chars_kept)
        saved = tokens - count(_text_of(cut))
        if saved >= tokens_wanted or chars_kept == RESULT_CHARS_KEPT_MIN:
            return cut, saved
        # Tokens per character vary within a text and the note takes tokens too, so shrink until enough is saved.
        chars_kept = int(chars_kept * 0.8)


def _text_of(block: ToolResult) -> str:
    return "\n".join(part.text for part in block.content if isinstance(part, Text))


def _cut(result: ToolResult, chars_kept: int) -> ToolResult:
    """The result's text in one block without its middle; images and other parts stay."""
    text = _text_of(result)
    half = chars_kept // 2
    note = f"\n[... {len(text) - 2 * half} characters are left out here: the whole did not fit into the window ...]\n"
    others = tuple(part for part in result.content if not isinstance(part, Text))
    return msgspec.structs.replace(result, content=(Text(text[:half] + note + text[len(text) - half :]), *others))


def _splices(entries: Sequence[Passage], cuts: dict[_Position, ToolResult]) -> tuple[Splice, ...]:
    splices = []
    for at in sorted({at for at, _ in cuts}):
        content: tuple[Block, ...] = tuple(
            cuts.get((at, index), block) for index, block in enumerate(entries[at].content)
        )
        splices.append(Splice(at, 1, (msgspec.structs.replace(entries[at], content=content),)))
    return tuple(splices)
