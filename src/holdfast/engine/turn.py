"""One turn: the user speaks, the model answers, tools run in between; each step decided, done, recorded."""

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

_REFUSED = ("invalid_request", "context_overflow")

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
    await probe(talk)
    try:
        await _open_turn(talk, _checked(content))
        while True:
            match next_step(talk.state, steps_max=talk.parts.steps_max):
                case CallModel():
                    last = await call_model(talk, emit)
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
        await report_failure(talk, error)
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
        await talk.record("system", failed_call(talk, interrupted, retries=0, started_at=talk.parts.clock()))
    if talk.state.turn is not None:
        await _abandon(talk, "error")
    if calls := open_calls(talk.state):
        await _answer(talk, calls, "The call was interrupted.")
    await take_over_interrupted(talk)
    if talk.parts.adopting is not None and talk.parts.adopting.each_turn:
        await adopt(talk)
    started = TurnStarted(
        user_message_hash=digest(canonical_json(content)),
        estimated_input_tokens=talk.state.calibration.corrected(talk.draft.scroll.tokens_total),
        has_images=any(isinstance(block, Image) for block in content),
        has_tool_calls_in_history=talk.state.called_tools,
    )
    await talk.record("user", started)
    current = await talk.parts.volatile()
    early, late = injections(talk, current)
    await talk.record("user", *early, MessageAppended(Message("user", content)), *late)


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
    await inject_news(talk)


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


def _checked(content: Sequence[Block]) -> tuple[Block, ...]:
    """A user's words as they can be sent: no lone surrogates, no empty text."""
    if strange := [one for one in content if not isinstance(one, Text | Image)]:
        raise UserError(f"a user's message takes text and images, not {type(strange[0]).__name__}")
    mended = tuple(Text(mend_surrogates(one.text)) if isinstance(one, Text) else one for one in content)
    kept = tuple(one for one in mended if not (isinstance(one, Text) and not one.text.strip()))
    if not kept:
        raise UserError("there is nothing to send: the message is empty")
    return kept
