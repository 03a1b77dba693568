"""What is seen of a turn while it happens: the words as they come, and a line for each tool."""

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
    """Shows one turn; `plan` is that of its last request."""

    def __init__(self, screen: Screen, *, thinking: bool) -> None:
        self._screen = screen
        self._thinking = thinking
        self._thought = False
        self._calls: dict[str, str] = {}
        self._alone = False
        self._begun: str | None = None
        self.plan: Plan | None = None

    def show(self, item: Delta | Event) -> None:
        match item:
            case TextDelta(text=text):
                self._say(text, thought=False)
            case ThinkingDelta(text=text):
                if self._thinking:
                    self._say(text, thought=True)
            case ReplyFinished(reply=reply):
                self._finish(reply)
            case Event(payload=payload):
                self._happen(payload)
            case _:
                pass

    def _say(self, text: str, *, thought: bool) -> None:
        if thought != self._thought:
            self._screen.end_line()
        self._thought = thought
        self._screen.stream(text, dim=thought)

    def _finish(self, reply: Reply) -> None:
        self._screen.end_line()
        calls = [block for block in reply.content if isinstance(block, ToolUse)]
        self._alone = len(calls) == 1
        room = self._screen.width - OUTCOME_CHARACTERS
        self._calls = {call.id: call_line(call.name, call.arguments_json, room) for call in calls}

    def _happen(self, payload: AnyPayload) -> None:
        match payload:
            case RequestPrepared(plan=plan):
                self.plan = plan
            case LlmCallCompleted() as call:
                if call.stop_reason == "max_tokens":
                    self._screen.note("the reply was cut: it reached the limit of output tokens")
                elif call.stop_reason == "refusal":
                    self._screen.note("the model refused to answer")
            case ToolCalled() as call if self._alone:
                # Others that run at the same time would tear the line apart.
                self._begun = call.tool_use_id
                self._screen.begin_note(self._calls.get(call.tool_use_id, printable(call.tool_name)))
            case ToolCompleted() as done:
                told = outcome(done.output_size_bytes, done.latency_ms)
                self._end_call(done.tool_use_id, told if done.success else f"{told}, failed")
            case ToolFailed() as failed:
                why = "" if failed.error_class == "user_denied" else f": {failed.error_message[:ERROR_CHARACTERS_MAX]}"
                self._end_call(failed.tool_use_id, printable(f"{failed.error_class.replace('_', ' ')}{why}"))
            case TurnCancelled(reason="step_limit"):
                self._screen.note("stopped: the turn has had all the model calls it may have")
            case _:
                pass

    def _end_call(self, tool_use_id: str, told: str) -> None:
        if self._begun == tool_use_id:
            self._screen.end_note(f" → {told}")
        else:
            self._screen.note(f"{self._calls.get(tool_use_id, 'a tool')} → {told}")
        self._begun = None
