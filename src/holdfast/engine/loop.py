"""The turn loop: a user message, model calls, and tool runs in between; each step is decided, performed, recorded."""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Literal

import msgspec

from holdfast.compaction.view import count_leading_summaries
from holdfast.engine.cache.controls import refresh_prefix
from holdfast.engine.call_record import failed_call_event
from holdfast.engine.conversation import Conversation
from holdfast.engine.exchange import OnDelta
from holdfast.engine.model_call import call_model
from holdfast.engine.recovery.incidents import report_provider_failure
from holdfast.engine.recovery.provider_errors import RefusalRecovery
from holdfast.engine.reducer import fold_events, open_tool_calls
from holdfast.engine.request_draft import plan_injections
from holdfast.engine.state import SessionState, TurnState
from holdfast.engine.tools.dispatch import ToolsCancelledError, error_result
from holdfast.engine.tools.skill_usage import find_used_preloads
from holdfast.errors import BudgetError, ProviderError, UserError
from holdfast.events.log import EventLog
from holdfast.events.payloads import session
from holdfast.extraction.tool_calls import is_failed_result, result_text
from holdfast.providers.errors import sanitize_message
from holdfast.recovery.scenarios import FailureScenario, classify_refusal
from holdfast.types.blocks import (
    Base64Source,
    Block,
    FileSource,
    Image,
    Message,
    Text,
    ToolResult,
    ToolUse,
    UrlSource,
    join_text_blocks,
    replace_surrogates,
)
from holdfast.types.json_encoding import canonical_json, sha256_hex
from holdfast.types.reply import Delta, Reply, StopReason
from holdfast.types.usage import Usage

_REQUEST_REFUSED = ("invalid_request", "context_overflow")
CALL_LIMIT_REACHED = "The limit of model calls for one turn is reached; nothing was run."
CancelReason = Literal["user_cancel", "client_disconnect", "timeout", "error", "step_limit", "budget"]
EndReason = StopReason | Literal["step_limit"]


class TurnResult(msgspec.Struct, frozen=True):
    """The result of a turn: the model's last reply, and the usage and cost of the whole turn."""

    content: tuple[Block, ...]
    stop_reason: EndReason
    usage: Usage
    cost_usd: Decimal
    llm_calls: int
    tool_calls: int

    @property
    def text(self) -> str:
        return join_text_blocks(self.content)


async def run_turn(conversation: Conversation, content: Sequence[Block], emit: OnDelta) -> TurnResult:
    """Run one turn to its end; the transcript stays legal whatever happens."""
    last_reply: Reply | None = None
    await run_health_probe(conversation)
    try:
        await _open_turn(conversation, _clean_content(content))
        while (step := next_step(conversation.state, steps_max=conversation.deps.steps_max)) != "finish":
            calls = open_tool_calls(conversation.state)
            match step:
                case "call_model":
                    last_reply = await _call_with_recovery(conversation, emit)
                    await _record_used_preloads(conversation, last_reply)
                    if not last_reply.content:
                        break
                case "run_tools":
                    await _run_tools(conversation, calls)
                case "refuse_tools":
                    # Answered anyway, so that the transcript stays legal; the stop reason is not that of a normal end.
                    await _answer(conversation, calls, CALL_LIMIT_REACHED)
                    turn = conversation.state.turn or TurnState("", conversation.deps.clock())
                    await _abandon(conversation, "step_limit")
                    return _turn_result(turn, last_reply, "step_limit")
    except asyncio.CancelledError:
        await _abandon(conversation, "user_cancel")
        raise
    except Exception as error:
        if isinstance(error, ProviderError):
            if error.kind in _REQUEST_REFUSED:
                # The same request would be refused every time, so its new messages are withdrawn.
                await conversation.record(
                    "system", session.MessagesWithdrawn(f"the provider refused them ({error.kind})")
                )
            await report_provider_failure(conversation, error)
        await _abandon(conversation, "budget" if isinstance(error, BudgetError) else "error")
        raise
    return await _close_turn(conversation, last_reply)


