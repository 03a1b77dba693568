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
    propose_seed_summary,
)
from holdfast.engine.compaction.llm_summary import add_llm_summary
from holdfast.engine.conversation import Conversation
from holdfast.engine.recovery.incidents import (
    report_changed_messages,
    report_expired_cache,
    report_ineffective_compaction,
)
from holdfast.engine.request_draft import build_sent_view
from holdfast.events.payloads.compaction import CompactionSkipped, CompactionTrigger
from holdfast.layers.assemble import assemble_prompt

PREFIX_TOO_LARGE = "tools and system prompt alone exceed the limit, and compaction cannot shorten them"
SMALL_TAIL_TOKENS = 6_000
"""How much of the newest history is kept after an overflow; if that still overflows, only the newest group is."""


def snapshot_conversation(conversation: Conversation) -> CompactionSnapshot:
    """A snapshot of the conversation for compaction; also updates the draft to what would be sent now."""
    conversation.draft.update(assemble_prompt(build_sent_view(conversation.state)))
    state, deps = conversation.state, conversation.deps
    return CompactionSnapshot(
        state=state,
        draft=conversation.draft,
        model=deps.model,
        price=conversation.price(state.calibration.correct_estimate(conversation.draft.buffer.tokens_total)),
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
    snapshot = snapshot_conversation(conversation)
    # This reads the whole conversation, so it runs in a thread and does not block the event loop.
    proposal = await asyncio.to_thread(
        propose_seed_summary if seed else propose_compaction, snapshot, config, "requested"
    )
    await report_changed_messages(conversation)
    if isinstance(proposal, CompactionProposal):
        proposal = await _with_llm_summary(conversation, snapshot, proposal, config)
        await conversation.record("user", *proposal.payloads)
        await refresh_prefix(conversation)
    return proposal


async def _with_llm_summary(
    conversation: Conversation, snapshot: CompactionSnapshot, proposal: CompactionProposal, config: CompactionConfig
) -> CompactionProposal:
    """The proposal with an LLM summary, if configured and if the prompt that the summary request reuses is cached."""
    if not config.llm_summary or proposal.event.strategy != "checkpoint" or proposal.event.numbers.is_cache_cold:
        return proposal
    return await add_llm_summary(conversation, snapshot, proposal)


async def compact_if_due(conversation: Conversation) -> bool:
    """Compact if a compaction is due, and return whether it was done; one that would not help is reported once."""
    config, snapshot = conversation.deps.compaction, snapshot_conversation(conversation)
    outlook = compaction_outlook(snapshot)
    trigger = find_compaction_trigger(
        outlook, conversation.state.compaction_watch, config, by_size_alone=conversation.state.profile == "seed"
    )
    is_allowed = trigger is not None and (trigger == "hard" or not _is_thinking(conversation))
    if is_allowed and trigger is not None and await _compact_for(conversation, snapshot, trigger, config):
        return True
    if config.auto and is_stable_prefix_too_large(outlook, config):
        await report_ineffective_compaction(conversation, PREFIX_TOO_LARGE)
    await report_expired_cache(conversation, outlook, config)
    return False


async def clear_tool_results(conversation: Conversation) -> str:
    """After an overflow: clear old tool results; returns what was done."""
    return await _apply_after_overflow(
        conversation, propose_clearing(snapshot_conversation(conversation), conversation.deps.compaction, "overflow")
    )


async def compact_after_overflow(conversation: Conversation) -> str:
    """After an overflow: replace all but a short tail by a summary; returns what was done."""
    return await _compact_to_tail(conversation, SMALL_TAIL_TOKENS)


async def compact_to_newest_group(conversation: Conversation) -> str:
    """After a second overflow: keep only the newest group; returns what was done."""
    return await _compact_to_tail(conversation, 1)


async def _compact_to_tail(conversation: Conversation, tokens_max: int) -> str:
    snapshot, config = snapshot_conversation(conversation), conversation.deps.compaction
    proposal = await asyncio.to_thread(propose_compaction, snapshot, config, "overflow", tail_tokens_max=tokens_max)
    return await _apply_after_overflow(conversation, proposal)


async def _apply_after_overflow(conversation: Conversation, proposal: CompactionProposal | NoCompaction) -> str:
    if isinstance(proposal, NoCompaction):
        return proposal.reason
    await conversation.record("system", *proposal.payloads)
    await refresh_prefix(conversation)
    return f"{proposal.event.tokens_before} tokens became {proposal.event.tokens_after}"


async def _compact_for(
    conversation: Conversation, snapshot: CompactionSnapshot, trigger: CompactionTrigger, config: CompactionConfig
) -> bool:
    proposal = await asyncio.to_thread(propose_compaction, snapshot, config, trigger)
    await report_changed_messages(conversation)
    if isinstance(proposal, CompactionProposal):
        proposal = await _with_llm_summary(conversation, snapshot, proposal, config)
        await conversation.record("system", *proposal.payloads)
        await refresh_prefix(conversation)
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
