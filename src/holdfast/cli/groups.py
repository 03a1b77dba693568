"""A click group that lists each of its commands with the whole first sentence of its help."""

import click

SENTENCE_CHARACTERS_MAX = 300


class Group(click.Group):
    """click truncates the short help to one line; our groups are small enough to show it in full."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(SENTENCE_CHARACTERS_MAX))
            for name, command in commands
            if command and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
