"""In which order the parts of a prompt stand on every provider's wire."""

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Place
from holdfast.errors import OrderError

_ORDER: tuple[Place, ...] = ("tools", "system", "messages")


def check_order(before: Piece | None, piece: Piece) -> None:
    if before is not None and _ORDER.index(before.place) > _ORDER.index(piece.place):
        raise OrderError(
            f"layer {piece.layer!r} ({piece.place}) stands behind layer {before.layer!r} ({before.place}); "
            f"the order is {', '.join(_ORDER)}"
        )
