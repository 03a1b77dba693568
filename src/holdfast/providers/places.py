"""Checks that the sections of a prompt are encoded in the order in which every provider hashes them."""

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Place
from holdfast.errors import OrderError

_ORDER: tuple[Place, ...] = ("tools", "system", "messages")


def check_order(before: Piece | None, block: Piece) -> None:
    if before is not None and _ORDER.index(before.place) > _ORDER.index(block.place):
        raise OrderError(
            f"layer {block.layer!r} ({block.place}) comes after layer {before.layer!r} ({before.place}); "
            f"the order is {', '.join(_ORDER)}"
        )
