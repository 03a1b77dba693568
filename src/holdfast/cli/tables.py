"""How a table is shown: fitted to a terminal, whole where nobody looks."""

import sys
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_UNSEEN = 400
"""Columns where the output is no terminal: a line that is cut or folded is of no use to another program."""

_GAP_COLUMNS = 2


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Where a line would be folded, columns of the `spare` headings are left out, the first of them first."""
    headings, rows = fitted(headings, tuple(rows), spare, width=columns_shown())
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


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], *, width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The table without as many of its spare columns as it takes to fit; without all of them, if it never does."""
    columns = [(heading, [row[place] for row in rows]) for place, heading in enumerate(headings)]
    for name in spare:
        widths = [max(map(cell_len, (heading, *cells))) for heading, cells in columns]
        if sum(widths) + _GAP_COLUMNS * (len(widths) - 1) <= width:
            break
        columns = [column for column in columns if column[0] != name]
    return [heading for heading, _ in columns], list(zip(*(cells for _, cells in columns), strict=True))


def columns_shown() -> int:
    """How wide a table may be."""
    return _console().width


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH_UNSEEN)


def _plain(cell: str) -> str:
    # A name comes from outside: it must not move the cursor or colour the rest of the screen.
    return "".join(character if character.isprintable() else " " for character in cell)
