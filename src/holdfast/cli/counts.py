"""How numbers of things and sums of money are said."""

from decimal import Decimal


def counted(count: int, noun: str) -> str:
    """One call, two calls."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def dollars(amount: Decimal | float, places: int) -> str:
    """The sign stands in front of the dollar; what rounds to nothing has none."""
    told = f"{abs(amount):.{places}f}"
    return f"-${told}" if amount < 0 and float(told) else f"${told}"
