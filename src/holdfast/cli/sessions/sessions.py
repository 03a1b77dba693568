"""`holdfast sessions` and `holdfast history`: lists, shows and deletes stored sessions, and prints their messages."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, get_args

import click
import msgspec

from holdfast.cli.chat.format import FILLS, divide_bar_cells
from holdfast.cli.format import CommandGroup, format_count, format_local_time, format_usd, print_json
from holdfast.cli.open_store import (
    load_configured_models,
    open_configured_store,
    open_spending_cache,
    resolve_session_id,
)
from holdfast.cli.options import OptionValueError, db_option, json_option, parse_time_option
from holdfast.clock import system_clock
from holdfast.engine.compaction.history import groups_containing, read_logged_messages, render_messages
from holdfast.engine.tools.output import OUTPUTS_FOLDER, delete_outputs, find_outputs
from holdfast.errors import UserError
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RequestPrepared,
)
from holdfast.events.payloads.session import EpochOpened, SessionStarted
from holdfast.ledger.accounting import LedgerEntry, iter_entries
from holdfast.ledger.cache.prompt_cache import (
    compute_cache_stats,
    compute_token_stats,
    iter_cache_breaks,
    rank_cache_breaks,
)
from holdfast.ledger.cache.verdicts import NO_BREAKS, VerdictKind
from holdfast.ledger.calls import explicit_cache_cost_usd, list_delegations, ping_cost_usd
from holdfast.ledger.money import to_dollars
from holdfast.ledger.requests.format import strip_control_characters
from holdfast.runtime.compaction import SessionCompactions, report_compactions
from holdfast.sources.files import holdfast_home
from holdfast.types.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.events.log import Event
    from holdfast.ledger.analytics.queries import ListedSession
    from holdfast.ledger.layers import LayerSize

    LayerSizesByRequest = Mapping[str, Sequence[LayerSize]]

CALLS_DRAWN_MAX = 40
BAR_CELLS_MAX = 48
LABEL_CHARACTERS = 32
"""Room beside a bar for the call's number and verdict."""
DIGEST_CHARS_SHOWN = 16
SORTS = ("activity", "started", "spent", "lost", "read_share", "calls")
TIMES = ("since", "until")
DIGESTS = ("last_request_hash", "last_completion_cache_key")
"""Hashes that are too long for a line; their first characters are enough to tell them apart."""


@click.group("sessions", cls=CommandGroup)
def command() -> None:
    """List, show and delete stored sessions."""


@command.command("list")
@db_option
@json_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of sessions.")
@click.option("--search", metavar="TEXT", help="Only with this in name, first words, client, model or id.")
@click.option("--client", metavar="TEXT", help="Only clients with this in their name.")
@click.option("--model", metavar="TEXT", help="Only models with this in their name.")
@click.option("--key", metavar="ID", help="Only calls with this gateway key.")
@click.option("--user", metavar="NAME", help="Only this user's.")
@click.option("--team", metavar="NAME", help="Only this team's.")
@click.option("--verdict", metavar="NAME", help="Only with a call that lost by this verdict, as prefix_changed.")
@click.option("--since", metavar="7d|12h|2w|DATE", help="Only those active since then.")
@click.option("--until", metavar="7d|12h|2w|DATE", help="Only those that started before then.")
@click.option("--real", is_flag=True, help="Leave out simulated sessions.")
@click.option(
    "--sort", type=click.Choice(SORTS), default="activity", show_default=True, help="Largest or newest first."
)
def list_sessions(*, db: str | None, as_json: bool, limit: int, real: bool, sort: str, **wanted: str | None) -> None:
    """List the stored sessions, newest activity first, with their calls, read share, spending and losses."""
    from holdfast.ledger.analytics.queries import SessionFilter, SessionOrdering, format_session_titles

    now = system_clock()
    texts = {name: text for name in TIMES if (text := wanted[name]) is not None}
    times = {name: parse_time_option(text, now, option=f"--{name}") for name, text in texts.items()}
    fields = {name: value for name, value in wanted.items() if name not in TIMES}
    try:
        filter_ = msgspec.convert({**fields, **times, "simulated": not real}, SessionFilter)
        ordering = msgspec.convert({"sort": sort}, SessionOrdering)
    except msgspec.ValidationError as error:
        kinds = ", ".join(get_args(VerdictKind))
        raise OptionValueError(f"--verdict takes one of {kinds}, not {wanted['verdict']!r}") from error
    with open_configured_store(db) as log:
        listed = log.analytics_queries().find_sessions(filter_, ordering, limit=limit)
        is_empty = not listed and not log.sessions(limit=1)
    titles = format_session_titles((session.row for session in listed), quotes_prompt=True)
    if as_json:
        print_json([_describe_listed(session, titles[session.row.id]) for session in listed])
        return
    if not listed:
        click.echo(
            "No sessions are stored yet; `holdfast demo --keep` creates one." if is_empty else "No session matches."
        )
        return
    from holdfast.cli.tables import print_table

    headings = ("session", "title", "model", "last event", "calls", "read", "spent", "lost", "verdict", "parent")
    # The last column, the parent, is shown only if a session has one.
    columns = None if any(session.row.parent_session_id for session in listed) else -1
    rows = (_session_row(session, titles[session.row.id])[:columns] for session in listed)
    print_table(headings[:columns], rows, spare=("parent", "verdict", "model", "last event", "calls"))


