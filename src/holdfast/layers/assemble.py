"""Assembles a prompt from a view: the standard layers in order, none that changes before one that is stable.

Each layer is a function from the view to a segment.

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

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from holdfast.errors import OrderError
from holdfast.types.blocks import Text, ToolResult
from holdfast.types.prompt import (
    HistoryEntry,
    LayerText,
    Prompt,
    PromptSection,
    Segment,
    Stability,
    View,
    find_layer_text,
)
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest, count_stable_blocks
from holdfast.types.tool_spec import sort_tool_specs

Layer = Callable[[View], Segment | None]

PINNED_LAYERS = {
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

VOLATILE_LAYERS = (
    *("metadata", "active_files", "file_details", "user_memory", "memory", "rag-context"),
    *("environment", "git", "volatile"),
)
"""Layers whose text may change on every call, in wire order; `volatile` is the caller's own text."""

SYSTEM_SUFFIX = "volatile"
"""The single block of volatile text at the end of the system prompt in the seed layout."""

NONCE = "nonce"

# Providers form the cache prefix in this order: tools, then system, then messages.
_WIRE_ORDER: dict[PromptSection, int] = {"tools": 0, "system": 1, "messages": 2}


def assemble_prompt(view: View, layers: Sequence[Layer] | None = None) -> Prompt:
    """The segments of all layers in their order; the standard layers by default. Raises OrderError."""
    if layers is not None:
        segments = _render(view, layers)
    else:
        prefix = stable_segments(view) if view.head is None else view.head
        segments = prefix + _render(view, CHANGING_LAYERS if view.layout == "default" else SEED_CHANGING_LAYERS)
    check_layer_order(segments)
    return Prompt(segments)


def stable_segments(view: View) -> tuple[Segment, ...]:
    """The segments of the stable layers, which are rendered once per epoch."""
    return _render(view, PREFIX_LAYERS)


def with_nonce(prefix: tuple[Segment, ...], nonce: str) -> tuple[Segment, ...]:
    """The stable prefix with this nonce before its system prompt, in place of an earlier nonce.

    It makes the provider miss its cache without changing the prompt's meaning; an empty nonce removes the earlier one.
    """
    segments = tuple(segment for segment in prefix if segment.name != NONCE)
    if not nonce:
        return segments
    first = next((index for index, segment in enumerate(segments) if segment.section == "system"), len(segments))
    nonce_segment = Segment(NONCE, Stability.FROZEN, "system", system=(Text(nonce),))
    return (*segments[:first], nonce_segment, *segments[first:])


def _render(view: View, layers: Sequence[Layer]) -> tuple[Segment, ...]:
    return tuple(segment for layer in layers if (segment := layer(view)) is not None)


def changed_volatile_texts(view: View) -> tuple[LayerText, ...]:
    """The texts of volatile layers that changed since they were last sent, in wire order, exactly as sent."""
    emitted = (changed_volatile_text(name, view) for name in VOLATILE_LAYERS)
    return tuple(emission for emission in emitted if emission is not None)


def check_layer_order(segments: Sequence[Segment]) -> None:
    """Raises OrderError if the segments are not in wire order, or a changing one comes before a stable one."""
    for before, after in pairwise(segments):
        if _WIRE_ORDER[before.section] > _WIRE_ORDER[after.section]:
            raise OrderError(
                f"layer {after.name!r} belongs to {after.section}, which come before the {before.section} of layer "
                f"{before.name!r} in a request: move {after.name!r} before {before.name!r}"
            )
        if before.stability > after.stability:
            raise OrderError(
                f"layer {before.name!r} is {before.stability.name} and comes before layer {after.name!r}, which is "
                f"{after.stability.name}: every change of {before.name!r} would invalidate the cache of "
                f"{after.name!r}; move {before.name!r} after it"
            )


def tools_layer(view: View) -> Segment | None:
    if not view.tools:
        return None
    return Segment("tools", Stability.FROZEN, "tools", tools=sort_tool_specs(view.tools))


def pinned_layer(name: str, stability: Stability) -> Layer:
    """A system layer with the text that its epoch pinned, in one block."""

    def layer(view: View) -> Segment | None:
        text = find_layer_text(name, view.pinned)
        if text is None or not text.text.strip():
            return None
        return Segment(name, stability, "system", system=(Text(text.text),))

    return layer


def history_layer(view: View) -> Segment | None:
    if not view.history:
        return None
    # In the seed layout volatile text comes before the history, so any change of it invalidates the history too.
    stability = Stability.GROWING if view.layout == "default" else Stability.VOLATILE
    return Segment("history", stability, "messages", entries=view.history)


def tool_results_layer(view: View) -> Segment | None:
    """The results of the last message's tool calls. Providers require them directly after the calls."""
    entries = tuple(entry for entry in view.newest if _has_tool_results(entry))
    return Segment("tool_results", Stability.VOLATILE, "messages", entries=entries) if entries else None


