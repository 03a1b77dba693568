"""What an item of a reply says, whole or as it grows."""

from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import Block, Opaque, Text, Thinking, ToolUse
from holdfast.providers.members import read_string, take_apart
from holdfast.providers.openai_responses.items import read_arguments, read_item
from holdfast.providers.openai_responses.parts import OUTPUT_KINDS, read_output
from holdfast.providers.openai_responses.reasoning import SEPARATOR, read_reasoning


class Output(msgspec.Struct, frozen=True):
    """`refused` where a part says that the model will not answer."""

    blocks: tuple[Block, ...]
    refused: bool = False


def read_output_item(raw: bytes) -> Output:
    """Raises msgspec's errors. How a message came about, such as its phase, is not kept with its text."""
    members = take_apart(raw)
    match read_string(members, "type"):
        case "message":
            return _read_message(raw, members)
        case "reasoning":
            return Output((read_reasoning(members) or Opaque("reasoning", raw),))
        case _:
            return Output(read_item(raw).blocks)


def _read_message(raw: bytes, members: Mapping[str, bytes]) -> Output:
    blocks: list[Block] = []
    refused = False
    for part in msgspec.json.decode(members.get("content", b"[]"), type=tuple[msgspec.Raw, ...]):
        said = read_output(bytes(part))
        if isinstance(said, Opaque) and said.kind == "refusal":
            refused = True
            said = Text(read_string(take_apart(said.raw), "refusal"))
        if isinstance(said, Opaque) and said.kind not in OUTPUT_KINDS:
            # A part of another kind could not be sent back but with the message around it.
            return Output((Opaque("message", raw),), refused)
        blocks.append(said)
    return Output(tuple(blocks), refused)


class GrowingItem:
    """An item from its first event on. Once it is done, what it was told as counts, and not what grew."""

    def __init__(self, raw: bytes) -> None:
        members = take_apart(raw)
        self._raw = raw
        self._done: Output | None = None
        self._texts: dict[int, list[str]] = {}
        self._arguments: list[str] = []
        self.kind = read_string(members, "type")
        is_call = self.kind == "function_call"
        self.call_id = read_string(members, "call_id") if is_call else ""
        self.name = read_string(members, "name") if is_call else ""

    @property
    def done(self) -> bool:
        return self._done is not None

    def grow_text(self, part: int, text: str) -> str:
        """Take text in for that part; what it adds to all of them, read one after the other."""
        apart = self.kind == "reasoning" and part not in self._texts and bool(self._texts)
        self._texts.setdefault(part, []).append(text)
        return SEPARATOR + text if apart else text

    def grow_arguments(self, json_part: str) -> None:
        self._arguments.append(json_part)

    def finish(self, raw: bytes) -> Output:
        self._done = read_output_item(raw)
        return self._done

    def output(self) -> Output:
        return self._done if self._done is not None else self._grown()

    def _grown(self) -> Output:
        """What there is of an item that never was done."""
        texts = ["".join(self._texts[part]) for part in sorted(self._texts)]
        match self.kind:
            case "message":
                return Output(tuple(map(Text, texts)))
            case "reasoning":
                return Output((Thinking(SEPARATOR.join(texts)),))
            case "function_call":
                return Output((ToolUse(self.call_id, self.name, read_arguments("".join(self._arguments))),))
            case _:
                return Output((Opaque(self.kind, self._raw),))

    def salvage(self) -> tuple[Block, ...]:
        """The blocks that can stand in a message although the reply was cut."""
        return tuple(block for block in self.output().blocks if self._can_stand(block))

    def _can_stand(self, block: Block) -> bool:
        match block:
            case Text(text=text):
                return bool(text.strip())
            case Thinking(signature=signature):
                return signature is not None
            case _:
                return self.done
