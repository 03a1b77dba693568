"""Putting the head of the prompt into the cache before anybody waits for it."""

from decimal import Decimal

import msgspec

from holdfast.canonical.prompt import Plan
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.usage import Usage
from holdfast.canonical.view import View
from holdfast.engine.conversation import Conversation
from holdfast.engine.empty import Empty, empty_parameters, send_empty
from holdfast.engine.gate import cross
from holdfast.engine.heeding import heed
from holdfast.engine.planned import claim_of, plan_next
from holdfast.layers.assemble import assemble
from holdfast.planning.closing import closing_behind


class Prewarming(msgspec.Struct, frozen=True):
    """What became of it. `reason` says why the head was not sent, where it was not."""

    sent: bool
    reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)


async def prewarm(conversation: Conversation) -> Prewarming:
    """Send tools and stable system prompt, marked, and ask for nothing; no failure of that is raised.

    Nothing is sent where the head is known to be cached, be it because another session is just putting it there.
    """
    await heed(conversation)
    parts = conversation.parts
    parameters = empty_parameters(conversation.parameters, parts.model)
    if isinstance(parameters, str):
        return Prewarming(False, parameters)
    buffer = _head(conversation)
    breakpoints = tuple(
        breakpoint for breakpoint in plan_next(conversation, buffer, 0).marks if breakpoint.piece < buffer.stable_count
    )
    claim = claim_of(conversation, buffer, Plan(breakpoints))
    if not claim.prefixes:
        return Prewarming(
            False,
            f"tools and system prompt have about {_tokens(conversation, buffer)} tokens, and {parts.model.id} caches "
            f"nothing below {parts.model.cache.tokens_min}",
        )
    body = buffer.render(parts.adapter.opening(parameters), breakpoints)
    wish = Empty(
        "warm",
        breakpoints[-1].ttl,
        conversation.state.calibration.corrected(buffer.tokens_total),
        "the caller asked for it",
    )
    async with cross(parts.gate, claim, parts.clock) as slot:
        if not slot.writes:
            return Prewarming(False, "the head is in the cache already")
        told = await send_empty(conversation, body, wish)
        if isinstance(told, str):
            return Prewarming(False, told)
        slot.begun()
    return Prewarming(True, usage=told.usage, cost_usd=told.cost_usd)


def _head(conversation: Conversation) -> Scroll:
    draft = conversation.new_draft()
    draft.update(assemble(View(head=conversation.state.head, newest=(closing_behind(None),))))
    return draft.scroll


def _tokens(conversation: Conversation, buffer: Scroll) -> int:
    return conversation.state.calibration.corrected(sum(buffer.tokens[: buffer.stable_count]))
