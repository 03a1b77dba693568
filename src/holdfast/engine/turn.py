"""One turn: the user speaks, the model answers, tools run in between; each step decided, done, recorded."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.canonical.blocks import (
    Block,
    Image,
    Message,
    Text,
    ToolResult,
    ToolUse,
    is_thinking,
    mend_surrogates,
    text_of,
)
from holdfast.canonical.encoding import ENCODING, canonical_json, digest
from holdfast.canonical.pieces import shared_links
from holdfast.canonical.reply import Delta, Reply, ReplyFinished, StopReason
from holdfast.canonical.transcript import is_blank
from holdfast.canonical.usage import Usage
from holdfast.canonical.view import LayerText
from holdfast.economics.cost import cost_usd
from holdfast.engine.checkpoints import shorten_if_due
from holdfast.engine.conversation import Conversation
from holdfast.engine.decide import CallModel, Finish, RefuseTools, RunTools, next_step
from holdfast.engine.dispatch import ToolsCancelledError, refusal
from holdfast.engine.gate import Crossing, cross
from holdfast.engine.interrupted import take_over_interrupted
from holdfast.engine.keeping import Reference, forget, reference
from holdfast.engine.planned import claim_of, plan_next
from holdfast.engine.state import Turn, open_calls
from holdfast.engine.teaching import teach_news
from holdfast.engine.views import sent_view, view_of
from holdfast.errors import BudgetError, ProviderError, UserError
from holdfast.events.payloads import (
    AnyPayload,
    ContextInjected,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    MessageAppended,
    MessagesWithdrawn,
    RequestPrepared,
    TurnCancelled,
    TurnCompleted,
    TurnStarted,
)
from holdfast.layers.assemble import assemble, emissions
from holdfast.layers.standard import SYSTEM_TAIL, system_tail_text
from holdfast.providers.tier_parameters import settings_of

DRAIN_SECONDS_MAX = 0.2

_REFUSED = ("invalid_request", "context_overflow")

Emit = Callable[[Delta], None]
CancelReason = Literal["user_cancel", "client_disconnect", "timeout", "error", "step_limit", "budget"]
EndReason = StopReason | Literal["step_limit"]


class Answer(msgspec.Struct, frozen=True):
    """How a turn ended: the model's last words, and what the whole turn took."""

    content: tuple[Block, ...]
    stop_reason: EndReason
    usage: Usage
    cost_usd: Decimal
    llm_calls: int
    tool_calls: int

    @property
    def text(self) -> str:
        return text_of(self.content)


async def run_turn(talk: Conversation, content: Sequence[Block], emit: Emit) -> Answer:
    """Say something and see the turn through; whatever happens, the transcript stays legal."""
    last: Reply | None = None
    try:
        await _open_turn(talk, _checked(content))
        while True:
            match next_step(talk.state, steps_max=talk.parts.steps_max):
                case CallModel():
                    last = await _call_model(talk, emit)
                    if not last.content:
                        break
                case RunTools(calls):
                    await _run_tools(talk, calls)
                case RefuseTools(calls):
                    await _answer(talk, calls, "The limit of model calls for one turn is reached; nothing was run.")
                    return await _stop_short(talk, last)
                case Finish():
                    break
    except asyncio.CancelledError:
        await _abandon(talk, "user_cancel")
        raise
    except BudgetError:
        await _abandon(talk, "budget")
        raise
    except ProviderError as error:
        if error.kind in _REFUSED:
            # The same request would be refused again and again: what was new in it leaves the conversation.
            await talk.record("system", MessagesWithdrawn(f"the provider refused them ({error.kind})"))
        await _abandon(talk, "error")
        raise
    except Exception:
        await _abandon(talk, "error")
        raise
    return await _close_turn(talk, last)


async def _open_turn(talk: Conversation, content: tuple[Block, ...]) -> None:
    # What a crash left behind is closed first: the log only ever grows.
    if talk.state.call_open is not None:
        interrupted = ProviderError("cancelled", "interrupted")
        await talk.record("system", _failed(talk, interrupted, retries=0, started_at=talk.parts.clock(), partial=None))
    if talk.state.turn is not None:
        await _abandon(talk, "error")
    if calls := open_calls(talk.state):
        await _answer(talk, calls, "The call was interrupted.")
    await take_over_interrupted(talk)
    started = TurnStarted(
        user_message_hash=digest(canonical_json(content)),
        estimated_input_tokens=talk.state.calibration.corrected(talk.draft.scroll.tokens_total),
        has_images=any(isinstance(block, Image) for block in content),
        has_tool_calls_in_history=talk.state.called_tools,
    )
    await talk.record("user", started)
    current = await talk.parts.volatile()
    early, late = _injections(talk, current)
    await talk.record("user", *early, MessageAppended(Message("user", content)), *late)


