"""`holdfast audit`: what the sessions on this disk spent, what cold calls cost, and what a better plan would have."""

import datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli.counts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.catalog.lookup import Models
    from holdfast.replay.audit import AuditReport, SessionRow
    from holdfast.replay.recording import Transcript
    from holdfast.replay.totals import PolicyRow
    from holdfast.replay.traces import BrokenLine

    Read = Iterator[Transcript | BrokenLine]

LIMIT = 20
CANDIDATES_MAX = 5
ID_CHARACTERS = 8
PROJECT_CHARACTERS_MAX = 24
PROJECT_CHARACTERS_NARROW = 12
NARROW_COLUMNS = 110
"""A terminal that is not as wide is shown less of each session."""

DATED_FROM = 365 * 86_400.0
"""What would be of 1970 has no date: its times only count from its beginning."""

SAME_SHARE = 0.005
"""An estimate is not good enough to tell less than this apart."""

SQLITE_HEADER = b"SQLite format 3\0"

MEANINGS = {
    "expired": "nobody called before it lapsed",
    "edited": "the client left out what it had sent",
    "head changed": "tools, system or settings were others",
    "lost": "the provider lost it, or the client changed unseen",
    "unnamed": "only a part was found again",
    "model changed": "another model has another cache",
    "uncached": "the call before had nothing kept",
}


