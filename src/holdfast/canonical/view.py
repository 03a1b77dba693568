"""What the layers look at when they say their part of the prompt."""

from typing import Literal

import msgspec

from holdfast.canonical.prompt import Passage, Segment
from holdfast.canonical.tools import ToolSpec

Layout = Literal["default", "seed"]
"""Where volatile text goes: `default` behind the history, `seed` at the end of the system prompt."""


class LayerText(msgspec.Struct, frozen=True):
    """What one layer says. Ephemeral text leaves the conversation with its turn."""

    layer: str
    text: str
    ephemeral: bool = False


class View(msgspec.Struct, frozen=True):
    """A conversation as it stands before a call.

    `pinned` is what stable layers say for the whole epoch, and `head` their segments, where these are known already.
    `history` was sent before and never changes; `newest` is what this call adds. `current` is what volatile layers
    would say now, `emitted` what they last said.
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
    """The last thing that a layer says among some texts."""
    for said in reversed(texts):
        if said.layer == layer:
            return said
    return None
