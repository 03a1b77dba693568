"""`holdfast instructions hook`: what a runtime starts when a session does, and what it tells the agent."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.instructions_opened import db_option, opened
from holdfast.cli.mcp import KEY
from holdfast.errors import HoldfastError, UserError

if TYPE_CHECKING:
    from holdfast.runtime.session_start import Told

AGENT = "HOLDFAST_AGENT"
WAKE_TOKEN = "HOLDFAST_WAKE_TOKEN"
SETTINGS = ".claude/settings.json"
INPUT_SECONDS_MAX = 5.0
SERVICE_SECONDS_MAX = 10.0
WRITTEN = ("agent", "db", "url", "profile", "plain", "strict")
"""Which options an installed hook is started with, where they were given."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    db: str | None
    url: str | None
    profile: str
    wake_token: str | None
    plain: bool
    strict: bool


class _Lenient(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A hook that is set wrongly says so and keeps no session from starting; who types sees the usage."""
        given = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not {"--strict", "--install", "--uninstall"}.isdisjoint(given):
                raise
            click.echo(f"holdfast: {_one_line(error.format_message())}", err=True)
            _answer(None, plain="--plain" in given)
            ctx.exit(0)


@click.command("hook", cls=_Lenient)
@click.option("--agent", default="main", envvar=AGENT, show_default=True, show_envvar=True, help="Whose session it is.")
@db_option
@click.option("--url", metavar="URL", help=f"Service that keeps the instructions; the key is in {KEY}.")
@click.option("--profile", default="generic", show_default=True, help="How the stub is told.")
@click.option("--wake-token", envvar=WAKE_TOKEN, show_envvar=True, help="Signed token of the trigger, for preloads.")
@click.option("--plain", is_flag=True, help="Print the text alone, for runtimes that take what is printed.")
@click.option("--strict", is_flag=True, help="End with 1 where something is wrong, instead of telling nothing.")
@click.option("--install", is_flag=True, help="Set the hook in the settings of Claude Code.")
@click.option("--uninstall", is_flag=True, help="Take it out of them again.")
@click.option("--settings", metavar="FILE", default=SETTINGS, show_default=True, help="Which settings.")
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
    """Read the event of a session's start from standard input, and print what its agent is told first.

    That is the boot stub, a line for each unit, and, by the signed token of a trigger, the units that it requires.
    A session that is resumed has been told. Whatever goes wrong is a line on standard error, and the session starts.
    """
    asked = Asked(
        agent=agent, db=db, url=url, profile=profile, wake_token=wake_token or None, plain=plain, strict=strict
    )
    if install or uninstall:
        if install and uninstall:
            raise click.UsageError("--install or --uninstall, not both")
        _set_hook(_command(ctx, asked) if install else None, Path(settings), dry_run=dry_run)
        return
    context = None
    try:
        if dry_run:
            raise UserError("--dry-run goes with --install or --uninstall")
        context = _context(asked)
    except Exception as error:
        line = _reason(error, hidden=(os.environ.get(KEY), asked.wake_token))
        if strict:
            raise UserError(line) from error
        click.echo(f"holdfast: {line}", err=True)
    _answer(context, plain=plain)


def _context(asked: Asked) -> str | None:
    """None for a session that has it already."""
    from holdfast.runtime.session_start import (
        CONTEXT_CHARACTERS_WARN,
        GOING_ON,
        context_of,
        how_to_recall,
        read_source,
    )

    source = read_source(standard_input(INPUT_SECONDS_MAX))
    if source in GOING_ON:
        return None
    told = _told(asked, source)
    context = context_of(told, how_to_recall(asked.agent, db=asked.db, url=asked.url))
    if len(context) > CONTEXT_CHARACTERS_WARN:
        long = f"stub and preloads have {len(context)} characters; of more than {CONTEXT_CHARACTERS_WARN}"
        click.echo(f"holdfast: {long} Claude Code shows the start alone", err=True)
    return context


def _told(asked: Asked, source: str) -> "Told":
    """A token counts once and not for long: what it has begun goes on, or begins again, without the preloads."""
    from holdfast.instructions.failures import InstructionError
    from holdfast.runtime.instruction_client import ServiceError
    from holdfast.runtime.session_start import BEGUN_AGAIN

    ask = _ask_library if asked.url is None else _ask_service
    spent = {"wake_token_used", "wake_token_invalid"} if source in BEGUN_AGAIN else set()
    spent |= set() if asked.strict else {"wake_token_used"}
    try:
        return ask(asked)
    except (InstructionError, ServiceError) as error:
        if asked.wake_token is None or error.code not in spent:
            raise
    click.echo("holdfast: the wake token was used or is over: the stub is told without preloads", err=True)
    return ask(msgspec.structs.replace(asked, wake_token=None))


def _ask_library(asked: Asked) -> "Told":
    from holdfast.runtime.session_start import Told

    with opened(asked.db) as library:
        beat = library.heartbeat(asked.wake_token, agent=asked.agent, profile=asked.profile)
        return Told(beat.stub, library.entries(asked.agent), beat.preloads)


def _ask_service(asked: Asked) -> "Told":
    from holdfast.runtime.instruction_client import InstructionClient
    from holdfast.runtime.session_start import Told, listed_entries, service_address

    key = os.environ.get(KEY)
    if asked.db is not None:
        raise UserError("instructions come from a store or from a service: --db or --url, not both")
    if not key:
        raise UserError(f"a service needs a key: set {KEY}")
    url = service_address(asked.url or "")
    client = InstructionClient(url, key=key, agent=asked.agent, timeout_seconds=SERVICE_SECONDS_MAX)
    beat = client.heartbeat(asked.wake_token, profile=asked.profile)
    return Told(beat.stub, listed_entries(client.manifest()), beat.preloads)


def standard_input(seconds_max: float) -> bytes:
    """What is there until it ends, is too much, or is not there in time; of a terminal nothing is awaited."""
    import io
    import select
    import time

    from holdfast.runtime.session_start import EVENT_BYTES_MAX

    if sys.stdin is None or sys.stdin.isatty():
        return b""
    try:
        number = sys.stdin.fileno()
    except io.UnsupportedOperation:
        return sys.stdin.buffer.read(EVENT_BYTES_MAX + 1)
    raw, until = b"", time.monotonic() + seconds_max
    while len(raw) <= EVENT_BYTES_MAX:
        ready, _, _ = select.select([number], [], [], max(0.0, until - time.monotonic()))
        more = os.read(number, 65_536) if ready else b""
        if not more:
            break
        raw += more
    return raw


def _answer(context: str | None, *, plain: bool) -> None:
    from holdfast.runtime.session_start import hook_reply

    # As bytes: the locale of a runtime has no say in what its model reads.
    if not plain:
        click.echo(hook_reply(context))
    elif context is not None:
        click.echo(context.encode(), nl=False)


def _reason(error: Exception, *, hidden: Sequence[str | None]) -> str:
    match error:
        case HoldfastError():
            line = str(error)
        case ImportError():
            line = "instructions need their package: pip install 'holdfast[instructions]'"
        case _:
            line = f"the hook failed: {type(error).__name__}"
    for secret in hidden:
        line = line.replace(secret, "[removed]") if secret else line
    return _one_line(line)


def _one_line(message: str) -> str:
    from holdfast.providers.failures import one_line
    from holdfast.sources import text

    return text.one_line(one_line(message).encode("utf-8", "replace"))


def _command(ctx: click.Context, asked: Asked) -> str:
    """What a runtime starts: our program, and the options that were given here."""
    import shutil

    from holdfast.runtime.session_start import service_address
    from holdfast.stores.shown import shown

    given = [name for name in WRITTEN if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if ctx.get_parameter_source("wake_token") is click.core.ParameterSource.COMMANDLINE:
        raise UserError(f"a wake token is for one session, and not for settings: set {WAKE_TOKEN} where it is started")
    if asked.db is not None and shown(asked.db) != asked.db:
        raise UserError("an address with a password or options is not for settings: set HOLDFAST_DB instead of --db")
    if asked.url is not None:
        service_address(asked.url)
    words = ["holdfast"] if shutil.which("holdfast") else [sys.executable, "-P", "-m", "holdfast"]
    words += ["instructions", "hook"]
    for name in given:
        value = getattr(asked, name)
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)


def _set_hook(command: str | None, path: Path, *, dry_run: bool) -> None:
    """Without a command it is taken out."""
    from functools import partial

    from holdfast.runtime.hook_settings import change_settings, with_hook, without_hook

    change = without_hook if command is None else partial(with_hook, command=command)
    changed = change_settings(path, change, write=not dry_run)
    if changed.is_same:
        click.echo(f"{path}: " + ("there is no hook of ours" if command is None else "the hook is set already"))
    elif dry_run:
        click.echo(_difference(path, changed.before or "", changed.after), nl=False)
    else:
        click.echo(f"{path}: " + ("the hook is taken out" if command is None else "the hook is set"))


def _difference(path: Path, before: str, after: str) -> str:
    import difflib

    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), str(path), str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
