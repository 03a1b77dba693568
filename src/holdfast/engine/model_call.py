"""One model call, from the session's state to the recorded reply: assemble, plan, encode, send, record.

The turn loop wraps recovery from refusals around this; retries after transient failures are the transport's.
"""

from contextlib import nullcontext

from msgspec.structs import replace

from holdfast.compaction.decision import STRIKES_MAX
from holdfast.engine.budget import reserve_budget
from holdfast.engine.cache.controls import apply_controls
from holdfast.engine.cache.explicit_cache import prepare_explicit_cache, record_lost_cache
from holdfast.engine.cache.plan import make_flight_key, plan_next_call, record_new_evidence
from holdfast.engine.cache.response_cache import RawResponse, ResponseCacheConfig
from holdfast.engine.cache.single_flight import acquire_slot
from holdfast.engine.call_record import completed_call_event, record_reply, split_writes_by_ttl
from holdfast.engine.compaction.triggers import compact_if_due, read_ahead
from holdfast.engine.conversation import Conversation
from holdfast.engine.exchange import OnDelta, RequestOptions, choose_request_options, exchange, is_diagnosis_refused
from holdfast.engine.recovery.incidents import report_ineffective_compaction, report_missed_read
from holdfast.engine.snapshot import UNSAVED_MESSAGES_MIN, UNSAVED_MESSAGES_SHARE, save_while_waiting
from holdfast.errors import ProviderError
from holdfast.events.payloads.calls import LlmCallStarted, RequestPrepared
from holdfast.ledger.cache.verdicts import DROP_TOKENS_MIN
from holdfast.providers.adapter import ExplicitCacheAdapter, expects_diagnosis
from holdfast.providers.cache_inputs import cache_settings
from holdfast.types.json_encoding import JSON_ENCODING_VERSION, canonical_json, extend_digest, sha256_hex
from holdfast.types.prompt import Plan
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.request_buffer import count_shared_blocks

_CACHE_REFUSED_STATUSES = (400, 403, 404)
"""Gemini reports a missing cache as 403; whatever the wording, the request may pass without the cache."""


async def call_model(conversation: Conversation, emit: OnDelta) -> Reply:
    """Make one call; without the explicit cache or the diagnosis request if the provider refuses those."""
    await apply_controls(conversation)
    await _assemble(conversation)
    explicit_cache = None
    if isinstance(conversation.deps.adapter, ExplicitCacheAdapter):
        await conversation.flush()
        explicit_cache = await prepare_explicit_cache(conversation)
    while True:
        options = choose_request_options(conversation, explicit_cache)
        try:
            return await _call_once(conversation, options, emit)
        except ProviderError as error:
            if is_diagnosis_refused(conversation, options, error):
                continue  # The refusal is on the log by now, so the next options contain no diagnosis request.
            if explicit_cache is None or error.status not in _CACHE_REFUSED_STATUSES:
                raise
            await record_lost_cache(conversation, str(error))
            explicit_cache = None


async def _assemble(conversation: Conversation) -> None:
    """Assemble the prompt, after a compaction if the prompt has become too large or too expensive."""
    conversation.assemble_request()
    if await compact_if_due(conversation):
        await conversation.inject_changed_context()
        conversation.assemble_request()


