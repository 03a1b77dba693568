"""`holdfast sessions`: what is stored, one session whole, and how to be rid of it."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted
from holdfast.cli.groups import Group
from holdfast.cli.stores import configured_models, found_session, open_configured

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.events.envelope import Event
    from holdfast.events.log import SessionRow
    from holdfast.ledger.books import Entry


@click.group("sessions", cls=Group)
def command() -> None:
    """List, show and delete stored sessions."""


DIGEST_CHARS_SHOWN = 16
DIGESTS = ("last_request_hash", "last_completion_cache_key")
"""Counters that are too long for a line, and whose first characters tell them apart."""

_db = click.option("--db", help="Store to use instead of the configured one.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@command.command("list")
@_db
@_json
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many at the most.")
def list_sessions(db: str | None, as_json: bool, limit: int) -> None:
    """The stored sessions, newest activity first."""
    import msgspec

    with open_configured(db) as log:
        rows = log.sessions(limit=limit)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    if not rows:
        click.echo("No session is stored yet; `holdfast demo --keep` makes one.")
        return
    from holdfast.cli.tables import show_table

    headings = ("session", "name", "model", "started", "last event", "events", "works for")
    columns = None if any(row.parent_session_id for row in rows) else -1
    show_table(headings[:columns], (_session_row(row)[:columns] for row in rows), spare=("started", "model"))


@command.command("show")
@click.argument("session_id")
@_db
@_json
@click.option("--stats", is_flag=True, help="Counters of the cache and its breaks, in place of the calls.")
def show(session_id: str, db: str | None, as_json: bool, stats: bool) -> None:
    """The calls of one session: what each sent, read, wrote and cost, and whether the prefix held."""
    from decimal import Decimal

    import msgspec

    from holdfast.events.payloads import LlmCallFailed
    from holdfast.ledger.books import entries
    from holdfast.ledger.calls import delegated, keeping_cost_usd, pinging_cost_usd
    from holdfast.ledger.strata import strata

    with open_configured(db) as log:
        events = list(log.read(found_session(log, session_id)))
    made = tuple(entries(events, configured_models()))
    if stats:
        _show_stats(made, as_json=as_json)
        return
    payloads = (event.payload for event in events)
    guessed = {it.request_id for it in payloads if isinstance(it, LlmCallFailed) and it.output_estimated}
    if as_json:
        layers = strata(events)
        shown = [
            {
                **msgspec.to_builtins(one.record),
                "output_estimated": one.record.request_id in guessed,
                "prefix_held": one.record.prefix_held if one.chain or one.source != "provider" else None,
                "verdict": msgspec.to_builtins(one.verdict),
                "source": one.source,
                "layers": msgspec.to_builtins(layers.get(one.record.request_id, ())),
            }
            for one in made
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    from holdfast.cli.tables import show_table

    headings = ("call", "at", "in", "read", "written", "uncached", "out", "cost", "prefix", "verdict", "lost")
    show_table(headings, (_call_row(one, guessed) for one in made), spare=("uncached", "prefix", "at"))
    _draw(made, events)
    if any(one.record.request_id in guessed for one in made):
        click.echo("~ of a call that broke off, the output is estimated from what arrived")
    keeping, pinging = keeping_cost_usd(events), pinging_cost_usd(events)
    kept = f", ${keeping:.6f} of it for caches under a name" if keeping else ""
    kept += f", ${pinging:.6f} of it for requests that asked for nothing" if pinging else ""
    handed_over = delegated(events)
    for one in handed_over:
        click.echo(f"delegated to session {one.child_session_id}: {one.outcome}, ${one.cost_usd:.6f}")
    elsewhere = sum((one.cost_usd for one in handed_over), Decimal(0))
    kept += f", ${elsewhere:.6f} of it for delegated tasks" if handed_over else ""
    total = sum((one.record.cost_usd for one in made), keeping + pinging + elsewhere)
    models = ", then ".join(dict.fromkeys(one.record.model for one in made))
    click.echo(f"{counted(len(made), 'call')}, ${total:.6f}{kept}; {models or 'none'}")
    for line in _beginning(events):
        click.echo(line)


def _draw(made: "Sequence[Entry]", events: "Sequence[Event]") -> None:
    """The prompts of the calls as bars, and of each prefix that moved what most likely moved it."""
    from holdfast.cli.session_drawing import drawing
    from holdfast.cli.tables import columns_shown
    from holdfast.ledger.strata import strata

    for line in drawing(made, strata(events), columns_shown()):
        click.echo(line)
    for one in made:
        verdict = one.verdict
        if verdict is None or (verdict.kind in ("held", "first_use") and not verdict.disagreement):
            continue
        cause = f"; likely cause: {verdict.cause}" if verdict.cause not in (None, "unknown") else ""
        at = f" at byte {verdict.byte}" if verdict.byte is not None else ""
        detail = f": {verdict.detail}" if verdict.detail else ""
        click.echo(f"call {one.record.number}: {verdict.kind}{at}{detail}{cause}")
        for line in (*verdict.diff, *([f"but {verdict.disagreement}"] if verdict.disagreement else [])):
            click.echo(f"    {line}")


@command.command("delete")
@click.argument("session_id")
@_db
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and keep it.")
def delete(session_id: str, db: str | None, yes: bool, dry_run: bool) -> None:
    """Remove one session for good, with all its events and the long outputs that were kept of it."""
    import os

    from holdfast.engine.kept_outputs import OUTPUTS, forget, outputs_of
    from holdfast.sources.home import holdfast_home

    with open_configured(db) as log:
        session_id = found_session(log, session_id)
        what = f"session {session_id} with {counted(sum(1 for _ in log.read(session_id)), 'event')}"
        outputs = outputs_of(holdfast_home(os.environ) / OUTPUTS, session_id)
        what += f" and {counted(outputs.count, 'long output')} kept in files" if outputs else ""
        if dry_run:
            click.echo(f"would delete {what}")
            return
        if not yes:
            click.confirm(f"Delete {what} for good?", abort=True)
        log.delete(session_id)
        if outputs:
            forget(outputs)
        click.echo(f"deleted {what}")


def _beginning(events: "list[Event]") -> "Iterator[str]":
    """What of it came to nothing, for whom the session works, and why its prefix is padded or not."""
    from collections import Counter

    from holdfast.canonical.usage import Usage
    from holdfast.cli.forwarded import told_of_gateway
    from holdfast.cli.requests import printable
    from holdfast.events.payloads import EpochOpened, LlmCallFailed, SessionStarted

    failed = (it for event in events if isinstance(it := event.payload, LlmCallFailed) and it.usage == Usage())
    failures = Counter(it.error_class for it in failed)
    if failures:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in failures.most_common())
        yield f"{counted(failures.total(), 'call')} more came to nothing: {kinds}"
    for event in events:
        match event.payload:
            case SessionStarted(parent=parent) if parent is not None:
                call = f", call {printable(parent.tool_use_id)}" if parent.tool_use_id else ""
                yield f"works for session {parent.session_id}{call}"
            case EpochOpened(padding=reason) if reason is not None:
                yield printable(reason)
            case _:
                pass
    yield from told_of_gateway(events)


def _show_stats(made: "tuple[Entry, ...]", *, as_json: bool) -> None:
    """What the cache did in all, what each provider was sent, and every break, the largest first."""
    import msgspec

    from holdfast.cli.requests import printable
    from holdfast.cli.tables import show_table
    from holdfast.ledger.stats import cache_breaks, cache_stats, ranked, token_stats

    counters = msgspec.structs.asdict(cache_stats(made))
    tokens = {
        provider: {**msgspec.structs.asdict(told), "hit_percent": told.hit_percent}
        for provider, told in token_stats(made).items()
    }
    breaks = ranked(cache_breaks(made))
    if as_json:
        told = {"stats": counters, "tokens": tokens, "breaks": breaks}
        click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
        return
    for name, value in counters.items():
        if value is not None:
            shown = str(value)[:DIGEST_CHARS_SHOWN] if name in DIGESTS else str(value)
            click.echo(f"{name:<34}{printable(shown)}")
    for provider, told in tokens.items():
        click.echo(f"[{provider}] in:{told['input_tokens']} cache:{told['cache_tokens']} hit:{told['hit_percent']}%")
    if breaks:
        rows = (
            ("unexpected" if one.unexpected else "expected", str(one.token_drop), one.component or "", one.reason)
            for one in breaks
        )
        show_table(("break", "tokens", "at fault", "reason"), rows)


def _session_row(row: "SessionRow") -> tuple[str, ...]:
    times = (_time(row.started_at), _time(row.last_event_at))
    return (row.id, row.name or "", row.model, *times, str(row.event_count), row.parent_session_id or "")


def _call_row(entry: "Entry", guessed: set[str]) -> tuple[str, ...]:
    call, usage = entry.record, entry.record.usage
    held = "held" if call.prefix_held else f"moved: {call.moved_layer} at byte {call.moved_byte}"
    if entry.source == "provider" and not entry.chain:
        held = ""  # Of a pruned session nobody knows what was sent.
    numbers = (usage.tokens_sent, usage.cache_read, usage.cache_write, usage.input)
    output = f"{'~' if call.request_id in guessed else ''}{usage.output}"
    money = f"${call.cost_usd:.6f}"
    return (str(call.number), _time(call.at), *map(str, numbers), output, money, held, *_told(entry))


def _told(entry: "Entry") -> tuple[str, str]:
    verdict = entry.verdict
    if verdict is None:
        return "" if entry.source == "provider" else entry.source, ""
    at_fault = f" ({verdict.component})" if verdict.component else ""
    return f"{verdict.kind}{at_fault}", f"${verdict.lost_usd:.6f}" if verdict.lost_usd else ""


def _time(at: float) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
