"""What the blocks of a chat reply have become so far: each grows by deltas, and is a block at any time."""

from typing import Protocol

import msgspec

from holdfast.canonical.blocks import Block, Opaque, Text, Thinking, ToolUse
from holdfast.canonical.encoding import digest
from holdfast.canonical.reply import Delta, ToolUseDelta, ToolUseStarted
from holdfast.providers.arguments import legal_arguments
from holdfast.providers.members import put_together, quoted, read_string, take_apart
from holdfast.providers.openai_chat.reasoning import answered_detail

_ID_DIGEST_CHARS = 24

# Strings that a later delta can only repeat; every other one it continues.
_WHOLE = frozenset({"id", "type", "name", "format"})


class CallFunction(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: CallFunction | None = None


class Growing(Protocol):
    def finish(self) -> Block:
        """The block as it stands; msgspec's errors where it is none."""

    def salvage(self) -> Block | None:
        """The block if it can stand in a message although the reply was cut, else None."""


class GrowingText:
    def __init__(self) -> None:
        self._parts: list[str] = []

    def grow(self, text: str) -> None:
        self._parts.append(text)

    def finish(self) -> Block:
        return Text("".join(self._parts))

    def salvage(self) -> Block | None:
        return self.finish() if "".join(self._parts).strip() else None


class GrowingThinking(GrowingText):
    """Reasoning told as text alone; without a signature it cannot be sent back from a reply that was cut."""

    def finish(self) -> Block:
        return Thinking("".join(self._parts))

    def salvage(self) -> None:
        return None


class GrowingObject:
    """An object kept as the bytes it came in, or as its deltas add up: texts go on, all else is said anew."""

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._is_grown = False
        self._texts: dict[str, list[str]] = {}
        self._objects: dict[str, GrowingObject] = {}
        self._members: dict[str, bytes] = {}

    def grow(self, raw: bytes) -> None:
        self._is_grown = self._first is not None
        self._first = self._first or raw
        for name, value in take_apart(raw).items():
            if value.startswith(b'"') and name not in _WHOLE:
                self._texts.setdefault(name, []).append(read_string({name: value}, name))
            elif value.startswith(b"{"):
                self._objects.setdefault(name, GrowingObject()).grow(value)
            elif value == b"null" and name in self._members:
                continue
            self._members[name] = value

    def raw(self) -> bytes:
        if self._first is not None and not self._is_grown:
            return self._first
        grown = {name: quoted("".join(parts)) for name, parts in self._texts.items()}
        inner = {name: value.raw() for name, value in self._objects.items()}
        return put_together(self._members | grown | inner)


class GrowingDetail(GrowingObject):
    def finish(self) -> Block:
        return answered_detail(self.raw())

    def salvage(self) -> Block | None:
        block = self.finish()
        return None if isinstance(block, Thinking) and block.signature is None else block


class GrowingOpaque(GrowingObject):
    """What we only carry: a call of another type, a part or a member that we do not know."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def finish(self) -> Block:
        return Opaque(self._kind, self.raw())

    def salvage(self) -> None:
        return None


class GrowingList:
    """A member of the message that is a list, such as the images that it shows."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._raws: list[bytes] = []

    def grow(self, raw: bytes) -> None:
        self._raws.append(raw)

    def finish(self) -> Block:
        return Opaque(self._kind, b"[%b]" % b",".join(self._raws))

    def salvage(self) -> Block | None:
        return self.finish()


class GrowingCall:
    """`place` is that of its block; a call to which the provider gives no id gets one from the reply's."""

    def __init__(self, place: int, reply_id: str) -> None:
        self._place = place
        self._id = ""
        self._spare_id = "call_" + digest(f"{reply_id} {place}".encode(errors="replace"))[:_ID_DIGEST_CHARS]
        self._name = ""
        self._parts: list[str] = []

    def grow(self, delta: CallDelta) -> tuple[Delta, ...]:
        """A call starts when its name is known; what came of its arguments before that comes then."""
        function = delta.function or CallFunction()
        self._id = self._id or delta.id or ""
        part = function.arguments or ""
        if part:
            self._parts.append(part)
        if self._name or not function.name:
            return (ToolUseDelta(self._place, part),) if part and self._name else ()
        self._name, self._id = function.name, self._id or self._spare_id
        arguments = "".join(self._parts)
        started = ToolUseStarted(self._place, self._id, self._name)
        return (started, ToolUseDelta(self._place, arguments)) if arguments else (started,)

    def finish(self) -> Block:
        if not self._name:
            raise msgspec.ValidationError("a call without a name")
        arguments = "".join(self._parts)
        return ToolUse(self._id, self._name, legal_arguments(arguments) if arguments.strip() else "{}")

    def salvage(self) -> Block | None:
        """A JSON object says itself where it ends, so arguments that are one are whole."""
        arguments = "".join(self._parts)
        whole = self._name and arguments.strip() and legal_arguments(arguments) == arguments
        return self.finish() if whole else None
