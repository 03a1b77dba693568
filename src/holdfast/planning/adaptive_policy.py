"""The adaptive policy: breakpoints where they will be read again, with the TTL that the idle times justify."""

from collections.abc import Sequence

import msgspec

from holdfast.catalog.schema import Price
from holdfast.economics.cost import price_multipliers
from holdfast.planning.breakpoints import can_carry_breakpoint, last_breakpoint_block
from holdfast.planning.idle_times import WaitsFor, expected_idle_times
from holdfast.planning.keep_alive import IdleSession, plan_ping
from holdfast.planning.learned import (
    NOTHING_LEARNED,
    Anchor,
    CacheMemory,
    LearnedParameters,
    RequestRecord,
    forget_cached,
    learned_after_session,
    live_anchor,
    memory_after_call,
    memory_after_ping,
)
from holdfast.planning.policy import Ping, PingResult, PlanningMoment
from holdfast.planning.ttl import TtlStakes, choose_ttl, compute_ttl_stakes, estimate_probabilities
from holdfast.types.prompt import Breakpoint, Plan, Ttl
from holdfast.types.usage import Usage

# Breakpoints below this share of the floor are left out. Token counts are estimates, and a breakpoint below the floor
# is ignored by the provider at no cost, while a missing one above it costs a whole prompt.
FLOOR_SHARE = 0.8


class AdaptivePlan(msgspec.Struct, frozen=True):
    plan: Plan
    stakes: TtlStakes


def plan_adaptive_call(
    moment: PlanningMoment,
    memory: CacheMemory,
    learned: LearnedParameters = NOTHING_LEARNED,
    *,
    keep_small: bool = False,
) -> AdaptivePlan:
    """The breakpoints of the next call. Looks at the stable prefix, the prompt's end and the memory, not the history.

    `plan.plan` adds the expected savings. `keep_small` keeps breakpoints below the floor, for prompts whose size no
    provider has confirmed yet: they cost nothing, and one left out because of a wrong estimate costs a whole prompt.
    """
    buffer, rules = moment.buffer, moment.rules
    anchor = live_anchor(memory, moment.at)
    idle_times = expected_idle_times(memory.idle_times.all, learned.idle_times.all)
    probabilities = estimate_probabilities(idle_times, memory, learned)
    # An anchor counts as readable after a pause if that is more likely than not.
    stakes = compute_ttl_stakes(moment, memory, anchor, upgrades=probabilities.upgrade > 0.5)
    hour_chain = anchor is not None and anchor.is_sound and anchor.tokens >= memory.tail_tokens
    choice = choose_ttl(stakes, probabilities, price_multipliers(moment.price), hour_chain=hour_chain)
    ttl: Ttl = "5m" if choice.reach == "short" else "1h"
    blocks = _breakpoint_blocks(moment, memory, anchor)
    floor = (learned.floor + memory.floor).corrected_floor(rules.tokens_min)
    # The floor counts the provider's tokens, the buffer our estimates; `scale` converts one into the other.
    scale = stakes.prompt / buffer.tokens_total if buffer.tokens_total and stakes.prompt else 1.0
    first_block = 0 if keep_small else first_block_above(buffer.tokens, floor * FLOOR_SHARE / scale)
    breakpoints = tuple(
        Breakpoint(block, ttl, f"{reason}; {choice.reason}" if block == blocks[-1][0] else reason)
        for block, reason in blocks
        if block >= first_block
    )
    notes = _notes(breakpoints, floor, rules.tokens_min)
    return AdaptivePlan(Plan(breakpoints, probabilities, notes, floor), stakes)


def _notes(breakpoints: tuple[Breakpoint, ...], floor: int, table_tokens: int) -> tuple[str, ...]:
    notes = []
    if floor != table_tokens:
        notes.append(f"observed cache floor: {floor} tokens (catalog: {table_tokens})")
    if not breakpoints:
        notes.append(f"no breakpoints: the prompt is below the cache floor of {floor} tokens")
    return tuple(notes)


