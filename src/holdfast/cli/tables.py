"""Prints tables: fitted to the terminal, or at full width when the output goes to a file or pipe."""

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 400
"""Table width when stdout is not a terminal: another program cannot parse truncated or folded lines."""
_GAP_COLUMNS = 2


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Print the table; where it is too wide, drop the columns named in `spare`, in that order, until it fits.

    The first column names the thing, often for another command: it is folded last, so that it can be copied.
    """
    width = get_table_width()
    headings, rows = drop_columns_to_fit(headings, tuple(rows), spare, width=width)
    table = Table(box=None, pad_edge=False)
    for index, heading in enumerate(headings):
        is_whole = not index and max((cell_len(row[0]) for row in rows), default=0) <= width // 2
        table.add_column(heading, overflow="fold", no_wrap=is_whole)
    for row in rows:
        table.add_row(*(Text(_plain(cell)) for cell in row))
    console = _console()
    with console.capture() as captured:
        console.print(table)
    # rich pads every cell to its column's width, which leaves trailing spaces on each line.
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


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
        widths = [max(map(cell_len, (heading, *cells))) for heading, cells in columns]
        if sum(widths) + _GAP_COLUMNS * (len(widths) - 1) <= width:
            break
        columns = [column for column in columns if column[0] != name]
    return [heading for heading, _ in columns], list(zip(*(cells for _, cells in columns), strict=True))


def get_table_width() -> int:
    """The width, in characters, that a table may have."""
    return _console().width


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def _plain(cell: str) -> str:
    # Names come from outside; escape sequences in them must not move the cursor or colour the rest of the screen.
    return "".join(character if character.isprintable() else " " for character in cell)


Item = TypeVar("Item")


def track_progress(items: Iterable[Item], noun: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items unchanged, showing a bar if `total` is known and a counter otherwise."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    count_text = "{task.completed} " if total is None else "{task.completed} of {task.total} "
    indicator = BarColumn() if total is not None else SpinnerColumn()
    columns = (indicator, TextColumn(count_text + noun), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        for item in items:
            yield item
            progress.advance(task)
