"""The turn loop: a user message, model calls, and tool runs in between; each step is decided, performed, recorded."""

import asyncio
from collections.abc import Sequence
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
    mend_surrogates,
    text_of,
)
from holdfast.canonical.encoding import canonical_json, digest
from holdfast.canonical.reply import Reply, StopReason
from holdfast.canonical.usage import Usage
from holdfast.engine.adopting import adopt
from holdfast.engine.asking import Emit, call_model, failed_call
from holdfast.engine.conversation import Conversation
from holdfast.engine.decide import CallModel, Finish, RefuseTools, RunTools, next_step
from holdfast.engine.dispatch import ToolsCancelledError, refusal
from holdfast.engine.health import probe
from holdfast.engine.injecting import inject_news, injections
from holdfast.engine.interrupted import take_over_interrupted
from holdfast.engine.reporting import report_failure
from holdfast.engine.sent import Turn
from holdfast.engine.state import open_calls
from holdfast.errors import BudgetError, ProviderError, UserError
from holdfast.events.payloads import (
    AnyPayload,
    MessageAppended,
    MessagesWithdrawn,
    TurnCancelled,
    TurnCompleted,
    TurnStarted,
)

_REQUEST_REFUSED = ("invalid_request", "context_overflow")

CancelReason = Literal["user_cancel", "client_disconnect", "timeout", "error", "step_limit", "budget"]
EndReason = StopReason | Literal["step_limit"]


class Answer(msgspec.Struct, frozen=True):
    """The result of a turn: the model's last reply, and the usage and cost of the whole turn."""

    content: tuple[Block, ...]
    stop_reason: EndReason
    usage: Usage
    cost_usd: Decimal
    llm_calls: int
    tool_calls: int

    @property
    def text(self) -> str:
        return text_of(self.content)


async def run_turn(conversation: Conversation, content: Sequence[Block], emit: Emit) -> Answer:
    """Run one turn to its end; the transcript stays legal whatever happens."""
    last_reply: Reply | None = None
    await probe(conversation)
    try:
        await _open_turn(conversation, _checked(content))
        while True:
            match next_step(conversation.state, steps_max=conversation.parts.steps_max):
                case CallModel():
                    last_reply = await call_model(conversation, emit)
                    if not last_reply.content:
                        break
                case RunTools(calls):
                    await _run_tools(conversation, calls)
                case RefuseTools(calls):
                    await _answer(
                        conversation, calls, "The limit of model calls for one turn is reached; nothing was run."
                    )
                    return await _close_at_step_limit(conversation, last_reply)
                case Finish():
                    break
    except asyncio.CancelledError:
        await _abandon(conversation, "user_cancel")
        raise
    except BudgetError:
        await _abandon(conversation, "budget")
        raise
    except ProviderError as error:
        if error.kind in _REQUEST_REFUSED:
            # The same request would be refused every time, so its new messages are withdrawn.
            await conversation.record("system", MessagesWithdrawn(f"the provider refused them ({error.kind})"))
        await report_failure(conversation, error)
        await _abandon(conversation, "error")
        raise
    except Exception:
        await _abandon(conversation, "error")
        raise
    return await _close_turn(conversation, last_reply)


async def _open_turn(conversation: Conversation, content: tuple[Block, ...]) -> None:
    # Close what a crash left open; the log is append-only, so that needs events.
    if conversation.state.call_open is not None:
        interrupted = ProviderError("cancelled", "interrupted")
        await conversation.record(
            "system", failed_call(conversation, interrupted, retries=0, started_at=conversation.parts.clock())
        )
    if conversation.state.turn is not None:
        await _abandon(conversation, "error")
    if calls := open_calls(conversation.state):
        await _answer(conversation, calls, "The call was interrupted.")
    await take_over_interrupted(conversation)
    if conversation.parts.adopting is not None and conversation.parts.adopting.each_turn:
        await adopt(conversation)
    started = TurnStarted(
        user_message_hash=digest(canonical_json(content)),
        estimated_input_tokens=conversation.state.calibration.corrected(conversation.draft.scroll.tokens_total),
        has_images=any(isinstance(block, Image) for block in content),
        has_tool_calls_in_history=conversation.state.called_tools,
    )
    await conversation.record("user", started)
    current = await conversation.parts.volatile()
    early, late = injections(conversation, current)
    await conversation.record("user", *early, MessageAppended(Message("user", content)), *late)


async def _run_tools(conversation: Conversation, calls: tuple[ToolUse, ...]) -> None:
    async def record(payload: AnyPayload) -> None:
        await conversation.record("tool", payload)

    try:
        turn_id = conversation.state.turn.id if conversation.state.turn else None
        results = await conversation.parts.toolbox.run(
            calls, record, turn_id=turn_id, active=conversation.state.activations
        )
    except ToolsCancelledError as stopped:
        await _append_results(conversation, stopped.results)
        raise asyncio.CancelledError from None
    await _append_results(conversation, results)
    await inject_news(conversation)


async def _answer(conversation: Conversation, calls: Sequence[ToolUse], message: str) -> None:
    await _append_results(conversation, tuple(refusal(call, message) for call in calls))


async def _append_results(conversation: Conversation, results: tuple[ToolResult, ...]) -> None:
    await conversation.record("tool", MessageAppended(Message("user", results)))


async def _abandon(conversation: Conversation, reason: CancelReason) -> None:
    """Close the turn and answer open tool calls, so that the transcript is legal."""
    if calls := open_calls(conversation.state):
        await _answer(conversation, calls, "The call was not run.")
    turn = conversation.state.turn
    if turn is not None:
        await conversation.record("system", TurnCancelled(reason, turn.llm_calls, turn.tool_calls))


async def _close_at_step_limit(conversation: Conversation, last_reply: Reply | None) -> Answer:
    """End the turn at its call limit with its own stop reason, distinct from a normal end."""
    turn = conversation.state.turn or Turn("", conversation.parts.clock())
    await _abandon(conversation, "step_limit")
    content = last_reply.content if last_reply else ()
    return Answer(content, "step_limit", turn.usage, turn.cost_usd, turn.llm_calls, turn.tool_calls)


async def _close_turn(conversation: Conversation, last_reply: Reply | None) -> Answer:
    turn = conversation.state.turn or Turn("", conversation.parts.clock())
    stop_reason = last_reply.stop_reason if last_reply else "error"
    completed = TurnCompleted(
        stop_reason=stop_reason,
        llm_call_count=turn.llm_calls,
        tool_call_count=turn.tool_calls,
        usage=turn.usage,
        total_cost_usd=turn.cost_usd,
        wall_time_seconds=conversation.parts.clock() - turn.started_at,
    )
    await conversation.record("system", completed)
    content = last_reply.content if last_reply else ()
    return Answer(content, stop_reason, turn.usage, turn.cost_usd, turn.llm_calls, turn.tool_calls)


def _checked(content: Sequence[Block]) -> tuple[Block, ...]:
    """A user's message in a form that can be sent: no lone surrogates, no empty text."""
    if unsupported := [block for block in content if not isinstance(block, Text | Image)]:
        raise UserError(f"a user message can hold text and images, not {type(unsupported[0]).__name__}")
    cleaned = tuple(Text(mend_surrogates(block.text)) if isinstance(block, Text) else block for block in content)
    non_empty = tuple(block for block in cleaned if not (isinstance(block, Text) and not block.text.strip()))
    if not non_empty:
        raise UserError("nothing to send: the message is empty")
    return non_empty
