"""Decodes responses of the Responses API: one fold for complete and for streamed ones."""

from collections.abc import Mapping

import msgspec

from holdfast.errors import ProviderError
from holdfast.providers.errors import decoding_errors
from holdfast.providers.json_splice import get_string_member, split_object
from holdfast.providers.openai_common import ResponsesUsage, decode_openai_stream_error, responses_usage_buckets
from holdfast.providers.openai_responses.items import (
    SUMMARY_SEPARATOR,
    decode_call_arguments,
    decode_reasoning,
    decode_responses_item,
)
from holdfast.providers.openai_responses.parts import OUTPUT_KINDS, decode_output_part
from holdfast.providers.openai_responses.response import decode_responses_diagnosis
from holdfast.providers.sse import ServerSentEvent, get_event_name
from holdfast.types.blocks import THINKING_TYPES, Block, Opaque, Text, Thinking, ToolUse
from holdfast.types.reply import (
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

_INCOMPLETE_REASONS: dict[str | None, StopReason] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}

# The other events repeat what these contain, or announce it.
_EVENTS = frozenset(
    {
        "response.created",
        "response.output_item.added",
        "response.output_text.delta",
        "response.refusal.delta",
        "response.reasoning_summary_text.delta",
        "response.function_call_arguments.delta",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    }
)


class _Details(msgspec.Struct, frozen=True):
    reason: str | None = None


