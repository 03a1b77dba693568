"""The twelve layers of a prompt, each a function from the view to its part of it.

| # | layer | stability | place |
| --- | --- | --- | --- |
| 1 | role | FROZEN | system |
| 2 | schema: how tools are called, where a provider has no field for it | FROZEN | system |
| 3 | tools, sorted by name | FROZEN | tools |
| 4 | preset: the caller's system prompt | FROZEN | system |
| 5 | persona | EPOCH | system |
| 6 | project: instruction files | EPOCH | system |
| 7 | knowledge: digest and pinned file notes; skills: index and bodies | EPOCH | system |
| | padding: what makes all this long enough to be cached | EPOCH | system |
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
"""Layers that may say something else on every call, in wire order; `volatile` is the caller's own text."""

SYSTEM_TAIL = "volatile"
"""The one block that volatile text forms at the end of the system prompt in the seed layout."""


def tools(view: View) -> Segment | None:
    if not view.tools:
        return None
    return Segment("tools", Stability.FROZEN, "tools", tools=sorted_tools(view.tools))


def pinned(name: str, stability: Stability) -> Layer:
    """A system layer that says what its epoch pinned for it, in one block."""

    def layer(view: View) -> Segment | None:
        said = said_by(name, view.pinned)
        if said is None or not said.text.strip():
            return None
        return Segment(name, stability, "system", system=(Text(said.text),))

    return layer


def history(view: View) -> Segment | None:
    if not view.history:
        return None
    # In the seed layout volatile text stands before the history, which then is as volatile as that text.
    stability = Stability.GROWING if view.layout == "default" else Stability.VOLATILE
    return Segment("history", stability, "messages", passages=view.history)


def tool_results(view: View) -> Segment | None:
    """What tools answered to the last message: it must follow their calls directly."""
    passages = tuple(passage for passage in view.newest if _answers_calls(passage))
    return Segment("tool_results", Stability.VOLATILE, "messages", passages=passages) if passages else None


def volatile(name: str) -> Layer:
    """A layer that speaks only when it has something to say that it did not say before."""

    def layer(view: View) -> Segment | None:
        emission = emission_of(name, view)
        if emission is None or emission.ephemeral:
            return None
        return _injection(emission)

    return layer


def user_message(view: View) -> Segment | None:
    passages = tuple(passage for passage in view.newest if not _answers_calls(passage))
    return Segment("user_message", Stability.VOLATILE, "messages", passages=passages) if passages else None


def ephemeral(name: str) -> Layer:
    """Text that is dropped with its turn stands last, so that dropping it moves as little as possible."""

    def layer(view: View) -> Segment | None:
        emission = emission_of(name, view)
        if emission is None or not emission.ephemeral:
            return None
        return _injection(emission)

    return layer


def system_tail(view: View) -> Segment | None:
    """Everything volatile as one block at the end of the system prompt: the seed layout."""
    text = system_tail_text(view.current)
    if not text:
        return None
    return Segment(SYSTEM_TAIL, Stability.VOLATILE, "system", system=(Text(text),))


def system_tail_text(current: tuple[LayerText, ...]) -> str:
    said = (said_by(name, current) for name in VOLATILE)
    return "\n\n".join(one.text for one in said if one and one.text.strip())


def emission_of(name: str, view: View) -> LayerText | None:
    """What a volatile layer has to say now, exactly as it will be sent, or None if it has said so already."""
    said, before = said_by(name, view.current), said_by(name, view.emitted)
    if said is None:
        return None
    if said.text.strip():
        text = f"<context layer={name!r}>\n{_closed(said.text)}\n</context>"
    elif before is not None:
        text = f"<context layer={name!r} empty/>"
    else:
        return None
    if before is not None and before.text == text:
        return None
    return LayerText(name, text, said.ephemeral)


STABLE: tuple[Layer, ...] = (tools, *(pinned(name, stability) for name, stability in PINNED.items()))
"""The layers that say the same for a whole epoch."""

CHANGING: tuple[Layer, ...] = (
    history,
    tool_results,
    *(volatile(name) for name in VOLATILE),
    user_message,
    *(ephemeral(name) for name in VOLATILE),
)
"""All others in wire order, volatile text behind the history."""

SEED_CHANGING: tuple[Layer, ...] = (system_tail, history, tool_results, user_message)
"""All others in wire order, volatile text at the end of the system prompt."""

STANDARD = STABLE + CHANGING


def _injection(emission: LayerText) -> Segment:
    passage = Passage(
        "user",
        (Text(emission.text),),
        layer=emission.layer,
        stability=Stability.VOLATILE,
        ephemeral=emission.ephemeral,
    )
    return Segment(emission.layer, Stability.VOLATILE, "messages", passages=(passage,))


def _answers_calls(passage: Passage) -> bool:
    return any(isinstance(block, ToolResult) for block in passage.content)


def _closed(text: str) -> str:
    # Text from a file must not be able to end its own frame and speak as the user.
    return text.replace("</context>", "<\\/context>")
