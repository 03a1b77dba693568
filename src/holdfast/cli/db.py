"""`holdfast db`: what the store holds, whether its tables are right, what is old, and how events come and go."""

from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import click

from holdfast.cli.counts import counted
from holdfast.cli.groups import Group
from holdfast.cli.stores import configured_models, found_session, open_configured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.events.log import SessionRow
    from holdfast.stores.database import DatabaseLog, Facts

DAY_SECONDS = 86_400


@click.group("db", cls=Group)
def command() -> None:
    """Look at the store, check and rebuild its tables, prune it, export and import events."""


_db = click.option("--db", help="Store to use instead of the configured one.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@command.command("info")
@_db
@_json
@click.option(
    "--check", is_flag=True, help="Compare the tables with the events, all of them; end with 1 if they differ."
)
def info(db: str | None, as_json: bool, check: bool) -> None:
    """What the store is and holds."""
    import msgspec

    from holdfast.stores.checking import differences

    with _database(db) as log:
        if check:
            _catch_up(log)
        facts = log.facts()
        wrong = tuple(differences(log, configured_models())) if check else None
    if as_json:
        fields = {name: getattr(facts, name) for name in facts.__struct_fields__}
        told = fields if wrong is None else {**fields, "differences": wrong}
        click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        for name, value in _told(facts):
            click.echo(f"{name:<9} {value}")
        if wrong is not None:
            _show_check(wrong)
    if wrong:
        raise click.exceptions.Exit(1)


def _told(facts: "Facts") -> "Iterator[tuple[str, str]]":
    from holdfast.stores.shown import shown

    yield "store", shown(facts.name)
    yield "version", str(facts.version)
    yield "size", f"{facts.size_bytes / 1_000_000:,.1f} MB"
    yield "sessions", f"{facts.sessions:,}"
    yield "events", f"{facts.events:,}"
    yield (
        "calls",
        f"{facts.calls:,}" + (f", and {counted(facts.to_enter, 'session')} to enter" if facts.to_enter else ""),
    )
    if facts.oldest_at is not None and facts.newest_at is not None:
        yield "from", _time(facts.oldest_at)
        yield "to", _time(facts.newest_at)


def _show_check(wrong: tuple[str, ...]) -> None:
    if not wrong:
        click.echo("check     the tables are what the events add up to")
        return
    click.echo(
        f"check     {len(wrong)} tables are not what the events add up to; `holdfast db rebuild` makes them anew:"
    )
    for one in wrong[:10]:
        click.echo(f"          {one}")
    if len(wrong) > 10:
        click.echo(f"          and {len(wrong) - 10} more; --json has all")


@command.command("migrate")
@_db
def migrate(db: str | None) -> None:
    """Bring a store of an older version forward, and its tables up to date."""
    with _database(db) as log:
        entered = _catch_up(log)
        click.echo(f"version {log.facts().version}; {counted(entered, 'session')} entered into the tables")


@command.command("rebuild")
@_db
def rebuild(db: str | None) -> None:
    """Make the tables anew from the events.

    Until it is done sums are too small. If it is stopped, whatever asks for a sum next goes on with it.
    """
    with _database(db) as log:
        log.rebuild()
        click.echo(f"{counted(_catch_up(log), 'session')} entered into the tables")


@command.command("prune")
@_db
@click.option("--older-than", metavar="90d|12w|DATE", help="Sessions without an event since; else `retention_days`.")
@click.option("--audit-too", is_flag=True, help="Remove whole sessions, with what they cost and who allowed what.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and keep it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(*, db: str | None, older_than: str | None, audit_too: bool, dry_run: bool, yes: bool) -> None:
    """Remove what was said in old sessions, for good; what they cost and who allowed what stays.

    Prompts, replies, tool results, plans and verdicts go. What stays of a session are its start and end, its calls and
    what they cost, caches and pings, delegations, model switches, tool calls by name and hash, and what was confirmed.
    """
    from holdfast.cli.progress import with_progress
    from holdfast.stores.retention import AUDIT_TYPES

    before = _cutoff(older_than)
    kept = () if audit_too else AUDIT_TYPES
    with _database(db) as log:
        old = log.prunable(kept or ("",), before=before)
        count = sum(events for _, events in old)
        what = f"{counted(count, 'event')} of {counted(len(old), 'session')} without an event since {_time(before)}"
        if not old:
            click.echo(f"nothing to remove: no session is older than {_time(before)}")
            return
        if not audit_too:
            click.echo("What they cost stays; what was said goes, and with it how their calls were judged.")
        if dry_run:
            click.echo(f"would remove {what}")
            return
        if not yes:
            click.confirm(f"Remove {what} for good?", abort=True)
        gone = 0
        for session_id, _ in with_progress(old, "sessions", len(old)):
            gone += log.prune(session_id, kept or ("",), before=before)
        click.echo(f"removed {counted(gone, 'event')} of {counted(len(old), 'session')}")


def _cutoff(older_than: str | None) -> float:
    import os
    from pathlib import Path

    from holdfast.cli.report import seconds_of
    from holdfast.clock import system_clock
    from holdfast.errors import UserError
    from holdfast.runtime.config import load_config

    now = system_clock()
    if older_than is not None:
        return seconds_of(older_than, now, option="--older-than")
    days = load_config(os.environ, workspace=Path.cwd()).retention_days
    if not days:
        raise UserError("nothing says how old is old: give --older-than 90d, or set retention_days in the home file")
    return now - days * DAY_SECONDS


@command.command("export")
@click.argument("file", default="-")
@_db
@click.option("--session", "wanted", metavar="ID", help="Only this session.")
@click.option("--since", metavar="7d|12h|DATE", help="Only sessions with an event since then, each of them whole.")
@click.option("--content", is_flag=True, help="With all that was said; only such a file can be imported.")
@click.option("--instructions", is_flag=True, help="With what agents are told, for a store of the same deployment.")
def export(
    *, file: str, db: str | None, wanted: str | None, since: str | None, content: bool, instructions: bool
) -> None:
    """Write events as lines of JSON to FILE, or to standard output.

    Without --content messages, system prompts, tool results, names and paths are left out. Keys are never in it.
    """
    import sys

    from holdfast.cli.db_instructions import exporting_deployment
    from holdfast.clock import system_clock
    from holdfast.stores.transfer import exported

    now = system_clock()
    with open_configured(db) as log:
        deployment = exporting_deployment(log, content=content) if instructions else None
        rows = _chosen(log.sessions(), found_session(log, wanted) if wanted else None, since, now)
        lines = exported(log, _with_count(rows), content=content, now=now, deployment=deployment)
        if file == "-":
            for line in lines:
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return
        _write_new(file, lines)
    told = f"{counted(len(rows), 'session')}" + (" and what agents are told" if instructions else "")
    click.echo(f"exported {told} to {file}" + ("" if content else ", without what was said"), err=True)


def _chosen(rows: "tuple[SessionRow, ...]", wanted: str | None, since: str | None, now: float) -> "list[SessionRow]":
    """Oldest activity first."""
    from holdfast.cli.report import seconds_of
    from holdfast.errors import UserError

    start = seconds_of(since, now) if since else float("-inf")
    chosen = [row for row in reversed(rows) if row.last_event_at >= start and wanted in (None, row.id)]
    if wanted is not None and not chosen:
        raise UserError(f"there is no session {wanted!r} in that time; `holdfast sessions list` shows all")
    return chosen


def _with_count(rows: "list[SessionRow]") -> "Iterator[str]":
    from holdfast.cli.progress import with_progress

    return (row.id for row in with_progress(rows, "sessions", len(rows)))


def _write_new(file: str, lines: "Iterator[bytes]") -> None:
    """Only its owner may read what is written; a file that is there is left alone."""
    import os

    from holdfast.errors import UserError

    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UserError(f"{file} is there already: name another file, or remove it") from error
    except ValueError as error:
        raise UserError(f"{file!a} cannot be a file's name: name another") from error
    with os.fdopen(descriptor, "wb") as out:
        out.writelines(lines)


@command.command("import")
@click.argument("file", type=click.File("rb"))
@_db
def import_events(file: IO[bytes], db: str | None) -> None:
    """Add the events of an export to the store; what is there already is left alone.

    A session comes whole or not at all, and so do an agent's instructions, if they are of this deployment. After a
    failure the same command goes on where it stopped.
    """
    import contextlib
    import os
    from pathlib import Path

    from holdfast.cli.db_instructions import OwnersTold, check_deployment, intake_of
    from holdfast.cli.progress import with_progress
    from holdfast.runtime.config import load_config
    from holdfast.stores.open import open_store
    from holdfast.stores.transfer import Imported, check_header, imported

    deployment = check_header(file, file.name).deployment
    if deployment is not None:
        check_deployment(deployment, file.name)
    address = db or load_config(os.environ, workspace=Path.cwd()).db_path
    sessions = added = known = 0
    owners = OwnersTold()
    try:
        with contextlib.closing(open_store(address, models=configured_models())) as log:
            intake = intake_of(log) if deployment is not None else None
            for one in with_progress(imported(file, log, file.name, intake), "sessions"):
                if isinstance(one, Imported):
                    sessions, added, known = sessions + 1, added + one.added, known + one.known
                else:
                    owners.add(one)
    finally:
        for line in owners.lines():
            click.echo(line)
        if sessions:
            click.echo(f"{counted(sessions, 'session')}: {counted(added, 'event')} added, {known:,} were there")


@contextmanager
def _database(db: str | None) -> "Iterator[DatabaseLog]":
    from holdfast.errors import UserError
    from holdfast.stores.database import DatabaseLog

    with open_configured(db) as log:
        if not isinstance(log, DatabaseLog):
            raise UserError("there is no store yet; `holdfast demo --keep` makes one, --db names another")
        yield log


def _catch_up(log: "DatabaseLog") -> int:
    from holdfast.cli.progress import with_progress

    entered = 0
    for session_id in with_progress(log.to_enter(), "sessions", log.facts().to_enter):
        log.enter(session_id)
        entered += 1
    return entered


def _time(at: float) -> str:
    import datetime

    try:
        return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"second {at:g}"
