"""Defines the `holdfast` command and loads each subcommand's module only when it runs."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast import __version__
from holdfast.cli.format import replace_unprintable
from holdfast.errors import HoldfastError
from holdfast.redaction import redact_secrets

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class CommandEntry(NamedTuple):
    """`holdfast.cli.<module>` defines the click `command`, or under another name the one after the colon."""

    module: str
    help_text: str
    example: str


GROUPS = {
    "See what was spent": {
        "audit": CommandEntry(
            "costs.audit",
            "Show where the money of your sessions went, whichever client made them, and what to do about it.",
            "holdfast audit --since 7d --html report.html",
        ),
        "report": CommandEntry(
            "costs.report",
            "Show where the money of stored sessions went, what was saved and lost, and what to do about it.",
            "holdfast report --since 7d",
        ),
        "gateway": CommandEntry(
            "costs.gateway",
            "Show gateway traffic: costs and possible savings, rewritten requests, spending.",
            "holdfast gateway costs --since 7d",
        ),
        "sessions": CommandEntry(
            "sessions.sessions", "List, show and delete stored sessions.", "holdfast sessions show 01M7P2"
        ),
        "models": CommandEntry(
            "models",
            "List models with their cache floors, TTLs and prices, each with its source and date.",
            "holdfast models --search sonnet",
        ),
    },
    "Find and fix what breaks the cache": {
        "doctor": CommandEntry(
            "requests:doctor",
            "Find what makes a prompt differ from run to run, in a function or a request file.",
            "holdfast doctor my_agent.prompts:build",
        ),
        "diff": CommandEntry(
            "requests:diff",
            "Show where one request breaks the cached prefix of another, and what that costs.",
            "holdfast diff first.json second.json",
        ),
        "explain": CommandEntry(
            "requests:explain",
            "Show the blocks and cache breakpoints of a request, and what a change to each block would cost.",
            "holdfast explain request.json",
        ),
        "connect": CommandEntry(
            "connect",
            "Point Claude Code, Codex, Gemini CLI, opencode or aider at the gateway, undo that, and check it.",
            "holdfast connect claude-code --write",
        ),
        "replay": CommandEntry(
            "costs.replay",
            "Replay recorded conversations under other cache policies and compare their cost.",
            "holdfast replay traces.jsonl --model anthropic:claude-sonnet-5-5",
        ),
        "learned": CommandEntry(
            "costs.learned", "Show the cache parameters learned from stored sessions.", "holdfast learned"
        ),
    },
    "Build an agent": {
        "chat": CommandEntry(
            "chat.command",
            "Chat with an agent that works in a folder, and see what each turn costs.",
            "holdfast chat --simulate",
        ),
        "skills": CommandEntry(
            "skills",
            "List, check and search skills, and show the skill index that a prompt contains.",
            "holdfast skills validate",
        ),
        "instructions": CommandEntry(
            "instructions.command",
            "Split instruction files into units that agents recall when they need them.",
            "holdfast instructions migrate AGENTS.md",
        ),
        "knowledge": CommandEntry(
            "knowledge.harvest",
            "Extract knowledge from finished sessions, and show what new sessions receive.",
            "holdfast knowledge harvest",
        ),
        "curation": CommandEntry(
            "knowledge.curation",
            "Choose, by preset, which files are added to the context of sessions.",
            "holdfast curation list",
        ),
        "rag": CommandEntry(
            "knowledge.rag",
            "Index the files of a project and search them for relevant passages.",
            "holdfast rag index",
        ),
    },
    "Test": {
        "demo": CommandEntry(
            "demo.command", "Run a cached multi-turn session against the simulator, offline.", "holdfast demo --keep"
        ),
        "simulate": CommandEntry("simulate", "Serve a provider simulator on a local port.", "holdfast simulate"),
        "certify": CommandEntry(
            "sessions.certify",
            "Rebuild every request of a stored session and check that its prefix never changed.",
            "holdfast certify 01M7P2",
        ),
    },
    "Serve": {
        "serve": CommandEntry(
            "serve.command", "Serve the dashboard, the HTTP API and the gateway.", "holdfast serve --improve"
        ),
        "keys": CommandEntry(
            "keys", "Create, list and revoke API keys of the service.", "holdfast keys create --scope admin"
        ),
        "mcp": CommandEntry(
            "mcp", "Serve an agent's instructions and skills to any MCP client.", "holdfast mcp --agent main"
        ),
    },
    "Look after the store and the set-up": {
        "db": CommandEntry(
            "db", "Inspect, check, rebuild, prune, export and import the store.", "holdfast db info --check"
        ),
        "history": CommandEntry(
            "sessions.sessions:history",
            "Show the original messages of a session, including those that were compacted.",
            "holdfast history 01M7P2",
        ),
        "compact": CommandEntry(
            "sessions.compact",
            "Compact a stored session, or show what compaction would remove, cost and save.",
            "holdfast compact 01M7P2 --dry-run",
        ),
        "recovery": CommandEntry(
            "sessions.recovery",
            "List known failures of stored sessions and run their recovery recipes.",
            "holdfast recovery list",
        ),
        "config": CommandEntry("config", "Show the configuration and where each value comes from.", "holdfast config"),
        "completion": CommandEntry(
            "completion",
            "Print or install the completion of commands and options for your shell.",
            "holdfast completion bash --install",
        ),
    },
}
"""What people want -> the commands for it. The first command of a group is its example in `holdfast --help`."""

COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


class LazyCommandGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        entry = COMMANDS[cmd_name]
        module, _, name = entry.module.partition(":")
        command = getattr(importlib.import_module(f"holdfast.cli.{module}"), name or "command")
        assert isinstance(command, click.Command)
        # `\b` keeps the line breaks.
        command.epilog = f"\b\nExample:\n  {entry.example}"
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        # click would import every command module for its help text, with each press of Tab.
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=entry.help_text)
            for name, entry in sorted(COMMANDS.items())
            if name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            similar = get_close_matches(args[0], COMMANDS)
            known = f"Did you mean '{similar[0]}'?" if similar else f"Known commands: {', '.join(sorted(COMMANDS))}."
            raise click.UsageError(f"{error.message} {known}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The help texts come from GROUPS: importing every command module just to list them takes a second.
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help_text) for name, entry in commands.items()])
                formatter.write_text(f"Example: {next(iter(commands.values())).example}")


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
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _print_error(_describe_click_error(error))
        sys.exit(error.exit_code)
    except HoldfastError as error:
        from holdfast.cli.options import OptionValueError

        _print_error(f"holdfast: {error}")
        sys.exit(2 if isinstance(error, OptionValueError) else 1)
    except BrokenPipeError:
        # The reader of the pipe (such as `head`) has closed it: nobody would see a message.
        _discard_output()
        sys.exit(1)
    except OSError as error:
        _discard_output()
        path = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        _print_error(f"holdfast: {path}{error.strerror or error}")
        sys.exit(1)


def _describe_click_error(error: click.ClickException) -> str:
    """The message in one line; click would print the usage and a hint on lines of their own."""
    message = " ".join(error.format_message().split())
    if not isinstance(error, click.UsageError):
        return f"holdfast: {message}"
    path = error.ctx.command_path if error.ctx else _find_command_path(sys.argv[1:])
    return f"{path}: {message}{'' if message[-1:] in '.?' else '.'} See `{path} --help`."


def _find_command_path(words: Sequence[str]) -> str:
    """The commands that a command line names: click does not say whose option lacks its value."""
    path = "holdfast"
    found: click.Command = command
    for word in words:
        child = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
        if child is None:
            break
        path, found = f"{path} {word}", child
    return path


def _print_error(line: str) -> None:
    """Print the line on stderr; it may quote what was typed, a name from outside, or a key."""
    click.echo(replace_unprintable(redact_secrets(line)), err=True)


def _discard_output() -> None:
    """Point stdout at /dev/null, so that the interpreter's flush at exit does not fail a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
