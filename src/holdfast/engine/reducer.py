"""The session reducer: a session's state as a fold over its events."""

from collections.abc import Iterable
from decimal import Decimal
from itertools import takewhile

from msgspec.structs import replace

from holdfast.catalog.token_count import TokenCalibration
from holdfast.compaction.decision import (
    observe_call,
    observe_compaction,
    observe_refusal,
    observe_undo,
    observe_user_message,
)
from holdfast.compaction.view import (
    apply_compaction,
    count_leading_summaries,
    drop_stale_thinking,
    is_summary,
    summary_as_user_message,
)
from holdfast.engine.compaction.history import make_injected_entry
from holdfast.engine.history_transfer import model_provider, transfer_history
from holdfast.engine.state import (
    NO_LIMITS,
    CompletedCall,
    DiagnosisBaseline,
    ProviderLimits,
    SessionState,
    TurnState,
    UndoPoint,
)
from holdfast.engine.tools.skill_budget import add_activation, add_use, remove_activations
from holdfast.events.log import Event
from holdfast.events.payloads import calls, session
from holdfast.events.payloads.cache import CacheControlsApplied, CacheLearned, CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    ModelSwitched,
    RequestPrepared,
    RouteDecided,
)
from holdfast.events.payloads.compaction import (
    CompactionRequested,
    CompactionSkipped,
    CompactionUndone,
    ContextCompacted,
    SkillReleased,
)
from holdfast.events.payloads.recovery import ProviderLimited, RecoveryPayload, ViewRepair
from holdfast.layers.assemble import stable_segments, with_nonce
from holdfast.ledger.accounting import answer_usage
from holdfast.planning.explicit_cache import ExplicitCacheState
from holdfast.planning.learned import (
    NO_IMPLICIT_READS,
    ImplicitReads,
    ObservedFloor,
    RequestRecord,
    UpgradeBelief,
    distrust_anchor,
    forget_cached,
    keep_leading_blocks,
    memory_after_call,
    memory_after_ping,
)
from holdfast.planning.policy import PingResult, WaitedFor
from holdfast.recovery.attempts import apply_recovery_event
from holdfast.recovery.history_edits import apply_repair, count_answered_entries, drop_ephemeral, filter_entries
from holdfast.types.blocks import ToolUse, join_text_blocks, parse_tool_call
from holdfast.types.prompt import HistoryEntry, LayerText, View, drop_thinking
from holdfast.types.usage import Usage

# Recorded for readers of the log only: the state does not depend on these.
LogOnlyPayload = (
    calls.ToolCompleted
    | calls.ToolFailed
    | calls.ToolInputInvalid
    | calls.ToolConfirmationRequested
    | calls.ToolConfirmationResolved
    | RouteDecided
    | GatewayForwarded
    | session.MemoryUpdated
    | session.MemoryEviction
)

# Change what an undo point has. `SkillReleased` does not: without its compaction the skill would still be in view.
_VIEW_PAYLOADS = (
    session.EpochOpened,
    session.TurnStarted,
    session.MessageAppended,
    session.MessagesWithdrawn,
    session.ContextInjected,
    session.SkillLoaded,
    session.SkillUsed,
    RequestPrepared,
    ModelSwitched,
    CacheControlsApplied,
    LlmCallCompleted,
    ContextCompacted,
)


def fold_events(events: Iterable[Event], session_id: str) -> SessionState:
    state = SessionState(session_id)
    for event in events:
        state = apply_event(state, event)
    return state


def apply_event(state: SessionState, event: Event) -> SessionState:
    """The state after one more event."""
    return replace(
        _apply(state, event),
        event_count=state.event_count + 1,
        last_event_id=event.id,
        undo_point=_follow_undo_point(state, event),
    )


def _follow_undo_point(state: SessionState, event: Event) -> UndoPoint | None:
    """The undo point after one more event: the same fold, over the view without the newest compaction."""
    point = state.undo_point
    match event.payload:
        case ContextCompacted(strategy=strategy) if strategy != "lossless":
            return _make_undo_point(state, event.id, state.message_count)
        case CompactionUndone() | ViewRepair():
            # A repair names positions in the compacted view, which say nothing about the other one.
            return None
        case payload if point is not None and isinstance(payload, _VIEW_PAYLOADS):
            without = _apply(_restore(state, point), event)
            return _make_undo_point(without, point.compaction_id, point.last_message)
        case _:
            return point


