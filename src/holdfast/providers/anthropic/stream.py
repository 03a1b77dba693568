"""Decodes Anthropic's responses: one fold for complete and for streamed ones."""

import msgspec

from holdfast.canonical.blocks import THINKING_KINDS, Block
from holdfast.canonical.diagnosis import Diagnosis
from holdfast.canonical.reply import (
    Delta,
    Reply,
    ReplyFinished,
    ReplyStarted,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolUseDelta,
    ToolUseStarted,
)
from holdfast.canonical.usage import Usage
from holdfast.providers.anthropic.diagnosing import read_diagnosis
from holdfast.providers.anthropic.errors import read_stream_error
from holdfast.providers.anthropic.growing import GrowingBlock
from holdfast.providers.anthropic.usage import WireUsage, buckets, compacting, updated
from holdfast.providers.diagnosing import ABSENT
from holdfast.providers.failures import readable
from holdfast.providers.members import take_apart
from holdfast.providers.sse import EVENT_BYTES_MAX, SentEvent
from holdfast.providers.streaming import REPLY_BYTES_MAX, EventStreamReader, event_name

STOP_REASONS: dict[str | None, StopReason] = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_use",
    "refusal": "refusal",
    # Server tools need another request to continue; for this request the turn has ended.
    "pause_turn": "end_turn",
    "compaction": "end_turn",
    "model_context_window_exceeded": "max_tokens",
}

# Other events, such as `ping`, are ignored.
_EVENTS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    }
)


