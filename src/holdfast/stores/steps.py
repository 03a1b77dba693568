"""Steps of a transaction that succeed together or not at all."""

import msgspec

from holdfast.stores.queries import Cell


class Step(msgspec.Struct, frozen=True):
    """One statement, and the minimum number of rows it must change for the transaction to succeed."""

    statement: str
    cells: tuple[Cell, ...]
    rows_min: int = 0


class TooFewRowsError(Exception):
    """A step changed fewer rows than required."""
