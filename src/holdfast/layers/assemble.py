"""From view and layers to a prompt, refusing any order that puts a changing part before a stable one."""

from collections.abc import Sequence
from itertools import pairwise

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Place, Prompt, Segment, Stability
from holdfast.canonical.view import LayerText, View
from holdfast.errors import OrderError
from holdfast.layers.standard import CHANGING, SEED_CHANGING, STABLE, VOLATILE, Layer, emission_of

NONCE = "nonce"

_WIRE_ORDER: dict[Place, int] = {"tools": 0, "system": 1, "messages": 2}


def assemble(view: View, layers: Sequence[Layer] | None = None) -> Prompt:
    """Every layer's part, in the order of the layers, checked; without layers, the standard ones."""
    if layers is not None:
        segments = _say(view, layers)
    else:
        head = head_of(view) if view.head is None else view.head
        segments = head + _say(view, CHANGING if view.layout == "default" else SEED_CHANGING)
    check_order(segments)
    return Prompt(segments)


def head_of(view: View) -> tuple[Segment, ...]:
    """What the stable layers say: the same for a whole epoch, so that it need be asked once."""
    return _say(view, STABLE)


def with_nonce(head: tuple[Segment, ...], nonce: str) -> tuple[Segment, ...]:
    """The head with a text in front of its system prompt, without the one it had: another prefix, the same words."""
    kept = tuple(segment for segment in head if segment.name != NONCE)
    if not nonce:
        return kept
    first = next((at for at, segment in enumerate(kept) if segment.place == "system"), len(kept))
    said = Segment(NONCE, Stability.FROZEN, "system", system=(Text(nonce),))
    return (*kept[:first], said, *kept[first:])


def _say(view: View, layers: Sequence[Layer]) -> tuple[Segment, ...]:
    return tuple(segment for layer in layers if (segment := layer(view)) is not None)


def emissions(view: View) -> tuple[LayerText, ...]:
    """What the volatile layers have to say that they have not said yet, in wire order, exactly as sent."""
    said = (emission_of(name, view) for name in VOLATILE)
    return tuple(one for one in said if one is not None)


def check_order(segments: Sequence[Segment]) -> None:
    for before, after in pairwise(segments):
        if _WIRE_ORDER[before.place] > _WIRE_ORDER[after.place]:
            raise OrderError(
                f"layer {after.name!r} goes into {after.place}, which stand before the {before.place} of layer "
                f"{before.name!r} on the wire: move {after.name!r} in front of {before.name!r}"
            )
        if before.stability > after.stability:
            raise OrderError(
                f"layer {before.name!r} is {before.stability.name} and stands before layer {after.name!r}, which is "
                f"{after.stability.name}: every change of {before.name!r} would cost the cache of {after.name!r}; "
                f"move {before.name!r} behind it"
            )
