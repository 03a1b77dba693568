"""Shows a turn while it runs: streamed text, and one line per tool call."""

from holdfast.canonical.blocks import ToolUse
from holdfast.canonical.prompt import Plan
from holdfast.canonical.reply import Delta, Reply, ReplyFinished, TextDelta, ThinkingDelta
from holdfast.cli.chat_screen import Screen
from holdfast.cli.chat_texts import call_line, outcome
from holdfast.cli.requests import printable
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    AnyPayload,
    LlmCallCompleted,
    RequestPrepared,
    ToolCalled,
    ToolCompleted,
    ToolFailed,
    TurnCancelled,
)

OUTCOME_CHARACTERS = 30
ERROR_CHARACTERS_MAX = 200


class TurnView:
    """Shows one turn; `plan` is the cache plan of its last request."""

    def __init__(self, screen: Screen, *, thinking: bool) -> None:
        self._screen = screen
        self._thinking = thinking
        self._last_was_thinking = False
        self._calls: dict[str, str] = {}
        self._is_single_call = False
        self._open_call_id: str | None = None
        self.plan: Plan | None = None

    def show(self, item: Delta | Event) -> None:
        match item:
            case TextDelta(text=text):
                self._stream(text, thinking=False)
            case ThinkingDelta(text=text):
                if self._thinking:
                    self._stream(text, thinking=True)
            case ReplyFinished(reply=reply):
                self._finish(reply)
            case Event(payload=payload):
                self._show_event(payload)
            case _:
                pass

    def _stream(self, text: str, *, thinking: bool) -> None:
        if thinking != self._last_was_thinking:
            self._screen.end_line()
        self._last_was_thinking = thinking
        self._screen.stream(text, dim=thinking)

    def _finish(self, reply: Reply) -> None:
        self._screen.end_line()
        calls = [block for block in reply.content if isinstance(block, ToolUse)]
        self._is_single_call = len(calls) == 1
        width = self._screen.width - OUTCOME_CHARACTERS
        self._calls = {call.id: call_line(call.name, call.arguments_json, width) for call in calls}

    def _show_event(self, payload: AnyPayload) -> None:
        match payload:
            case RequestPrepared(plan=plan):
                self.plan = plan
            case LlmCallCompleted() as call:
                if call.stop_reason == "max_tokens":
                    self._screen.note("the reply was cut off at the limit of output tokens")
                elif call.stop_reason == "refusal":
                    self._screen.note("the model refused to answer")
            case ToolCalled() as call if self._is_single_call:
                # Parallel calls would interleave on the line, so only a single call gets its line before it ends.
                self._open_call_id = call.tool_use_id
                self._screen.begin_note(self._calls.get(call.tool_use_id, printable(call.tool_name)))
            case ToolCompleted() as done:
                result = outcome(done.output_size_bytes, done.latency_ms)
                self._end_call(done.tool_use_id, result if done.success else f"{result}, failed")
            case ToolFailed() as failed:
                denied = failed.error_class == "user_denied"
                reason = "" if denied else f": {failed.error_message[:ERROR_CHARACTERS_MAX]}"
                self._end_call(failed.tool_use_id, printable(f"{failed.error_class.replace('_', ' ')}{reason}"))
            case TurnCancelled(reason="step_limit"):
                self._screen.note("stopped: the turn reached its limit of model calls")
            case _:
                pass

    def _end_call(self, tool_use_id: str, result: str) -> None:
        if self._open_call_id == tool_use_id:
            self._screen.end_note(f" → {result}")
        else:
            self._screen.note(f"{self._calls.get(tool_use_id, 'a tool')} → {result}")
        self._open_call_id = None
