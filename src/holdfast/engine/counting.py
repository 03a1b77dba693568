"""Reducers that add the usage and cost of calls, pings and explicit caches to a session's state."""

from decimal import Decimal

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.compaction.watch import after_call
from holdfast.engine.answered import answered, comparison_after
from holdfast.engine.sent import SentCall
from holdfast.engine.session_state import State
from holdfast.events.payloads import CacheKept, CachePinged, LlmCallCompleted, LlmCallFailed
from holdfast.planning.explicit import KeptPrefix
from holdfast.planning.memory import after_call as remembered
from holdfast.planning.memory import after_ping, doubted
from holdfast.planning.policy import Pinged


def keep_cache(state: State, event: CacheKept) -> State:
    exists = event.action in ("created", "extended")
    explicit_cache = KeptPrefix(event.name, event.model, event.digest, event.tokens, event.expires_at)
    return msgspec.structs.replace(
        paid(state, event.cost_usd + event.storage_cost_usd, Usage()),
        kept=explicit_cache if exists else None,
        refused_prefix=event.digest if event.action == "refused" else state.refused_prefix,
    )


def paid(state: State, cost_usd: Decimal, usage: Usage) -> State:
    turn = state.turn
    if turn is not None:
        turn = msgspec.structs.replace(turn, usage=turn.usage + usage, cost_usd=turn.cost_usd + cost_usd)
    return msgspec.structs.replace(state, turn=turn, usage=state.usage + usage, cost_usd=state.cost_usd + cost_usd)


def spent(state: State, cost_usd: Decimal, usage: Usage) -> State:
    return msgspec.structs.replace(state, usage=state.usage + usage, cost_usd=state.cost_usd + cost_usd)


def count_ping(state: State, ping: CachePinged) -> State:
    """A ping is paid for, but is no call of the conversation: the last request stays the last request."""
    pinged_usd = state.pinged_usd + (ping.cost_usd if ping.piece is not None else 0)
    after = msgspec.structs.replace(spent(state, ping.cost_usd, ping.usage), pinged_usd=pinged_usd)
    last_call_at = state.memory.last_at
    if ping.piece is None or last_call_at is None or ping.sent_at < last_call_at or ping.model != state.model:
        # A prewarm, a ping older than the last call, or one for another model says nothing about the current cache.
        return after
    result = Pinged(ping.sent_at, ping.ttl, ping.usage, ping.piece, ping.pieces, ping.marked_tokens)
    last_call = SentCall(ping.sent_at, ping.ttl, ping.usage)
    return msgspec.structs.replace(after, memory=after_ping(state.memory, result), last_call=last_call)


def count_call(state: State, call: LlmCallCompleted) -> State:
    if call.source == "summary":
        # A summary request is not part of the conversation: the last request stays the last request.
        return paid(state, call.cost_usd, call.usage)
    # The logged estimate already includes the calibration factor; dividing by it gives the raw count to learn from.
    corrected = state.call_open.estimated_input_tokens if state.call_open else 0
    estimated = round(corrected / state.calibration.factor)
    after = paid(state, call.cost_usd, call.usage)
    turn = after.turn and msgspec.structs.replace(after.turn, llm_calls=after.turn.llm_calls + 1)
    with_call = msgspec.structs.replace(after, turn=turn, call_open=None)
    if call.source == "completion-cache":
        # The provider has not seen this request, so its cache is unchanged.
        return with_call
    return msgspec.structs.replace(
        with_call,
        last_call=answered(state.request, call.answering),
        answered_links=len(state.links),
        memory=remembered(state.memory, state.request, call.answering) if state.request else state.memory,
        uncached_calls=state.uncached_calls + (call.usage.cache_read == 0),
        uncached_span=state.uncached_span if call.usage.cache_read else _span(state),
        calibration=state.calibration.learn(estimated, call.answering.tokens_sent),
        comparison=comparison_after(state.comparison, call),
        compaction=after_call(state.compaction, call.usage),
    )


def _span(state: State) -> tuple[float, float]:
    """Start times of the first and last uncached call, with the newest request added."""
    if state.request is None:
        return state.uncached_span
    first, _ = state.uncached_span if state.uncached_calls else (state.request.at, 0.0)
    return first, state.request.at


def count_failure(state: State, call: LlmCallFailed) -> State:
    memory = state.memory if call.refused_diagnosis else doubted(state.memory)
    return msgspec.structs.replace(
        spent(state, call.cost_usd, call.usage),
        call_open=None,
        memory=memory,
        comparison=comparison_after(state.comparison, call),
    )


def count_tool(state: State) -> State:
    turn = state.turn and msgspec.structs.replace(state.turn, tool_calls=state.turn.tool_calls + 1)
    return msgspec.structs.replace(state, turn=turn, called_tools=True)
