"""Converts what a tool returned into blocks that providers accept: never empty, limited in length, number and size."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.blocks import Image, Text, mend_surrogates

OUTPUT_CHARACTERS_MAX = 100_000
BLOCKS_MAX = 100
IMAGES_MAX = 20
IMAGE_BYTES_MAX = 5 * 1024 * 1024

NO_OUTPUT = "(no output)"

KeepWhole = Callable[[str], str | None]
"""Stores a text in full and returns a note on where it is; None if it cannot be stored."""


def tool_content(
    output: object, keep: KeepWhole | None = None, *, characters_max: int = OUTPUT_CHARACTERS_MAX
) -> tuple[Text | Image, ...]:
    """The output as blocks; a text that is too long is cut to its head and tail, and stored in full by `keep`."""
    match output:
        case Text() | Image():
            return _limit_blocks((output,), keep, characters_max)
        case str():
            return _limit_blocks((Text(output),), keep, characters_max)
        case [*blocks] if blocks and all(isinstance(block, Text | Image) for block in blocks):
            return _limit_blocks([block for block in blocks if isinstance(block, Text | Image)], keep, characters_max)
        case None:
            return (Text(NO_OUTPUT),)
        case _:
            # Sorted keys: equal results are equal bytes in the history.
            return _limit_blocks((Text(msgspec.json.encode(output, order="sorted").decode()),), keep, characters_max)


def shortened(text: str, characters_max: int = OUTPUT_CHARACTERS_MAX, *, whole: str = "") -> str:
    """The text without lone surrogates, cut to its head and tail if it is too long.

    `whole` is a note for the gap that says where the full text is.
    """
    text = mend_surrogates(text)
    if len(text) <= characters_max:
        return text
    # Computed with the longest possible gap, so that the result never exceeds the maximum.
    room = max(0, characters_max - len(gap(len(text), whole)))
    # Three quarters for the head, one for the tail, which often holds the error or the result.
    head = room * 3 // 4
    return text[:head] + gap(len(text) - room, whole) + text[len(text) - room + head :]


def gap(left_out: int, whole: str = "", *, unit: str = "characters") -> str:
    """The note in place of the text that was left out; `whole` says where the full text is."""
    return f"\n[... {left_out} {unit} left out{whole and '; ' + whole} ...]\n"


def _limit_blocks(
    blocks: Sequence[Text | Image], keep: KeepWhole | None, characters_max: int
) -> tuple[Text | Image, ...]:
    limited = [_sendable(block) for block in _limit_count(blocks)]
    share = _fair_share([len(block.text) for block in limited if isinstance(block, Text)], characters_max)
    return tuple(_shortened(block, share, keep) if isinstance(block, Text) else block for block in limited)


def _shortened(block: Text, characters_max: int, keep: KeepWhole | None) -> Text:
    if keep is None or len(block.text) <= characters_max:
        return Text(shortened(block.text, characters_max))
    return Text(shortened(block.text, characters_max, whole=keep(block.text) or ""))


def _limit_count(blocks: Sequence[Text | Image]) -> list[Text | Image]:
    """As many of the first blocks as a result may have; a last one says how many were left out."""
    images = 0
    included: list[Text | Image] = []
    for block in blocks:
        images += isinstance(block, Image)
        if isinstance(block, Text) or images <= IMAGES_MAX:
            included.append(block)
    if len(included) == len(blocks) <= BLOCKS_MAX:
        return included
    included = included[: BLOCKS_MAX - 1]
    left_out = len(blocks) - len(included)
    limits = f"a result holds at most {BLOCKS_MAX} blocks, of them {IMAGES_MAX} images"
    return [*included, Text(f"[... {left_out} blocks left out: {limits} ...]")]


def _sendable(block: Text | Image) -> Text | Image:
    if isinstance(block, Text):
        # Anthropic rejects empty text blocks, and JSON encoders reject lone surrogates.
        text = mend_surrogates(block.text)
        return Text(text if text.strip() else NO_OUTPUT)
    size = len(msgspec.json.encode(block.source))
    if size <= IMAGE_BYTES_MAX:
        return block
    return Text(f"[an image of {size} bytes left out: an image may have at most {IMAGE_BYTES_MAX} bytes]")


def _fair_share(lengths: Sequence[int], room: int) -> int:
    """The length to which texts are cut so that all fit; short texts leave their unused share to the long ones."""
    # From the shortest up: a text below an equal share of what is left takes only its length, and the rest is shared
    # by the longer ones. The first text above its share fixes the share of all that follow.
    whole = room
    for number, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - number)
        if length > share:
            return share
        room -= length
    return whole
