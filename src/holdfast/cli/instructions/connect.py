"""`holdfast instructions connect`: gives a client an agent's instructions, checks that it gets them, and undoes it."""

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.format import format_file_change, print_json
from holdfast.cli.instructions.hook import program_words
from holdfast.cli.instructions.open import open_library
from holdfast.cli.open_store import resolve_store_address
from holdfast.cli.options import db_option, json_option
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.runtime.instructions.connect import ConnectedFile, RuntimeCommands
    from holdfast.sources.settings_file import SettingsChange

AGENTS_MD = "agents-md"
CLIENTS = ("claude-code", "codex", "gemini", "cursor", "opencode", AGENTS_MD)
CHECK_SECONDS_MAX = 60.0
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "holdfast-connect", "version": "1"},
    },
}


@click.command("connect")
@click.argument("client", type=click.Choice(CLIENTS))
@click.option("--undo", is_flag=True, help="Remove what connect has written.")
@click.option("--dry-run", is_flag=True, help="Show what would change.")
@click.option("--agent", default="main", show_default=True, help="Agent whose instructions the client gets.")
@db_option
@click.option("--out", metavar="FILE", default="AGENTS.md", show_default=True, help="File that agents-md writes.")
@json_option
def connect(*, client: str, undo: bool, dry_run: bool, agent: str, db: str | None, out: str, as_json: bool) -> None:
    """Connect CLIENT to an agent's instructions, in the settings of this folder, and show what the agent will see.

    Claude Code gets a hook that adds boot stub and index when a session starts; it and the others get the MCP server,
    whose tools recall units. agents-md writes a short AGENTS.md for agents that read only that: rules, index, and the
    command that recalls. Everything else in a settings file stays as it is.
    """
    from holdfast.runtime.instructions.connect import connected_files, put_agents_block
    from holdfast.sources.settings_file import edit_settings_file, remove_settings_file

    shown = "" if undo else _describe(agent, db)
    commands = _commands(agent, db)
    if client == AGENTS_MD:
        block = None if undo else _agents_block(agent, db)
        changes = {Path(out): edit_settings_file(Path(out), partial(put_agents_block, block=block), write=not dry_run)}
        files: tuple[ConnectedFile, ...] = ()
    else:
        files = connected_files(client, commands, folder=Path.cwd(), environ=os.environ)
        for file in files if not (undo or dry_run) else ():
            file.path.parent.mkdir(parents=True, exist_ok=True)
        changes = {
            file.path: edit_settings_file(file.path, file.disconnect if undo else file.connect, write=not dry_run)
            for file in files
        }
    if undo and not dry_run:
        for path, change in changes.items():
            # Nothing but our entries was in it.
            if not change.is_unchanged and change.after.strip() in ("", "{}"):
                remove_settings_file(path, change.after)
    checks = {} if undo or dry_run else _check(client, commands, shown)
    if as_json:
        report = {str(path): not change.is_unchanged for path, change in changes.items()}
        print_json({"client": client, "changed": report, "checks": checks, "agent_sees": shown})
        return
    for path, change in changes.items():
        _print_change(path, change, files, undo=undo, dry_run=dry_run)
    for name, result in checks.items():
        click.echo(f"checked: {name}: {result}")
    if not (undo or dry_run):
        click.echo(f"\nthe agent will see:\n\n{shown}")


def _print_change(
    path: Path, change: "SettingsChange", files: "tuple[ConnectedFile, ...]", *, undo: bool, dry_run: bool
) -> None:
    if dry_run:
        click.echo(format_file_change(path, change.before or "", change.after), nl=False)
        return
    what = next((file.what for file in files if file.path == path), "short instructions")
    try:
        name = path.relative_to(Path.cwd())
    except ValueError:
        name = path
    state = "unchanged" if change.is_unchanged else "removed" if undo else "written"
    click.echo(f"{name}: {what}, {state}")


def _commands(agent: str, db: str | None) -> "RuntimeCommands":
    from holdfast.runtime.instructions.connect import RuntimeCommands
    from holdfast.stores.address import redact_address

    if db is not None and redact_address(db) != db:
        raise UserError("do not put an address with a password or options into settings: set HOLDFAST_DB, not --db")
    address, exists = resolve_store_address(db or None)
    if not exists:
        raise UserError(f"there is no store at {address!r}; check the path, or publish something first")
    # The client starts in another folder: only an absolute path means the same there.
    where = () if db is None else ("--db", db if "://" in db else str(Path(db).resolve()))
    own = ("--agent", agent) if agent != "main" else ()
    program = tuple(program_words())
    return RuntimeCommands((*program, "instructions", "hook", *own, *where), (*program, "mcp", *own, *where))


def _describe(agent: str, db: str | None) -> str:
    """What the hook adds to a session, and the MCP server to its instructions."""
    from holdfast.runtime.instructions.hook import BootContext, recall_instructions_text, render_boot_context

    with open_library(db, writable=True) as library:
        beat = library.heartbeat(agent=agent)
        start = BootContext(beat.stub, library.entries(agent), beat.preloads)
    return render_boot_context(start, recall_instructions_text(agent, db=db))


def _agents_block(agent: str, db: str | None) -> str:
    from holdfast.runtime.instructions.connect import render_agents_file
    from holdfast.runtime.instructions.hook import recall_instructions_text

    with open_library(db, writable=True) as library:
        recalling = recall_instructions_text(agent, db=db, has_tool=False)
        return render_agents_file(library.heartbeat(agent=agent).stub, library.entries(agent), recalling)


def _check(client: str, commands: "RuntimeCommands", shown: str) -> dict[str, str]:
    """Start what the client will start, and compare what it would get. Raises UserError if something is missing."""
    from holdfast.runtime.instructions.connect import NO_STUB

    if client == AGENTS_MD:
        return {}
    checks = {}
    if client == "claude-code":
        event = msgspec.json.encode({"hook_event_name": "SessionStart", "source": "startup"})
        output = _run(commands.hook, event)
        if msgspec.json.encode(shown) not in output:
            raise UserError(f"the hook does not print the instructions: {output[:300].decode('utf-8', 'replace')!r}")
        checks["hook"] = "prints the boot stub and the index"
    has_stub = client != "claude-code"
    words = commands.server if has_stub else (*commands.server, NO_STUB)
    answer = _run(words, msgspec.json.encode(_INITIALIZE) + b"\n")
    first = answer.split(b"\n", 1)[0]
    if b'"instructions"' not in first:
        raise UserError(f"the MCP server does not answer with instructions: {first[:300].decode('utf-8', 'replace')!r}")
    carries = "its instructions have the boot stub and the index"
    checks["MCP server"] = f"answers, and {carries if has_stub else 'leaves the boot stub and the index to the hook'}"
    return checks


def _run(words: tuple[str, ...], data: bytes) -> bytes:
    try:
        run = subprocess.run(list(words), input=data, capture_output=True, timeout=CHECK_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{words[0]} cannot be run: {type(error).__name__}") from error
    if run.returncode:
        lines = run.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UserError(f"`{' '.join(words)}` failed: {lines[-1][:300] if lines else run.returncode}")
    return run.stdout
