"""Prewarming: writing the stable prefix to the cache before the first call."""

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
    """The result of a prewarm; `reason` says why nothing was sent."""

    sent: bool
    reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)


async def prewarm(conversation: Conversation) -> Prewarming:
    """Send tools and stable system prompt with a breakpoint and `max_tokens: 0`; a failure is not raised.

    Nothing is sent if the prefix is known to be cached, also by another session that is just writing it.
    """
    await heed(conversation)
    deps = conversation.parts
    parameters = empty_parameters(conversation.parameters, deps.model)
    if isinstance(parameters, str):
        return Prewarming(False, parameters)
    buffer = _prefix_request(conversation)
    breakpoints = tuple(
        breakpoint for breakpoint in plan_next(conversation, buffer, 0).marks if breakpoint.piece < buffer.stable_count
    )
    flight_key = claim_of(conversation, buffer, Plan(breakpoints))
    if not flight_key.prefixes:
        return Prewarming(
            False,
            f"tools and system prompt have about {_prefix_tokens(conversation, buffer)} tokens, "
            f"and {deps.model.id} caches nothing below {deps.model.cache.tokens_min}",
        )
    body = buffer.render(deps.adapter.opening(parameters), breakpoints)
    ping_request = Empty(
        "warm",
        breakpoints[-1].ttl,
        conversation.state.calibration.corrected(buffer.tokens_total),
        "the caller asked for it",
    )
    async with cross(deps.gate, flight_key, deps.clock) as slot:
        if not slot.writes:
            return Prewarming(False, "the prefix is already cached")
        ping = await send_empty(conversation, body, ping_request)
        if isinstance(ping, str):
            return Prewarming(False, ping)
        slot.begun()
    return Prewarming(True, usage=ping.usage, cost_usd=ping.cost_usd)


def _prefix_request(conversation: Conversation) -> Scroll:
    draft = conversation.new_draft()
    draft.update(assemble(View(head=conversation.state.head, newest=(closing_behind(None),))))
    return draft.scroll


def _prefix_tokens(conversation: Conversation, buffer: Scroll) -> int:
    return conversation.state.calibration.corrected(sum(buffer.tokens[: buffer.stable_count]))
