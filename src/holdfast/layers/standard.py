"""The standard layers of a prompt, each a function from the view to a segment.

| # | layer | stability | place |
| --- | --- | --- | --- |
| 1 | role | FROZEN | system |
| 2 | schema: how to call tools, for providers without a field for it | FROZEN | system |
| 3 | tools, sorted by name | FROZEN | tools |
| 4 | preset: the caller's system prompt | FROZEN | system |
| 5 | persona | EPOCH | system |
| 6 | project: instruction files | EPOCH | system |
| 7 | knowledge: digest and pinned file notes; skills: index and bodies | EPOCH | system |
| | padding: text that makes the prefix long enough to be cached | EPOCH | system |
| 8 | metadata of the session | VOLATILE | messages |
| 9 | active_files | VOLATILE | messages |
| 10 | file_details | VOLATILE | messages |
| 11 | history | GROWING | messages |
| 12 | the user's message | VOLATILE | messages |
"""

from collections.abc import Callable

from holdfast.canonical.blocks import Text, ToolResult
from holdfast.canonical.prompt import Passage, Segment, Stability
from holdfast.canonical.tools import sorted_tools
from holdfast.canonical.view import LayerText, View, said_by

Layer = Callable[[View], Segment | None]

PINNED = {
    "role": Stability.FROZEN,
    "schema": Stability.FROZEN,
    "preset": Stability.FROZEN,
    "persona": Stability.EPOCH,
    "project": Stability.EPOCH,
    "knowledge": Stability.EPOCH,
    "skills": Stability.EPOCH,
    "padding": Stability.EPOCH,
}
"""System layers that an epoch pins, in wire order."""

VOLATILE = (
    "metadata",
    "active_files",
    "file_details",
    "user_memory",
    "memory",
    "rag-context",
    "environment",
    "git",
    "volatile",
)
"""Layers whose text may change on every call, in wire order; `volatile` is the caller's own text."""

SYSTEM_TAIL = "volatile"
"""The single block of volatile text at the end of the system prompt in the seed layout."""


def tools(view: View) -> Segment | None:
    if not view.tools:
        return None
    return Segment("tools", Stability.FROZEN, "tools", tools=sorted_tools(view.tools))


def pinned(name: str, stability: Stability) -> Layer:
    """A system layer with the text that its epoch pinned, in one block."""

    def layer(view: View) -> Segment | None:
        text = said_by(name, view.pinned)
        if text is None or not text.text.strip():
            return None
        return Segment(name, stability, "system", system=(Text(text.text),))

    return layer


def history(view: View) -> Segment | None:
    if not view.history:
        return None
    # In the seed layout volatile text comes before the history, so any change of it invalidates the history too.
    stability = Stability.GROWING if view.layout == "default" else Stability.VOLATILE
    return Segment("history", stability, "messages", passages=view.history)


def tool_results(view: View) -> Segment | None:
    """The results of the last message's tool calls. Providers require them directly after the calls."""
    entries = tuple(entry for entry in view.newest if _has_tool_results(entry))
    return Segment("tool_results", Stability.VOLATILE, "messages", passages=entries) if entries else None


def volatile(name: str) -> Layer:
    """A layer that is sent only when its text changed since it was last sent."""

    def layer(view: View) -> Segment | None:
        emission = emission_of(name, view)
        # Ephemeral text has a layer of its own, after the user's message.
        if emission is None or emission.ephemeral:
            return None
        return _injection(emission)

    return layer


def user_message(view: View) -> Segment | None:
    entries = tuple(entry for entry in view.newest if not _has_tool_results(entry))
    return Segment("user_message", Stability.VOLATILE, "messages", passages=entries) if entries else None


def ephemeral(name: str) -> Layer:
    """A layer that is dropped after its turn. It comes last, so that dropping it invalidates as little as possible."""

    def layer(view: View) -> Segment | None:
        emission = emission_of(name, view)
        if emission is None or not emission.ephemeral:
            return None
        return _injection(emission)

    return layer


def system_tail(view: View) -> Segment | None:
    """All volatile text as one block at the end of the system prompt: the seed layout."""
    text = system_tail_text(view.current)
    if not text:
        return None
    return Segment(SYSTEM_TAIL, Stability.VOLATILE, "system", system=(Text(text),))


def system_tail_text(current: tuple[LayerText, ...]) -> str:
    texts = (said_by(name, current) for name in VOLATILE)
    return "\n\n".join(text.text for text in texts if text and text.text.strip())


def emission_of(name: str, view: View) -> LayerText | None:
    """The text of a volatile layer exactly as it will be sent, or None if it was sent already."""
    layer, before = said_by(name, view.current), said_by(name, view.emitted)
    if layer is None:
        return None
    if layer.text.strip():
        text = f"<context layer={name!r}>\n{_escape_frame(layer.text)}\n</context>"
    elif before is not None:
        # It had text before: say that it is empty now, because the earlier text stays in the history.
        text = f"<context layer={name!r} empty/>"
    else:
        return None
    if before is not None and before.text == text:
        return None
    return LayerText(name, text, layer.ephemeral)


STABLE: tuple[Layer, ...] = (tools, *(pinned(name, stability) for name, stability in PINNED.items()))
"""The layers whose text is fixed for an epoch."""

CHANGING: tuple[Layer, ...] = (
    history,
    tool_results,
    *(volatile(name) for name in VOLATILE),
    user_message,
    *(ephemeral(name) for name in VOLATILE),
)
"""All other layers in wire order, with volatile text after the history."""

SEED_CHANGING: tuple[Layer, ...] = (system_tail, history, tool_results, user_message)
"""All other layers in wire order, with volatile text at the end of the system prompt."""

STANDARD = STABLE + CHANGING


def _injection(emission: LayerText) -> Segment:
    entry = Passage(
        "user",
        (Text(emission.text),),
        layer=emission.layer,
        stability=Stability.VOLATILE,
        ephemeral=emission.ephemeral,
    )
    return Segment(emission.layer, Stability.VOLATILE, "messages", passages=(entry,))


def _has_tool_results(entry: Passage) -> bool:
    return any(isinstance(block, ToolResult) for block in entry.content)


def _escape_frame(text: str) -> str:
    # Text from a file must not be able to close the tag and pose as the user's message.
    return text.replace("</context>", "<\\/context>")
