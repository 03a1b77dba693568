"""Decodes Chat Completions responses: one fold for both kinds, because a complete one is a stream of one chunk."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar, cast

import msgspec

from holdfast.providers.errors import decoding_errors
from holdfast.providers.json_splice import (
    UNREADABLE,
    encode_string,
    get_string_member,
    join_object,
    make_valid_arguments,
    remove_member,
    split_object,
)
from holdfast.providers.openai_chat.encode import is_reasoning_block
from holdfast.providers.openai_chat.parameters import ChatVariant
from holdfast.providers.openai_chat.parts import CALL_KIND, MESSAGE_KIND, decode_chat_part, decode_response_detail
from holdfast.providers.openai_common import ChatUsage, chat_usage_buckets, decode_openai_stream_error
from holdfast.providers.sse import ServerSentEvent
from holdfast.types.blocks import Block, Opaque, Text, Thinking, ToolUse
from holdfast.types.json_encoding import sha256_hex
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
from holdfast.types.usage import Usage

DONE = b"[DONE]"

STOP_REASONS: dict[str | None, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


_ID_DIGEST_CHARS = 24

# String members that later deltas repeat; deltas of any other string member are appended.
_REPEATED_MEMBERS = frozenset({"id", "type", "name", "format"})


class _CallFunction(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: _CallFunction | None = None


class _Message(msgspec.Struct, frozen=True):
    """A complete message, or what a chunk adds to one."""

    content: str | tuple[msgspec.Raw, ...] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: tuple[msgspec.Raw, ...] | None = None
    tool_calls: tuple[msgspec.Raw, ...] | None = None
    function_call: _CallFunction | None = None
    images: tuple[msgspec.Raw, ...] | None = None
    audio: msgspec.Raw = msgspec.Raw(b"null")


class _Choice(msgspec.Struct, frozen=True):
    index: int | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None
    usage: ChatUsage | None = None  # Moonshot puts the usage of a stream here.
    error: msgspec.Raw = msgspec.Raw(b"null")


class _GroqFields(msgspec.Struct, frozen=True):
    usage: ChatUsage | None = None


class _Chunk(msgspec.Struct, frozen=True):
    id: str | None = None
    model: str | None = None
    object: str | None = None
    choices: tuple[_Choice, ...] | None = None
    usage: ChatUsage | None = None
    x_groq: _GroqFields | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")

    def find_usage(self) -> ChatUsage | None:
        """Groq sends the usage of a stream in `x_groq`, and at the top only with `include_usage`."""
        groq = self.x_groq.usage if self.x_groq else None
        return self.usage or groq or next((choice.usage for choice in self.choices or () if choice.usage), None)


class _Detail(msgspec.Struct, frozen=True):
    type: str
    index: int | None = None
    text: str | None = None
    summary: str | None = None


class _ChatBlockAccumulator(Protocol):
    def finish(self) -> Block:
        """The block so far; raises msgspec's errors if it is not valid yet."""

    def salvage(self) -> Block | None:
        """The block if it is valid in a message although the response was interrupted, else None."""


_Key = tuple[str, int]
_Block = TypeVar("_Block", bound=_ChatBlockAccumulator)
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_detail = msgspec.json.Decoder(_Detail).decode
_decode_call = msgspec.json.Decoder(_CallDelta).decode