@command.command("show")
@click.argument("session_id")
@db_option
@json_option
@click.option("--stats", is_flag=True, help="Show cache counters and cache breaks instead of the calls.")
def show_session(session_id: str, db: str | None, as_json: bool, stats: bool) -> None:
    """Show the calls of one session: what each sent, read, wrote and cost, and whether the prefix held."""
    from holdfast.ledger.layers import compute_layer_runs

    with open_configured_store(db) as log:
        session_id = resolve_session_id(log, session_id)
        events = list(log.read(session_id))
    catalog = load_configured_models()
    calls = tuple(iter_entries(events, catalog))
    if stats:
        _show_stats(calls, as_json=as_json)
        return
    compactions = report_compactions(events, session_id, catalog)
    payloads = (event.payload for event in events)
    estimated = {
        payload.request_id for payload in payloads if isinstance(payload, LlmCallFailed) and payload.is_output_estimated
    }
    if as_json:
        layers = compute_layer_runs(events)
        shown = [
            {
                **msgspec.to_builtins(entry.record),
                **({"cost_usd": None} if entry.is_unpriced else {}),
                "output_estimated": entry.record.request_id in estimated,
                "prefix_held": entry.is_prefix_held,
                "verdict": msgspec.to_builtins(entry.verdict),
                "source": entry.source,
                "layers": msgspec.to_builtins(layers.get(entry.record.request_id, ())),
            }
            for entry in calls
        ]
        print_json({"calls": shown, **msgspec.to_builtins(compactions)})
        return
    from holdfast.cli.tables import print_table, print_text

    headings = ("call", "at", "in", "read", "written", "uncached", "out", "cost", "prefix", "verdict", "lost")
    print_table(headings, (_call_row(entry, estimated) for entry in calls), spare=("uncached", "prefix", "at"))
    _draw(calls, events)
    if any(entry.record.request_id in estimated for entry in calls):
        print_text("~ the call broke off; what the provider did not report is estimated")
    explicit_cache_usd, ping_usd = explicit_cache_cost_usd(events), ping_cost_usd(events)
    shares = f", ${explicit_cache_usd:.6f} of it for explicit caches" if explicit_cache_usd else ""
    shares += f", ${ping_usd:.6f} of it for keep-alive and prewarm requests" if ping_usd else ""
    delegations = list_delegations(events)
    for delegation in delegations:
        click.echo(
            f"delegated to session {delegation.child_session_id}: {delegation.outcome}, ${delegation.cost_usd:.6f}"
        )
    delegated_usd = sum((delegation.cost_usd for delegation in delegations), Decimal(0))
    shares += f", ${delegated_usd:.6f} of it for delegated tasks" if delegations else ""
    total = sum((entry.record.cost_usd for entry in calls), explicit_cache_usd + ping_usd + delegated_usd)
    models = ", then ".join(dict.fromkeys(entry.record.model for entry in calls))
    unpriced = [entry.record.usage for entry in calls if entry.is_unpriced]
    cost = f"${total:.6f}{shares}" if total or len(unpriced) < len(calls) or not calls else "unpriced"
    if unpriced and cost != "unpriced":
        cost += f", {format_count(len(unpriced), 'call')} unpriced"
    if unpriced:
        cost += f" ({sum(usage.tokens_sent + usage.output for usage in unpriced):,} tokens)"
    print_text(f"{format_count(len(calls), 'call')}, {cost}; {models or 'none'}")
    for line in (*_detail_lines(events), *describe_compactions(compactions)):
        print_text(line)


