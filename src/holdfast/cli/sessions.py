"""`holdfast sessions`: what is stored, one session whole, and how to be rid of it."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.stores import configured_models, open_configured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.events.envelope import Event
    from holdfast.events.log import Log, SessionRow
    from holdfast.ledger.calls import CallRecord
    from holdfast.ledger.verdicts import Verdict


@click.group("sessions")
def command() -> None:
    """List, show and delete stored sessions."""


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
    show_table(headings[:columns], (_session_row(row)[:columns] for row in rows))


@command.command("show")
@click.argument("session_id")
@_db
@_json
def show(session_id: str, db: str | None, as_json: bool) -> None:
    """The calls of one session: what each sent, read, wrote and cost, and whether the prefix held."""
    from decimal import Decimal

    import msgspec

    from holdfast.ledger.books import entries
    from holdfast.ledger.calls import delegated, keeping_cost_usd, pinging_cost_usd

    with open_configured(db) as log:
        events = _events(log, session_id)
    made = tuple(entries(events, configured_models()))
    if as_json:
        shown = [
            {
                **msgspec.to_builtins(one.record),
                "prefix_held": one.record.prefix_held,
                "verdict": msgspec.to_builtins(one.verdict),
            }
            for one in made
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    from holdfast.cli.tables import show_table

    headings = ("call", "at", "in", "read", "written", "uncached", "out", "cost", "prefix", "verdict", "lost")
    show_table(headings, (_call_row(one.record, one.verdict) for one in made))
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
    click.echo(f"{len(made)} calls, ${total:.6f}{kept}; {models or 'none'}")
    for line in _beginning(events):
        click.echo(line)


@command.command("delete")
@click.argument("session_id")
@_db
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and keep it.")
def delete(session_id: str, db: str | None, yes: bool, dry_run: bool) -> None:
    """Remove one session and all its events for good."""
    with open_configured(db) as log:
        count = len(_events(log, session_id))
        if dry_run:
            click.echo(f"would delete session {session_id} with {count} events")
            return
        if not yes:
            click.confirm(f"Delete session {session_id} with {count} events for good?", abort=True)
        click.echo(f"deleted session {session_id} with {log.delete(session_id)} events")


def _events(log: "Log", session_id: str) -> "list[Event]":
    from holdfast.errors import UserError

    events = list(log.read(session_id))
    if not events:
        raise UserError(f"there is no session {session_id!r}; `holdfast sessions list` shows all")
    return events


def _beginning(events: "list[Event]") -> "Iterator[str]":
    """For whom the session works, and why its prefix is padded or not."""
    from holdfast.cli.requests import printable
    from holdfast.events.payloads import EpochOpened, SessionStarted

    for event in events:
        match event.payload:
            case SessionStarted(parent=parent) if parent is not None:
                yield f"works for session {parent.session_id}, call {printable(parent.tool_use_id)}"
            case EpochOpened(padding=reason) if reason is not None:
                yield printable(reason)
            case _:
                pass


def _session_row(row: "SessionRow") -> tuple[str, ...]:
    times = (_time(row.started_at), _time(row.last_event_at))
    return (row.id, row.name or "", row.model, *times, str(row.event_count), row.parent_session_id or "")


def _call_row(call: "CallRecord", verdict: "Verdict | None") -> tuple[str, ...]:
    usage = call.usage
    held = "held" if call.prefix_held else f"moved: {call.moved_layer} at byte {call.moved_byte}"
    numbers = (usage.tokens_sent, usage.cache_read, usage.cache_write, usage.input, usage.output)
    return (str(call.number), _time(call.at), *map(str, numbers), f"${call.cost_usd:.6f}", held, *_told(verdict))


def _told(verdict: "Verdict | None") -> tuple[str, str]:
    if verdict is None:
        return "", ""
    at_fault = f" ({verdict.component})" if verdict.component else ""
    return f"{verdict.kind}{at_fault}", f"${verdict.lost_usd:.6f}" if verdict.lost_usd else ""


def _time(at: float) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
