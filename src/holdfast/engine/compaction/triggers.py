"""Compaction triggers: on request, when due before a call, or because the prompt did not fit the context window."""

import asyncio

from holdfast.compaction.decision import find_compaction_trigger, is_stable_prefix_too_large
from holdfast.compaction.models import CompactionConfig
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
        new_draft=conversation.new_draft,
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


def _is_thinking(conversation: Conversation) -> bool:
    """Whether a turn is in progress whose thinking would become invalid after a prefix change.

    Newer Claude models bind thinking to everything before it (Anthropic, "Preserved thinking").
    """
    turn = conversation.state.turn
    return conversation.deps.model.cache.binds_thinking and turn is not None and turn.llm_calls > 0
