"""`holdfast audit`: where the money of the sessions on this disk went, of whichever client, and what to do about it."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.costs.report import (
    WORKERS_MAX,
    audit_stored_sessions,
    check_output_options,
    name_filters,
    parse_scope,
    spending_options,
    write_spending,
)
from holdfast.cli.format import format_count, track_progress
from holdfast.cli.open_store import (
    load_configured_models,
    open_configured_store,
    open_spending_cache,
    resolve_session_id,
)
from holdfast.clock import system_clock
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.catalog.lookup import Models
    from holdfast.ledger.spending import AuditScope, ConversationSpending, Spending
    from holdfast.replay.comparison import ReplayReport
    from holdfast.replay.file_audits import AuditCache, FileAudit, FileState, SharedConversation
    from holdfast.replay.recording import Transcript

CANDIDATES_MAX = 5
SQLITE_HEADER = b"SQLite format 3\0"


@click.command("audit")
@click.argument("path", required=False)
@spending_options
@click.option("--rivals", is_flag=True, help="Also replay every other cache policy; slow.")
@click.option("--no-cache", is_flag=True, help="Read every transcript, also those that have not changed.")
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
    no_cache: bool,
) -> None:
    """Show where the money went, what cache misses cost and why, and what to do about it.

    PATH is a folder of transcripts, a single one, or a Holdfast store. Without PATH, the folders of Claude Code, Codex,
    Gemini CLI, opencode and pi are read, or the configured store if there is none. Nothing leaves this machine.
    """
    check_output_options(as_json=as_json, as_csv=as_csv)
    models, scope = load_configured_models(), parse_scope(since, until, model, verbose=verbose)
    source = _find_source(path)
    notes: tuple[str, ...] = ()
    with_context = html is not None or as_json
    if isinstance(source, str):
        spending, notes = _audit_store(source, scope, wanted, project, simulated=simulated, with_context=with_context)
    else:
        cache = None if no_cache else _open_cache(models, scope)
        spending = audit_client_files(
            source,
            models,
            scope,
            wanted=wanted,
            project=project,
            with_context=with_context,
            cache=cache,
            now=system_clock(),
        )
    if not spending.total.calls:
        filters = name_filters(since=since, until=until, session=wanted, project=project, model=model)
        matching = f" matches {filters}" if filters else ""
        broken = [f"{format_count(spending.broken_lines, 'line')} could not be read"] * bool(spending.broken_lines)
        searched = "" if path or not isinstance(source, str) else f"no transcripts of {CLIENTS} in this home, and "
        subject = f"{searched}no call with reported usage{matching} in {_describe(path, source)}"
        raise UserError("; ".join((subject, *broken, *notes, *["name a folder or a store"] * bool(searched))))
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
        from holdfast.cli.costs.replay import print_policies

        count = f"{replayed.conversations:,} of {format_count(spending.conversations, 'conversation')}"
        click.echo(f"\nThe same calls under every policy, replies included ({count}: those with text, by replay):")
        print_policies(replayed.policies)


CLIENTS = "Claude Code, Codex, Gemini CLI, opencode or pi"
_Source = str | tuple[Path, ...]
"""The address of a store, or transcript files."""


def _find_source(path: str | None) -> _Source:
    from holdfast.replay.file_audits import find_client_files, is_opencode_database

    if path is None:
        return _find_default_source()
    if path.startswith(("sqlite:", "postgresql:", "postgres:")):
        return path
    if _is_database(Path(path)) and not is_opencode_database(Path(path)):
        return path
    return find_client_files(Path(path))


def _find_default_source() -> _Source:
    from holdfast.replay.file_audits import find_client_files
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


def audit_client_files(
    files: "Sequence[Path]",
    models: "Models",
    scope: "AuditScope",
    *,
    wanted: str | None,
    project: str | None,
    with_context: bool,
    cache: "AuditCache | None",
    now: float,
) -> "Spending":
    """Where the money of these transcripts went; the same with and without a cache."""
    from holdfast.ledger.spending import SpendingFold
    from holdfast.replay.file_audits import BROKEN_LINES_REPORTED_MAX, group_repeated_files, read_state

    # A file last written before the start date cannot contain a call after it.
    chosen = [state for state in (read_state(file, now) for file in files) if state.modified_at >= scope.since]
    audits = _list_audits(chosen, models, scope, cache)
    # A resumed or forked transcript repeats the calls of the one it continues: count each call once.
    groups = group_repeated_files(audits)
    shared = [
        item for group in groups for item in _audit_group([chosen[index] for index in group], models, scope, cache)
    ]
    conversations = [item.spending for item in sorted(shared, key=lambda item: (item.started_at, item.id))]
    repeated = {index for group in groups for index in group}
    states_of: dict[tuple[str, str], list[FileState]] = {}
    unknown = Counter[str]()
    for index, audit in enumerate(audits):
        for conversation in audit.conversations:
            states_of.setdefault((conversation.client, conversation.session), []).append(chosen[index])
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
    return _add_context(spending, states_of, cache) if with_context and spending.sessions else spending


def _open_cache(models: "Models", scope: "AuditScope") -> "AuditCache":
    from holdfast.replay.file_audits import AuditCache

    return AuditCache(open_spending_cache(models), ranges=scope.ranges)


def _list_audits(
    states: "Sequence[FileState]", models: "Models", scope: "AuditScope", cache: "AuditCache | None"
) -> "list[FileAudit]":
    """The audit of each file. Those of the cache count all calls, so a scope that has some of them takes another."""
    if cache is None:
        return list(_read_audits(states, models, scope))
    from holdfast.ledger.spending import AuditScope
    from holdfast.replay.file_audits import restrict_conversations

    found = cache.find_files(states)
    missing = [state for state in states if state.path not in found]
    for state, audit in zip(missing, _read_audits(missing, models, AuditScope(ranges=scope.ranges)), strict=True):
        cache.keep_file(state, audit)
        found[state.path] = audit
    cache.write()
    partial = []
    for state in states:
        kept = restrict_conversations(found[state.path].conversations, scope)
        if kept is None:
            partial.append(state)
        else:
            found[state.path].conversations = kept
    for state, audit in zip(partial, _read_audits(partial, models, scope), strict=True):
        found[state.path] = audit
    return [found[state.path] for state in states]


def _read_audits(states: "Sequence[FileState]", models: "Models", scope: "AuditScope") -> "Iterator[FileAudit]":
    if not states:
        return iter(())
    from holdfast.replay.audit import audit_files

    workers = min(WORKERS_MAX, os.cpu_count() or 1)
    audits = audit_files([state.path for state in states], models, scope, workers=workers)
    return track_progress(audits, "transcripts", len(states))


def _audit_group(
    states: "Sequence[FileState]", models: "Models", scope: "AuditScope", cache: "AuditCache | None"
) -> "list[SharedConversation]":
    """The conversations of files that repeat calls of each other."""
    shared = cache.find_shared(states) if cache is not None else None
    if shared is None:
        from holdfast.ledger.spending import AuditScope
        from holdfast.replay.audit import audit_together

        counted = AuditScope(ranges=scope.ranges) if cache is not None else scope
        shared = audit_together([state.path for state in states], models, counted)
        if cache is None:
            return shared
        cache.keep_shared(states, shared)
        cache.write()
    from holdfast.replay.file_audits import restrict_conversations

    kept = []
    for item in shared:
        spending = restrict_conversations([item.spending], scope)
        if spending is None:
            return _audit_group(states, models, scope, None)
        kept += [item] if spending else []
    return kept


def _audit_store(
    address: str,
    scope: "AuditScope",
    wanted: str | None,
    project: str | None,
    *,
    simulated: bool,
    with_context: bool,
) -> "tuple[Spending, tuple[str, ...]]":
    from holdfast.ledger.calls import is_simulated

    with open_configured_store(address) as log:
        wanted = wanted and resolve_session_id(log, wanted)
        rows = [row for row in log.sessions() if wanted in (None, row.id)]
        skipped = set() if simulated or wanted else {row.id for row in rows if is_simulated(log, row.id)}
        counted = [row for row in rows if row.id not in skipped]
        spending = audit_stored_sessions(log, counted, scope, project, address=address, with_context=with_context)
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


def _add_context(
    spending: "Spending", states_of: "dict[tuple[str, str], list[FileState]]", cache: "AuditCache | None"
) -> "Spending":
    """With the curve of the most expensive session's prompt sizes, which is read again for it."""
    worst = spending.sessions[0]
    states = states_of[worst.client, worst.id]
    context = cache.find_context(worst.id, states) if cache is not None else None
    if context is None:
        from holdfast.replay.audit import trace_context

        transcripts = _read_transcripts((), [state.path for state in states], set())
        own = [transcript for transcript in transcripts if transcript.session == worst.id]
        longest = max(own, key=lambda transcript: len(transcript.recording.calls), default=None)
        context = trace_context(longest) if longest is not None else ()
        if cache is not None:
            cache.keep_context(worst.id, states, context)
            cache.write()
    return msgspec.structs.replace(spending, worst_session_context=context)


def _read_transcripts(
    source: _Source, files: "Sequence[Path]", sessions: set[str], *, with_text: bool = False
) -> "list[Transcript]":
    from holdfast.replay.client_transcripts import read_client_file
    from holdfast.replay.recording import Transcript

    if isinstance(source, str):
        from holdfast.replay.stored_sessions import build_stored_transcript

        with open_configured_store(source) as log:
            models = load_configured_models()
            stored = [build_stored_transcript(log.read(id), id, models) for id in sorted(sessions)]
        return [transcript for transcript in stored if transcript is not None]
    items = (item for file in files for item in read_client_file(file, with_text=with_text))
    return [item for item in items if isinstance(item, Transcript)]


def _replay(source: _Source, models: "Models", scope: "AuditScope", wanted: set[tuple[str, str]]) -> "ReplayReport":
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
