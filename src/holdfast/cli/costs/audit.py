"""`holdfast audit`: what the sessions on this disk spent, what cache misses cost, and what Holdfast would save."""

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli.format import format_count, print_json
from holdfast.cli.open_store import load_configured_models, open_configured_store
from holdfast.errors import UserError
from holdfast.ledger.requests.format import strip_control_characters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.replay.audit import AuditedSession, AuditReport
    from holdfast.replay.recording import Transcript
    from holdfast.replay.trace_files import BrokenLine

    Read = Iterator[Transcript | BrokenLine]

LIMIT = 20
CANDIDATES_MAX = 5
ID_CHARACTERS = 8
PROJECT_CHARACTERS_MAX = 24
PROJECT_CHARACTERS_NARROW = 12
NARROW_COLUMNS = 110
"""On a narrower terminal the model column is dropped and project names are cut shorter."""

DATED_FROM_SECONDS = 365 * 86_400.0
"""Timestamps in 1970 are relative to the start of a recording, so they have no date."""

EQUAL_COST_SHARE = 0.005
"""Cost differences below this share are within the error of the estimate and are reported as equal."""

SQLITE_HEADER = b"SQLite format 3\0"

CAUSE_MEANINGS = {
    "expired": "no call came before the TTL ended",
    "edited": "the client removed messages it had sent before",
    "prefix changed": "tools, system prompt or settings changed",
    "lost": "the provider evicted it, or the client changed it unseen",
    "unexplained": "only part of the prefix was read",
    "model changed": "each model has its own cache",
    "uncached": "the previous call wrote nothing to the cache",
}
"""Cause of a cache miss -> explanation for the user."""


