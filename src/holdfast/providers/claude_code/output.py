"""Decodes the command's output (`stream-json`): one JSON object per line, the last with result and usage."""

from collections.abc import Iterator

import msgspec

from holdfast.canonical.blocks import Text, mend_surrogates, text_of
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.reply import Delta, Reply, ReplyFinished, ReplyStarted, StopReason, TextDelta
from holdfast.canonical.usage import Usage
from holdfast.errors import ProviderError
from holdfast.providers.anthropic.usage import WireUsage, buckets, wire_usage
from holdfast.providers.failures import one_line, readable

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
    usage: WireUsage | None = None


_DECODED_TYPES = ("system", "assistant", "result")


class CommandOutputReader:
    """Ignores lines of other types than those it decodes."""

    def __init__(self, *, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
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
        if len(self._unread) > self._line_bytes_max:
            raise ProviderError("server_error", f"the command printed a line of over {self._line_bytes_max} bytes")

    def _take(self, line: bytes) -> Iterator[Delta]:
        with readable("server_error", "what the command printed"):
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
        reason = one_line(line.result or line.subtype or "") or "it gave no reason"
        raise ProviderError("other", f"the command reported a failure: {reason}")
    content = (Text(line.result),) if line.result else ()
    # An unknown reason must not pass for a turn that ended normally.
    stop_reason = _STOP_REASONS.get(line.stop_reason, "error")
    usage = buckets(line.usage) if line.usage else Usage()
    return Reply(content, stop_reason, usage, line.model or started.model, line.session_id or started.id)


def read_reply(body: bytes) -> Reply:
    reader = CommandOutputReader()
    for delta in reader.feed(body + b"\n"):
        if isinstance(delta, ReplyFinished):
            return delta.reply
    raise ProviderError("server_error", "the command ended without a result")


def write_reply(reply: Reply) -> bytes:
    return _line(reply) + b"\n"


def write_stream(reply: Reply) -> Iterator[bytes]:
    init = {"type": "system", "subtype": "init", "session_id": reply.id, "model": reply.model}
    yield plain_json(init) + b"\n"
    text = text_of(reply.content)
    if text:
        part = {"type": "text", "text": mend_surrogates(text)}
        assistant = {"type": "assistant", "message": {"model": reply.model, "role": "assistant", "content": [part]}}
        yield plain_json(assistant) + b"\n"
    yield _line(reply) + b"\n"


def _line(reply: Reply) -> bytes:
    return plain_json(
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": mend_surrogates(text_of(reply.content)),
            "stop_reason": reply.stop_reason,
            "session_id": reply.id,
            "model": reply.model,
            "usage": wire_usage(reply.usage, output=reply.usage.output),
        }
    )
