"""`holdfast chat`: an interactive agent in the terminal."""

from decimal import Decimal, InvalidOperation
from pathlib import Path

import click

NEWEST = ""


def _amount(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Decimal | None:
    if value is None:
        return None
    try:
        amount = Decimal(value)
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0:
        raise click.BadParameter(f"{value!r} is not an amount of dollars such as 0.50")
    return amount


@click.command("chat")
@click.argument(
    "folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path, file_okay=False, exists=True)
)
@click.option("--model", metavar="PROVIDER:NAME", help="Model to use. Default: the configured one.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[ID]",
    help="Continue a stored session; without an ID, the newest one of this folder.",
)
@click.option("--simulate", is_flag=True, help="Use a simulated model: no key, no network, no cost.")
@click.option("--no-tools", is_flag=True, help="Give the model no tools.")
@click.option(
    "--also-skills",
    multiple=True,
    type=click.Choice((".agents/skills", ".claude/skills", ".metis/skills")),
    help="Also load another program's skills from this folder, in your home and in DIR.",
)
@click.option("--yes", is_flag=True, help="Let tools write files and run commands without asking.")
@click.option("--thinking", is_flag=True, help="Show the model's thinking, if it returns any.")
@click.option("--keep-alive", is_flag=True, help="Keep an idle cache alive when that is expected to save money.")
@click.option(
    "--spend-max", callback=_amount, metavar="USD", help="Stop before a call that could exceed this total cost."
)
@click.option("--allow-uncached", is_flag=True, help="Allow a model without known prompt caching.")
@click.option("--store", metavar="PATH", help="Store to use instead of the configured one.")
def command(
    folder: Path | None,
    *,
    model: str | None,
    resume: str | None,
    simulate: bool,
    no_tools: bool,
    also_skills: tuple[str, ...],
    yes: bool,
    thinking: bool,
    keep_alive: bool,
    spend_max: Decimal | None,
    allow_uncached: bool,
    store: str | None,
) -> None:
    """Chat with an agent that works in DIR (default: the current folder).

    It can read, search and write files and run commands. Before it writes or runs anything, it shows you what and asks.
    Ctrl-C stops a call, Ctrl-D exits, /help lists the commands. The session is stored as it happens.

    Without a terminal, each line of standard input is one message. Replies go to standard output, everything else to
    standard error, and tools that would need your confirmation are refused unless you pass --yes.
    """
    import os

    from holdfast.cli.chat_flow import enter
    from holdfast.cli.chat_screen import terminal_screen
    from holdfast.cli.chat_setup import Wishes

    wishes = Wishes(
        folder=folder,
        model=model,
        resume=resume,
        simulate=simulate,
        tools=not no_tools,
        also_skills=also_skills,
        keep_alive=keep_alive,
        allow_uncached=allow_uncached,
        yes=yes,
        thinking=thinking,
        spend_max_usd=spend_max,
        store=store,
    )
    raise click.exceptions.Exit(enter(wishes, terminal_screen(os.environ), os.environ))
