"""Formats what commands print: counts, money, JSON, untrusted text, and the list of commands in a help page."""

import datetime
from decimal import Decimal

import click

HELP_CHARACTERS_MAX = 300


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


def format_local_time(at: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"second {at:g}"


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
