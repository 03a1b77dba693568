"""Gemini's responses: decodes them, complete or streamed, with one fold, and encodes replies in their format."""

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from holdfast.providers.errors import decoding_errors
from holdfast.providers.gemini.encode import lower_gemini_entry
from holdfast.providers.gemini.errors import decode_gemini_stream_error
from holdfast.providers.gemini.parts import decode_gemini_part, encode_gemini_parts
from holdfast.providers.json_splice import encode_string, make_valid_arguments
from holdfast.providers.sse import ServerSentEvent, encode_event, split_into_deltas
from holdfast.types.blocks import THINKING_TYPES, Block, Opaque, Text, Thinking, ToolUse
from holdfast.types.json_encoding import encode_json, sha256_hex
from holdfast.types.prompt import HistoryEntry
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
from holdfast.types.usage import Usage, clamp_token_count

STOP_REASONS: dict[str, StopReason] = {
    "STOP": "end_turn",
    "MAX_TOKENS": "max_tokens",
    # The response could be continued with a token; we treat it as cut off by its limit.
    "CONTINUATION": "max_tokens",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "LANGUAGE": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "IMAGE_SAFETY": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
}

_ID_CHARS = 12

_REASONS: dict[StopReason, bytes] = {
    "end_turn": b"STOP",
    "tool_use": b"STOP",
    "stop_sequence": b"STOP",
    "max_tokens": b"MAX_TOKENS",
    "refusal": b"SAFETY",
    "error": b"OTHER",
}


class _Content(msgspec.Struct, frozen=True):
    parts: tuple[msgspec.Raw, ...] | None = None


