"""Prints tables: fitted to the terminal, or at full width when the output goes to a file or pipe."""

import sys
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_UNSEEN = 400
"""Table width when stdout is not a terminal: another program cannot parse truncated or folded lines."""

_GAP_COLUMNS = 2


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Print the table; where it is too wide, drop the columns named in `spare`, in that order, until it fits."""
    headings, rows = fitted(headings, tuple(rows), spare, width=columns_shown())
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_plain(cell)) for cell in row))
    console = _console()
    with console.capture() as captured:
        console.print(table)
    # rich pads every cell to its column's width, which leaves trailing spaces on each line.
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], *, width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The headings and rows without the `spare` columns that do not fit into `width`."""
    columns = [(heading, [row[index] for row in rows]) for index, heading in enumerate(headings)]
    for name in spare:
        widths = [max(map(cell_len, (heading, *cells))) for heading, cells in columns]
        if sum(widths) + _GAP_COLUMNS * (len(widths) - 1) <= width:
            break
        columns = [column for column in columns if column[0] != name]
    return [heading for heading, _ in columns], list(zip(*(cells for _, cells in columns), strict=True))


def columns_shown() -> int:
    """The width, in characters, that a table may have."""
    return _console().width


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH_UNSEEN)


def _plain(cell: str) -> str:
    # Names come from outside; escape sequences in them must not move the cursor or colour the rest of the screen.
    return "".join(character if character.isprintable() else " " for character in cell)
