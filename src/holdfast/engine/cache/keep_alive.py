"""Pings that write a session's stable prefix ahead of its first call, or keep its idle cache alive while that pays."""

import asyncio
import logging
from collections.abc import Callable
from decimal import Decimal

import msgspec

from holdfast.engine.cache.controls import apply_controls
from holdfast.engine.cache.ping import PingRequest, build_ping_parameters, keep_alive_refusal, send_ping
from holdfast.engine.cache.plan import make_flight_key, plan_next_call
from holdfast.engine.cache.single_flight import acquire_slot
from holdfast.engine.conversation import Conversation, KeepAlive
from holdfast.engine.reducer import open_tool_calls
from holdfast.errors import HoldfastError
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CachePinged, PingKind
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted, ModelSwitched
from holdfast.events.payloads.compaction import CompactionUndone, ContextCompacted
from holdfast.events.payloads.session import SessionEnded, TurnStarted
from holdfast.layers.assemble import assemble_prompt
from holdfast.planning.adaptive_policy import plan_session_ping
from holdfast.planning.breakpoints import can_carry_breakpoint
from holdfast.planning.keep_alive import PING_MARGIN_SECONDS, closing_entry
from holdfast.planning.plan import cache_write_rate
from holdfast.planning.policy import Ping
from holdfast.types.prompt import Breakpoint, Plan, View
from holdfast.types.usage import Usage

CLOSE_WAIT_SECONDS_MAX = 2.0
"""How long closing a session waits for a ping in progress."""

logger = logging.getLogger(__name__)
_ENDS_WAIT = TurnStarted | LlmCallStarted | ModelSwitched | ContextCompacted | CompactionUndone | SessionEnded


class SessionKeepAlive:
    """The keep-alive of one session, from open to close. A turn or call that starts cancels a ping not yet sent."""

    def __init__(self, conversation: Conversation, rules: KeepAlive) -> None:
        self._conversation = conversation
        self._rules = rules
        self._waiting_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] = conversation.deps.bus.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        is_completed = isinstance(event.payload, LlmCallCompleted)
        if is_completed or isinstance(event.payload, _ENDS_WAIT):
            self._cancel_waiting()
        if is_completed:
            self._waiting_task = asyncio.ensure_future(self._ping_loop())
            self._tasks.add(self._waiting_task)
            self._waiting_task.add_done_callback(self._tasks.discard)

    def _cancel_waiting(self) -> None:
        # A ping in progress is already paid for: it is read to its end and recorded.
        if self._waiting_task is not None and self._waiting_task not in self._sending:
            self._waiting_task.cancel()
        self._waiting_task = None

    async def _ping_loop(self) -> None:
        this = asyncio.current_task()
        try:
            while self._waiting_task is this and await self._ping_once():
                pass
        except HoldfastError as error:
            # No caller awaits this task; the session's next call will meet the same failure and raise it.
            logger.warning("no keep-alive for session %s: %s", self._conversation.state.session_id, error)

    async def _ping_once(self) -> bool:
        """Wait until the next ping is due and send it; returns whether another one may follow."""
        ping = plan_next_ping(self._conversation)
        if isinstance(ping, str):
            return self._give_up(ping)
        used_at = self._conversation.state.cache_memory.used_at or 0.0
        await self._rules.sleep(max(0.0, used_at + ping.after_seconds - self._conversation.deps.clock()))
        if self._conversation.deps.clock() - used_at >= ping.after_seconds + PING_MARGIN_SECONDS:
            return False  # The process slept past the expiry (a suspended laptop): nothing is left to refresh.
        if await apply_controls(self._conversation):
            return self._give_up("its cache settings have changed")
        request = encode_ping(self._conversation, ping)
        if isinstance(request, str):
            return self._give_up(request)
        if over_budget := over_budget_reason(self._conversation, request, self._rules):
            return self._give_up(over_budget)
        return await self._send(request)

    def _give_up(self, reason: str) -> bool:
        logger.info("no keep-alive for session %s: %s", self._conversation.state.session_id, reason)
        return False

    async def _send(self, request: PingRequest) -> bool:
        this = asyncio.current_task()
        assert this is not None
        self._sending.add(this)
        try:
            return isinstance(await send_ping(self._conversation, request), CachePinged)
        finally:
            self._sending.discard(this)

    async def aclose(self) -> None:
        """Cancel a waiting ping; one in progress gets `CLOSE_WAIT_SECONDS_MAX` to finish, because it is paid for."""
        self._unsubscribe()
        self._cancel_waiting()
        try:
            if self._sending:
                await asyncio.wait(self._sending, timeout=CLOSE_WAIT_SECONDS_MAX)
        finally:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def plan_next_ping(conversation: Conversation) -> Ping | str:
    """The next ping if the session stays idle; or the reason why there is none."""
    state, deps = conversation.state, conversation.deps
    if refused := keep_alive_refusal(conversation):
        return refused
    if state.cache_memory.tail_block is None or not {"5m", "1h"} <= deps.model.cache.ttls_seconds.keys():
        return "the last request had no breakpoints"
    price = conversation.price(state.calibration.correct_estimate(conversation.draft.buffer.tokens_total))
    ping = plan_session_ping(state.cache_memory, deps.learned, price, "tool" if open_tool_calls(state) else "user")
    if ping is None:
        return "it is not expected to pay"
    if state.cache_settings.ttl not in ("auto", ping.ttl):
        return f"the TTL is set to {state.cache_settings.ttl}"
    return ping


