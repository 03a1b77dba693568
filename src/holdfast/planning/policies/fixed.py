"""Fixed policies for comparison: the same breakpoints and TTLs whatever the session does."""

from collections.abc import Callable, Iterable

from holdfast.catalog.schema import CacheRules
from holdfast.planning.breakpoints import last_breakpoint_block
from holdfast.planning.idle_times import WaitsFor
from holdfast.planning.policy import Ping, PingResult, PlanningMoment, PromptShape
from holdfast.types.prompt import Breakpoint, PromptSection, Ttl
from holdfast.types.usage import Usage

# 15 seconds before a 5-minute entry expires, the margin that our own pings keep.
UPGRADE_AFTER_SECONDS = 285.0

# The spacing that docs/decisions/0017 compares with the adaptive policy.
ANCHOR_EVERY_CALLS = 3
TEXT_BLOCK_START = b'{"type":"text"'

# Blocks to put a breakpoint on, most important first; None where there is no such block.
BreakpointCandidates = Iterable[tuple[int | None, Ttl]]

# Places the breakpoints of a request, given how many calls the session made before it.
PlacementRule = Callable[[PlanningMoment, int], BreakpointCandidates]
BlockFinder = Callable[[PromptShape], int | None]
PingRule = Callable[[PlanningMoment, int], Ping | None]


class FixedPolicy:
    """Places breakpoints by a rule; the first candidates win if there are more than the provider allows."""

    def __init__(self, name: str, place: PlacementRule, ping: PingRule | None = None) -> None:
        self.name = name
        self._placement_rule = place
        self._ping_rule = ping
        self._calls = 0

    def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
        placed = self._placement_rule(moment, self._calls)
        self._calls += 1
        return legal_breakpoints(placed, moment.rules)

    def record_usage(self, moment: PlanningMoment, usage: Usage) -> None:
        """Reported usage does not change a fixed schedule."""

    def next_ping(self, moment: PlanningMoment, pings_so_far: int, waits_for: WaitsFor) -> Ping | None:
        return self._ping_rule(moment, pings_so_far) if self._ping_rule else None

    def record_ping(self, ping: PingResult) -> None:
        """Neither does the result of a ping."""


def legal_breakpoints(candidates: BreakpointCandidates, rules: CacheRules) -> tuple[Breakpoint, ...]:
    """At most as many breakpoints as the model allows, in wire order, and no TTL longer than one before it.

    Anthropic refuses a 1-hour breakpoint after a 5-minute one ("Prompt caching"), so a 1-hour breakpoint raises all
    those before it.
    """
    chosen: dict[int, Ttl] = {}
    for block, ttl in candidates:
        if block is not None and block not in chosen and len(chosen) < rules.breakpoints_max:
            chosen[block] = ttl
    breakpoints: list[Breakpoint] = []
    ttl_so_far: Ttl = "5m"
    for block in sorted(chosen, reverse=True):
        if chosen[block] == "1h":
            ttl_so_far = "1h"
        breakpoints.append(Breakpoint(block, ttl_so_far))
    return tuple(reversed(breakpoints))


def last_stable_block(buffer: PromptShape, section: PromptSection) -> int | None:
    """The last block of the stable tools or system prompt that can carry a breakpoint."""
    return last_breakpoint_block(buffer.blocks, 0, buffer.stable_count, section=section)


def last_system_block(buffer: PromptShape) -> int | None:
    return last_stable_block(buffer, "system")


def last_tool_block(buffer: PromptShape) -> int | None:
    return last_stable_block(buffer, "tools")


def last_message_block(buffer: PromptShape) -> int | None:
    """The last block of the conversation that can carry a breakpoint."""
    return last_breakpoint_block(buffer.blocks, 0, len(buffer.blocks), section="messages")


def last_user_text(buffer: PromptShape) -> int | None:
    """The last text block that a person wrote; tool results, which also have the user role, do not count."""
    blocks = buffer.blocks
    for index in range(len(blocks) - 1, -1, -1):
        block = blocks[index]
        if block.section != "messages":
            return None
        if block.role == "user" and block.accepts_breakpoint and block.data.startswith(TEXT_BLOCK_START):
            return index
    return None


def fixed_rule(*finders: tuple[BlockFinder, Ttl]) -> PlacementRule:
    """A breakpoint on each block that is found, most important first."""
    return lambda moment, calls: tuple((find(moment.buffer), ttl) for find, ttl in finders)


def prefix_and_tail_rule(head: Ttl, tail: Ttl) -> PlacementRule:
    return fixed_rule((last_message_block, tail), (last_system_block, head), (last_tool_block, head))


# Breakpoints that stay on the last user message, however many tool calls have followed.
place_on_user_text = fixed_rule((last_user_text, "5m"), (last_system_block, "5m"), (last_tool_block, "5m"))


def place_sparse_anchors(moment: PlanningMoment, calls: int) -> BreakpointCandidates:
    """One hour on the end of every third call, from the second call on: its prefix is what the first call wrote."""
    anchored = calls % ANCHOR_EVERY_CALLS == 1
    yield last_message_block(moment.buffer), "1h" if anchored else "5m"
    if not anchored:
        yield last_system_block(moment.buffer), "5m"


def ping_upgrade_once(moment: PlanningMoment, pings_so_far: int) -> Ping | None:
    if pings_so_far:
        return None
    return Ping(UPGRADE_AFTER_SECONDS, "1h", "idle for nearly five minutes")


def new_fixed_policies() -> tuple[FixedPolicy, ...]:
    """New instances, for one session."""
    return (
        FixedPolicy("tail-5m", prefix_and_tail_rule("5m", "5m")),
        FixedPolicy("system-1h-tail-5m", prefix_and_tail_rule("1h", "5m")),
        FixedPolicy("all-1h", prefix_and_tail_rule("1h", "1h")),
        FixedPolicy("sparse-anchors", place_sparse_anchors),
        FixedPolicy("upgrade-ping", prefix_and_tail_rule("5m", "5m"), ping_upgrade_once),
        FixedPolicy("frozen", place_on_user_text),
    )
