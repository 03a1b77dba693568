"""One model call: what is sent, what is recorded before and after, and the reply."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from holdfast.economics.cost import cost_usd
from holdfast.engine.cache.controls import apply_controls
from holdfast.engine.cache.explicit_cache import CacheReference, prepare_explicit_cache, record_lost_cache
from holdfast.engine.cache.plan import make_flight_key, plan_next_call, record_new_evidence
from holdfast.engine.cache.response_cache import RawResponse, is_storable_reply
from holdfast.engine.cache.single_flight import FlightKey, Slot, acquire_slot
from holdfast.engine.call_record import (
    PartialOutput,
    elapsed_ms,
    failed_call_event,
    sendable_content,
    split_writes_by_ttl,
)
from holdfast.engine.compaction.triggers import compact_if_due
from holdfast.engine.context_injection import inject_changed_context
from holdfast.engine.conversation import Conversation
from holdfast.engine.recovery.incidents import report_after_call
from holdfast.engine.recovery.provider_errors import call_with_recovery
from holdfast.engine.request_draft import build_sent_view
from holdfast.errors import ProviderError
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted, RequestPrepared
from holdfast.events.payloads.session import MessageAppended
from holdfast.events.payloads.union import AnyPayload
from holdfast.layers.assemble import assemble_prompt
from holdfast.providers.adapter import CacheDiagnosticsAdapter, expects_diagnosis
from holdfast.providers.cache_inputs import cache_settings
from holdfast.types.blocks import Message, ToolUse, is_thinking
from holdfast.types.json_encoding import JSON_ENCODING_VERSION, canonical_json, extend_digest, sha256_hex
from holdfast.types.prompt import Parameters, Plan
from holdfast.types.reply import Delta, Reply, ReplyFinished, ReplyStarted
from holdfast.types.request_buffer import count_shared_blocks
from holdfast.types.usage import Usage

DRAIN_SECONDS_MAX = 0.2


"""How long a finished response is read on, so that its connection can be reused."""


OnDelta = Callable[[Delta], None]


async def call_model(conversation: Conversation, emit: OnDelta) -> Reply:
    return await call_with_recovery(conversation, lambda on_delta: _call_with_cache(conversation, on_delta), emit)


async def _call_with_cache(conversation: Conversation, emit: OnDelta) -> Reply:
    """Call with the explicit cache, if there is one; if the provider has lost it, call again with the whole prompt."""
    await apply_controls(conversation)
    # Checking whether a compaction is due also brings the draft up to date.
    if await compact_if_due(conversation):
        await inject_changed_context(conversation)
        conversation.draft.update(assemble_prompt(build_sent_view(conversation.state)))
    explicit_cache = await prepare_explicit_cache(conversation)
    if explicit_cache is None:
        return await _call_with_diagnosis(conversation, emit, None)
    try:
        return await _call_with_diagnosis(conversation, emit, explicit_cache)
    except ProviderError as error:
        if error.status not in (400, 403, 404):
            raise
        # Gemini reports a missing cache as 403; whatever the wording, the request may pass without the cache.
        await record_lost_cache(conversation, str(error))
    return await _call_with_diagnosis(conversation, emit, None)


async def _call_with_diagnosis(
    conversation: Conversation, emit: OnDelta, explicit_cache: CacheReference | None
) -> Reply:
    """Ask for a cache-miss diagnosis, and retry without if the provider refuses that; it is then never asked again."""
    parameters = explicit_cache.parameters if explicit_cache else conversation.parameters
    sent = add_diagnosis_request(conversation, parameters)
    try:
        return await _send(conversation, emit, explicit_cache, sent)
    except ProviderError as error:
        if not is_diagnosis_refused(conversation, sent, error):
            raise
    return await _send(conversation, emit, explicit_cache, SentParameters(parameters))


class SentParameters(msgspec.Struct, frozen=True):
    """The parameters as sent; `asks` says whether we added a diagnosis request."""

    parameters: Parameters
    has_diagnosis: bool = False


async def _send(
    conversation: Conversation, emit: OnDelta, explicit_cache: CacheReference | None, sent: SentParameters
) -> Reply:
    """Plan, encode, reserve budget, wait for a slot, record the start, exchange, and record the result."""
    deps, state = conversation.deps, conversation.state
    buffer = conversation.draft.buffer
    shared_blocks = count_shared_blocks(state.digests, buffer.digests)
    plan = plan_next_call(conversation, buffer, shared_blocks)
    first_block = explicit_cache.blocks if explicit_cache else 0
    key = response_cache_key(
        conversation, explicit_cache.parameters if explicit_cache else conversation.parameters, plan, start=first_block
    )
    if (repeated := await _replay_cached(conversation, key, emit)) is not None:
        return repeated
    body = buffer.render(deps.adapter.request_head(sent.parameters), plan.breakpoints, start=first_block)
    estimated = state.calibration.correct_estimate(buffer.tokens_total)
    prepared = RequestPrepared(
        plan=plan,
        encoding=JSON_ENCODING_VERSION,
        shared_blocks=shared_blocks,
        digests=tuple(buffer.digests[shared_blocks:]),
        parameters_digest=sha256_hex(deps.adapter.request_head(conversation.parameters)),
        body_bytes=len(body),
        settings=cache_settings(deps.model.provider, deps.model.cache, conversation.parameters),
        prefix_change=conversation.draft.describe_change(shared_blocks) if shared_blocks < len(state.digests) else None,
    )
    conversation.draft.mark_sent()
    flight_key = make_flight_key(conversation, buffer, plan)
    with conversation.reserve_budget(estimated):
        received = RawResponse(listening=deps.response_cache is not None)
        async with acquire_slot(deps.single_flight, flight_key, deps.clock) as slot:
            request_id = deps.new_id(slot.started_at)
            waited = slot.waited_seconds
            started = LlmCallStarted(deps.model.id, deps.model.provider, estimated, request_id, waited_seconds=waited)
            await conversation.record("agent", prepared, started)
            reply, retries = await _exchange(conversation, body, slot, emit, sent=sent, received=received)
        billed = split_writes_by_ttl(reply.usage, deps.model.provider, plan.breakpoints, buffer.digests)
        reply = msgspec.structs.replace(reply, usage=billed)
        # A diagnosis is recorded only if this request was compared with the previous one.
        reply_to_record = (
            reply
            if expects_diagnosis(deps.adapter, sent.parameters)
            else msgspec.structs.replace(reply, diagnosis=None)
        )
        completed = _completed_event(conversation, reply_to_record, slot, retries=retries, request_id=request_id)
        is_stored = store_reply(conversation, key, received, reply)
        completed = msgspec.structs.replace(completed, completion_key=key, is_completion_cached=is_stored)
        state_before = conversation.state
        recorded_reply = await _record_reply(conversation, reply, completed)
    await record_new_evidence(conversation)
    await report_after_call(conversation, state_before, prepared, reply.usage)
    return recorded_reply


async def _replay_cached(conversation: Conversation, request_key: str, emit: OnDelta) -> Reply | None:
    """The stored reply to a byte-identical request, if there is one; nothing is sent or paid."""
    deltas = load_cached_deltas(conversation, request_key)
    reply = find_finished_reply(deltas)
    if reply is None:
        return None
    at = conversation.deps.clock()
    for delta in deltas:
        emit(delta)
    completed = _completed_event(
        conversation, reply, Slot(FlightKey(""), at), retries=0, request_id=conversation.deps.new_id(at)
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
    conversation: Conversation, reply: Reply, slot: Slot, *, retries: int, request_id: str
) -> LlmCallCompleted:
    deps = conversation.deps
    return LlmCallCompleted(
        model=deps.model.id,
        provider=deps.model.provider,
        usage=reply.usage,
        cost_usd=cost_usd(reply.usage, conversation.price(reply.usage.tokens_sent)),
        pricing_version=deps.pricing_version,
        latency_ms=elapsed_ms(conversation, slot.started_at),
        stop_reason=reply.stop_reason,
        produced_tool_calls=sum(isinstance(block, ToolUse) for block in reply.content),
        produced_thinking_blocks=sum(map(is_thinking, reply.content)),
        request_id=request_id,
        compaction_usage=reply.compaction_usage,
        response_id=reply.id,
        retry_count=retries,
        diagnosis=reply.diagnosis,
    )


async def _exchange(
    conversation: Conversation, body: bytes, slot: Slot, emit: OnDelta, *, sent: SentParameters, received: RawResponse
) -> tuple[Reply, int]:
    """Send a request that is already on the log and read the reply to its end; returns the number of retries too."""
    deps, started_at = conversation.deps, slot.started_at
    reader, arrived = deps.adapter.make_stream_decoder(), PartialOutput()
    retries = 0

    def on_retry(attempt: int, error: ProviderError) -> None:
        nonlocal retries
        retries = attempt

    sending = deps.transport.send(deps.adapter.endpoint(sent.parameters), body, on_retry=on_retry)
    try:
        async with aclosing(sending) as chunks:
            async for chunk in chunks:
                received.add_chunk(chunk)
                for delta in reader.feed(chunk):
                    slot.mark_begun()
                    arrived.add_delta(delta)
                    emit(delta)
                    if isinstance(delta, ReplyFinished):
                        await _drain(chunks)
                        return delta.reply, retries
        raise ProviderError("network", "the response ended before it was complete; send 'continue' to try again")
    except ProviderError as error:
        usage_so_far = arrived.estimate_usage(reader.partial(), deps.model.tokens_factor)
        failed = failed_call_event(
            conversation, error, retries=retries, started_at=started_at, usage_so_far=usage_so_far
        )
        refused = is_diagnosis_refused(conversation, sent, error)
        await conversation.record("agent", msgspec.structs.replace(failed, is_diagnosis_refused=refused))
        raise
    except asyncio.CancelledError:
        partial = reader.partial()
        cancellation = ProviderError("cancelled", "cancelled by the caller")
        usage_so_far = arrived.estimate_usage(partial, deps.model.tokens_factor)
        payloads: list[AnyPayload] = [
            failed_call_event(
                conversation, cancellation, retries=retries, started_at=started_at, usage_so_far=usage_so_far
            )
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


def add_diagnosis_request(conversation: Conversation, parameters: Parameters) -> SentParameters:
    """The parameters with a diagnosis request, if the model supports it and the provider has not refused it before."""
    deps, comparison = conversation.deps, conversation.state.diagnosis_baseline
    if not deps.diagnoses_misses or deps.model.provider in comparison.refused_by:
        return SentParameters(parameters)
    if not deps.model.cache.diagnoses_misses or not isinstance(deps.adapter, CacheDiagnosticsAdapter):
        return SentParameters(parameters)
    if not deps.model.supports_prompt_caching:
        # Without caching there is no miss to diagnose.
        return SentParameters(parameters)
    with_diagnosis = deps.adapter.request_diagnosis(parameters, comparison.response_ids.get(deps.model.id))
    return SentParameters(with_diagnosis, has_diagnosis=with_diagnosis != parameters)


def is_diagnosis_refused(conversation: Conversation, sent: SentParameters, error: ProviderError) -> bool:
    """Whether the error is about our diagnosis request, so that the call may succeed without it."""
    adapter = conversation.deps.adapter
    return sent.has_diagnosis and isinstance(adapter, CacheDiagnosticsAdapter) and adapter.is_diagnosis_refusal(error)


def response_cache_key(conversation: Conversation, parameters: Parameters, plan: Plan, *, start: int) -> str:
    """A key that is equal for byte-identical requests, headers included, to the same model and account.

    `parameters` must not contain the diagnosis request, which does not change the reply. Blocks before `start` are not
    sent. Empty if no replies are stored.
    """
    deps, digests = conversation.deps, conversation.draft.buffer.digests
    if deps.response_cache is None:
        return ""
    breakpoints = tuple((breakpoint.block_index, breakpoint.ttl) for breakpoint in plan.breakpoints)
    scope = canonical_json((deps.account, deps.model.id, deps.adapter.endpoint(parameters), breakpoints, start))
    return extend_digest(
        extend_digest(sha256_hex(scope), deps.adapter.request_head(parameters)),
        digests[-1].digest.encode() if digests else b"",
    )


def load_cached_deltas(conversation: Conversation, key: str) -> tuple[Delta, ...]:
    """The stored reply's deltas with zero usage; empty if none is stored."""
    completions = conversation.deps.response_cache
    chunks = (
        completions.cache.find(key, conversation.deps.clock(), completions.seconds) if completions is not None else None
    )
    reader = conversation.deps.adapter.make_stream_decoder()
    return tuple(_without_usage(delta) for chunk in chunks or () for delta in reader.feed(chunk))


def find_finished_reply(deltas: tuple[Delta, ...]) -> Reply | None:
    return next((delta.reply for delta in deltas if isinstance(delta, ReplyFinished)), None)


def store_reply(conversation: Conversation, key: str, received: RawResponse, reply: Reply) -> bool:
    """Store the reply for identical requests, if it is worth it; returns whether it was stored."""
    completions = conversation.deps.response_cache
    if completions is None or not received.chunks or not is_storable_reply(reply):
        return False
    return completions.cache.store(key, received.chunks, conversation.deps.clock(), completions.seconds)


def _without_usage(delta: Delta) -> Delta:
    match delta:
        case ReplyStarted():
            return msgspec.structs.replace(delta, usage=Usage())
        case ReplyFinished(reply=reply):
            return ReplyFinished(msgspec.structs.replace(reply, usage=Usage()))
        case _:
            return delta