def over_budget_reason(conversation: Conversation, request: PingRequest, rules: KeepAlive) -> str | None:
    """Why the keep-alive budget does not cover this ping; None where it does."""
    spent, cached_tokens = conversation.state.pinged_usd, conversation.state.cache_memory.tail_tokens
    price = conversation.price(request.estimated_tokens)
    # A ping reads what is cached and writes only the new tokens (the reply, for an upgrade).
    write_cost = cache_write_rate(request.ttl, price) * request.new_tokens
    cost = (price.cache_read * cached_tokens + write_cost) / Decimal(1_000_000)
    if spent + cost <= rules.usd_max:
        return None
    return f"${spent:.4f} of its ${rules.usd_max:f} is spent, and another ping would cost ${cost:.4f}"


def encode_ping(conversation: Conversation, ping: Ping) -> PingRequest | str:
    """The last request again, if its breakpoint has the wanted TTL; else with the reply and a longer TTL."""
    request, memory = conversation.state.request, conversation.state.cache_memory
    parameters = build_ping_parameters(conversation.parameters, conversation.deps.model)
    if request is None or not request.breakpoints or len(conversation.draft.buffer.blocks) < request.blocks:
        return "the last request had no breakpoints"
    if isinstance(parameters, str):
        return parameters
    request_head = conversation.deps.adapter.request_head(parameters)
    buffer, last_breakpoint = conversation.draft.buffer, request.breakpoints[-1]
    if memory.blocks == request.blocks and (last_breakpoint.ttl == ping.ttl or ping.ttl == "5m"):
        later_blocks = buffer.blocks[request.blocks :]
        buffer.truncate(request.blocks)
        body = buffer.render(request_head, request.breakpoints)
        tokens = conversation.state.calibration.correct_estimate(buffer.tokens_total)
        buffer.extend(later_blocks)
        ttl, block = last_breakpoint.ttl, last_breakpoint.block_index
        return PingRequest(body, "refresh", ttl, tokens, ping.reason, block, request.blocks)
    return _with_reply(conversation, ping, request_head)


def _with_reply(conversation: Conversation, ping: Ping, request_head: bytes) -> PingRequest | str:
    state = conversation.state
    if state.first_ephemeral is not None:
        return "the prompt holds ephemeral text, which leaves it with the turn"
    # Every later prompt continues with this reply, so writing it to the cache is not wasted.
    conversation.assemble_request()
    buffer = conversation.draft.buffer
    blocks = len(buffer.blocks)
    last_block = next((at for at in range(blocks - 1, -1, -1) if can_carry_breakpoint(buffer.blocks, at)), None)
    if last_block is None:
        return "no block of the prompt can carry a breakpoint"
    previous_blocks = {breakpoint.block_index for breakpoint in (state.request.breakpoints if state.request else ())}
    earlier_blocks = sorted(block for block in previous_blocks if block < last_block)
    chosen = (*earlier_blocks[-(conversation.deps.model.cache.breakpoints_max - 1) :], last_block)
    breakpoints = tuple(Breakpoint(block, ping.ttl, "keep-alive") for block in chosen)
    last_entry = state.entries[-1] if state.entries else None
    buffer.extend(closing_blocks := conversation.draft.encode_entry(closing_entry(last_entry)))
    body = buffer.render(request_head, breakpoints)
    closing_tokens = sum(buffer.tokens[-len(closing_blocks) :])
    tokens = state.calibration.correct_estimate(buffer.tokens_total)
    new_tokens = state.calibration.correct_estimate(sum(buffer.tokens[state.cache_memory.blocks :]))
    buffer.truncate(blocks)
    kind: PingKind = "refresh" if state.cache_memory.blocks == blocks else "upgrade"
    return PingRequest(body, kind, ping.ttl, tokens, ping.reason, last_block, blocks, closing_tokens, new_tokens)


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