def _make_undo_point(state: SessionState, compaction_id: str, last_message: int) -> UndoPoint:
    return UndoPoint(
        compaction_id,
        last_message,
        state.entries,
        state.sent_count,
        state.emitted,
        state.first_ephemeral,
        state.activations,
        state.compaction_watch,
    )


def _restore(state: SessionState, point: UndoPoint) -> SessionState:
    return replace(
        state,
        entries=point.entries,
        sent_count=point.sent_count,
        emitted=point.emitted,
        first_ephemeral=point.first_ephemeral,
        activations=point.activations,
        compaction_watch=point.compaction_watch,
        undo_point=None,
    )


def _apply(state: SessionState, event: Event) -> SessionState:
    if isinstance(event.payload, LogOnlyPayload):
        return state
    match event.payload:
        case session.SessionStarted() as payload:
            return _begin_session(state, payload, event.at)
        case session.EpochOpened() as payload:
            return _open_epoch(state, payload)
        case session.TurnStarted():
            return _begin_turn(state, event)
        case session.MessageAppended() as payload:
            return _append(state, payload)
        case session.MessagesWithdrawn():
            return _withdraw(state)
        case session.ContextInjected() as payload:
            return _inject(state, payload)
        case RequestPrepared() as payload:
            return _prepare(state, payload, event.at)
        case ModelSwitched() as payload:
            return _switch_model(state, payload)
        case ExplicitCacheChanged() as payload:
            return apply_explicit_cache(state, payload)
        case CachePinged() as payload:
            return apply_ping(state, payload)
        case CacheLearned() as payload:
            return replace(state, learned_record=payload)
        case CacheControlsApplied() as payload:
            return _control(state, payload)
        case LlmCallStarted() as payload:
            return replace(state, open_call=payload)
        case LlmCallCompleted() as payload:
            return apply_call(state, payload)
        case LlmCallFailed() as payload:
            return apply_failed_call(state, payload)
        case session.DelegationStarted() as payload:
            return replace(state, delegated_sessions=state.delegated_sessions | {payload.child_session_id})
        case session.DelegationCompleted() as payload:
            after = add_turn_cost(state, payload.cost_usd, payload.usage)
            return replace(after, delegated_sessions=state.delegated_sessions - {payload.child_session_id})
        case calls.ToolCalled():
            turn = state.turn and replace(state.turn, tool_calls=state.turn.tool_calls + 1)
            return replace(state, turn=turn, has_called_tools=True)
        case session.TurnCompleted() | session.TurnCancelled():
            return replace(state, turn=None, turn_count=state.turn_count + 1)
        case session.SkillLoaded() as payload:
            return replace(state, activations=add_activation(state.activations, payload))
        case session.SkillUsed() as payload:
            return replace(state, activations=add_use(state.activations, payload))
        case ContextCompacted() as payload:
            return compact_view(state, payload)
        case CompactionUndone() as payload:
            return undo_compaction(state, payload)
        case CompactionRequested() as payload:
            return replace(state, compaction_watch=replace(state.compaction_watch, request=payload))
        case CompactionSkipped() as payload:
            return replace(state, compaction_watch=observe_refusal(state.compaction_watch, payload))
        case SkillReleased() as payload:
            return replace(state, activations=remove_activations(state.activations, {payload.tool_use_id or ""}))
        case session.SessionEnded():
            return replace(state, is_ended=True)
        case RecoveryPayload() as payload:
            return replace(state, incidents=apply_recovery_event(state.incidents, payload, event.at))
        case ProviderLimited() as payload:
            return replace(state, limits=add_limit(state.limits, payload))
        case ViewRepair() as payload:
            return _repair_view(state, payload)


def _begin_session(state: SessionState, started: session.SessionStarted, at: float) -> SessionState:
    return replace(
        state,
        model=started.model,
        name=started.name,
        profile=started.profile,
        layout=started.layout,
        workspace_path=started.workspace_path,
        simulated=started.simulated,
        user_id=started.user_id,
        team_id=started.team_id,
        spend_max_usd=started.spend_max_usd,
        parameters=started.parameters,
        started_at=at,
        parent=started.parent,
    )


