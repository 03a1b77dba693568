"""`holdfast compact`: makes a stored session shorter, or shows what that would do."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.stores import configured_models, found_session, open_configured

if TYPE_CHECKING:
    from holdfast.engine.compacting import Proposal, Standing, Unhelpful
    from holdfast.events.log import Log

WIDTH = 80


@click.command("compact")
@click.argument("session_id", metavar="SESSION")
@click.option("--dry-run", is_flag=True, help="Show what would go and what stays; change nothing.")
@click.option("--tail", "tail_tokens", type=click.IntRange(1, 1_000_000), help="How many tokens of the end stay.")
@click.option("--record", "record_tokens", type=click.IntRange(200, 100_000), help="How many the record may have.")
@click.option("--show", is_flag=True, help="Print the record, too.")
@click.option("--db", help="Store to use instead of the configured one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *,
    session_id: str,
    dry_run: bool,
    tail_tokens: int | None,
    record_tokens: int | None,
    show: bool,
    db: str | None,
    as_json: bool,
) -> None:
    """Let a record stand for all but the newest part of a session, from its next message on.

    The log keeps everything: `holdfast history` shows what a line of the record is taken from. Ends with 1 where
    nothing would be gained.
    """
    import msgspec

    from holdfast.compaction.values import CompactionConfig
    from holdfast.engine.compacting import Unhelpful, propose

    given = {"tail_tokens_max": tail_tokens, "record_tokens_max": record_tokens}
    config: CompactionConfig = msgspec.structs.replace(
        CompactionConfig(), **{name: value for name, value in given.items() if value is not None}
    )
    with open_configured(db) as log:
        standing = standing_in(log, found_session(log, session_id))
        found = propose(standing, config, "asked")
        if not dry_run and not isinstance(found, Unhelpful):
            _append(log, standing, found)
    if as_json:
        told = {"done": not dry_run, "event": found.event} if not isinstance(found, Unhelpful) else found
        click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
    elif isinstance(found, Unhelpful):
        click.echo(f"nothing is compacted: {found.reason}")
    else:
        _show(found, done=not dry_run, whole=show)
    if isinstance(found, Unhelpful):
        raise click.exceptions.Exit(1)


def standing_in(log: "Log", session_id: str) -> "Standing":
    from holdfast.catalog.lookup import find_model, price_at, utc_date
    from holdfast.catalog.tokens import count_block
    from holdfast.clock import system_clock
    from holdfast.engine.compacting import Standing
    from holdfast.engine.draft import Draft
    from holdfast.engine.history import Said
    from holdfast.engine.state import fold
    from holdfast.engine.views import sent_view
    from holdfast.errors import UserError
    from holdfast.layers.assemble import assemble
    from holdfast.planning.lessons import Scene
    from holdfast.providers.registry import adapter_for
    from holdfast.runtime.learning import learned_in

    state = fold(log.read(session_id), session_id)
    if not state.epoch:
        raise UserError(
            f"session {session_id!r} is that of another client, or was pruned: its messages are not on the log"
        )
    if state.turn is not None:
        raise UserError(f"a turn is under way in session {session_id!r}, or was cut off; resume it first")
    model, at = find_model(state.model, configured_models()), system_clock()

    def new_draft() -> Draft:
        return Draft(adapter_for(model.provider), lambda data: count_block(data, model.tokens_factor))

    draft = new_draft()
    draft.update(assemble(sent_view(state)))
    return Standing(
        state=state,
        draft=draft,
        model=model,
        price=price_at(model, utc_date(at), state.calibration.corrected(draft.scroll.tokens_total)),
        at=at,
        learned=learned_in(log, Scene(model.id, ""), session_id=session_id),
        output_tokens_max=state.parameters.output_tokens_max if state.parameters else model.output_tokens_max,
        said=Said(lambda after: log.read(session_id, after=after)),
        new_draft=new_draft,
    )


def _append(log: "Log", standing: "Standing", found: "Proposal") -> None:
    from holdfast.clock import new_ulid, system_clock
    from holdfast.events.envelope import Event

    at, parent, events = system_clock(), standing.state.last_event_id, []
    for payload in found.payloads:
        event = Event(new_ulid(at), at, standing.state.session_id, "user", payload, None, parent)
        events.append(event)
        parent = event.id
    log.append(events).result()


def _show(found: "Proposal", *, done: bool, whole: bool) -> None:
    from holdfast.cli.requests import printable
    from holdfast.cli.tables import show_table
    from holdfast.compaction.record import HEADINGS, ORDER

    event, numbers = found.event, found.event.numbers
    verb = "were" if done else "would be"
    click.echo(f"messages {event.first} to {event.last} {verb} covered; the log keeps them")
    rows = [
        ("head", numbers.head_tokens, "stays as it is"),
        ("record", numbers.record_tokens, "stands for what is covered"),
        ("newest messages", numbers.kept_tokens, "stay word for word"),
        ("removed", numbers.removed_tokens, "is sent no more"),
        ("prompt before", event.tokens_before, ""),
        ("prompt after", event.tokens_after, ""),
    ]
    show_table(("", "tokens", ""), ((name, f"{tokens:,}", about) for name, tokens, about in rows))
    click.echo(click.wrap_text(money_line(found), WIDTH))
    if found.record is not None:
        counts = [(section, sum(line.section == section for line in found.record.lines)) for section in ORDER]
        told = ", ".join(f"{HEADINGS[section].partition(',')[0].lower()} {count}" for section, count in counts if count)
        click.echo(click.wrap_text(f"lines of the record: {told}; {found.record.left_out} left out", WIDTH))
    if event.thinking_dropped:
        click.echo("thinking in the kept messages is dropped: this model binds it to its prefix")
    for one in found.released:
        click.echo(f"skill {one.skill_id} is released; it can be loaded again")
    if whole:
        click.echo()
        for part in event.segments:
            click.echo("\n".join(map(printable, [*part.text.split("\n"), ""])))


def money_line(found: "Proposal | Unhelpful") -> str:
    """What it costs once, saves with each call, and when it has paid."""
    from holdfast.engine.compacting import Proposal

    numbers = found.event.numbers if isinstance(found, Proposal) else found.numbers
    saving = f"${numbers.saving_per_call_usd:.4f} less with every call"
    if numbers.cache_cold:
        return f"the cache is cold: ${-numbers.cost_usd:.4f} less at once, and {saving}"
    even = "never" if numbers.break_even_calls is None else f"after {numbers.break_even_calls:.1f} calls"
    expected = f"{numbers.calls_expected:.0f} are expected"
    return f"${numbers.cost_usd:.4f} once, {saving}: it has paid {even}; {expected}"