def _draw(calls: "Sequence[LedgerEntry]", events: "Sequence[Event]") -> None:
    """Draw the prompts as bars, then explain every call whose prefix changed or that lost cached tokens."""
    from holdfast.cli.tables import get_table_width, print_text
    from holdfast.ledger.layers import compute_layer_runs

    for line in draw_calls(calls, compute_layer_runs(events), get_table_width()):
        click.echo(line)
    for entry in calls:
        verdict = entry.verdict
        if verdict is None or (verdict.kind in NO_BREAKS and not verdict.disagreement):
            continue
        cause = f"; likely cause: {verdict.cause}" if verdict.cause not in (None, "unknown") else ""
        at = f" at byte {verdict.byte}" if verdict.byte is not None else ""
        detail = f": {verdict.detail}" if verdict.detail else ""
        print_text(f"call {entry.record.number}: {verdict.kind}{at}{detail}{cause}")
        for line in (*verdict.diff, *([f"but {verdict.disagreement}"] if verdict.disagreement else [])):
            click.echo(f"    {line}")


@command.command("delete")
@click.argument("session_id")
@db_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; change nothing.")
def delete_session(session_id: str, db: str | None, yes: bool, dry_run: bool) -> None:
    """Delete one session for good, with all its events and its long tool outputs stored in files."""
    with open_configured_store(db, writable=True) as log:
        session_id = resolve_session_id(log, session_id)
        what = f"session {session_id} with {format_count(sum(1 for _ in log.read(session_id)), 'event')}"
        outputs = find_outputs(holdfast_home(os.environ) / OUTPUTS_FOLDER, session_id)
        what += f" and {format_count(outputs.count, 'long output')} stored in files" if outputs else ""
        if dry_run:
            click.echo(f"would delete {what}")
            return
        if not yes:
            click.confirm(f"Delete {what} for good?", abort=True)
        positions = log.read_positions((session_id,))
        log.delete(session_id)
        open_spending_cache(load_configured_models()).forget(positions)
        if outputs:
            delete_outputs(outputs)
        click.echo(f"deleted {what}")


def _detail_lines(events: "list[Event]") -> "Iterator[str]":
    """Failed calls, the parent session, why the prefix is padded or not, and what the gateway did."""
    # Failed calls with usage were billed and are listed with the others; these cost nothing.
    failed = (
        payload for event in events if isinstance(payload := event.payload, LlmCallFailed) and payload.usage == Usage()
    )
    failures = Counter(payload.error_class for payload in failed)
    if failures:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in failures.most_common())
        yield f"{format_count(failures.total(), 'more call')} failed: {kinds}"
    for event in events:
        match event.payload:
            case SessionStarted(parent=parent) if parent is not None:
                call = f", call {strip_control_characters(parent.tool_use_id)}" if parent.tool_use_id else ""
                yield f"subagent of session {parent.session_id}{call}"
            case EpochOpened(padding=reason) if reason is not None:
                yield strip_control_characters(reason)
            case _:
                pass
    yield from describe_gateway_session(events)
    yield from describe_unreadable_calls(events)


def _show_stats(calls: "tuple[LedgerEntry, ...]", *, as_json: bool) -> None:
    """Show the cache counters, the tokens sent to each provider, and every cache break, largest first."""
    from holdfast.cli.tables import print_table

    counters = msgspec.structs.asdict(compute_cache_stats(calls))
    tokens = {
        provider: {**msgspec.structs.asdict(stats), "hit_percent": stats.hit_percent}
        for provider, stats in compute_token_stats(calls).items()
    }
    breaks = rank_cache_breaks(iter_cache_breaks(calls))
    if as_json:
        print_json({"stats": counters, "tokens": tokens, "breaks": breaks})
        return
    for name, value in counters.items():
        if value is not None:
            shown = str(value)[:DIGEST_CHARS_SHOWN] if name in DIGESTS else str(value)
            click.echo(f"{name:<34}{strip_control_characters(shown)}")
    # Seed 004 specifies the format of this line.
    for provider, stats in tokens.items():
        click.echo(f"[{provider}] in:{stats['input_tokens']} cache:{stats['cache_tokens']} hit:{stats['hit_percent']}%")
    if breaks:
        rows = (
            ("unexpected" if row.unexpected else "expected", str(row.token_drop), row.component or "", row.reason)
            for row in breaks
        )
        print_table(("break", "tokens", "component", "reason"), rows)


def _describe_listed(session: "ListedSession", title: str) -> dict[str, object]:
    amounts = session.amounts
    return {
        **msgspec.to_builtins(session.row),
        "is_simulated": bool(session.row.is_simulated),
        "title": title,
        "calls": amounts.calls,
        "unpriced_calls": session.unpriced_calls,
        "read_share": amounts.usage.read_share if amounts.usage.tokens_sent else None,
        "spent_usd": amounts.spent_usd,
        "lost_usd": amounts.lost_usd,
        "verdict": session.verdict,
    }


