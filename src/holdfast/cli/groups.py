"""How the commands of a group are listed: each with the whole first sentence of its help."""

import click

SENTENCE_CHARACTERS_MAX = 300


class Group(click.Group):
    """`click` cuts what a command does to the width of a line; there are few commands in a group, and room for more."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, one.get_short_help_str(SENTENCE_CHARACTERS_MAX)) for name, one in found if one and not one.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
