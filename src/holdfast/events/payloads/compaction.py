"""Compaction events: the log stays complete, only the view of it that is sent changes."""

from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.events.payloads import Payload
from holdfast.types.blocks import Role
from holdfast.types.usage import Usage

# `clear` replaces old tool results by one line each, `lossless` only those whose text is still in view later, by a
# pointer to it. `checkpoint` replaces messages by a summary; `seed` does so by the
# seed's rules.
CompactionStrategy = Literal["clear", "lossless", "checkpoint", "seed"]
CompactionTrigger = Literal["requested", "agent", "cache_expired", "money", "soft", "hard", "overflow"]


class CompactionNumbers(msgspec.Struct, frozen=True):
    """The numbers that a compaction was decided by. Tokens are calibrated estimates.

    The stable prefix comes before everything that changes, and stays. `cost_usd` is the one-time cost of writing the
    shorter prompt above reading the long one; `break_even_calls` is how many calls must follow to recover it, None if
    no number does.
    """

    prompt_tokens: int
    stable_prefix_tokens: int
    summary_tokens: int
    kept_tokens: int
    removed_tokens: int
    expected_calls: float
    cost_usd: Decimal = Decimal(0)
    saving_per_call_usd: Decimal = Decimal(0)
    break_even_calls: float | None = None
    is_cache_cold: bool = False


class SummarySegment(msgspec.Struct, frozen=True):
    """A part of the summary: facts extracted by rule, the LLM summary, or a note on how to continue."""

    kind: Literal["facts", "llm_summary", "note"]
    text: str


class ClearedResult(msgspec.Struct, frozen=True):
    """The text that replaces a tool's output from now on."""

    tool_use_id: str
    text: str


class ClearedImage(msgspec.Struct, frozen=True):
    """The text that replaces an image of a user message: the message's number, and the place of the block in it."""

    number: int
    index: int
    text: str


class ContextCompacted(Payload, frozen=True, tag="context.compacted"):
    """From here on the messages `first` to `last` of the log are shown differently; `digest` identifies the originals.

    The first `unchanged_blocks` blocks of the prompt are unchanged, and `cached_tokens` of them were cached up to a
    breakpoint of their own. `tokens_before` and `tokens_after` are estimates for the whole prompt. `cost_usd` is that
    of the LLM summary, whose call is on the log as well. `kept` are covered messages that stay in view after the
    summary, because files in progress are in them. `summary_tokens_max` is the budget of the
    summary, which later compactions of the session have at least.
    """

    strategy: CompactionStrategy
    trigger: CompactionTrigger
    epoch: int
    first: int
    last: int
    digest: str
    tokens_before: int
    tokens_after: int
    numbers: CompactionNumbers
    segments: tuple[SummarySegment, ...] = ()
    role: Role = "user"
    cleared: tuple[ClearedResult, ...] = ()
    thinking_dropped: bool = False
    unchanged_blocks: int = 0
    cached_tokens: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    notes: tuple[str, ...] = ()
    kept: tuple[int, ...] = ()
    summary_tokens_max: int = 0
    cleared_images: tuple[ClearedImage, ...] = ()


class CompactionRequested(Payload, frozen=True, tag="context.compaction_requested"):
    """The agent asked for a compaction. It happens before the next call at which the view may change.

    `keep` are files and messages that it wants to stay in view.
    """

    reason: str
    keep: tuple[str, ...] = ()


class CompactionUndone(Payload, frozen=True, tag="context.compaction_undone"):
    """From here on the view is as if the compaction with the event id `compaction_id` had not happened.

    The first `unchanged_blocks` blocks of the prompt are unchanged, and `cached_tokens` of them were cached up to a
    breakpoint of their own. With `thinking_dropped`, thinking since the compaction is dropped: it belongs to
    another prefix.
    """

    compaction_id: str
    epoch: int
    tokens_before: int
    tokens_after: int
    thinking_dropped: bool = False
    unchanged_blocks: int = 0
    cached_tokens: int = 0


class CompactionSkipped(Payload, frozen=True, tag="context.compaction_skipped"):
    """A compaction was due but would not help.

    It is tried again after some calls, or if `is_final` after the next user message.
    """

    trigger: CompactionTrigger
    reason: str
    numbers: CompactionNumbers
    is_final: bool = False


class SkillReleased(Payload, frozen=True, tag="skill.released"):
    """A skill body left the conversation: it can be loaded again, and its token budget is free."""

    skill_id: str
    tool_use_id: str | None
    load_size_tokens: int
