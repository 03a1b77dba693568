"""`holdfast compact`: compacts a stored session, or shows what that would do."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.stores import configured_models, found_session, open_configured

if TYPE_CHECKING:
    from holdfast.engine.compacting import Proposal, Standing, Unhelpful
    from holdfast.events.log import Log

WIDTH = 80


@click.command("compact")
@click.argument("session_id", metavar="SESSION")
@click.option("--dry-run", is_flag=True, help="Show what would be removed and kept; change nothing.")
@click.option("--tail", "tail_tokens", type=click.IntRange(1, 1_000_000), help="Tokens of the newest messages to keep.")
@click.option("--record", "record_tokens", type=click.IntRange(200, 100_000), help="Maximum tokens of the summary.")
@click.option("--show", is_flag=True, help="Also print the summary.")
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
    """Replace all but the newest messages of a session by a summary, from its next message on.

    The log keeps every message: `holdfast history` shows the source of each line of the summary. Exits with status 1
    if compaction would save nothing.
    """
    import msgspec

    from holdfast.compaction.values import CompactionConfig
    from holdfast.engine.compacting import Unhelpful, propose

    # An option that is left out keeps the default of CompactionConfig.
    limits = {"tail_tokens_max": tail_tokens, "record_tokens_max": record_tokens}
    config: CompactionConfig = msgspec.structs.replace(
        CompactionConfig(), **{name: value for name, value in limits.items() if value is not None}
    )
    with open_configured(db) as log:
        snapshot = standing_in(log, found_session(log, session_id))
        proposal = propose(snapshot, config, "asked")
        if not dry_run and not isinstance(proposal, Unhelpful):
            _append(log, snapshot, proposal)
    if as_json:
        result = {"done": not dry_run, "event": proposal.event} if not isinstance(proposal, Unhelpful) else proposal
        click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
    elif isinstance(proposal, Unhelpful):
        click.echo(f"not compacted: {proposal.reason}")
    else:
        _show(proposal, done=not dry_run, with_summary=show)
    if isinstance(proposal, Unhelpful):
        raise click.exceptions.Exit(1)


def standing_in(log: "Log", session_id: str) -> "Standing":
    """The snapshot of a stored session that a compaction is proposed from.

    Raises UserError if its messages are not stored or a turn is in progress.
    """
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
            f"session {session_id!r} was recorded from another client or was pruned: the log has no messages of it"
        )
    if state.turn is not None:
        raise UserError(f"session {session_id!r} has a turn that is in progress or was interrupted; resume it first")
    model, at = find_model(state.model, configured_models()), system_clock()

    def new_draft() -> Draft:
        return Draft(adapter_for(model.provider), lambda data: count_block(data, model.tokens_factor))

    # The request as the next message would send it: its bytes and token counts decide what compaction gains.
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


def _append(log: "Log", snapshot: "Standing", proposal: "Proposal") -> None:
    from holdfast.clock import new_ulid, system_clock
    from holdfast.events.envelope import Event

    # Each event names its predecessor as parent, starting from the last event of the session.
    at, parent, events = system_clock(), snapshot.state.last_event_id, []
    for payload in proposal.payloads:
        event = Event(new_ulid(at), at, snapshot.state.session_id, "user", payload, None, parent)
        events.append(event)
        parent = event.id
    log.append(events).result()


def _show(proposal: "Proposal", *, done: bool, with_summary: bool) -> None:
    from holdfast.cli.requests import printable
    from holdfast.cli.tables import show_table
    from holdfast.compaction.record import HEADINGS, ORDER

    event, numbers = proposal.event, proposal.event.numbers
    verb = "were" if done else "would be"
    click.echo(f"messages {event.first} to {event.last} {verb} compacted; the log keeps them")
    rows = [
        ("stable prefix", numbers.head_tokens, "unchanged"),
        ("summary", numbers.record_tokens, "replaces the compacted messages"),
        ("newest messages", numbers.kept_tokens, "kept verbatim"),
        ("removed", numbers.removed_tokens, "no longer sent"),
        ("prompt before", event.tokens_before, ""),
        ("prompt after", event.tokens_after, ""),
    ]
    show_table(("", "tokens", ""), ((name, f"{tokens:,}", about) for name, tokens, about in rows))
    click.echo(click.wrap_text(money_line(proposal), WIDTH))
    if proposal.record is not None:
        counts = [(section, sum(line.section == section for line in proposal.record.lines)) for section in ORDER]
        sections = ", ".join(
            f"{HEADINGS[section].partition(',')[0].lower()} {count}" for section, count in counts if count
        )
        click.echo(click.wrap_text(f"summary lines: {sections}; {proposal.record.left_out} left out", WIDTH))
    if event.thinking_dropped:
        # Anthropic rejects replayed thinking blocks if an earlier message changed ("Preserved thinking" in its docs).
        click.echo("thinking in the kept messages is dropped: this model binds it to its prefix")
    for released in proposal.released:
        click.echo(f"skill {released.skill_id} is unloaded; it can be loaded again")
    if with_summary:
        click.echo()
        for part in event.segments:
            click.echo("\n".join(map(printable, [*part.text.split("\n"), ""])))


def money_line(proposal: "Proposal | Unhelpful") -> str:
    """What compaction costs once, saves with each call, and after how many calls it has paid for itself."""
    from holdfast.engine.compacting import Proposal

    numbers = proposal.event.numbers if isinstance(proposal, Proposal) else proposal.numbers
    saving = f"${numbers.saving_per_call_usd:.4f} less per call"
    if numbers.cache_cold:
        # The whole prompt must be written again anyway, so the shorter one is cheaper from the first call on.
        return f"the cache has expired: ${-numbers.cost_usd:.4f} less at once, and {saving}"
    break_even = "never" if numbers.break_even_calls is None else f"after {numbers.break_even_calls:.1f} calls"
    expected = f"{numbers.calls_expected:.0f} are expected"
    return f"costs ${numbers.cost_usd:.4f} once, {saving}: pays off {break_even}; {expected}"
