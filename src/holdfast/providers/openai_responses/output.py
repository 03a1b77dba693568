"""Decodes the output items of a response, complete or accumulated from deltas."""

from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import Block, Opaque, Text, Thinking, ToolUse
from holdfast.providers.members import read_string, take_apart
from holdfast.providers.openai_responses.items import read_arguments, read_item
from holdfast.providers.openai_responses.parts import OUTPUT_KINDS, read_output
from holdfast.providers.openai_responses.reasoning import SEPARATOR, read_reasoning


class Output(msgspec.Struct, frozen=True):
    """`is_refusal`: a part is the model's refusal."""

    blocks: tuple[Block, ...]
    refused: bool = False


def read_output_item(raw: bytes) -> Output:
    """Raises msgspec's errors. Metadata of a message, such as its phase, is dropped."""
    members = take_apart(raw)
    match read_string(members, "type"):
        case "message":
            return _decode_message(raw, members)
        case "reasoning":
            return Output((read_reasoning(members) or Opaque("reasoning", raw),))
        case _:
            return Output(read_item(raw).blocks)


def _decode_message(raw: bytes, members: Mapping[str, bytes]) -> Output:
    blocks: list[Block] = []
    refused = False
    for part in msgspec.json.decode(members.get("content", b"[]"), type=tuple[msgspec.Raw, ...]):
        block = read_output(bytes(part))
        if isinstance(block, Opaque) and block.kind == "refusal":
            refused = True
            block = Text(read_string(take_apart(block.raw), "refusal"))
        if isinstance(block, Opaque) and block.kind not in OUTPUT_KINDS:
            # A part of another type can only be sent back together with its message.
            return Output((Opaque("message", raw),), refused)
        blocks.append(block)
    return Output(tuple(blocks), refused)


class GrowingItem:
    """An item from its first event on. Its `done` event replaces what was accumulated."""

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
        """Append text to a part; returns what that adds to the joined text of all parts."""
        starts_summary = self.kind == "reasoning" and part not in self._texts and bool(self._texts)
        self._texts.setdefault(part, []).append(text)
        return SEPARATOR + text if starts_summary else text

    def grow_arguments(self, json_part: str) -> None:
        self._arguments.append(json_part)

    def finish(self, raw: bytes) -> Output:
        self._done = read_output_item(raw)
        return self._done

    def output(self) -> Output:
        return self._done if self._done is not None else self._accumulated()

    def _accumulated(self) -> Output:
        """What has arrived of an item without a `done` event."""
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
        """The blocks that are valid in a message although the response was interrupted."""
        return tuple(block for block in self.output().blocks if self._is_valid(block))

    def _is_valid(self, block: Block) -> bool:
        match block:
            case Text(text=text):
                return bool(text.strip())
            case Thinking(signature=signature):
                return signature is not None
            case _:
                return self.done