def volatile_layer(name: str, *, ephemeral: bool = False) -> Layer:
    """A layer that is sent only when its text changed since it was last sent.

    Ephemeral text is dropped after its turn. It has a layer of its own after the user's message, so that dropping it
    invalidates as little as possible.
    """

    def layer(view: View) -> Segment | None:
        emission = changed_volatile_text(name, view)
        if emission is None or emission.ephemeral is not ephemeral:
            return None
        stability = Stability.VOLATILE
        entry = HistoryEntry("user", (Text(emission.text),), layer=name, stability=stability, ephemeral=ephemeral)
        return Segment(name, stability, "messages", entries=(entry,))

    return layer


def user_message_layer(view: View) -> Segment | None:
    entries = tuple(entry for entry in view.newest if not _has_tool_results(entry))
    return Segment("user_message", Stability.VOLATILE, "messages", entries=entries) if entries else None


def system_suffix_layer(view: View) -> Segment | None:
    """All volatile text as one block at the end of the system prompt: the seed layout."""
    text = system_suffix_text(view.current)
    if not text:
        return None
    return Segment(SYSTEM_SUFFIX, Stability.VOLATILE, "system", system=(Text(text),))


def system_suffix_text(current: tuple[LayerText, ...]) -> str:
    texts = (find_layer_text(name, current) for name in VOLATILE_LAYERS)
    return "\n\n".join(text.text for text in texts if text and text.text.strip())


def changed_volatile_text(name: str, view: View) -> LayerText | None:
    """The text of a volatile layer exactly as it will be sent, or None if it was sent already."""
    layer = find_layer_text(name, view.current)
    if layer is None:
        return None
    before = find_layer_text(name, view.emitted)
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


PREFIX_LAYERS: tuple[Layer, ...] = (tools_layer, *(pinned_layer(*item) for item in PINNED_LAYERS.items()))
"""The layers whose text is fixed for an epoch."""

CHANGING_LAYERS: tuple[Layer, ...] = (
    history_layer,
    tool_results_layer,
    *(volatile_layer(name) for name in VOLATILE_LAYERS),
    user_message_layer,
    *(volatile_layer(name, ephemeral=True) for name in VOLATILE_LAYERS),
)
"""All other layers in wire order, with volatile text after the history."""

SEED_CHANGING_LAYERS: tuple[Layer, ...] = (system_suffix_layer, history_layer, tool_results_layer, user_message_layer)
"""All other layers in wire order, with volatile text at the end of the system prompt."""

STANDARD_LAYERS = PREFIX_LAYERS + CHANGING_LAYERS


def _has_tool_results(entry: HistoryEntry) -> bool:
    return any(isinstance(block, ToolResult) for block in entry.content)


def _escape_frame(text: str) -> str:
    # Text from a file must not be able to close the tag and pose as the user's message.
    return text.replace("</context>", "<\\/context>")


class AggregateStack(msgspec.Struct, frozen=True):
    """Byte offsets of one prompt. An empty layer ends where the layer before it in the request ends.

    Tools come before the system prompt in a request, so `TOOLS_END` is the smallest of the offsets.
    """

    ROLE_INSTRUCTIONS_END: int
    SCHEMA_END: int
    TOOLS_END: int
    SYSTEM_PROMPT_END: int
    PERSONA_END: int
    PROJECT_CONTEXT_END: int
    KNOWLEDGE_DIGEST_END: int
    INSTANCE_START: int


_LAYERS_IN_ORDER = (
    ("TOOLS_END", ("tools",)),
    ("ROLE_INSTRUCTIONS_END", ("role",)),
    ("SCHEMA_END", ("schema",)),
    ("SYSTEM_PROMPT_END", ("preset",)),
    ("PERSONA_END", ("persona",)),
    ("PROJECT_CONTEXT_END", ("project",)),
    ("KNOWLEDGE_DIGEST_END", ("knowledge", "skills")),
)


def measure_stack(blocks: Sequence[EncodedBlock], digests: Sequence[PrefixDigest]) -> AggregateStack:
    """Compute the offsets from the blocks of a prompt and their prefix digests."""
    stable = count_stable_blocks(blocks)
    ends: dict[str, int] = {}
    end = 0
    for name, layers in _LAYERS_IN_ORDER:
        layer_ends = (digest.end for digest in digests[:stable] if digest.layer in layers)
        end = ends[name] = max(layer_ends, default=end)
    return AggregateStack(**ends, INSTANCE_START=digests[stable - 1].end if stable else 0)


class EncodedPrompt(msgspec.Struct, frozen=True):
    """The cacheable bytes of a prompt, with its blocks and their prefix digests."""

    cacheable: bytes
    blocks: tuple[EncodedBlock, ...]
    digests: tuple[PrefixDigest, ...]
