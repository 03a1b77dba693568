"""Compaction triggers: on request, when due before a call, or because the prompt did not fit the context window."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.compaction.decision import (
    find_compaction_trigger,
    is_stable_prefix_too_large,
    soft_limit_tokens,
    split_token_budget,
)
from holdfast.compaction.models import CompactionConfig
from holdfast.compaction.view import find_first_kept, group_exchanges
from holdfast.engine.cache.controls import refresh_prefix
from holdfast.engine.compaction.compact import (
    CompactionProposal,
    CompactionSnapshot,
    NoCompaction,
    compaction_outlook,
    propose_clearing,
    propose_compaction,
    propose_lossless_clearing,
    propose_seed_summary,
    propose_undo,
)
from holdfast.engine.compaction.llm_summary import add_llm_summary
from holdfast.engine.conversation import Conversation
from holdfast.engine.recovery.incidents import (
    report_changed_messages,
    report_expired_cache,
    report_ineffective_compaction,
)
from holdfast.events.log import Actor
from holdfast.events.payloads.compaction import CompactionSkipped, CompactionTrigger, CompactionUndone

PREFIX_TOO_LARGE = "tools and system prompt alone exceed the limit, and compaction cannot shorten them"
SMALL_TAIL_TOKENS = 6_000
"""How much of the newest history is kept after an overflow; if that still overflows, only the newest group is."""

READ_AHEAD_SHARE = 0.75
"""From which share of the limit on facts are read ahead. Of 143 recorded sessions of a coding agent, 99 reached three
quarters of 100,000 tokens and 73 of them the limit, half of those at least 12 calls later; half of it was reached by
121. Later there may be too few calls left, earlier more is read for nothing."""

READ_AHEAD_MESSAGES_MIN = 8
"""So many messages take about as long to read as asking a store for them and starting a thread."""

READ_AHEAD_MESSAGES_MAX = 64
"""How many messages are read during one call: about 30 ms, less than any provider takes for a prompt of this size."""


def snapshot_conversation(conversation: Conversation) -> CompactionSnapshot:
    """A snapshot of the conversation for compaction; its sizes are those of the draft as it was last assembled."""
    state, deps = conversation.state, conversation.deps
    return CompactionSnapshot(
        state=state,
        draft=conversation.draft,
        model=deps.model,
        price=conversation.price(conversation.request_tokens),
        at=deps.clock(),
        learned=deps.learned,
        output_tokens_max=deps.parameters.output_tokens_max,
        logged=conversation.logged,
        new_draft=conversation.draft.copy,
    )


async def compact_on_request(
    conversation: Conversation, config: CompactionConfig, *, seed: bool = False
) -> CompactionProposal | NoCompaction:
    """Compact on the user's request, if it helps; with `seed` by the rules of seed 002."""
    conversation.assemble_request()
    snapshot = snapshot_conversation(conversation)
    # This reads the whole conversation, so it runs in a thread and does not block the event loop.
    propose = propose_seed_summary if seed else propose_compaction
    proposal = await asyncio.to_thread(propose, snapshot, config, "requested")
    return await _record_proposal(conversation, snapshot, proposal, config, actor="user")


async def undo_newest_compaction(conversation: Conversation) -> CompactionUndone:
    """Restore what the newest compaction removed from the view. Raises UserError if that is not possible."""
    conversation.assemble_request()
    event = await asyncio.to_thread(propose_undo, snapshot_conversation(conversation))
    await conversation.record("user", event)
    return event


async def _record_proposal(
    conversation: Conversation,
    snapshot: CompactionSnapshot,
    proposal: CompactionProposal | NoCompaction,
    config: CompactionConfig,
    *,
    actor: Actor,
) -> CompactionProposal | NoCompaction:
    """Record a proposal; with an LLM summary, if configured and if the prompt that its request reuses is cached."""
    await report_changed_messages(conversation)
    if isinstance(proposal, NoCompaction):
        return proposal
    event = proposal.event
    if config.llm_summary and event.strategy == "checkpoint" and not event.numbers.is_cache_cold:
        proposal = await add_llm_summary(conversation, snapshot, proposal)
    await conversation.record(actor, *proposal.payloads)
    await refresh_prefix(conversation)
    return proposal


async def compact_if_due(conversation: Conversation) -> bool:
    """Compact if the assembled request is too large or too expensive, and return whether that was done.

    A compaction that would not help is reported once.
    """
    config, state, snapshot = conversation.deps.compaction, conversation.state, snapshot_conversation(conversation)
    outlook, is_seed = compaction_outlook(snapshot), state.profile == "seed"
    trigger = find_compaction_trigger(outlook, state.compaction_watch, config, by_size_alone=is_seed)
    is_allowed = trigger == "hard" or not _is_thinking(conversation)
    if trigger is not None and is_allowed and await _compact_for(conversation, snapshot, trigger, config):
        return True
    if config.mode != "off" and is_stable_prefix_too_large(outlook, config):
        await report_ineffective_compaction(conversation, PREFIX_TOO_LARGE)
    if outlook.is_cache_cold:
        await report_expired_cache(conversation, outlook)
        return config.mode != "off" and not is_seed and await _clear_lossless(conversation, snapshot)
    return False