def _session_row(session: "ListedSession", title: str) -> tuple[str, ...]:
    row, amounts = session.row, session.amounts
    is_unpriced = 0 < amounts.calls <= session.unpriced_calls
    return (
        row.id,
        title + (" (simulated)" if row.is_simulated else ""),
        row.model,
        format_local_time(row.last_event_at),
        str(amounts.calls),
        f"{amounts.usage.read_share:.0%}" if amounts.usage.tokens_sent else "",
        "unpriced" if is_unpriced else format_usd(amounts.spent_usd, 4),
        format_usd(amounts.lost_usd, 4) if amounts.lost_usd else "",
        session.verdict or "",
        row.parent_session_id or "",
    )


def _call_row(entry: "LedgerEntry", estimated: set[str]) -> tuple[str, ...]:
    call, usage, is_held = entry.record, entry.record.usage, entry.is_prefix_held
    changed = f"changed: {call.changed_layer} at byte {call.changed_byte}"
    prefix = "" if is_held is None else "held" if is_held else changed
    numbers = (usage.tokens_sent, usage.cache_read, usage.cache_write, usage.input)
    output = f"{'~' if call.request_id in estimated else ''}{usage.output}"
    money = "unpriced" if entry.is_unpriced else f"${call.cost_usd:.6f}"
    number, at = str(call.number), format_local_time(call.at)
    return number, at, *map(str, numbers), output, money, prefix, *_verdict_cells(entry)


def _verdict_cells(entry: "LedgerEntry") -> tuple[str, str]:
    verdict = entry.verdict
    if verdict is None:
        return "" if entry.source == "provider" else entry.source, ""
    component = f" ({verdict.component})" if verdict.component else ""
    return f"{verdict.kind}{component}", f"${verdict.lost_usd:.6f}" if verdict.lost_usd else ""


def draw_calls(entries: Sequence[LedgerEntry], layer_sizes: "LayerSizesByRequest", width: int) -> list[str]:
    """One line per call for the newest `CALLS_DRAWN_MAX` calls, then a legend of the layers."""
    drawn = [entry for entry in entries if layer_sizes.get(entry.record.request_id)][-CALLS_DRAWN_MAX:]
    if not drawn:
        return []
    names = list(dict.fromkeys(size.layer for entry in drawn for size in layer_sizes[entry.record.request_id]))
    fills = {name: FILLS[number % len(FILLS)] for number, name in enumerate(names)}
    longest = max(entry.record.usage.tokens_sent for entry in drawn)
    cells_max = max(8, min(BAR_CELLS_MAX, width - LABEL_CHARACTERS))
    lines = [_line(entry, layer_sizes[entry.record.request_id], fills, cells_max, longest=longest) for entry in drawn]
    legend = "  ".join(f"{fill} {strip_control_characters(name)}" for name, fill in fills.items())
    left_out = len(entries) - len(drawn)
    return [*lines, legend, *([f"{format_count(left_out, 'earlier call')} not drawn"] if left_out else [])]


def _line(
    entry: LedgerEntry, sizes: Sequence["LayerSize"], fills: Mapping[str, str], cells_max: int, *, longest: int
) -> str:
    tokens_sent = entry.record.usage.tokens_sent
    cells = max(1, round(cells_max * tokens_sent / longest)) if longest else 1
    shares = divide_bar_cells([size.bytes for size in sizes], cells)
    bar = "".join(fills[size.layer] * count for size, count in zip(sizes, shares, strict=True))
    verdict = entry.verdict
    label: str = "" if verdict is None else verdict.kind
    if verdict is not None and verdict.lost_usd:
        label += f" -${verdict.lost_usd:.4f}"
    return f"{entry.record.number:>4} {bar:<{cells_max}} {label}".rstrip()


def describe_unreadable_calls(events: "Iterable[Event]") -> "Iterator[str]":
    """What could not be decoded of the calls of another client."""
    unreadable: Counter[str] = Counter()
    for event in events:
        match event.payload:
            case GatewayForwarded(unreadable=tuple(parts)) | RequestPrepared(unreadable=tuple(parts)):
                unreadable.update(f"request: {part}" for part in parts)
            case LlmCallCompleted(unreadable=str(reason)):
                unreadable[f"response: {reason}"] += 1
            case LlmCallFailed(error_class="unreadable", error_message_redacted=reason):
                unreadable[f"response, usage estimated by size: {reason}"] += 1
            case _:
                pass
    for part, count in unreadable.most_common():
        yield f"not decoded in {format_count(count, 'call')}: {strip_control_characters(part)}"