def open_tool_calls(state: SessionState) -> tuple[ToolUse, ...]:
    """Tool calls of the last message without results, including calls with fields that we do not know."""
    if not state.entries or state.entries[-1].role != "assistant":
        return ()
    calls = (parse_tool_call(block) for block in state.entries[-1].content)
    return tuple(call for call in calls if call is not None)


def _open_epoch(state: SessionState, opened: session.EpochOpened) -> SessionState:
    # Thinking is bound to the text before it (Anthropic, "Preserved thinking"), so a changed prefix drops it.
    entries, sent = filter_entries(state.entries, state.sent_count, drop_thinking)
    segments = stable_segments(View(tools=opened.tools, pinned=opened.system))
    stable_prefix = with_nonce(segments, state.cache_settings.nonce)
    pairs = zip(stable_prefix, state.stable_prefix, strict=False)
    unchanged_layers = [segment.name for segment, other in pairs if segment == other]
    digests = tuple(takewhile(lambda prefix_digest: prefix_digest.layer in unchanged_layers, state.digests))
    return replace(
        state,
        entries=entries,
        sent_count=sent,
        digests=digests,
        answered_blocks=min(state.answered_blocks, len(digests)),
        cache_memory=forget_cached(state.cache_memory) if state.epoch else state.cache_memory,
        epoch=opened.epoch,
        pinned=opened.system,
        tools=opened.tools,
        stable_prefix=stable_prefix,
        skills=opened.skills,
        padding=opened.padding,
        activations=replace(state.activations, preloaded=opened.preloaded) if opened.preloaded else state.activations,
    )


def _prepare(state: SessionState, prepared: RequestPrepared, at: float) -> SessionState:
    digests = (*state.digests[: prepared.shared_blocks], *prepared.digests)
    request = RequestRecord(at, prepared.plan.breakpoints, len(digests), wait_cause(state), prepared.plan.floor_tokens)
    return replace(state, digests=digests, sent_count=len(state.entries), request=request)


def _control(state: SessionState, control: CacheControlsApplied) -> SessionState:
    is_cache_kept = not control.reason and control.caching_enabled == state.cache_settings.caching_enabled
    memory = state.cache_memory if is_cache_kept else forget_cached(state.cache_memory)
    changed = replace(state, cache_settings=control, cache_memory=memory)
    if not control.new_prefix:
        return changed
    # Thinking is bound to the text before it (Anthropic, "Preserved thinking"), so a changed prefix drops it.
    prefix = with_nonce(state.stable_prefix, control.nonce)
    entries, sent = filter_entries(state.entries, state.sent_count, drop_thinking)
    return replace(changed, stable_prefix=prefix, entries=entries, sent_count=sent, digests=(), answered_blocks=0)


def wait_cause(state: SessionState) -> WaitedFor:
    """What the session has waited for since the previous call, if a call is made now."""
    if state.cache_memory.last_at is None:
        return "start"
    return "tool" if state.turn is not None and state.turn.llm_calls else "user"


def _switch_model(state: SessionState, switched: ModelSwitched) -> SessionState:
    """Another model has another cache: nothing sent so far is in it, and token estimates start over."""
    same_provider = model_provider(switched.before) == model_provider(switched.after)
    readable = state.entries if same_provider else summary_as_user_message(state.entries)
    sent = transfer_history(readable[: state.sent_count], same_provider=same_provider).entries
    unsent = transfer_history(readable[state.sent_count :], same_provider=same_provider).entries
    return replace(
        state,
        model=switched.after,
        parameters=switched.parameters,
        entries=sent + unsent,
        sent_count=len(sent),
        first_ephemeral=_find_first_ephemeral(sent + unsent),
        digests=(),
        answered_blocks=0,
        # Idle times stay valid; observations about the other model's cache do not.
        cache_memory=replace(forget_cached(state.cache_memory), upgrade_belief=UpgradeBelief(), floor=ObservedFloor()),
        calibration=TokenCalibration(),
        uncached_calls=state.uncached_calls if same_provider else 0,
        uncached_span=state.uncached_span if same_provider else (0.0, 0.0),
        implicit_reads=state.implicit_reads if same_provider else NO_IMPLICIT_READS,
        refused_prefix=None,
        limits=NO_LIMITS,
        last_call=None,
    )


