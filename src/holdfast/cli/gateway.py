"""`holdfast gateway`: what forwarded sessions cost and would have cost, what was changed in them, who spent what."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted, dollars
from holdfast.cli.groups import Group
from holdfast.cli.stores import configured_models, found_session, open_configured

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.replay.forwarded import Counterfactual

REQUEST_BYTES_MAX = 32 * 1024 * 1024
SPEAKS = {"anthropic": "anthropic", "openai": "openai", "openai-chat": "openai-chat", "gemini": "gemini"}


@click.group("gateway", cls=Group)
def command() -> None:
    """Show what went through the gateway: costs, changes, spending."""


_db = click.option("--db", help="Store to use instead of the configured one.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@command.command("costs")
@click.argument("session_id")
@_db
@_json
def costs(session_id: str, db: str | None, as_json: bool) -> None:
    """What a session cost, and would have cost: improved, with each habit left, under other plans, at the least."""
    import msgspec

    from holdfast.errors import UserError
    from holdfast.replay.forwarded import counterfactual

    with open_configured(db) as log:
        found = found_session(log, session_id)
        made = counterfactual(log.read(found), configured_models())
    if made is None:
        raise UserError(f"session {found!r} did not go through the gateway, or nothing of it has a price")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(made)).decode())
        return
    _show_costs(made)


def _show_costs(made: "Counterfactual") -> None:
    from holdfast.cli.tables import show_table

    click.echo(f"paid: ${made.cost_usd:.6f} for {counted(made.calls, 'call')}, replies included")
    click.echo("prompts alone, by the model of the cache:")
    rows = [("as they were sent", made.as_sent_usd), ("improved", made.improved_usd)]
    if made.optimum_usd is not None and made.improved_optimum_usd is not None:
        rows.append(("the least, as they were sent", made.optimum_usd))
        rows.append(("the least, improved", made.improved_optimum_usd))
    rows += [(f"the plan of {row.policy}", row.usd) for row in made.policies]
    show_table(
        ("", "cost", "to improved"), ((name, f"${usd:.6f}", _times(usd, made.improved_usd)) for name, usd in rows)
    )
    if made.habits:
        click.echo("what each habit costs that is left, where the others are mended:")
        shown = ((row.habit, str(row.calls), "mended" if row.mended else dollars(row.usd, 6)) for row in made.habits)
        show_table(("habit", "calls", "cost"), shown)


def _times(usd: float, least: float) -> str:
    return f"{usd / least:.2f}x" if least else ""


@command.command("changes")
@click.argument("session_id")
@_db
def changes(session_id: str, db: str | None) -> None:
    """What was changed in the requests of a session, or could be; every letter is shown as x and every digit as 0."""
    from holdfast.cli.requests import printable
    from holdfast.events.payloads_gateway import GatewayForwarded

    with open_configured(db) as log:
        found = [event.payload for event in log.read(found_session(log, session_id))]
    forwarded = [payload for payload in found if isinstance(payload, GatewayForwarded)]
    for number, one in enumerate(forwarded, 1):
        for change in one.changes:
            done = "mended" if change.done else "could be mended"
            click.echo(f"call {number}: {done}: {printable(change.habit)} ({printable(change.place)})")
            for line in change.diff:
                click.echo(f"    {printable(line)}")
    if not any(one.changes for one in forwarded):
        click.echo("Nothing was changed in this session, and nothing had to be.")


@command.command("spend")
@click.option("--since", metavar="7d|12h|2w|DATE", help="Only days from then on.")
@_db
@_json
def spend(since: str | None, db: str | None, as_json: bool) -> None:
    """What was spent through the gateway, by day, key and the key's name."""
    import msgspec

    from holdfast.catalog.lookup import utc_date
    from holdfast.cli.report import seconds_of
    from holdfast.cli.tables import show_table
    from holdfast.clock import system_clock
    from holdfast.errors import UserError

    try:
        from holdfast.gateway.remembering import spendings
    except ImportError as error:
        raise UserError("the gateway needs its packages: pip install 'holdfast[server]'") from error

    first = utc_date(seconds_of(since, system_clock())) if since else None
    sums: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    with open_configured(db) as log:
        for one in spendings(log, since=first):
            row = (utc_date(one.at).isoformat(), one.key_id or "", one.label or "")
            calls, failed, usd = sums.get(row, (0, 0, 0.0))
            sums[row] = calls + one.calls, failed + one.failed, usd + one.dollars
    rows = [(*row, *told) for row, told in sorted(sums.items())]
    if as_json:
        names = ("day", "key_id", "label", "calls", "failed", "cost_usd")
        click.echo(
            msgspec.json.format(msgspec.json.encode([dict(zip(names, row, strict=True)) for row in rows])).decode()
        )
        return
    if not rows:
        click.echo("Nothing went through the gateway in that time.")
        return
    shown = (
        (day, key or "none", label, str(calls), str(failed), f"${usd:.6f}")
        for day, key, label, calls, failed, usd in rows
    )
    show_table(("day", "key", "name", "calls", "failed", "cost"), shown)


@command.command("try")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--speaks", type=click.Choice(sorted(SPEAKS)), default="anthropic", show_default=True)
@click.option("--path", default="", help="The path of the request, where that names the model: Gemini's.")
@click.option("--volatile", metavar="NAME=REGEX", multiple=True, help="As for `holdfast serve`.")
def try_out(file: str, speaks: str, path: str, volatile: tuple[str, ...]) -> None:
    """Show as a diff what improving would change in a request, whose body a file holds."""
    from pathlib import Path

    from holdfast.errors import HoldfastError, UserError

    try:
        from holdfast.gateway.habits import diff_lines
        from holdfast.gateway.improving import Improver
        from holdfast.gateway.volatile import DATES, Rule, Volatile
    except ImportError as error:
        raise UserError("the gateway needs its packages: pip install 'holdfast[server]'") from error
    body = _read(Path(file))
    rules = tuple(Rule(*one.partition("=")[::2]) for one in volatile)
    improver = Improver(configured_models(), Volatile((DATES, *rules)))
    try:
        improved = improver.improved(speaks, body, path=path)
    except HoldfastError:
        raise
    except Exception as error:
        raise UserError(f"{file!r} is no request that could be improved: {type(error).__name__}") from error
    if improved.body is None:
        click.echo("It would go as it is.")
        return
    for change in improved.changes:
        click.echo(f"{change.habit} ({change.place})")
    for line in diff_lines(body, improved.body):
        click.echo(line)


def _read(path: "Path") -> bytes:
    from holdfast.errors import UserError

    try:
        body = path.read_bytes()
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if len(body) > REQUEST_BYTES_MAX:
        raise UserError(f"{str(path)!r} has more than {REQUEST_BYTES_MAX} bytes")
    return body
