"""`holdfast report`: where the money of stored sessions went; and how `report` and `audit` print that."""

import csv
import datetime
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from holdfast.cli.format import draw_sparkline, format_count, print_json, track_progress
from holdfast.cli.open_store import (
    load_configured_models,
    open_configured_store,
    open_spending_cache,
    resolve_session_id,
    resolve_store_address,
)
from holdfast.cli.options import db_option, parse_time_option
from holdfast.clock import system_clock
from holdfast.errors import UserError
from holdfast.ledger.requests.format import strip_control_characters

if TYPE_CHECKING:
    from holdfast.catalog.lookup import Models
    from holdfast.events.log import LogPosition, SessionRow
    from holdfast.ledger.spending import AuditScope, SessionSpending, Spending, SpendingRow
    from holdfast.replay.stored_sessions import AuditedSession
    from holdfast.stores.open import Store

LIMIT = 10
SESSIONS_MAX = 1_000
WORKERS_MAX = 2
PARALLEL_EVENTS_MIN = 50_000  # About 3 s of work: below this, starting processes takes longer than it saves.
DAYS_SHOWN_MAX = 60
ROWS_SHOWN_MAX = 8
ID_CHARACTERS = 8
PROJECT_CHARACTERS_MAX = 24
LOSS_SHARE_MIN = Decimal("0.01")
"""Smaller losses are listed without what avoids them."""
UNCACHED_TOKENS_MIN = 4_096
"""The highest cache floor of any model: a longer prompt could have been cached on every one of them."""

CAUSE_MEANINGS = {
    "ttl_expired": "no call came before the TTL ended",
    "prefix_changed": "bytes that had been sent before changed",
    "parameter_changed": "a parameter changed that cached prompts depend on",
    "planned": "done on purpose: a compaction, another model",
    "provider_side": "the same bytes in time, but not read",
    "lookback_miss": "the last breakpoint was too many blocks back",
    "model_switched": "each model has its own cache",
    "no_breakpoint": "nothing was marked for the cache",
    "image_rule": "the first image changes how a prompt is cached",
    "tail_rewritten": "the end of the prompt was written again",
    "below_floor": "shorter than the model's minimum",
}
"""Cause of a loss -> explanation for the user."""


Function = TypeVar("Function", bound=Callable[..., None])


def spending_options(command: Function) -> Function:
    """The options that `report` and `audit` share."""
    for option in reversed(
        (
            click.option("--since", metavar="7d|12h|2w|DATE", help="Only calls from then on."),
            click.option("--until", metavar="7d|12h|2w|DATE", help="Only calls before then."),
            click.option("--session", "wanted", metavar="ID", help="Only this session; the start of its id is enough."),
            click.option("--project", metavar="TEXT", help="Only projects with this in their path or name."),
            click.option("--model", metavar="TEXT", help="Only models with this in their name."),
            click.option("--simulated", is_flag=True, help="Include simulated sessions of a store."),
            click.option(
                "--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True, help="Sessions to list."
            ),
            click.option("--html", metavar="FILE", type=click.Path(dir_okay=False), help="Write a page with charts."),
            click.option("--json", "as_json", is_flag=True, help="Print JSON, with all rows."),
            click.option("--csv", "as_csv", is_flag=True, help="Print one CSV row per session."),
            click.option("--verbose", is_flag=True, help="Show days, ranges of estimates, and unknown records."),
        )
    ):
        command = option(command)
    return command


