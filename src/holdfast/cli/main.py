"""Defines the `holdfast` command and loads each subcommand's module only when it runs."""

import importlib
import io
import os
import sys

import click

from holdfast import __version__
from holdfast.cli.format import replace_unprintable
from holdfast.errors import HoldfastError
from holdfast.redaction import redact_secrets

COMMANDS = {
    "audit": (
        "costs.audit",
        "Show where the money of your sessions went, whichever client made them, and what to do about it.",
    ),
    "certify": (
        "sessions.certify",
        "Rebuild every request of a stored session and check that its prefix never changed.",
    ),
    "chat": ("chat.command", "Chat with an agent that works in a folder, and see what each turn costs."),
    "compact": ("sessions.compact", "Compact a stored session, or show what compaction would remove, cost and save."),
    "connect": (
        "connect",
        "Point Claude Code, Codex, Gemini CLI, opencode or aider at the gateway, undo that, and check it.",
    ),
    "config": ("config", "Show the configuration and where each value comes from."),
    "curation": ("knowledge.curation", "Choose, by preset, which files are added to the context of sessions."),
    "db": ("db", "Inspect, check, rebuild, prune, export and import the store."),
    "demo": ("demo.command", "Run a cached multi-turn session against the simulator, offline."),
    "diff": ("requests:diff", "Show where one request breaks the cached prefix of another, and what that costs."),
    "doctor": ("requests:doctor", "Find what makes a prompt differ from run to run, in a function or a request file."),
    "explain": (
        "requests:explain",
        "Show the blocks and cache breakpoints of a request, and what a change to each block would cost.",
    ),
    "gateway": ("costs.gateway", "Show gateway traffic: costs and possible savings, rewritten requests, spending."),
    "history": (
        "sessions.sessions:history",
        "Show the original messages of a session, including those that were compacted.",
    ),
    "instructions": (
        "instructions.command",
        "Split instruction files into units that agents recall when they need them.",
    ),
    "keys": ("keys", "Create, list and revoke API keys of the service."),
    "knowledge": ("knowledge.harvest", "Extract knowledge from finished sessions, and show what new sessions receive."),
    "learned": ("costs.learned", "Show the cache parameters learned from stored sessions."),
    "mcp": ("mcp", "Serve an agent's instructions and skills to any MCP client."),
    "models": ("models", "List models with their cache floors, TTLs and prices, each with its source and date."),
    "rag": ("knowledge.rag", "Index the files of a project and search them for relevant passages."),
    "recovery": ("sessions.recovery", "List known failures of stored sessions and run their recovery recipes."),
    "replay": ("costs.replay", "Replay recorded conversations under other cache policies and compare their cost."),
    "report": (
        "costs.report",
        "Show where the money of stored sessions went, what was saved and lost, and what to do about it.",
    ),
    "serve": ("serve.command", "Serve the dashboard, the HTTP API and the gateway."),
    "sessions": ("sessions.sessions", "List, show and delete stored sessions."),
    "simulate": ("simulate", "Serve a provider simulator on a local port."),
    "skills": ("skills", "List, check and search skills, and show the skill index that a prompt contains."),
}
"""Command name -> (module, one line of help).

`holdfast.cli.<module>` defines the click `command`, or under another name the one after the colon.
"""


class LazyCommandGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"holdfast.cli.{module}"), name or "command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = ", ".join(sorted(COMMANDS))
            raise click.UsageError(f"{error.message} Known commands: {names}.", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The help texts come from COMMANDS: importing every command module just to list them takes a second.
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in sorted(COMMANDS.items())])


@click.group(cls=LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def command() -> None:
    """A context engine for LLM agents: it keeps the prompt cache warm, proves it, and prices every miss."""


def main() -> None:
    """Print errors meant for the user as one line; any other exception is a bug and keeps its traceback."""
    try:
        status = command.main(prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
        # With standalone_mode=False click returns the status of `Exit` instead of raising it.
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        # A usage error quotes what was typed.
        shown = io.StringIO()
        error.show(file=shown)
        click.echo(redact_secrets(shown.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    except HoldfastError as error:
        click.echo(f"holdfast: {replace_unprintable(str(error))}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of the pipe (such as `head`) has closed it: nobody would see a message.
        _discard_output()
        sys.exit(1)
    except OSError as error:
        _discard_output()
        path = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        click.echo(f"holdfast: {replace_unprintable(redact_secrets(f'{path}{error.strerror or error}'))}", err=True)
        sys.exit(1)


def _discard_output() -> None:
    """Point stdout at /dev/null, so that the interpreter's flush at exit does not fail a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
