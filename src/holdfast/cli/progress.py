"""Shows the progress of a long command on standard error, if that is a terminal."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def with_progress(items: Iterable[Item], noun: str, total: int | None = None) -> Iterator[Item]:
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
