"""`holdfast instructions hook`: prints an agent's boot stub and preloads when a runtime starts a session."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.format import format_file_change
from holdfast.cli.instructions.open import MISSING_PACKAGE_HINT, open_library
from holdfast.cli.mcp import KEY_VARIABLE
from holdfast.cli.options import db_option
from holdfast.errors import HoldfastError, UserError
from holdfast.redaction import REDACTION_MASK

if TYPE_CHECKING:
    from holdfast.runtime.instructions.hook import BootContext

AGENT_VARIABLE = "HOLDFAST_AGENT"
WAKE_TOKEN_VARIABLE = "HOLDFAST_WAKE_TOKEN"
SETTINGS_PATH = ".claude/settings.json"
INPUT_SECONDS_MAX = 5.0
SERVICE_SECONDS_MAX = 10.0
INSTALLED_OPTIONS = ("agent", "db", "url", "profile", "plain", "strict")
"""The options that `--install` writes into the hook's command, if they were given."""


class HookOptions(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    db: str | None
    url: str | None
    profile: str
    wake_token: str | None
    plain: bool
    strict: bool


class _Lenient(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Report a usage error of an installed hook on stderr only: it must not stop the session from starting."""
        arguments = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not {"--strict", "--install", "--uninstall"}.isdisjoint(arguments):
                raise
            click.echo(f"holdfast: {_one_line(error.format_message())}", err=True)
            _print_reply(None, plain="--plain" in arguments)
            ctx.exit(0)


@click.command("hook", cls=_Lenient)
@click.option(
    "--agent", default="main", envvar=AGENT_VARIABLE, show_default=True, show_envvar=True, help="Agent of the session."
)
@db_option
@click.option("--url", metavar="URL", help=f"Service that holds the instructions; its key is read from {KEY_VARIABLE}.")
@click.option("--profile", default="generic", show_default=True, help="Format of the boot stub.")
@click.option(
    "--wake-token", envvar=WAKE_TOKEN_VARIABLE, show_envvar=True, help="Signed token of the trigger; enables preloads."
)
@click.option("--plain", is_flag=True, help="Print only the text, for runtimes that use the output as it is.")
@click.option("--strict", is_flag=True, help="Exit with status 1 on an error instead of printing no instructions.")
@click.option("--install", is_flag=True, help="Install the hook in Claude Code's settings.")
@click.option("--uninstall", is_flag=True, help="Remove the hook from the settings.")
@click.option("--settings", metavar="FILE", default=SETTINGS_PATH, show_default=True, help="Settings file.")
@click.option("--dry-run", is_flag=True, help="Show what would change in the settings.")
@click.pass_context
def hook(
    ctx: click.Context,
    *,
    agent: str,
    db: str | None,
    url: str | None,
    profile: str,
    wake_token: str | None,
    plain: bool,
    strict: bool,
    install: bool,
    uninstall: bool,
    settings: str,
    dry_run: bool,
) -> None:
    """Read a session-start event from standard input and print the instructions that the agent starts with.

    These are the boot stub, one line per unit, and, given the signed token of a trigger, the units it requires. Nothing
    is printed for a resumed session, which has them already. Errors go to standard error, and the session still starts.
    """
    options = HookOptions(
        agent=agent, db=db, url=url, profile=profile, wake_token=wake_token or None, plain=plain, strict=strict
    )
    if install or uninstall:
        if install and uninstall:
            raise click.UsageError("--install or --uninstall, not both")
        _change_hook(_command(ctx, options) if install else None, Path(settings), dry_run=dry_run)
        return
    context = None
    try:
        if dry_run:
            raise UserError("--dry-run needs --install or --uninstall")
        context = _context(options)
    # Whatever fails, the runtime must get a valid reply, or the session would not start.
    except Exception as error:
        line = _error_line(error, hidden=(os.environ.get(KEY_VARIABLE), options.wake_token))
        if strict:
            raise UserError(line) from error
        click.echo(f"holdfast: {line}", err=True)
    _print_reply(context, plain=plain)


def _context(options: HookOptions) -> str | None:
    """The text for the agent; None for a resumed session, which has it already."""
    from holdfast.runtime.instructions.hook import (
        CONTEXT_CHARACTERS_WARN,
        CONTINUED_SOURCES,
        read_start_source,
        recall_instructions_text,
        render_boot_context,
    )

    source = read_start_source(read_standard_input(INPUT_SECONDS_MAX))
    if source in CONTINUED_SOURCES:
        return None
    start = _fetch_start(options, source)
    context = render_boot_context(start, recall_instructions_text(options.agent, db=options.db, url=options.url))
    if len(context) > CONTEXT_CHARACTERS_WARN:
        length = f"stub and preloads have {len(context)} characters"
        click.echo(f"holdfast: {length}; Claude Code shows only the start beyond {CONTEXT_CHARACTERS_WARN}", err=True)
    return context


def _fetch_start(options: HookOptions, source: str) -> "BootContext":
    """Fetch stub, entries and preloads; a used or expired wake token gives the stub without preloads.

    A token is valid once and for a short time, but the session it started may be resumed or restarted.
    """
    from holdfast.runtime.instructions.hook import RESTARTED_SOURCES

    fetch = _start_from_library if options.url is None else _start_from_service
    tolerated = {"wake_token_used", "wake_token_invalid"} if source in RESTARTED_SOURCES else set()
    tolerated |= set() if options.strict else {"wake_token_used"}
    try:
        return fetch(options)
    # InstructionError or ServiceError: both have a code, and only a hook that uses a service imports the latter.
    except UserError as error:
        if options.wake_token is None or getattr(error, "code", None) not in tolerated:
            raise
    click.echo("holdfast: the wake token is used or expired: the stub comes without preloads", err=True)
    return fetch(msgspec.structs.replace(options, wake_token=None))


def _start_from_library(options: HookOptions) -> "BootContext":
    from holdfast.runtime.instructions.hook import BootContext

    with open_library(options.db, writable=True) as library:
        beat = library.heartbeat(options.wake_token, agent=options.agent, profile=options.profile)
        return BootContext(beat.stub, library.entries(options.agent), beat.preloads)


def _start_from_service(options: HookOptions) -> "BootContext":
    from holdfast.runtime.instructions.client import InstructionClient
    from holdfast.runtime.instructions.hook import BootContext, check_service_address, manifest_entries

    key = os.environ.get(KEY_VARIABLE)
    if options.db is not None:
        raise UserError("instructions come from a store or a service: give --db or --url, not both")
    url = check_service_address(options.url or "")
    if not key:
        raise UserError(f"a service needs a key: set {KEY_VARIABLE}")
    client = InstructionClient(url, key=key, agent=options.agent, timeout_seconds=SERVICE_SECONDS_MAX)
    beat = client.heartbeat(options.wake_token, profile=options.profile)
    return BootContext(beat.stub, manifest_entries(client.manifest()), beat.preloads)


def read_standard_input(seconds_max: float) -> bytes:
    """Read stdin until its end, the size limit or the time limit; a terminal is not waited for."""
    import io
    import select

    from holdfast.runtime.instructions.hook import EVENT_BYTES_MAX

    if sys.stdin is None or sys.stdin.isatty():
        return b""
    try:
        number = sys.stdin.fileno()
    except io.UnsupportedOperation:
        return sys.stdin.buffer.read(EVENT_BYTES_MAX + 1)
    # A runtime may leave the pipe open without writing: a plain read() would then block the session's start.
    raw, until = b"", time.monotonic() + seconds_max
    while len(raw) <= EVENT_BYTES_MAX:
        ready, _, _ = select.select([number], [], [], max(0.0, until - time.monotonic()))
        more = os.read(number, 65_536) if ready else b""
        if not more:
            break
        raw += more
    return raw


def _print_reply(context: str | None, *, plain: bool) -> None:
    if context is None:
        # Without an import: the hook must answer even where the extra package is missing.
        click.echo("" if plain else "{}", nl=not plain)
        return
    from holdfast.runtime.instructions.hook import encode_hook_output

    # As bytes, so that the runtime's locale cannot change what its model reads.
    click.echo(context.encode() if plain else encode_hook_output(context), nl=not plain)


def _error_line(error: Exception, *, hidden: Sequence[str | None]) -> str:
    match error:
        case HoldfastError():
            line = str(error)
        case ImportError():
            line = MISSING_PACKAGE_HINT
        case _:
            line = f"the hook failed: {type(error).__name__}"
    # An error may quote the key or the token, and stderr often ends up in a log file.
    for secret in hidden:
        line = line.replace(secret, REDACTION_MASK) if secret else line
    return _one_line(line)


def _one_line(message: str) -> str:
    from holdfast.providers.errors import sanitize_message
    from holdfast.sources import files as text

    return text.to_one_line(sanitize_message(message).encode("utf-8", "replace"))


def _command(ctx: click.Context, options: HookOptions) -> str:
    """The shell command that a runtime starts: this program with the options given here."""
    from holdfast.runtime.instructions.hook import check_service_address
    from holdfast.stores.address import redact_address

    names = [
        name for name in INSTALLED_OPTIONS if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if ctx.get_parameter_source("wake_token") is click.core.ParameterSource.COMMANDLINE:
        raise UserError(
            f"a wake token is for one session, not for settings: set {WAKE_TOKEN_VARIABLE} where it is started"
        )
    if options.db is not None and redact_address(options.db) != options.db:
        raise UserError("do not put an address with a password or options into settings: set HOLDFAST_DB, not --db")
    if options.url is not None:
        check_service_address(options.url)
    words = [*program_words(), "instructions", "hook"]
    for name in names:
        value = getattr(options, name)
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)


def program_words() -> list[str]:
    """How a client starts this program."""
    # -P keeps the current folder off sys.path: a workspace must not be able to replace our modules by its own.
    return ["holdfast"] if shutil.which("holdfast") else [sys.executable, "-P", "-m", "holdfast"]


def _change_hook(command: str | None, path: Path, *, dry_run: bool) -> None:
    """Install the hook with this command; without one, remove it."""
    from functools import partial

    from holdfast.runtime.instructions.hook import add_hook, remove_hook
    from holdfast.sources.settings_file import edit_settings_file

    change = remove_hook if command is None else partial(add_hook, command=command)
    changed = edit_settings_file(path, change, write=not dry_run)
    if changed.is_unchanged:
        click.echo(f"{path}: " + ("the hook is not installed" if command is None else "the hook is already installed"))
    elif dry_run:
        click.echo(format_file_change(path, changed.before or "", changed.after), nl=False)
    else:
        click.echo(f"{path}: " + ("the hook is removed" if command is None else "the hook is installed"))