async def _open_turn(conversation: Conversation, content: tuple[Block, ...]) -> None:
    # Close what a crash left open; the log is append-only, so that needs events.
    if conversation.state.open_call is not None:
        interrupted, now = ProviderError("cancelled", "interrupted"), conversation.deps.clock()
        await conversation.record("system", failed_call_event(conversation, interrupted, retries=0, started_at=now))
    if conversation.state.turn is not None:
        await _abandon(conversation, "error")
    if calls := open_tool_calls(conversation.state):
        await _answer(conversation, calls, "The call was interrupted.")
    await account_interrupted_children(conversation)
    if conversation.deps.prefix_refresh is not None and conversation.deps.prefix_refresh.each_turn:
        await refresh_prefix(conversation)
    started = session.TurnStarted(
        user_message_hash=sha256_hex(canonical_json(content)),
        estimated_input_tokens=conversation.request_tokens,
        has_images=any(isinstance(block, Image) for block in content),
        has_tool_calls_in_history=conversation.state.has_called_tools,
    )
    # On the log together with the start of the first model call, in one commit.
    await conversation.stage("user", started)
    early, late = plan_injections(conversation.state, await conversation.deps.volatile())
    await conversation.stage("user", *early, session.MessageAppended(Message("user", content)), *late)


async def _call_with_recovery(conversation: Conversation, emit: OnDelta) -> Reply:
    """Call the model; a request refused for a known reason is fixed and sent again, once per reason.

    Raises the provider's last error if nothing helped. A response that has begun is never requested again.
    """
    has_output = False

    def on_delta(delta: Delta) -> None:
        nonlocal has_output
        has_output = True
        emit(delta)

    call = partial(call_model, conversation, on_delta)
    try:
        return await call()
    except ProviderError as error:
        last_error = error
    tried: set[FailureScenario] = set()
    while (scenario := classify_refusal(last_error)) is not None and scenario not in tried and not has_output:
        tried.add(scenario)
        recovery = RefusalRecovery(conversation, call, scenario, last_error)
        await recovery.attempt()
        if recovery.reply is not None:
            return recovery.reply
        if recovery.stopped is not None:
            raise recovery.stopped
        last_error = recovery.refused
    raise last_error


async def _record_used_preloads(conversation: Conversation, reply: Reply) -> None:
    state = conversation.state
    active = state.activations
    if len(active.used) == len(active.preloaded):
        return
    for used in find_used_preloads(active, state.pinned, state.entries, reply.content):
        session_in_chain: Conversation | None = conversation
        # The delegating sessions have the same preload, and count it as used too.
        while session_in_chain is not None:
            if used.skill_id not in session_in_chain.state.activations.used:
                await session_in_chain.record("agent", used)
            session_in_chain = session_in_chain.parent


async def _run_tools(conversation: Conversation, calls: tuple[ToolUse, ...]) -> None:
    state, toolbox, record = conversation.state, conversation.deps.toolbox, partial(conversation.record, "tool")
    turn_id = state.turn.id if state.turn else None
    try:
        results = await toolbox.run_calls(calls, record, turn_id=turn_id, active=state.activations)
    except ToolsCancelledError as stopped:
        await _append_results(conversation, stopped.results)
        raise asyncio.CancelledError from None
    await _append_results(conversation, results)
    await conversation.inject_changed_context()


async def _answer(conversation: Conversation, calls: Sequence[ToolUse], message: str) -> None:
    await _append_results(conversation, tuple(error_result(call, message) for call in calls))


async def _append_results(conversation: Conversation, results: tuple[ToolResult, ...]) -> None:
    await conversation.record("tool", session.MessageAppended(Message("user", results)))


async def _abandon(conversation: Conversation, reason: CancelReason) -> None:
    """Close the turn and answer open tool calls, so that the transcript is legal."""
    if calls := open_tool_calls(conversation.state):
        await _answer(conversation, calls, "The call was not run.")
    turn = conversation.state.turn
    if turn is not None:
        await conversation.record("system", session.TurnCancelled(reason, turn.llm_calls, turn.tool_calls))


async def _close_turn(conversation: Conversation, last_reply: Reply | None) -> TurnResult:
    turn = conversation.state.turn or TurnState("", conversation.deps.clock())
    stop_reason = last_reply.stop_reason if last_reply else "error"
    completed = session.TurnCompleted(
        stop_reason=stop_reason,
        llm_call_count=turn.llm_calls,
        tool_call_count=turn.tool_calls,
        usage=turn.usage,
        total_cost_usd=turn.cost_usd,
        wall_time_seconds=conversation.deps.clock() - turn.started_at,
    )
    await conversation.record("system", completed)
    return _turn_result(turn, last_reply, stop_reason)


def _turn_result(turn: TurnState, last_reply: Reply | None, stop_reason: EndReason) -> TurnResult:
    content = last_reply.content if last_reply else ()
    return TurnResult(content, stop_reason, turn.usage, turn.cost_usd, turn.llm_calls, turn.tool_calls)