def _breakpoint_blocks(moment: PlanningMoment, memory: CacheMemory, anchor: Anchor | None) -> list[tuple[int, str]]:
    """The blocks that get a breakpoint, in wire order.

    Candidates by importance: the end of the conversation, then what makes sure that the previous end is found.
    """
    buffer, rules = moment.buffer, moment.rules
    stable = buffer.stable_count
    end = last_breakpoint_block(buffer.blocks, stable, len(buffer.blocks), section="messages")
    candidates: list[tuple[int | None, str]] = [(end, "end of the conversation so far")]
    if buffer.first_ephemeral is not None:
        before_ephemeral = last_breakpoint_block(buffer.blocks, stable, buffer.first_ephemeral, section="messages")
        candidates.append((before_ephemeral, "before ephemeral text"))
    if memory.tail_block is not None and end is not None and end - memory.tail_block >= rules.lookback_positions:
        candidates.append((memory.tail_block, "end of the previous call, beyond the lookback"))
    if anchor is not None:
        candidates.append((anchor.block, "the entry that survives a pause"))
    system_end = last_breakpoint_block(buffer.blocks, 0, stable, section="system")
    tools_end = last_breakpoint_block(buffer.blocks, 0, stable, section="tools")
    candidates += [(system_end, "end of the stable system prompt"), (tools_end, "end of the tools")]
    chosen: dict[int, str] = {}
    for block, reason in candidates:
        if block is not None and len(chosen) < rules.breakpoints_max and can_carry_breakpoint(buffer.blocks, block):
            chosen.setdefault(block, reason)
    return sorted(chosen.items())


def first_block_above(tokens: Sequence[int], floor: float) -> int:
    """The first block at which the prompt reaches `floor` tokens; does not scan beyond it."""
    total = 0
    for block, count in enumerate(tokens):
        total += count
        if total >= floor:
            return block
    return len(tokens)


def plan_session_ping(
    memory: CacheMemory, learned: LearnedParameters, price: Price, waits_for: WaitsFor
) -> Ping | None:
    """The ping that keeps the newest cache entry warm, if one is worth it."""
    own, others = memory.idle_times.waiting_for(waits_for), learned.idle_times.waiting_for(waits_for)
    idle_times = expected_idle_times(own, others)
    return plan_ping(_idle_session(memory, learned), idle_times, price_multipliers(price))


def _idle_session(memory: CacheMemory, learned: LearnedParameters) -> IdleSession:
    """The idle session after its last call or ping."""
    anchor, upgrade = memory.anchor, (learned.upgrade_belief + memory.upgrade_belief).probability
    is_trusted = anchor is not None and (anchor.is_sound or upgrade >= 0.5)
    held_tokens = anchor.tokens if anchor is not None and is_trusted else 0
    idle_before_use = 0.0 if memory.used_at is None or memory.last_at is None else memory.used_at - memory.last_at
    ttl: Ttl = "1h" if is_trusted and held_tokens >= memory.tail_tokens else "5m"
    return IdleSession(memory.tail_tokens, held_tokens, ttl, idle_before_use, upgrade, memory.reply_tokens)


class AdaptivePolicy:
    """The adaptive planner behind the `CachePolicy` interface; one instance per session."""

    name = "holdfast"

    def __init__(self, learned: LearnedParameters = NOTHING_LEARNED, *, keep_alive: bool = False) -> None:
        self._learned = learned
        self._keep_alive = keep_alive
        self._memory = CacheMemory()
        self._planned: AdaptivePlan | None = None

    def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
        self._planned = plan_adaptive_call(moment, self._memory, self._learned)
        return self._planned.plan.breakpoints

    def record_usage(self, moment: PlanningMoment, usage: Usage) -> None:
        breakpoints = self._planned.plan.breakpoints if self._planned else ()
        floor = self._planned.plan.floor_tokens if self._planned else None
        sent = RequestRecord(moment.at, breakpoints, len(moment.buffer.blocks), moment.waited_for, floor)
        self._memory = memory_after_call(self._memory, sent, usage)

    def forget_prefix(self) -> None:
        """The next prompt does not extend the last one, so nothing cached can be read."""
        self._memory = forget_cached(self._memory)

    def next_ping(self, moment: PlanningMoment, pings_so_far: int, waits_for: WaitsFor) -> Ping | None:
        return plan_session_ping(self._memory, self._learned, moment.price, waits_for) if self._keep_alive else None

    def record_ping(self, ping: PingResult) -> None:
        self._memory = memory_after_ping(self._memory, ping)

    def learned_parameters(self) -> LearnedParameters:
        """The parameters that the next session starts with, once this one has ended."""
        return learned_after_session(self._learned, self._memory)
