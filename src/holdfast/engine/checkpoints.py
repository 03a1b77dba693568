"""Compaction triggers: on request, when due before a call, or because the prompt did not fit the context window."""

import asyncio

from holdfast.compaction.decide import due, too_large_a_head
from holdfast.compaction.values import CompactionConfig
from holdfast.engine.adopting import adopt
from holdfast.engine.compacting import (
    Proposal,
    Standing,
    Unhelpful,
    outlook_of,
    propose,
    propose_clearing,
    propose_seed,
)
from holdfast.engine.conversation import Conversation
from holdfast.engine.prose import with_prose
from holdfast.engine.reporting import report_cold, report_damage, report_ineffective
from holdfast.engine.views import sent_view
from holdfast.events.payloads_compaction import CompactionRefused, Trigger
from holdfast.layers.assemble import assemble

HEAD_TOO_LARGE = "tools and system prompt alone exceed the limit, and compaction cannot shorten them"
SMALL_TAIL_TOKENS = 6_000
"""How much of the newest history is kept after an overflow; if that still overflows, only the newest group is."""


def standing_of(conversation: Conversation) -> Standing:
    """A snapshot of the conversation for compaction; also updates the draft to what would be sent now."""
    conversation.draft.update(assemble(sent_view(conversation.state)))
    state, deps = conversation.state, conversation.parts
    return Standing(
        state=state,
        draft=conversation.draft,
        model=deps.model,
        price=conversation.price(state.calibration.corrected(conversation.draft.scroll.tokens_total)),
        at=deps.clock(),
        learned=deps.learned,
        output_tokens_max=deps.parameters.output_tokens_max,
        said=conversation.said,
        new_draft=conversation.new_draft,
    )


async def shorten(conversation: Conversation, config: CompactionConfig, *, seed: bool = False) -> Proposal | Unhelpful:
    """Compact on the user's request, if it helps; with `seed` by the rules of seed 002."""
    snapshot = standing_of(conversation)
    # This reads the whole conversation, so it runs in a thread and does not block the event loop.
    proposal = await asyncio.to_thread(propose_seed if seed else propose, snapshot, config, "asked")
    await report_damage(conversation)
    if isinstance(proposal, Proposal):
        proposal = await _with_llm_summary(conversation, snapshot, proposal, config)
        await conversation.record("user", *proposal.payloads)
        await adopt(conversation)
    return proposal


async def _with_llm_summary(
    conversation: Conversation, snapshot: Standing, proposal: Proposal, config: CompactionConfig
) -> Proposal:
    """The proposal with an LLM summary, if configured and if the prompt that the summary request reuses is cached."""
    if not config.prose or proposal.event.strategy != "checkpoint" or proposal.event.numbers.cache_cold:
        return proposal
    return await with_prose(conversation, snapshot, proposal)


async def shorten_if_due(conversation: Conversation) -> bool:
    """Compact if a compaction is due, and return whether it was done; one that would not help is reported once."""
    config, snapshot = conversation.parts.compaction, standing_of(conversation)
    outlook = outlook_of(snapshot)
    trigger = due(outlook, conversation.state.compaction, config, by_size_alone=conversation.state.profile == "seed")
    is_allowed = trigger is not None and (trigger == "hard" or not _is_thinking(conversation))
    if is_allowed and trigger is not None and await _compact_for(conversation, snapshot, trigger, config):
        return True
    if config.auto and too_large_a_head(outlook, config):
        await report_ineffective(conversation, HEAD_TOO_LARGE)
    await report_cold(conversation, outlook, config)
    return False


async def clear_outputs(conversation: Conversation) -> str:
    """After an overflow: clear old tool results; returns what was done."""
    return await _apply_after_overflow(
        conversation, propose_clearing(standing_of(conversation), conversation.parts.compaction, "overflow")
    )


async def make_checkpoint(conversation: Conversation) -> str:
    """After an overflow: replace all but a short tail by a summary; returns what was done."""
    return await _compact_to_tail(conversation, SMALL_TAIL_TOKENS)


async def make_smallest_tail(conversation: Conversation) -> str:
    """After a second overflow: keep only the newest group; returns what was done."""
    return await _compact_to_tail(conversation, 1)


async def _compact_to_tail(conversation: Conversation, tokens_max: int) -> str:
    snapshot, config = standing_of(conversation), conversation.parts.compaction
    proposal = await asyncio.to_thread(propose, snapshot, config, "overflow", tail_tokens_max=tokens_max)
    return await _apply_after_overflow(conversation, proposal)


async def _apply_after_overflow(conversation: Conversation, proposal: Proposal | Unhelpful) -> str:
    if isinstance(proposal, Unhelpful):
        return proposal.reason
    await conversation.record("system", *proposal.payloads)
    await adopt(conversation)
    return f"{proposal.event.tokens_before} tokens became {proposal.event.tokens_after}"


async def _compact_for(
    conversation: Conversation, snapshot: Standing, trigger: Trigger, config: CompactionConfig
) -> bool:
    proposal = await asyncio.to_thread(propose, snapshot, config, trigger)
    await report_damage(conversation)
    if isinstance(proposal, Proposal):
        proposal = await _with_llm_summary(conversation, snapshot, proposal, config)
        await conversation.record("system", *proposal.payloads)
        await adopt(conversation)
        return True
    is_final = too_large_a_head(outlook_of(snapshot), config)
    refused = CompactionRefused(trigger, HEAD_TOO_LARGE if is_final else proposal.reason, proposal.numbers, is_final)
    await conversation.record("system", refused)
    return False


def _is_thinking(conversation: Conversation) -> bool:
    """Whether a turn is in progress whose thinking would become invalid after a prefix change.

    Newer Claude models bind thinking to everything before it (Anthropic, "Preserved thinking").
    """
    turn = conversation.state.turn
    return conversation.parts.model.cache.binds_thinking and turn is not None and turn.llm_calls > 0
