"""What a change of several statements is: steps that all succeed, or none does."""

import msgspec

from holdfast.stores.queries import Cell


class Step(msgspec.Struct, frozen=True):
    """One statement, and how many rows it must touch for the change to stand."""

    statement: str
    cells: tuple[Cell, ...]
    rows_min: int = 0


class TooFewRowsError(Exception):
    """A step did not find what it was to change."""
