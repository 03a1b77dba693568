"""The values of a compaction: groups, the cut between them, the record, and what a session may be told to do."""

from typing import Literal

import msgspec

from holdfast.canonical.blocks import Message
from holdfast.errors import UserError

SOFT_TOKENS = 100_000
RECORD_TOKENS_MAX = 6_000
TAIL_TOKENS_MAX = 10_000
SHARE_MAX = 0.2
GAIN_TOKENS_MIN = 8_000
ASKED_GAIN_TOKENS_MIN = 2_000
GAIN_SHARE_MIN = 0.2
PROTECTED_TOOLS = ("skill_load", "recall_instruction")
"""Tools whose outputs are never cleared: what a model works by is no old output."""

Section = Literal[
    "goal",
    "asks",
    "constraints",
    "pending",
    "questions",
    "errors",
    "tests",
    "decisions",
    "current",
    "files",
    "commands",
    "names",
    "timeline",
    "tools",
    "scope",
]


_COUNTS = (
    "preserve_recent_messages",
    "max_estimated_tokens",
    "auto_compaction_input_tokens_threshold",
    "record_tokens_max",
    "tail_tokens_max",
)


class CompactionConfig(msgspec.Struct, frozen=True):
    """How a session is made shorter, and when.

    The first two hold for the strategy `seed`, which keeps messages by their number. Otherwise the newest groups stay
    as far as `tail_tokens_max` goes, the record takes `record_tokens_max` at most, and both together no more than
    `share_max` of the messages before. With `clear` old outputs of tools, those of protected ones aside, give way first
    where that is enough. `auto` lets a session decide by itself: from the soft limit on, when its
    cache is cold anyway, when the window is nearly full, and with `money` as soon as it is expected to pay.
    With `prose` the model adds its reasons to the record, where its cache is warm.
    """

    preserve_recent_messages: int = 4
    max_estimated_tokens: int = 10_000
    auto: bool = True
    auto_compaction_input_tokens_threshold: int = SOFT_TOKENS
    record_tokens_max: int = RECORD_TOKENS_MAX
    tail_tokens_max: int = TAIL_TOKENS_MAX
    share_max: float = SHARE_MAX
    money: bool = True
    clear: bool = True
    protected_tools: tuple[str, ...] = PROTECTED_TOOLS
    prose: bool = False

    def __post_init__(self) -> None:
        for name in _COUNTS:
            count: object = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise UserError(f"{name} of a CompactionConfig must be a whole number of at least 0, not {count!r:.80}")
        share: object = self.share_max
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UserError(f"share_max of a CompactionConfig must be a number from 0 to 1, not {share!r:.80}")
        tools: object = self.protected_tools
        if not isinstance(tools, tuple | list) or not all(isinstance(one, str) for one in tools):
            raise UserError("protected_tools of a CompactionConfig must be names of tools, such as ('read_file',)")


DEFAULT_CONFIG = CompactionConfig()


class Group(msgspec.Struct, frozen=True):
    """Passages [start, stop) that stay together: a call with its results, or one message."""

    start: int
    stop: int
    tokens: int = 0


class Cut(msgspec.Struct, frozen=True):
    """Passages [start, stop) of the view are covered; in front of them stands the record of a cut before, if any.

    `first` and `last` are the numbers of the first and last message of the log that are covered.
    """

    start: int
    stop: int
    first: int
    last: int
    covered_tokens: int
    kept_tokens: int


class Line(msgspec.Struct, frozen=True):
    """One line of a record, and the messages that it is taken from."""

    section: Section
    text: str
    sources: tuple[int, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """Lines in the order of their sections; `left_out` counts those that the budget had no room for."""

    lines: tuple[Line, ...]
    left_out: int = 0


class CompactionResult(msgspec.Struct, frozen=True):
    """What became of a conversation: the summary, the messages as they are sent now, and how many were removed.

    `reason` says why nothing was done; then the messages are what they were.
    """

    messages: tuple[Message, ...]
    removed_message_count: int = 0
    summary: str = ""
    formatted_summary: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    reason: str = ""