def _withdraw(state: SessionState) -> SessionState:
    """Remove everything after the model's last message; volatile layers count as emitted only where still present."""
    remaining = state.entries[: count_answered_entries(state.entries) or count_leading_summaries(state.entries)]
    ephemeral = state.first_ephemeral
    withdrawn = replace(
        state,
        entries=remaining,
        sent_count=len(remaining),
        emitted=_emitted_in(remaining),
        first_ephemeral=ephemeral if ephemeral is not None and ephemeral < len(remaining) else None,
        digests=state.digests[: state.answered_blocks],
    )
    unanswered = {call.id for call in open_tool_calls(withdrawn)}
    return replace(withdrawn, activations=remove_activations(state.activations, unanswered))


def _repair_view(state: SessionState, repair: ViewRepair) -> SessionState:
    # The refused request was never cached. If the repair also changes earlier blocks, their cache is useless too.
    repaired = apply_repair(state.entries, state.sent_count, repair)
    return replace(
        state,
        entries=repaired.entries,
        sent_count=repaired.sent_count,
        first_ephemeral=_find_first_ephemeral(repaired.entries),
        digests=state.digests[: state.answered_blocks],
        answered_blocks=0 if repaired.has_prefix_changed else state.answered_blocks,
        cache_memory=forget_cached(state.cache_memory) if repaired.has_prefix_changed else state.cache_memory,
    )


def _find_first_ephemeral(entries: tuple[HistoryEntry, ...]) -> int | None:
    return next((at for at, entry in enumerate(entries) if entry.ephemeral), None)


def _emitted_in(entries: tuple[HistoryEntry, ...]) -> tuple[LayerText, ...]:
    """The last emitted text of each volatile layer that is still in the view."""
    newest = {entry.layer: entry for entry in entries if entry.is_injected and not is_summary(entry)}
    return tuple(LayerText(layer, join_text_blocks(entry.content), entry.ephemeral) for layer, entry in newest.items())


def _append(state: SessionState, event: session.MessageAppended) -> SessionState:
    number = state.message_count + 1
    entries = (*state.entries, HistoryEntry(event.message.role, event.message.content, number=number))
    # A reply is in no request yet, but it will directly follow what was sent, so it counts as sent.
    sent = len(entries) if event.message.role == "assistant" else state.sent_count
    return replace(state, entries=entries, sent_count=sent, message_count=number)


def compact_view(state: SessionState, event: ContextCompacted) -> SessionState:
    """Replace the view of the log by the compacted one; the unchanged leading blocks stay cached."""
    sent = apply_compaction(state.entries[: state.sent_count], event)
    entries = sent + drop_stale_thinking(state.entries[state.sent_count :], event)
    return replace(
        _rewrite_view(state, event),
        entries=entries,
        sent_count=len(sent),
        emitted=_emitted_in(entries),
        first_ephemeral=_find_first_ephemeral(entries),
        compaction_watch=observe_compaction(state.compaction_watch, event, messages=state.message_count),
    )


def undo_compaction(state: SessionState, event: CompactionUndone) -> SessionState:
    """Replace the view by the one without the newest compaction; the unchanged leading blocks stay cached."""
    point, rewritten = state.undo_point, _rewrite_view(state, event)
    if point is None:
        # Only a damaged log has an undo without its compaction.
        return rewritten
    restored = _restore(rewritten, point)
    entries, sent = restored.entries, restored.sent_count
    if event.thinking_dropped:
        # What came before the compaction has its own prefix back, and so its thinking is valid again.
        entries, sent = filter_entries(
            entries, sent, lambda entry: drop_thinking(entry) if entry.number > point.last_message else entry
        )
    watch = observe_undo(restored.compaction_watch, event)
    first = _find_first_ephemeral(entries)
    return replace(restored, entries=entries, sent_count=sent, first_ephemeral=first, compaction_watch=watch)


