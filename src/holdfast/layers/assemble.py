"""Assembles a prompt from a view, and refuses any order that puts a changing part before a stable one."""

from collections.abc import Sequence
from itertools import pairwise

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Place, Prompt, Segment, Stability
from holdfast.canonical.view import LayerText, View
from holdfast.errors import OrderError
from holdfast.layers.standard import CHANGING, SEED_CHANGING, STABLE, VOLATILE, Layer, emission_of

NONCE = "nonce"

# Providers form the cache prefix in this order: tools, then system, then messages.
_WIRE_ORDER: dict[Place, int] = {"tools": 0, "system": 1, "messages": 2}


def assemble(view: View, layers: Sequence[Layer] | None = None) -> Prompt:
    """The segments of all layers in their order; the standard layers by default. Raises OrderError."""
    if layers is not None:
        segments = _render(view, layers)
    else:
        head = head_of(view) if view.head is None else view.head
        segments = head + _render(view, CHANGING if view.layout == "default" else SEED_CHANGING)
    check_order(segments)
    return Prompt(segments)


def head_of(view: View) -> tuple[Segment, ...]:
    """The segments of the stable layers, which are rendered once per epoch."""
    return _render(view, STABLE)


def with_nonce(prefix: tuple[Segment, ...], nonce: str) -> tuple[Segment, ...]:
    """The stable prefix with this nonce before its system prompt, in place of an earlier nonce.

    It makes the provider miss its cache without changing the prompt's meaning; an empty nonce removes the earlier one.
    """
    segments = tuple(segment for segment in prefix if segment.name != NONCE)
    if not nonce:
        return segments
    first = next((index for index, segment in enumerate(segments) if segment.place == "system"), len(segments))
    nonce_segment = Segment(NONCE, Stability.FROZEN, "system", system=(Text(nonce),))
    return (*segments[:first], nonce_segment, *segments[first:])


def _render(view: View, layers: Sequence[Layer]) -> tuple[Segment, ...]:
    return tuple(segment for layer in layers if (segment := layer(view)) is not None)


def emissions(view: View) -> tuple[LayerText, ...]:
    """The texts of volatile layers that changed since they were last sent, in wire order, exactly as sent."""
    emitted = (emission_of(name, view) for name in VOLATILE)
    return tuple(emission for emission in emitted if emission is not None)


def check_order(segments: Sequence[Segment]) -> None:
    """Raises OrderError if the segments are not in wire order, or a changing one comes before a stable one."""
    for before, after in pairwise(segments):
        if _WIRE_ORDER[before.place] > _WIRE_ORDER[after.place]:
            raise OrderError(
                f"layer {after.name!r} belongs to {after.place}, which come before the {before.place} of layer "
                f"{before.name!r} in a request: move {after.name!r} before {before.name!r}"
            )
        if before.stability > after.stability:
            raise OrderError(
                f"layer {before.name!r} is {before.stability.name} and comes before layer {after.name!r}, which is "
                f"{after.stability.name}: every change of {before.name!r} would invalidate the cache of "
                f"{after.name!r}; move {before.name!r} after it"
            )
