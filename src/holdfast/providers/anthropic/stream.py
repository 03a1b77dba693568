"""Decodes Anthropic's responses: one fold for complete and for streamed ones."""

from collections.abc import Callable

import msgspec

from holdfast.providers.anthropic.blocks import decode_anthropic_block, is_blank_text
from holdfast.providers.anthropic.response import (
    AnthropicUsage,
    anthropic_usage_buckets,
    compaction_usage,
    decode_anthropic_diagnosis,
    decode_anthropic_stream_error,
    merge_anthropic_usage,
)
from holdfast.providers.errors import decoding_errors
from holdfast.providers.json_splice import (
    UNREADABLE,
    encode_json_text,
    encode_string,
    get_optional_string,
    get_string_member,
    join_object,
    make_valid_arguments,
    split_object,
)
from holdfast.providers.sse import ServerSentEvent, get_event_name
from holdfast.types.blocks import THINKING_TYPES, Block, Opaque, Text, Thinking, ToolUse
from holdfast.types.reply import (
    CacheDiagnosis,
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
from holdfast.types.usage import Usage

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

_DELTA_TYPES: dict[str, Callable[[int, str], Delta]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_use": ToolUseDelta,
}
_TEXT_FIELDS = {"text_delta": "text", "thinking_delta": "thinking"}


class _Message(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    content: tuple[msgspec.Raw, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: AnthropicUsage | None = None
    diagnostics: msgspec.Raw = msgspec.Raw(b"")


class _Stop(msgspec.Struct, frozen=True):
    stop_reason: str | None = None
    stop_sequence: str | None = None
    diagnostics: msgspec.Raw = msgspec.Raw(b"")


class _Event(msgspec.Struct, frozen=True):
    index: int = 0
    message: _Message = _Message()
    content_block: msgspec.Raw = msgspec.Raw(b"{}")
    delta: msgspec.Raw = msgspec.Raw(b"{}")
    usage: AnthropicUsage | None = None


class _Type(msgspec.Struct, frozen=True):
    type: str = ""


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_type = msgspec.json.Decoder(_Type).decode


class AnthropicReplyFold:
    """Takes the events of a response in order. Raises msgspec's errors for malformed ones."""

    def __init__(self) -> None:
        self._started: _Message | None = None
        self._usage = AnthropicUsage()
        self._blocks: dict[int, BlockAccumulator] = {}
        self._stop = _Stop()
        self._diagnosis: CacheDiagnosis | None = None
        self.is_finished = False

    @property
    def usage(self) -> Usage:
        return anthropic_usage_buckets(self._usage)

    def take_event(self, event: ServerSentEvent) -> tuple[Delta, ...]:
        with decoding_errors("server_error", "an event of the stream"):
            name = get_event_name(event)
            if name in _EVENTS:
                return self.take(name, _decode_event(event.data))
        if name == "error":
            raise decode_anthropic_stream_error(event.data)
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
                return self._grow(event.index, split_object(bytes(event.delta)))
            case "content_block_stop":
                self._block(event.index).is_stopped = True
            case "message_delta":
                self._update(msgspec.json.decode(event.delta, type=_Stop), event.usage)
            case "message_stop":
                # Only Bedrock repeats the usage here.
                self._usage = merge_anthropic_usage(self._usage, event.usage or AnthropicUsage())
                self.is_finished = True
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
        self._usage = message.usage or AnthropicUsage()
        self._diagnosis = decode_anthropic_diagnosis(bytes(message.diagnostics))
        return (ReplyStarted(message.id, message.model, self.usage),)

    def _update(self, stop: _Stop, usage: AnthropicUsage | None) -> None:
        """Apply a `message_delta`. There may be several, and the last need not repeat the stop reason."""
        self._stop = stop if stop.stop_reason else self._stop
        self._usage = merge_anthropic_usage(self._usage, usage) if usage else self._usage
        # A diagnosis that was pending in `message_start` may be complete by now.
        self._diagnosis = decode_anthropic_diagnosis(bytes(stop.diagnostics)) or self._diagnosis

    def _open(self, index: int, raw: bytes) -> tuple[Delta, ...]:
        if index in self._blocks:
            raise msgspec.ValidationError(f"block {index} starts twice")
        block = self._blocks[index] = BlockAccumulator(raw)
        match block.kind:
            case "tool_use":
                return (ToolUseStarted(index, block.start_text("id"), block.start_text("name")),)
            case "text" | "thinking":
                # The start event has the first text in a member named like the type, which is usually empty.
                return _make_deltas(block.kind, index, block.start_text(block.kind))
            case _:
                return ()

    def _grow(self, index: int, delta: dict[str, bytes]) -> tuple[Delta, ...]:
        block = self._block(index)
        if block.is_stopped:
            raise msgspec.ValidationError(f"block {index} grows after its end")
        return _make_deltas(block.kind, index, block.apply_delta(delta))

    def _block(self, index: int) -> "BlockAccumulator":
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
        if self._stop.stop_reason and all(block.is_stopped for block in self._blocks.values()):
            # Complete except for `message_stop`, which has no content.
            return self._reply(tuple(content), self._stop_reason())
        # The provider refuses a message that ends in thinking.
        while content and isinstance(content[-1], THINKING_TYPES):
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
            compaction_usage(self._usage),
        )


def _make_deltas(kind: str, index: int, text: str) -> tuple[Delta, ...]:
    delta_type = _DELTA_TYPES.get(kind)
    return (delta_type(index, text),) if delta_type and text else ()


def decode_anthropic_reply(body: bytes) -> Reply:
    with decoding_errors("server_error", "the reply"):
        body.decode()
        if _decode_type(body).type != "error":
            return AnthropicReplyFold().take_whole(_decode_message(body))
    raise decode_anthropic_stream_error(body)


class BlockAccumulator:
    """A content block, accumulated from its start event and its deltas."""

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._members = split_object(start)
        self.kind = get_string_member(self._members, "type")
        self.is_stopped = False
        self._texts: dict[str, list[str]] = {}
        self._replaced: dict[str, bytes] = {}
        self._citations: list[bytes] = []
        self._arguments: list[str] = []

    def start_text(self, name: str) -> str:
        """A string field of the start event; empty if missing."""
        return get_optional_string(self._members, name)

    def apply_delta(self, delta: dict[str, bytes]) -> str:
        """Apply one delta; returns the text that it added."""
        kind = get_string_member(delta, "type")
        match kind:
            case "text_delta" | "thinking_delta":
                text = get_string_member(delta, _TEXT_FIELDS[kind])
                self._texts.setdefault(_TEXT_FIELDS[kind], []).append(text)
                return text
            case "input_json_delta":
                part = get_string_member(delta, "partial_json")
                self._arguments.append(part)
                return part
            case "signature_delta":
                self._replaced["signature"] = encode_string(get_string_member(delta, "signature"))
            case "citations_delta":
                self._citations.append(delta.get("citation", b"null"))
            case _:
                self._apply_unknown(delta)
        return ""

    def _apply_unknown(self, delta: dict[str, bytes]) -> None:
        """Append strings to their field; let any other value replace it."""
        for name, value in delta.items():
            if value.startswith(b'"') and name != "type":
                self._texts.setdefault(name, []).append(get_string_member(delta, name))
            elif name != "type" and value != b"null":
                self._replaced[name] = value

    def finish(self) -> Block:
        """The block so far."""
        arguments = "".join(self._arguments)
        raw = self._start
        if self._texts or self._replaced or self._citations or arguments.strip():
            raw = join_object(self._accumulated(arguments))
        block = decode_anthropic_block(raw)[0]
        if isinstance(block, ToolUse) and arguments.strip():
            # From the deltas and not from the decoded JSON, which loses white space around the value: the bytes must
            # match what the provider cached.
            return ToolUse(block.id, block.name, make_valid_arguments(arguments))
        if isinstance(block, Thinking) and not block.signature:
            return Thinking(block.text)
        return block

    def _accumulated(self, arguments: str) -> dict[str, bytes]:
        members = self._members | self._replaced
        for name, parts in self._texts.items():
            members[name] = encode_string(self.start_text(name) + "".join(parts))
        if self._citations:
            citations = msgspec.json.decode(members.get("citations", b"null"), type=list[msgspec.Raw] | None)
            members["citations"] = b"[%b]" % b",".join([*map(bytes, citations or ()), *self._citations])
        if arguments.strip():
            members["input"] = encode_json_text(make_valid_arguments(arguments))
        return members

    def salvage(self) -> Block | None:
        """The block if it is valid in a message although the response was interrupted, else None."""
        try:
            block = self.finish()
        except UNREADABLE:
            return None
        match block:
            case Text(text=text):
                return None if is_blank_text(text) else block
            case Thinking(signature=None):
                # The provider refuses thinking without its signature.
                return None
            case Opaque() | ToolUse():
                return block if self.is_stopped else None
            case _:
                return block
