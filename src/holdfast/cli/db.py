"""`holdfast db`: inspects, checks, rebuilds, prunes, exports and imports the store."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from holdfast.cli.format import CommandGroup, format_count, format_local_time, print_json, track_progress
from holdfast.cli.instructions.open import explain_missing_package
from holdfast.cli.open_store import (
    load_configured_models,
    open_configured_store,
    open_store_with_records,
    resolve_session_id,
)
from holdfast.cli.options import db_option, json_option, parse_time_option
from holdfast.clock import system_clock
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.events.log import SessionRow
    from holdfast.runtime.instructions.settings import InstructionConfig
    from holdfast.stores.event_log import DatabaseEventLog, StoreFacts
    from holdfast.stores.instructions.transfer import ImportedOwner, OwnerImporter
    from holdfast.stores.migrate import MigrationMode
    from holdfast.stores.open import Store

DAY_SECONDS = 86_400


@click.group("db", cls=CommandGroup)
def command() -> None:
    """Inspect the store, check and rebuild its roll-up tables, prune it, export and import events."""


@command.command("info")
@db_option
@json_option
@click.option(
    "--check", is_flag=True, help="Compare the roll-up tables with all events; exit with status 1 if they differ."
)
def show_store_info(db: str | None, as_json: bool, check: bool) -> None:
    """Show the store's version, size and contents."""
    from holdfast.stores.maintenance import find_differences

    with _open_database(db) as log:
        facts = log.read_facts()
        mismatches = tuple(find_differences(log, load_configured_models())) if check else None
    if as_json:
        fields = {name: getattr(facts, name) for name in facts.__struct_fields__}
        print_json(fields if mismatches is None else {**fields, "differences": mismatches})
    else:
        for name, value in _fact_rows(facts):
            click.echo(f"{name:<9} {value}")
        if mismatches is not None:
            _show_check(mismatches)
    if mismatches:
        raise click.exceptions.Exit(1)


def _fact_rows(facts: "StoreFacts") -> "Iterator[tuple[str, str]]":
    from holdfast.stores.address import redact_address

    yield "store", redact_address(facts.name)
    yield "version", str(facts.version)
    yield "size", f"{facts.size_bytes / 1_000_000:,.1f} MB"
    yield "sessions", f"{facts.sessions:,}"
    yield "events", f"{facts.events:,}"
    pending = format_count(facts.pending_sessions, "session")
    yield "calls", f"{facts.calls:,}" + (f", and {pending} not rolled up yet" if facts.pending_sessions else "")
    if facts.oldest_at is not None and facts.newest_at is not None:
        yield "from", format_local_time(facts.oldest_at)
        yield "to", format_local_time(facts.newest_at)


def _show_check(mismatches: tuple[str, ...]) -> None:
    if not mismatches:
        click.echo("check     the roll-up tables match the events")
        return
    click.echo(
        f"check     {len(mismatches)} roll-up tables do not match the events; `holdfast db rebuild` recomputes them:"
    )
    for mismatch in mismatches[:10]:
        click.echo(f"          {mismatch}")
    if len(mismatches) > 10:
        click.echo(f"          and {len(mismatches) - 10} more; --json has all")


@command.command("migrate")
@db_option
@click.option("--irreversible", is_flag=True, help="Also run migrations that remove something for good.")
def migrate_store(*, db: str | None, irreversible: bool) -> None:
    """Migrate an older store to the current version and update its roll-up tables.

    On PostgreSQL nothing else does: a program that needs a newer schema refuses to start. Migrations only add, so
    programs of the version before go on working.
    """
    with _open_database(db, writable=True, migration_mode="irreversible" if irreversible else "migrate") as log:
        entered = _catch_up(log)
        click.echo(f"version {log.read_facts().version}; {format_count(entered, 'session')} rolled up")


@command.command("rebuild")
@db_option
def rebuild_store(db: str | None) -> None:
    """Recompute the roll-up tables from the events.

    Totals are too small until it is done. If it is interrupted, the next command that needs a total continues it.
    """
    with _open_database(db, writable=True) as log:
        log.clear_tables()
        click.echo(f"{format_count(_catch_up(log), 'session')} rolled up")