@click.command("report")
@spending_options
@db_option
def command(
    *,
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
    db: str | None,
) -> None:
    """Show where the money of stored sessions went, what cache misses cost and why, and what to do about it."""
    from holdfast.ledger.analytics.queries import LedgerScope
    from holdfast.ledger.analytics.results import count_failures, count_unreadable_calls

    check_output_options(as_json=as_json, as_csv=as_csv)
    scope = parse_scope(since, until, model, verbose=verbose)
    filters = name_filters(since=since, until=until, session=wanted, project=project, model=model)
    with open_configured_store(db) as log:
        wanted = wanted and resolve_session_id(log, wanted)
        tables = log.cost_queries()
        window = LedgerScope(scope.since, scope.until, wanted, simulated or wanted is not None)
        sessions, session_count = tables.list_sessions(window, limit=SESSIONS_MAX), tables.count_sessions(window)
        # Simulated sessions cost no real money, so they are left out by default; the output says how many there are.
        everything = msgspec.structs.replace(window, simulated=True)
        simulated_count = 0 if window.simulated else tables.count_sessions(everything) - session_count
        if wanted is not None and not sessions:
            raise UserError(f"session {wanted!r} has no call since then; `holdfast sessions list` shows all")
        address, _ = resolve_store_address(db)
        with_context = as_json or html is not None
        spending = audit_stored_sessions(log, sessions, scope, project, address=address, with_context=with_context)
        # A failed call is stored without the project that it was for.
        unreadable = None if project else count_unreadable_calls(tables, window, scope.model)
        failures = None if project else count_failures(tables, window, scope.model)
    notes = []
    if unreadable:
        notes.append(
            f"{format_count(unreadable, 'response')} could not be read: usage and cost are estimated by size; "
            "`holdfast sessions show ID` names the field"
        )
    if failures:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in failures.items())
        notes.append(f"{format_count(sum(failures.values()), 'call')} failed: {kinds}")
    if session_count > SESSIONS_MAX:
        counted = f"Only the {SESSIONS_MAX:,} sessions that spent most are counted, of {session_count:,}"
        notes.append(f"{counted}; --since narrows them.")
    if simulated_count:
        notes.append(f"not counted: {format_count(simulated_count, 'simulated session')}; --simulated includes them")
    if filters and not (spending.sessions or unreadable or failures or as_json or as_csv or html):
        raise UserError("; ".join((f"no stored call matches {filters}", *notes)))
    if not (spending.sessions or notes):
        notes.append("No calls are stored yet; `holdfast demo --keep` records some, which --simulated shows.")
    extra: dict[str, object] = {"unreadable_calls": unreadable, "failures": failures}
    if not spending.sessions and not (as_json or as_csv or html):
        for note in notes:
            click.echo(note)
        return
    write_spending(
        spending, limit=limit, html=html, as_json=as_json, as_csv=as_csv, verbose=verbose, notes=notes, extra=extra
    )


def audit_stored_sessions(
    log: "Store",
    sessions: "Sequence[SessionRow]",
    scope: "AuditScope",
    project: str | None = None,
    *,
    address: str,
    with_context: bool = False,
) -> "Spending":
    """Where the money of stored sessions went, by the verdicts of the ledger.

    `with_context` adds the prompt sizes of the most expensive session, whose log is read for it.
    """
    from holdfast.stores.spending_cache import sum_spending

    def audit(positions: "Mapping[str, LogPosition | None]") -> "Iterable[AuditedSession]":
        return _audit_logs(log, positions, scope, models, address=address) if positions else ()

    models, names = load_configured_models(), {row.id: row.name or "" for row in sessions}
    cache = open_spending_cache(models)
    spending = sum_spending(log, tuple(names), scope, audit, cache=cache, project=project or "", names=names)
    if not (with_context and spending.sessions):
        return spending
    # The rest of this command does without what an audit needs, which takes longer to load than to print a report.
    from holdfast.replay.audit import trace_context
    from holdfast.replay.stored_sessions import build_stored_transcript

    worst = build_stored_transcript(log.read(spending.sessions[0].id), spending.sessions[0].id)
    context = trace_context(worst) if worst is not None else ()
    return msgspec.structs.replace(spending, worst_session_context=context)