async def _call_model(talk: Conversation, emit: Emit) -> Reply:
    """A named cache that the provider has lost costs one failed request; the whole prompt is then sent instead."""
    if await shorten_if_due(talk):
        await _inject_news(talk)
        talk.draft.update(assemble(sent_view(talk.state)))
    kept = await reference(talk)
    if kept is None:
        return await _ask_model(talk, emit, None)
    try:
        return await _ask_model(talk, emit, kept)
    except ProviderError as error:
        if error.status not in (400, 403, 404):
            raise
        # Whatever the provider calls it: the request with the cache is refused, and without it may not be.
        await forget(talk, str(error))
    return await _ask_model(talk, emit, None)


async def _ask_model(talk: Conversation, emit: Emit, kept: Reference | None) -> Reply:
    parts, state = talk.parts, talk.state
    scroll = talk.draft.scroll
    shared = shared_links(state.links, scroll.links)
    plan = plan_next(talk, scroll, shared)
    parameters = kept.parameters if kept else talk.parameters
    opening = parts.adapter.opening(parameters)
    body = scroll.render(opening, plan.marks, start=kept.pieces if kept else 0)
    estimated = state.calibration.corrected(scroll.tokens_total)
    prepared = RequestPrepared(
        plan=plan,
        encoding=ENCODING,
        shared_blocks=shared,
        links=tuple(scroll.links[shared:]),
        parameters_digest=digest(parts.adapter.opening(talk.parameters) if kept else opening),
        body_bytes=len(body),
        settings=settings_of(parts.model.provider, parts.model.cache, talk.parameters),
        moved=talk.draft.move(shared) if shared < len(state.links) else None,
    )
    claim = claim_of(talk, scroll, plan)
    with talk.promise(estimated):
        async with cross(parts.gate, claim, parts.clock) as crossing:
            request_id = parts.new_id(crossing.started_at)
            waited = crossing.waited_seconds
            started = LlmCallStarted(parts.model.id, parts.model.provider, estimated, request_id, waited_seconds=waited)
            await talk.record("agent", prepared, started)
            reply, retries = await _exchange(talk, body, crossing, emit)
        completed = _completed(talk, reply, crossing, retries=retries, request_id=request_id)
        # What no provider takes back is not made part of the conversation: blank text, or thinking and nothing else.
        content = sendable_content(reply.content)
        said = (MessageAppended(Message("assistant", content)),) if content else ()
        await talk.record("agent", completed, *said)
    await teach_news(talk)
    return msgspec.structs.replace(reply, content=content)


def _completed(
    talk: Conversation, reply: Reply, crossing: Crossing, *, retries: int, request_id: str
) -> LlmCallCompleted:
    parts = talk.parts
    return LlmCallCompleted(
        model=parts.model.id,
        provider=parts.model.provider,
        usage=reply.usage,
        cost_usd=cost_usd(reply.usage, talk.price(reply.usage.tokens_sent)),
        pricing_version=parts.pricing_version,
        latency_ms=_since(talk, crossing.started_at),
        stop_reason=reply.stop_reason,
        produced_tool_calls=sum(isinstance(block, ToolUse) for block in reply.content),
        produced_thinking_blocks=sum(map(is_thinking, reply.content)),
        request_id=request_id,
        response_id=reply.id,
        retry_count=retries,
    )


async def _exchange(talk: Conversation, body: bytes, crossing: Crossing, emit: Emit) -> tuple[Reply, int]:
    """Send a request that is already on the log, and read the reply to its end; how often it had to be sent again."""
    parts, started_at = talk.parts, crossing.started_at
    reader = parts.adapter.stream_reader()
    retries = 0

    def on_retry(attempt: int, error: ProviderError) -> None:
        nonlocal retries
        retries = attempt

    sending = parts.wire.send(parts.adapter.endpoint(talk.parameters), body, on_retry=on_retry)
    try:
        async with aclosing(sending) as chunks:
            async for chunk in chunks:
                for delta in reader.feed(chunk):
                    crossing.begun()
                    emit(delta)
                    if isinstance(delta, ReplyFinished):
                        await _drain(chunks)
                        return delta.reply, retries
        raise ProviderError("network", "the reply ended before it was complete; say 'go on' to try again")
    except ProviderError as error:
        await talk.record(
            "agent", _failed(talk, error, retries=retries, started_at=started_at, partial=reader.partial())
        )
        raise
    except asyncio.CancelledError:
        partial = reader.partial()
        stopped = ProviderError("cancelled", "cancelled by the caller")
        payloads: list[AnyPayload] = [_failed(talk, stopped, retries=retries, started_at=started_at, partial=partial)]
        if content := sendable_content(partial.content if partial else ()):
            payloads.append(MessageAppended(Message("assistant", content)))
        await talk.record("agent", *payloads)
        raise


