"""Formats what commands print: counts, money, JSON, untrusted text, and the list of commands in a help page."""

import datetime
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import click

HELP_CHARACTERS_MAX = 300
BARS = "▁▂▃▄▅▆▇█"
Item = TypeVar("Item")


def replace_unprintable(message: str) -> str:
    """Replace control characters by U+FFFD: they could move the cursor or colour the rest of the screen."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in message)


def format_count(count: int, noun: str) -> str:
    """The count with its noun in singular or plural: `1 call`, `2 calls`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_usd(amount: Decimal | float, places: int) -> str:
    """The minus sign goes before the dollar sign; an amount that rounds to zero has no sign."""
    digits = f"{abs(amount):.{places}f}"
    return f"-${digits}" if amount < 0 and float(digits) else f"${digits}"


def draw_sparkline(values: list[float]) -> str:
    """One bar character per value, scaled so that the highest value is a full bar."""
    # value / top * len(BARS) is in [0, len(BARS)]; the top value itself would be one past the last bar.
    top = max(values, default=0.0)
    return "".join(BARS[min(len(BARS) - 1, int(value / top * len(BARS)))] if top else BARS[0] for value in values)


def format_local_time(at: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"second {at:g}"


def format_file_change(path: Path, before: str, after: str) -> str:
    import difflib

    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), str(path), str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def print_json(value: object, *, redact: bool = True) -> None:
    """Print indented JSON, with credentials masked unless it is the content that the user asked for."""
    import msgspec

    from holdfast.redaction import redact_values

    document = msgspec.to_builtins(value, str_keys=True)
    click.echo(msgspec.json.format(msgspec.json.encode(redact_values(document) if redact else document)).decode())


class CommandGroup(click.Group):
    """click truncates the short help to one line; our groups are small enough to show it in full."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(HELP_CHARACTERS_MAX))
            for name, command in commands
            if command and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


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