def _audit_logs(
    log: "Store",
    positions: "Mapping[str, LogPosition | None]",
    scope: "AuditScope",
    models: "Models",
    *,
    address: str,
) -> "Iterator[AuditedSession]":
    from holdfast.replay.audit import PriceLookup
    from holdfast.replay.stored_sessions import audit_logs, audit_logs_in_processes
    from holdfast.stores.open import open_store

    workers = min(WORKERS_MAX, os.cpu_count() or 1)
    events = sum(position.event_count for position in positions.values() if position is not None)
    # A store with a notice is read from a copy of a file, which each process would make again.
    if log.notice is not None or workers < 2 or events < PARALLEL_EVENTS_MIN:
        audited = audit_logs(log, positions, PriceLookup(models), scope)
    else:
        open_log = functools.partial(open_store, address, read_only=True)
        audited = audit_logs_in_processes(open_log, tuple(positions), models, scope, workers=workers)
    return track_progress(audited, "sessions", len(positions))


def check_output_options(*, as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise click.UsageError("--json or --csv, not both")


def name_filters(**filters: str | None) -> str:
    """The options that leave calls out, as they were written; empty if there are none."""
    return " ".join(f"--{name} {strip_control_characters(text)}" for name, text in filters.items() if text)


def parse_scope(since: str | None, until: str | None, model: str | None, *, verbose: bool) -> "AuditScope":
    from holdfast.ledger.spending import AuditScope

    now = system_clock()
    start = 0.0 if since is None else parse_time_option(since, now)
    end = 1e300 if until is None else parse_time_option(until, now, option="--until")
    return AuditScope(start, end, (model or "").lower(), verbose)


def write_spending(
    spending: "Spending",
    *,
    limit: int,
    html: str | None,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
    notes: Sequence[str] = (),
    extra: dict[str, object] | None = None,
) -> None:
    """Write the page, JSON, CSV or text that was asked for."""
    if html is not None:
        from holdfast.cli.costs.spending_page import render_spending_page

        try:
            with open(html, "w", encoding="utf-8") as file:
                file.write(render_spending_page(spending))
        except OSError as error:
            raise UserError(f"{html!r} cannot be written: {error.strerror}; name another file") from error
        click.echo(f"written: {strip_control_characters(html)}", err=True)
    if as_json:
        print_json({**_clear_unknown_costs(msgspec.to_builtins(spending)), **(extra or {})})
    elif as_csv:
        _print_csv(spending)
    elif html is None:
        _print_spending(spending, limit, verbose=verbose)
        for note in notes:
            click.echo(note)


def _print_spending(spending: "Spending", limit: int, *, verbose: bool) -> None:
    from holdfast.cli.tables import print_table, print_text

    for line in _summary_lines(spending, verbose=verbose):
        print_text(line)
    for headings, rows, spare in _list_tables(spending, limit, verbose=verbose):
        click.echo("")
        print_table(headings, rows, spare=spare)
    if len(spending.sessions) > limit:
        click.echo(
            f"{format_count(len(spending.sessions) - limit, 'more session')}; raise --limit, or use --json for all"
        )
    for line in (*_action_lines(spending), *_footnotes(spending, verbose=verbose)):
        print_text(line)


def _summary_lines(spending: "Spending", *, verbose: bool) -> Iterator[str]:
    total = spending.total
    calls = f"{format_count(total.calls, 'call')} in {format_count(len(spending.sessions), 'session')}"
    days = f"{_day(spending.from_at)} to {_day(spending.to_at)}"
    without = f"; {usd(total.uncached_usd)} without a cache: {usd(total.uncached_usd - total.usd)} saved"
    if has_no_price(total):
        yield f"unpriced: {calls}, {days}."
    else:
        yield f"You spent {usd(total.usd)} on {calls}, {days}{without if total.uncached_usd else ''}."
    usage = spending.usage
    yield (
        f"{usage.read_share:.1%} of prompt tokens were read from the cache, "
        f"{total.cache_hits / total.calls if total.calls else 0:.1%} of the calls hit the cache."
    )
    if total.cache_misses:
        share = total.lost_usd / total.usd if total.usd else 0
        misses = f"{total.cache_misses:,} cache miss{'' if total.cache_misses == 1 else 'es'}"
        yield f"{usd(total.lost_usd)} of it ({share:.0%}) went to {misses}."
    else:
        yield "No call is known to have lost anything."
    if spending.takes_breakpoints:
        planned = f"about {usd(spending.planned_usd)}"
        if verbose and spending.planned_range_usd and spending.optimum_usd is not None:
            low, high = map(usd, spending.planned_range_usd)
            planned += f" ({low} to {high[1:]}, optimum in hindsight {usd(spending.optimum_usd)})"
        if spending.unplanned_usd == total.usd:
            yield f"Holdfast's plan would have cost {planned} on the same prompts."
        else:
            without = f"Without Holdfast's rewrite it would have cost about {usd(spending.unplanned_usd)}"
            yield f"{without}; with it in every call, {planned}."


_Table = tuple[Sequence[str], Iterable[Sequence[str]], Sequence[str]]
"""Headings, rows, and the columns that may be dropped."""


def _list_tables(spending: "Spending", limit: int, *, verbose: bool) -> Iterator[_Table]:
    total = spending.total
    yield ("where it went", "tokens", "share", "dollars", "share"), make_kind_rows(total), ()
    for heading, group in (("model", spending.models), ("project", spending.projects), ("client", spending.clients)):
        if len(group) > 1 or heading == "model":
            yield (
                (heading, "calls", "tokens", "dollars", "share", "lost"),
                make_group_rows(group, total, ROWS_SHOWN_MAX),
                (),
            )
    if len(spending.days) > 1:
        shown = spending.days[-DAYS_SHOWN_MAX:]
        bars = draw_sparkline([float(day.usd) for day in shown])
        click.echo(f"\nspent by day  {bars}  {shown[0].name} to {shown[-1].name}")
        if verbose:
            yield ("day", "calls", "tokens", "dollars", "share", "lost"), make_group_rows(spending.days, total), ()
    yield from _context_tables(spending)
    losses = [
        (
            row.cause,
            row.component,
            str(row.calls),
            f"{row.tokens:,}",
            usd(row.lost_usd),
            CAUSE_MEANINGS.get(row.cause, ""),
        )
        for row in spending.losses
    ]
    if losses:
        yield ("lost to", "component", "calls", "tokens", "lost", "meaning"), losses, ("component",)
    headings = ("session", "date", "project", "model", "calls", "tokens", "spent", "lost", "main cause", "Holdfast")
    length = distinct_id_length([row.id for row in spending.sessions])
    table = [_session_row(row, length) for row in spending.sessions[:limit]]
    yield headings, table, ("tokens", "model", "Holdfast")


def _context_tables(spending: "Spending") -> Iterator[_Table]:
    tools = make_tool_rows(spending, ROWS_SHOWN_MAX)
    if tools:
        yield ("sent again: results of", "results", "tokens", "sent again", "share", "dollars"), tools, ()
    if any(row.resent_tokens for row in spending.rereads):
        headings = ("context sent again", "tokens", "of the context", "of what was sent again")
        yield headings, make_reread_rows(spending), ()


def make_kind_rows(total: "SpendingRow") -> list[tuple[str, ...]]:
    from holdfast.ledger.spending import KIND_LABELS

    return [
        (
            KIND_LABELS[row.kind],
            f"{row.tokens:,}",
            _share(row.tokens, total.tokens),
            priced_usd(row.usd, total),
            _share(row.usd, total.usd),
        )
        for row in total.kinds
    ]


def make_tool_rows(spending: "Spending", limit: int) -> list[tuple[str, ...]]:
    resent = sum(row.resent_tokens for row in spending.tools)
    return [
        (
            row.tool,
            f"{row.results:,}",
            f"{row.tokens:,}",
            f"{row.resent_tokens:,}",
            _share(row.resent_tokens, resent),
            priced_usd(row.usd, spending.total),
        )
        for row in [row for row in spending.tools if row.resent_tokens][:limit]
    ]


def make_reread_rows(spending: "Spending") -> list[tuple[str, ...]]:
    context = sum(row.context_tokens for row in spending.rereads)
    resent = sum(row.resent_tokens for row in spending.rereads)
    return [
        (
            _format_times(row.times_min, row.times_max),
            f"{row.context_tokens:,}",
            _share(row.context_tokens, context),
            _share(row.resent_tokens, resent),
        )
        for row in spending.rereads
        if row.context_tokens
    ]


def _format_times(times_min: int, times_max: int | None) -> str:
    if times_max is None:
        return f"{times_min} times or more"
    return f"{times_min} to {times_max} times" if times_max else "never"


def make_group_rows(
    group: "Sequence[SpendingRow]", total: "SpendingRow", limit: int | None = None, *, whole_names: bool = False
) -> list[tuple[str, ...]]:
    return [
        (
            row.name if whole_names else shorten_name(row.name),
            f"{row.calls:,}",
            f"{row.tokens:,}",
            row_usd(row),
            _share(row.usd, total.usd),
            priced_usd(row.lost_usd, row),
        )
        for row in group[:limit]
    ]


def _action_lines(spending: "Spending") -> Iterator[str]:
    remedies: dict[str, str] = {}
    for row in spending.losses:
        if row.remedy and row.lost_usd >= spending.total.usd * LOSS_SHARE_MIN:
            remedies[row.cause] = row.remedy
    if remedies:
        yield "\nWhat avoids these losses:"
        yield from (f"- {cause}: {remedy}" for cause, remedy in remedies.items())
    if not spending.actions:
        return
    yield "\nWhat to do:"
    for number, action in enumerate(spending.actions, 1):
        yield f"{number}. {action.action}: about {usd(action.usd_a_week)} a week less."
        yield f"   How: {action.how}."
        yield f"   Assumed: {action.assumption}."


def _footnotes(spending: "Spending", *, verbose: bool) -> Iterator[str]:
    yield "\nPrices are those of each day. What is saved is an estimate from prompt sizes and times."
    for row in spending.models:
        if row.unpriced_calls:
            name = strip_control_characters(row.name) or "unnamed"
            amount = f"{format_count(row.unpriced_calls, 'call')} of {name}, {row.unpriced_tokens:,} tokens"
            yield (f'unpriced: {amount}; no sum of money contains them: add prices to [models."{name}"] in config.toml')
    uncached = [row.amounts for row in spending.sessions if _is_uncached(row.amounts)]
    if uncached:
        spent = sum(amounts.usd for amounts in uncached)
        yield (
            f"{format_count(len(uncached), 'long session')} used no cache at all, for {usd(spent)}; "
            "`holdfast sessions show ID` lists what can be fixed."
        )
    if spending.broken_lines:
        first = strip_control_characters(spending.broken[0]) if spending.broken else ""
        yield f"skipped: {format_count(spending.broken_lines, 'broken line')}, the first at {first}"
    if verbose and spending.unknown_records:
        kinds = ", ".join(
            f"{strip_control_characters(kind)} ({count:,})" for kind, count in spending.unknown_records.items()
        )
        yield f"records of unknown kinds: {kinds}"


def _is_uncached(row: "SpendingRow") -> bool:
    """Whether the session sent several prompts long enough to be cached, and nothing was read or written."""
    cached = any(amount.kind.startswith("cache_") for amount in row.kinds)
    return not cached and row.calls > 1 and row.tokens > UNCACHED_TOKENS_MIN * row.calls


def _clear_unknown_costs(value: Any) -> Any:
    """Null instead of 0 in every row whose calls have no price, and in the rows within it."""
    if isinstance(value, tuple):
        return [_clear_unknown_costs(item) for item in value]
    if not isinstance(value, dict):
        return value
    amounts = next((value[name] for name in ("amounts", "total") if name in value), value)
    if not (amounts.get("unpriced_calls") and Decimal(amounts["usd"]) == 0):
        return {name: _clear_unknown_costs(item) for name, item in value.items()}
    return _clear_costs(value)


def _clear_costs(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_clear_costs(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: None if name.endswith("usd") else _clear_costs(item) for name, item in value.items()}


def _print_csv(spending: "Spending") -> None:
    from holdfast.ledger.spending import KINDS

    writer = csv.writer(sys.stdout, lineterminator="\n")
    columns = ("session", "name", "client", "project", "model", "started", "ended", "calls", "subagents", "compactions")
    amounts = ("tokens", "unpriced_calls", "unpriced_tokens", "usd", "lost_usd", "planned_usd", "main_cause")
    by_kind = tuple(f"{kind}_{unit}" for kind in KINDS for unit in ("tokens", "usd"))
    writer.writerow((*columns, *amounts, *by_kind))
    for row in spending.sessions:
        kinds = {amount.kind: amount for amount in row.amounts.kinds}
        total, is_unpriced = row.amounts, has_no_price(row.amounts)
        cells = [
            str(value)
            for kind in KINDS
            for value in (
                kinds[kind].tokens if kind in kinds else 0,
                "" if is_unpriced else kinds[kind].usd if kind in kinds else 0,
            )
        ]
        text = (row.id, row.name, row.client, row.project, row.model)
        figures = (_time(row.started_at), _time(row.ended_at), row.amounts.calls, row.subagents, row.compactions)
        tokens = (total.tokens, total.unpriced_calls, total.unpriced_tokens)
        money = ("", "", "") if is_unpriced else (total.usd, total.lost_usd, row.planned_usd)
        writer.writerow((*map(_csv_text, text), *figures, *tokens, *money, row.main_cause, *cells))


def _csv_text(text: str) -> str:
    """A text that begins like a formula would be run by a spreadsheet: an apostrophe makes it text again."""
    clean = strip_control_characters(text)
    return f"'{clean}" if clean.startswith(("=", "+", "-", "@")) else clean


def distinct_id_length(ids: "Sequence[str]") -> int:
    """The shortest length, from ID_CHARACTERS on, at which all shortened ids differ."""
    longest = max(map(len, ids), default=ID_CHARACTERS)
    lengths = range(ID_CHARACTERS, longest)
    return next((length for length in lengths if len({id[:length] for id in ids}) == len(set(ids))), longest)


def _session_row(row: "SessionSpending", id_characters: int) -> tuple[str, ...]:
    agents = f"+{row.subagents}" if row.subagents else ""
    return (
        row.id[:id_characters],
        _day(row.started_at),
        (row.name or shorten_name(row.project))[:PROJECT_CHARACTERS_MAX],
        row.model.rpartition(":")[2].removeprefix("claude-"),
        f"{row.amounts.calls}{agents}",
        f"{row.amounts.tokens:,}",
        row_usd(row.amounts),
        priced_usd(row.amounts.lost_usd, row.amounts),
        row.main_cause,
        priced_usd(row.planned_usd, row.amounts),
    )


def shorten_name(name: str) -> str:
    """The last part of a path; names of models keep their provider."""
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2] or name


def row_usd(row: "SpendingRow") -> str:
    """The dollars of a row, and whether calls without a price are missing from them."""
    if has_no_price(row):
        return "unpriced"
    return f"{usd(row.usd)} + unpriced" if row.unpriced_calls else usd(row.usd)


def priced_usd(amount: object, row: "SpendingRow") -> str:
    """Empty where the calls of the row have no price: nothing is known to have cost $0.00."""
    return "" if has_no_price(row) else usd(amount)


def has_no_price(row: "SpendingRow") -> bool:
    return bool(row.unpriced_calls and not row.usd)


def usd(amount: object) -> str:
    number = float(str(amount))
    sign, number = ("-" if number < 0 else ""), abs(number)
    return f"{sign}${number:,.2f}" if number >= 1 else f"{sign}${number:.4f}"


def _share(part: object, whole: object) -> str:
    total = float(str(whole))
    return f"{float(str(part)) / total:.1%}" if total else ""


def _day(at: float) -> str:
    from holdfast.ledger.spending import format_day

    return format_day(at)


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