class _Response(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    status: str | None = None
    output: tuple[msgspec.Raw, ...] | None = None
    incomplete_details: _Details | None = None
    usage: ResponsesUsage | None = None
    prompt_cache_diagnostics: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def failed(self) -> bool:
        return self.status == "failed" or (self.output is None and bytes(self.error) != b"null")


class _Event(msgspec.Struct, frozen=True):
    response: _Response = _Response()
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0
    item: msgspec.Raw = msgspec.Raw(b"{}")
    delta: str = ""


_decode_event = msgspec.json.Decoder(_Event).decode


class OutputBlocks(msgspec.Struct, frozen=True):
    """`is_refusal`: a part is the model's refusal."""

    blocks: tuple[Block, ...]
    is_refusal: bool = False


class ItemAccumulator:
    """An item from its first event on. Its `done` event replaces what was accumulated."""

    def __init__(self, raw: bytes) -> None:
        members = split_object(raw)
        self._raw = raw
        self._done: OutputBlocks | None = None
        self._texts: dict[int, list[str]] = {}
        self.arguments: list[str] = []
        self.kind = get_string_member(members, "type")
        is_call = self.kind == "function_call"
        self.call_id = get_string_member(members, "call_id") if is_call else ""
        self.name = get_string_member(members, "name") if is_call else ""

    @property
    def is_done(self) -> bool:
        return self._done is not None

    def append_text(self, part: int, text: str) -> str:
        """Append text to a part; returns what that adds to the joined text of all parts."""
        starts_summary = self.kind == "reasoning" and part not in self._texts and bool(self._texts)
        self._texts.setdefault(part, []).append(text)
        return SUMMARY_SEPARATOR + text if starts_summary else text

    def finish(self, raw: bytes) -> OutputBlocks:
        self._done = decode_output_item(raw)
        return self._done

    def get_output(self) -> OutputBlocks:
        return self._done if self._done is not None else self._accumulated()

    def _accumulated(self) -> OutputBlocks:
        """What has arrived of an item without a `done` event."""
        texts = ["".join(self._texts[part]) for part in sorted(self._texts)]
        match self.kind:
            case "message":
                return OutputBlocks(tuple(map(Text, texts)))
            case "reasoning":
                return OutputBlocks((Thinking(SUMMARY_SEPARATOR.join(texts)),))
            case "function_call":
                arguments = decode_call_arguments("".join(self.arguments))
                return OutputBlocks((ToolUse(self.call_id, self.name, arguments),))
            case _:
                return OutputBlocks((Opaque(self.kind, self._raw),))

    def salvage(self) -> tuple[Block, ...]:
        """The blocks that are valid in a message although the response was interrupted."""
        return tuple(block for block in self.get_output().blocks if self._is_valid(block))

    def _is_valid(self, block: Block) -> bool:
        match block:
            case Text(text=text):
                return bool(text.strip())
            case Thinking(signature=signature):
                return signature is not None
            case _:
                return self.is_done


class ResponsesReplyFold:
    """Takes the events of a response in order. `take` raises msgspec's errors for malformed ones."""

    def __init__(self) -> None:
        self._started: _Response | None = None
        self._ended = _Response()
        self._items: dict[int, ItemAccumulator] = {}
        self._block_indexes: dict[tuple[int, int], int] = {}
        self.is_finished = False

    def take_event(self, event: ServerSentEvent) -> tuple[Delta, ...]:
        with decoding_errors("server_error", "an event of the stream"):
            name = get_event_name(event)
            decoded = _decode_event(event.data) if name in _EVENTS else _Event()
            if name.startswith("response.") and name not in _EVENTS:
                # We ignore this event, but if it is not valid JSON the stream is broken.
                msgspec.json.decode(event.data)
            if name in _EVENTS and name != "response.failed" and not decoded.response.failed:
                return self.take(name, decoded)
        if name in _EVENTS:
            raise _failure(decoded.response)
        if name == "error":
            raise decode_openai_stream_error(event.data)
        return ()

    def take(self, name: str, event: _Event) -> tuple[Delta, ...]:
        if name == "response.created":
            return self._start(event.response)
        if self._started is None:
            raise msgspec.ValidationError(f"`{name}` before `response.created`")
        match name:
            case "response.output_item.added":
                return self._open(event.output_index, bytes(event.item))
            case "response.output_text.delta" | "response.refusal.delta":
                return self._grow(event.output_index, event.content_index, event.delta)
            case "response.reasoning_summary_text.delta":
                return self._grow(event.output_index, event.summary_index, event.delta)
            case "response.function_call_arguments.delta":
                return self._grow_call(event.output_index, event.delta)
            case "response.output_item.done":
                return self._finish(event.output_index, bytes(event.item))
            case _:
                deltas = self._end(event.response, name.removeprefix("response."))
                return (*deltas, ReplyFinished(self.reply()))

    def take_whole(self, response: _Response) -> Reply:
        self._start(response)
        self._end(response, "completed" if response.output is not None else "")
        return self.reply()

    def _start(self, response: _Response) -> tuple[Delta, ...]:
        if self._started is not None:
            raise msgspec.ValidationError("a second `response.created`")
        self._started = response
        return (ReplyStarted(response.id, response.model, responses_usage_buckets(response.usage)),)

    def _open(self, index: int, raw: bytes) -> tuple[Delta, ...]:
        if index in self._items:
            raise msgspec.ValidationError(f"item {index} starts twice")
        item = self._items[index] = ItemAccumulator(raw)
        if item.kind == "function_call":
            return (ToolUseStarted(self._block_index(index), item.call_id, item.name),)
        return ()

    def _grow(self, index: int, part: int, text: str) -> tuple[Delta, ...]:
        item = self._open_item(index)
        if text and item.kind == "message":
            return (TextDelta(self._block_index(index, part), item.append_text(part, text)),)
        if text and item.kind == "reasoning":
            return (ThinkingDelta(self._block_index(index), item.append_text(part, text)),)
        return ()

    def _grow_call(self, index: int, json_part: str) -> tuple[Delta, ...]:
        item = self._open_item(index)
        if item.kind != "function_call" or not json_part:
            return ()
        item.arguments.append(json_part)
        return (ToolUseDelta(self._block_index(index), json_part),)

    def _open_item(self, index: int) -> ItemAccumulator:
        if index not in self._items:
            raise msgspec.ValidationError(f"item {index} never started")
        if self._items[index].is_done:
            raise msgspec.ValidationError(f"item {index} grows after its end")
        return self._items[index]

    def _finish(self, index: int, raw: bytes) -> tuple[Delta, ...]:
        """An item without an `added` event is emitted as deltas now."""
        if index in self._items:
            self._open_item(index).finish(raw)
            return ()
        self._items[index] = ItemAccumulator(raw)
        return self._deltas_of(index, self._items[index].finish(raw))

    def _deltas_of(self, index: int, output: OutputBlocks) -> tuple[Delta, ...]:
        deltas: list[Delta] = []
        for part, block in enumerate(output.blocks):
            match block:
                case Text(text=text) if text:
                    deltas.append(TextDelta(self._block_index(index, part), text))
                case Thinking(text=text) if text:
                    deltas.append(ThinkingDelta(self._block_index(index), text))
                case ToolUse():
                    block_index = self._block_index(index)
                    deltas.append(ToolUseStarted(block_index, block.id, block.name))
                    deltas.append(ToolUseDelta(block_index, block.arguments_json))
                case _:
                    pass
        return tuple(deltas)

    def _end(self, response: _Response, status: str) -> tuple[Delta, ...]:
        """Items without a `done` event are taken from the complete response, if it has them."""
        deltas: list[Delta] = []
        for index, raw in enumerate(response.output or ()):
            if index not in self._items or not self._items[index].is_done:
                deltas += self._finish(index, bytes(raw))
        self._ended = msgspec.structs.replace(response, status=response.status or status)
        self.is_finished = True
        return tuple(deltas)

    def _block_index(self, index: int, part: int = 0) -> int:
        """The index of a block, in the order in which blocks begin."""
        return self._block_indexes.setdefault((index, part), len(self._block_indexes))

    def reply(self) -> Reply:
        outputs = [self._items[index].get_output() for index in sorted(self._items)]
        content = tuple(block for output in outputs for block in output.blocks)
        refused = any(output.is_refusal for output in outputs)
        return self._reply(content, "refusal" if refused else self._stop_reason(content))

    def partial(self) -> Reply | None:
        if self.is_finished:
            return self.reply()
        if self._started is None:
            return None
        content = [block for index in sorted(self._items) for block in self._items[index].salvage()]
        # The provider refuses reasoning without the output it led to.
        while content and isinstance(content[-1], THINKING_TYPES):
            content.pop()
        return self._reply(tuple(content), "cancelled")

    def _stop_reason(self, content: tuple[Block, ...]) -> StopReason:
        """An unknown reason must not pass for a turn that ended normally."""
        ended = self._ended
        match ended.status:
            case "completed":
                return "tool_use" if any(isinstance(block, ToolUse) for block in content) else "end_turn"
            case "incomplete":
                return _INCOMPLETE_REASONS.get((ended.incomplete_details or _Details()).reason, "error")
            case "cancelled":
                return "cancelled"
            case _:
                return "error"

    def _reply(self, content: tuple[Block, ...], stop_reason: StopReason) -> Reply:
        started = self._started or _Response()
        # A stream has its usage in `response.completed` or `response.incomplete`.
        usage = responses_usage_buckets(self._ended.usage or started.usage)
        model, id = self._ended.model or started.model, self._ended.id or started.id
        diagnosis = decode_responses_diagnosis(bytes(self._ended.prompt_cache_diagnostics))
        return Reply(content, stop_reason, usage, model, id, diagnosis=diagnosis)


def _failure(response: _Response) -> ProviderError:
    return decode_openai_stream_error(b'{"error":' + bytes(response.error) + b"}")


def decode_responses_reply(body: bytes) -> Reply:
    with decoding_errors("server_error", "the reply"):
        body.decode()
        response = msgspec.json.decode(body, type=_Response)
        if not response.failed:
            return ResponsesReplyFold().take_whole(response)
    raise _failure(response)


def decode_output_item(raw: bytes) -> OutputBlocks:
    """Raises msgspec's errors. Metadata of a message, such as its phase, is dropped."""
    members = split_object(raw)
    match get_string_member(members, "type"):
        case "message":
            return _decode_message(raw, members)
        case "reasoning":
            return OutputBlocks((decode_reasoning(members) or Opaque("reasoning", raw),))
        case kind:
            item = decode_responses_item(raw)
            # A reply has no place for the further fields of an item, so that one is carried as its bytes.
            return OutputBlocks((Opaque(kind, raw),) if item.fields else item.blocks)


def _decode_message(raw: bytes, members: Mapping[str, bytes]) -> OutputBlocks:
    blocks: list[Block] = []
    refused = False
    for part in msgspec.json.decode(members.get("content", b"[]"), type=tuple[msgspec.Raw, ...]):
        block = decode_output_part(bytes(part))
        if isinstance(block, Opaque) and block.kind == "refusal":
            refused = True
            block = Text(get_string_member(split_object(block.raw), "refusal"))
        if isinstance(block, Opaque) and block.kind not in OUTPUT_KINDS:
            # A part of another type can only be sent back together with its message.
            return OutputBlocks((Opaque("message", raw),), refused)
        blocks.append(block)
    return OutputBlocks(tuple(blocks), refused)
