"""A content block of a streamed response, accumulated from its start event and its deltas."""

import msgspec

from holdfast.canonical.blocks import Block, Opaque, Text, Thinking, ToolUse
from holdfast.providers.anthropic.blocks import is_blank, read_block
from holdfast.providers.arguments import legal_arguments
from holdfast.providers.members import put_together, quoted, read_string, spliced, take_apart

_TEXT_FIELDS = {"text_delta": "text", "thinking_delta": "thinking"}


class GrowingBlock:
    def __init__(self, start: bytes) -> None:
        self._start = start
        self._members = take_apart(start)
        self.kind = read_string(self._members, "type")
        self.stopped = False
        self._texts: dict[str, list[str]] = {}
        self._replaced: dict[str, bytes] = {}
        self._citations: list[bytes] = []
        self._arguments: list[str] = []

    def text_at_start(self, name: str) -> str:
        """A string field of the start event; empty if missing."""
        return msgspec.json.decode(self._members.get(name, b"null"), type=str | None) or ""

    def grow(self, delta: dict[str, bytes]) -> str:
        """Apply one delta; returns the text that it added."""
        kind = read_string(delta, "type")
        match kind:
            case "text_delta" | "thinking_delta":
                text = read_string(delta, _TEXT_FIELDS[kind])
                self._texts.setdefault(_TEXT_FIELDS[kind], []).append(text)
                return text
            case "input_json_delta":
                part = read_string(delta, "partial_json")
                self._arguments.append(part)
                return part
            case "signature_delta":
                self._replaced["signature"] = quoted(read_string(delta, "signature"))
            case "citations_delta":
                self._citations.append(delta.get("citation", b"null"))
            case _:
                self._apply_unknown(delta)
        return ""

    def _apply_unknown(self, delta: dict[str, bytes]) -> None:
        """Append strings to their field; let any other value replace it."""
        for name, value in delta.items():
            if value.startswith(b'"') and name != "type":
                self._texts.setdefault(name, []).append(read_string(delta, name))
            elif name != "type" and value != b"null":
                self._replaced[name] = value

    def finish(self) -> Block:
        """The block so far."""
        arguments = "".join(self._arguments)
        raw = self._start
        if self._texts or self._replaced or self._citations or arguments.strip():
            raw = put_together(self._accumulated(arguments))
        block = read_block(raw)[0]
        if isinstance(block, ToolUse) and arguments.strip():
            # From the deltas and not from the decoded JSON, which loses white space around the value: the bytes must
            # match what the provider cached.
            return ToolUse(block.id, block.name, legal_arguments(arguments))
        if isinstance(block, Thinking) and not block.signature:
            return Thinking(block.text)
        return block

    def _accumulated(self, arguments: str) -> dict[str, bytes]:
        members = self._members | self._replaced
        for name, parts in self._texts.items():
            members[name] = quoted(self.text_at_start(name) + "".join(parts))
        if self._citations:
            citations = msgspec.json.decode(members.get("citations", b"null"), type=list[msgspec.Raw] | None)
            members["citations"] = b"[%b]" % b",".join([*map(bytes, citations or ()), *self._citations])
        if arguments.strip():
            members["input"] = spliced(legal_arguments(arguments))
        return members

    def salvage(self) -> Block | None:
        """The block if it is valid in a message although the response was interrupted, else None."""
        try:
            block = self.finish()
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        match block:
            case Text(text=text):
                return None if is_blank(text) else block
            case Thinking(signature=None):
                # The provider refuses thinking without its signature.
                return None
            case Opaque() | ToolUse():
                return block if self.stopped else None
            case _:
                return block
