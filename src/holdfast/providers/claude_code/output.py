"""What a command prints: one JSON object a line, the last one with the result and the usage."""

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
    # The command has run its tools itself; what it prints is the end of it.
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


_KNOWN = ("system", "assistant", "result")


class CommandOutputReader:
    """Lines of other kinds than those that are known say nothing to us."""

    def __init__(self, *, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._unread = bytearray()
        self._started: ReplyStarted | None = None
        self._said: list[str] = []
        self._finished = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        self._unread += chunk
        return self._deltas()

    def partial(self) -> Reply | None:
        """What has been said, as far as it came; the usage is printed last and so is not known yet."""
        if self._started is None:
            return None
        text = "\n\n".join(self._said)
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
            # Lines of other kinds may have anything in them.
            read = msgspec.json.decode(line, type=_Line) if kind in _KNOWN else _Line()
        if self._started is None:
            self._started = ReplyStarted(read.session_id or "", read.model or "", Usage())
            yield self._started
        if read.type == "assistant" and read.message is not None:
            said = read.message.content
            for part in (_Part("text", said),) if isinstance(said, str) else said:
                if part.type == "text" and part.text:
                    self._said.append(part.text)
                    yield TextDelta(len(self._said) - 1, part.text)
        if read.type == "result":
            self._finished = True
            yield ReplyFinished(_reply(read, self._started))


def _reply(line: _Line, started: ReplyStarted) -> Reply:
    if line.is_error or (line.subtype or "").startswith("error"):
        reason = one_line(line.result or line.subtype or "") or "it gave no reason"
        raise ProviderError("other", f"the command reported a failure: {reason}")
    content = (Text(line.result),) if line.result else ()
    # A reason that we do not know must not pass for a turn that ended well.
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
    opening = {"type": "system", "subtype": "init", "session_id": reply.id, "model": reply.model}
    yield plain_json(opening) + b"\n"
    text = text_of(reply.content)
    if text:
        part = {"type": "text", "text": mend_surrogates(text)}
        said = {"type": "assistant", "message": {"model": reply.model, "role": "assistant", "content": [part]}}
        yield plain_json(said) + b"\n"
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