def message_content(message: str | Block | Sequence[Block]) -> tuple[Block, ...]:
    """The blocks of a message. Raises UserError for anything but text and images."""
    if isinstance(message, str):
        return (Text(message),)
    content = tuple(message) if isinstance(message, list | tuple) else (message,)
    if invalid := [block.text for block in content if isinstance(block, Text) and not isinstance(block.text, str)]:
        raise UserError(f"the text of a message must be text, not {type(invalid[0]).__name__}")
    for image in (block for block in content if isinstance(block, Image)):
        _check_source(image.source)
    if isinstance(message, Text | Image | list | tuple):
        return content
    raise UserError(f"a message is text or a list of text and images, not {type(message).__name__}")


def _check_source(source: object) -> None:
    match source:
        case Base64Source(media_type=str(), data=str()) | UrlSource(url=str()) | FileSource(file_id=str()):
            return
        case _:
            raise UserError(
                "the source of an image must be Base64Source(media_type, data) with its bytes as base64 text, "
                f"UrlSource(url) or FileSource(file_id), with text fields; this one is {type(source).__name__}"
            )


def _clean_content(content: Sequence[Block]) -> tuple[Block, ...]:
    """A user's message in a form that can be sent: no lone surrogates, no empty text."""
    if unsupported := [block for block in content if not isinstance(block, Text | Image)]:
        raise UserError(f"a user message can hold text and images, not {type(unsupported[0]).__name__}")
    cleaned = tuple(Text(replace_surrogates(block.text)) if isinstance(block, Text) else block for block in content)
    non_empty = tuple(block for block in cleaned if not (isinstance(block, Text) and not block.text.strip()))
    if not non_empty:
        raise UserError("nothing to send: the message is empty")
    return non_empty


TurnStep = Literal["call_model", "run_tools", "refuse_tools", "finish"]


def next_step(state: SessionState, *, steps_max: int) -> TurnStep:
    """Tools if the model called some; the model if the last message is the user's or a tool's."""
    limit_reached = state.turn is not None and state.turn.llm_calls >= steps_max
    if open_tool_calls(state):
        return "refuse_tools" if limit_reached else "run_tools"
    is_answered = bool(state.entries) and state.entries[-1].role == "assistant"
    return "finish" if is_answered or limit_reached else "call_model"


HEALTH_PROBES = (("glob_search", '{"pattern":"*.health-check-probe-"}'), ("list_dir", '{"path":"."}'))
"""Read-only tools with their arguments; the first one that the session has is used."""


async def run_health_probe(conversation: Conversation) -> None:
    """Raise `UserError` if the probe fails, before anything is recorded; without messages or a probe tool it passes."""
    state = conversation.state
    compacted = state.profile == "seed" and state.compaction_watch.count
    if not compacted or count_leading_summaries(state.entries) == len(state.entries):
        return
    tool_names = {spec.name for spec in conversation.deps.toolbox.specs}
    probe_call = next(((name, arguments) for name, arguments in HEALTH_PROBES if name in tool_names), None)
    if probe_call is None:
        return
    record = partial(conversation.record, "tool")
    call = ToolUse(conversation.deps.new_id(conversation.deps.clock()), *probe_call)
    (result,) = await conversation.deps.toolbox.run_calls((call,), record, active=state.activations)
    if is_failed_result(result):
        raise UserError(
            f"the health probe {call.name!r} failed after a compaction: {sanitize_message(result_text(result))}; "
            "nothing was sent: fix the tool, or continue in a new session"
        )


async def account_interrupted_children(conversation: Conversation) -> None:
    """Add the cost of interrupted children to their parent. Children that still run report their own completion."""
    running = {child.state.session_id for child in conversation.children}
    for session_id in sorted(conversation.state.delegated_sessions):
        if session_id not in running:
            usage, cost = _total_cost(conversation.deps.log, session_id)
            await conversation.record("system", session.DelegationCompleted(session_id, "interrupted", usage, cost))


def _total_cost(log: EventLog, session_id: str) -> tuple[Usage, Decimal]:
    state = fold_events(log.read(session_id), session_id)
    usage, cost = state.usage, state.cost_usd
    for child_id in state.delegated_sessions:
        child_usage, child_cost = _total_cost(log, child_id)
        usage, cost = usage + child_usage, cost + child_cost
    return usage, cost