def describe_compactions(found: "SessionCompactions") -> "Iterator[str]":
    """Each compaction with its sizes, what it removed and whether it was undone; then the summary in view."""
    for report in found.compactions:
        removed = f"{format_count(report.cleared, 'result')} cleared"
        if report.has_summary:
            removed = f"messages m{report.first} to m{report.last} became a summary"
        sizes = f"{report.tokens_before:,} -> {report.tokens_after:,} tokens"
        notes = "".join(f"; {strip_control_characters(note)}" for note in report.notes)
        state = "; undone" if report.is_undone else ""
        yield f"compaction ({report.trigger}): {sizes}, {removed}{notes}{state}"
    if found.compressed_summary:
        yield "summary in view:"
        yield from (f"  {strip_control_characters(line)}" for line in found.compressed_summary.splitlines())
    if found.dropped:
        kinds = Counter(content.kind for content in found.dropped)
        tokens = sum(content.tokens for content in found.dropped)
        listed = ", ".join(format_count(count, kind) for kind, count in kinds.most_common())
        yield f"not in view: {listed} ({tokens:,} tokens); --json lists them, `holdfast history` shows them"
    if found.undo:
        yield found.undo


def describe_gateway_session(events: "Iterable[Event]") -> "Iterator[str]":
    """How its calls were matched to one session, which anti-patterns can be fixed, and what a rewrite saves."""
    from holdfast.replay.audit import PriceLookup
    from holdfast.replay.counterfactual import list_anti_patterns
    from holdfast.replay.stored_sessions import audit_stored_session

    log = list(events)
    forwarded = [event.payload for event in log if isinstance(event.payload, GatewayForwarded)]
    if not forwarded:
        return
    least_certain = min(forwarded, key=lambda payload: payload.confidence)
    yield (
        f"sent through the gateway; calls matched to this session with at least {least_certain.confidence:.0%} "
        f"confidence: {strip_control_characters(least_certain.reason)}"
    )
    for row in list_anti_patterns(log):
        price = f", which would save ${row.usd:.6f}" if row.usd > 0 else ""
        fixed = "fixed" if row.is_fixed else "can be fixed"
        yield f"{fixed} in {format_count(row.calls, 'call')}: {strip_control_characters(row.anti_pattern)}{price}"
    conversation = audit_stored_session(log, "", PriceLookup(load_configured_models()))
    if conversation is not None and conversation.unplanned is not None:
        unplanned, planned = to_dollars(conversation.unplanned), to_dollars(conversation.planned)
        reason = f": {conversation.overspent}" if conversation.overspent else ""
        saved = f"{format_usd(unplanned - planned, 6)} saved{reason}"
        yield f"${unplanned:.6f} without a rewrite, ${planned:.6f} with one: {saved}"


@click.command("history")
@click.argument("session_id", metavar="SESSION")
@click.option(
    "--range", "wanted", metavar="RANGE", help="Messages to show: m12 or 12-20. A tool call is shown with its result."
)
@db_option
@json_option
def history(session_id: str, wanted: str | None, db: str | None, as_json: bool) -> None:
    """Show the messages of a session with the numbers by which compaction summaries refer to them.

    Compacted messages are included.
    """
    from holdfast.engine.tools.builtin.history import parse_message_range

    numbers = parse_message_range(wanted) if wanted is not None else (1, 10**9)
    if numbers is None:
        raise OptionValueError(f"{wanted!r} is not a range of messages; write m12 or 12-20")
    with open_configured_store(db) as log:
        session_id = resolve_session_id(log, session_id)
        events = list(log.read(session_id))
    entries = read_logged_messages(events)
    if not entries and any(isinstance(event.payload, LlmCallStarted) for event in events):
        raise UserError(
            f"session {session_id!r} was recorded from another client or was pruned: the log has no messages of it"
        )
    selected = [entry for group in groups_containing(entries, *numbers) for entry in group]
    if not selected:
        last = entries[-1].number if entries else 0
        raise UserError(f"session {session_id!r} has no such messages; its last is m{last}")
    if as_json:
        fields = ("number", "role", "layer", "content")
        print_json([{name: getattr(entry, name) for name in fields} for entry in selected], redact=False)
        return
    for line in render_messages(selected).split("\n"):
        click.echo(strip_control_characters(line))
