"""The session reducer: a session's state as a fold over its events."""

from collections.abc import Iterable
from itertools import takewhile

import msgspec

from holdfast.canonical.blocks import Text, ToolUse, text_of
from holdfast.canonical.prompt import Passage, Stability, without_thinking
from holdfast.canonical.view import LayerText, View
from holdfast.catalog.tokens import Calibration
from holdfast.compaction.groups import is_record, records_in_front
from holdfast.compaction.view import compacted, compacted_newest, told_by_the_user
from holdfast.compaction.watch import after_ask, after_compaction, after_refusal
from holdfast.engine.activation import activated, without_results
from holdfast.engine.carry import call_in, carry, provider_of
from holdfast.engine.counting import count_call, count_failure, count_ping, count_tool, keep_cache, paid
from holdfast.engine.limits import UNLIMITED, narrowed
from holdfast.engine.sent import Turn
from holdfast.engine.session_state import State as State
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    CacheKept,
    CacheLearned,
    CachePinged,
    ContextInjected,
    DelegationCompleted,
    DelegationStarted,
    EpochOpened,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    MemoryEviction,
    MemoryUpdated,
    MessageAppended,
    MessagesWithdrawn,
    ModelSwitched,
    RequestPrepared,
    RouteDecided,
    SessionEnded,
    SessionStarted,
    SkillLoaded,
    ToolCalled,
    ToolCompleted,
    ToolConfirmationRequested,
    ToolConfirmationResolved,
    ToolFailed,
    ToolInputInvalid,
    TurnCancelled,
    TurnCompleted,
    TurnStarted,
)
from holdfast.events.payloads_compaction import CompactionRefused, ContextCompacted, SkillReleased
from holdfast.events.payloads_controls import CacheControlled
from holdfast.events.payloads_gateway import GatewayForwarded
from holdfast.events.payloads_recovery import Mending, ProviderLimited, Recovery
from holdfast.layers.assemble import head_of, with_nonce
from holdfast.planning.floors import Floor
from holdfast.planning.memory import Sent, cut_back, moved
from holdfast.planning.policy import WaitedFor
from holdfast.planning.truths import Belief
from holdfast.recovery.ledger import recorded
from holdfast.recovery.passages import chosen, mended, without_ephemeral

# Recorded for readers of the log only: the state does not depend on these.
ToldOnly = (
    ToolCompleted
    | ToolFailed
    | ToolInputInvalid
    | ToolConfirmationRequested
    | ToolConfirmationResolved
    | RouteDecided
    | GatewayForwarded
    | MemoryUpdated
    | MemoryEviction
)


def fold(events: Iterable[Event], session_id: str) -> State:
    state = State(session_id)
    for event in events:
        state = apply(state, event)
    return state


def apply(state: State, event: Event) -> State:
    """The state after one more event."""
    return msgspec.structs.replace(_apply(state, event), last_event_id=event.id)


def _apply(state: State, event: Event) -> State:
    change = msgspec.structs.replace
    if isinstance(event.payload, ToldOnly):
        return state
    match event.payload:
        case SessionStarted() as payload:
            return _begin_session(state, payload, event.at)
        case EpochOpened() as payload:
            return _open_epoch(state, payload)
        case TurnStarted():
            return _begin_turn(state, event)
        case MessageAppended() as payload:
            return _append(state, payload)
        case MessagesWithdrawn():
            return _withdraw(state)
        case ContextInjected() as payload:
            return _inject(state, payload)
        case RequestPrepared() as payload:
            return _prepare(state, payload, event.at)
        case ModelSwitched() as payload:
            return _switch_model(state, payload)
        case CacheKept() as payload:
            return keep_cache(state, payload)
        case CachePinged() as payload:
            return count_ping(state, payload)
        case CacheLearned() as payload:
            return change(state, taught=payload)
        case CacheControlled() as payload:
            return _control(state, payload)
        case LlmCallStarted() as payload:
            return change(state, call_open=payload)
        case LlmCallCompleted() as payload:
            return count_call(state, payload)
        case LlmCallFailed() as payload:
            return count_failure(state, payload)
        case DelegationStarted() as payload:
            return change(state, delegating=state.delegating | {payload.child_session_id})
        case DelegationCompleted() as payload:
            return change(
                paid(state, payload.cost_usd, payload.usage), delegating=state.delegating - {payload.child_session_id}
            )
        case ToolCalled():
            return count_tool(state)
        case TurnCompleted() | TurnCancelled():
            return change(state, turn=None, turn_count=state.turn_count + 1)
        case SkillLoaded() as payload:
            return change(state, activations=activated(state.activations, payload))
        case ContextCompacted() | CompactionRefused() | SkillReleased() as payload:
            return _apply_compaction(state, payload)
        case SessionEnded():
            return change(state, ended=True)
        case Recovery() | ProviderLimited() | Mending() as payload:
            return _recover(state, payload, event.at)


