"""Where other agents, frameworks and proxies place Anthropic breakpoints; by their behaviour, not from their code.

"User" messages include those that hold only tool results, as on the wire.
"""

from collections.abc import Callable, Iterator, Mapping

from holdfast.planning.breakpoints import last_breakpoint_block
from holdfast.planning.policies.fixed import (
    TEXT_BLOCK_START,
    BreakpointCandidates,
    FixedPolicy,
    PlacementRule,
    fixed_rule,
    last_message_block,
    last_stable_block,
    last_system_block,
    last_tool_block,
    last_user_text,
    new_fixed_policies,
    prefix_and_tail_rule,
)
from holdfast.planning.policy import CachePolicy, PlanningMoment, PromptShape
from holdfast.types.prompt import PromptSection, Ttl

# Observed behaviour of the tools themselves, not a choice of ours.
GURU_ANCHOR_EVERY_MESSAGES = 19
AUTOCACHE_BREAKPOINTS_MAX = 3
place_like_opencode = fixed_rule((last_tool_block, "5m"), (last_system_block, "5m"), (last_user_text, "5m"))


def _second_to_last_block(buffer: PromptShape) -> int | None:
    tail = last_message_block(buffer)
    return None if tail is None else last_breakpoint_block(buffer.blocks, 0, tail, section="messages")


def _before_exchange(buffer: PromptShape) -> int | None:
    """The end of the history before the current exchange."""
    person_text = last_user_text(buffer)
    return None if person_text is None else last_breakpoint_block(buffer.blocks, 0, person_text, section="messages")


place_like_inspect_ai = fixed_rule(
    (last_tool_block, "5m"), (last_system_block, "5m"), (_second_to_last_block, "5m"), (last_message_block, "5m")
)
place_like_aider = fixed_rule((last_system_block, "5m"), (_before_exchange, "5m"))


def place_like_litellm(moment: PlanningMoment, calls: int) -> BreakpointCandidates:
    """Every system block in order, then the last message, until no breakpoint is left."""
    for block in _breakpoint_blocks(moment.buffer, "system"):
        yield block, "5m"
    yield last_message_block(moment.buffer), "5m"


def place_like_litellm_recipe(moment: PlanningMoment, calls: int) -> BreakpointCandidates:
    """The system prompt for an hour, the last two messages for five minutes."""
    buffer = moment.buffer
    yield last_system_block(buffer), "1h"
    for start, stop in _messages_backwards(buffer, 2):
        yield last_breakpoint_block(buffer.blocks, start, stop, section="messages"), "5m"


def place_like_goose(moment: PlanningMoment, calls: int) -> BreakpointCandidates:
    """Tools, system, the last two user messages."""
    yield last_tool_block(moment.buffer), "5m"
    yield last_system_block(moment.buffer), "5m"
    for block in _user_tails(moment.buffer):
        yield block, "5m"


def claude_code_rule(ttl: Ttl) -> PlacementRule:
    """Two system blocks, the last two user messages; never the tools."""

    def placing(moment: PlanningMoment, calls: int) -> BreakpointCandidates:
        for block in _user_tails(moment.buffer):
            yield block, ttl
        for block in reversed(_breakpoint_blocks(moment.buffer, "system")):
            yield block, ttl

    return placing


def place_like_autocache(moment: PlanningMoment, calls: int) -> BreakpointCandidates:
    """System and tools for an hour where each is long enough, then the earliest long texts; breakpoints never move."""
    buffer, tokens_min = moment.buffer, moment.rules.tokens_min
    candidates: list[tuple[int | None, Ttl]] = []
    sections: tuple[PromptSection, ...] = ("system", "tools")
    for section in sections:
        indexes = [index for index in range(buffer.stable_count) if buffer.blocks[index].section == section]
        if sum(buffer.tokens[index] for index in indexes) >= tokens_min:
            candidates.append((last_stable_block(buffer, section), "1h"))
    for index in range(buffer.stable_count, len(buffer.blocks)):
        if len(candidates) >= AUTOCACHE_BREAKPOINTS_MAX:
            break
        block = buffer.blocks[index]
        if buffer.tokens[index] >= tokens_min and block.accepts_breakpoint and block.data.startswith(TEXT_BLOCK_START):
            candidates.append((index, "5m"))
    return candidates


