"""Prints tables: fitted to the terminal, or at full width when the output goes to a file or pipe."""

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

PIPED_WIDTH = 400
"""Table width when stdout is not a terminal: another program cannot parse truncated or folded lines."""
_GAP_COLUMNS = 2
_WORD_COLUMNS_MIN = 8
"""Columns of text do not become narrower than this: the lines would be hard to read."""


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

    widths = fit_columns(headings, rows, width=width)
    table = Table(box=None, pad_edge=False)
    for heading, column_width in zip(headings, widths, strict=True):
        table.add_column(Text("\n".join(fold_cell(heading, column_width))), no_wrap=True, width=column_width)
    for row in rows:
        cells = ("\n".join(fold_cell(cell, limit)) for cell, limit in zip(row, widths, strict=True))
        table.add_row(*map(Text, cells))
    console = Console(width=max(width, _sum_widths(widths)))
    with console.capture() as captured:
        console.print(table)
    # rich pads every cell to its column's width, which leaves trailing spaces on each line.
    return captured.get().splitlines()


def fit_columns(headings: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> list[int]:
    """The widths of the columns, which fit into `width` unless numbers and headings alone are wider.

    Widest first, columns shrink to their longest word. Only where that does not suffice are words broken, those of the
    first column last. A number is never broken: its halves would be read as two numbers. Nor is an id in the first
    column, which other commands take, up to half the width.
    """
    columns = [[heading, *cells] for heading, *cells in zip(headings, *rows, strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]
    words = [[word for cell in column for word in cell.split()] for column in columns]
    longest = [max(map(cell_len, column), default=0) for column in words]
    unbroken = [
        max((cell_len(word) for word in (*heading.split(), *filter(_is_number, column))), default=0)
        for heading, column in zip(headings, words, strict=True)
    ]
    ids = [cell_len(word) for word in words[0] if word.isalnum() and any(map(str.isdigit, word))]
    unbroken[0] = max(unbroken[0], min(max(ids, default=0), width // 2))
    breakable = [max(least, min(_WORD_COLUMNS_MIN, most)) for least, most in zip(unbroken, longest, strict=True)]
    for minima in (longest, [longest[0], *breakable[1:]], breakable):
        while _sum_widths(widths) > width:
            room = [size if size > least else 0 for size, least in zip(widths, minima, strict=True)]
            if not any(room):
                break
            widths[room.index(max(room))] -= 1
    return widths


def _is_number(word: str) -> bool:
    """Also a date, an amount of money or a share."""
    return any(map(str.isdigit, word)) and not any(map(str.isalpha, word))


def fold_cell(cell: str, width: int) -> list[str]:
    """The lines of a cell: broken between words, and a longer word after a sign such as `-` or `/`, if it has one."""
    if cell_len(cell) <= width:
        return [cell]
    lines, line = [], ""
    for word in cell.split():
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        while cell_len(word) > width:
            cut = _find_cut(word, width)
            lines.append(word[:cut])
            word = word[cut:]
        line = word
    return [*lines, line]


def _find_cut(word: str, width: int) -> int:
    """How many characters of a word that is too long go on this line."""
    fitting = next(count for count in range(len(word), 0, -1) if count == 1 or cell_len(word[:count]) <= width)
    signs = [count for count in range(fitting, fitting // 2, -1) if not word[count - 1].isalnum()]
    return signs[0] if signs else fitting


def print_text(line: str) -> None:
    """Print a line of text; on a terminal it is wrapped at words, and an item of a list below its beginning."""
    sys.stdout.write(wrap_text(line) + "\n")


def wrap_text(line: str, *, piped_width: int | None = None) -> str:
    """The line wrapped at words to the terminal, or to `piped_width` in a pipe, where None leaves it as it is."""
    width = get_table_width() if sys.stdout.isatty() else piped_width
    if not line or width is None:
        return line
    margin = re.match(r" *(?:\d+\. |- |> )?", line)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    wrapper.subsequent_indent = " " * len(margin[0]) if margin else ""
    return "\n".join("\n".join(wrapper.wrap(part)) for part in line.split("\n"))


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
