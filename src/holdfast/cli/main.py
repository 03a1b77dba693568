"""Which commands there are; each lives in its own module and is imported when it is asked for."""

import importlib
import os
import sys

import click

from holdfast import __version__
from holdfast.cli.shown import visible
from holdfast.errors import HoldfastError

COMMANDS = {
    "audit": "Show what sessions on disk spent, what cold calls cost and why, and what a better plan would have.",
    "certify": "Check a stored session again, byte by byte; end with 1 where its prefix moved.",
    "chat": "Talk to an agent in the terminal that works in a folder, and see what each turn costs.",
    "compact": "Make a stored session shorter, or show what that would remove, cost and save.",
    "config": "Show the configuration and where each value comes from.",
    "curation": "Choose which files sessions are told of, by presets.",
    "db": "Look at, check, rebuild, prune, export and import the store.",
    "demo": "Play a cached multi-turn session against the simulator, offline.",
    "diff": "Show where one request breaks the cached prefix of another, and what that costs.",
    "doctor": "Find what makes a prompt differ from run to run: a function of yours, or a request file.",
    "explain": "Show the blocks and marks of a request, and what a change of each would cost.",
    "gateway": "Show what went through the gateway: costs and what they could be, changes, spending.",
    "history": "Show what was really said in a session, whatever its view has become.",
    "instructions": "Turn files of instructions into units that are recalled when they are needed.",
    "keys": "Make, list and revoke keys of the service.",
    "knowledge": "Harvest what sessions have taught, and show what new ones are told of it.",
    "learned": "Show what stored sessions have taught those that come after them.",
    "mcp": "Serve an agent's instructions, and skills, to any MCP client.",
    "rag": "Index the files of a project, and find passages in them that fit a question.",
    "recovery": "List known failures of stored sessions, and follow their recipes.",
    "replay": "Play recorded conversations under other plans, and compare what they cost.",
    "report": "Show what stored sessions spent, saved and lost, and what broke their caches.",
    "serve": "Serve a page, cache states and their controls, figures, instructions and the gateway over HTTP.",
    "sessions": "List, show and delete stored sessions.",
    "simulate": "Serve a provider simulator on a local port.",
    "skills": "List, check and show skills, and what a prompt says of them.",
}
"""Name and one line of help; `holdfast.cli.<name>` holds a click command called `command`."""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"holdfast.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            known = ", ".join(sorted(COMMANDS))
            raise click.UsageError(f"{error.message} Known commands: {known}.", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The help comes from the table above: loading every command for it would take a second.
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def command() -> None:
    """A context engine for LLM agents: it keeps the prompt cache warm, proves it, and prices every miss."""


def main() -> None:
    """Errors that were meant for the user become one line; everything else is a bug and keeps its traceback."""
    try:
        status = command.main(prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
        # What a command ends with by `Exit` comes back as its value.
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except HoldfastError as error:
        click.echo(f"holdfast: {visible(str(error))}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read our output has stopped; there is no one left to tell.
        _discard_output()
        sys.exit(1)
    except OSError as error:
        _discard_output()
        what = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        click.echo(f"holdfast: {visible(f'{what}{error.strerror or error}')}", err=True)
        sys.exit(1)


def _discard_output() -> None:
    """Keep the interpreter from trying once more, at its end, to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
