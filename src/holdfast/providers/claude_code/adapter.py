"""The `Adapter` for Claude Code: Anthropic's format without breakpoints, because the command places its own."""

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Adapter, Endpoint
from holdfast.providers.anthropic import anthropic
from holdfast.providers.anthropic.response import AnthropicUsage, anthropic_usage_buckets, encode_anthropic_usage
from holdfast.providers.errors import decoding_errors, sanitize_message
from holdfast.types.blocks import Text, join_text_blocks, replace_surrogates
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Parameters, Segment, Ttl
from holdfast.types.reply import Delta, Reply, ReplyFinished, ReplyStarted, StopReason, TextDelta
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.usage import Usage

LINE_BYTES_MAX = 16 * 1024 * 1024

_STOP_REASONS: dict[str | None, StopReason] = {
    None: "end_turn",
    "end_turn": "end_turn",
    "stop_sequence": "stop_sequence",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
    # The command runs its tools itself, so its result ends the turn.
    "tool_use": "end_turn",
}

_DECODED_TYPES = ("system", "assistant", "result")


class _Part(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""


class _Message(msgspec.Struct, frozen=True):
    content: str | tuple[_Part, ...] = ()


class _Kind(msgspec.Struct, frozen=True):
    type: str = ""


class _Line(msgspec.Struct, frozen=True):
    type: str = ""
    session_id: str | None = None
    model: str | None = None
    message: _Message | None = None
    result: str | None = None
    is_error: bool = False
    subtype: str | None = None
    stop_reason: str | None = None
    usage: AnthropicUsage | None = None


class ClaudeCodeAdapter(Adapter):
    name = "claude-code"

    lower_entry = staticmethod(anthropic.lower_entry)
    separator = staticmethod(anthropic.separator)
    suffix = staticmethod(anthropic.suffix)
    request_head = staticmethod(anthropic.request_head)
    decode_request = staticmethod(anthropic.decode_request)
    encode_error = staticmethod(anthropic.encode_error)
    decode_error = staticmethod(anthropic.decode_error)

    def encode_segment(self, segment: Segment) -> tuple[EncodedBlock, ...]:
        blocks = anthropic.encode_segment(segment)
        return tuple(msgspec.structs.replace(block, accepts_breakpoint=False) for block in blocks)

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        raise UserError(f"{self.name} does its own caching and accepts no breakpoints")

    def endpoint(self, parameters: Parameters) -> Endpoint:
        """A command has no address, and it chooses its betas itself."""
        return Endpoint("/", ())

    def credentials(self, api_key: str) -> Mapping[str, str]:
        """None: the command has its own credentials."""
        return {}

    def encode_reply(self, reply: Reply) -> bytes:
        text = replace_surrogates(join_text_blocks(reply.content))
        line = {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": text,
            "stop_reason": reply.stop_reason,
            "session_id": reply.id,
            "model": reply.model,
            "usage": encode_anthropic_usage(reply.usage, output=reply.usage.output),
        }
        return encode_json(line) + b"\n"

    def decode_reply(self, body: bytes) -> Reply:
        for delta in CommandOutputReader().feed(body + b"\n"):
            if isinstance(delta, ReplyFinished):
                return delta.reply
        raise ProviderError("server_error", "the command ended without a result")

    def encode_stream(self, reply: Reply) -> Iterator[bytes]:
        init = {"type": "system", "subtype": "init", "session_id": reply.id, "model": reply.model}
        yield encode_json(init) + b"\n"
        if text := join_text_blocks(reply.content):
            part = {"type": "text", "text": replace_surrogates(text)}
            message = {"model": reply.model, "role": "assistant", "content": [part]}
            yield encode_json({"type": "assistant", "message": message}) + b"\n"
        yield self.encode_reply(reply)

    def make_stream_decoder(self) -> "CommandOutputReader":
        return CommandOutputReader()


class CommandOutputReader:
    """Ignores lines of other types than those it decodes."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._started: ReplyStarted | None = None
        self._texts: list[str] = []
        self._finished = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        self._unread += chunk
        return self._deltas()

    def partial(self) -> Reply | None:
        """The text so far. The usage is printed last, so it is not known yet."""
        if self._started is None:
            return None
        text = "\n\n".join(self._texts)
        content = (Text(text),) if text.strip() else ()
        return Reply(content, "cancelled", Usage(), self._started.model, self._started.id)

    def _deltas(self) -> Iterator[Delta]:
        while (end := self._unread.find(b"\n")) >= 0:
            line = bytes(self._unread[:end])
            del self._unread[: end + 1]
            if line.strip() and not self._finished:
                yield from self._take(line)
        if len(self._unread) > LINE_BYTES_MAX:
            raise ProviderError("server_error", f"the command printed a line of over {LINE_BYTES_MAX} bytes")

    def _take(self, line: bytes) -> Iterator[Delta]:
        with decoding_errors("server_error", "what the command printed"):
            kind = msgspec.json.decode(line, type=_Kind).type
            # Lines of other types may have any fields.
            decoded = msgspec.json.decode(line, type=_Line) if kind in _DECODED_TYPES else _Line()
        if self._started is None:
            self._started = ReplyStarted(decoded.session_id or "", decoded.model or "", Usage())
            yield self._started
        if decoded.type == "assistant" and decoded.message is not None:
            content = decoded.message.content
            for part in (_Part("text", content),) if isinstance(content, str) else content:
                if part.type == "text" and part.text:
                    self._texts.append(part.text)
                    yield TextDelta(len(self._texts) - 1, part.text)
        if decoded.type == "result":
            self._finished = True
            yield ReplyFinished(_reply(decoded, self._started))


def _reply(line: _Line, started: ReplyStarted) -> Reply:
    if line.is_error or (line.subtype or "").startswith("error"):
        reason = sanitize_message(line.result or line.subtype or "") or "it gave no reason"
        raise ProviderError("other", f"the command reported a failure: {reason}")
    content = (Text(line.result),) if line.result else ()
    # An unknown reason must not pass for a turn that ended normally.
    stop_reason = _STOP_REASONS.get(line.stop_reason, "error")
    usage = anthropic_usage_buckets(line.usage) if line.usage else Usage()
    return Reply(content, stop_reason, usage, line.model or started.model, line.session_id or started.id)
