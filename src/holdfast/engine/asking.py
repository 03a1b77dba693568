"""One model call: what is sent, what is recorded before and after, and the reply."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from holdfast.canonical.blocks import (
    Block,
    Message,
    ToolUse,
    is_thinking,
)
from holdfast.canonical.encoding import ENCODING, digest
from holdfast.canonical.pieces import shared_links
from holdfast.canonical.reply import Delta, Reply, ReplyFinished
from holdfast.canonical.transcript import is_blank
from holdfast.canonical.usage import Usage
from holdfast.economics.cost import cost_usd
from holdfast.engine.billing import by_lifetime
from holdfast.engine.broken_off import Arrived
from holdfast.engine.checkpoints import shorten_if_due
from holdfast.engine.completions import Heard
from holdfast.engine.conversation import Conversation
from holdfast.engine.diagnosing import Sent, asking, is_refused
from holdfast.engine.gate import Claim, Crossing, cross
from holdfast.engine.heeding import heed
from holdfast.engine.injecting import inject_news
from holdfast.engine.keeping import Reference, forget, reference
from holdfast.engine.mending import ask_and_recover
from holdfast.engine.planned import claim_of, plan_next
from holdfast.engine.repeating import completion_key, finished, keep_reply, kept_deltas
from holdfast.engine.reporting import report_call
from holdfast.engine.teaching import teach_news
from holdfast.engine.views import sent_view
from holdfast.errors import ProviderError
from holdfast.events.payloads import (
    AnyPayload,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    MessageAppended,
    RequestPrepared,
)
from holdfast.layers.assemble import assemble
from holdfast.providers.diagnosing import compares
from holdfast.providers.tier_parameters import settings_of

DRAIN_SECONDS_MAX = 0.2
"""How long a finished response is read on, so that its connection can be reused."""

Emit = Callable[[Delta], None]


async def call_model(conversation: Conversation, emit: Emit) -> Reply:
    return await ask_and_recover(conversation, lambda on_delta: _call_with_cache(conversation, on_delta), emit)


async def _call_with_cache(conversation: Conversation, emit: Emit) -> Reply:
    """Call with the explicit cache, if there is one; if the provider has lost it, call again with the whole prompt."""
    await heed(conversation)
    # Checking whether a compaction is due also brings the draft up to date.
    if await shorten_if_due(conversation):
        await inject_news(conversation)
        conversation.draft.update(assemble(sent_view(conversation.state)))
    explicit_cache = await reference(conversation)
    if explicit_cache is None:
        return await _call_with_diagnosis(conversation, emit, None)
    try:
        return await _call_with_diagnosis(conversation, emit, explicit_cache)
    except ProviderError as error:
        if error.status not in (400, 403, 404):
            raise
        # Gemini reports a missing cache as 403; whatever the wording, the request may pass without the cache.
        await forget(conversation, str(error))
    return await _call_with_diagnosis(conversation, emit, None)


async def _call_with_diagnosis(conversation: Conversation, emit: Emit, explicit_cache: Reference | None) -> Reply:
    """Ask for a cache-miss diagnosis, and retry without if the provider refuses that; it is then never asked again."""
    parameters = explicit_cache.parameters if explicit_cache else conversation.parameters
    sent = asking(conversation, parameters)
    try:
        return await _send(conversation, emit, explicit_cache, sent)
    except ProviderError as error:
        if not is_refused(conversation, sent, error):
            raise
    return await _send(conversation, emit, explicit_cache, Sent(parameters))


async def _send(conversation: Conversation, emit: Emit, explicit_cache: Reference | None, sent: Sent) -> Reply:
    """Plan, encode, reserve budget, wait for a slot, record the start, exchange, and record the result."""
    deps, state = conversation.parts, conversation.state
    buffer = conversation.draft.scroll
    shared_blocks = shared_links(state.links, buffer.links)
    plan = plan_next(conversation, buffer, shared_blocks)
    first_block = explicit_cache.pieces if explicit_cache else 0
    key = completion_key(
        conversation, explicit_cache.parameters if explicit_cache else conversation.parameters, plan, start=first_block
    )
    if (repeated := await _replay_cached(conversation, key, emit)) is not None:
        return repeated
    body = buffer.render(deps.adapter.opening(sent.parameters), plan.marks, start=first_block)
    estimated = state.calibration.corrected(buffer.tokens_total)
    prepared = RequestPrepared(
        plan=plan,
        encoding=ENCODING,
        shared_blocks=shared_blocks,
        links=tuple(buffer.links[shared_blocks:]),
        parameters_digest=digest(deps.adapter.opening(conversation.parameters)),
        body_bytes=len(body),
        settings=settings_of(deps.model.provider, deps.model.cache, conversation.parameters),
        moved=conversation.draft.move(shared_blocks) if shared_blocks < len(state.links) else None,
    )
    conversation.draft.settle()
    flight_key = claim_of(conversation, buffer, plan)
    with conversation.promise(estimated):
        received = Heard(listening=deps.completions is not None)
        async with cross(deps.gate, flight_key, deps.clock) as slot:
            request_id = deps.new_id(slot.started_at)
            waited = slot.waited_seconds
            started = LlmCallStarted(deps.model.id, deps.model.provider, estimated, request_id, waited_seconds=waited)
            await conversation.record("agent", prepared, started)
            reply, retries = await _exchange(conversation, body, slot, emit, sent=sent, received=received)
        billed = by_lifetime(reply.usage, deps.model.provider, plan.marks, buffer.links)
        reply = msgspec.structs.replace(reply, usage=billed)
        # A diagnosis is recorded only if this request was compared with the previous one.
        reply_to_record = (
            reply if compares(deps.adapter, sent.parameters) else msgspec.structs.replace(reply, diagnosis=None)
        )
        completed = _completed_event(conversation, reply_to_record, slot, retries=retries, request_id=request_id)
        is_stored = keep_reply(conversation, key, received, reply)
        completed = msgspec.structs.replace(completed, completion_key=key, completion_kept=is_stored)
        state_before = conversation.state
        recorded_reply = await _record_reply(conversation, reply, completed)
    await teach_news(conversation)
    await report_call(conversation, state_before, prepared, reply.usage)
    return recorded_reply


async def _replay_cached(conversation: Conversation, request_key: str, emit: Emit) -> Reply | None:
    """The stored reply to a byte-identical request, if there is one; nothing is sent or paid."""
    deltas = kept_deltas(conversation, request_key)
    reply = finished(deltas)
    if reply is None:
        return None
    at = conversation.parts.clock()
    for delta in deltas:
        emit(delta)
    completed = _completed_event(
        conversation, reply, Crossing(Claim(""), at), retries=0, request_id=conversation.parts.new_id(at)
    )
    return await _record_reply(
        conversation, reply, msgspec.structs.replace(completed, source="completion-cache", completion_key=request_key)
    )


async def _record_reply(conversation: Conversation, reply: Reply, completed: LlmCallCompleted) -> Reply:
    """Record a completed call, and append its reply to the conversation."""
    # Providers refuse blank text and thinking-only messages in the history, so these are not appended.
    content = sendable_content(reply.content)
    appended = (MessageAppended(Message("assistant", content)),) if content else ()
    await conversation.record("agent", completed, *appended)
    return msgspec.structs.replace(reply, content=content)


def _completed_event(
    conversation: Conversation, reply: Reply, slot: Crossing, *, retries: int, request_id: str
) -> LlmCallCompleted:
    deps = conversation.parts
    return LlmCallCompleted(
        model=deps.model.id,
        provider=deps.model.provider,
        usage=reply.usage,
        cost_usd=cost_usd(reply.usage, conversation.price(reply.usage.tokens_sent)),
        pricing_version=deps.pricing_version,
        latency_ms=since(conversation, slot.started_at),
        stop_reason=reply.stop_reason,
        produced_tool_calls=sum(isinstance(block, ToolUse) for block in reply.content),
        produced_thinking_blocks=sum(map(is_thinking, reply.content)),
        request_id=request_id,
        compacting=reply.compacting,
        response_id=reply.id,
        retry_count=retries,
        diagnosis=reply.diagnosis,
    )


async def _exchange(
    conversation: Conversation, body: bytes, slot: Crossing, emit: Emit, *, sent: Sent, received: Heard
) -> tuple[Reply, int]:
    """Send a request that is already on the log and read the reply to its end; returns the number of retries too."""
    deps, started_at = conversation.parts, slot.started_at
    reader, arrived = deps.adapter.stream_reader(), Arrived()
    retries = 0

    def on_retry(attempt: int, error: ProviderError) -> None:
        nonlocal retries
        retries = attempt

    sending = deps.wire.send(deps.adapter.endpoint(sent.parameters), body, on_retry=on_retry)
    try:
        async with aclosing(sending) as chunks:
            async for chunk in chunks:
                received.hear(chunk)
                for delta in reader.feed(chunk):
                    slot.begun()
                    arrived.take(delta)
                    emit(delta)
                    if isinstance(delta, ReplyFinished):
                        await _drain(chunks)
                        return delta.reply, retries
        raise ProviderError("network", "the response ended before it was complete; send 'continue' to try again")
    except ProviderError as error:
        usage_so_far = arrived.taken(reader.partial(), deps.model.tokens_factor)
        failed = failed_call(conversation, error, retries=retries, started_at=started_at, usage_so_far=usage_so_far)
        refused = is_refused(conversation, sent, error)
        await conversation.record("agent", msgspec.structs.replace(failed, refused_diagnosis=refused))
        raise
    except asyncio.CancelledError:
        partial = reader.partial()
        cancellation = ProviderError("cancelled", "cancelled by the caller")
        usage_so_far = arrived.taken(partial, deps.model.tokens_factor)
        payloads: list[AnyPayload] = [
            failed_call(conversation, cancellation, retries=retries, started_at=started_at, usage_so_far=usage_so_far)
        ]
        if content := sendable_content(partial.content if partial else ()):
            payloads.append(MessageAppended(Message("assistant", content)))
        await conversation.record("agent", *payloads)
        raise


async def _drain(chunks: AsyncGenerator[bytes, None]) -> None:
    """Read what has already arrived, so that the connection can be reused."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            async for _ in chunks:
                pass
    except (TimeoutError, ProviderError):
        # The reply is complete; a failure of the connection afterwards does not matter.
        return


def sendable_content(content: tuple[Block, ...]) -> tuple[Block, ...]:
    """The blocks of a reply that can be sent back: providers refuse blank text and thinking-only messages."""
    sendable = tuple(block for block in content if not is_blank(block))
    return sendable if any(not is_thinking(block) for block in sendable) else ()


def failed_call(
    conversation: Conversation,
    error: ProviderError,
    *,
    retries: int,
    started_at: float,
    usage_so_far: tuple[Usage, bool] = (Usage(), False),
) -> LlmCallFailed:
    open_call = conversation.state.call_open
    usage, output_estimated = usage_so_far
    return LlmCallFailed(
        model=conversation.parts.model.id,
        provider=conversation.parts.model.provider,
        error_class=error.kind,
        error_message_redacted=str(error),
        retry_count=retries,
        latency_ms=since(conversation, started_at),
        request_id=open_call.request_id if open_call else "",
        usage=usage,
        cost_usd=cost_usd(usage, conversation.price(usage.tokens_sent)),
        output_estimated=output_estimated,
    )


def since(conversation: Conversation, started_at: float) -> int:
    return round((conversation.parts.clock() - started_at) * 1000)