def _rewrite_view(state: SessionState, event: ContextCompacted | CompactionUndone) -> SessionState:
    """A new epoch in which only the event's unchanged leading blocks are still cached."""
    blocks, tokens = event.unchanged_blocks, event.cached_tokens
    return replace(
        state,
        epoch=event.epoch,
        digests=state.digests[:blocks],
        answered_blocks=min(state.answered_blocks, blocks),
        cache_memory=keep_leading_blocks(state.cache_memory, state.request, blocks=blocks, tokens=tokens),
    )


def _begin_turn(state: SessionState, event: Event) -> SessionState:
    """A new turn drops the previous turn's ephemeral text, and the thinking that was bound to it."""
    if state.first_ephemeral is not None:
        entries, sent = drop_ephemeral(state.entries, state.sent_count, state.first_ephemeral)
        state = replace(state, entries=entries, sent_count=sent)
    return replace(
        state,
        turn=TurnState(event.turn_id or event.id, event.at),
        compaction_watch=observe_user_message(state.compaction_watch),
        first_ephemeral=None,
        emitted=tuple(layer_text for layer_text in state.emitted if not layer_text.ephemeral),
    )


def _inject(state: SessionState, injected: session.ContextInjected) -> SessionState:
    layer_text = LayerText(injected.layer, injected.text, injected.ephemeral)
    if injected.section == "system":
        # Thinking is bound to the text before it; once that text changes, none of it may be sent again.
        before = state.system_tail.text if state.system_tail else ""
        entries, sent = state.entries, state.sent_count
        if before != layer_text.text:
            entries, sent = filter_entries(entries, sent, drop_thinking)
        return replace(state, system_tail=layer_text, entries=entries, sent_count=sent)
    entry = make_injected_entry(injected, state.message_count + 1)
    other_layers = (earlier for earlier in state.emitted if earlier.layer != layer_text.layer)
    entries, emitted, first = (*state.entries, entry), (*other_layers, layer_text), state.first_ephemeral
    if layer_text.ephemeral and first is None:
        first = len(state.entries)
    return replace(state, entries=entries, emitted=emitted, first_ephemeral=first, message_count=entry.number)


def apply_explicit_cache(state: SessionState, event: ExplicitCacheChanged) -> SessionState:
    exists = event.action in ("created", "extended")
    explicit_cache = ExplicitCacheState(event.name, event.model, event.digest, event.tokens, event.expires_at)
    return replace(
        add_turn_cost(state, event.cost_usd + event.storage_cost_usd, Usage()),
        explicit_cache=explicit_cache if exists else None,
        refused_prefix=event.digest if event.action == "refused" else state.refused_prefix,
    )


def add_turn_cost(state: SessionState, cost_usd: Decimal, usage: Usage) -> SessionState:
    turn = state.turn
    if turn is not None:
        turn = replace(turn, usage=turn.usage + usage, cost_usd=turn.cost_usd + cost_usd)
    return replace(state, turn=turn, usage=state.usage + usage, cost_usd=state.cost_usd + cost_usd)


def add_cost(state: SessionState, cost_usd: Decimal, usage: Usage) -> SessionState:
    return replace(state, usage=state.usage + usage, cost_usd=state.cost_usd + cost_usd)


def apply_ping(state: SessionState, ping: CachePinged) -> SessionState:
    """A ping is paid for, but is no call of the conversation: the last request stays the last request."""
    pinged_usd = state.pinged_usd + (ping.cost_usd if ping.breakpoint_block is not None else 0)
    after = replace(add_cost(state, ping.cost_usd, ping.usage), pinged_usd=pinged_usd)
    last_call_at = state.cache_memory.last_at
    # A prewarm, a ping older than the last call, or one for another model says nothing about the current cache.
    is_current = last_call_at is not None and ping.sent_at >= last_call_at and ping.model == state.model
    if ping.breakpoint_block is None or not is_current:
        return after
    result = PingResult(ping.sent_at, ping.ttl, ping.usage, ping.breakpoint_block, ping.block_count, ping.prefix_tokens)
    last_call = CompletedCall(ping.sent_at, ping.ttl, ping.usage)
    return replace(after, cache_memory=memory_after_ping(state.cache_memory, result), last_call=last_call)


