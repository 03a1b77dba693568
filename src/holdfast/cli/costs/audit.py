"""`holdfast audit`: where the money of the sessions on this disk went, of whichever client, and what to do about it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli.costs.report import parse_scope, spending_options, write_spending
from holdfast.cli.format import format_count
from holdfast.cli.open_store import load_configured_models, open_configured_store
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.catalog.lookup import Models
    from holdfast.ledger.spending import ConversationSpending, Spending
    from holdfast.replay.audit import AuditScope
    from holdfast.replay.comparison import PolicyRow
    from holdfast.replay.recording import Transcript

CANDIDATES_MAX = 5
SQLITE_HEADER = b"SQLite format 3\0"
WORKERS_MAX = 2


@click.command("audit")
@click.argument("path", required=False)
@spending_options
@click.option("--rivals", is_flag=True, help="Also replay every other cache policy; slow.")
def command(
    *,
    path: str | None,
    since: str | None,
    until: str | None,
    wanted: str | None,
    project: str | None,
    model: str | None,
    simulated: bool,
    limit: int,
    html: str | None,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
    rivals: bool,
) -> None:
    """Show where the money went, what cache misses cost and why, and what to do about it.

    PATH is a folder of transcripts, a single one, or a Holdfast store. Without PATH, the folders of Claude Code, Codex,
    Gemini CLI, opencode and pi are read, or the configured store if there is none. Nothing leaves this machine.
    """
    import msgspec

    from holdfast.cli.costs.replay import print_policies
    from holdfast.ledger.spending import SpendingFold

    models, scope = load_configured_models(), parse_scope(since, until, model, verbose=verbose)
    source = _find_source(path)
    if isinstance(source, str):
        found = _audit_store(source, models, scope, simulated=simulated or wanted is not None)
    else:
        found = _audit_files(source, models, scope)
    conversations = _select(found.conversations, wanted, project)
    fold = SpendingFold()
    for conversation in conversations:
        fold.add(conversation)
    spending = fold.build()
    if not spending.total.calls:
        when = f" since {since}" if since else ""
        left_out = (f"{format_count(found.broken_lines, 'line')} could not be read", *found.notes)
        raise UserError(f"no call with reported usage{when} in {_describe(path, source)}; {'; '.join(left_out)}")
    spending = msgspec.structs.replace(
        spending, broken_lines=found.broken_lines, broken=found.broken, unknown_records=found.unknown
    )
    policies: tuple[PolicyRow, ...] = ()
    if rivals:
        sessions = {(conversation.client, conversation.session) for conversation in conversations}
        policies = _replay(source, models, scope, sessions)
    if html or as_json:
        spending = _add_context(spending, source, found)
    write_spending(
        spending,
        limit=limit,
        html=html,
        as_json=as_json,
        as_csv=as_csv,
        verbose=verbose,
        notes=found.notes,
        extra={"other_policies": msgspec.to_builtins(policies)},
    )
    if rivals and not (as_json or as_csv or html):
        click.echo("\nThe same prompts under every policy (prompt costs only, estimated tokens, today's prices):")
        print_policies(policies)


class _Found(NamedTuple):
    """`files` has, for each session of a client, the files that it was read from."""

    conversations: "list[ConversationSpending]"
    broken_lines: int = 0
    broken: tuple[str, ...] = ()
    unknown: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    files: dict[tuple[str, str], list[Path]] = {}


_Source = str | tuple[Path, ...]
"""The address of a store, or transcript files."""


def _find_source(path: str | None) -> _Source:
    from holdfast.replay.client_transcripts import find_client_files, is_opencode_database

    if path is None:
        return _find_default_source()
    if path.startswith(("sqlite:", "postgresql:", "postgres:")):
        return path
    if _is_database(Path(path)) and not is_opencode_database(Path(path)):
        return path
    return find_client_files(Path(path))


def _find_default_source() -> _Source:
    from holdfast.replay.client_transcripts import find_client_files, list_client_folders
    from holdfast.runtime.config import load_config

    folders = list_client_folders(os.environ, Path.home())
    files = tuple(file for folder in folders if folder.is_dir() for file in find_client_files(folder))
    if files:
        return files
    store = load_config(os.environ, workspace=Path.cwd()).db_path
    if "://" in store or Path(store).exists():
        return store
    searched = ", ".join(repr(str(path)) for path in (*folders, store))
    raise UserError(f"nothing to audit: no transcripts and no store at {searched}; name a folder or a store")


def _describe(path: str | None, source: _Source) -> str:
    from holdfast.stores.address import redact_address

    if isinstance(source, str):
        return f"the store {redact_address(source)!r}"
    return f"the transcripts (.jsonl) at {path!r}" if path else "the transcripts of your clients"


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except (OSError, ValueError):
        return False


def _audit_files(files: "Sequence[Path]", models: "Models", scope: "AuditScope") -> _Found:
    from holdfast.cli.tables import track_progress
    from holdfast.replay.audit import audit_files, audit_together, find_repeated_files

    # A file last written before the start date cannot contain a call after it.
    chosen = [file for file in files if file.stat().st_mtime >= scope.since]
    workers = min(WORKERS_MAX, os.cpu_count() or 1)
    audits = list(track_progress(audit_files(chosen, models, scope, workers=workers), "transcripts", len(chosen)))
    # A resumed or forked transcript repeats the calls of the one it continues: count each call once.
    repeated = find_repeated_files(audits)
    conversations = audit_together([chosen[index] for index in repeated], models, scope) if repeated else []
    owners: dict[tuple[str, str], list[Path]] = {}
    for index, audit in enumerate(audits):
        for conversation in audit.conversations:
            owners.setdefault((conversation.client, conversation.session), []).append(chosen[index])
        if index not in repeated:
            conversations += audit.conversations
    unknown: dict[str, int] = {}
    for audit in audits:
        for kind, count in audit.unknown.items():
            unknown[kind] = unknown.get(kind, 0) + count
    broken = [line for audit in audits for line in audit.broken]
    return _Found(
        conversations,
        sum(audit.broken_count for audit in audits),
        tuple(f"{line.file}:{line.line}: {line.reason}" for line in broken[:100]),
        unknown,
        files=owners,
    )


def _audit_store(address: str, models: "Models", scope: "AuditScope", *, simulated: bool) -> _Found:
    from holdfast.cli.tables import track_progress
    from holdfast.ledger.calls import is_simulated
    from holdfast.replay.audit import PriceLookup, audit_transcript
    from holdfast.replay.stored_sessions import build_stored_transcript

    conversations, skipped, prices = list["ConversationSpending"](), 0, PriceLookup(models)
    with open_configured_store(address) as log:
        rows = log.sessions()
        for row in track_progress(rows, "sessions", len(rows)):
            if not simulated and is_simulated(log, row.id):
                skipped += 1
                continue
            transcript = build_stored_transcript(log.read(row.id), row.id, models)
            conversation = audit_transcript(transcript, prices, scope) if transcript is not None else None
            if conversation is not None:
                conversation.name = row.name or ""
                conversations.append(conversation)
    note = f"not counted: {format_count(skipped, 'simulated session')}; --simulated includes them"
    return _Found(conversations, notes=(note,) if skipped else ())


def _select(
    conversations: "list[ConversationSpending]", wanted: str | None, project: str | None
) -> "list[ConversationSpending]":
    if project is not None:
        part = project.lower()
        conversations = [conversation for conversation in conversations if part in conversation.project.lower()]
        if not conversations:
            raise UserError(f"no project has {project!r} in its path; `--json` lists all projects")
    if wanted is None:
        return conversations
    names = {conversation.session for conversation in conversations if conversation.session.startswith(wanted)}
    chosen = {wanted} if wanted in names else names
    if len(chosen) != 1:
        candidates = f": {', '.join(sorted(names)[:CANDIDATES_MAX])}" if names else ""
        raise UserError(
            f"{len(names) or 'no'} sessions begin with {wanted!r}{candidates}; `--json` lists all session ids"
        )
    return [conversation for conversation in conversations if conversation.session in chosen]


def _add_context(spending: "Spending", source: _Source, found: _Found) -> "Spending":
    """With the curve of the most expensive session's prompt sizes, which is read again for it."""
    import msgspec

    from holdfast.replay.audit import trace_context

    worst = spending.sessions[0]
    own = [
        transcript
        for transcript in _read_transcripts(source, found.files.get((worst.client, worst.id), []), {worst.id})
        if transcript.session == worst.id
    ]
    longest = max(own, key=lambda transcript: len(transcript.recording.calls), default=None)
    context = trace_context(longest) if longest is not None else ()
    return msgspec.structs.replace(spending, worst_session_context=context)


