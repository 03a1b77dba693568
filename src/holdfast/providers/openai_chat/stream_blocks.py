"""Blocks of a streamed Chat Completions response, accumulated from deltas."""

from typing import Protocol

import msgspec

from holdfast.providers.json_splice import (
    encode_string,
    get_string_member,
    join_object,
    make_valid_arguments,
    split_object,
)
from holdfast.providers.openai_chat.parts import decode_response_detail
from holdfast.types.blocks import Block, Opaque, Text, Thinking, ToolUse
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.reply import Delta, ToolUseDelta, ToolUseStarted

_ID_DIGEST_CHARS = 24

# String members that later deltas repeat; deltas of any other string member are appended.
_REPEATED_MEMBERS = frozenset({"id", "type", "name", "format"})


class CallFunction(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: CallFunction | None = None


class ChatBlockAccumulator(Protocol):
    def finish(self) -> Block:
        """The block so far; raises msgspec's errors if it is not valid yet."""

    def salvage(self) -> Block | None:
        """The block if it is valid in a message although the response was interrupted, else None."""


class TextAccumulator:
    def __init__(self) -> None:
        self._parts: list[str] = []

    def apply_delta(self, text: str) -> None:
        self._parts.append(text)

    def finish(self) -> Block:
        return Text("".join(self._parts))

    def salvage(self) -> Block | None:
        return self.finish() if "".join(self._parts).strip() else None


class ThinkingAccumulator(TextAccumulator):
    """Reasoning as plain text. Without a signature it cannot be sent back after an interrupted response."""

    def finish(self) -> Block:
        return Thinking("".join(self._parts))

    def salvage(self) -> None:
        return None


class ObjectAccumulator:
    """An object carried as its bytes, or merged from deltas: strings are appended, other values replaced."""

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._is_merged = False
        self._texts: dict[str, list[str]] = {}
        self._objects: dict[str, ObjectAccumulator] = {}
        self._members: dict[str, bytes] = {}

    def apply_delta(self, raw: bytes) -> None:
        self._is_merged = self._first is not None
        self._first = self._first or raw
        for name, value in split_object(raw).items():
            if value.startswith(b'"') and name not in _REPEATED_MEMBERS:
                self._texts.setdefault(name, []).append(get_string_member({name: value}, name))
            elif value.startswith(b"{"):
                self._objects.setdefault(name, ObjectAccumulator()).apply_delta(value)
            elif value == b"null" and name in self._members:
                continue
            self._members[name] = value

    def raw(self) -> bytes:
        if self._first is not None and not self._is_merged:
            return self._first
        texts = {name: encode_string("".join(parts)) for name, parts in self._texts.items()}
        objects = {name: value.raw() for name, value in self._objects.items()}
        return join_object(self._members | texts | objects)


class ReasoningDetailAccumulator(ObjectAccumulator):
    def finish(self) -> Block:
        return decode_response_detail(self.raw())

    def salvage(self) -> Block | None:
        block = self.finish()
        return None if isinstance(block, Thinking) and block.signature is None else block


class OpaqueAccumulator(ObjectAccumulator):
    """A block that is only carried: a call of another type, or a part or member that we do not know."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def finish(self) -> Block:
        return Opaque(self._kind, self.raw())

    def salvage(self) -> None:
        return None


class ListAccumulator:
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


class CallAccumulator:
    """`index` is that of its block. A call without an id gets one derived from the response's id."""

    def __init__(self, index: int, reply_id: str) -> None:
        self._index = index
        self._id = ""
        self._fallback_id = "call_" + sha256_hex(f"{reply_id} {index}".encode(errors="replace"))[:_ID_DIGEST_CHARS]
        self._name = ""
        self._parts: list[str] = []

    def apply_delta(self, delta: CallDelta) -> tuple[Delta, ...]:
        """A call is reported as started once its name is known, with the arguments received so far."""
        function = delta.function or CallFunction()
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