async def _clear_lossless(conversation: Conversation, snapshot: CompactionSnapshot) -> bool:
    """Clear repeated content; the whole prompt is written again anyway, so this costs nothing."""
    if _is_thinking(conversation):
        return False
    proposal = await asyncio.to_thread(propose_lossless_clearing, snapshot)
    if isinstance(proposal, NoCompaction):
        return False
    await conversation.record("system", *proposal.payloads)
    return True


async def clear_tool_results(conversation: Conversation) -> str:
    """After an overflow: clear old tool results; returns what was done."""
    conversation.assemble_request()
    snapshot, config = snapshot_conversation(conversation), conversation.deps.compaction
    return await _apply_after_overflow(conversation, propose_clearing(snapshot, config))


async def compact_after_overflow(conversation: Conversation, tokens_max: int = SMALL_TAIL_TOKENS) -> str:
    """After an overflow: replace all but a short tail by a summary; returns what was done."""
    conversation.assemble_request()
    snapshot, config = snapshot_conversation(conversation), conversation.deps.compaction
    proposal = await asyncio.to_thread(propose_compaction, snapshot, config, "overflow", tail_tokens_max=tokens_max)
    return await _apply_after_overflow(conversation, proposal)


async def compact_to_newest_group(conversation: Conversation) -> str:
    """After a second overflow: keep only the newest group; returns what was done."""
    return await compact_after_overflow(conversation, tokens_max=1)


async def _apply_after_overflow(conversation: Conversation, proposal: CompactionProposal | NoCompaction) -> str:
    if isinstance(proposal, NoCompaction):
        return proposal.reason
    await conversation.record("system", *proposal.payloads)
    await refresh_prefix(conversation)
    return f"{proposal.event.tokens_before} tokens became {proposal.event.tokens_after}"


async def _compact_for(
    conversation: Conversation, snapshot: CompactionSnapshot, trigger: CompactionTrigger, config: CompactionConfig
) -> bool:
    await conversation.flush()
    proposal = await asyncio.to_thread(propose_compaction, snapshot, config, trigger)
    proposal = await _record_proposal(conversation, snapshot, proposal, config, actor="system")
    if isinstance(proposal, CompactionProposal):
        return True
    is_final = is_stable_prefix_too_large(compaction_outlook(snapshot), config)
    refused = CompactionSkipped(trigger, PREFIX_TOO_LARGE if is_final else proposal.reason, proposal.numbers, is_final)
    await conversation.record("system", refused)
    return False


@asynccontextmanager
async def read_ahead(conversation: Conversation) -> AsyncIterator[None]:
    """While the body waits for the provider, read facts that the next compaction is going to need, in a thread.

    Without effect on any result: a compaction reads what was not read ahead itself.
    """
    state, config, logged = conversation.state, conversation.deps.compaction, conversation.logged
    is_waiting = state.message_count - logged.seen_until >= READ_AHEAD_MESSAGES_MIN
    if config.mode == "off" or state.profile == "seed" or not is_waiting:
        yield
        return
    outlook = compaction_outlook(snapshot_conversation(conversation))
    if outlook.prompt_tokens < soft_limit_tokens(outlook, config) * READ_AHEAD_SHARE:
        yield
        return
    entries, covered_until = state.entries, state.compaction_watch.covered_until
    start = next((at for at in range(len(entries), 0, -1) if entries[at - 1].number <= logged.read_until), 0)
    tokens = [round(count * state.calibration.factor) for count in conversation.draft.entry_tokens(start)]
    first = next((entry.number for entry in entries if entry.number > covered_until), 0)
    tail_tokens_max = split_token_budget(outlook.prompt_tokens - outlook.stable_prefix_tokens, config)[1]

    def read() -> None:
        # An automatic compaction would keep as much as this at most, and a later one covers more.
        groups = group_exchanges(entries[start:], tokens)
        first_kept = find_first_kept(
            groups,
            tail_tokens_max=tail_tokens_max,
            unsent=state.sent_count - start,
            groups_tokens_max=config.auto_compaction_input_tokens_threshold,
        )
        last = entries[start + groups[first_kept].start - 1].number if groups and groups[first_kept].start else 0
        if first and last >= first:
            logged.read_ahead(first, last, messages_max=READ_AHEAD_MESSAGES_MAX)

    reading = asyncio.create_task(asyncio.to_thread(read))
    # What failed here fails again in the compaction, which reports it; the call does not need it.
    reading.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        yield
    finally:
        await asyncio.wait((reading,))


def _is_thinking(conversation: Conversation) -> bool:
    """Whether a turn is in progress whose thinking would become invalid after a prefix change.

    Newer Claude models bind thinking to everything before it (Anthropic, "Preserved thinking").
    """
    turn = conversation.state.turn
    return conversation.deps.model.cache.binds_thinking and turn is not None and turn.llm_calls > 0
