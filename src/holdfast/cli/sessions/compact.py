"""`holdfast compact`: compacts a stored session, or shows what that would do."""

from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.format import print_json
from holdfast.cli.open_store import load_configured_models, open_configured_store, resolve_session_id
from holdfast.cli.options import db_option, json_option
from holdfast.clock import new_ulid, system_clock
from holdfast.errors import UserError
from holdfast.ledger.requests.format import strip_control_characters

if TYPE_CHECKING:
    from holdfast.engine.compaction.compact import CompactionProposal, CompactionSnapshot, NoCompaction
    from holdfast.events.log import EventLog

WIDTH = 80


@click.command("compact")
@click.argument("session_id", metavar="SESSION")
@click.option("--dry-run", is_flag=True, help="Show what would be removed and kept; change nothing.")
@click.option("--tail", "tail_tokens", type=click.IntRange(1, 1_000_000), help="Tokens of the newest messages to keep.")
@click.option("--record", "record_tokens", type=click.IntRange(200, 100_000), help="Maximum tokens of the summary.")
@click.option("--show", is_flag=True, help="Also print the summary.")
@db_option
@json_option
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
    from holdfast.cli.tables import print_text
    from holdfast.compaction.models import CompactionConfig
    from holdfast.engine.compaction.compact import NoCompaction, propose_compaction

    # An option that is left out keeps the default of CompactionConfig.
    limits = {"tail_tokens_max": tail_tokens, "summary_tokens_max": record_tokens}
    config: CompactionConfig = msgspec.structs.replace(
        CompactionConfig(), **{name: value for name, value in limits.items() if value is not None}
    )
    with open_configured_store(db, writable=not dry_run) as log:
        snapshot = load_compaction_snapshot(log, resolve_session_id(log, session_id))
        proposal = propose_compaction(snapshot, config, "requested")
        if not dry_run and not isinstance(proposal, NoCompaction):
            _append(log, snapshot, proposal)
    if as_json:
        result = {"done": not dry_run, "event": proposal.event} if not isinstance(proposal, NoCompaction) else proposal
        print_json(result)
    elif isinstance(proposal, NoCompaction):
        print_text(f"not compacted: {proposal.reason}")
    else:
        _show(proposal, done=not dry_run, with_summary=show)
    if isinstance(proposal, NoCompaction):
        raise click.exceptions.Exit(1)


def load_compaction_snapshot(log: "EventLog", session_id: str) -> "CompactionSnapshot":
    """The snapshot of a stored session that a compaction is proposed from.

    Raises UserError if its messages are not stored or a turn is in progress.
    """
    from holdfast.catalog.lookup import find_model, price_at, utc_date
    from holdfast.catalog.token_count import count_block_tokens
    from holdfast.engine.compaction.compact import CompactionSnapshot
    from holdfast.engine.compaction.history import LoggedMessages
    from holdfast.engine.reducer import fold_events
    from holdfast.engine.request_draft import RequestDraft, build_sent_view
    from holdfast.layers.assemble import assemble_prompt
    from holdfast.planning.learned import LearningScope
    from holdfast.providers.registry import get_adapter
    from holdfast.runtime.learned import load_learned

    state = fold_events(log.read(session_id), session_id)
    if not state.epoch:
        raise UserError(
            f"session {session_id!r} was recorded from another client or was pruned: the log has no messages of it"
        )
    if state.turn is not None:
        raise UserError(f"session {session_id!r} has a turn that is in progress or was interrupted; resume it first")
    model, at = find_model(state.model, load_configured_models()), system_clock()

    def new_draft() -> RequestDraft:
        return RequestDraft(get_adapter(model.provider), lambda data: count_block_tokens(data, model.tokens_factor))

    # The request as the next message would send it: its bytes and token counts decide what compaction gains.
    draft = new_draft()
    draft.update(assemble_prompt(build_sent_view(state)))
    return CompactionSnapshot(
        state=state,
        draft=draft,
        model=model,
        price=price_at(model, utc_date(at), state.calibration.correct_estimate(draft.buffer.tokens_total)),
        at=at,
        learned=load_learned(log, LearningScope(model.id, ""), session_id=session_id),
        output_tokens_max=state.parameters.output_tokens_max if state.parameters else model.output_tokens_max,
        logged=LoggedMessages(lambda after: log.read(session_id, after=after)),
        new_draft=new_draft,
    )


