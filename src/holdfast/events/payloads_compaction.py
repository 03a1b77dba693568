"""What happens when a conversation is made shorter: the log stays, and the view of it changes."""

from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.canonical.blocks import Role
from holdfast.canonical.usage import Usage
from holdfast.events.payload import Payload

Strategy = Literal["clear", "checkpoint", "seed"]
"""`clear`: old tool results give way to a line each. `checkpoint`: a record stands for what was said. `seed`: the same,
by the rules of the source project."""

Trigger = Literal["asked", "cold", "money", "soft", "hard", "overflow"]


class CompactionNumbers(msgspec.Struct, frozen=True):
    """What a compaction was decided by. Tokens are corrected estimates, money is in dollars.

    The head stands in front of what changes and stays. `cost_usd` is what writing the shorter prompt costs above
    reading the long one, once; `break_even_calls` is how many calls have to follow, None where no number is enough.
    """

    prompt_tokens: int
    head_tokens: int
    record_tokens: int
    kept_tokens: int
    removed_tokens: int
    calls_expected: float
    cost_usd: Decimal = Decimal(0)
    saving_per_call_usd: Decimal = Decimal(0)
    break_even_calls: float | None = None
    cache_cold: bool = False


class RecordSegment(msgspec.Struct, frozen=True):
    """A part of the record: what was found by rule, what the model has written about it, and how to go on."""

    kind: Literal["record", "prose", "note"]
    text: str


class ClearedResult(msgspec.Struct, frozen=True):
    """What stands in place of a tool's output from now on."""

    tool_use_id: str
    text: str


class ContextCompacted(Payload, frozen=True, tag="context.compacted"):
    """The view of the messages `first` to `last` of the log is another one from here on; `digest` is that of theirs.

    The leading `kept_blocks` of the prompt stay what they were, and `kept_tokens` of them were cached by a mark of
    their own. Tokens before and after are estimates of the whole prompt. `cost_usd` was paid for what the model wrote.
    """

    strategy: Strategy
    trigger: Trigger
    epoch: int
    first: int
    last: int
    digest: str
    tokens_before: int
    tokens_after: int
    numbers: CompactionNumbers
    segments: tuple[RecordSegment, ...] = ()
    role: Role = "user"
    cleared: tuple[ClearedResult, ...] = ()
    thinking_dropped: bool = False
    kept_blocks: int = 0
    kept_tokens: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    notes: tuple[str, ...] = ()


class CompactionRefused(Payload, frozen=True, tag="context.compaction_refused"):
    """A compaction was due and would not help: it is not tried for some calls, if `final` not until the user speaks."""

    trigger: Trigger
    reason: str
    numbers: CompactionNumbers
    final: bool = False


class SkillReleased(Payload, frozen=True, tag="skill.released"):
    """A skill's body has left the conversation: it can be loaded again, and its budget is free."""

    skill_id: str
    tool_use_id: str | None
    load_size_tokens: int