class ContextGuruPolicy(FixedPolicy):
    """The last message, the previous call's last message, and anchors at every nineteenth message."""

    def __init__(self, name: str) -> None:
        super().__init__(name, self._place)
        self._sent: tuple[int, str] | None = None

    def _place(self, moment: PlanningMoment, calls: int) -> BreakpointCandidates:
        buffer = moment.buffer
        tail = last_message_block(buffer)
        block, digest = self._sent or (len(buffer.digests), "")
        unchanged = block < len(buffer.digests) and buffer.digests[block].digest == digest
        self._sent = None if tail is None else (tail, buffer.digests[tail].digest)
        yield tail, "5m"
        yield block if unchanged else None, "5m"
        ends = list(_message_ends(buffer))
        for end in ends[GURU_ANCHOR_EVERY_MESSAGES::GURU_ANCHOR_EVERY_MESSAGES][:2]:
            yield last_breakpoint_block(buffer.blocks, 0, end, section="messages"), "5m"


# By name; `metis` and `langchain-clearing` also lay the prompt out differently, which `replay.comparison` does.
RIVAL_POLICIES: Mapping[str, Callable[[str], CachePolicy]] = {
    "none": lambda name: FixedPolicy(name, fixed_rule()),
    "automatic": lambda name: FixedPolicy(name, fixed_rule((last_message_block, "5m"))),
    "langchain": lambda name: FixedPolicy(name, prefix_and_tail_rule("5m", "5m")),
    "litellm": lambda name: FixedPolicy(name, place_like_litellm),
    "litellm-1h-5m": lambda name: FixedPolicy(name, place_like_litellm_recipe),
    "inspect-ai": lambda name: FixedPolicy(name, place_like_inspect_ai),
    "goose": lambda name: FixedPolicy(name, place_like_goose),
    "opencode": lambda name: FixedPolicy(name, place_like_opencode),
    "aider": lambda name: FixedPolicy(name, place_like_aider),
    "claude-code-5m": lambda name: FixedPolicy(name, claude_code_rule("5m")),
    "claude-code-1h": lambda name: FixedPolicy(name, claude_code_rule("1h")),
    "metis": lambda name: FixedPolicy(name, prefix_and_tail_rule("5m", "5m")),
    "autocache": lambda name: FixedPolicy(name, place_like_autocache),
    "context-guru": ContextGuruPolicy,
    "langchain-clearing": lambda name: FixedPolicy(name, prefix_and_tail_rule("5m", "5m")),
}


def new_compared_policies() -> dict[str, CachePolicy]:
    """New instances, for one session, of every policy that ours is compared with, by name."""
    rivals = (make(name) for name, make in RIVAL_POLICIES.items())
    return {policy.name: policy for policy in (*new_fixed_policies(), *rivals)}


def _breakpoint_blocks(buffer: PromptShape, section: PromptSection) -> list[int]:
    stable = enumerate(buffer.blocks[: buffer.stable_count])
    return [index for index, block in stable if block.section == section and block.accepts_breakpoint]


def _messages_backwards(buffer: PromptShape, count: int) -> Iterator[tuple[int, int]]:
    """The last messages as ranges of blocks, newest first."""
    blocks, stop = buffer.blocks, len(buffer.blocks)
    for _ in range(count):
        start = stop
        while start and blocks[start - 1].section == "messages" and blocks[start - 1].role == blocks[stop - 1].role:
            start -= 1
        if start == stop:
            return
        yield start, stop
        stop = start


def _user_tails(buffer: PromptShape) -> Iterator[int]:
    """The last blocks of the last two user messages."""
    for start, stop in _messages_backwards(buffer, 4):
        if buffer.blocks[start].role == "user":
            block = last_breakpoint_block(buffer.blocks, start, stop, section="messages")
            if block is not None:
                yield block


def _message_ends(buffer: PromptShape) -> Iterator[int]:
    blocks = buffer.blocks
    for index in range(len(blocks)):
        is_last = index + 1 == len(blocks) or blocks[index + 1].role != blocks[index].role
        if blocks[index].section == "messages" and is_last:
            yield index + 1