def _append(log: "EventLog", snapshot: "CompactionSnapshot", proposal: "CompactionProposal") -> None:
    from holdfast.events.log import Event

    # Each event names its predecessor as parent, starting from the last event of the session.
    at, parent, events = system_clock(), snapshot.state.last_event_id, []
    for payload in proposal.payloads:
        event = Event(new_ulid(at), at, snapshot.state.session_id, "user", payload, None, parent)
        events.append(event)
        parent = event.id
    log.append(events).result()


def _show(proposal: "CompactionProposal", *, done: bool, with_summary: bool) -> None:
    from holdfast.cli.tables import print_table
    from holdfast.compaction.summary import SECTION_HEADINGS, SECTION_ORDER

    event, numbers = proposal.event, proposal.event.numbers
    verb = "were" if done else "would be"
    click.echo(f"messages {event.first} to {event.last} {verb} compacted; the log keeps them")
    rows = [
        ("stable prefix", numbers.stable_prefix_tokens, "unchanged"),
        ("summary", numbers.summary_tokens, "replaces the compacted messages"),
        ("newest messages", numbers.kept_tokens, "kept verbatim"),
        ("removed", numbers.removed_tokens, "no longer sent"),
        ("prompt before", event.tokens_before, ""),
        ("prompt after", event.tokens_after, ""),
    ]
    print_table(("", "tokens", ""), ((name, f"{tokens:,}", about) for name, tokens, about in rows))
    click.echo(click.wrap_text(format_compaction_savings(proposal), WIDTH))
    if proposal.summary is not None:
        counts = [
            (section, sum(line.section == section for line in proposal.summary.lines)) for section in SECTION_ORDER
        ]
        sections = ", ".join(
            f"{SECTION_HEADINGS[section].partition(',')[0].lower()} {count}" for section, count in counts if count
        )
        click.echo(click.wrap_text(f"summary lines: {sections}; {proposal.summary.left_out} left out", WIDTH))
    if event.thinking_dropped:
        # Anthropic rejects replayed thinking blocks if an earlier message changed ("Preserved thinking" in its docs).
        click.echo("thinking in the kept messages is dropped: this model binds it to its prefix")
    for released in proposal.released_skills:
        click.echo(f"skill {released.skill_id} is unloaded; it can be loaded again")
    if with_summary:
        click.echo()
        for part in event.segments:
            click.echo("\n".join(map(strip_control_characters, [*part.text.split("\n"), ""])))


def format_compaction_savings(proposal: "CompactionProposal | NoCompaction") -> str:
    """What compaction costs once, saves with each call, and after how many calls it has paid for itself."""
    from holdfast.engine.compaction.compact import CompactionProposal

    numbers = proposal.event.numbers if isinstance(proposal, CompactionProposal) else proposal.numbers
    saving = f"${numbers.saving_per_call_usd:.4f} less per call"
    if numbers.is_cache_cold:
        # The whole prompt must be written again anyway, so the shorter one is cheaper from the first call on.
        return f"the cache has expired: ${-numbers.cost_usd:.4f} less at once, and {saving}"
    break_even = "never" if numbers.break_even_calls is None else f"after {numbers.break_even_calls:.1f} calls"
    expected = f"{numbers.expected_calls:.0f} are expected"
    return f"costs ${numbers.cost_usd:.4f} once, {saving}: pays off {break_even}; {expected}"