class _Candidate(msgspec.Struct, frozen=True, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    index: int | None = None


class _Feedback(msgspec.Struct, frozen=True, rename="camel"):
    block_reason: str | None = None


class GeminiUsage(msgspec.Struct, frozen=True, rename="camel"):
    """The provider's own counters; None if missing. `promptTokenCount` includes cached tokens."""

    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


class _Chunk(msgspec.Struct, frozen=True, rename="camel"):
    candidates: tuple[_Candidate, ...] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: GeminiUsage | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _OpenBlock:
    """Text or thinking to which the next part may be appended; signed text is never extended."""

    def __init__(self, kind: type[Text] | type[Thinking], text: str, *, closed: bool = False) -> None:
        self.kind = kind
        self.texts = [text]
        self.signature: str | None = None
        self.closed = closed

    def finish(self) -> Block:
        text = "".join(self.texts)
        return Text(text) if self.kind is Text else Thinking(text, self.signature)


class GeminiReplyFold:
    """Takes the chunks of a response in order. Raises msgspec's errors for malformed ones."""

    def __init__(self) -> None:
        self._started = False
        self._id = ""
        self._model = ""
        self._usage = Usage()
        self._blocks: list[_OpenBlock | Block] = []
        self._reason: str | None = None
        self._blocked = False
        self.is_finished = False

    def take_event(self, event: ServerSentEvent) -> tuple[Delta, ...]:
        """A stream has no end event: the chunk with the finish reason is the last."""
        return _take(self, event.data, "an event of the stream")

    def take(self, chunk: _Chunk) -> Iterator[Delta]:
        self._id = chunk.response_id or self._id
        self._model = chunk.model_version or self._model
        if chunk.usage_metadata is not None:
            self._usage = gemini_usage_buckets(chunk.usage_metadata)
        if not self._started:
            self._started = True
            yield ReplyStarted(self._id, self._model, self._usage)
        # Only the first candidate: others would be alternative responses, which we never request.
        candidate = next((option for option in chunk.candidates or () if not option.index), None)
        if candidate is not None:
            for raw in (candidate.content.parts if candidate.content else None) or ():
                yield from self._add(bytes(raw))
            self._reason = candidate.finish_reason or self._reason
        elif chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason:
            self._blocked = True
        if self._reason or self._blocked:
            self.is_finished = True
            yield ReplyFinished(self.reply())

    def _add(self, raw: bytes) -> Iterator[Delta]:
        block, signature = decode_gemini_part(raw)
        if signature is not None:
            self._sign(signature)
        match block:
            case Text(text="") | Thinking(text="") | Opaque(kind=""):
                pass
            case Text(text=text):
                self._grow(Text, text, closed=signature is not None)
                yield TextDelta(len(self._blocks) - 1, text)
            case Thinking(text=text):
                self._grow(Thinking, text)
                yield ThinkingDelta(len(self._blocks) - 1, text)
            case ToolUse(id=id, name=name, arguments_json=arguments):
                index = len(self._blocks)
                call = ToolUse(id or self._new_id(name), name, make_valid_arguments(arguments))
                self._blocks.append(call)
                yield ToolUseStarted(index, call.id, name)
                yield ToolUseDelta(index, call.arguments_json)
            case _:
                self._blocks.append(block)

    def _sign(self, signature: str) -> None:
        last = self._blocks[-1] if self._blocks else None
        if not isinstance(last, _OpenBlock) or last.kind is Text or last.closed:
            last = _OpenBlock(Thinking, "")
            self._blocks.append(last)
        last.signature, last.closed = signature, True

    def _grow(self, kind: type[Text] | type[Thinking], text: str, *, closed: bool = False) -> None:
        last = self._blocks[-1] if self._blocks else None
        if isinstance(last, _OpenBlock) and last.kind is kind and not last.closed and not closed:
            last.texts.append(text)
        else:
            self._blocks.append(_OpenBlock(kind, text, closed=closed))

    def _new_id(self, name: str) -> str:
        """Starts with the name, because a result must repeat it; the rest is unique as long as responses have ids."""
        return f"{name}-{sha256_hex(f'{self._id}/{len(self._blocks)}'.encode())[:_ID_CHARS]}"

    def _content(self) -> tuple[Block, ...]:
        return tuple(block.finish() if isinstance(block, _OpenBlock) else block for block in self._blocks)

    def reply(self) -> Reply:
        return self._reply(self._content(), self._stop_reason())

    def partial(self) -> Reply | None:
        if not self._started:
            return None
        if self.is_finished:
            return self.reply()
        content = [block for block in self._content() if not isinstance(block, Text) or block.text.strip()]
        # Thinking without the output it led to cannot be sent back.
        while content and isinstance(content[-1], THINKING_TYPES):
            content.pop()
        return self._reply(tuple(content), "cancelled")

    def _stop_reason(self) -> StopReason:
        """An unknown reason must not pass for a turn that ended normally."""
        if self._blocked:
            return "refusal"
        reason = STOP_REASONS.get(self._reason or "", "error")
        has_calls = any(isinstance(block, ToolUse) for block in self._blocks)
        return "tool_use" if reason == "end_turn" and has_calls else reason

    def _reply(self, content: tuple[Block, ...], stop_reason: StopReason) -> Reply:
        return Reply(content, stop_reason, self._usage, self._model, self._id)


def decode_gemini_reply(body: bytes) -> Reply:
    fold = GeminiReplyFold()
    _take(fold, body, "the reply")
    return fold.reply()


def _take(fold: GeminiReplyFold, raw: bytes, subject: str) -> tuple[Delta, ...]:
    with decoding_errors("server_error", subject):
        # msgspec.Raw fields are not checked for valid UTF-8, so the whole chunk is checked here.
        raw.decode()
        chunk = _decode_chunk(raw)
        if bytes(chunk.error) == b"null":
            return tuple(fold.take(chunk))
    raise decode_gemini_stream_error(raw)


def gemini_usage_buckets(wire: GeminiUsage) -> Usage:
    prompt = clamp_token_count(wire.prompt_token_count)
    # Thoughts count as output; tool results that Gemini inserted itself count as input.
    cached = min(clamp_token_count(wire.cached_content_token_count), prompt)
    return Usage(
        input=prompt - cached + clamp_token_count(wire.tool_use_prompt_token_count),
        cache_read=cached,
        output=clamp_token_count(wire.candidates_token_count) + clamp_token_count(wire.thoughts_token_count),
    )


def encode_gemini_usage(usage: Usage) -> dict[str, int]:
    """Like the provider, leaves out the cached count if it is 0."""
    cached = {"cachedContentTokenCount": usage.cache_read} if usage.cache_read else {}
    return {
        "promptTokenCount": usage.tokens_sent,
        **cached,
        "candidatesTokenCount": usage.output,
        "totalTokenCount": usage.tokens_sent + usage.output,
    }


def encode_gemini_reply(reply: Reply) -> bytes:
    return _encode_chunk(reply, b",".join(encode_gemini_parts(_lowered_content(reply))), last=True)


def encode_gemini_stream(reply: Reply) -> Iterator[bytes]:
    """One part per chunk; the last chunk has the finish reason and the usage."""
    parts = list(encode_gemini_parts(tuple(_split_text(_lowered_content(reply))))) or [b""]
    for part in parts[:-1]:
        yield encode_event(_encode_chunk(reply, part, last=False))
    yield encode_event(_encode_chunk(reply, parts[-1], last=True))


def _lowered_content(reply: Reply) -> tuple[Block, ...]:
    lowered = lower_gemini_entry(HistoryEntry("assistant", reply.content))
    return lowered.content if lowered else ()


def _split_text(content: tuple[Block, ...]) -> Iterator[Block]:
    """Split text into several blocks, except where it is signed: a signature covers the whole part that it is on."""
    for previous, block in pairwise((None, *content)):
        match block:
            case Text(text=text) if not (isinstance(previous, Thinking) and previous.signature):
                yield from map(Text, split_into_deltas(text))
            case Thinking(text=text, signature=signature) if text:
                *first, last = split_into_deltas(text)
                yield from map(Thinking, first)
                yield Thinking(last, signature)
            case None:
                pass
            case _:
                yield block


def _encode_chunk(reply: Reply, parts: bytes, *, last: bool) -> bytes:
    reason = _REASONS.get(reply.stop_reason) if last else None
    finish = b"" if reason is None else b',"finishReason":"%b"' % reason
    # In a stream Gemini sends the usage in the last chunk.
    usage = b'"usageMetadata":%b,' % encode_json(encode_gemini_usage(reply.usage)) if last else b""
    return (
        b'{"candidates":[{"content":{"role":"model","parts":[%b]}%b,"index":0}],%b"modelVersion":%b,"responseId":%b}'
    ) % (parts, finish, usage, encode_string(reply.model), encode_string(reply.id))
