"""A model's response: content, stop reason and usage, complete or as a stream of deltas."""

from typing import Literal

import msgspec

from holdfast.canonical.blocks import Block
from holdfast.canonical.diagnosis import Diagnosis
from holdfast.canonical.usage import Usage, without

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "cancelled", "error"]
ReplySource = Literal["provider", "completion-cache", "summary"]


class Reply(msgspec.Struct, frozen=True):
    """`compaction_usage` is the part of `usage` that the provider spent on compacting the conversation first."""

    content: tuple[Block, ...]
    stop_reason: StopReason
    usage: Usage
    model: str = ""
    id: str = ""
    stop_sequence: str | None = None
    diagnosis: Diagnosis | None = None
    compacting: Usage | msgspec.UnsetType = msgspec.UNSET

    @property
    def answering(self) -> Usage:
        """Usage of the response itself, without a compaction by the provider."""
        return self.usage if self.compacting is msgspec.UNSET else without(self.usage, self.compacting)


class ReplyStarted(msgspec.Struct, frozen=True, tag_field="type", tag="message.start"):
    """The response has begun. From here on other requests can read the cache entries that this call wrote."""

    id: str
    model: str
    usage: Usage


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text.delta"):
    index: int
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking.delta"):
    index: int
    text: str


class ToolUseStarted(msgspec.Struct, frozen=True, tag_field="type", tag="tool.use_start"):
    index: int
    id: str
    name: str


class ToolUseDelta(msgspec.Struct, frozen=True, tag_field="type", tag="tool.use_input_delta"):
    index: int
    json_part: str


class ReplyFinished(msgspec.Struct, frozen=True, tag_field="type", tag="message.complete"):
    reply: Reply


Delta = ReplyStarted | TextDelta | ThinkingDelta | ToolUseStarted | ToolUseDelta | ReplyFinished
