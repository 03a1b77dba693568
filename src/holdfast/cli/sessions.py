"""`holdfast sessions`: lists, shows and deletes stored sessions."""

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
"""Hashes that are too long for a line; their first characters are enough to tell them apart."""

_db = click.option("--db", help="Store to use instead of the configured one.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@command.command("list")
@_db
@_json
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of sessions.")
def list_sessions(db: str | None, as_json: bool, limit: int) -> None:
    """List the stored sessions, newest activity first."""
    import msgspec

    with open_configured(db) as log:
        rows = log.sessions(limit=limit)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    if not rows:
        click.echo("No sessions are stored yet; `holdfast demo --keep` creates one.")
        return
    from holdfast.cli.tables import show_table

    headings = ("session", "name", "model", "started", "last event", "events", "parent")
    # The last column, the parent, is shown only if a session has one.
    columns = None if any(row.parent_session_id for row in rows) else -1
    show_table(headings[:columns], (_session_row(row)[:columns] for row in rows), spare=("started", "model"))


@command.command("show")
@click.argument("session_id")
@_db
@_json
@click.option("--stats", is_flag=True, help="Show cache counters and cache breaks instead of the calls.")
def show(session_id: str, db: str | None, as_json: bool, stats: bool) -> None:
    """Show the calls of one session: what each sent, read, wrote and cost, and whether the prefix held."""
    from decimal import Decimal

    import msgspec

    from holdfast.events.payloads import LlmCallFailed
    from holdfast.ledger.books import entries
    from holdfast.ledger.calls import delegated, keeping_cost_usd, pinging_cost_usd
    from holdfast.ledger.strata import strata

    with open_configured(db) as log:
        events = list(log.read(found_session(log, session_id)))
    calls = tuple(entries(events, configured_models()))
    if stats:
        _show_stats(calls, as_json=as_json)
        return
    payloads = (event.payload for event in events)
    estimated = {
        payload.request_id for payload in payloads if isinstance(payload, LlmCallFailed) and payload.output_estimated
    }
    if as_json:
        layers = strata(events)
        shown = [
            {
                **msgspec.to_builtins(entry.record),
                "output_estimated": entry.record.request_id in estimated,
                "prefix_held": entry.record.prefix_held if entry.chain or entry.source != "provider" else None,
                "verdict": msgspec.to_builtins(entry.verdict),
                "source": entry.source,
                "layers": msgspec.to_builtins(layers.get(entry.record.request_id, ())),
            }
            for entry in calls
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    from holdfast.cli.tables import show_table

    headings = ("call", "at", "in", "read", "written", "uncached", "out", "cost", "prefix", "verdict", "lost")
    show_table(headings, (_call_row(entry, estimated) for entry in calls), spare=("uncached", "prefix", "at"))
    _draw(calls, events)
    if any(entry.record.request_id in estimated for entry in calls):
        click.echo("~ the call broke off; its output is estimated from what arrived")
    explicit_cache_usd, ping_usd = keeping_cost_usd(events), pinging_cost_usd(events)
    shares = f", ${explicit_cache_usd:.6f} of it for explicit caches" if explicit_cache_usd else ""
    shares += f", ${ping_usd:.6f} of it for keep-alive and prewarm requests" if ping_usd else ""
    delegations = delegated(events)
    for delegation in delegations:
        click.echo(
            f"delegated to session {delegation.child_session_id}: {delegation.outcome}, ${delegation.cost_usd:.6f}"
        )
    delegated_usd = sum((delegation.cost_usd for delegation in delegations), Decimal(0))
    shares += f", ${delegated_usd:.6f} of it for delegated tasks" if delegations else ""
    total = sum((entry.record.cost_usd for entry in calls), explicit_cache_usd + ping_usd + delegated_usd)
    models = ", then ".join(dict.fromkeys(entry.record.model for entry in calls))
    click.echo(f"{counted(len(calls), 'call')}, ${total:.6f}{shares}; {models or 'none'}")
    for line in _detail_lines(events):
        click.echo(line)


def _draw(calls: "Sequence[Entry]", events: "Sequence[Event]") -> None:
    """Draw the prompts as bars, then explain every call whose prefix changed or that lost cached tokens."""
    from holdfast.cli.session_drawing import drawing
    from holdfast.cli.tables import columns_shown
    from holdfast.ledger.strata import strata

    for line in drawing(calls, strata(events), columns_shown()):
        click.echo(line)
    for entry in calls:
        verdict = entry.verdict
        if verdict is None or (verdict.kind in ("held", "first_use") and not verdict.disagreement):
            continue
        cause = f"; likely cause: {verdict.cause}" if verdict.cause not in (None, "unknown") else ""
        at = f" at byte {verdict.byte}" if verdict.byte is not None else ""
        detail = f": {verdict.detail}" if verdict.detail else ""
        click.echo(f"call {entry.record.number}: {verdict.kind}{at}{detail}{cause}")
        for line in (*verdict.diff, *([f"but {verdict.disagreement}"] if verdict.disagreement else [])):
            click.echo(f"    {line}")


@command.command("delete")
@click.argument("session_id")
@_db
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; change nothing.")
def delete(session_id: str, db: str | None, yes: bool, dry_run: bool) -> None:
    """Delete one session for good, with all its events and its long tool outputs stored in files."""
    import os

    from holdfast.engine.kept_outputs import OUTPUTS, forget, outputs_of
    from holdfast.sources.home import holdfast_home

    with open_configured(db) as log:
        session_id = found_session(log, session_id)
        what = f"session {session_id} with {counted(sum(1 for _ in log.read(session_id)), 'event')}"
        outputs = outputs_of(holdfast_home(os.environ) / OUTPUTS, session_id)
        what += f" and {counted(outputs.count, 'long output')} stored in files" if outputs else ""
        if dry_run:
            click.echo(f"would delete {what}")
            return
        if not yes:
            click.confirm(f"Delete {what} for good?", abort=True)
        log.delete(session_id)
        if outputs:
            forget(outputs)
        click.echo(f"deleted {what}")


def _detail_lines(events: "list[Event]") -> "Iterator[str]":
    """Failed calls, the parent session, why the prefix is padded or not, and what the gateway did."""
    from collections import Counter

    from holdfast.canonical.usage import Usage
    from holdfast.cli.forwarded import told_of_gateway
    from holdfast.cli.requests import printable
    from holdfast.events.payloads import EpochOpened, LlmCallFailed, SessionStarted

    # Failed calls with usage were billed and are listed with the others; these cost nothing.
    failed = (
        payload for event in events if isinstance(payload := event.payload, LlmCallFailed) and payload.usage == Usage()
    )
    failures = Counter(payload.error_class for payload in failed)
    if failures:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in failures.most_common())
        yield f"{counted(failures.total(), 'more call')} failed: {kinds}"
    for event in events:
        match event.payload:
            case SessionStarted(parent=parent) if parent is not None:
                call = f", call {printable(parent.tool_use_id)}" if parent.tool_use_id else ""
                yield f"subagent of session {parent.session_id}{call}"
            case EpochOpened(padding=reason) if reason is not None:
                yield printable(reason)
            case _:
                pass
    yield from told_of_gateway(events)


def _show_stats(calls: "tuple[Entry, ...]", *, as_json: bool) -> None:
    """Show the cache counters, the tokens sent to each provider, and every cache break, largest first."""
    import msgspec

    from holdfast.cli.requests import printable
    from holdfast.cli.tables import show_table
    from holdfast.ledger.stats import cache_breaks, cache_stats, ranked, token_stats

    counters = msgspec.structs.asdict(cache_stats(calls))
    tokens = {
        provider: {**msgspec.structs.asdict(stats), "hit_percent": stats.hit_percent}
        for provider, stats in token_stats(calls).items()
    }
    breaks = ranked(cache_breaks(calls))
    if as_json:
        document = {"stats": counters, "tokens": tokens, "breaks": breaks}
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
        return
    for name, value in counters.items():
        if value is not None:
            shown = str(value)[:DIGEST_CHARS_SHOWN] if name in DIGESTS else str(value)
            click.echo(f"{name:<34}{printable(shown)}")
    # Seed 004 specifies the format of this line.
    for provider, stats in tokens.items():
        click.echo(f"[{provider}] in:{stats['input_tokens']} cache:{stats['cache_tokens']} hit:{stats['hit_percent']}%")
    if breaks:
        rows = (
            (
                "unexpected" if cache_break.unexpected else "expected",
                str(cache_break.token_drop),
                cache_break.component or "",
                cache_break.reason,
            )
            for cache_break in breaks
        )
        show_table(("break", "tokens", "component", "reason"), rows)


def _session_row(row: "SessionRow") -> tuple[str, ...]:
    times = (_time(row.started_at), _time(row.last_event_at))
    return (row.id, row.name or "", row.model, *times, str(row.event_count), row.parent_session_id or "")


def _call_row(entry: "Entry", estimated: set[str]) -> tuple[str, ...]:
    call, usage = entry.record, entry.record.usage
    prefix = "held" if call.prefix_held else f"changed: {call.moved_layer} at byte {call.moved_byte}"
    if entry.source == "provider" and not entry.chain:
        prefix = ""  # A pruned session has no stored requests to compare.
    numbers = (usage.tokens_sent, usage.cache_read, usage.cache_write, usage.input)
    output = f"{'~' if call.request_id in estimated else ''}{usage.output}"
    money = f"${call.cost_usd:.6f}"
    return (str(call.number), _time(call.at), *map(str, numbers), output, money, prefix, *_verdict_cells(entry))


def _verdict_cells(entry: "Entry") -> tuple[str, str]:
    verdict = entry.verdict
    if verdict is None:
        return "" if entry.source == "provider" else entry.source, ""
    component = f" ({verdict.component})" if verdict.component else ""
    return f"{verdict.kind}{component}", f"${verdict.lost_usd:.6f}" if verdict.lost_usd else ""


def _time(at: float) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
