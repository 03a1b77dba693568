"""Formats counts and amounts of money for output."""

from decimal import Decimal


def counted(count: int, noun: str) -> str:
    """The count with its noun in singular or plural: `1 call`, `2 calls`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def dollars(amount: Decimal | float, places: int) -> str:
    """The minus sign goes before the dollar sign; an amount that rounds to zero has no sign."""
    digits = f"{abs(amount):.{places}f}"
    return f"-${digits}" if amount < 0 and float(digits) else f"${digits}"
