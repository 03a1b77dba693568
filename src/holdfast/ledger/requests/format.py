"""Formats findings about requests for a terminal."""

from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.ledger.cache.prefix_diff import PrefixDifference


def format_usd_exact(amount: Decimal | None) -> str:
    return "unknown" if amount is None else f"${amount:.6f}"


def strip_control_characters(line: str) -> str:
    """A line of a prompt without control characters, which could move the cursor or change colours."""
    return "".join(character if character.isprintable() else " " for character in line)


def format_difference(difference: "PrefixDifference", *, after: str) -> str:
    """The differing block and byte; `after` is the name of the second request."""
    if difference.change == "added":
        change = f"{difference.path_after} of {after} is new in place of {difference.path}"
    elif difference.change == "removed":
        change = f"{difference.path} was removed"
    else:
        new_path = f" (in {after} at {difference.path_after})" if difference.path_after != difference.path else ""
        change = f"{difference.path}{new_path} differs"
    return f"{change}: layer {difference.section}, block {difference.block}, byte {difference.byte}"
