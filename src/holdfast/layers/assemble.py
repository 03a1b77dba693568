"""Assembles a prompt from a view, and refuses any order that puts a changing part before a stable one."""

from collections.abc import Sequence
from itertools import pairwise

from holdfast.errors import OrderError
from holdfast.layers.standard import (
    CHANGING_LAYERS,
    PREFIX_LAYERS,
    SEED_CHANGING_LAYERS,
    VOLATILE_LAYERS,
    Layer,
    changed_volatile_text,
)
from holdfast.types.blocks import Text
from holdfast.types.prompt import LayerText, Prompt, PromptSection, Segment, Stability, View

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