@click.command("audit")
@click.argument("path", required=False)
@click.option("--session", "wanted", metavar="ID", help="Only this session; the start of its id is enough.")
@click.option("--since", type=click.DateTime(formats=["%Y-%m-%d"]), help="Only calls from this day on (UTC).")
@click.option("--simulated", is_flag=True, help="Count simulated sessions of a store too.")
@click.option("--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True, help="Sessions to list.")
@click.option("--rivals", is_flag=True, help="Also play every other policy; slow.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, all sessions included.")
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
    """Show what was spent, what was lost to cold calls and why, and what a better plan would have cost.

    PATH is a folder of Claude Code transcripts, one of them, or a store of Holdfast; without it, Claude Code's own
    folder, else the configured store. Nothing leaves this machine.
    """
    import msgspec

    from holdfast.cli.progress import with_progress
    from holdfast.errors import UserError
    from holdfast.replay.audit import Audit
    from holdfast.replay.recording import Transcript, counted_once
    from holdfast.replay.traces import BrokenLine

    models = _models()
    audit = Audit(models)
    begin = since.replace(tzinfo=datetime.UTC).timestamp() if since else 0.0
    look = Look(begin, rivals, simulated or wanted is not None, [])
    place, read = _found(path, look)
    transcripts: list[Transcript] = []
    for item in read:
        if isinstance(item, BrokenLine):
            audit.pass_over(item)
        else:
            transcripts.append(item)
    chosen = _chosen(counted_once(transcripts, since=begin), wanted)
    for transcript in with_progress(chosen, "conversations", len(chosen)):
        audit.add(transcript)
    report = audit.report()
    if not report.calls:
        raise UserError(f"{_nothing_in(place, since)}; {'; '.join(_passed_over(report, look))}")
    if rivals:
        report = msgspec.structs.replace(report, rivals=_rivals(chosen, models))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _show(report, limit)
        for line in _left_out(look):
            click.echo(line)


class Look(NamedTuple):
    """What to look at; ids of simulated sessions that were left out are added to `left_out`."""

    since: float
    spelled: bool
    simulated: bool
    left_out: list[str]


def _left_out(look: Look) -> "Iterator[str]":
    if look.left_out:
        yield f"not counted: {counted(len(look.left_out), 'simulated session')}; --simulated counts all"


def _passed_over(report: "AuditReport", look: Look) -> "Iterator[str]":
    yield f"{counted(report.broken_lines, 'line')} could not be read"
    yield from _left_out(look)


def _models() -> "Models":
    import os
    from pathlib import Path

    from holdfast.catalog.lookup import shipped_models
    from holdfast.catalog.overrides import with_overrides
    from holdfast.runtime.config import load_config

    return with_overrides(shipped_models(), load_config(os.environ, workspace=Path.cwd()).models)


def _nothing_in(place: str, since: datetime.datetime | None) -> str:
    when = f" since {since:%Y-%m-%d}" if since else ""
    return f"no call with its usage{when} in {place}"


def _found(path: str | None, look: Look) -> "tuple[str, Read]":
    """Where was looked, in words, and what is there."""
    from pathlib import Path

    from holdfast.stores.shown import shown

    if path is None:
        return _found_by_itself(look)
    if path.startswith(("sqlite:", "postgresql:", "postgres:")) or _is_database(Path(path)):
        return f"the store {shown(path)!r}", _stored(path, look)
    return f"the transcripts (.jsonl) at {path!r}", _transcripts(Path(path), look)


def _found_by_itself(look: Look) -> "tuple[str, Read]":
    import os
    from pathlib import Path

    from holdfast.errors import UserError
    from holdfast.runtime.config import load_config
    from holdfast.stores.shown import shown

    folders = _client_folders()
    for folder in folders:
        if next(folder.rglob("*.jsonl"), None) is not None:
            return f"the transcripts of {str(folder)!r}", _transcripts(folder, look)
    store = load_config(os.environ, workspace=Path.cwd()).db_path
    if "://" in store or Path(store).exists():
        return f"the store {shown(store)!r}", _stored(store, look)
    looked = ", ".join(repr(str(place)) for place in (*folders, store))
    raise UserError(f"nothing to audit: neither transcripts (.jsonl) nor a store at {looked}; name a folder or a store")


def _client_folders() -> "tuple[Path, ...]":
    """Where Claude Code keeps its transcripts: where it was told to, or in one of its two usual places."""
    import os
    from pathlib import Path

    told = os.environ.get("CLAUDE_CONFIG_DIR")
    homes = (Path(told),) if told else (Path.home() / ".claude", Path.home() / ".config" / "claude")
    return tuple(home / "projects" for home in homes)


def _is_database(path: "Path") -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except (OSError, ValueError):
        return False


def _transcripts(path: "Path", look: Look) -> "Read":
    from holdfast.cli.progress import with_progress
    from holdfast.replay.transcripts import read_transcript, transcript_files

    # A file that was last written before that day holds no call of it.
    files = [file for file in transcript_files(path) if file.stat().st_mtime >= look.since]
    for file in with_progress(files, "transcripts", len(files)):
        yield from read_transcript(file, spelled=look.spelled)


def _stored(address: str, look: Look) -> "Read":
    import contextlib

    from holdfast.cli.progress import with_progress
    from holdfast.ledger.simulated import is_simulated
    from holdfast.replay.stored import stored_transcript
    from holdfast.stores.open import open_store

    with contextlib.closing(open_store(address)) as log:
        rows = log.sessions()
        for row in with_progress(rows, "sessions", len(rows)):
            if not look.simulated and is_simulated(log, row.id):
                look.left_out.append(row.id)
                continue
            transcript = stored_transcript(log.read(row.id), row.id)
            if transcript is not None:
                yield transcript


def _chosen(transcripts: "list[Transcript]", wanted: str | None) -> "list[Transcript]":
    from holdfast.errors import UserError

    if wanted is None:
        return transcripts
    found = [one for one in transcripts if one.session.startswith(wanted)]
    names = {one.session for one in found}
    if wanted in names:
        return [one for one in found if one.session == wanted]
    if len(names) != 1:
        candidates = f": {', '.join(sorted(names)[:CANDIDATES_MAX])}" if names else ""
        raise UserError(
            f"{len(names) or 'no'} sessions begin with {wanted!r}{candidates}; `--json` lists all with their ids"
        )
    return found


def _rivals(transcripts: "Sequence[Transcript]", models: "Models") -> "tuple[PolicyRow, ...]":
    """Each conversation by the rules and at today's prices of the model that answered most of its calls."""
    from collections import Counter

    from holdfast.catalog.lookup import find_model
    from holdfast.cli.policies import Roster
    from holdfast.cli.progress import with_progress
    from holdfast.errors import UserError
    from holdfast.replay.audit import takes_marks
    from holdfast.replay.compare import compare
    from holdfast.replay.play import setting_for
    from holdfast.replay.totals import Totals

    totals, roster = Totals(), Roster()
    for one in with_progress(transcripts, "conversations played", len(transcripts)):
        name = Counter(call.model or "" for call in one.recording.calls).most_common(1)[0][0]
        try:
            row = find_model(name, models)
        except UserError:
            continue
        if one.spelled and takes_marks(row):
            totals.add(compare(one.recording, roster.fresh(), setting_for(row, ttl_upgrade=False)), None, 0)
    return totals.report().policies


def _show(report: "AuditReport", limit: int) -> None:
    from holdfast.cli.policies import show_policies
    from holdfast.cli.tables import columns_shown, show_table

    for line in _told(report):
        click.echo(line)
    if report.causes:
        click.echo("")
        rows = (
            (cause.cause, str(cause.calls), f"{cause.tokens:,}", _usd(cause.lost_usd), MEANINGS.get(cause.cause, ""))
            for cause in report.causes
        )
        show_table(("cold because", "calls", "tokens", "lost", "which means"), rows)
    click.echo("")
    headings = ("session", "date", "project", "model", "calls", "spent", "lost", "because", "Holdfast")
    characters = _telling_characters([row.session for row in report.sessions])
    table = [headings, *(_session_row(row, characters) for row in report.sessions[:limit])]
    table = [_narrowed(row) for row in table] if columns_shown() < NARROW_COLUMNS else table
    show_table(table[0], table[1:])
    if len(report.sessions) > limit:
        click.echo(f"{counted(len(report.sessions) - limit, 'session')} more; --limit shows them, --json has all")
    if report.rivals:
        click.echo("\nThe same prompts under every policy; tokens are counted by us, prompts only, prices of today:")
        show_policies(report.rivals)
    for line in _noted(report):
        click.echo(line)


def _told(report: "AuditReport") -> "Iterator[str]":
    sessions, calls = counted(len(report.sessions), "session"), counted(report.calls, "call")
    days = f"{_day(report.from_at)} to {_day(report.to_at)}"
    yield f"You spent {_usd(report.spent_usd)} on {calls} in {sessions}, {days}."
    if report.cold_calls:
        share = report.lost_usd / report.spent_usd if report.spent_usd else 0.0
        yield f"{_usd(report.lost_usd)} of it ({share:.0%}) went to {counted(report.cold_calls, 'cold call')}."
    else:
        yield "No call was cold."
    if any(model.judged for model in report.models):
        yield f"Holdfast's plan would have cost {_range(report.planned_usd)} on the same prompts,"
        yield f"{_compared(report)}; with hindsight, no plan less than about {_usd(report.optimum_usd)}."


def _compared(report: "AuditReport") -> str:
    low, high = (report.spent_usd - cost for cost in reversed(report.planned_usd))
    if max(abs(low), abs(high)) < SAME_SHARE * report.spent_usd:
        return "about what you spent"
    if low >= 0:
        return f"{_range((low, high))} less"
    if high < 0:
        return f"{_range((-high, -low))} more"
    return f"between {_usd(-low)} more and {_usd(high)} less"


def _noted(report: "AuditReport") -> "Iterator[str]":
    from holdfast.cli.requests import printable

    yield "\nPrices are those of each day. What a plan would have cost is an estimate from"
    yield "sizes and times; a range, because nobody says whether an hour's mark also keeps"
    yield "the five minutes' prefix in front of it."
    unpriced = [model for model in report.models if model.spent_usd is None]
    if unpriced:
        names = ", ".join(printable(model.model) or "unnamed" for model in unpriced)
        tokens = sum(model.usage.tokens_sent + model.usage.output for model in unpriced)
        calls = counted(sum(model.calls for model in unpriced), "call")
        yield f"No price is known for {names}: {calls} with {counted(tokens, 'token')} not in these amounts."
    if report.broken_lines:
        first = report.broken[0]
        where = printable(f"{first.file}:{first.line}: {first.reason}")
        yield f"passed over: {counted(report.broken_lines, 'broken line')}, the first at {where}"


def _telling_characters(ids: "Sequence[str]") -> int:
    """How much of each id is enough to tell it from the others."""
    longest = max(map(len, ids), default=ID_CHARACTERS)
    lengths = range(ID_CHARACTERS, longest)
    return next((length for length in lengths if len({id[:length] for id in ids}) == len(ids)), longest)


def _session_row(row: "SessionRow", id_characters: int) -> tuple[str, ...]:
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


def _narrowed(row: "Sequence[str]") -> tuple[str, ...]:
    session, date, project, _, *rest = row
    return session, date, project[:PROJECT_CHARACTERS_NARROW], *rest


def _usd(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


def _range(amounts: tuple[float, float]) -> str:
    low, high = map(_usd, amounts)
    return low if low == high else f"{low} to {high[1:]}"


def _day(at: float) -> str:
    if at < DATED_FROM:
        return "undated"
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d")