def apply_call(state: SessionState, call: LlmCallCompleted) -> SessionState:
    if call.source == "summary":
        # A summary request is not part of the conversation: the last request stays the last request.
        return add_turn_cost(state, call.cost_usd, call.usage)
    # The logged estimate already includes the calibration factor; dividing by it gives the raw count to learn from.
    corrected = state.open_call.estimated_input_tokens if state.open_call else 0
    estimated = round(corrected / state.calibration.factor)
    after = add_turn_cost(state, call.cost_usd, call.usage)
    turn = after.turn and replace(after.turn, llm_calls=after.turn.llm_calls + 1)
    with_call = replace(after, turn=turn, open_call=None)
    if call.source == "completion-cache":
        # The provider has not seen this request, so its cache is unchanged.
        return with_call
    memory, usage = state.cache_memory, answer_usage(call)
    implicit_reads = _count_implicit_reads(state, usage)
    is_read = implicit_reads is not state.implicit_reads
    return replace(
        with_call,
        last_call=make_completed_call(state.request, usage),
        answered_blocks=len(state.digests),
        cache_memory=memory_after_call(memory, state.request, usage) if state.request else memory,
        uncached_calls=state.uncached_calls + (not is_read),
        uncached_span=state.uncached_span if is_read else _span(state),
        implicit_reads=implicit_reads,
        calibration=state.calibration.add_sample(estimated, usage.tokens_sent),
        diagnosis_baseline=update_diagnosis_baseline(state.diagnosis_baseline, call),
        compaction_watch=observe_call(state.compaction_watch, call.usage),
    )


def _count_implicit_reads(state: SessionState, usage: Usage) -> ImplicitReads:
    """With the newest request added; the same object if it read nothing, or would not have without its cache."""
    memory, request, cache = state.cache_memory, state.request, state.explicit_cache
    at = request.at if request is not None else 0.0
    return state.implicit_reads.add_call(
        usage.cache_read,
        explicit=cache is not None and at < cache.expires_at,
        idle_seconds=None if memory.last_at is None else at - memory.last_at,
        prompt_tokens=memory.tail_tokens,
    )


def _span(state: SessionState) -> tuple[float, float]:
    """Start times of the first and last uncached call, with the newest request added."""
    if state.request is None:
        return state.uncached_span
    first, _ = state.uncached_span if state.uncached_calls else (state.request.at, 0.0)
    return first, state.request.at


def apply_failed_call(state: SessionState, call: LlmCallFailed) -> SessionState:
    memory = state.cache_memory if call.is_diagnosis_refused else distrust_anchor(state.cache_memory)
    baseline = update_diagnosis_baseline(state.diagnosis_baseline, call)
    after = add_cost(state, call.cost_usd, call.usage)
    return replace(after, open_call=None, cache_memory=memory, diagnosis_baseline=baseline)


def make_completed_call(request: RequestRecord | None, usage: Usage) -> CompletedCall | None:
    if request is None:
        return None
    return CompletedCall(request.at, request.breakpoints[-1].ttl if request.breakpoints else None, usage)


def update_diagnosis_baseline(before: DiagnosisBaseline, call: LlmCallCompleted | LlmCallFailed) -> DiagnosisBaseline:
    match call:
        case LlmCallCompleted(model=model, response_id=id) if id:
            return replace(before, response_ids={**before.response_ids, model: id})
        case LlmCallFailed(is_diagnosis_refused=True, provider=provider):
            return replace(before, refused_by=before.refused_by | {provider})
        case _:
            return before


def add_limit(limits: ProviderLimits, refusal: ProviderLimited) -> ProviderLimits:
    """Add a refusal. Limits only become narrower, except the window: there the newest value applies."""
    breakpoints = [count for count in (limits.breakpoints_max, refusal.breakpoints_max) if count is not None]
    return ProviderLimits(
        breakpoints_max=min(breakpoints, default=None),
        short_ttls_only=limits.short_ttls_only or refusal.shortest_ttl_only,
        window_tokens_max=refusal.window_tokens_max or limits.window_tokens_max,
    )
