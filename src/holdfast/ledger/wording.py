"""How what was found in requests is said to people, on a terminal."""

from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.ledger.breaks import Moved


def dollars(amount: Decimal | None) -> str:
    return "unknown" if amount is None else f"${amount:.6f}"


def printable(line: str) -> str:
    """A line of somebody's prompt, without what would move the cursor or colour the screen."""
    return "".join(character if character.isprintable() else " " for character in line)


def where_moved(moved: "Moved", *, after: str) -> str:
    """The block and its byte; `after` is what the second request is called."""
    how = "is not there any more" if moved.path_after is None else "differs"
    elsewhere = f" (in {after} at {moved.path_after})" if moved.path_after not in (None, moved.path) else ""
    return f"{moved.path}{elsewhere} {how}: layer {moved.place}, block {moved.block}, byte {moved.byte}"