def _begin_session(state: State, started: SessionStarted, at: float) -> State:
    return msgspec.structs.replace(
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


def open_calls(state: State) -> tuple[ToolUse, ...]:
    """Tool calls of the last message without results, including calls with fields that we do not know."""
    if not state.passages or state.passages[-1].role != "assistant":
        return ()
    calls = (call_in(block) for block in state.passages[-1].content)
    return tuple(call for call in calls if call is not None)


def _open_epoch(state: State, opened: EpochOpened) -> State:
    # Thinking is bound to the text before it (Anthropic, "Preserved thinking"), so a changed prefix drops it.
    entries, sent = chosen(state.passages, state.sent, without_thinking)
    stable_prefix = with_nonce(head_of(View(tools=opened.tools, pinned=opened.system)), state.control.nonce)
    unchanged_layers = [
        segment.name for segment, other in zip(stable_prefix, state.head, strict=False) if segment == other
    ]
    digests = tuple(takewhile(lambda prefix_digest: prefix_digest.layer in unchanged_layers, state.links))
    return msgspec.structs.replace(
        state,
        passages=entries,
        sent=sent,
        links=digests,
        answered_links=min(state.answered_links, len(digests)),
        memory=moved(state.memory) if state.epoch else state.memory,
        epoch=opened.epoch,
        pinned=opened.system,
        tools=opened.tools,
        head=stable_prefix,
        skills=opened.skills,
        padding=opened.padding,
    )


def _prepare(state: State, prepared: RequestPrepared, at: float) -> State:
    digests = (*state.links[: prepared.shared_blocks], *prepared.links)
    request = Sent(at, prepared.plan.marks, len(digests), waited_for(state), prepared.plan.floor_tokens)
    return msgspec.structs.replace(state, links=digests, sent=len(state.passages), request=request)


def _control(state: State, control: CacheControlled) -> State:
    is_cache_kept = not control.reason and control.enabled == state.control.enabled
    changed = msgspec.structs.replace(
        state, control=control, memory=state.memory if is_cache_kept else moved(state.memory)
    )
    if not control.new_prefix:
        return changed
    # Thinking is bound to the text before it (Anthropic, "Preserved thinking"), so a changed prefix drops it.
    stable_prefix = with_nonce(state.head, control.nonce)
    entries, sent = chosen(state.passages, state.sent, without_thinking)
    return msgspec.structs.replace(changed, head=stable_prefix, passages=entries, sent=sent, links=(), answered_links=0)


def waited_for(state: State) -> WaitedFor:
    """What the session has waited for since the previous call, if a call is made now."""
    if state.memory.last_at is None:
        return "start"
    return "tool" if state.turn is not None and state.turn.llm_calls else "person"


def _switch_model(state: State, switched: ModelSwitched) -> State:
    """Another model has another cache: nothing sent so far is in it, and token estimates start over."""
    same_provider = provider_of(switched.before) == provider_of(switched.after)
    readable = state.passages if same_provider else told_by_the_user(state.passages)
    sent = carry(readable[: state.sent], same_provider=same_provider).passages
    unsent = carry(readable[state.sent :], same_provider=same_provider).passages
    return msgspec.structs.replace(
        state,
        model=switched.after,
        parameters=switched.parameters,
        passages=sent + unsent,
        sent=len(sent),
        first_ephemeral=next((at for at, entry in enumerate(sent + unsent) if entry.ephemeral), None),
        links=(),
        answered_links=0,
        # Idle times stay valid; observations about the other model's cache do not.
        memory=msgspec.structs.replace(moved(state.memory), belief=Belief(), floor=Floor()),
        calibration=Calibration(),
        uncached_calls=state.uncached_calls if same_provider else 0,
        uncached_span=state.uncached_span if same_provider else (0.0, 0.0),
        refused_prefix=None,
        limits=UNLIMITED,
        last_call=None,
    )


def _withdraw(state: State) -> State:
    """Remove everything after the model's last message; volatile layers count as emitted only where still present."""
    assistant_indexes = [at for at, entry in enumerate(state.passages) if entry.role == "assistant"]
    remaining = state.passages[: assistant_indexes[-1] + 1 if assistant_indexes else records_in_front(state.passages)]
    ephemeral = state.first_ephemeral
    withdrawn = msgspec.structs.replace(
        state,
        passages=remaining,
        sent=len(remaining),
        emitted=_emitted_in(remaining),
        first_ephemeral=ephemeral if ephemeral is not None and ephemeral < len(remaining) else None,
        links=state.links[: state.answered_links],
    )
    unanswered = {call.id for call in open_calls(withdrawn)}
    return msgspec.structs.replace(withdrawn, activations=without_results(state.activations, unanswered))


def _recover(state: State, payload: Recovery | ProviderLimited | Mending, at: float) -> State:
    if isinstance(payload, Recovery):
        return msgspec.structs.replace(state, incidents=recorded(state.incidents, payload, at))
    if isinstance(payload, ProviderLimited):
        return msgspec.structs.replace(state, limits=narrowed(state.limits, payload))
    # The refused request was never cached. If the repair also changes earlier blocks, their cache is useless too.
    repaired = mended(state.passages, state.sent, payload)
    return msgspec.structs.replace(
        state,
        passages=repaired.passages,
        sent=repaired.sent,
        first_ephemeral=next((at for at, entry in enumerate(repaired.passages) if entry.ephemeral), None),
        links=state.links[: state.answered_links],
        answered_links=0 if repaired.moved else state.answered_links,
        memory=moved(state.memory) if repaired.moved else state.memory,
    )


def _emitted_in(entries: tuple[Passage, ...]) -> tuple[LayerText, ...]:
    """The last emitted text of each volatile layer that is still in the view."""
    newest = {entry.layer: entry for entry in entries if entry.injected and not is_record(entry)}
    return tuple(LayerText(layer, text_of(entry.content), entry.ephemeral) for layer, entry in newest.items())


def _append(state: State, event: MessageAppended) -> State:
    number = state.messages + 1
    entries = (*state.passages, Passage(event.message.role, event.message.content, number=number))
    # A reply is in no request yet, but it will directly follow what was sent, so it counts as sent.
    sent = len(entries) if event.message.role == "assistant" else state.sent
    return msgspec.structs.replace(state, passages=entries, sent=sent, messages=number)


def _apply_compaction(state: State, event: ContextCompacted | CompactionRefused | SkillReleased) -> State:
    match event:
        case ContextCompacted():
            return compact(state, event)
        case CompactionRefused():
            return msgspec.structs.replace(state, compaction=after_refusal(state.compaction, event))
        case SkillReleased():
            active = without_results(state.activations, {event.tool_use_id or ""})
            return msgspec.structs.replace(state, activations=active)


def compact(state: State, event: ContextCompacted) -> State:
    """Replace the view of the log by the compacted one; the unchanged leading blocks stay cached."""
    sent = compacted(state.passages[: state.sent], event)
    entries = sent + compacted_newest(state.passages[state.sent :], event)
    return msgspec.structs.replace(
        state,
        epoch=event.epoch,
        passages=entries,
        sent=len(sent),
        emitted=_emitted_in(entries),
        first_ephemeral=next((at for at, entry in enumerate(entries) if entry.ephemeral), None),
        links=state.links[: event.kept_blocks],
        answered_links=min(state.answered_links, event.kept_blocks),
        memory=cut_back(state.memory, state.request, blocks=event.kept_blocks, tokens=event.kept_tokens),
        compaction=after_compaction(state.compaction, event, messages=state.messages),
    )


def _begin_turn(state: State, event: Event) -> State:
    """A new turn drops the previous turn's ephemeral text, and the thinking that was bound to it."""
    if state.first_ephemeral is not None:
        entries, sent = without_ephemeral(state.passages, state.sent, state.first_ephemeral)
        state = msgspec.structs.replace(state, passages=entries, sent=sent)
    return msgspec.structs.replace(
        state,
        turn=Turn(event.turn_id or event.id, event.at),
        compaction=after_ask(state.compaction),
        first_ephemeral=None,
        emitted=tuple(layer_text for layer_text in state.emitted if not layer_text.ephemeral),
    )


def _inject(state: State, injected: ContextInjected) -> State:
    layer_text = LayerText(injected.layer, injected.text, injected.ephemeral)
    if injected.place == "system":
        # Thinking is bound to the text before it; once that text changes, none of it may be sent again.
        before = state.system_tail.text if state.system_tail else ""
        entries, sent = state.passages, state.sent
        if before != layer_text.text:
            entries, sent = chosen(entries, sent, without_thinking)
        return msgspec.structs.replace(state, system_tail=layer_text, passages=entries, sent=sent)
    entry = Passage(
        "user",
        (Text(injected.text),),
        layer=injected.layer,
        stability=Stability.VOLATILE,
        ephemeral=injected.ephemeral,
        number=state.messages + 1,
    )
    other_layers = tuple(earlier for earlier in state.emitted if earlier.layer != layer_text.layer)
    first_ephemeral = state.first_ephemeral
    if layer_text.ephemeral and first_ephemeral is None:
        first_ephemeral = len(state.passages)
    return msgspec.structs.replace(
        state,
        passages=(*state.passages, entry),
        emitted=(*other_layers, layer_text),
        first_ephemeral=first_ephemeral,
        messages=entry.number,
    )
