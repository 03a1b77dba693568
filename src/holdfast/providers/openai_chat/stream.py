"""What a chat reply says, whole or as it arrives: one fold for both, because a whole reply is a stream of one chunk."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar, cast

import msgspec

from holdfast.canonical.blocks import Block, Opaque, Text, ToolUse
from holdfast.canonical.reply import (
    Delta,
    Reply,
    ReplyFinished,
    ReplyStarted,
    StopReason,
    TextDelta,
    ThinkingDelta,
)
from holdfast.canonical.usage import Usage
from holdfast.providers.failures import readable
from holdfast.providers.members import without
from holdfast.providers.openai_chat.flavour import Flavour
from holdfast.providers.openai_chat.growing import (
    CallDelta,
    CallFunction,
    Growing,
    GrowingCall,
    GrowingDetail,
    GrowingList,
    GrowingOpaque,
    GrowingText,
    GrowingThinking,
)
from holdfast.providers.openai_chat.kinds import CALL, MESSAGE
from holdfast.providers.openai_chat.lowering import is_reasoning
from holdfast.providers.openai_chat.parts import read_part
from holdfast.providers.openai_chat.usage import WireUsage, buckets
from holdfast.providers.openai_errors import read_stream_error
from holdfast.providers.sse import SentEvent

DONE = b"[DONE]"

STOP_REASONS: dict[str | None, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class _Message(msgspec.Struct, frozen=True):
    """A whole message, or what a chunk adds to one."""

    content: str | tuple[msgspec.Raw, ...] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: tuple[msgspec.Raw, ...] | None = None
    tool_calls: tuple[msgspec.Raw, ...] | None = None
    function_call: CallFunction | None = None
    images: tuple[msgspec.Raw, ...] | None = None
    audio: msgspec.Raw = msgspec.Raw(b"null")


class _Choice(msgspec.Struct, frozen=True):
    index: int | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


class _Chunk(msgspec.Struct, frozen=True):
    id: str | None = None
    model: str | None = None
    object: str | None = None
    choices: tuple[_Choice, ...] | None = None
    usage: WireUsage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


class _Detail(msgspec.Struct, frozen=True):
    type: str
    index: int | None = None
    text: str | None = None
    summary: str | None = None


_Key = tuple[str, int]
_Block = TypeVar("_Block", bound=Growing)

_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_detail = msgspec.json.Decoder(_Detail).decode
_decode_call = msgspec.json.Decoder(CallDelta).decode


class ChatFold:
    """Blocks stand in the order in which they began."""

    def __init__(self, flavour: Flavour) -> None:
        self._flavour = flavour
        self._id: str | None = None
        self._model = ""
        self._usage = WireUsage()
        self._blocks: dict[_Key, tuple[int, Growing]] = {}
        self._finish_reason: str | None = None
        self.has_answer = False
        self.finished = False

    @property
    def usage(self) -> Usage:
        return buckets(self._usage, for_5m=self._flavour.writes_for_5m(self._model))

    def take_event(self, event: SentEvent) -> tuple[Delta, ...]:
        with readable("server_error", "an event of the stream"):
            return self._end() if event.data.strip() == DONE else self.take(event.data)

    def take(self, raw: bytes) -> tuple[Delta, ...]:
        """Raises msgspec's errors for what cannot be read, and `ProviderError` for a failure that is told."""
        # Parts that are kept as bytes are not checked for it otherwise.
        raw.decode()
        chunk = _decode_chunk(raw)
        if _is_told(chunk.error) or chunk.object == "error":
            raise read_stream_error(raw)
        deltas = [*self._start(chunk)]
        for choice in chunk.choices or ():
            if _is_told(choice.error):
                raise read_stream_error(bytes(choice.error))
            if not choice.index:
                self.has_answer = True
                deltas += self._grow(choice.message or choice.delta or _Message())
                self._finish_reason = choice.finish_reason or self._finish_reason
        self._usage = chunk.usage or self._usage
        if chunk.usage is not None and self._finish_reason is not None:
            deltas += self._end()
        return tuple(deltas)

    def _start(self, chunk: _Chunk) -> Iterator[Delta]:
        """Some send an empty chunk ahead, so a name may come later."""
        self._model = self._model or chunk.model or ""
        if self._id is None:
            self._id = chunk.id or ""
            yield ReplyStarted(self._id, self._model, buckets(chunk.usage or WireUsage()))
        self._id = self._id or chunk.id or ""

    def _end(self) -> tuple[Delta, ...]:
        """A stream that closes without a reason has failed, and its last call may be half a one."""
        if self._id is not None and self._finish_reason is None:
            reply = self._reply(self._salvaged(), "error")
        else:
            reply = self.reply()
        self.finished = True
        return (ReplyFinished(reply),)

    def _grow(self, message: _Message) -> Iterator[Delta]:
        yield from self._think(message)
        if isinstance(message.content, str):
            yield from self._say(("content", 0), message.content)
        else:
            for part in message.content or ():
                yield from self._take_part(bytes(part))
        yield from self._say(("refusal", 0), message.refusal or "")
        for raw in message.images or ():
            self._block(("images", 0), lambda _: GrowingList(MESSAGE + "images"))[1].grow(bytes(raw))
        if _is_told(message.audio):
            self._block(("audio", 0), lambda _: GrowingOpaque(MESSAGE + "audio"))[1].grow(bytes(message.audio))
        for position, raw in enumerate(message.tool_calls or ()):
            yield from self._call(bytes(raw), position)
        if message.function_call is not None:
            yield from self._call_function(0, CallDelta(function=message.function_call))

    def _think(self, message: _Message) -> Iterator[Delta]:
        """Where there are details, the text beside them says the same once more."""
        for position, raw in enumerate(message.reasoning_details or ()):
            told = _decode_detail(raw)
            key = (told.type, position if told.index is None else told.index)
            place, detail = self._block(key, lambda _: GrowingDetail())
            detail.grow(bytes(raw))
            if text := told.text or told.summary:
                yield ThinkingDelta(place, text)
        text = message.reasoning or message.reasoning_content
        if text and not message.reasoning_details:
            place, block = self._block(("reasoning", 0), lambda _: GrowingThinking())
            block.grow(text)
            yield ThinkingDelta(place, text)

    def _say(self, key: _Key, text: str) -> Iterator[Delta]:
        if text:
            place, block = self._block(key, lambda _: GrowingText())
            block.grow(text)
            yield TextDelta(place, text)

    def _take_part(self, raw: bytes) -> Iterator[Delta]:
        """Content that is told in parts, as some do, and not in one text."""
        part, _ = read_part(raw, self._flavour)
        if isinstance(part, Text):
            yield from self._say(("content", 0), part.text)
        else:
            kind = part.kind if isinstance(part, Opaque) else "image_url"
            self._block(("part", len(self._blocks)), lambda _: GrowingOpaque(kind))[1].grow(raw)

    def _call(self, raw: bytes, position: int) -> Iterator[Delta]:
        delta = _decode_call(raw)
        index = position if delta.index is None else delta.index
        if delta.type not in (None, "", "function") or ("call of another type", index) in self._blocks:
            kind = f"{CALL}{delta.type}"
            other = self._block(("call of another type", index), lambda _: GrowingOpaque(kind))[1]
            other.grow(without(raw, "index"))
        else:
            yield from self._call_function(index, delta)

    def _call_function(self, index: int, delta: CallDelta) -> tuple[Delta, ...]:
        _, call = self._block(("call", index), lambda place: GrowingCall(place, self._id or ""))
        return call.grow(delta)

    def _block(self, key: _Key, begin: Callable[[int], _Block]) -> tuple[int, _Block]:
        """The block of that key and its place; it begins where there is none yet."""
        if key not in self._blocks:
            self._blocks[key] = (len(self._blocks), begin(len(self._blocks)))
        return cast("tuple[int, _Block]", self._blocks[key])

    def reply(self) -> Reply:
        """Raises msgspec's errors where what came is no reply."""
        if self._id is None:
            raise msgspec.ValidationError("it ends before it began")
        content = tuple(block.finish() for block in self._told())
        return self._reply(content, self._stop_reason(content))

    def partial(self) -> Reply | None:
        if self._id is None:
            return None
        if self._finish_reason is not None:
            with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
                # Whole, only what it took was not told.
                return self.reply()
        return self._reply(self._salvaged(), "cancelled")

    def _salvaged(self) -> tuple[Block, ...]:
        content = [block for block in map(_salvage, self._told()) if block is not None]
        # What a model thought before an answer that never came cannot stand alone.
        while content and is_reasoning(content[-1]):
            content.pop()
        return tuple(content)

    def _told(self) -> Iterator[Growing]:
        has_details = any(isinstance(block, GrowingDetail) for _, block in self._blocks.values())
        return (block for _, block in self._blocks.values() if not (has_details and isinstance(block, GrowingThinking)))

    def _reply(self, content: tuple[Block, ...], stop_reason: StopReason) -> Reply:
        return Reply(content, stop_reason, self.usage, self._model, self._id or "")

    def _stop_reason(self, content: tuple[Block, ...]) -> StopReason:
        """A reason that we do not know must not pass for a turn that ended well."""
        if ("refusal", 0) in self._blocks:
            return "refusal"
        reason = STOP_REASONS.get(self._finish_reason, "error")
        if reason == "end_turn" and any(isinstance(block, ToolUse) for block in content):
            # Said of calls that the request had forced.
            return "tool_use"
        return reason


def _is_told(raw: msgspec.Raw) -> bool:
    return bytes(raw) != b"null"


def _salvage(block: Growing) -> Block | None:
    try:
        return block.salvage()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def read_reply(body: bytes, flavour: Flavour) -> Reply:
    fold = ChatFold(flavour)
    with readable("server_error", "the reply"):
        fold.take(body)
        if not fold.has_answer:
            raise msgspec.ValidationError("Expected at least one of `choices`")
        return fold.reply()
