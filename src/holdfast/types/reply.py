"""A model's response: content, stop reason and usage, complete or as a stream of deltas."""

from typing import Literal

import msgspec

from holdfast.types.blocks import Block
from holdfast.types.usage import Usage, clamp_token_count

REASON_CHARS_MAX = 80
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "cancelled", "error"]
ReplySource = Literal["provider", "completion-cache", "summary"]
DiagnosisOutcome = Literal["hit", "miss", "pending", "not_found", "unavailable"]
"""`pending`: the provider had not finished comparing. `not_found`: it no longer has the earlier request."""


class CacheDiagnosis(msgspec.Struct, frozen=True, omit_defaults=True):
    """`reason` is the provider's own word for a miss, `missed_tokens` the tokens that a hit would have read.

    A hit means that the prefix did not change. An entry whose TTL has expired is still not read.
    """

    outcome: DiagnosisOutcome
    reason: str = ""
    missed_tokens: int = 0


class Reply(msgspec.Struct, frozen=True):
    """`compaction_usage` is the part of `usage` that the provider spent on compacting the conversation first."""

    content: tuple[Block, ...]
    stop_reason: StopReason
    usage: Usage
    model: str = ""
    id: str = ""
    stop_sequence: str | None = None
    diagnosis: CacheDiagnosis | None = None
    compaction_usage: Usage | msgspec.UnsetType = msgspec.UNSET


class ReplyStarted(msgspec.Struct, frozen=True, tag_field="type", tag="message.start"):
    """The response has begun. From here on other requests can read the cache entries that this call wrote."""

    id: str
    model: str
    usage: Usage


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text.delta"):
    """A part of the text of a reply, as it arrives; `index` is the number of its block."""

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


def make_miss_diagnosis(reason: str, tokens: int | None) -> CacheDiagnosis:
    """A miss as the provider reported it, with its reason cut to length and its count clamped."""
    return CacheDiagnosis("miss", reason[:REASON_CHARS_MAX], clamp_token_count(tokens))
