"""Prewarming: writing the stable prefix to the cache before the first call."""

from decimal import Decimal

import msgspec

from holdfast.engine.cache.controls import apply_controls
from holdfast.engine.cache.ping import PingRequest, build_ping_parameters, send_ping
from holdfast.engine.cache.plan import make_flight_key, plan_next_call
from holdfast.engine.cache.single_flight import acquire_slot
from holdfast.engine.conversation import Conversation
from holdfast.layers.assemble import assemble_prompt
from holdfast.planning.keep_alive import closing_entry
from holdfast.types.prompt import Plan, View
from holdfast.types.usage import Usage


class PrewarmResult(msgspec.Struct, frozen=True):
    """The result of a prewarm; `reason` says why nothing was sent."""

    is_sent: bool
    reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)


async def prewarm(conversation: Conversation) -> PrewarmResult:
    """Send tools and stable system prompt with a breakpoint and `max_tokens: 0`; a failure is not raised.

    Nothing is sent if the prefix is known to be cached, also by another session that is just writing it.
    """
    await apply_controls(conversation)
    deps = conversation.deps
    parameters = build_ping_parameters(conversation.parameters, deps.model)
    if isinstance(parameters, str):
        return PrewarmResult(False, parameters)
    draft = conversation.new_draft()
    draft.update(assemble_prompt(View(head=conversation.state.stable_prefix, newest=(closing_entry(None),))))
    buffer, calibration = draft.buffer, conversation.state.calibration
    planned = plan_next_call(conversation, buffer, 0).breakpoints
    breakpoints = tuple(breakpoint for breakpoint in planned if breakpoint.block_index < buffer.stable_count)
    flight_key = make_flight_key(conversation, buffer, Plan(breakpoints))
    if not flight_key.prefixes:
        prefix_tokens = calibration.correct_estimate(sum(buffer.tokens[: buffer.stable_count]))
        size = f"tools and system prompt have about {prefix_tokens} tokens"
        return PrewarmResult(False, f"{size}, and {deps.model.id} caches nothing below {deps.model.cache.tokens_min}")
    body = buffer.render(deps.adapter.request_head(parameters), breakpoints)
    tokens = calibration.correct_estimate(buffer.tokens_total)
    request = PingRequest(body, "prewarm", breakpoints[-1].ttl, tokens, "the caller asked for it")
    async with acquire_slot(deps.single_flight, flight_key, deps.clock) as slot:
        if not slot.writes:
            return PrewarmResult(False, "the prefix is already cached")
        ping = await send_ping(conversation, request)
        if isinstance(ping, str):
            return PrewarmResult(False, ping)
        slot.mark_begun()
    return PrewarmResult(True, usage=ping.usage, cost_usd=ping.cost_usd)