class _Message(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    content: tuple[msgspec.Raw, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: WireUsage | None = None
    diagnostics: msgspec.Raw = ABSENT


class _Stop(msgspec.Struct, frozen=True):
    stop_reason: str | None = None
    stop_sequence: str | None = None
    diagnostics: msgspec.Raw = ABSENT


class _Event(msgspec.Struct, frozen=True):
    index: int = 0
    message: _Message = _Message()
    content_block: msgspec.Raw = msgspec.Raw(b"{}")
    delta: msgspec.Raw = msgspec.Raw(b"{}")
    usage: WireUsage | None = None


class _Type(msgspec.Struct, frozen=True):
    type: str = ""


_decode_event = msgspec.json.Decoder(_Event).decode


class ReplyFold:
    """Takes the events of a response in order. Raises msgspec's errors for malformed ones."""

    def __init__(self) -> None:
        self._started: _Message | None = None
        self._usage = WireUsage()
        self._blocks: dict[int, GrowingBlock] = {}
        self._stop = _Stop()
        self._diagnosis: Diagnosis | None = None
        self.finished = False

    @property
    def usage(self) -> Usage:
        return buckets(self._usage)

    def take_event(self, event: SentEvent) -> tuple[Delta, ...]:
        with readable("server_error", "an event of the stream"):
            name = event_name(event)
            if name in _EVENTS:
                return self.take(name, _decode_event(event.data))
        if name == "error":
            raise read_stream_error(event.data)
        return ()

    def take(self, name: str, event: _Event) -> tuple[Delta, ...]:
        if name == "message_start":
            return self._start(event.message)
        if self._started is None:
            raise msgspec.ValidationError(f"`{name}` before `message_start`")
        match name:
            case "content_block_start":
                return self._open(event.index, bytes(event.content_block))
            case "content_block_delta":
                return self._grow(event.index, take_apart(bytes(event.delta)))
            case "content_block_stop":
                self._block(event.index).stopped = True
            case "message_delta":
                self._update(msgspec.json.decode(event.delta, type=_Stop), event.usage)
            case "message_stop":
                self.finished = True
                return (ReplyFinished(self.reply()),)
            case _:
                pass
        return ()

    def take_whole(self, message: _Message) -> Reply:
        self._start(message)
        for index, raw in enumerate(message.content):
            self._open(index, bytes(raw))
        self._stop = _Stop(message.stop_reason, message.stop_sequence)
        return self.reply()

    def _start(self, message: _Message) -> tuple[Delta, ...]:
        if self._started is not None:
            raise msgspec.ValidationError("a second `message_start`")
        self._started = message
        # `message_start` has the input and cache counters, `message_delta` the final output counter.
        self._usage = message.usage or WireUsage()
        self._diagnosis = read_diagnosis(bytes(message.diagnostics))
        return (ReplyStarted(message.id, message.model, self.usage),)

    def _update(self, stop: _Stop, usage: WireUsage | None) -> None:
        """Apply a `message_delta`. There may be several, and the last need not repeat the stop reason."""
        self._stop = stop if stop.stop_reason else self._stop
        self._usage = updated(self._usage, usage) if usage else self._usage
        # A diagnosis that was pending in `message_start` may be complete by now.
        self._diagnosis = read_diagnosis(bytes(stop.diagnostics)) or self._diagnosis

    def _open(self, index: int, raw: bytes) -> tuple[Delta, ...]:
        if index in self._blocks:
            raise msgspec.ValidationError(f"block {index} starts twice")
        block = self._blocks[index] = GrowingBlock(raw)
        match block.kind:
            case "tool_use":
                return (ToolUseStarted(index, block.text_at_start("id"), block.text_at_start("name")),)
            case "text":
                text = block.text_at_start("text")
                return (TextDelta(index, text),) if text else ()
            case "thinking":
                text = block.text_at_start("thinking")
                return (ThinkingDelta(index, text),) if text else ()
            case _:
                return ()

    def _grow(self, index: int, delta: dict[str, bytes]) -> tuple[Delta, ...]:
        block = self._block(index)
        if block.stopped:
            raise msgspec.ValidationError(f"block {index} grows after its end")
        text = block.grow(delta)
        match block.kind:
            case "text" if text:
                return (TextDelta(index, text),)
            case "thinking" if text:
                return (ThinkingDelta(index, text),)
            case "tool_use" if text:
                return (ToolUseDelta(index, text),)
            case _:
                return ()

    def _block(self, index: int) -> GrowingBlock:
        if index not in self._blocks:
            raise msgspec.ValidationError(f"block {index} never started")
        return self._blocks[index]

    def reply(self) -> Reply:
        return self._reply(tuple(block.finish() for block in self._blocks.values()), self._stop_reason())

    def partial(self) -> Reply | None:
        if self._started is None:
            return None
        salvaged = (block.salvage() for block in self._blocks.values())
        content = [block for block in salvaged if block is not None]
        if self._stop.stop_reason and all(block.stopped for block in self._blocks.values()):
            # Complete except for `message_stop`, which has no content.
            return self._reply(tuple(content), self._stop_reason())
        # The provider refuses a message that ends in thinking.
        while content and isinstance(content[-1], THINKING_KINDS):
            content.pop()
        return self._reply(tuple(content), "cancelled")

    def _stop_reason(self) -> StopReason:
        """An unknown reason must not pass for a turn that ended normally."""
        return STOP_REASONS.get(self._stop.stop_reason, "error")

    def _reply(self, content: tuple[Block, ...], stop_reason: StopReason) -> Reply:
        started = self._started or _Message()
        return Reply(
            content,
            stop_reason,
            self.usage,
            started.model,
            started.id,
            self._stop.stop_sequence,
            self._diagnosis,
            compacting(self._usage),
        )


class AnthropicStreamReader(EventStreamReader):
    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX, reply_bytes_max: int = REPLY_BYTES_MAX) -> None:
        super().__init__(ReplyFold(), event_bytes_max=event_bytes_max, reply_bytes_max=reply_bytes_max)


def read_reply(body: bytes) -> Reply:
    with readable("server_error", "the reply"):
        body.decode()
        if msgspec.json.decode(body, type=_Type).type != "error":
            return ReplyFold().take_whole(msgspec.json.decode(body, type=_Message))
    raise read_stream_error(body)
