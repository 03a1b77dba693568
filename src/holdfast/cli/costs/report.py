"""`holdfast report`: what stored sessions spent, saved and lost."""

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import format_count, format_usd, print_json
from holdfast.cli.open_store import open_configured_store, resolve_session_id
from holdfast.cli.options import db_option, json_option
from holdfast.clock import system_clock
from holdfast.errors import UserError
from holdfast.ledger.requests.format import strip_control_characters

if TYPE_CHECKING:
    from holdfast.ledger.analytics.queries import Amounts, SessionAmounts, UnpricedUsage
    from holdfast.ledger.report import CostReport

LIMIT = 10
DAYS_SHOWN_MAX = 60
BARS = "▁▂▃▄▅▆▇█"
UNCACHED_TOKENS_MIN = 4_096
"""The highest cache floor of any model: a longer prompt could have been cached on every one of them."""
UNIT_SECONDS = {"h": 3_600, "d": 86_400, "w": 604_800}


@click.command("report")
@click.option("--since", metavar="7d|12h|2w|DATE", help="Only calls from then on.")
@click.option("--session", "wanted", metavar="ID", help="Only this session; the start of its id is enough.")
@click.option("--simulated", is_flag=True, help="Include simulated sessions.")
@click.option("--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True, help="Sessions to list.")
@db_option
@json_option
def command(
    *, since: str | None, wanted: str | None, simulated: bool, limit: int, db: str | None, as_json: bool
) -> None:
    """Show what was spent and saved, what broke the cache, and which sessions lost most."""
    import msgspec

    from holdfast.ledger.analytics.queries import LedgerScope
    from holdfast.ledger.report import build_report, iter_session_amounts

    start = parse_time_option(since, system_clock()) if since else 0.0
    with open_configured_store(db) as log:
        wanted = wanted and resolve_session_id(log, wanted)
        rows = [row for row in log.sessions() if row.last_event_at >= start and wanted in (None, row.id)]
        if wanted is not None and not rows:
            raise UserError(f"session {wanted!r} has no event since then; `holdfast sessions list` shows all")
        tables = log.cost_queries()
        scope = LedgerScope(since=start, session_id=wanted, simulated=simulated or wanted is not None)
        report = build_report(tables, scope)
        # Simulated sessions cost no real money, so they are left out by default; the output says how many there are.
        everything = msgspec.structs.replace(scope, simulated=True)
        simulated_count = sum(1 for _ in iter_session_amounts(tables, everything)) - len(report.sessions)
    if as_json:
        print_json(report)
        return
    if report.sessions:
        _show(report, limit)
    if report.failures:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.failures.items())
        click.echo(f"{format_count(sum(report.failures.values()), 'call')} failed: {kinds}")
    if not (report.sessions or report.failures or simulated_count):
        click.echo("No calls are stored yet; `holdfast demo --keep` records some, which --simulated shows.")
    if simulated_count:
        click.echo(f"not counted: {format_count(simulated_count, 'simulated session')}; --simulated includes them")


def parse_time_option(since: str, now: float, *, option: str = "--since") -> float:
    """The time, as seconds since the epoch, that `7d`, `12h`, `2w` (ago) or a date such as 2026-11-01 means."""
    count, unit = since[:-1], since[-1:]
    if unit in UNIT_SECONDS and count.isascii() and count.isdigit() and len(count) < 6:
        return now - int(count) * UNIT_SECONDS[unit]
    try:
        return datetime.datetime.fromisoformat(since).replace(tzinfo=datetime.UTC).timestamp()
    except ValueError as error:
        raise UserError(f"{option} takes 7d, 12h, 2w or a date such as 2026-11-01, not {since[:40]!r}") from error


def _is_uncached(amounts: "Amounts") -> bool:
    """Whether the session sent several prompts long enough to be cached, and nothing was read or written."""
    usage = amounts.usage
    cached = usage.cache_read + usage.cache_write
    return not cached and amounts.calls > 1 and usage.tokens_sent > UNCACHED_TOKENS_MIN * amounts.calls


