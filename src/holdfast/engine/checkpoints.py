"""When a conversation that is under way is made shorter: asked for, due before a call, or because it did not fit."""

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

HEAD_TOO_LARGE = "tools and system prompt alone pass the limit, and no compaction makes them shorter"
SMALL_TAIL_TOKENS = 6_000
"""How much of the tail is kept when a prompt did not fit; when it still does not, the newest group alone."""


def standing_of(conversation: Conversation) -> Standing:
    """The conversation as it stands, with the draft of what would be sent now."""
    conversation.draft.update(assemble(sent_view(conversation.state)))
    state, parts = conversation.state, conversation.parts
    return Standing(
        state=state,
        draft=conversation.draft,
        model=parts.model,
        price=conversation.price(state.calibration.corrected(conversation.draft.scroll.tokens_total)),
        at=parts.clock(),
        learned=parts.learned,
        output_tokens_max=parts.parameters.output_tokens_max,
        said=conversation.said,
        new_draft=conversation.new_draft,
    )


async def shorten(conversation: Conversation, config: CompactionConfig, *, seed: bool = False) -> Proposal | Unhelpful:
    """What was asked for, done if it helps; by the seed's rules where that is said."""
    standing = standing_of(conversation)
    # A long conversation is read through for it, which is not to keep others waiting.
    found = await asyncio.to_thread(propose_seed if seed else propose, standing, config, "asked")
    await report_damage(conversation)
    if isinstance(found, Proposal):
        found = await _explained(conversation, standing, found, config)
        await conversation.record("user", *found.payloads)
        await adopt(conversation)
    return found


async def _explained(
    conversation: Conversation, standing: Standing, found: Proposal, config: CompactionConfig
) -> Proposal:
    """With the model's own words where they are wanted, and the prompt that they ride on is still cached."""
    if not config.prose or found.event.strategy != "checkpoint" or found.event.numbers.cache_cold:
        return found
    return await with_prose(conversation, standing, found)


async def shorten_if_due(conversation: Conversation) -> bool:
    """Whether the next call will send a shorter prompt; what was due and would not help is told once."""
    config, standing = conversation.parts.compaction, standing_of(conversation)
    outlook = outlook_of(standing)
    trigger = due(outlook, conversation.state.compaction, config, by_size_alone=conversation.state.profile == "seed")
    may = trigger is not None and (trigger == "hard" or not _thinks_on(conversation))
    if may and trigger is not None and await _shorten(conversation, standing, trigger, config):
        return True
    if config.auto and too_large_a_head(outlook, config):
        await report_ineffective(conversation, HEAD_TOO_LARGE)
    await report_cold(conversation, outlook, config)
    return False


async def clear_outputs(conversation: Conversation) -> str:
    """Once a prompt did not fit: old outputs of tools give way; says what was done."""
    return await _after_overflow(
        conversation, propose_clearing(standing_of(conversation), conversation.parts.compaction, "overflow")
    )


async def make_checkpoint(conversation: Conversation) -> str:
    """Once a prompt did not fit: a record stands for all but a short tail; says what was done."""
    return await _keep_tail(conversation, SMALL_TAIL_TOKENS)


async def make_smallest_tail(conversation: Conversation) -> str:
    """Once a prompt still did not fit: nothing but the newest group stays; says what was done."""
    return await _keep_tail(conversation, 1)


async def _keep_tail(conversation: Conversation, tokens_max: int) -> str:
    standing, config = standing_of(conversation), conversation.parts.compaction
    found = await asyncio.to_thread(propose, standing, config, "overflow", tail_tokens_max=tokens_max)
    return await _after_overflow(conversation, found)


async def _after_overflow(conversation: Conversation, found: Proposal | Unhelpful) -> str:
    if isinstance(found, Unhelpful):
        return found.reason
    await conversation.record("system", *found.payloads)
    await adopt(conversation)
    return f"{found.event.tokens_before} tokens became {found.event.tokens_after}"


async def _shorten(conversation: Conversation, standing: Standing, trigger: Trigger, config: CompactionConfig) -> bool:
    found = await asyncio.to_thread(propose, standing, config, trigger)
    await report_damage(conversation)
    if isinstance(found, Proposal):
        found = await _explained(conversation, standing, found, config)
        await conversation.record("system", *found.payloads)
        await adopt(conversation)
        return True
    final = too_large_a_head(outlook_of(standing), config)
    refused = CompactionRefused(trigger, HEAD_TOO_LARGE if final else found.reason, found.numbers, final)
    await conversation.record("system", refused)
    return False


def _thinks_on(conversation: Conversation) -> bool:
    """Whether a model is in the middle of a turn whose thinking it could not take back behind another prefix."""
    turn = conversation.state.turn
    return conversation.parts.model.cache.binds_thinking and turn is not None and turn.llm_calls > 0
