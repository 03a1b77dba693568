"""Values of a compaction: configuration, groups, cut, summary lines, result."""

from typing import Literal, get_args

import msgspec

from holdfast.compaction.summary_compression import shorten_summary
from holdfast.errors import UserError
from holdfast.types.blocks import Message

# 100,000 is the threshold of seed 002. GAIN_* keep a cache miss from gaining too little: decision.removed_tokens_min.
SOFT_LIMIT_TOKENS = 100_000
SUMMARY_TOKENS_MAX = 6_000
TAIL_TOKENS_MAX = 10_000
FILES_TOKENS_MAX = 30_000
SHARE_MAX = 0.6
GAIN_TOKENS_MIN = 8_000
REQUESTED_GAIN_TOKENS_MIN = 2_000
GAIN_SHARE_MIN = 0.2
CompactionMode = Literal["off", "threshold", "economical"]
"""When a session is compacted without being asked: never; at a limit; or also when that is expected to save money."""

PROTECTED_TOOLS = ("skill_load", "recall_instruction")
"""Tools whose results are never cleared, because the model keeps following what they returned."""

SummarySection = Literal[
    "goal", "asks", "constraints", "pending", "questions", "errors", "tests", "decisions",
    "current", "files", "commands", "names", "timeline", "tools", "scope",
]  # fmt: skip


class CompactionConfig(msgspec.Struct, frozen=True):
    """How and when a session is compacted.

    The first two fields apply to strategy `seed`, which keeps a number of messages. Otherwise the newest groups are
    kept up to `tail_tokens_max`, the summary takes at most `summary_tokens_max`, and both together at most `share_max`
    of the message tokens before. Of what is covered, files in progress stay in view up to `files_tokens_max`.
    `mode` "threshold" compacts when the prompt has `auto_compaction_input_tokens_threshold` tokens or fills 80 % of the
    context window; "economical" also when the cache is cold or carrying old messages has cost more than removing them.
    With `llm_summary` the model adds its reasons to the summary if its cache is warm.
    """

    preserve_recent_messages: int = 4
    max_estimated_tokens: int = 10_000
    mode: CompactionMode = "threshold"
    auto_compaction_input_tokens_threshold: int = SOFT_LIMIT_TOKENS
    summary_tokens_max: int = SUMMARY_TOKENS_MAX
    tail_tokens_max: int = TAIL_TOKENS_MAX
    files_tokens_max: int = FILES_TOKENS_MAX
    share_max: float = SHARE_MAX
    protected_tools: tuple[str, ...] = PROTECTED_TOOLS
    llm_summary: bool = False

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name, kind in CompactionConfig.__annotations__.items() if kind is int}
        for name, count in counts.items():
            # bool is a subclass of int: True would otherwise pass as a limit of one token.
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise UserError(f"{name} of a CompactionConfig must be a whole number of at least 0, not {count!r:.80}")
        if self.mode not in get_args(CompactionMode):
            modes = ", ".join(get_args(CompactionMode))
            raise UserError(f"mode of a CompactionConfig must be one of {modes}, not {self.mode!r:.80}")
        share: object = self.share_max
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UserError(f"share_max of a CompactionConfig must be a number from 0 to 1, not {share!r:.80}")
        tools: object = self.protected_tools
        if not isinstance(tools, tuple | list) or not all(isinstance(tool, str) for tool in tools):
            raise UserError("protected_tools of a CompactionConfig must be tool names, such as ('read_file',)")


DEFAULT_CONFIG = CompactionConfig()


class ExchangeGroup(msgspec.Struct, frozen=True):
    """History entries [start, stop) that stay together: a call with its results, or one message."""

    start: int
    stop: int
    tokens: int = 0


class CompactionCut(msgspec.Struct, frozen=True):
    """History entries [start, stop) are covered by the summary; an earlier summary may come before them.

    `first` and `last` are the numbers of the first and last covered message of the log.
    """

    start: int
    stop: int
    first: int
    last: int


class SummaryLine(msgspec.Struct, frozen=True):
    """One line of a summary, and the messages it comes from."""

    section: SummarySection
    text: str
    sources: tuple[int, ...] = ()


class Summary(msgspec.Struct, frozen=True):
    """Lines in section order; `left_out` counts those that did not fit the budget."""

    lines: tuple[SummaryLine, ...]
    left_out: int = 0


class CompactionResult(msgspec.Struct, frozen=True):
    """The summary, the messages after the compaction, and how many were removed.

    If nothing was compacted, `reason` says why and the messages are unchanged.
    """

    messages: tuple[Message, ...]
    removed_message_count: int = 0
    summary: str = ""
    formatted_summary: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    reason: str = ""

    @property
    def compressed_summary(self) -> str:
        """The user's goal and the most important lines, for a screen: at most 24 lines and 1,200 characters."""
        return shorten_summary(self.summary)