class ChatReplyFold:
    """Blocks are in the order in which they began."""

    def __init__(self, variant: ChatVariant) -> None:
        self._variant = variant
        self._id: str | None = None
        self._model = ""
        self._usage = ChatUsage()
        self._blocks: dict[_Key, tuple[int, _ChatBlockAccumulator]] = {}
        self._finish_reason: str | None = None
        self.has_answer = False
        self.is_finished = False

    @property
    def usage(self) -> Usage:
        return chat_usage_buckets(self._usage, for_5m=self._variant.writes_with_ttl_5m(self._model))

    def take_event(self, event: ServerSentEvent) -> tuple[Delta, ...]:
        with decoding_errors("server_error", "an event of the stream"):
            return self._end() if event.data.strip() == DONE else self.take(event.data)

    def take(self, raw: bytes) -> tuple[Delta, ...]:
        """Raises msgspec's errors for a malformed chunk, and `ProviderError` for one that reports a failure."""
        # msgspec.Raw fields are not checked for valid UTF-8, so the whole chunk is checked here.
        raw.decode()
        chunk = _decode_chunk(raw)
        if _is_present(chunk.error) or chunk.object == "error":
            raise decode_openai_stream_error(raw)
        deltas = [*self._start(chunk)]
        for choice in chunk.choices or ():
            if _is_present(choice.error):
                raise decode_openai_stream_error(bytes(choice.error))
            # Only the first choice: others would be alternative responses, which we never request.
            if not choice.index:
                self.has_answer = True
                deltas += self._grow(choice.message or choice.delta or _Message())
                self._finish_reason = choice.finish_reason or self._finish_reason
        usage = chunk.find_usage()
        self._usage = usage or self._usage
        # The chunk with the usage is the last with content; some providers send no [DONE] after it.
        if usage is not None and self._finish_reason is not None:
            deltas += self._end()
        return tuple(deltas)

    def _start(self, chunk: _Chunk) -> Iterator[Delta]:
        """Some providers send an empty chunk first, so the id and model may come later."""
        self._model = self._model or chunk.model or ""
        if self._id is None:
            self._id = chunk.id or ""
            yield ReplyStarted(self._id, self._model, chat_usage_buckets(chunk.usage or ChatUsage()))
        self._id = self._id or chunk.id or ""

    def _end(self) -> tuple[Delta, ...]:
        """A stream that ends without a finish reason has failed, and its last call may be incomplete."""
        failed = self._id is not None and self._finish_reason is None
        reply = self._reply(self._salvaged(), "error") if failed else self.reply()
        self.is_finished = True
        return (ReplyFinished(reply),)

    def _grow(self, message: _Message) -> Iterator[Delta]:
        yield from self._add_reasoning(message)
        if isinstance(message.content, str):
            yield from self._add_text(("content", 0), message.content)
        else:
            for part in message.content or ():
                yield from self._add_part(bytes(part))
        yield from self._add_text(("refusal", 0), message.refusal or "")
        for raw in message.images or ():
            self._block(("images", 0), lambda _: _ListAccumulator(MESSAGE_KIND + "images"))[1].apply_delta(bytes(raw))
        if _is_present(message.audio):
            _, audio = self._block(("audio", 0), lambda _: _OpaqueAccumulator(MESSAGE_KIND + "audio"))
            audio.apply_delta(bytes(message.audio))
        for position, raw in enumerate(message.tool_calls or ()):
            yield from self._add_call(bytes(raw), position)
        if message.function_call is not None:
            yield from self._add_function_call(0, _CallDelta(function=message.function_call))

    def _add_reasoning(self, message: _Message) -> Iterator[Delta]:
        """If there are `reasoning_details`, `reasoning` repeats their text and is ignored."""
        for position, raw in enumerate(message.reasoning_details or ()):
            decoded = _decode_detail(raw)
            key = (decoded.type, position if decoded.index is None else decoded.index)
            index, detail = self._block(key, lambda _: _ReasoningDetailAccumulator())
            detail.apply_delta(bytes(raw))
            if text := decoded.text or decoded.summary:
                yield ThinkingDelta(index, text)
        text = message.reasoning or message.reasoning_content
        if text and not message.reasoning_details:
            index, block = self._block(("reasoning", 0), lambda _: _ThinkingAccumulator())
            block.apply_delta(text)
            yield ThinkingDelta(index, text)

    def _add_text(self, key: _Key, text: str) -> Iterator[Delta]:
        if text:
            index, block = self._block(key, lambda _: _TextAccumulator())
            block.apply_delta(text)
            yield TextDelta(index, text)

    def _add_part(self, raw: bytes) -> Iterator[Delta]:
        """Some providers send content as a list of parts instead of one text."""
        part, _ = decode_chat_part(raw, self._variant)
        if isinstance(part, Text):
            yield from self._add_text(("content", 0), part.text)
        else:
            kind = part.kind if isinstance(part, Opaque) else "image_url"
            self._block(("part", len(self._blocks)), lambda _: _OpaqueAccumulator(kind))[1].apply_delta(raw)

    def _add_call(self, raw: bytes, position: int) -> Iterator[Delta]:
        delta = _decode_call(raw)
        index = position if delta.index is None else delta.index
        if delta.type not in (None, "", "function") or ("call of another type", index) in self._blocks:
            kind = f"{CALL_KIND}{delta.type}"
            other = self._block(("call of another type", index), lambda _: _OpaqueAccumulator(kind))[1]
            other.apply_delta(remove_member(raw, "index"))
        else:
            yield from self._add_function_call(index, delta)

    def _add_function_call(self, index: int, delta: _CallDelta) -> tuple[Delta, ...]:
        _, call = self._block(("call", index), lambda block_index: _CallAccumulator(block_index, self._id or ""))
        return call.apply_delta(delta)

    def _block(self, key: _Key, begin: Callable[[int], _Block]) -> tuple[int, _Block]:
        """The index and the block of that key; creates the block if there is none yet."""
        if key not in self._blocks:
            self._blocks[key] = (len(self._blocks), begin(len(self._blocks)))
        return cast("tuple[int, _Block]", self._blocks[key])

    def reply(self) -> Reply:
        """Raises msgspec's errors if no complete response has arrived."""
        if self._id is None:
            raise msgspec.ValidationError("it ends before it began")
        content = tuple(block.finish() for block in self._visible_blocks())
        return self._reply(content, self._stop_reason(content))

    def partial(self) -> Reply | None:
        if self._id is None:
            return None
        if self._finish_reason is not None:
            with suppress(*UNREADABLE):
                # Complete except for the usage.
                return self.reply()
        return self._reply(self._salvaged(), "cancelled")

    def _salvaged(self) -> tuple[Block, ...]:
        content = [block for block in map(_salvage, self._visible_blocks()) if block is not None]
        # Reasoning cannot be sent back without the output it led to.
        while content and is_reasoning_block(content[-1]):
            content.pop()
        return tuple(content)

    def _visible_blocks(self) -> Iterator[_ChatBlockAccumulator]:
        blocks = [block for _, block in self._blocks.values()]
        has_details = any(isinstance(block, _ReasoningDetailAccumulator) for block in blocks)
        return (block for block in blocks if not (has_details and isinstance(block, _ThinkingAccumulator)))

    def _reply(self, content: tuple[Block, ...], stop_reason: StopReason) -> Reply:
        return Reply(content, stop_reason, self.usage, self._model, self._id or "")

    def _stop_reason(self, content: tuple[Block, ...]) -> StopReason:
        """An unknown reason must not pass for a turn that ended normally."""
        if ("refusal", 0) in self._blocks:
            return "refusal"
        reason = STOP_REASONS.get(self._finish_reason, "error")
        if reason == "end_turn" and any(isinstance(block, ToolUse) for block in content):
            # "stop" is also the finish reason of calls that the request forced.
            return "tool_use"
        return reason


