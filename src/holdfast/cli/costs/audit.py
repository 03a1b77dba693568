"""`holdfast audit`: where the money of the sessions on this disk went, of whichever client, and what to do about it."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.costs.report import (
    audit_stored_sessions,
    check_output_options,
    name_filters,
    parse_scope,
    spending_options,
    write_spending,
)
from holdfast.cli.format import format_count
from holdfast.cli.open_store import load_configured_models, open_configured_store, resolve_session_id
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.catalog.lookup import Models
    from holdfast.ledger.spending import ConversationSpending, Spending
    from holdfast.replay.audit import AuditScope
    from holdfast.replay.comparison import ReplayReport
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

    check_output_options(as_json=as_json, as_csv=as_csv)
    models, scope = load_configured_models(), parse_scope(since, until, model, verbose=verbose)
    source = _find_source(path)
    notes: tuple[str, ...] = ()
    if isinstance(source, str):
        spending, notes = _audit_store(source, scope, wanted, project, simulated=simulated)
    else:
        with_context = html is not None or as_json
        spending = _audit_files(source, models, scope, wanted=wanted, project=project, with_context=with_context)
    if not spending.total.calls:
        filters = name_filters(since=since, until=until, session=wanted, project=project, model=model)
        matching = f" matches {filters}" if filters else ""
        left_out = (f"{format_count(spending.broken_lines, 'line')} could not be read", *notes)
        raise UserError(f"no call with reported usage{matching} in {_describe(path, source)}; {'; '.join(left_out)}")
    replayed: ReplayReport | None = None
    if rivals:
        replayed = _replay(source, models, scope, {(row.client, row.id) for row in spending.sessions})
    write_spending(
        spending,
        limit=limit,
        html=html,
        as_json=as_json,
        as_csv=as_csv,
        verbose=verbose,
        notes=notes,
        extra={"other_policies": msgspec.to_builtins(replayed.policies if replayed else ())},
    )
    if replayed is not None and not (as_json or as_csv or html):
        count = f"{replayed.conversations:,} of {format_count(spending.conversations, 'conversation')}"
        click.echo(f"\nThe same calls under every policy, replies included ({count}: those with text, by replay):")
        print_policies(replayed.policies)


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
    from holdfast.replay.client_transcripts import find_client_files
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


def list_client_folders(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Where each client keeps its transcripts, whether or not it is there."""
    claude = environ.get("CLAUDE_CONFIG_DIR")
    claude_homes = (Path(claude),) if claude else (home / ".claude", home / ".config" / "claude")
    codex = Path(environ.get("CODEX_HOME") or home / ".codex")
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return (
        *(folder / "projects" for folder in claude_homes),
        codex / "sessions",
        codex / "archived_sessions",
        home / ".gemini" / "tmp",
        Path(environ.get("OPENCODE_DATA_DIR") or data / "opencode"),
        Path(environ.get("PI_CODING_AGENT_DIR") or home / ".pi" / "agent") / "sessions",
    )


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


def _audit_files(
    files: "Sequence[Path]",
    models: "Models",
    scope: "AuditScope",
    *,
    wanted: str | None,
    project: str | None,
    with_context: bool,
) -> "Spending":
    import msgspec

    from holdfast.cli.tables import track_progress
    from holdfast.ledger.spending import SpendingFold
    from holdfast.replay.audit import BROKEN_LINES_REPORTED_MAX, audit_files, audit_together, find_repeated_files

    # A file last written before the start date cannot contain a call after it.
    chosen = [file for file in files if file.stat().st_mtime >= scope.since]
    workers = min(WORKERS_MAX, os.cpu_count() or 1)
    audits = list(track_progress(audit_files(chosen, models, scope, workers=workers), "transcripts", len(chosen)))
    # A resumed or forked transcript repeats the calls of the one it continues: count each call once.
    repeated = set(find_repeated_files(audits))
    conversations = audit_together([chosen[index] for index in sorted(repeated)], models, scope) if repeated else []
    files_of: dict[tuple[str, str], list[Path]] = {}
    unknown = Counter[str]()
    for index, audit in enumerate(audits):
        for conversation in audit.conversations:
            files_of.setdefault((conversation.client, conversation.session), []).append(chosen[index])
        conversations += audit.conversations if index not in repeated else []
        unknown.update(audit.unknown)
    fold = SpendingFold()
    for conversation in _select(conversations, wanted, project):
        fold.add(conversation)
    broken = [f"{line.file}:{line.line}: {line.reason}" for audit in audits for line in audit.broken]
    spending = msgspec.structs.replace(
        fold.build(),
        broken_lines=sum(audit.broken_count for audit in audits),
        broken=tuple(broken[:BROKEN_LINES_REPORTED_MAX]),
        unknown_records=dict(unknown.most_common()),
    )
    return _add_context(spending, files_of) if with_context and spending.sessions else spending


def _audit_store(
    address: str, scope: "AuditScope", wanted: str | None, project: str | None, *, simulated: bool
) -> "tuple[Spending, tuple[str, ...]]":
    from holdfast.ledger.calls import is_simulated

    with open_configured_store(address) as log:
        wanted = wanted and resolve_session_id(log, wanted)
        rows = [row for row in log.sessions() if wanted in (None, row.id)]
        skipped = set() if simulated or wanted else {row.id for row in rows if is_simulated(log, row.id)}
        spending = audit_stored_sessions(log, [row for row in rows if row.id not in skipped], scope, project)
    note = f"not counted: {format_count(len(skipped), 'simulated session')}; --simulated includes them"
    return spending, (note,) if skipped else ()


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


def _add_context(spending: "Spending", files_of: "dict[tuple[str, str], list[Path]]") -> "Spending":
    """With the curve of the most expensive session's prompt sizes, which is read again for it."""
    import msgspec

    from holdfast.replay.audit import trace_context

    worst = spending.sessions[0]
    transcripts = _read_transcripts((), files_of[worst.client, worst.id], set())
    own = [transcript for transcript in transcripts if transcript.session == worst.id]
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
            models = load_configured_models()
            stored = [build_stored_transcript(log.read(id), id, models) for id in sorted(sessions)]
        return [transcript for transcript in stored if transcript is not None]
    items = (item for file in files for item in read_client_file(file, with_text=with_text))
    return [item for item in items if isinstance(item, Transcript)]


def _replay(source: _Source, models: "Models", scope: "AuditScope", wanted: set[tuple[str, str]]) -> "ReplayReport":
    from holdfast.cli.tables import track_progress
    from holdfast.replay.audit import PriceLookup
    from holdfast.replay.counterfactual import replay_transcripts
    from holdfast.replay.recording import deduplicate_transcripts

    files = () if isinstance(source, str) else source
    transcripts = _read_transcripts(source, files, {session for _, session in wanted}, with_text=True)
    chosen = [
        transcript
        for transcript in deduplicate_transcripts(transcripts, since=scope.since)
        if (transcript.client, transcript.session) in wanted
    ]
    played = track_progress(chosen, "conversations played", len(chosen))
    return replay_transcripts(played, PriceLookup(models), scope).build_report()