@command.command("prune")
@db_option
@click.option(
    "--older-than",
    metavar="90d|12w|DATE",
    help="Prune sessions without an event since then. Default: `retention_days`.",
)
@click.option("--audit-too", is_flag=True, help="Remove whole sessions, with their costs and confirmations.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def prune_store(*, db: str | None, older_than: str | None, audit_too: bool, dry_run: bool, yes: bool) -> None:
    """Remove the content of old sessions for good, but keep their costs and confirmations.

    Removed: prompts, replies, tool results, plans and verdicts. Kept: the start and end of a session, its calls and
    their cost, caches and pings, delegations, model switches, tool calls by name and hash, and confirmations.
    """
    from holdfast.stores.maintenance import RETAINED_EVENT_TYPES

    before = _prune_before(older_than)
    # Passed as ("",) if empty: the SQL needs at least one value in its list, and no event has an empty type.
    kept_types = () if audit_too else RETAINED_EVENT_TYPES
    with _open_database(db, writable=not dry_run) as log:
        old = log.list_prunable(kept_types or ("",), before=before)
        count = sum(events for _, events in old)
        events_text = f"{format_count(count, 'event')} of {format_count(len(old), 'session')}"
        what = f"{events_text} without an event since {format_local_time(before)}"
        if not old:
            click.echo(f"nothing to remove: no session is older than {format_local_time(before)}")
            return
        if not audit_too:
            click.echo("Costs and confirmations are kept; content and the verdicts on calls are removed.")
        if dry_run:
            click.echo(f"would remove {what}")
            return
        if not yes:
            click.confirm(f"Remove {what} for good?", abort=True)
        removed = log.clear_partitions(kept_types, before=before)
        for session_id, _ in track_progress(old, "sessions", len(old)):
            removed += log.prune(session_id, kept_types or ("",), before=before)
        log.drop_empty_partitions(before=before)
        click.echo(f"removed {format_count(removed, 'event')} of {format_count(len(old), 'session')}")


def _prune_before(older_than: str | None) -> float:
    from holdfast.runtime.config import load_config

    now = system_clock()
    if older_than is not None:
        return parse_time_option(older_than, now, option="--older-than")
    days = load_config(os.environ, workspace=Path.cwd()).retention_days
    if not days:
        raise UserError("no age is given: pass --older-than 90d, or set retention_days in the home file")
    return now - days * DAY_SECONDS


@command.command("export")
@click.argument("file", default="-")
@db_option
@click.option("--session", "wanted", metavar="ID", help="Only this session.")
@click.option("--since", metavar="7d|12h|2w|DATE", help="Only sessions with an event since then, each whole.")
@click.option("--content", is_flag=True, help="Include content; only such a file can be imported.")
@click.option("--instructions", is_flag=True, help="Include agents' instructions, for a store of the same deployment.")
def export_events(
    *, file: str, db: str | None, wanted: str | None, since: str | None, content: bool, instructions: bool
) -> None:
    """Write events as JSON lines to FILE, or to standard output.

    Without --content, messages, system prompts, tool results, names and paths are left out. Keys are never exported.
    """
    from holdfast.stores.export import export_lines

    now = system_clock()
    start = float("-inf") if since is None else parse_time_option(since, now)
    with open_configured_store(db) as log:
        deployment = get_exported_deployment(log, content=content) if instructions else None
        rows = _select_sessions(log.sessions(), resolve_session_id(log, wanted) if wanted else None, start)
        session_ids = (row.id for row in track_progress(rows, "sessions", len(rows)))
        lines = export_lines(log, session_ids, content=content, now=now, deployment=deployment)
        if file == "-":
            for line in lines:
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return
        _write_new(file, lines)
    exported_text = f"{format_count(len(rows), 'session')}" + (" and agents' instructions" if instructions else "")
    click.echo(f"exported {exported_text} to {file}" + ("" if content else ", without content"), err=True)


def _select_sessions(rows: "tuple[SessionRow, ...]", wanted: str | None, start: float) -> "list[SessionRow]":
    """The sessions to export, oldest activity first."""
    chosen = [row for row in reversed(rows) if row.last_event_at >= start and wanted in (None, row.id)]
    if wanted is not None and not chosen:
        raise UserError(f"session {wanted!r} has no event since then; `holdfast sessions list` shows all")
    return chosen


def _write_new(file: str, lines: "Iterator[bytes]") -> None:
    """Write a new file that only its owner can read; never overwrite an existing one."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UserError(f"{file} already exists: name another file, or remove it") from error
    except ValueError as error:
        raise UserError(f"{file!a} is not a valid file name: name another") from error
    with os.fdopen(descriptor, "wb") as out:
        out.writelines(lines)


@command.command("import")
@click.argument("file", type=click.File("rb"))
@db_option
def import_events(file: IO[bytes], db: str | None) -> None:
    """Add the events of an export to the store; existing events are left unchanged.

    Each session is imported completely or not at all. The same holds for each agent's instructions, which must belong
    to this deployment. After a failure, run the same command again to continue where it stopped.
    """
    from holdfast.stores.export import ImportedSession, import_lines, read_export_header

    deployment = read_export_header(file, file.name).deployment
    if deployment is not None:
        check_deployment(deployment, file.name)
    sessions = added = existing = 0
    owners: list[ImportedOwner] = []
    try:
        with open_store_with_records(db) as (log, _):
            intake = open_instruction_intake(log) if deployment is not None else None
            for item in track_progress(import_lines(file, log, file.name, intake), "sessions"):
                if isinstance(item, ImportedSession):
                    sessions, added, existing = sessions + 1, added + item.added, existing + item.existing
                else:
                    owners.append(item)
    finally:
        # Also after a failure: the user must see what is already in the store.
        for line in summarize_imported_owners(owners):
            click.echo(line)
        if sessions:
            events_text = f"{format_count(added, 'event')} added, {existing:,} already stored"
            click.echo(f"{format_count(sessions, 'session')}: {events_text}")


@contextmanager
def _open_database(
    db: str | None, *, writable: bool = False, migration_mode: "MigrationMode" = "create"
) -> "Iterator[DatabaseEventLog]":
    from holdfast.stores.memory import MemoryStore

    with open_configured_store(db, writable=writable, migration_mode=migration_mode) as log:
        if isinstance(log, MemoryStore):
            raise UserError("there is no store yet; `holdfast demo --keep` creates one, --db names another")
        yield log


def _catch_up(log: "DatabaseEventLog") -> int:
    """Roll up the sessions that are not in the tables yet; returns their number."""

    entered = 0
    for session_id in track_progress(log.iter_pending_sessions(), "sessions", log.read_facts().pending_sessions):
        log.roll_up_session(session_id)
        entered += 1
    return entered


def get_exported_deployment(log: "Store", *, content: bool) -> str:
    """The deployment whose instructions are exported.

    Raises UserError without --content, or if the store also holds instructions of another deployment.
    """
    if not content:
        raise UserError("instructions are content: export them with --content --instructions, or without them")
    here = _configured().settings.deployment
    other = log.instructions.other_deployment(here)
    if other is not None:
        raise UserError(
            f"the store has instructions of deployment {other[:80]!a}, but this deployment is {here!a}: "
            "set instructions.deployment in the home file, or export without them"
        )
    return here


def check_deployment(deployment: str, name: str) -> None:
    """Raise UserError if the file comes from another deployment."""
    here = _configured().settings.deployment
    if deployment != here:
        raise UserError(
            f"{name} has instructions of deployment {deployment[:80]!a}, but this deployment is {here!a}: "
            "import it there, or export it without --instructions"
        )


def open_instruction_intake(log: "Store") -> "OwnerImporter":
    from holdfast.stores.instructions.transfer import OwnerImporter

    configured = _configured()
    with explain_missing_package():
        from holdfast.instructions.context import InstructionContext
        from holdfast.instructions.units.signatures import load_deployment_key
        from holdfast.instructions.units.transfer import validate_imported_records
    # Do not create a key: a new one has signed nothing in the file, and would block restoring the original key.
    key = load_deployment_key(configured.key_path) if configured.key_path.exists() else None
    library = InstructionContext(log.instructions, configured.settings, key=key)
    return OwnerImporter(log.instructions, partial(validate_imported_records, library))


def summarize_imported_owners(owners: "Sequence[ImportedOwner]") -> Iterator[str]:
    """Lines that say what was imported for the owners of instructions."""
    if not owners:
        return
    existing = sum(owner.already_existed for owner in owners)
    already = f", {existing:,} of them already stored" if existing else ""
    added = format_count(sum(owner.added for owner in owners), "record")
    yield f"{format_count(len(owners), 'owner')} of instructions{already}: {added} added"
    if quarantined := sum(owner.quarantined for owner in owners):
        yield (
            f"{format_count(quarantined, 'unit')} quarantined: not signed by a key that this deployment knows; "
            "restore the key or register the signer, then write them again"
        )
    if left_out := sum(owner.dropped_approvals for owner in owners):
        yield f"{format_count(left_out, 'approval')} left out: not signed by a key that this deployment knows"


def _configured() -> "InstructionConfig":
    with explain_missing_package():
        from holdfast.runtime.instructions.settings import load_instruction_config
    return load_instruction_config(os.environ)