def _is_present(raw: msgspec.Raw) -> bool:
    return bytes(raw) != b"null"


def _salvage(block: _ChatBlockAccumulator) -> Block | None:
    try:
        return block.salvage()
    except UNREADABLE:
        return None


def decode_chat_reply(body: bytes, variant: ChatVariant) -> Reply:
    fold = ChatReplyFold(variant)
    with decoding_errors("server_error", "the reply"):
        fold.take(body)
        if not fold.has_answer:
            raise msgspec.ValidationError("Expected at least one of `choices`")
        return fold.reply()


class _TextAccumulator:
    def __init__(self) -> None:
        self._parts: list[str] = []

    def apply_delta(self, text: str) -> None:
        self._parts.append(text)

    def finish(self) -> Block:
        return Text("".join(self._parts))

    def salvage(self) -> Block | None:
        return self.finish() if "".join(self._parts).strip() else None


class _ThinkingAccumulator(_TextAccumulator):
    """Reasoning as plain text. Without a signature it cannot be sent back after an interrupted response."""

    def finish(self) -> Block:
        return Thinking("".join(self._parts))

    def salvage(self) -> None:
        return None


class _ObjectAccumulator:
    """An object carried as its bytes, or merged from deltas: strings are appended, other values replaced."""

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._is_merged = False
        self._texts: dict[str, list[str]] = {}
        self._objects: dict[str, _ObjectAccumulator] = {}
        self._members: dict[str, bytes] = {}

    def apply_delta(self, raw: bytes) -> None:
        self._is_merged = self._first is not None
        self._first = self._first or raw
        for name, value in split_object(raw).items():
            if value.startswith(b'"') and name not in _REPEATED_MEMBERS:
                self._texts.setdefault(name, []).append(get_string_member({name: value}, name))
            elif value.startswith(b"{"):
                self._objects.setdefault(name, _ObjectAccumulator()).apply_delta(value)
            elif value == b"null" and name in self._members:
                continue
            self._members[name] = value

    def raw(self) -> bytes:
        if self._first is not None and not self._is_merged:
            return self._first
        texts = {name: encode_string("".join(parts)) for name, parts in self._texts.items()}
        objects = {name: value.raw() for name, value in self._objects.items()}
        return join_object(self._members | texts | objects)