@click.command("audit")
@click.argument("path", required=False)
@click.option("--session", "wanted", metavar="ID", help="Only this session; the start of its id is enough.")
@click.option("--since", type=click.DateTime(formats=["%Y-%m-%d"]), help="Only calls from this day on (UTC).")
@click.option("--simulated", is_flag=True, help="Include simulated sessions of a store.")
@click.option("--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True, help="Sessions to list.")
@click.option("--rivals", is_flag=True, help="Also replay every other cache policy; slow.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all sessions.")
def command(
    *,
    path: str | None,
    wanted: str | None,
    since: datetime.datetime | None,
    simulated: bool,
    limit: int,
    rivals: bool,
    as_json: bool,
) -> None:
    """Show what was spent, what cache misses cost and why, and what Holdfast's plan would have cost.

    PATH is a folder of Claude Code transcripts, a single transcript, or a Holdfast store. Without PATH, Claude Code's
    own folder is used if it exists, otherwise the configured store. Nothing leaves this machine.
    """
    import msgspec

    from holdfast.cli.tables import track_progress
    from holdfast.replay.audit import Audit, replay_transcripts
    from holdfast.replay.recording import Transcript, deduplicate_transcripts
    from holdfast.replay.trace_files import BrokenLine

    models = load_configured_models()
    audit = Audit(models)
    start_at = since.replace(tzinfo=datetime.UTC).timestamp() if since else 0.0
    query = AuditQuery(start_at, rivals, simulated or wanted is not None, [])
    location, items = _find_transcripts(path, query)
    transcripts: list[Transcript] = []
    for item in items:
        if isinstance(item, BrokenLine):
            audit.skip_line(item)
        else:
            transcripts.append(item)
    # A resumed or forked transcript repeats the calls of the one it continues: count each call once.
    chosen = _select_session(deduplicate_transcripts(transcripts, since=start_at), wanted)
    for transcript in track_progress(chosen, "conversations", len(chosen)):
        audit.add_transcript(transcript)
    report = audit.build_report()
    if not report.calls:
        when = f" since {since:%Y-%m-%d}" if since else ""
        skipped = (f"{format_count(report.broken_lines, 'line')} could not be read", *_describe_left_out(query))
        raise UserError(f"no call with reported usage{when} in {location}; {'; '.join(skipped)}")
    if rivals:
        played = replay_transcripts(track_progress(chosen, "conversations played", len(chosen)), models)
        report = msgspec.structs.replace(report, other_policies=played.build_report().policies)
    if as_json:
        print_json(report)
    else:
        _show(report, limit)
        for line in _describe_left_out(query):
            click.echo(line)


class AuditQuery(NamedTuple):
    """What to audit; the readers add ids of skipped simulated sessions to `skipped_ids`."""

    since: float
    with_content: bool
    with_simulated: bool
    skipped_ids: list[str]


def _describe_left_out(query: AuditQuery) -> "Iterator[str]":
    if query.skipped_ids:
        yield f"not counted: {format_count(len(query.skipped_ids), 'simulated session')}; --simulated includes them"


def _find_transcripts(path: str | None, query: AuditQuery) -> "tuple[str, Read]":
    """The source in words (for error messages), and its transcripts."""
    from holdfast.stores.address import redact_address

    if path is None:
        return _find_default_transcripts(query)
    if path.startswith(("sqlite:", "postgresql:", "postgres:")) or _is_database(Path(path)):
        return f"the store {redact_address(path)!r}", _read_store(path, query)
    return f"the transcripts (.jsonl) at {path!r}", _read_transcripts(Path(path), query)


def _find_default_transcripts(query: AuditQuery) -> "tuple[str, Read]":
    from holdfast.runtime.config import load_config
    from holdfast.stores.address import redact_address

    folders = _client_folders()
    for folder in folders:
        if next(folder.rglob("*.jsonl"), None) is not None:
            return f"the transcripts of {str(folder)!r}", _read_transcripts(folder, query)
    store = load_config(os.environ, workspace=Path.cwd()).db_path
    if "://" in store or Path(store).exists():
        return f"the store {redact_address(store)!r}", _read_store(store, query)
    searched = ", ".join(repr(str(path)) for path in (*folders, store))
    raise UserError(f"nothing to audit: no transcripts (.jsonl) and no store at {searched}; name a folder or a store")


def _client_folders() -> "tuple[Path, ...]":
    """Where Claude Code stores its transcripts: below CLAUDE_CONFIG_DIR, or in one of its two default places."""
    configured = os.environ.get("CLAUDE_CONFIG_DIR")
    homes = (Path(configured),) if configured else (Path.home() / ".claude", Path.home() / ".config" / "claude")
    return tuple(home / "projects" for home in homes)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except (OSError, ValueError):
        return False


def _read_transcripts(path: Path, query: AuditQuery) -> "Read":
    from holdfast.cli.tables import track_progress
    from holdfast.replay.claude_code_transcripts import find_transcript_files, read_transcript

    # A file last written before the start date cannot contain a call after it.
    files = [file for file in find_transcript_files(path) if file.stat().st_mtime >= query.since]
    for file in track_progress(files, "transcripts", len(files)):
        yield from read_transcript(file, with_text=query.with_content)


def _read_store(address: str, query: AuditQuery) -> "Read":
    from holdfast.cli.tables import track_progress
    from holdfast.ledger.calls import is_simulated
    from holdfast.replay.stored_sessions import build_stored_transcript

    with open_configured_store(address) as log:
        rows = log.sessions()
        for row in track_progress(rows, "sessions", len(rows)):
            if not query.with_simulated and is_simulated(log, row.id):
                query.skipped_ids.append(row.id)
                continue
            transcript = build_stored_transcript(log.read(row.id), row.id)
            if transcript is not None:
                yield transcript


def _select_session(transcripts: "list[Transcript]", wanted: str | None) -> "list[Transcript]":
    if wanted is None:
        return transcripts
    matches = [transcript for transcript in transcripts if transcript.session.startswith(wanted)]
    names = {transcript.session for transcript in matches}
    if wanted in names:
        return [transcript for transcript in matches if transcript.session == wanted]
    if len(names) != 1:
        candidates = f": {', '.join(sorted(names)[:CANDIDATES_MAX])}" if names else ""
        raise UserError(
            f"{len(names) or 'no'} sessions begin with {wanted!r}{candidates}; `--json` lists all session ids"
        )
    return matches


def _show(report: "AuditReport", limit: int) -> None:
    from holdfast.cli.costs.replay import print_policies
    from holdfast.cli.tables import get_table_width, print_table

    for line in _summary_lines(report):
        click.echo(line)
    if report.causes:
        click.echo("")
        rows = (
            (row.cause, str(row.calls), f"{row.tokens:,}", _usd(row.lost_usd), CAUSE_MEANINGS.get(row.cause, ""))
            for row in report.causes
        )
        print_table(("cache miss", "calls", "tokens", "lost", "meaning"), rows)
    click.echo("")
    headings = ("session", "date", "project", "model", "calls", "spent", "lost", "main cause", "Holdfast")
    characters = _distinct_id_length([row.session for row in report.sessions])
    table = [headings, *(_session_row(row, characters) for row in report.sessions[:limit])]
    table = [_narrow_row(row) for row in table] if get_table_width() < NARROW_COLUMNS else table
    print_table(table[0], table[1:])
    if len(report.sessions) > limit:
        click.echo(
            f"{format_count(len(report.sessions) - limit, 'more session')}; raise --limit, or use --json for all"
        )
    if report.other_policies:
        click.echo("\nThe same prompts under every policy (prompt costs only, estimated tokens, today's prices):")
        print_policies(report.other_policies)
    for line in _footnotes(report):
        click.echo(line)


def _summary_lines(report: "AuditReport") -> "Iterator[str]":
    sessions, calls = format_count(len(report.sessions), "session"), format_count(report.calls, "call")
    days = f"{_day(report.from_at)} to {_day(report.to_at)}"
    yield f"You spent {_usd(report.spent_usd)} on {calls} in {sessions}, {days}."
    if report.cache_misses:
        share = report.lost_usd / report.spent_usd if report.spent_usd else 0.0
        calls_missed = f"{report.cache_misses:,} cache miss{'' if report.cache_misses == 1 else 'es'}"
        yield f"{_usd(report.lost_usd)} of it ({share:.0%}) went to {calls_missed}."
    else:
        yield "No call missed the cache."
    if any(model.takes_breakpoints for model in report.models):
        yield f"Holdfast's plan would have cost {_range(report.planned_usd)} on the same prompts,"
        yield f"{_describe_difference(report)}; the optimum in hindsight is about {_usd(report.optimum_usd)}."


def _describe_difference(report: "AuditReport") -> str:
    # planned_usd is (lowest, highest) cost; the highest cost gives the lowest saving.
    low, high = (report.spent_usd - cost for cost in reversed(report.planned_usd))
    if max(abs(low), abs(high)) < EQUAL_COST_SHARE * report.spent_usd:
        return "about what you spent"
    if low >= 0:
        return f"{_range((low, high))} less"
    if high < 0:
        return f"{_range((-high, -low))} more"
    return f"between {_usd(-low)} more and {_usd(high)} less"


def _footnotes(report: "AuditReport") -> "Iterator[str]":
    yield "\nPrices are those of each day. Plan costs are estimates from prompt sizes and times;"
    yield "they are a range because no provider documents whether a 1h breakpoint also extends"
    yield "the 5m prefix before it."
    unpriced = [model for model in report.models if model.spent_usd is None]
    if unpriced:
        names = ", ".join(strip_control_characters(model.model) or "unnamed" for model in unpriced)
        tokens = sum(model.usage.tokens_sent + model.usage.output for model in unpriced)
        calls = format_count(sum(model.calls for model in unpriced), "call")
        yield f"No price is known for {names}: {calls} with {format_count(tokens, 'token')} are not included."
    if report.broken_lines:
        first = report.broken[0]
        where = strip_control_characters(f"{first.file}:{first.line}: {first.reason}")
        yield f"skipped: {format_count(report.broken_lines, 'broken line')}, the first at {where}"


def _distinct_id_length(ids: "Sequence[str]") -> int:
    """The shortest length, from ID_CHARACTERS on, at which all shortened ids differ."""
    longest = max(map(len, ids), default=ID_CHARACTERS)
    lengths = range(ID_CHARACTERS, longest)
    return next((length for length in lengths if len({id[:length] for id in ids}) == len(ids)), longest)


def _session_row(row: "AuditedSession", id_characters: int) -> tuple[str, ...]:
    project = row.project.replace("\\", "/").rstrip("/").rpartition("/")[2]
    agents = f"+{row.subagents}" if row.subagents else ""
    return (
        row.session[:id_characters],
        _day(row.started_at),
        project[:PROJECT_CHARACTERS_MAX],
        row.model.rpartition(":")[2].removeprefix("claude-"),
        f"{row.calls}{agents}",
        _usd(row.spent_usd),
        _usd(row.lost_usd),
        row.main_cause,
        _range(row.planned_usd).replace(" to ", "-"),
    )


def _narrow_row(row: "Sequence[str]") -> tuple[str, ...]:
    session, date, project, _, *rest = row
    return session, date, project[:PROJECT_CHARACTERS_NARROW], *rest


def _usd(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


def _range(amounts: tuple[float, float]) -> str:
    low, high = map(_usd, amounts)
    return low if low == high else f"{low} to {high[1:]}"


def _day(at: float) -> str:
    if at < DATED_FROM_SECONDS:
        return "undated"
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d")