def _show(report: "CostReport", limit: int) -> None:
    from holdfast.cli.tables import print_table

    total = report.total
    calls = f"{format_count(total.calls, 'call')} in {format_count(len(report.sessions), 'session')}"
    unpriced_calls = sum(part.calls for part in report.unpriced)
    if unpriced_calls < total.calls or total.spent_usd:
        click.echo(
            f"${total.spent_usd:.4f} spent on {calls}; "
            f"${total.uncached_usd:.4f} without a cache: {format_usd(total.saved_usd, 4)} saved"
        )
    else:
        click.echo(f"unpriced: {calls}")
    for line in format_unpriced(report.unpriced):
        click.echo(line)
    click.echo(
        f"{total.usage.read_share:.1%} of prompt tokens were read from the cache, "
        f"{total.hit_rate:.1%} of the calls hit the cache"
    )
    if report.unreadable_calls:
        click.echo(
            f"{format_count(report.unreadable_calls, 'response')} could not be read: usage and cost are estimated by "
            "size; `holdfast sessions show ID` names the field"
        )
    if len(report.days) > 1:
        shown = report.days[-DAYS_SHOWN_MAX:]
        bars = draw_sparkline([float(day.spent_usd) for day in shown])
        click.echo(f"spent by day  {bars}  {shown[0].date} to {shown[-1].date}")
    click.echo("")
    if report.causes:
        rows = (
            (cause.kind, cause.component or "", str(cause.calls), f"{cause.tokens:,}", f"${cause.lost_usd:.4f}")
            for cause in report.causes
        )
        print_table(("cache miss", "component", "calls", "tokens", "lost"), rows)
    else:
        click.echo("No cache losses are known.")
    uncached = [session.amounts for session in report.sessions if _is_uncached(session.amounts)]
    if uncached:
        spent = sum(amounts.spent_usd for amounts in uncached)
        click.echo(
            f"{format_count(len(uncached), 'long session')} used no cache at all, for ${spent:.4f}; "
            "`holdfast sessions show ID` lists what can be fixed."
        )
    click.echo("")
    headings = ("session", "name", "model", "calls", "read", "spent", "saved", "lost", "main cause")
    unpriced = Counter({part.session_id: part.calls for part in report.unpriced})
    rows_shown = (_session_row(session, unpriced[session.id]) for session in report.sessions[:limit])
    print_table(headings, rows_shown, spare=("saved", "model", "name"))
    if len(report.sessions) > limit:
        click.echo(
            f"{format_count(len(report.sessions) - limit, 'more session')}; raise --limit, or use --json for all"
        )


def draw_sparkline(values: "list[float]") -> str:
    """One bar character per value, scaled so that the highest value is a full bar."""
    # value / top * len(BARS) is in [0, len(BARS)]; the top value itself would be one past the last bar.
    top = max(values, default=0.0)
    return "".join(BARS[min(len(BARS) - 1, int(value / top * len(BARS)))] if top else BARS[0] for value in values)


def format_unpriced(parts: "Sequence[UnpricedUsage]") -> Iterator[str]:
    """One line per model: the calls and tokens that no sum of money contains, and how to price them."""
    for model in dict.fromkeys(part.model for part in parts):
        usages = [part for part in parts if part.model == model]
        tokens_in, tokens_out = (
            sum(part.usage.tokens_sent for part in usages),
            sum(part.usage.output for part in usages),
        )
        calls = format_count(sum(part.calls for part in usages), "call")
        name = strip_control_characters(model) or "unnamed"
        yield (
            f"unpriced: {calls} of {name}, {tokens_in:,} tokens in, {tokens_out:,} out; no sum of money contains them: "
            f'add prices to [models."{name}"] in config.toml'
        )


def _session_row(session: "SessionAmounts", unpriced_calls: int) -> tuple[str, ...]:
    amounts = session.amounts
    money = (f"${amounts.spent_usd:.4f}", format_usd(amounts.saved_usd, 4), f"${amounts.lost_usd:.4f}")
    if unpriced_calls:
        money = ("unpriced", "", "") if unpriced_calls >= amounts.calls else (f"{money[0]} + unpriced", *money[1:])
    figures = (str(amounts.calls), f"{amounts.usage.read_share:.1%}", *money)
    return session.id, session.name or "", session.model, *figures, session.worst_verdict or ""
