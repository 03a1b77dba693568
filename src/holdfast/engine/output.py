"""What a tool returned, as blocks that a provider takes: never empty, bounded in length, in number and in size."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.blocks import Image, Text, mend_surrogates

OUTPUT_CHARACTERS_MAX = 100_000
BLOCKS_MAX = 100
IMAGES_MAX = 20
IMAGE_BYTES_MAX = 5 * 1024 * 1024

NO_OUTPUT = "(no output)"

KeepWhole = Callable[[str], str | None]
"""Puts a text where it can be read whole, and says where; None if it cannot."""


def tool_content(
    output: object, keep: KeepWhole | None = None, *, characters_max: int = OUTPUT_CHARACTERS_MAX
) -> tuple[Text | Image, ...]:
    """What is too long is shown by its head and tail, and kept whole where `keep` puts it."""
    match output:
        case Text() | Image():
            return _bounded((output,), keep, characters_max)
        case str():
            return _bounded((Text(output),), keep, characters_max)
        case [*blocks] if blocks and all(isinstance(block, Text | Image) for block in blocks):
            return _bounded([block for block in blocks if isinstance(block, Text | Image)], keep, characters_max)
        case None:
            return (Text(NO_OUTPUT),)
        case _:
            return _bounded((Text(msgspec.json.encode(output, order="sorted").decode()),), keep, characters_max)


def shortened(text: str, characters_max: int = OUTPUT_CHARACTERS_MAX, *, whole: str = "") -> str:
    """The text that can be sent: its head and its tail if it is too long, and no lone surrogates.

    `whole` says, in the gap, where all of the text is.
    """
    text = mend_surrogates(text)
    if len(text) <= characters_max:
        return text
    room = max(0, characters_max - len(gap(len(text), whole)))
    head = room * 3 // 4
    return text[:head] + gap(len(text) - room, whole) + text[len(text) - room + head :]


def gap(left_out: int, whole: str = "", *, unit: str = "characters") -> str:
    return f"\n[... {left_out} {unit} left out{whole and '; ' + whole} ...]\n"


def _bounded(blocks: Sequence[Text | Image], keep: KeepWhole | None, characters_max: int) -> tuple[Text | Image, ...]:
    shown = [_sendable(block) for block in _counted(blocks)]
    share = _fair_share([len(block.text) for block in shown if isinstance(block, Text)], characters_max)
    return tuple(_shortened(block, share, keep) if isinstance(block, Text) else block for block in shown)


def _shortened(block: Text, characters_max: int, keep: KeepWhole | None) -> Text:
    if keep is None or len(block.text) <= characters_max:
        return Text(shortened(block.text, characters_max))
    return Text(shortened(block.text, characters_max, whole=keep(block.text) or ""))


def _counted(blocks: Sequence[Text | Image]) -> list[Text | Image]:
    """The first blocks, as many as a result may hold; a last one says how many more there were."""
    images = 0
    kept: list[Text | Image] = []
    for block in blocks:
        images += isinstance(block, Image)
        if isinstance(block, Text) or images <= IMAGES_MAX:
            kept.append(block)
    if len(kept) == len(blocks) <= BLOCKS_MAX:
        return kept
    kept = kept[: BLOCKS_MAX - 1]
    left_out = len(blocks) - len(kept)
    limits = f"a result holds at most {BLOCKS_MAX} blocks, of them {IMAGES_MAX} images"
    return [*kept, Text(f"[... {left_out} blocks left out: {limits} ...]")]


def _sendable(block: Text | Image) -> Text | Image:
    if isinstance(block, Text):
        text = mend_surrogates(block.text)
        return Text(text if text.strip() else NO_OUTPUT)
    size = len(msgspec.json.encode(block.source))
    if size <= IMAGE_BYTES_MAX:
        return block
    return Text(f"[an image of {size} bytes left out: an image may have at most {IMAGE_BYTES_MAX} bytes]")


def _fair_share(lengths: Sequence[int], room: int) -> int:
    """How long each text may be so that all fit; what short ones do not need is there for the long ones."""
    whole = room
    for number, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - number)
        if length > share:
            return share
        room -= length
    return whole
