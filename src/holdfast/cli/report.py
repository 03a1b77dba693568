"""`holdfast report`: what stored sessions spent, saved and lost."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted, dollars
from holdfast.cli.stores import found_session, open_configured

if TYPE_CHECKING:
    from holdfast.ledger.report import Report
    from holdfast.ledger.tables import Amounts, SessionAmounts

LIMIT = 10
DAYS_SHOWN_MAX = 60
BARS = "▁▂▃▄▅▆▇█"
UNCACHED_TOKENS_MIN = 4_096
"""No model's floor lies higher."""
UNITS_SECONDS = {"h": 3_600, "d": 86_400, "w": 604_800}


@click.command("report")
@click.option("--since", metavar="7d|12h|2w|DATE", help="Only calls from then on.")
@click.option("--session", "wanted", metavar="ID", help="Only this session; the start of its id is enough.")
@click.option("--simulated", is_flag=True, help="Count simulated sessions too.")
@click.option("--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True, help="Sessions to list.")
@click.option("--db", help="Store to use instead of the configured one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *, since: str | None, wanted: str | None, simulated: bool, limit: int, db: str | None, as_json: bool
) -> None:
    """Show what was spent and saved, what broke the cache, and which sessions lost most."""
    import msgspec

    from holdfast.clock import system_clock
    from holdfast.errors import UserError
    from holdfast.ledger.report import all_sessions, report_of
    from holdfast.ledger.tables import Scope

    start = seconds_of(since, system_clock()) if since else 0.0
    with open_configured(db) as log:
        wanted = wanted and found_session(log, wanted)
        rows = [row for row in log.sessions() if row.last_event_at >= start and wanted in (None, row.id)]
        if wanted is not None and not rows:
            raise UserError(f"there is no session {wanted!r} in that time; `holdfast sessions list` shows all")
        tables, scope = log.tables(), Scope(since=start, session_id=wanted, simulated=simulated or wanted is not None)
        report = report_of(tables, scope)
        everything = msgspec.structs.replace(scope, simulated=True)
        played = sum(1 for _ in all_sessions(tables, everything)) - len(report.sessions)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
        return
    if report.sessions:
        _show(report, limit)
    elif not played:
        click.echo("No call is stored yet; `holdfast demo --keep` plays some, which --simulated shows.")
    if played:
        click.echo(f"not counted: {counted(played, 'simulated session')}; --simulated counts all")


def seconds_of(since: str, now: float, *, option: str = "--since") -> float:
    """The time that is meant by 7d, 12h, 2w, or a day such as 2026-11-01."""
    import datetime

    from holdfast.errors import UserError

    count, unit = since[:-1], since[-1:]
    if unit in UNITS_SECONDS and count.isascii() and count.isdigit() and len(count) < 6:
        return now - int(count) * UNITS_SECONDS[unit]
    try:
        return datetime.datetime.fromisoformat(since).replace(tzinfo=datetime.UTC).timestamp()
    except ValueError as error:
        raise UserError(f"{option} takes 7d, 12h, 2w or a day such as 2026-11-01, not {since[:40]!r}") from error


def _is_uncached(amounts: "Amounts") -> bool:
    """Whether prompts that any provider would have cached were sent several times, and nothing of them was."""
    usage = amounts.usage
    cached = usage.cache_read + usage.cache_write
    return not cached and amounts.calls > 1 and usage.tokens_sent > UNCACHED_TOKENS_MIN * amounts.calls


def _show(report: "Report", limit: int) -> None:
    from holdfast.cli.tables import show_table

    total = report.total
    what = f"{counted(total.calls, 'call')} in {counted(len(report.sessions), 'session')}"
    click.echo(
        f"${total.spent_usd:.4f} spent on {what}; "
        f"${total.uncached_usd:.4f} without a cache: {dollars(total.saved_usd, 4)} saved"
    )
    click.echo(
        f"{total.usage.read_share:.1%} of prompt tokens were read from the cache, "
        f"{total.hit_rate:.1%} of the calls read something"
    )
    if len(report.days) > 1:
        shown = report.days[-DAYS_SHOWN_MAX:]
        bars = sparkline([float(day.spent_usd) for day in shown])
        click.echo(f"spent by day  {bars}  {shown[0].date} to {shown[-1].date}")
    click.echo("")
    if report.causes:
        rows = (
            (cause.kind, cause.component or "", str(cause.calls), f"{cause.tokens:,}", f"${cause.lost_usd:.4f}")
            for cause in report.causes
        )
        show_table(("not read because", "at fault", "calls", "tokens", "lost"), rows)
    else:
        click.echo("No call is known to have lost anything.")
    bare = [one.amounts for one in report.sessions if _is_uncached(one.amounts)]
    if bare:
        spent = sum(amounts.spent_usd for amounts in bare)
        click.echo(
            f"{counted(len(bare), 'long session')} used no cache at all, for ${spent:.4f}; "
            "`holdfast sessions show ID` names what could be mended."
        )
    click.echo("")
    headings = ("session", "name", "model", "calls", "read", "spent", "saved", "lost", "mostly")
    show_table(headings, map(_session_row, report.sessions[:limit]), spare=("saved", "model", "name"))
    if len(report.sessions) > limit:
        click.echo(f"{counted(len(report.sessions) - limit, 'session')} more; --limit shows them, --json has all")


def sparkline(values: "list[float]") -> str:
    """One bar a value, the highest is full."""
    top = max(values, default=0.0)
    return "".join(BARS[min(len(BARS) - 1, int(value / top * len(BARS)))] if top else BARS[0] for value in values)


def _session_row(one: "SessionAmounts") -> tuple[str, ...]:
    amounts = one.amounts
    money = (f"${amounts.spent_usd:.4f}", dollars(amounts.saved_usd, 4), f"${amounts.lost_usd:.4f}")
    share = f"{amounts.usage.read_share:.1%}"
    return (one.id, one.name or "", one.model, str(amounts.calls), share, *money, one.worst or "")
