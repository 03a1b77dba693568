"""Asks OpenAI's chat streams for their usage, and takes the event with it out of the response again."""

import re

import msgspec

from holdfast.catalog.schema import Model
from holdfast.gateway.routes import Target

INCLUDE_USAGE = "include_usage"
EVENT_BYTES_MAX = 1024 * 1024
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_Members = dict[str, msgspec.Raw]


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[msgspec.Raw] | None = None
    usage: dict[str, msgspec.Raw] | None = None


def request_usage(target: Target, body: bytes, row: Model) -> bytes | None:
    """The body with `include_usage`; None if it is no chat stream, if the caller has set it, or at other hosts."""
    if target.adapter_name != "openai-chat" or target.provider not in ("openai", "openai-chat") or not row.prices:
        return None
    members = msgspec.json.decode(body, type=_Members)
    if bytes(members.get("stream", msgspec.Raw(b"false"))) != b"true":
        return None
    given = members.get("stream_options")
    options = msgspec.json.decode(given, type=_Members | None) if given is not None else None
    if options is not None and options.get(INCLUDE_USAGE) is not None:
        return None
    members["stream_options"] = msgspec.Raw(
        msgspec.json.encode({**(options or {}), INCLUDE_USAGE: msgspec.Raw(b"true")})
    )
    return msgspec.json.encode(members)


class UsageEventFilter:
    """Passes events on as soon as they are complete, but for the one that exists only because we asked for usage."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> tuple[bytes, ...]:
        data = self._rest + chunk
        passed: list[bytes] = []
        start = 0
        for end in _EVENT_END.finditer(data):
            event = data[start : end.end()]
            if not _has_only_usage(event):
                passed.append(event)
            start = end.end()
        self._rest = data[start:]
        if len(self._rest) > EVENT_BYTES_MAX:
            passed.append(self._rest)
            self._rest = b""
        return (b"".join(passed),) if passed else ()

    def flush(self) -> tuple[bytes, ...]:
        rest, self._rest = self._rest, b""
        return (rest,) if rest else ()


def _has_only_usage(event: bytes) -> bool:
    if b'"usage"' not in event:
        return False
    try:
        chunk = msgspec.json.decode(event.strip().removeprefix(b"data:"), type=_Chunk)
    except msgspec.MsgspecError:
        return False
    return chunk.choices == [] and chunk.usage is not None