async def _call_once(conversation: Conversation, options: RequestOptions, emit: OnDelta) -> Reply:
    deps, buffer = conversation.deps, conversation.draft.buffer
    shared_blocks = count_shared_blocks(conversation.state.digests, buffer.digests)
    plan = plan_next_call(conversation, buffer, shared_blocks)
    stored_replies, key, received = deps.response_cache, "", None
    if stored_replies is not None:
        key, received = _response_cache_key(conversation, options, plan), RawResponse()
        if (stored := await _replay_stored_reply(conversation, stored_replies, key, emit)) is not None:
            return stored
    body, prepared = encode_request(conversation, options, plan, shared_blocks)
    tokens = conversation.request_tokens
    with reserve_budget(conversation, tokens):
        flight_key = make_flight_key(conversation, buffer, plan)
        async with acquire_slot(deps.single_flight, flight_key, deps.clock) as slot:
            request_id, waited = deps.new_id(slot.started_at), slot.waited_seconds
            started = LlmCallStarted(deps.model.id, deps.model.provider, tokens, request_id, waited_seconds=waited)
            await conversation.record("agent", prepared, started)
            saving = save_while_waiting(conversation) if _needs_snapshot(conversation) else nullcontext()
            async with saving, read_ahead(conversation):
                reply, retries = await exchange(conversation, body, options, emit, slot=slot, received=received)
        billed = split_writes_by_ttl(reply.usage, deps.model.provider, plan.breakpoints, buffer.digests)
        reply = replace(reply, usage=billed)
        at = slot.started_at
        completed = completed_call_event(conversation, reply, started_at=at, retries=retries, request_id=request_id)
        if not expects_diagnosis(deps.adapter, options.parameters):
            # A diagnosis is recorded only if this request was compared with the previous one.
            completed = replace(completed, diagnosis=None)
        if stored_replies is not None and received is not None:
            is_stored = stored_replies.store_reply(key, received.chunks, reply, deps.clock())
            completed = replace(completed, completion_key=key, is_completion_cached=is_stored)
        state_before = conversation.state
        recorded_reply = await record_reply(conversation, reply, completed)
    await record_new_evidence(conversation)
    if state_before.compaction_watch.strikes < STRIKES_MAX <= conversation.state.compaction_watch.strikes:
        await report_ineffective_compaction(conversation, f"{STRIKES_MAX} compactions did not help")
    if plan.expected_read_tokens - reply.usage.cache_read >= DROP_TOKENS_MIN:
        await report_missed_read(conversation, state_before, prepared, reply.usage)
    return recorded_reply


def _needs_snapshot(conversation: Conversation) -> bool:
    """Whether too many messages are new since the snapshot to wait until the session is closed."""
    count = conversation.state.message_count
    return count - conversation.messages_saved >= max(UNSAVED_MESSAGES_MIN, count * UNSAVED_MESSAGES_SHARE)


def encode_request(
    conversation: Conversation, options: RequestOptions, plan: Plan, shared_blocks: int
) -> tuple[bytes, RequestPrepared]:
    """The assembled request with the planned breakpoints, and its event; the draft counts as sent from here on."""
    deps, state, draft = conversation.deps, conversation.state, conversation.draft
    buffer, parameters = draft.buffer, conversation.parameters
    request_head = deps.adapter.request_head(options.parameters)
    body = buffer.render(request_head, plan.breakpoints, start=options.first_block)
    prepared = RequestPrepared(
        plan=plan,
        encoding=JSON_ENCODING_VERSION,
        shared_blocks=shared_blocks,
        digests=tuple(buffer.digests[shared_blocks:]),
        parameters_digest=sha256_hex(deps.adapter.request_head(parameters)),
        body_bytes=len(body),
        settings=cache_settings(deps.model.provider, deps.model.cache, parameters, ended_thinking=draft.ended_thinking),
        prefix_change=draft.describe_change(shared_blocks) if shared_blocks < len(state.digests) else None,
    )
    draft.mark_sent()
    return body, prepared


def _response_cache_key(conversation: Conversation, options: RequestOptions, plan: Plan) -> str:
    """A key that is equal for byte-identical requests, headers included, to the same model and account.

    It does not depend on the diagnosis request, which does not change the reply.
    """
    deps, digests, parameters = conversation.deps, conversation.draft.buffer.digests, options.undiagnosed
    breakpoints = tuple((breakpoint.block_index, breakpoint.ttl) for breakpoint in plan.breakpoints)
    endpoint = deps.adapter.endpoint(parameters)
    scope = canonical_json((deps.account, deps.model.id, endpoint, breakpoints, options.first_block))
    prompt = digests[-1].digest.encode() if digests else b""
    return extend_digest(extend_digest(sha256_hex(scope), deps.adapter.request_head(parameters)), prompt)


async def _replay_stored_reply(
    conversation: Conversation, stored_replies: ResponseCacheConfig, key: str, emit: OnDelta
) -> Reply | None:
    """The stored reply to a byte-identical request, if there is one; nothing is sent or paid."""
    deps, at = conversation.deps, conversation.deps.clock()
    deltas = stored_replies.find_deltas(key, deps.adapter.make_stream_decoder(), at)
    reply = next((delta.reply for delta in deltas if isinstance(delta, ReplyFinished)), None)
    if reply is None:
        return None
    for delta in deltas:
        emit(delta)
    completed = completed_call_event(conversation, reply, started_at=at, retries=0, request_id=deps.new_id(at))
    completed = replace(completed, source="completion-cache", completion_key=key)
    return await record_reply(conversation, reply, completed)
