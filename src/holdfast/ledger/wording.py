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
    if moved.change == "added":
        how = f"{moved.path_after} of {after} is new, where {moved.path} stood"
    elif moved.change == "removed":
        how = f"{moved.path} is not there any more"
    else:
        elsewhere = f" (in {after} at {moved.path_after})" if moved.path_after != moved.path else ""
        how = f"{moved.path}{elsewhere} differs"
    return f"{how}: layer {moved.place}, block {moved.block}, byte {moved.byte}"