class _ReasoningDetailAccumulator(_ObjectAccumulator):
    def finish(self) -> Block:
        return decode_response_detail(self.raw())

    def salvage(self) -> Block | None:
        block = self.finish()
        return None if isinstance(block, Thinking) and block.signature is None else block


class _OpaqueAccumulator(_ObjectAccumulator):
    """A block that is only carried: a call of another type, or a part or member that we do not know."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def finish(self) -> Block:
        return Opaque(self._kind, self.raw())

    def salvage(self) -> None:
        return None


class _ListAccumulator:
    """A member of the message that is a list, such as `images`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._raws: list[bytes] = []

    def apply_delta(self, raw: bytes) -> None:
        self._raws.append(raw)

    def finish(self) -> Block:
        return Opaque(self._kind, b"[%b]" % b",".join(self._raws))

    def salvage(self) -> Block | None:
        return self.finish()


class _CallAccumulator:
    """`index` is that of its block. A call without an id gets one derived from the response's id."""

    def __init__(self, index: int, reply_id: str) -> None:
        self._index = index
        self._id = ""
        self._fallback_id = "call_" + sha256_hex(f"{reply_id} {index}".encode(errors="replace"))[:_ID_DIGEST_CHARS]
        self._name = ""
        self._parts: list[str] = []

    def apply_delta(self, delta: _CallDelta) -> tuple[Delta, ...]:
        """A call is reported as started once its name is known, with the arguments received so far."""
        function = delta.function or _CallFunction()
        self._id = self._id or delta.id or ""
        part = function.arguments or ""
        if part:
            self._parts.append(part)
        if self._name or not function.name:
            return (ToolUseDelta(self._index, part),) if part and self._name else ()
        self._name, self._id = function.name, self._id or self._fallback_id
        arguments = "".join(self._parts)
        started = ToolUseStarted(self._index, self._id, self._name)
        return (started, ToolUseDelta(self._index, arguments)) if arguments else (started,)

    def finish(self) -> Block:
        if not self._name:
            raise msgspec.ValidationError("a call without a name")
        arguments = "".join(self._parts)
        return ToolUse(self._id, self._name, make_valid_arguments(arguments) if arguments.strip() else "{}")

    def salvage(self) -> Block | None:
        """Arguments that parse as a JSON object are complete."""
        arguments = "".join(self._parts)
        is_complete = self._name and arguments.strip() and make_valid_arguments(arguments) == arguments
        return self.finish() if is_complete else None
