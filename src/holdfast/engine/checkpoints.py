"""When a conversation that is under way is made shorter: asked for, due before a call, or because it did not fit."""

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
from holdfast.engine.history import logged
from holdfast.engine.prose import with_prose
from holdfast.engine.views import sent_view
from holdfast.events.payloads_compaction import CompactionRefused, Trigger
from holdfast.layers.assemble import assemble

SMALL_TAIL_TOKENS = 6_000
"""How much of the tail is kept when a prompt did not fit; when it still does not, the newest group alone."""


def standing_of(talk: Conversation) -> Standing:
    """The conversation as it stands, with the draft of what would be sent now."""
    talk.draft.update(assemble(sent_view(talk.state)))
    state, parts = talk.state, talk.parts
    return Standing(
        state=state,
        draft=talk.draft,
        model=parts.model,
        price=talk.price(state.calibration.corrected(talk.draft.scroll.tokens_total)),
        at=parts.clock(),
        learned=parts.learned,
        output_tokens_max=parts.parameters.output_tokens_max,
        raw=lambda: logged(parts.log.read(state.session_id)),
        new_draft=talk.new_draft,
    )


async def shorten(talk: Conversation, config: CompactionConfig, *, seed: bool = False) -> Proposal | Unhelpful:
    """What was asked for, done if it helps; by the seed's rules where that is said."""
    standing = standing_of(talk)
    found = (propose_seed if seed else propose)(standing, config, "asked")
    if isinstance(found, Proposal):
        found = await _explained(talk, standing, found, config)
        await talk.record("user", *found.payloads)
        await adopt(talk)
    return found


async def _explained(talk: Conversation, standing: Standing, found: Proposal, config: CompactionConfig) -> Proposal:
    """With the model's own words where they are wanted, and the prompt that they ride on is still cached."""
    if not config.prose or found.event.strategy != "checkpoint" or found.event.numbers.cache_cold:
        return found
    return await with_prose(talk, standing, found)


async def shorten_if_due(talk: Conversation) -> bool:
    """Whether the next call will send a shorter prompt; what was due and would not help is told once."""
    config, standing = talk.parts.compaction, standing_of(talk)
    trigger = due(outlook_of(standing), talk.state.compaction, config)
    if trigger is None or (trigger != "hard" and _thinks_on(talk)):
        return False
    return await _shorten(talk, standing, trigger, config)


async def clear_outputs(talk: Conversation) -> str:
    """Once a prompt did not fit: old outputs of tools give way; says what was done."""
    return await _after_overflow(talk, propose_clearing(standing_of(talk), talk.parts.compaction, "overflow"))


async def make_checkpoint(talk: Conversation) -> str:
    """Once a prompt did not fit: a record stands for all but a short tail; says what was done."""
    return await _after_overflow(
        talk, propose(standing_of(talk), talk.parts.compaction, "overflow", tail_tokens_max=SMALL_TAIL_TOKENS)
    )


async def make_smallest_tail(talk: Conversation) -> str:
    """Once a prompt still did not fit: nothing but the newest group stays; says what was done."""
    return await _after_overflow(talk, propose(standing_of(talk), talk.parts.compaction, "overflow", tail_tokens_max=1))


async def _after_overflow(talk: Conversation, found: Proposal | Unhelpful) -> str:
    if isinstance(found, Unhelpful):
        return found.reason
    await talk.record("system", *found.payloads)
    await adopt(talk)
    return f"{found.event.tokens_before} tokens became {found.event.tokens_after}"


async def _shorten(talk: Conversation, standing: Standing, trigger: Trigger, config: CompactionConfig) -> bool:
    found = propose(standing, config, trigger)
    if isinstance(found, Proposal):
        found = await _explained(talk, standing, found, config)
        await talk.record("system", *found.payloads)
        await adopt(talk)
        return True
    final = too_large_a_head(outlook_of(standing), config)
    reason = "tools and system prompt alone pass the limit, and no compaction makes them shorter"
    refused = CompactionRefused(trigger, reason if final else found.reason, found.numbers, final)
    await talk.record("system", refused)
    return False


def _thinks_on(talk: Conversation) -> bool:
    """Whether a model is in the middle of a turn whose thinking it could not take back behind another prefix."""
    turn = talk.state.turn
    return talk.parts.model.cache.binds_thinking and turn is not None and turn.llm_calls > 0
