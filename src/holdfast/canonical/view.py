"""The input of the layers: a conversation as it is before a call."""

from typing import Literal

import msgspec

from holdfast.canonical.prompt import Passage, Segment
from holdfast.canonical.tools import ToolSpec

Layout = Literal["default", "seed"]
"""Where volatile text goes: `default` after the history, `seed` at the end of the system prompt."""


class LayerText(msgspec.Struct, frozen=True):
    """The text of one layer. Ephemeral text is removed from the conversation when its turn ends."""

    layer: str
    text: str
    ephemeral: bool = False


class View(msgspec.Struct, frozen=True):
    """A conversation before a call.

    `pinned` holds the texts of the stable layers for the whole epoch; `head` is their segments, if already built.
    `history` was sent before and never changes; `newest` is what this call adds. `current` is what the volatile
    layers would emit now, `emitted` what each of them emitted last.
    """

    tools: tuple[ToolSpec, ...] = ()
    pinned: tuple[LayerText, ...] = ()
    history: tuple[Passage, ...] = ()
    newest: tuple[Passage, ...] = ()
    current: tuple[LayerText, ...] = ()
    emitted: tuple[LayerText, ...] = ()
    layout: Layout = "default"
    head: tuple[Segment, ...] | None = None


def said_by(layer: str, texts: tuple[LayerText, ...]) -> LayerText | None:
    """The last of the texts that belongs to the layer."""
    for layer_text in reversed(texts):
        if layer_text.layer == layer:
            return layer_text
    return None
