"""How far a long command has come, on standard error, if somebody looks there."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def with_progress(items: Iterable[Item], noun: str, total: int | None = None) -> Iterator[Item]:
    """The same items; a bar where it is known how many they are, else a count."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    counted = "{task.completed} " if total is None else "{task.completed} of {task.total} "
    shown = BarColumn() if total is not None else SpinnerColumn()
    columns = (shown, TextColumn(counted + noun), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        for item in items:
            yield item
            progress.advance(task)