def _read_transcripts(
    source: _Source, files: "Sequence[Path]", sessions: set[str], *, with_text: bool = False
) -> "list[Transcript]":
    from holdfast.replay.client_transcripts import read_client_file
    from holdfast.replay.recording import Transcript
    from holdfast.replay.stored_sessions import build_stored_transcript

    if isinstance(source, str):
        with open_configured_store(source) as log:
            stored = [build_stored_transcript(log.read(id), id) for id in sorted(sessions)]
        return [transcript for transcript in stored if transcript is not None]
    items = (item for file in files for item in read_client_file(file, with_text=with_text))
    return [item for item in items if isinstance(item, Transcript)]


def _replay(
    source: _Source, models: "Models", scope: "AuditScope", wanted: set[tuple[str, str]]
) -> "tuple[PolicyRow, ...]":
    from holdfast.cli.tables import track_progress
    from holdfast.replay.audit import replay_transcripts
    from holdfast.replay.recording import deduplicate_transcripts

    files = () if isinstance(source, str) else source
    transcripts = _read_transcripts(source, files, {session for _, session in wanted}, with_text=True)
    chosen = [
        transcript
        for transcript in deduplicate_transcripts(transcripts, since=scope.since)
        if (transcript.client, transcript.session) in wanted
    ]
    return (
        replay_transcripts(track_progress(chosen, "conversations played", len(chosen)), models).build_report().policies
    )