async def _drain(chunks: AsyncGenerator[bytes, None]) -> None:
    """Read to the end what is there already, so that the connection can be used again."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            async for _ in chunks:
                pass
    except (TimeoutError, ProviderError):
        # The reply is whole; what the connection does afterwards is of no concern.
        return


async def _run_tools(talk: Conversation, calls: tuple[ToolUse, ...]) -> None:
    async def record(payload: AnyPayload) -> None:
        await talk.record("tool", payload)

    try:
        turn_id = talk.state.turn.id if talk.state.turn else None
        results = await talk.parts.toolbox.run(calls, record, turn_id=turn_id, active=talk.state.activations)
    except ToolsCancelledError as stopped:
        await _append_results(talk, stopped.results)
        raise asyncio.CancelledError from None
    await _append_results(talk, results)
    await _inject_news(talk)


async def _inject_news(talk: Conversation) -> None:
    """What volatile layers have to say in the middle of a turn."""
    if talk.state.layout == "seed":
        # A system prompt that changes within a turn would take the thinking of that turn along.
        return
    early, late = _injections(talk, await talk.parts.volatile())
    if early or late:
        await talk.record("system", *early, *late)


async def _answer(talk: Conversation, calls: Sequence[ToolUse], message: str) -> None:
    await _append_results(talk, tuple(refusal(call, message) for call in calls))


async def _append_results(talk: Conversation, results: tuple[ToolResult, ...]) -> None:
    await talk.record("tool", MessageAppended(Message("user", results)))


async def _abandon(talk: Conversation, reason: CancelReason) -> None:
    """Leave a legal transcript and a closed turn behind, whatever happened."""
    if calls := open_calls(talk.state):
        await _answer(talk, calls, "The call was not run.")
    turn = talk.state.turn
    if turn is not None:
        await talk.record("system", TurnCancelled(reason, turn.llm_calls, turn.tool_calls))


async def _stop_short(talk: Conversation, last: Reply | None) -> Answer:
    """The turn has had its calls: say so, instead of looking like one that ended by itself."""
    turn = talk.state.turn or Turn("", talk.parts.clock())
    await _abandon(talk, "step_limit")
    content = last.content if last else ()
    return Answer(content, "step_limit", turn.usage, turn.cost_usd, turn.llm_calls, turn.tool_calls)


async def _close_turn(talk: Conversation, last: Reply | None) -> Answer:
    turn = talk.state.turn or Turn("", talk.parts.clock())
    stop_reason = last.stop_reason if last else "error"
    completed = TurnCompleted(
        stop_reason=stop_reason,
        llm_call_count=turn.llm_calls,
        tool_call_count=turn.tool_calls,
        usage=turn.usage,
        total_cost_usd=turn.cost_usd,
        wall_time_seconds=talk.parts.clock() - turn.started_at,
    )
    await talk.record("system", completed)
    content = last.content if last else ()
    return Answer(content, stop_reason, turn.usage, turn.cost_usd, turn.llm_calls, turn.tool_calls)


def _injections(
    talk: Conversation, current: tuple[LayerText, ...]
) -> tuple[tuple[ContextInjected, ...], tuple[ContextInjected, ...]]:
    """What the volatile layers have to say before the user's text, and what goes behind it."""
    if talk.state.layout == "seed":
        text = system_tail_text(current)
        tail = talk.state.system_tail
        if not current or text == (tail.text if tail else ""):
            return (), ()
        return (ContextInjected(SYSTEM_TAIL, text, place="system"),), ()
    said = emissions(view_of(talk.state, current))
    events = [ContextInjected(one.layer, one.text, one.ephemeral) for one in said]
    return tuple(one for one in events if not one.ephemeral), tuple(one for one in events if one.ephemeral)


def sendable_content(content: tuple[Block, ...]) -> tuple[Block, ...]:
    """What of a reply can be sent back: providers refuse blank text, and a message that is nothing but thinking."""
    kept = tuple(block for block in content if not is_blank(block))
    return kept if any(not is_thinking(block) for block in kept) else ()


def _failed(
    talk: Conversation, error: ProviderError, *, retries: int, started_at: float, partial: Reply | None
) -> LlmCallFailed:
    opened = talk.state.call_open
    usage = partial.usage if partial else Usage()
    return LlmCallFailed(
        model=talk.parts.model.id,
        provider=talk.parts.model.provider,
        error_class=error.kind,
        error_message_redacted=str(error),
        retry_count=retries,
        latency_ms=_since(talk, started_at),
        request_id=opened.request_id if opened else "",
        usage=usage,
        cost_usd=cost_usd(usage, talk.price(usage.tokens_sent)),
    )


def _checked(content: Sequence[Block]) -> tuple[Block, ...]:
    """A user's words as they can be sent: no lone surrogates, no empty text."""
    if strange := next((one for one in content if not isinstance(one, Text | Image)), None):
        raise UserError(f"a user's message takes text and images, not {type(strange).__name__}")
    mended = tuple(Text(mend_surrogates(one.text)) if isinstance(one, Text) else one for one in content)
    kept = tuple(one for one in mended if not (isinstance(one, Text) and not one.text.strip()))
    if not kept:
        raise UserError("there is nothing to send: the message is empty")
    return kept


def _since(talk: Conversation, started_at: float) -> int:
    return round((talk.parts.clock() - started_at) * 1000)
