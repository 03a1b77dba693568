"""How a table is shown: fitted to a terminal, whole where nobody looks."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_UNSEEN = 400
"""Columns where the output is no terminal: a line that is cut or folded is of no use to another program."""


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_plain(cell)) for cell in row))
    console = _console()
    with console.capture() as captured:
        console.print(table)
    # Cells are padded to the width of their column; at the end of a line that is only white space.
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def columns_shown() -> int:
    """How wide a table may be."""
    return _console().width


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH_UNSEEN)


def _plain(cell: str) -> str:
    # A name comes from outside: it must not move the cursor or colour the rest of the screen.
    return "".join(character if character.isprintable() else " " for character in cell)
