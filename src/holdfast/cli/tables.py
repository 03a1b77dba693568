"""Prints tables: fitted to the terminal, or at full width when the output goes to a file or pipe."""

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

PIPED_WIDTH = 400
"""Table width when stdout is not a terminal: another program cannot parse truncated or folded lines."""
_GAP_COLUMNS = 2


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Print the table; where it is too wide, drop the columns named in `spare`, in that order, until it fits.

    The first column names the thing, often for another command: it is folded last, so that it can be copied.
    """
    width = get_table_width()
    clean = [tuple(map(_clean_cell, row)) for row in rows]
    headings, cells = drop_columns_to_fit(headings, clean, spare, width=width)
    widths = [max(map(cell_len, column)) for column in zip(headings, *cells, strict=True)]
    if not sys.stdout.isatty() and _sum_widths(widths) <= width:
        # The same lines as rich prints, in a tenth of the time: it measures and pads each cell several times.
        lines: Iterable[str] = (_join_cells(row, widths) for row in (headings, *cells))
    else:
        lines = _fold_cells(headings, cells, width)
    for line in lines:
        sys.stdout.write(f"{line.rstrip()}\n")


def _join_cells(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))
    return (" " * _GAP_COLUMNS).join(padded)


def _fold_cells(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Sequence[str]:
    # Loaded on demand: most output to files and pipes needs none of it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for index, heading in enumerate(headings):
        is_whole = not index and max((cell_len(row[0]) for row in rows), default=0) <= width // 2
        table.add_column(heading, overflow="fold", no_wrap=is_whole)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    with console.capture() as captured:
        console.print(table)
    # rich pads every cell to its column's width, which leaves trailing spaces on each line.
    return captured.get().splitlines()


def print_text(line: str) -> None:
    """Print a line of text; on a terminal it is wrapped at words, and an item of a list below its beginning."""
    margin = re.match(r" *(?:\d+\. |- )?", line)
    indent = " " * len(margin[0]) if margin else ""
    if sys.stdout.isatty() and line:
        wrapper = textwrap.TextWrapper(get_table_width(), break_long_words=False, break_on_hyphens=False)
        wrapper.subsequent_indent = indent
        line = "\n".join("\n".join(wrapper.wrap(part)) for part in line.split("\n"))
    sys.stdout.write(line + "\n")


def drop_columns_to_fit(
    headings: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], *, width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The headings and rows without the `spare` columns that do not fit into `width`."""
    columns = [(heading, [row[index] for row in rows]) for index, heading in enumerate(headings)]
    for name in spare:
        if _sum_widths([max(map(cell_len, (heading, *cells))) for heading, cells in columns]) <= width:
            break
        columns = [column for column in columns if column[0] != name]
    return [heading for heading, _ in columns], list(zip(*(cells for _, cells in columns), strict=True))


def _sum_widths(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP_COLUMNS * (len(widths) - 1)


def get_table_width() -> int:
    """The width, in characters, that a table may have."""
    if not sys.stdout.isatty():
        return PIPED_WIDTH
    from rich.console import Console

    return Console().width


def _clean_cell(cell: str) -> str:
    # Names come from outside; escape sequences in them must not move the cursor or colour the rest of the screen.
    if cell.isprintable():
        return cell
    return "".join(character if character.isprintable() else " " for character in cell)
